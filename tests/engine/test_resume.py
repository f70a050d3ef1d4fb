"""A run that was stopped or killed and then resumed gives the bytes of one that was left alone."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl import Inline, Training, UserError, evaluation, load_models, resumed
from rayfl.callbacks.callback import Callback, Run
from rayfl.data import Dirichlet, FederatedData, Synthetic
from rayfl.engine.worker import Worker
from rayfl.errors import Conflict, Damaged, InUse, Missing, Shortage
from rayfl.methods import METHODS, Cohort, Ditto, FedAvg, Method
from rayfl.nets import LeNet
from rayfl.record.checkpoint import Checkpoints
from rayfl.record.folder import software
from rayfl.running.result import Result
from rayfl.settings.description import dump_config
from rayfl.system import files
from rayfl.training import Batch, Client, Gather, Params, Reduction, State, Sum
from tests.hostile.cases_checkpoints import seal
from tests.methods.cases import net_of
from tests.support.federations import bytes_of_run, small
from tests.support.own_modules import SCALED, OwnModules
from tests.support.processes import rounds_of, wait_until
from tests.support.refusals import refused

WATCHES = "from rayfl import Callback\nclass Watch(Callback):\n    pass\n"


class IsStopped(Callback):
    """Has a signal stop a run after its first round."""

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        if record["round"] == 0:
            signal.raise_signal(signal.SIGTERM)
        return False


class StopsAfter(Callback):
    """Stops a run after so many rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        return record["round"] + 1 == self.rounds


def goes_on(folder: Path, *stops: int, **settings: Any) -> Path:
    """See that a run that is stopped and goes on has the bytes of a whole one; return that one's folder."""
    whole, split = folder / "whole", folder / "split"
    settings = {"rounds": 4, **settings}
    small(whole, **settings).run()
    first, *further = stops or (2,)
    assert not small(split, **settings).run([StopsAfter(first)]).complete
    for rounds in [*further, settings["rounds"]]:
        resumed(split, {"quiet": True}).run([StopsAfter(rounds)])
    assert bytes_of_run(split) == bytes_of_run(whole)
    return whole


@pytest.mark.parametrize(
    "name", [pytest.param(m, marks=[pytest.mark.slow] * (m not in ("FedAvg", "FedCO2"))) for m in METHODS]
)
def test_every_method_resumes_from_its_checkpoint(tmp_path: Path, name: str) -> None:
    """`rayfl.testing` also sees that nothing of a method is kept outside of its states."""
    goes_on(tmp_path, method=METHODS[name](), net=net_of(name, LeNet()))


@pytest.mark.parametrize("point", ["after_aggregation", "after_training"])
def test_a_longer_run_is_evaluated_as_if_never_stopped(tmp_path: Path, point: Any) -> None:
    """Its former last round is evaluated in neither."""
    protocol = evaluation.Default(point=point)
    goes_on(tmp_path, 3, eval_every=2, participation=1.0, protocol=protocol, checkpoint_every=1)
    scores = Result.load(tmp_path / "split").history.scores["after_aggregation", "global", "test"]
    assert scores is not None
    assert scores.rounds.tolist() == [1, 3]


def test_a_run_of_several_client_files_is_resumed_twice(tmp_path: Path) -> None:
    """Few clients of each file train between two checkpoints, and some files are left alone by a session."""
    many = {"method": Ditto(), "clients": 40, "participation": 0.05, "eval_every": 12}
    whole = goes_on(tmp_path, 4, 8, **many, data=Synthetic(train=400, test=80, shape=(1, 16, 16)), rounds=12)
    assert len({file.name.split("-")[1] for file in (whole / "checkpoints").glob("clients-*")}) == 3


class ScoresNothing(Ditto):
    """What it makes of client 2's inputs is no number."""

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        found = await super().scores(client, state, down, x)
        return {view: score * torch.nan for view, score in found.items()} if client.id == 2 else found


def test_scores_after_training_survive(tmp_path: Path) -> None:
    """Losses that are no number, too."""
    whole = goes_on(tmp_path, method=ScoresNothing(), protocol=evaluation.FediOS(), participation=0.3)
    assert "evaluation.after_training.personal.test.loss.2=nan" in (whole / "metrics.jsonl").read_text()


