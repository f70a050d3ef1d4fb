"""Clients that never train, of an unseen domain or drawn: scored as new clients, adapted and as a control."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from rayfl import Federation, Training, UserError, evaluation, load_models
from rayfl.commands.export import export
from rayfl.data import Dirichlet, DomainPerClient, FederatedData, Synthetic
from rayfl.errors import Conflict
from rayfl.evaluation.finetune import Finetune
from rayfl.evaluation.metrics import summarise
from rayfl.evaluation.score import answer_at_once
from rayfl.methods import FDSE, METHODS, FedAvg, FedBN, FediOS
from rayfl.methods.fedbabu import FedBABU
from rayfl.methods.fedbn import BatchNormPart
from rayfl.nets import CNNB, LeNet, build, dse_blocks
from rayfl.randomness import numpy_generator
from rayfl.running.result import Result
from rayfl.training import Client, Net, State
from tests.methods.cases import CASES, net_of
from tests.support.by_hand import Run, normed, points, ragged, start
from tests.support.federations import INLINE_AND_RAY, records_of, same_bytes, small
from tests.support.refusals import refused

DATA = Synthetic(
    train=240, test=90, shape=(3, 16, 16), domains=3, partition=DomainPerClient(), val_fraction=0.2
)
POINTS = ("unseen", "unseen_adapted", "unseen_control")
UNEVEN = Synthetic(train=600, test=160, shape=(3, 16, 16), partition=Dirichlet(alpha=0.5), val_fraction=0.2)
DRAWN: dict[str, Any] = {"data": UNEVEN, "clients": 10, "unseen": None, "unseen_clients": 0.3}
"""Ten clients without domains of their own; three are new."""


def federation(output: Path, name: str = "FDSE", **changes: Any) -> Federation:
    """Three clients of a domain each; the second domain is unseen."""
    settings: dict[str, Any] = {"method": METHODS[name](), "net": net_of(name, CNNB()), "data": DATA}
    settings |= {"clients": 3, "participation": 1.0, "unseen": "domain1", "rounds": 2}
    settings |= {"training": Training(lr=0.1, batch_size=16)}
    return small(output, **(settings | changes))


# ---- what is recorded


@pytest.mark.parametrize(
    "name", ["FedBN", *(pytest.param(n, marks=pytest.mark.slow) for n in METHODS if n != "FedBN")]
)
def test_every_method_trains_without_the_domain_and_scores_it(tmp_path: Path, name: str) -> None:
    result = federation(tmp_path, name, rounds=1).run()
    (record,) = records_of(tmp_path)
    assert record["cohort"] == [0, 1]
    assert result.history.population.domains == ("domain0", "domain2", "domain1")
    assert json.loads((tmp_path / "partition.json").read_text())["unseen"] == 1
    expected = {"after_aggregation", *(POINTS if CASES[name].adapts else POINTS[:1])}
    assert set(record["evaluation"]) == expected
    for point in expected:
        for view in METHODS[name]().views:
            correct = record["evaluation"][point][view]["test"]["score"]
            of_new = point.startswith("unseen")
            assert [c is None for c in correct] == [of_new, of_new, not of_new]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_scores_for_a_client_that_never_trains(name: str) -> None:
    run = start(METHODS[name](), held_out(ragged()), net_of(name, "rayfl.testing.by_hand.tiny"))
    run.round([0, 1, 2])
    found = run.worker.unseen(0, run.server.download([3]), [3], run.worker.state_for_new_clients([0, 1, 2]))
    assert set(found) == set(POINTS if CASES[name].adapts else POINTS[:1])
    for of_clients in found.values():
        assert set(of_clients[3]["test"]) == set(run.worker.method.views)


def test_adaptation_and_control_beside_a_new_client(tmp_path: Path) -> None:
    """FDSE's control renews statistics; its adaptation moves parameters too, unless its step is 0."""
    run = federation(tmp_path / "moves", method=FDSE(unseen_lr=1.0)).run()
    losses = {point: run.history.scores[point, "personal", "test"].loss[-1, 2] for point in POINTS}
    assert len(set(losses.values())) == 3
    still = federation(tmp_path / "still", method=FDSE(unseen_lr=0.0)).run()
    other = {point: still.history.scores[point, "personal", "test"].loss[-1, 2] for point in POINTS}
    assert other["unseen_adapted"] == other["unseen_control"] == losses["unseen_control"]
    assert other["unseen"] == losses["unseen"]


