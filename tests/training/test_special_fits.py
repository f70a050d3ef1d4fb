"""Fits with settings of their own, or that renew buffers; totals of parts of the data; layers watched."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rayfl.data import Synthetic
from rayfl.errors import BadCode, Conflict
from rayfl.methods import Facts, FedAvg
from rayfl.randomness import generator
from rayfl.testing.checks import TINY
from rayfl.training import Batch, Client, Params, State, Training
from rayfl.training.loop import run_loop
from rayfl.training.stacked import run_stacked
from tests.support.federations import small
from tests.support.nets import (
    Update,
    close,
    make_client,
    make_clients,
    make_images,
    only,
    same_bits,
    smooth_net,
)
from tests.support.refusals import refused

EXECUTIONS = pytest.mark.parametrize("run", [run_loop, run_stacked])


def drive(run: Any, fits: list[Update]) -> list[Any]:
    results: list[Any] = run(fits, lambda k, fitted: None)
    return results


def test_steps_are_the_first_ones_of_epochs() -> None:
    """Clients of 12 and 7 samples both take five steps: batches come pass after pass, and the last is cut."""
    net = smooth_net()
    fives = make_clients(net, [12, 7], batch_size=5, steps=5)
    for client, passes, sizes in zip(fives, (2, 3), ([5, 5, 2, 5, 5], [5, 2, 5, 2, 5]), strict=True):
        request = client.fit(client.initial, client.loss, stream=0)
        assert [len(batch) for batch in request.batches] == sizes
        whole = client.fit(client.initial, client.loss, stream=0, epochs=passes)
        assert len(whole.batches) >= 5
        assert torch.cat(request.batches).tolist() == torch.cat(whole.batches[:5]).tolist()


@EXECUTIONS
def test_losses_take_all_steps_in_turn(run: Any) -> None:
    """Each has five steps, of one order of batches; what a loss does not see does not move in its turn."""
    net = smooth_net()
    clients = make_clients(net, [12, 7], batch_size=5, steps=5)

    def first(w: Params, batch: Batch, extra: None) -> Tensor:
        return w["head.bias"].sum()

    def second(w: Params, batch: Batch, extra: None) -> Tensor:
        return 3 * w["head.bias"].sum()

    for fitted, client in zip(
        drive(run, [only(c.fit(c.initial, (first, second))) for c in clients]), clients, strict=True
    ):
        moved = client.initial["head.bias"] - fitted.weights["head.bias"]
        assert fitted.steps == 10
        assert torch.allclose(moved, torch.full_like(moved, client.lr * (5 + 15)), rtol=1e-12)


def test_settings_that_exclude_each_other() -> None:
    with refused(Conflict, "training.steps"):
        Training(steps=5, epochs=3)
    with refused(Conflict, "training.work"):
        Training(work=(1,), work_range=(0, 1))


def test_listed_work() -> None:
    """Half of three epochs are rounded to 2, 1.5 times three to 5, and 0.1 times three to the least, 1."""
    net = smooth_net()
    clients = make_clients(net, [12, 7, 9, 5], batch_size=5, epochs=3, work=[0.5, 1.5, 0.1])
    for client, epochs in zip(clients, (2, 5, 1, 2), strict=True):
        request = client.fit(client.initial, client.loss, stream=0)
        plain = client.fit(client.initial, client.loss, stream=0, epochs=epochs)
        assert request.epoch_length == plain.epoch_length
        assert torch.equal(torch.cat(request.batches), torch.cat(plain.batches))
    for client, steps in zip(make_clients(net, [12, 7], steps=5, work=[0.5, 0.0]), (3, 1), strict=True):
        assert len(client.fit(client.initial, (client.loss, client.loss)).batches) == 2 * steps


def test_drawn_work() -> None:
    """Each client draws a factor from [0.2, 1.2) in each round, for all of its fits."""
    for id, round in ((0, 0), (4, 0), (4, 1)):
        drawn = torch.rand((), generator=generator(5, "work", id, round), dtype=torch.float64).item()
        client = make_client(smooth_net(), id=id, round=round, steps=40, work_range=(0.2, 1.2))
        expected = int(40 * (0.2 + drawn) + 0.5)
        assert [len(client.fit(client.initial, client.loss).batches) for _ in range(2)] == [expected] * 2
    found = [Training(steps=40, work_range=(0.2, 1.2)).work_of(i, 0, 5, 40) for i in range(200)]
    assert (min(found), max(found)) == (8, 48)


@EXECUTIONS
@pytest.mark.parametrize(
    "given", [{"momentum": 0.0, "clip": 0.3}, {"weight_decay": 0.0}, {"momentum": 0.5, "clip": 0.0}]
)
def test_an_optimiser_of_its_own(run: Any, given: dict[str, float]) -> None:
    """What a fit is given counts as if the run had it, and the rest is the run's; 0 switches off."""
    net, settings = smooth_net(), {"momentum": 0.9, "weight_decay": 0.1, "clip": 0.2}
    clients, others = make_clients(net, [12, 7], **settings), make_clients(net, [12, 7], **(settings | given))
    found = drive(run, [only(c.fit(c.initial, c.loss, epochs=2, **given)) for c in clients])
    expected = drive(run, [only(c.fit(c.initial, c.loss, epochs=2)) for c in others])
    plain = drive(run, [only(c.fit(c.initial, c.loss, epochs=2)) for c in clients])
    for a, b, c in zip(found, expected, plain):
        assert same_bits(a.weights, b.weights)
        assert a.effective_steps == b.effective_steps
        assert not same_bits(a.weights, c.weights)