class Turned(FedAvg):
    """Server and clients keep transposed matrices, with which kernels compute in another order."""

    def uploads(self, context: Any) -> dict[str, Reduction]:
        return {**super().uploads(context), "sum": Sum(), "all": Gather()}

    def init_server(self, context: Any) -> State:
        m = torch.randn(3, 64, generator=context.generator("m", 0))
        return {**super().init_server(context), "m": m, "sum": torch.zeros(()).double()}

    def download(self, server: State) -> State:
        return {"weights": server["weights"]}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        given = torch.stack([F.linear(m.T, m.T).sum() for m in up["all"].values()]).sum()
        m = self.turned(server["m"], cohort.context.generator("x", cohort.round))
        return {"weights": up["weights"], "m": m, "sum": (up["sum"] + given).double()}

    def init_client(self, client: Client) -> State:
        return {"m": torch.randn(3, 64, generator=client.generator("m"))}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        up, _ = await super().local_update(client, state, down)
        m = self.turned(state["m"], client.generator("x"))
        return {**up, "sum": m.double().sum(), "all": m.T}, {"m": m}

    def turned(self, m: Tensor, generator: torch.Generator) -> Tensor:
        x = torch.randn(8, 64, generator=generator)
        return (m + 0.01 * F.linear(x, m).T @ x).T.contiguous().T

    def server_metrics(self, context: Any, server: State) -> dict[str, Any]:
        return {"m": server["m"].double().sum().item(), "sum": server["sum"].item()}


class KeepsTheLast(FedAvg):
    """Clients keep what all of them have received, and train with it in one call."""

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        net = client.net

        def loss(w: Params, batch: Batch, last: Params) -> Tensor:
            apart = (net(w, batch.x) - net.eval(last, batch.x)).square().mean()
            return client.loss(w, batch) + 0.1 * apart

        fitted = await client.fit(down["weights"], loss, state.get("last", down["weights"]))
        return {"weights": fitted.weights}, {"last": down["weights"]}


@pytest.mark.parametrize(
    ("method", "execution"), [(Turned(), "loop"), (Turned(), "stacked"), (KeepsTheLast(), "stacked")]
)
def test_how_states_lie_in_memory_does_not_matter(tmp_path: Path, method: Method, execution: Any) -> None:
    goes_on(tmp_path, method=method, engine=Inline(execution=execution), participation=1.0, clients=4)


# ---- drivers that are killed