def test_validation_of_those_who_train_chooses_the_round(tmp_path: Path) -> None:
    """The headline may be an unseen point; its figures count the new client alone."""
    result = federation(tmp_path, "FedBN", rounds=4, protocol=evaluation.FDSE(point="unseen_adapted")).run()
    headline = result.summary["headline"]
    assert (headline["point"], headline["clients"], headline["left_out"]) == ("unseen_adapted", 1, 2)
    val = result.history.scores["after_aggregation", "personal", "val"]
    weighted = (val.figure[:, :2] * result.history.population.samples["train"][:2]).sum(1)
    assert headline["rounds"] == [int(np.argmax(weighted))]
    scores = result.history.scores["unseen_adapted", "personal", "test"]
    assert result.figure == pytest.approx(scores.figure[headline["rounds"][0], 2])
    summary = summarise(result.history, evaluation.FDSE(point="after_aggregation", choose="last"), 4)
    chosen = {entry["point"]: entry["best_val"]["rounds"] for entry in summary["views"]}
    assert set(chosen) == {"after_aggregation", *POINTS}
    assert all(rounds == headline["rounds"] for rounds in chosen.values())


@pytest.mark.usefixtures("kept_actors")
@pytest.mark.parametrize("drawn", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_same_bytes_on_actors_and_resumed(tmp_path: Path, drawn: bool) -> None:
    """Two new clients and four others, or three and seven, hosted apart."""
    settings = DRAWN | {"name": "FedBN", "finetune": Finetune(epochs=1)} if drawn else {"clients": 6}
    folder, *_ = same_bytes(tmp_path, *INLINE_AND_RAY, resumed_after=1, make=federation, rounds=2, **settings)
    assert drawn or Result.load(folder).history.population.domains[4:] == ("domain1", "domain1")


# ---- adapting


def as_newcomer(run: Run, moves: bool = True) -> tuple[State, State]:
    """Return the state of client 1, a new client, before and after adapting; client 0 has trained."""
    download = run.server.download([1])
    assert not any(download.each.values())
    kind: Any = type(run.worker.method)
    adapt, seen = kind.adapt, {}

    async def watched(self: Any, client: Client, state: State, down: State, moves: bool) -> State:
        seen[moves] = state, await adapt(self, client, state, down, moves)
        return seen[moves][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "adapt", watched)
        run.worker.unseen(0, download, [1], run.worker.state_for_new_clients([0]))
    return seen[moves]


def held_out(data: FederatedData) -> FederatedData:
    """The same data, of which the last client never trains."""
    return FederatedData(data.dataset, data.clients, unseen=1)


@pytest.mark.parametrize("bn_personal", ["all", "affine_only"])
def test_fedbn_renews_statistics_by_hand(bn_personal: BatchNormPart) -> None:
    """x1 of the new client is 4 and 8: mean 6, variance (with n - 1) 8. Two passes, each a tenth of the way.

    They begin with the offered statistics of client 0 or, where only weight and bias are personal, with the
    averaged ones, which are client 0's too; the renewed ones are the new client's own in either case.
    """
    data = held_out(points([((1, 0), 0), ((3, 0), 1)], [((4, 0), 0), ((8, 0), 1)]))
    run = start(FedBN(bn_personal=bn_personal, unseen_passes=2), data, "tests.support.by_hand.normed")
    run.round([0])
    before, after = as_newcomer(run)
    received = run.server.state["weights"].merge(before["own"])
    assert received["fc.0.running_mean"].tolist() == pytest.approx([0.1 * 2, 0])  # client 0's: one batch
    mean = 0.9 * (0.9 * 0.2 + 0.1 * 6) + 0.1 * 6
    variance = 0.9 * (0.9 * (0.9 + 0.1 * 2) + 0.1 * 8) + 0.1 * 8
    assert after["own"]["fc.0.running_mean"].tolist() == pytest.approx([mean, 0])
    assert after["own"]["fc.0.running_var"][0].item() == pytest.approx(variance)
    for name in ("fc.0.weight", "fc.0.bias"):
        assert torch.equal(after["own"][name], before["own"][name])


def test_new_clients_start_from_the_mean_of_those_who_have_trained() -> None:
    """Whoever hosts these; client 2 has not trained, and its state is nobody's."""
    clients = [[((float(x), 0.0), 0), ((x + 2.0, 0.0), 1)] for x in (0, 4, 10, 3)]
    run = start(FedBN(), held_out(points(*clients)), "tests.support.by_hand.normed")
    run.round([0, 1])
    download = run.server.download([3])
    whole = run.worker.unseen(0, download, [3], run.worker.state_for_new_clients([0, 1, 2]))
    parts = run.worker.unseen(
        0, download, [3], run.worker.state_for_new_clients([1]), run.worker.state_for_new_clients([0, 2])
    )
    assert whole == parts

    first, second = (run.worker.states[i]["own"] for i in (0, 1))
    mean = (first + second) / 2
    assert (mean["fc.0.running_mean"] - run.worker.initial["fc.0.running_mean"]).abs().max() > 0.1
    x, y = run.worker.examples.batch(torch.tensor([6, 7]))
    scores = run.worker.net.eval(download.everyone["weights"].merge(mean), x)
    found = whole["unseen"][3]["test"]["personal"]
    assert found.loss == pytest.approx(torch.nn.functional.cross_entropy(scores, y).item(), abs=1e-12)
    assert found.score == int((scores.argmax(1) == y).sum())


def start_fdse(**options: Any) -> Run:
    """Client 0 has trained, and client 1, of an unseen domain, is new."""
    data = DATA.federate(3, 0).hold_out("domain1")
    data = FederatedData(data.dataset, data.clients[:1] + data.clients[2:], unseen=1)
    run = start(FDSE(unseen_lr=0.5, **options), data, "tests.support.by_hand.dse", batch_size=16)
    run.round([0])
    return run


@pytest.mark.parametrize("moves", [True, False])
def test_fdse_adapts_the_eraser_only(moves: bool) -> None:
    run = start_fdse()
    before, after = as_newcomer(run, moves)
    assert before["own"].keys() == after["own"].keys()
    for name in before["own"]:
        statistic = "running" in name
        assert torch.equal(before["own"][name], after["own"][name]) == (not moves and not statistic), name


def test_fdse_adapts_by_gradient_descent_on_the_regulariser() -> None:
    """Algorithm 3 on one batch per epoch, with steps so long that they count: dse_conv and dse_bn descend.

    dse_bn alone normalises by its batch, and renews its statistics; L_con draws to those of dfe_bn. The run's
    momentum, weight decay and clip have no part in it.
    """
    gamma, beta, lr, epochs = 0.6, 0.3, 20.0, 2
    optimiser = {"momentum": 0.9, "weight_decay": 0.5, "clip": 1e-3}
    method = FDSE(gamma=gamma, beta=beta, unseen_epochs=epochs, unseen_lr=lr)
    run = start(method, held_out(ragged([8, 8])), "tests.support.by_hand.dse", **optimiser)
    run.round([0])
    before, after = as_newcomer(run)
    module = build("tests.support.by_hand.dse", (1, 16, 16), 4).double().eval()
    module.load_state_dict({**run.server.state["weights"], **before["own"]}, strict=False)  # no batch counts
    inputs: list[torch.Tensor] = []
    for block in dse_blocks(module).values():
        block.dse_bn.train()
        block.dfe_bn.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    norms = [block.dfe_bn for block in dse_blocks(module).values()]
    targets = [statistic.clone() for norm in norms for statistic in (norm.running_mean, norm.running_var)]
    estimates = targets
    x, _ = run.worker.examples.batch(torch.tensor(run.worker.data.clients[1].test))
    erasers = {name: p for name, p in module.named_parameters() if ".dse_" in name}
    for _ in range(epochs):
        inputs.clear()
        module(x)
        maps = [z.transpose(0, 1).flatten(1) for z in inputs]
        now = [statistic for z in maps for statistic in (z.mean(1), z.var(1, correction=0))]
        estimates = [gamma * past.detach() + (1 - gamma) * new for past, new in zip(estimates, now)]
        off = [estimate - target for estimate, target in zip(estimates, targets)]
        terms = [m.square().mean() + v.mean() ** 2 for m, v in zip(off[::2], off[1::2])]
        loss = (terms[0] + math.exp(beta) * terms[1]) / (1 + math.exp(beta))
        for p, gradient in zip(erasers.values(), torch.autograd.grad(loss, list(erasers.values()))):
            p.data -= lr * gradient
    expected = {name: t.detach() for name, t in module.state_dict().items() if ".dse_" in name}
    assert after["own"].keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(after["own"][name], value, rtol=1e-9, atol=1e-11)
        assert (value - before["own"][name]).abs().max() > 1e-3, f"{name} has hardly moved"


@pytest.mark.parametrize("attention", [True, "mean"])
def test_fdse_scores_the_eraser_that_has_adapted(attention: bool | Literal["mean"]) -> None:
    """Also where every client receives the mean of the erasers."""
    run = start_fdse(attention=attention)
    down = run.server.download([1]).everyone
    x, _ = run.worker.examples.batch(torch.tensor(run.worker.data.clients[1].test[:4]))
    client = run.worker.client(1, 0)
    before, after = as_newcomer(run)
    answers = [answer_at_once(run.worker.method.scores(client, own, down, x)) for own in (before, after)]
    scores = [answer["personal"] for answer in answers]
    assert torch.equal(scores[1], run.worker.net.eval(down["weights"].merge(after["own"]), x))
    assert not torch.equal(*scores)


def test_new_clients_of_fedios_have_an_untrained_extractor() -> None:
    run = start(FediOS(), held_out(ragged([8, 8, 8])), LeNet())
    run.round([0, 1])
    assert run.worker.state_for_new_clients([0, 1]) == {}
    own = run.worker.method.init_client(run.worker.client(2, 0))["own"]
    assert all(torch.equal(t, run.worker.initial[name]) for name, t in own.items())
    like = run.server.state["weights"]["head.weight"]
    first, second, new = (run.worker.context.prepared.bases(k, like)["individual"] for k in range(3))
    assert torch.equal(new, first)
    assert not torch.equal(new, second)


def test_new_clients_have_no_labels() -> None:
    run = start(FedAvg(), held_out(points([((1, 0), 0)] * 2, [((4, 0), 0), ((8, 0), 1)])))
    client = run.worker.client(1, 0, unlabelled=True)
    assert client.samples == 2
    assert client.class_counts.tolist() == [0, 0]
    x, y = client._examples.batch(client._indices)
    assert y.tolist() == [-1, -1]
    assert x[:, 0, 0, 0].tolist() == [4, 8]
    assert run.worker.examples.batch(client._indices)[1].tolist() == [0, 1]


def test_only_named_layers_train() -> None:
    net = Net(lambda: normed((1, 1, 2), 2), dtype=torch.float64)
    x = torch.tensor([[[[1.0, 0.0]]], [[[3.0, 4.0]]]], dtype=torch.float64)
    for names, same in ([], True), (["fc.0"], False):
        w = net.initial(0)
        w.live = True
        before = w["fc.0.running_mean"].clone()
        net.training_only(names)(w, x)
        assert torch.equal(w["fc.0.running_mean"], before) == same


# ---- bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"unseen": "sketch"},
            "unseen is 'sketch': the data have no such domain, only domain0, domain1, domain2",
        ),
        ({"clients": 1, "unseen": "domain0"}, "unseen is 'domain0': all clients have this domain"),
        ({"clients": 1}, "unseen is 'domain1': no client has this domain"),
        ({"data": Synthetic(train=240, test=90, domains=2)}, "has samples of this domain and of others"),
        ({"method": FedBN(), "net": LeNet()}, "net has no BatchNorm, by which FedBN adapts"),
        ({"clients": 60}, "has 1 test samples, and needs 2"),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        federation(tmp_path / "run", **changes).run()
    assert not (tmp_path / "run").exists()