@pytest.mark.parametrize(
    ("own", "sizes"), [(4, [4, 4, 4]), (7, [7, 5]), (0, [12]), (99, [12]), (None, [5, 5, 2])]
)
def test_batches_of_their_own_size(own: int | None, sizes: list[int]) -> None:
    """As if the run had it; 0 is all data at once."""
    net = smooth_net()
    client = make_client(net, n=12)
    assert [len(b) for b in next(client._passes(0, own))] == sizes
    other = make_client(net, n=12, batch_size=own or (12 if own == 0 else 5))
    found, expected = (
        drive(run_loop, [only(c.fit(c.initial, c.loss, epochs=2, batch_size=size))])[0]
        for c, size in ((client, own), (other, None))
    )
    assert same_bits(found.weights, expected.weights)
    assert found.steps == 2 * len(sizes)


def test_a_share_is_two_samples_at_least_for_batch_norm() -> None:
    for batch_norm, size in ((False, 1), (True, 2)):
        client = make_client(smooth_net(batch_norm), n=10)
        fit: Any = client.fit(client.initial, client.loss, share=0.01)
        assert [len(batch) for batch in fit.batches] == [size]
        drive(run_loop, [only(fit)])


@EXECUTIONS
def test_totals_over_validation_data(run: Any) -> None:
    """They are over these alone, whole or by class, and the training data stay those of the fits."""
    net, images = smooth_net(), make_images()
    clients = [
        make_client(net, images, 12, id=k, first=40 * k, val=[30 + 40 * k, 37 + 40 * k]) for k in (0, 1)
    ]

    def pixels(w: Params, batch: Batch, extra: Any) -> Tensor:
        return batch.x.sum((0, 2, 3))

    totals = drive(run, [only(c.total(pixels, c.initial, split="val")) for c in clients])
    for k, total in enumerate(totals):
        assert clients[k].val_samples == 2
        x, y = images.batch(torch.tensor([30 + 40 * k, 37 + 40 * k]))
        assert close(total, x.sum((0, 2, 3)), 1e-12)
        of_class = clients[k].total(pixels, clients[k].initial, split="val", of_class=int(y[1]), batches=1)
        x = x[y == y[1]]
        assert close(drive(run, [only(of_class)])[0], x.sum((0, 2, 3)), 1e-12)
    trained = drive(run, [only(c.total(pixels, c.initial)) for c in clients])
    assert close(trained[0], images.batch(torch.arange(12))[0].sum((0, 2, 3)), 1e-12)


def test_totals_over_what_is_not_there_are_refused() -> None:
    client = make_client(smooth_net(), id=7)
    assert client.val_samples == 0
    with refused(BadCode, "client.total"):
        client.total(client.loss, client.initial, split="val")
    with pytest.raises(KeyError, match="test"):
        client.total(client.loss, client.initial, split="test")  # type: ignore[arg-type]