def start(folder: Path, config: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rayfl.run", "--config", str(config), "--output", str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A configuration that takes a while, and the folder of a whole run with it."""
    folder = tmp_path_factory.mktemp("runs")
    federation = small(folder / "whole", method=Ditto(), rounds=20, checkpoint_every=3)
    config = folder / "config.yaml"
    config.write_text(dump_config(federation))
    federation.run()
    return config, folder / "whole"


SLOW = pytest.mark.slow
ON_RAY = ["--engine", "Ray", "--engine.actors", "2", "--engine.address"]


@pytest.mark.parametrize(
    ("rounds", "on_ray"), [(8, False), pytest.param(0, False, marks=SLOW), pytest.param(5, True, marks=SLOW)]
)
def test_killed_driver(
    tmp_path: Path, undisturbed: tuple[Path, Path], rounds: int, on_ray: bool, request: pytest.FixtureRequest
) -> None:
    config, whole = undisturbed
    engine = [*ON_RAY, request.getfixturevalue("ray_runtime")] if on_ray else []
    process = start(tmp_path / "run", config, *engine)
    begun = (tmp_path / "run" / "config.yaml").exists
    wait_until((lambda: rounds_of(tmp_path / "run") >= rounds) if rounds else begun, process)
    process.kill()
    process.wait()
    resumed(tmp_path / "run", {"engine": "Inline"}).run()
    assert bytes_of_run(tmp_path / "run") == bytes_of_run(whole)


# ---- checkpoints that are damaged, of another run, or not there


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "run"
    small(folder, rounds=2, checkpoint_every=1).run()
    return folder


@pytest.fixture
def run(tmp_path: Path, run_of_two: Path) -> Path:
    """A finished run of two rounds; others may copy it, and spoil what they have."""
    return Path(shutil.copytree(run_of_two, tmp_path / "run"))


def files_of(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def cut_manifest(folder: Path) -> None:
    newest = max((folder / "checkpoints").glob("manifest-*.json"))
    newest.write_bytes(newest.read_bytes()[:-20])


def flip_bits(folder: Path) -> None:
    """Damage the server's part of every checkpoint."""
    for file in (folder / "checkpoints").glob("server-*"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)


def leave_out(folder: Path, manifests: int) -> None:
    """Take a client that trained first in the last round before it out of so many of the newest manifests."""
    for path in sorted((folder / "checkpoints").glob("manifest-*.json"), reverse=True)[:manifests]:
        manifest = json.loads(path.read_text())["manifest"]
        others = {*range(12)} - {{4: 2, 2: 9}[manifest["round"]]}
        seal(path, manifest | {"clients": {}, "stateless": sorted(others)})


def cut_off(folder: Path, lines: int) -> None:
    """Leave only so many lines of the records, as a copy that was interrupted does."""
    records = folder / "metrics.jsonl"
    records.write_bytes(b"".join(records.read_bytes().splitlines(keepends=True)[:lines]))


@pytest.mark.parametrize(
    ("spoil", "back", "says"),
    [
        (cut_manifest, True, r"manifest-000004\.json"),
        (flip_bits, False, r"server-.* does not match its name"),
        (partial(leave_out, manifests=1), True, r"000004\.json is incomplete: client 2 has trained"),
        (partial(leave_out, manifests=2), False, r"000002\.json is incomplete: client 9 has trained"),
        (partial(cut_off, lines=3), True, "ends after 3 rounds, before the checkpoint after 4"),
        (partial(cut_off, lines=1), False, "ends after 1 round, before the checkpoint after 2"),
    ],
)
def test_a_checkpoint_that_is_damaged_or_not_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None], back: bool, says: str
) -> None:
    """The run goes back to the one before it, to the same bytes; without one it is refused and left alone."""
    small(tmp_path / "run", method=Ditto()).run()
    whole = bytes_of_run(tmp_path / "run")
    spoil(tmp_path / "run")
    if back:
        assert resumed(tmp_path / "run").run().complete
        assert re.search(says, capsys.readouterr().err)
        assert bytes_of_run(tmp_path / "run") == whole
        return
    before = files_of(tmp_path / "run")
    with refused(Damaged, "checkpoints") as caught:
        resumed(tmp_path / "run").run()
    assert re.search(says, str(caught.value))
    assert files_of(tmp_path / "run") == before


