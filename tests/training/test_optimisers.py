"""Optimisers against ``torch.optim``, in a loop and stacked."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rayfl.errors import BadCode, Conflict
from rayfl.training import SGD, Adam, AdamW, Params
from rayfl.training.loop import run_loop
from rayfl.training.optimisers import Descent, Optimiser
from rayfl.training.stacked import run_stacked
from tests.support.nets import close, make_clients, only, same_bits, smooth_net, smooth_split
from tests.support.refusals import refused

SETTINGS: list[tuple[Optimiser, dict[str, float], Any, dict[str, Any]]] = [
    (SGD(), {"momentum": 0.9, "weight_decay": 0.1}, torch.optim.SGD, {}),
    (SGD(nesterov=True), {"momentum": 0.8, "weight_decay": 0.02}, torch.optim.SGD, {"nesterov": True}),
    (Adam(), {}, torch.optim.Adam, {}),
    (Adam(beta1=0.7, beta2=0.9, eps=1e-3), {"weight_decay": 0.1, "clip": 0.2}, torch.optim.Adam, {}),
    (Adam(beta1=0.0, beta2=0.0), {"weight_decay": 0.1}, torch.optim.Adam, {}),
    (AdamW(), {"weight_decay": 0.1, "clip": 0.2}, torch.optim.AdamW, {}),
]
EXECUTIONS = pytest.mark.parametrize("run", [run_loop, run_stacked])


@EXECUTIONS
@pytest.mark.parametrize(("optimiser", "numbers", "reference", "options"), SETTINGS)
def test_fits_are_those_of_torch(
    run: Any, optimiser: Optimiser, numbers: dict[str, float], reference: Any, options: Any
) -> None:
    """Of two nets and a number without dimensions, such as a temperature, of clients of uneven sizes.

    Two losses take turns, of which the second leaves out one net and the number: torch meets gradients that
    are None.
    """
    net = smooth_net()
    clients = make_clients(net, [12, 7, 5], optimiser=optimiser, epochs=3, lr=0.01, **numbers)

    def both(w: Any, batch: Any, extra: Any) -> Any:
        return F.cross_entropy(w["s"]["s"] * net(w["a"], batch.x) + net(w["b"], batch.x), batch.y)

    def one(w: Any, batch: Any, extra: Any) -> Any:
        return F.cross_entropy(net(w["b"], batch.x), batch.y)

    start = {"a": clients[0].initial, "b": clients[0].random_weights()}
    start["s"] = Params({"s": torch.tensor(1.5, dtype=torch.float64)}, frozenset({"s"}))
    fits: Any = [c.fit(start, (both, one)) for c in clients]
    found = run([only(fit) for fit in fits], lambda k, fitted: None)
    given = {"weight_decay": 0.0, **{k: v for k, v in numbers.items() if k != "clip"}, **options}
    if isinstance(optimiser, Adam):
        given |= {"betas": (optimiser.beta1, optimiser.beta2), "eps": optimiser.eps}
    for client, fitted, request in zip(clients, found, fits):
        a, b = (smooth_split().double() for _ in "ab")
        for module, w in ((a, start["a"]), (b, start["b"])):
            module.load_state_dict(dict(w))
        scale = start["s"]["s"].clone().requires_grad_()
        its = reference([*a.parameters(), *b.parameters(), scale], lr=0.01, **given)
        for number, indices in enumerate(request.batches):
            x, y = client._examples.batch(indices)
            its.zero_grad(set_to_none=True)
            scores = b(x) if number // request.epoch_length % 2 else scale * a(x) + b(x)
            F.cross_entropy(scores, y).backward()
            for each in (a.parameters(), b.parameters(), [scale]) if "clip" in numbers else ():
                nn.utils.clip_grad_norm_(each, numbers["clip"])
            its.step()
        assert fitted.steps == len(request.batches)
        expected = {"a": a.state_dict(), "b": b.state_dict(), "s": {"s": scale.detach()}}
        assert close({name: dict(w) for name, w in fitted.weights.items()}, expected, 1e-12)


@EXECUTIONS
def test_a_fit_may_have_its_own(run: Any) -> None:
    """It counts as if the run had it; the run's momentum is SGD's alone."""
    of_sgd = make_clients(smooth_net(), [12, 7], momentum=0.9)
    of_adam = make_clients(smooth_net(), [12, 7], optimiser=Adam())
    found = run([only(c.fit(c.initial, c.loss, optimiser=Adam())) for c in of_sgd], lambda *_: None)
    expected = run([only(c.fit(c.initial, c.loss)) for c in of_adam], lambda *_: None)
    for a, b in zip(found, expected):
        assert same_bits(a.weights, b.weights)
        assert a.effective_steps != a.effective_steps  # NaN: Adam's steps are no sum of gradients


def test_the_first_step_of_adam_by_hand() -> None:
    """From m = (1 - b1) g and v = (1 - b2) g^2, corrected to g and g^2, it is lr g / (|g| + eps)."""
    w, g = [torch.tensor([1.0, -2.0, 3.0])], [torch.tensor([0.5, -4.0, 0.0])]
    adam = Adam(eps=0.5)
    descent, memory = Descent(adam, 0.1, 0.0, 0.0, 0.0), adam.memory(w, 0.0, ())
    adam.step(w, g, memory, [], descent)  # of a loss that uses nothing, which is no step
    adam.step(w, g, memory, [0], descent)
    expected = torch.tensor([1 - 0.1 * 0.5, -2 + 0.1 * 4 / 4.5, 3.0])
    torch.testing.assert_close(w[0], expected)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("momentum", "steps"), [(0.0, 7), (0.9, 0), (0.9, 1), (0.3, 7)])
def test_effective_steps(momentum: float, steps: int, nesterov: bool) -> None:
    """The change of a weight with gradient 1 all along."""
    w, sgd = [torch.zeros(1, dtype=torch.float64)], SGD(nesterov=nesterov)
    descent = Descent(sgd, 1.0, momentum, 0.0, 0.0)
    memory = sgd.memory(w, momentum, ())
    for _ in range(steps):
        sgd.step(w, [torch.ones(1, dtype=torch.float64)], memory, [0], descent)
    assert descent.effective_steps(steps) == pytest.approx(-w[0].item(), abs=1e-12)


class OfOnesOwn(Optimiser):
    """Does with weights, gradients and momentum what a function says."""

    takes_momentum = True

    def __init__(self, does: Any) -> None:
        self.does = does

    def memory(self, trained: Any, momentum: float, clients: Any) -> list[torch.Tensor]:
        return []

    def step(self, trained: Any, gradients: Any, memory: Any, used: Any, descent: Descent) -> None:
        self.does(trained, gradients[0], descent.momentum)


def test_optimisers_of_ones_own_are_tried_before_the_start() -> None:
    right = OfOnesOwn(lambda trained, g, momentum: trained[0].sub_(g))
    for optimiser in (right, SGD(), Adam(), AdamW()):
        optimiser.check()
    for wrong in (
        lambda trained, g, momentum: None,
        lambda trained, g, momentum: trained.__setitem__(0, trained[0] - g),
        lambda trained, g, momentum: trained[0].sub_(torch.rand(())),
        lambda trained, g, momentum: trained[0].sub_(g / g.norm()),
        lambda trained, g, momentum: trained[0].sub_(g / g.norm() if momentum else g),
    ):
        with refused(BadCode, "training.optimiser") as caught:
            OfOnesOwn(wrong).check()
        assert "OfOnesOwn.step " in str(caught.value)


def test_a_momentum_that_an_optimiser_does_not_take_is_refused() -> None:
    (client,) = make_clients(smooth_net(), [12], optimiser=Adam())
    with refused(Conflict, "client.fit"):
        client.fit(client.initial, client.loss, momentum=0.5)
    client.fit(client.initial, client.loss, momentum=0.0)