class ByValidation(FedAvg):
    """FedAvg that sums over validation data, which it may say that it needs, and may do without."""

    says: bool = True
    asks: bool = True

    @property
    def facts(self) -> Facts:  # type: ignore[override]
        return Facts(validation="needed" if self.says else "unused")

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        if self.asks or client.val_samples:
            await client.total(lambda w, batch, extra: batch.x.sum(), down["weights"], split="val")
        return await super().local_update(client, state, down)


def test_a_run_without_the_validation_data_of_its_method_is_refused(tmp_path: Path) -> None:
    plain, split = (Synthetic(train=200, test=40, val_fraction=part) for part in (0, 0.2))
    settings: dict[str, Any] = {"clients": 4, "rounds": 1, "net": TINY}
    with refused(Conflict, "client 0"):
        small(tmp_path / "none", method=ByValidation(), data=plain, **settings).run()
    assert not (tmp_path / "none").exists()
    assert small(tmp_path / "all", method=ByValidation(), data=split, **settings).run().complete
    without = ByValidation(says=False, asks=False)
    assert small(tmp_path / "some", method=without, data=plain, **settings).run().complete
    with refused(BadCode, "client.total"):
        small(tmp_path / "late", method=ByValidation(says=False), data=plain, **settings).run()


@EXECUTIONS
def test_a_fit_that_only_renews_buffers(run: Any) -> None:
    """It ends where a fit at rate 0 ends, without a gradient."""
    net = smooth_net(batch_norm=True)
    clients = make_clients(net, [12, 7], momentum=0.5, clip=1.0, weight_decay=0.1)
    start = clients[0].initial
    frozen = Params(start.tensors, frozenset())
    found, expected = (
        drive(run, [only(c.fit(w, c.loss, lr=0.0, epochs=2, stream=0)) for c in clients])
        for w in (frozen, start)
    )
    for a, b in zip(found, expected):
        assert a.steps == b.steps > 2
        assert close(dict(a.weights), dict(b.weights), 1e-12)
        assert not same_bits(a.weights["conv.1.running_var"], start["conv.1.running_var"])


@EXECUTIONS
def test_a_total_of_the_first_batch(run: Any) -> None:
    """It is the batch with which the first fit of the round begins; that of a class has its samples alone."""
    clients = make_clients(smooth_net(), [30, 24])
    firsts = []

    def count(w: Params, batch: Batch, extra: Any) -> dict[str, Tensor]:
        return {"samples": torch.ones_like(batch.y).sum(), "pixels": batch.x.sum((0, 2, 3))}

    for k, total in enumerate(drive(run, [only(c.total(count, c.initial, batches=1)) for c in clients])):
        images, indices = clients[k]._examples, next(clients[k]._passes(0))[0]
        assert total["samples"].item() == 5
        assert close(total["pixels"], images.batch(indices)[0].sum((0, 2, 3)), 1e-12)
        firsts.append(indices.tolist())
    assert firsts[0] != sorted(firsts[0])

    def labels(w: Params, batch: Batch, extra: Any) -> Tensor:
        return torch.nn.functional.one_hot(batch.y, 3).sum(0)

    for c in (0, 2):
        for client in clients:
            total = only(client.total(labels, client.initial, of_class=c, batches=1))
            found = drive(run, [total])[0].tolist()
            assert found[c] == sum(found) == 5


def test_layers_are_watched_while_they_train() -> None:
    """What goes into a layer has a gradient, and train mode stays train mode."""
    net = smooth_net(batch_norm=True)
    w = net.initial(0)
    w.live = True
    w.tensors["conv.0.weight"].requires_grad_()
    x = torch.randn(4, 2, 6, 6, dtype=torch.float64)
    before = w["conv.1.running_mean"].clone()
    scores, (into_norm, into_head) = net.watch(w, x, ["conv.1", "head"])
    assert into_norm.shape == (4, 3, 4, 4)
    assert close(0.9 * before + 0.1 * into_norm.mean((0, 2, 3)), w["conv.1.running_mean"], 1e-12)
    assert close(net.head(w, into_head), scores, 1e-12)
    assert torch.autograd.grad(into_norm.sum(), w["conv.0.weight"])[0].any()
