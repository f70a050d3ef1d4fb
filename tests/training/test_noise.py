import numpy as np
import torch

from rayfl.training.noise import bernoulli, fold, normal, split, step_keys, uniform


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


def test_the_stack_draws_what_the_loop_draws():
    """To the bit, but for normal numbers, whose logarithm may differ in the last place of float64."""
    keys = torch.cat([step_keys(3, 50), torch.tensor([0, 1, -5, 2**62])])
    for draw in (
        lambda k: fold(k, torch.tensor(3)),
        lambda k: split(k, 4),
        lambda k: uniform(k, (3, 4)),
        lambda k: bernoulli(split(k, 1), 0.3, (7, 5)),
    ):
        assert torch.equal(torch.func.vmap(draw)(keys), torch.stack([draw(k) for k in keys]))
    stacked = torch.func.vmap(lambda k: normal(k, (7, 5)))(keys)
    torch.testing.assert_close(stacked, torch.stack([normal(k, (7, 5)) for k in keys]), rtol=3e-7, atol=0)


def test_bernoulli_goes_by_its_probability():
    n = 40_000
    for p in (0.0, 0.2, 0.9, 1.0):
        draws = bernoulli(torch.tensor(5), p, (n,))
        assert draws.dtype == torch.bool
        assert abs(draws.double().mean().item() - p) <= 4 * (p * (1 - p) / n) ** 0.5
    each = bernoulli(torch.tensor(5), torch.tensor([0.0, 1.0]), (n, 2))
    assert each.double().mean(0).tolist() == [0, 1]


def test_normal_numbers_have_the_moments_of_the_normal_distribution():
    """Mean 0, variance 1, skewness 0, kurtosis 3; within four standard deviations of their estimates."""
    n = 100_000
    z = normal(torch.tensor(2**40 + 1), (n,)).double()
    assert z.isfinite().all()
    assert z.abs().max() < 5.8
    for power, expected, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(z.pow(power).mean().item() - expected) < 4 * (spread / n) ** 0.5
    for limit, share in ((-1, 0.158655), (0, 0.5), (0.5, 0.691462), (2, 0.977250)):
        assert abs((z < limit).double().mean().item() - share) < 4 * (share * (1 - share) / n) ** 0.5
    assert abs(torch.corrcoef(torch.stack([z[:-1], z[1:]]))[0, 1]) < 4 / n**0.5
    assert normal(torch.tensor(1), (2, 3)).dtype == torch.float32
    assert normal(torch.tensor(1), ()).shape == ()


def test_keys_draw_independently():
    """Those of steps, parts of a step, the key itself, and what ``fold`` makes of it."""
    n, key = 20_000, torch.tensor(-9)
    keys = [key, *(split(key, i) for i in range(4)), *(fold(key, torch.tensor(i)) for i in range(4))]
    keys += [split(split(key, 0), 0), *step_keys(2**62, 5)]
    assert len({k.item() for k in keys}) == len(keys)
    for draw in (uniform, normal):
        found = torch.corrcoef(torch.stack([draw(k, (n,)).double() for k in keys]))
        assert found.fill_diagonal_(0).abs().max() < 5 / n**0.5
    many = torch.func.vmap(lambda k: uniform(k, ()))(split(key, torch.arange(n))).double()
    assert abs(many.mean().item() - 0.5) < 4 / (12 * n) ** 0.5
    assert split(key, torch.arange(3)).tolist() == [split(key, i).item() for i in range(3)]