# ---- new clients of any partition


@pytest.mark.parametrize(("wanted", "count"), [(0.29, 2), (0.01, 1), (1, 1), (4, 4)])
def test_new_clients_are_drawn_and_come_last(tmp_path: Path, wanted: float, count: int) -> None:
    before = UNEVEN.federate(10, 0)
    data = federation(tmp_path, **DRAWN | {"unseen_clients": wanted}).federated_data()
    order = numpy_generator(0, "unseen clients").permutation(10)
    numbers = sorted(order[[len(before.clients[i].test) > 1 for i in order]][:count].tolist())
    expected = [i for i in range(10) if i not in numbers] + numbers
    assert (data.unseen, data.seen) == (count, 10 - count)
    everybody = federation(tmp_path, **DRAWN | {"unseen_clients": wanted, "participation": 1.0})
    assert everybody.cohort(0) == list(range(10 - count))
    for client, i in zip(data.clients, expected, strict=True):
        for split in ("train", "val", "test"):
            assert np.array_equal(client.split(split), before.clients[i].split(split))
    (remark,) = data.describe()["remarks"]
    told = f"the last {count} of 10 clients never train; in the partition they are {str(numbers)[1:-1]}"
    assert remark.endswith(told)


def test_the_seed_of_the_data_draws_new_clients(tmp_path: Path) -> None:
    first, same, other = (
        federation(tmp_path, **DRAWN | {"data": replace(UNEVEN, seed=own), "seed": k}).federated_data()
        for own, k in ((7, 0), (7, 1), (8, 0))
    )
    assert first.digest() == same.digest() != other.digest()


