import numpy as np
import torch

from rayfl.training.noise import fold, step_keys, uniform


def test_the_same_bits_one_by_one_and_stacked():
    keys = torch.tensor([0, 1, -5, 2**62])
    stacked = torch.func.vmap(lambda k: uniform(k, (3, 4)))(keys)
    assert torch.equal(stacked, torch.stack([uniform(k, (3, 4)) for k in keys]))
    folded = torch.func.vmap(lambda k: fold(k, torch.tensor(3)))(keys)
    assert torch.equal(folded, torch.stack([fold(k, torch.tensor(3)) for k in keys]))


def test_the_mixing_is_splitmix64():
    """Outputs for state 0 of the published generator: 0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4."""
    found = fold(torch.tensor(0), torch.tensor([0, 1])).numpy().view(np.uint64)
    assert [hex(v) for v in found] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4"]


def test_numbers_are_uniform():
    n = 50_000
    draws = uniform(torch.tensor(11), (n,)).double()
    assert draws.min() >= 0
    assert draws.max() < 1
    counts = torch.histc(draws, 50, 0, 1)
    chi2 = ((counts - n / 50).square() / (n / 50)).sum().item()
    assert 20 < chi2 < 90  # 49 degrees of freedom: both tails beyond four standard deviations
    assert abs(torch.corrcoef(torch.stack([draws[:-1], draws[1:]]))[0, 1]) < 4 / n**0.5
    assert torch.equal((draws * 2**24).round(), draws * 2**24)


def test_steps_do_not_share_numbers():
    keys = step_keys(2**62, 20)
    assert len(set(keys.tolist())) == 20
    draws = torch.stack([uniform(k, (500,)) for k in keys])
    assert len(draws.unique()) > 0.999 * draws.numel()
    assert torch.corrcoef(draws.double()).fill_diagonal_(0).abs().max() < 0.2


def test_folding_in_a_number_gives_another_stream():
    key = torch.tensor(7)
    streams = [
        key,
        fold(key, torch.tensor(0)),
        fold(key, torch.tensor(1)),
        fold(torch.tensor(8), torch.tensor(0)),
    ]
    draws = torch.stack([uniform(k, (1000,)) for k in streams]).double()
    assert torch.corrcoef(draws).fill_diagonal_(0).abs().max() < 0.15
    assert torch.equal(uniform(fold(key, torch.tensor(1)), (1000,)).double(), draws[2])
