"""Configurations: every object that can be configured is recorded and made again."""

import errno
import inspect
import operator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import yaml

import rayfl.data
from rayfl import Federation, Finetune, Inline, Ray, Training, UserError, evaluation
from rayfl.commands.run import parser
from rayfl.data import CIFAR10, MNIST, Data, Dirichlet, EmbeddedDigits, Partition, Synthetic
from rayfl.engine import Engine
from rayfl.errors import BadCode, BadValue, Conflict, Damaged, Missing, Unknown
from rayfl.federation import resumed
from rayfl.methods import FDSE, FML, METHODS, Ditto, FedAvg, FedCO2, FedProx, Method
from rayfl.nets import LeNet
from rayfl.record.checks import Cell
from rayfl.sampling import Bernoulli
from rayfl.settings.arguments import convert_value
from rayfl.settings.description import PAPER_NAMES, config_of, dump_config, public_path, result_settings
from rayfl.settings.reader import kind_at
from rayfl.system.text import OTHER_NAMES
from rayfl.training import Adam, Cosine, Exponential, Focal
from rayfl.transforms import Aggregation, Attack, ClientDP, Quantise, TopK, Transform
from rayfl.transforms.aggregation import MultiKrum
from rayfl.transforms.attacks import IPM
from tests.support.federations import federation_from, small
from tests.support.refusals import refused

CLASSES = [c for c in vars(rayfl.data).values() if inspect.isclass(c) and not inspect.isabstract(c)]
CLASSES = [c for c in CLASSES if issubclass(c, Data | Partition) and c is not rayfl.data.Arrays]
CONFIGURABLE = [*METHODS.values(), TopK, Quantise, *CLASSES, Inline, Ray, Training, Federation]

RECORDED = [
    FDSE(beta=2.5e-7, consensus=False, attention="mean", reg="code"),
    FML(meme=LeNet()),
    TopK(share=0.125, error_feedback=False),
    ClientDP(clip="adaptive", epsilon=3.0, delta=1e-6),
    IPM(clients=[3, 1], scale=0.5),
    MultiKrum(chosen=1, pre="NNM"),
    Training(optimiser=Adam(beta1=0.5), schedule=Exponential(decay=0.9), loss=Focal(gamma=0.5), work=(2,)),
    Training(steps=3, work_range=(0.5, 2), loss="torch.nn.functional.cross_entropy"),
    Inline(threads=2, stack=8),
    Ray(actors=3, cpus_per_actor=0.5, address="somewhere"),
    Synthetic(shape=(1, 8, 9), dtype="uint8", seed=3, test_from="pooled", test_share=0.25),
    rayfl.data.ArrayFiles(root="somewhere", x="images", mean=[0.25, 0.5], std=[1, 2]),
    rayfl.data.ImageFolders(augment=False, domains=["a"]),
    rayfl.data.TorchvisionData(arguments={"split": "letters", "some": [1, None]}),
    rayfl.data.DomainDirichlet(alpha=0.25, chosen={"amazon": 1}, thin={"a": 2}, whole_test=["a", "b"]),
    rayfl.data.Mixed(groups=((1, 2), (3,))),
    Federation(net=[LeNet(), "some.net"], metrics=["f1"], eval_clients=0.5, sampling=Bernoulli()),
    Federation(protocol=evaluation.FediOS(), finetune=Finetune(epochs=2, part="head"), sampling=Bernoulli()),
    Federation(cell=Cell(table="a", row="b", column="N=3", changed=["c"]), loggers=[], sampling=Bernoulli()),
]
"""Options of every type, with values that are not their defaults."""
PLACES = {
    Federation: "",
    Partition: "data.partition",
    Data: "data",
    Training: "training",
    Engine: "engine",
    Method: "method",
    Transform: "transforms",
    Attack: "attack",
    Aggregation: "aggregation",
}


def again(made: Any, tmp_path: Path) -> Any:
    """An object as it comes back from the configuration of its federation."""
    (place,) = [place for kind, place in PLACES.items() if isinstance(made, kind)]
    parts = {"data": Synthetic(partition=made)} if place == "data.partition" else {place: made}
    federation = Federation(**parts) if place else made
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(federation))
    found = federation_from(["--config", str(path)])
    assert dump_config(found) == dump_config(federation)
    return operator.attrgetter(place)(found) if place else found


