"""Nets that draw from PyTorch's global generator: each step of the loop seeds it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfl import Federation, Inline
from rayfl.data import Synthetic
from rayfl.nets import SplitNet
from rayfl.training import Net
from rayfl.training.loop import fit_loop
from rayfl.training.noise import step_keys
from tests.support.federations import INLINE_AND_RAY, bytes_of_run, same_bytes, small
from tests.support.nets import CLASSES, make_client, make_images

DATA = Synthetic(train=160, test=60, shape=(1, 4, 4), classes=4)


class Drawing(nn.Module):
    """Attention with dropout, a dropout function, stochastic depth and noise: all of one generator."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)
        self.middle = nn.Linear(16, 16)
        self.last = nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes], of rows of four numbers."""
        x = x.squeeze(1)
        x = F.dropout((x + self.attention(x, x, x)[0]).flatten(1), 0.1, self.training)
        if not self.training or torch.rand(()) < 0.8:
            x = x + self.middle(x).relu()
        return self.last(x + 0.1 * torch.randn_like(x) if self.training else x)


def drawing(output: Path, **changes: Any) -> Federation:
    """A small federation with such a net."""
    settings = {"data": DATA, "net": f"{__name__}.Drawing", "clients": 9, "participation": 1.0, "rounds": 2}
    return small(output, **settings | changes)


@pytest.fixture
def generator_is_kept() -> Iterator[None]:
    """See that nothing is left of the draws."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("generator_is_kept")
def test_results_are_the_same_in_all_processes(tmp_path: Path) -> None:
    same_bytes(tmp_path, *INLINE_AND_RAY, Inline(execution="loop"), make=drawing)


def test_a_stack_falls_back_to_the_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawing(tmp_path / "stacked", engine=Inline(execution="stacked")).run()
    assert "random operation" in capsys.readouterr().err
    drawing(tmp_path / "loop", engine=Inline(execution="loop", memory_format="contiguous")).run()
    stacked, loop = (bytes_of_run(tmp_path / name, settings=False) for name in ("stacked", "loop"))
    assert stacked == loop


def test_a_fit_by_hand() -> None:
    """Plain PyTorch, seeded by the key of each step."""
    images = make_images(24)
    size = images.batch(torch.tensor([0]))[0].numel()
    net = Net(lambda: noted(nn.Linear(size, CLASSES)), dtype=torch.float64)
    client, w = make_client(net, images, 24, lr=0.1), net.initial(0)
    request: Any = client.fit(w, client.loss, epochs=1, batch_size=8)
    fitted = fit_loop(request)
    weight, bias = (w[n].clone() for n in ("head.weight", "head.bias"))
    for key, indices in zip(step_keys(request.key, 3), request.batches, strict=True):
        x, y = client._examples.batch(indices)
        torch.manual_seed(int(key))
        weight, bias = (t.detach().requires_grad_() for t in (weight, bias))
        loss = F.cross_entropy(F.linear(F.dropout(x.flatten(1), 0.5), weight, bias), y)
        weight, bias = (
            t - 0.1 * g for t, g in zip((weight, bias), torch.autograd.grad(loss, (weight, bias)))
        )
    torch.testing.assert_close(fitted.weights["head.weight"], weight)
    torch.testing.assert_close(fitted.weights["head.bias"], bias)


class Dropping(nn.Module):
    """Dropout as a function."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what is left."""
        return F.dropout(x.flatten(1), 0.5, self.training)


def noted(head: nn.Linear) -> SplitNet:
    """A net that is known to draw."""
    net = SplitNet(Dropping(), nn.Sequential(), head)
    net.draws = True
    return net
