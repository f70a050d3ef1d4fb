"""The losses that ``training.loss`` names, by closed forms, in a loop and stacked."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl import Training
from rayfl.data.task import TASKS
from rayfl.errors import BadCode, BadValue, UserError
from rayfl.training import BalancedSoftmax, Batch, Client, CrossEntropy, Focal, Loss, Params
from rayfl.training.loop import run_loop
from rayfl.training.losses import resolve_loss
from rayfl.training.stacked import run_stacked
from tests.support.datasets import of_classes
from tests.support.federations import small
from tests.support.nets import close, make_clients, only, smooth_net
from tests.support.own_modules import OwnModules
from tests.support.refusals import refused

HALF, QUARTER = math.log(2), math.log(4)
SCORES = torch.tensor([[0.0, HALF, 0.0], [QUARTER, 0.0, QUARTER]]).double().requires_grad_()
"""The softmax is 1/4, 1/2, 1/4 and 4/9, 1/9, 4/9."""
TARGETS = torch.tensor([1, 1])
LN = math.log


@pytest.mark.parametrize(
    ("loss", "counts", "expected"),
    [
        (CrossEntropy(), None, [LN(2), LN(9)]),
        (CrossEntropy(class_weights=[1, 3, 0]), None, [3 * LN(2), 3 * LN(9)]),
        (CrossEntropy(label_smoothing=0.3), None, [0.8 * LN(2) + 0.2 * LN(4), 0.8 * LN(9) + 0.2 * LN(9 / 4)]),
        (Focal(), None, [LN(2) / 4, 64 / 81 * LN(9)]),
        (Focal(gamma=0.5), None, [LN(2) * 0.5**0.5, LN(9) * (8 / 9) ** 0.5]),
        (Focal(gamma=0), None, [LN(2), LN(9)]),
        # of classes with 1, 2 and 0 samples: 1/4 against 2/4, and 4/9 against 2/9
        (BalancedSoftmax(), torch.tensor([1, 2, 0]), [LN(5 / 4), LN(3)]),
    ],
)
def test_losses_by_hand(loss: Loss, counts: Tensor | None, expected: list[float]) -> None:
    each = loss.per_sample(SCORES, TARGETS, counts)
    torch.testing.assert_close(each, torch.tensor(expected).double())
    torch.testing.assert_close(loss.mean(SCORES, TARGETS, counts), each.mean())
    loss.check(of_classes(3))


def test_validation_samples_of_classes_that_a_client_lacks_have_a_plain_loss() -> None:
    each = BalancedSoftmax().per_sample(SCORES, torch.tensor([0, 2]), torch.tensor([1, 2, 0]))
    torch.testing.assert_close(each, torch.tensor([LN(5), LN(9 / 4)]).double())


def test_losses_can_be_differentiated_twice_and_then_once() -> None:
    """What a loss keeps from inside a gradient of a gradient would be of no use outside."""
    loss = CrossEntropy(class_weights=(1.0, 3.0, 2.0))

    def mean(scores: Tensor) -> Tensor:
        return loss.mean(scores, TARGETS)

    twice = torch.func.grad(lambda scores: torch.func.grad(mean)(scores).square().sum())(SCORES.detach())
    once = torch.func.grad(mean)(SCORES.detach())
    assert bool(twice.isfinite().all())
    torch.testing.assert_close(once, torch.autograd.grad(mean(SCORES), SCORES)[0])


def test_the_plain_cross_entropy_is_that_of_torch_to_the_bit() -> None:
    scores, y = torch.randn(50, 7), torch.arange(50) % 7
    for smoothing in (0.0, 0.1):
        mean = CrossEntropy(label_smoothing=smoothing).mean(scores, y)
        assert torch.equal(mean, F.cross_entropy(scores, y, label_smoothing=smoothing))


def test_a_sample_that_is_certain_has_a_focal_loss_of_zero_and_no_gradient() -> None:
    for gamma in (0.5, 2.0):
        scores = torch.tensor([[200.0, 0.0]], requires_grad=True)
        (slope,) = torch.autograd.grad(Focal(gamma=gamma).mean(scores, torch.tensor([0])), scores)
        assert slope.tolist() == [[0.0, 0.0]]


def squares(scores: Tensor, targets: Tensor) -> Tensor:
    return (scores - targets[:, None]).square().sum(1)


@pytest.mark.parametrize(
    "loss", [CrossEntropy(label_smoothing=0.1), Focal(), BalancedSoftmax(), f"{__name__}.squares"]
)
@pytest.mark.parametrize("run", [run_loop, run_stacked])
def test_fits_and_totals_take_the_loss_of_the_run(run: Any, loss: Loss | str) -> None:
    """Clients of several classes and sizes; a step of each by hand, and the sum of its losses after it."""
    net = smooth_net()
    clients = make_clients(net, (12, 17, 9), loss=loss, lr=0.1)

    async def update(client: Client) -> tuple[Any, Any]:
        def summed(w: Params, batch: Batch, extra: None) -> Tensor:
            return client.losses_of(net.eval(w, batch.x), batch).sum()

        w = (await client.fit(client.initial, client.loss, batch_size=0)).weights
        return w, await client.total(summed, w)

    found = run([update(client) for client in clients], lambda *_: None)
    for client, (w, total) in zip(clients, found, strict=True):
        x, y = client._examples.batch(client._indices)
        start = {name: t.clone().requires_grad_() for name, t in client.initial.items()}
        counts, its = client.class_counts, resolve_loss(loss, TASKS["classes"])
        gradients = torch.autograd.grad(
            its.mean(net.eval(Params(start, net.train_names), x), y, counts), [*start.values()]
        )
        expected = {name: t - 0.1 * g for (name, t), g in zip(start.items(), gradients, strict=True)}
        assert close(dict(w), expected, 1e-12)
        torch.testing.assert_close(total, its.per_sample(net.eval(w, x), y, counts).sum())


def one_for_all(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores, targets)


def of_neighbours(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores - scores.mean(0), targets, reduction="none")


def without_gradient(scores: Tensor, targets: Tensor) -> Tensor:
    return (scores.argmax(1) != targets).float()


calls = [0]


def counting(scores: Tensor, targets: Tensor) -> Tensor:
    calls[0] += 1
    return F.cross_entropy(scores, targets, reduction="none") / (1 + calls[0] // 10)


def drawing(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores, targets, reduction="none") + 1e-6 * torch.rand(())


@pytest.mark.parametrize("function", [one_for_all, of_neighbours, without_gradient, only, counting, drawing])
def test_what_gives_no_loss_to_each_sample_is_refused(tmp_path: Path, function: Any) -> None:
    training = Training(loss=f"{function.__module__}.{function.__name__}")
    with refused(BadCode, "training.loss"):
        small(tmp_path / "run", training=training).run()


def test_class_weights_are_one_for_each_class(tmp_path: Path) -> None:
    with refused(BadValue, "training.loss.class_weights"):
        CrossEntropy(class_weights=(1.0, -1.0))
    CrossEntropy(class_weights=(0, 0, 0, 1, 1)).check(of_classes(5))
    training = Training(loss=CrossEntropy(class_weights=(1.0, 2.0)))
    with refused(BadCode, "training.loss"):
        small(tmp_path / "run", training=training).run()
    with pytest.raises(UserError):
        small(tmp_path / "run", training=Training(loss="nowhere.to_be_found")).run()


def test_a_function_of_ones_own_is_in_the_records(tmp_path: Path, own_modules: OwnModules) -> None:
    text = "def mine(scores, targets):\n    return {} * scores.square().sum(1)\n"
    codes = []
    for factor in (1, 2):
        own_modules.load("own_losses", text.format(factor))
        training = Training(loss="own_losses.mine", batch_size=20)
        result = small(tmp_path / str(factor), training=training, rounds=1).run()
        assert result.config["training"]["loss"] == "own_losses.mine"
        codes.append(result.code["own_losses"])
    assert codes[0] != codes[1]


"""Where a cross-entropy is no client's loss; docs/training.md names these terms."""