@pytest.mark.parametrize("made", RECORDED, ids=str)
def test_what_is_recorded_is_made_again(made: Any, tmp_path: Path) -> None:
    assert str(again(made, tmp_path)) == str(made)


def test_every_class_and_every_setting_is_recorded(tmp_path: Path) -> None:
    for cls in CONFIGURABLE:
        assert type(again(cls(), tmp_path)) is cls
    assert config_of(Federation()).keys() == inspect.signature(Federation).parameters.keys() - {"output"}


class Forgetful(FedAvg):
    def __init__(self, factor: float = 0.5) -> None:
        self.other = factor


# ---- what cannot be used: code 2, one message, nothing started


FILES = [
    ("training.moment: 0.5\n", Unknown, "training.moment"),
    ("- a: b\n", Damaged, "config.yaml"),
    ("rounds: null\n", BadValue, "rounds"),
    ("data:\n", BadValue, "data"),
    ("data: {class_path: Synthetic, init_args: }\n", BadValue, "data.init_args"),
    ("method: {class_path: Ditto, mu: 2}\n", Conflict, "method"),
    ("training: {schedule: {class_path: Cosine, warmup: 3}}\n", Conflict, "training.schedule"),
    ("net: [LeNet, {class_path: FedGHCNN, number: 2}]\n", Conflict, "net"),
    ("method: null\nmethod.mu: 1\n", Conflict, "method.mu"),
    ("data.partition: {class_path: IID, init_args: {alpha: 1}}\n", Unknown, "data.partition.alpha"),
]