def test_who_has_too_few_test_samples_is_not_drawn() -> None:
    data = points(*([((1, 0), 0), ((0, 1), 1)] for _ in range(4)))
    few = [replace(c, test=c.test[: k % 2 + 1]) for k, c in enumerate(data.clients)]
    held = FederatedData(data.dataset, few).hold_out_drawn(2, 0)
    assert held.counts("test").tolist() == [1, 1, 2, 2]
    with refused(Conflict, "unseen_clients"):
        FederatedData(data.dataset, few).hold_out_drawn(3, 0)


@pytest.mark.parametrize("name", ["FedAvg", "FedBN"])
def test_new_clients_have_points_views_and_models(tmp_path: Path, name: str, capsys: Any) -> None:
    """Fine-tuning trains on their own data; what models say is what has been scored."""
    result = federation(tmp_path, name, **DRAWN, rounds=1, finetune=Finetune(epochs=1), quiet=False).run()
    shown = " ".join(capsys.readouterr().out.split())
    assert "10, 7 in a round, 3 unseen (drawn)" in shown
    assert "1 epoch of 10 clients in each of 1 evaluation" in shown
    for told in (shown, (tmp_path / "report.html").read_text()):
        assert "The numbers of clients are not those of the partition" in told
    assert json.loads((tmp_path / "partition.json").read_text())["unseen"] == 3
    (record,) = records_of(tmp_path)
    assert record["cohort"] == [*range(7)]
    expected = {"after_aggregation", *(POINTS if CASES[name].adapts else POINTS[:1])}
    assert set(record["evaluation"]) == expected
    scored = record["evaluation"]["unseen"]
    assert set(scored) == {*METHODS[name]().views, "finetuned"}
    start = scored["global" if "global" in scored else "personal"]["test"]["loss"]
    assert all(a != b for a, b in zip(scored["finetuned"]["test"]["loss"][7:], start[7:], strict=True))
    models = load_models(tmp_path)
    assert len(models) == 10
    for client in range(7, 10):
        assert not models[client].trained
        x, y = models.batch(client)
        for view, scores in models.scores(client, x).items():
            assert int((scores.argmax(1) == y).sum()) == scored[view]["test"]["score"][client]
        assert export(tmp_path, client, tmp_path / "models").is_file()
    assert result.summary["headline"]["clients"] == 7


def test_new_clients_are_not_personalised(tmp_path: Path) -> None:
    """Their labels are used by fine-tuning alone."""
    federation(tmp_path, **DRAWN, method=FedBABU(), rounds=1).run()
    scored = records_of(tmp_path)[0]["evaluation"]["unseen"]
    assert scored["personal"] == scored["global"]
    models = load_models(tmp_path)
    x, _ = models.batch(9)
    scores = models.scores(9, x)
    assert torch.equal(scores["personal"], scores["global"])