def test_a_resume_first_syncs_the_names_of_its_checkpoint(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver may have died before; a power failure would then take it from a run that is over."""
    synced: list[Path] = []

    class Watched(files.Disk):
        def sync_folder(self, folder: Path) -> None:
            synced.append(folder)

    monkeypatch.setattr(files, "disk", Watched())
    resumed(run).run()
    assert synced[:2] == [run / "checkpoints", run]


def test_resume_refuses_a_run_that_is_still_going_on(tmp_path: Path) -> None:
    """The one that runs keeps all its records; when it has ended, the folder is free."""
    asked: list[str] = []

    class Second(Callback):
        """Starts the run once more while it is going on."""

        def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
            with refused(InUse, "run") as refusal:
                resumed(tmp_path / "run").run()
            asked.append(str(refusal.value))
            return False

    small(tmp_path / "run", rounds=2).run([Second()])
    assert len(asked) == rounds_of(tmp_path / "run") == 2
    resumed(tmp_path / "run", {"rounds": 3}).run([Second()])
    assert len(asked) == rounds_of(tmp_path / "run") == 3


def test_resume_of_a_run_without_checkpoints_that_was_stopped(tmp_path: Path) -> None:
    """Its end has a checkpoint, too, so that the rounds after the stop are not run again and again."""
    federation = small(tmp_path, rounds=3, checkpoint_every=0)
    assert not federation.run([IsStopped()]).complete
    assert resumed(tmp_path).run().complete
    assert max((tmp_path / "checkpoints").glob("manifest-*.json")).stem == "manifest-000003"


@pytest.mark.parametrize(
    "made", [lambda path: None, Path.touch, Path.mkdir], ids=["nothing", "a file", "an empty folder"]
)
def test_what_is_no_run_is_not_resumed(tmp_path: Path, made: Callable[[Path], None]) -> None:
    made(tmp_path / "run")
    with refused(Missing, tmp_path / "run"):
        small(tmp_path / "run").resume(tmp_path / "run").run()


def test_resume_of_a_complete_run_changes_no_numbers(run: Path) -> None:
    """And fewer rounds than it has are refused."""
    before = bytes_of_run(run)
    assert resumed(run).run().complete
    with refused(Conflict, "rounds"):
        resumed(run, {"rounds": 1}).run()
    assert bytes_of_run(run) == before


def test_rounds_without_a_checkpoint_are_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a warning, and only where more of them are wanted: else no file is touched."""
    small(tmp_path / "run", checkpoint_every=0, rounds=2).run()
    before = files_of(tmp_path / "run")
    assert resumed(tmp_path / "run").run().complete
    with refused(Conflict, "rounds"):
        resumed(tmp_path / "run", {"rounds": 1}).run()
    assert files_of(tmp_path / "run") == before
    assert resumed(tmp_path / "run", {"rounds": 3}).run().summary["completed"] == 3
    assert "has no checkpoint: 2 rounds must be run again" in capsys.readouterr().err
    records = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert records.startswith(before[tmp_path / "run" / "metrics.jsonl"])


def a_file_for_checkpoints(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").touch()


def reworded(old: str, new: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        config = (run / "config.yaml").read_text()
        assert old in config
        (run / "config.yaml").write_text(config.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "kind", "place"),
    [
        (a_file_for_checkpoints, Missing, "checkpoints"),
        (reworded("train: 900", "train: 800"), Conflict, "data.train"),
        (reworded("clients: 12", "clients: 11"), Conflict, "clients"),
        (reworded("FedAvg", "SCAFFOLD"), Conflict, "method"),
        (reworded("nets.LeNet", "nets.CNN"), Conflict, "net"),
        (reworded("lr: 0.05", "lr: 0.06"), Conflict, "training.lr"),
        (reworded("eval_every: 1", "eval_every: 2"), Conflict, "eval_every"),
        (lambda run: (run / "partition.json").write_text("{"), Damaged, "partition.json"),
    ],
)
def test_resume_refuses_what_is_another_run(
    run: Path, change: Callable[[Path], None], kind: type[UserError], place: str
) -> None:
    change(run)
    before = files_of(run)
    with refused(kind, place):
        resumed(run, {"rounds": 4, "quiet": True}).run()
    assert files_of(run) == before


def test_resume_on_another_device_has_to_be_asked_for(run: Path) -> None:
    reworded("device: cpu", "device: cuda")(run)
    before = files_of(run)
    for going_on in (
        resumed(run, {"rounds": 3, "quiet": True, "engine.device": "auto"}),
        small(run.with_name("other"), rounds=3, checkpoint_every=1).resume(run),
    ):
        with refused(Conflict, run):
            going_on.run()
    assert files_of(run) == before
    resumed(run, {"rounds": 3, "quiet": True, "engine.device": "cpu"}).run()


def test_checkpoints_of_another_seed(tmp_path: Path) -> None:
    """A run is not resumed from another run's checkpoints, and their models are not taken for its own."""
    data = Synthetic(train=900, test=240, partition=Dirichlet(alpha=1.0), val_fraction=0.1, seed=5)
    for seed in (0, 1):
        small(tmp_path / f"run-{seed}", data=data, rounds=1, seed=seed).run()
    shutil.rmtree(tmp_path / "run-0" / "checkpoints")
    shutil.copytree(tmp_path / "run-1" / "checkpoints", tmp_path / "run-0" / "checkpoints")
    before = files_of(tmp_path / "run-0")
    with refused(Conflict, "seed"):
        resumed(tmp_path / "run-0", {"rounds": 4}).run()
    with refused(Conflict, "seed"):
        load_models(tmp_path / "run-0")
    assert files_of(tmp_path / "run-0") == before


def test_checkpoints_of_other_data(run: Path) -> None:
    """The data and their division are compared, too, where no setting tells them apart."""
    checkpoints = Checkpoints(run / "checkpoints")
    manifest, _ = checkpoints.newest_intact()
    assert manifest
    checkpoints.commit(replace(manifest, settings=manifest.settings | {"division": "0" * 64}))
    with refused(Conflict, "data"):
        resumed(run, {"rounds": 4}).run()


def test_a_failed_resume_leaves_a_finished_run_alone(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files_of(run)
    assert {"summary.json", "clients.parquet"} <= {file.name for file in before}
    monkeypatch.setattr(Worker, "restore", MagicMock(side_effect=Shortage("no room for the state")))
    with refused(Shortage):
        resumed(run, {"rounds": 4}).run()
    assert files_of(run) == before


def test_a_copy_beside_the_checkpoints_is_none_of_them(run: Path) -> None:
    shutil.copy(run / "checkpoints" / "manifest-000002.json", run / "checkpoints" / "manifest-copy.json")
    assert resumed(run, {"rounds": 3, "quiet": True}).run().complete


def test_a_run_that_ended_early_stays_ended(tmp_path: Path) -> None:
    still: dict[str, Any] = {"training": Training(lr=1e-12), "protocol": evaluation.Default(patience=4)}
    result = small(tmp_path / "run", **still, rounds=9).run()
    assert result.complete
    assert (result.summary["completed"], result.summary["early"]) == (5, True)  # the first round stays best
    assert max((tmp_path / "run" / "checkpoints").glob("manifest-*.json")).stem == "manifest-000005"
    before = bytes_of_run(tmp_path / "run")
    assert resumed(tmp_path / "run").run().summary["completed"] == 5
    assert bytes_of_run(tmp_path / "run") == before

    small(tmp_path / "part", **still, rounds=2).run()
    assert resumed(tmp_path / "part", {"rounds": 9}).run().complete
    assert bytes_of_run(tmp_path / "part") == before


def test_torch_threads_are_given_back(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    small(tmp_path / "run", rounds=1, engine=Inline(threads=2)).run()
    assert torch.get_num_threads() == threads


def test_a_run_goes_on_with_other_code_only_where_that_is_asked_for(
    tmp_path: Path, own_modules: OwnModules
) -> None:
    """Its records then say what it had, and until when; callbacks may change."""
    run, few = tmp_path / "run", Synthetic(train=40, test=20, shape=(3, 20, 20))
    mine = own_modules.load("mine", SCALED).Mine()
    first = small(run, method=mine, data=few, clients=2, rounds=2)
    first.run([own_modules.load("watch", WATCHES).Watch()])
    before = json.loads((run / "environment.json").read_text())
    assert [before[key].keys() for key in ("code", "callbacks")] == [{"mine", *software()}, {"watch"}]
    own_modules.load("mine", f"# Edited\n{SCALED}")
    longer = resumed(run, {"rounds": 3, "quiet": True})
    longer.run([own_modules.load("watch", f"{WATCHES}    x = 1\n").Watch()])
    own_modules.load("mine", SCALED.replace("1.0", "0.1"))
    kept = bytes_of_run(run)
    with refused(Conflict, run):
        resumed(run, {"rounds": 4}).run()
    assert bytes_of_run(run) == kept
    resumed(run, {"rounds": 4, "quiet": True}, any_code=True).run()
    code = json.loads((run / "environment.json").read_text())["code"]
    assert code.keys() == {"mine", "mine to round 3", *software()}
    assert code["mine"] != code["mine to round 3"] == before["code"]["mine"]
    resumed(run, {"rounds": 5, "quiet": True}).run()
    assert json.loads((run / "environment.json").read_text())["code"] == code


@pytest.mark.parametrize("name", ["rayfl", "torch", "numpy", "ray"])
def test_other_software_counts_as_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run = tmp_path / "run"
    small(run, rounds=2).run()
    monkeypatch.setattr("rayfl.running.settings.software", lambda: {**software(), name: "another"})
    with refused(Conflict, run) as caught:
        resumed(run, {"rounds": 3}).run()
    assert f": {name}" in str(caught.value)
    resumed(run, {"rounds": 3, "quiet": True}, any_code=True).run()
    code = json.loads((run / "environment.json").read_text())["code"]
    assert (code[name], code[f"{name} to round 2"]) == ("another", software()[name])


@pytest.mark.parametrize("data", ["same", "made up"])
def test_another_processor_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, data: str
) -> None:
    run = tmp_path / "run"
    small(run, rounds=2).run()
    monkeypatch.setattr("rayfl.running.settings.software", lambda: {**software(), "processor": "abacus"})
    if data == "made up":
        monkeypatch.setattr(FederatedData, "digest", lambda data: "another")
        with refused(Conflict, "data") as caught:
            resumed(run, {"rounds": 3}).run()
        assert "abacus" in str(caught.value)
        return
    resumed(run, {"rounds": 3, "quiet": True}).run()
    assert "abacus" in caplog.text
    code = json.loads((run / "environment.json").read_text())["code"]
    assert code["processor"] == "abacus, 1 thread"
    assert code["processor to round 2"].startswith(software()["processor"])