@pytest.mark.parametrize(("text", "kind", "place"), FILES, ids=[repr(text)[:40] for text, *_ in FILES])
def test_what_is_wrong_with_a_file(tmp_path: Path, text: str, kind: type[UserError], place: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with refused(kind, place) as caught:
        federation_from(["--config", str(path)])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_at_all(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("nowhere.yaml", "folder"):
        with refused(Missing, tmp_path / name):
            federation_from(["--config", str(tmp_path / name)])
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff\x00")
    with refused(Damaged, "binary"):
        federation_from(["--config", str(tmp_path / "binary")])


def test_a_file_that_may_not_be_read(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("rayfl.settings.yaml_file.open_file", refuse)
    path = run_folder / "config.yaml"
    for arguments in (["--config", str(path)], ["--resume", str(run_folder)]):
        with refused(Missing, path):
            federation_from(arguments)


@pytest.mark.parametrize("text", ["", "{}\n"])
def test_a_file_without_settings(tmp_path: Path, run_folder: Path, text: str) -> None:
    """It leaves all defaults, but the configuration of a run can only have been damaged."""
    path = tmp_path / "blank.yaml"
    path.write_text(text)
    assert dump_config(federation_from(["--config", str(path)])) == dump_config(Federation())
    assert federation_from(["--rounds", "3", f"--config={path}"]).rounds == 3
    for damaged in (text, "rounds: 0\n"):
        (run_folder / "config.yaml").write_text(damaged)
        with refused(Damaged, "config.yaml"):
            federation_from(["--resume", str(run_folder)])


LINES = [
    ("--data Synthetic --data.partition IID --data.partition.alpha 1", Unknown, "data.partition.alpha"),
    ("--data.partition.help Nope", Unknown, "data.partition"),
    ("--transforms TopX", Unknown, "transforms"),
    ("--transforms TopK --transforms.shares 1", Unknown, "transforms.shares"),
    ("--transforms.share 1", BadValue, "transforms"),
    ("--training {3:[4]}", BadValue, "training"),
    ("--training {3:4", BadValue, "training"),
    ("--training foo", BadValue, "training"),
    ("--data CIFAR10 --data.partition.alpha 0.1", BadValue, "data.partition"),
    ("--data.partition DomainDirichlet --data.partition.chosen {a:1}", BadValue, "data.partition.chosen"),
    ("--method FedProx --method.mu", Missing, "method.mu"),
    ("--data.partition.help", Missing, "data.partition.help"),
    ("--method.of.mu 0.1", Unknown, "method.of"),
    ("--method.mu 0.1 --method FedProx", Conflict, "method.mu"),
    ("--data.partition.alpha=1 --data.partition=Dirichlet", Conflict, "data.partition.alpha"),
    ("--training.lr --rounds 3", Missing, "training.lr"),
    ("--rounds null", BadValue, "rounds"),
]


def test_what_other_tools_call_something_is_a_value_or_an_option_here() -> None:
    for ours in {each for several in OTHER_NAMES.values() for each in several}:
        option, _, value = ours.partition(" ")
        if option in METHODS:
            federation_from(["--method", *ours.split()])
        elif ours not in ("personal", "global", "best_test"):
            assert kind_at(Federation, option) is not Any
            assert not value or federation_from([f"--{option}", value])


HINTS = [
    ("--training.epoch 3", Unknown, "training.epoch", "training.epochs? Choose one of batch_size, "),
    ("--training.learning_rate 3", Unknown, "training.learning_rate", "did you mean training.lr?"),
    ("--training.lr.x 3", Unknown, "training.lr.x", "did you mean training.lr?"),
    ("--method FedYogi", Unknown, "method", "did you mean FedOpt --method.rule yogi?"),
    ("--method FedAvg+FT", Unknown, "method", "mean FedAvg --finetune.epochs 1 --protocol.view finetuned?"),
    ("--net+ LeNet", Unknown, "net+", "did you mean --net?"),
    ("--local-epochs 3", Unknown, "local-epochs", "did you mean --training.epochs?"),
    ("--personalised 1", Unknown, "personalised", "did you mean --protocol.view personal?"),
    ("--metric f1", Unknown, "metric", "did you mean --metrics?"),
    ("--rouns 3", Unknown, "rouns", "did you mean --rounds? --help lists all"),
    ("--lr 0.1", Unknown, "lr", "did you mean --training.lr or --finetune.lr?"),
    ('--training {"schedul":1}', Unknown, "training.schedul", "did you mean training.schedule?"),
    ("--method FedProx --method.m 1", Unknown, "method.m", "did you mean mu? Choose one of mu, "),
    ("--method FedProxy", Unknown, "method", "did you mean FedProx? Choose one of APFL, "),
    ("--data.help CIFAR11", Unknown, "data", "did you mean CIFAR10? Choose one of ArrayFiles, "),
    ("--data.partition Nope", Unknown, "data.partition", "Choose one of ByUser, Dirichlet, "),
    ("--method.help", Missing, "method.help", "write --method.help NAME. Choose one of APFL, "),
    ("--quiet", Missing, "quiet", "write --quiet true"),
    ("--loggers", Missing, "loggers", "write --loggers [ITEM,...]"),
    ("FedAvg", Unknown, "FedAvg", "write --method FedAvg"),
    ("mine.yaml", Unknown, "mine.yaml", "write --config mine.yaml"),
]


@pytest.mark.parametrize(("options", "kind", "place", "hint"), [*((*line, "") for line in LINES), *HINTS])
def test_what_is_wrong_on_the_command_line(
    options: str, kind: type[UserError], place: str, hint: str
) -> None:
    """With what may have been meant."""
    with refused(kind, place) as caught:
        federation_from(options.split())
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_null_where_it_means_something() -> None:
    found = federation_from(["--averaging", "null", "--data.seed", "null"])
    assert dump_config(found) == dump_config(Federation())


def test_all_settings_are_printed_or_only_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the defaults of the classes that are named, whose names count as what differs."""
    options = ["--method", "Ditto", "--method.mu", "3", "--seed", str(Federation().seed)]
    for how in ((), ("skip_default",)):
        with pytest.raises(SystemExit):
            federation_from([*options, "--print_config", *how])
        (file := tmp_path / "printed.yaml").write_text(printed := capsys.readouterr().out)
        found = federation_from(["--config", str(file)])
        assert dump_config(found) == dump_config(Federation(method=Ditto(mu=3)))
    assert yaml.safe_load(printed) == {"method": "rayfl.methods.Ditto", "method.mu": 3}
    with refused(BadValue, "print_config"):
        federation_from(["--print_config", "some"])


class Switched(FedAvg):
    sharing: Literal["on", "off"] = "on"


def test_a_choice_that_yaml_would_take_for_a_truth_value() -> None:
    options = ["--method", f"{__name__}.Switched", "--method.sharing"]
    assert [federation_from([*options, word]).method.sharing for word in ("off", "on")] == ["off", "on"]
    with refused(BadValue, "method.sharing"):
        federation_from([*options, "no"])


def test_help_leads_to_all_options_and_to_no_base_class() -> None:
    text = " ".join(parser().format_help().split())
    assert "--data.partition.help Dir" in text
    assert ", FedSR, FML, " in text
    assert "PartlyPersonal" not in text
    assert "default: [tensorboard]" in text
    assert "--method.help NAME" not in text
    assert "--training FILE YAML file with options of training." in text
    assert "--rounds ROUNDS Number of rounds. (a whole number, at least 1; default: 20)" in text


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    federation = Federation(method=METHODS["FedProx"](mu=0.3), engine=Inline(), clients=5, rounds=5, seed=4)
    (folder / "config.yaml").write_text(dump_config(federation))
    return folder


def test_resume_refuses_what_would_make_it_another_run(run_folder: Path, tmp_path: Path) -> None:
    (other := tmp_path / "other.yaml").write_text("seed: 3\n")
    for option, value in (("--seed", "1"), ("--training.lr", "0.5"), ("--config", str(other))):
        with refused(Conflict, "resume") as caught:
            federation_from(["--resume", str(run_folder), option, value])
        assert str(caught.value).endswith(f"; remove {option}")


def test_resume_takes_the_rest_from_the_run_folder(run_folder: Path) -> None:
    with refused(Missing, run_folder.parent):
        resumed(run_folder.parent)
    options = ["--rounds", "9", "--checkpoint_every", "2", "--engine", "Ray"]
    found = federation_from(["--resume", str(run_folder), *options])
    assert (found.rounds, found.checkpoint_every, found.seed) == (9, 2, 4)
    assert found.method.mu == 0.3
    assert isinstance(found.engine, Ray)
    assert found.output == str(run_folder)


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda: Federation(method=FedCO2), "method"),
        (lambda: Federation(training={"lr": 0.1}), "training"),
        (lambda: Federation(quiet="no"), "quiet"),
        (lambda: FedCO2(mutual_epochs=1.5), "method.mutual_epochs"),
        (lambda: Synthetic(partition="IID"), "data.partition"),
        (lambda: Converts(mu="x"), "method.mu"),
    ],
)
def test_values_of_other_types_are_refused_at_once(make, place):
    with refused(BadValue, place):
        make()
    with refused(Unknown, "method.other"):
        Converts(other=1)


class Converts(FedAvg):
    def __init__(self, mu: float = 1.0) -> None:
        self.mu = mu * 2


FITTING = [
    (np.int64(3), int),
    (np.float32(0.5), float),
    (np.True_, bool),
    (3, float),
    (["a"], list[str]),
    ([1, 2, 3], tuple[int, int, int]),
    ({"a": 1}, dict[str, int] | None),
]
UNFIT = [
    (True, int),
    ("abc", list[str]),
    (["a", 1], list[str]),
    ((1, 2), tuple[int, int, int]),
    ({"a": "b"}, dict[str, int]),
    (np.zeros(2), Literal["a"]),
    (True, Literal[1]),
]


def test_what_fits_a_type():
    for value, kind in FITTING:
        convert_value("option", value, kind)
    for value, kind in UNFIT:
        with refused(BadValue, "option"):
            convert_value("option", value, kind)


class Held(FedAvg):
    def __init__(self, mu):
        super().__init__()
        self.mu = mu


def test_numbers_of_numpy_and_paths_are_recorded_as_plain_ones(tmp_path):
    """They come out of ranges and of pathlib, in notebooks."""
    plain = small(tmp_path, method=FedCO2(mu=0.5), clients=3, participation=0.5, rounds=1)
    other = small(
        tmp_path / "run",
        method=FedCO2(mu=np.float64(0.5)),
        data=replace(plain.data, train=np.int64(900), partition=Dirichlet(alpha=np.float64(1.0))),
        clients=np.int64(3),
        participation=np.float32(0.5),
        rounds=np.int64(1),
    )
    assert dump_config(other) == dump_config(plain)
    assert other.run().complete
    assert config_of(Federation(data=CIFAR10(root=tmp_path)))["data"]["init_args"]["root"] == str(tmp_path)


def test_dotted_names_in_a_file_are_those_of_the_command_line(tmp_path: Path):
    """In any order, and beside nests."""
    (file := tmp_path / "dotted.yaml").write_text(
        "data.partition.alpha: 0.3\nmethod.mu: 0.25\nmethod: FedCO2\ndata.root: somewhere\ndata: CIFAR10\n"
        "data.partition: Dirichlet\ntraining.lr: 0.2\ntraining: {epochs: 2}\nengine.stack: 8\nrounds: 9\n"
        "engine: {class_path: Inline, init_args: {threads: 2}}\n"
    )
    found = federation_from(["--config", str(file), "--training.lr", "0.1", "--rounds", "4"])
    assert found.rounds == 4, "the command line wins"
    assert str(found.method) == str(FedCO2(mu=0.25))
    assert str(found.data) == str(CIFAR10(root="somewhere", partition=Dirichlet(alpha=0.3)))
    assert found.training == Training(epochs=2, lr=0.1)
    assert str(found.engine) == str(Inline(threads=2, stack=8))


def test_a_method_is_named_by_its_class_or_as_in_its_paper(tmp_path: Path):
    """On the command line and in files; config.yaml has its path."""
    file = tmp_path / "a.yaml"
    for name, paper in PAPER_NAMES.items():
        file.write_text(f"method: {paper}\n")
        for arguments in (["--method", paper], ["--config", str(file)]):
            method = federation_from(arguments).method
            assert type(method) is METHODS[name]
            assert public_path(type(method)) == f"rayfl.methods.{name}"


def test_dotted_names_inside_of_nests(tmp_path: Path):
    """They are options of the class that stands beside them, and not of the default."""
    file, training = tmp_path / "a.yaml", tmp_path / "training.yaml"
    file.write_text(
        "training: {schedule: Cosine, schedule.warmup: 3}\n"
        "transforms: {class_path: TopK, init_args: {share: 0.7}}\n"
        "data: {class_path: DigitsFive, init_args: {partition: {class_path: DomainDirichlet, "
        "init_args: {thin: {a.b: 2}}}}}\n"
    )
    training.write_text("schedule: Cosine\nschedule.warmup: 3\n")
    found = federation_from(["--config", str(file)])
    assert found.training == Training(schedule=Cosine(warmup=3))
    assert str(found.transforms) == str(TopK(share=0.7))
    assert found.data.partition.thin == {"a.b": 2}
    assert federation_from(["--training", str(training)]).training == found.training
    inline = "{schedule: Cosine, schedule.warmup: 3}"
    assert federation_from([f"--training={inline}"]).training == found.training


def test_another_method_has_its_own_options(tmp_path: Path):
    """The ``mu`` of Ditto, which the configuration of a run names, is not that of FedProx."""
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(Federation(method=Ditto(), data=Synthetic(val_fraction=0.2))))
    found = federation_from(["--config", str(file), "--method", "FedProx", "--data", "EmbeddedDigits"])
    assert found.method.mu == FedProx().mu
    assert found.data.val_fraction == 0
    assert federation_from(["--config", str(file), "--method", "Ditto"]).method.mu == 1


@pytest.mark.parametrize("changed", [["net=LeNet", "rounds=1"], ["net=LeNet"]])
def test_a_cell_that_goes_on_for_more_rounds_says_so(changed: list[str], tmp_path: Path):
    run = tmp_path / "run"
    small(run, rounds=1, cell=Cell(table="t1", row="FedAvg", column="even", changed=changed)).run()
    for going_on in (resumed(run), resumed(run, {"rounds": 1})):
        assert going_on.settings.cell == Cell(table="t1", row="FedAvg", column="even", changed=changed)
    resumed(run, {"rounds": 2, "quiet": True}).run()
    cell = yaml.safe_load((run / "config.yaml").read_text())["cell"]
    assert cell == {"table": "t1", "row": "FedAvg", "column": "even", "changed": ["net=LeNet", "rounds=2"]}


class Own(Federation):
    """A federation of a user's own."""


def test_no_configuration_records_a_federation_of_ones_own():
    """What a resumed run would silently do without is refused."""
    with refused(BadCode, "Own"):
        Own()


class Inner(FedAvg):
    """A method with a part of one class, and a text."""

    division: Dirichlet = Dirichlet(alpha=0.3)
    note: str = ""


def test_texts_and_parts_come_back(tmp_path: Path) -> None:
    """Texts that look like numbers, to this reader or another one; and a part that can be of one class."""
    for note in ("1e3", "010", "08", "1:30", "1_000", ".5"):
        given = Inner(note=note, division=Dirichlet(alpha=0.7))
        assert str(again(given, tmp_path)) == str(given)


class TakesMore(FedAvg):
    def __init__(self, **more: float) -> None:
        self.more = more


class Warmed(Training):
    """Training of a user's own."""


def local() -> FedAvg:
    class Local(FedAvg): ...

    return Local()


@pytest.mark.parametrize(
    ("settings", "kind", "place"),
    [
        ({"method": Forgetful()}, BadCode, "Forgetful"),
        ({"method": Converts()}, BadCode, "method.mu"),
        ({"method": TakesMore()}, BadCode, "method.more"),
        ({"method": Held(Dirichlet())}, Conflict, "method.mu.alpha"),
        ({"method": Held({1, 2})}, BadValue, "method.mu"),
        ({"method": Held(len)}, BadValue, "method.mu"),
        ({"method": local()}, BadValue, "method"),
        ({"method": FML(meme="CNNB")}, BadCode, "method.meme"),
        ({"training": Warmed()}, BadValue, "training"),
    ],
)
def test_what_does_not_come_back_is_refused(
    settings: dict[str, Any], kind: type[UserError], place: str, tmp_path: Path
) -> None:
    """Before anything is written: nobody could go on with such a run."""
    with refused(kind, place):
        small(tmp_path / "run", **settings).run()
    assert not (tmp_path / "run").exists()


def test_numbers_are_decimal_and_of_32_bits() -> None:
    assert federation_from(["--seed", "010", "--rounds", "08"]).seed == 10
    for name, value in {"rounds": "1:30", "eval_clients": "1:30.5", "training.lr": "1e39"}.items():
        with refused(BadValue, name):
            federation_from([f"--{name}", value])


def test_classes_are_named_by_the_path_that_users_write():
    """Files may move; the path of a class stays."""
    config = config_of(Federation(engine=Inline()))
    named = [config[name]["class_path"] for name in ("method", "data", "engine")]
    assert named == ["rayfl.methods.FedBN", "rayfl.data.EmbeddedDigits", "rayfl.engine.Inline"]
    assert config["data"]["init_args"]["partition"]["class_path"] == "rayfl.data.DomainPerClient"
    assert public_path(Forgetful) == f"{__name__}.Forgetful"


def test_what_decides_the_numbers():
    """Everything but where files are, what runs the clients, and what may change on resume."""
    elsewhere = {"output": "x", "engine": Inline(threads=2)}
    one, other = Federation(), Federation(rounds=3, checkpoint_every=1, quiet=True, loggers=[], **elsewhere)
    assert one.result_settings() == other.result_settings()
    here, there = (Federation(data=MNIST(root=root, verify=root == "here")) for root in ("here", "there"))
    assert here.result_settings() == there.result_settings()
    for changed in ({"seed": 1}, {"training": Training(lr=0.2)}, {"data": EmbeddedDigits(seed=3)}):
        assert one.result_settings() != Federation(**changed).result_settings()
    assert one.result_settings()["method"] == "rayfl.methods.FedBN"
    found = result_settings({"a": {"b": [1, float("nan")]}, "c": float("inf")})
    assert found == {"a.b": [1, "NaN"], "c": "Infinity"}
    assert one.result_settings()["training.lr"] == Training().lr
