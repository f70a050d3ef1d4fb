"""What a user is told when data, nets, methods and protocols do not go together: one line, before anything
starts.
"""

from pathlib import Path

import pytest

from rayfl import Federation, Inline, UserError
from rayfl.data import IID, PACS, Data, DomainNet, OfficeCaltech10, Pathological, Synthetic
from rayfl.evaluation import Default
from rayfl.nets import LeNet
from rayfl.run import main
from tests.support.digits_five import write_mnist
from tests.support.image_files import write_cifar10, write_cifar100
from tests.support.image_folders import lists, write

SYNTHETIC = "--data Synthetic --data.train 300 --data.test 60 --data.domains 3"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files of all data sets in their published layouts, incomplete where a name says so."""
    root = tmp_path_factory.mktemp("data")
    write_cifar10(root, per_file=40)
    write_cifar100(root)
    domains, classes = OfficeCaltech10.order["fedbn"], OfficeCaltech10.classes
    write(root / "no_dslr", [d for d in domains if d != "dslr"], classes, [4] * 3)
    write(root / "no_mug", domains, [c for c in classes if c != "mug"], [4] * 4)
    write(root / "no_sketch", [d for d in PACS.published if d != "sketch"], PACS.classes, [4] * 3)
    for name in ("few", "few_listed"):
        write(root / name, DomainNet.order["fedbn"], DomainNet.classes, [2] * 6)
    lists(root / "few_listed", DomainNet.order["fedbn"], DomainNet.classes, [2] * 6, "DomainNet")
    write_mnist(root / "mnist_only")
    (root / "empty").mkdir()
    return root


OFFICE = "--data OfficeCaltech10 --data.verify false --data.image_size 32 --data.root ROOT"
DOMAINNET = "--data DomainNet --data.verify false --data.image_size 32 --data.root ROOT"
CIFAR10 = "--data CIFAR10 --data.root ROOT --data.verify false"
CIFAR100 = "--data CIFAR100 --data.root ROOT --data.verify false"

BAD = [
    # subspaces
    ("--method FediOS --method.rank 0", "method.rank is 0"),
    (
        "--method FediOS --method.rank 20 --net LeNet",
        "method.rank is 20",
        "features have 84",
    ),
    (
        "--method FediOS --net LeNet --clients 84 --data.test 120",
        "84 clients and the generic extractor need 85 orthogonal",
    ),
    ("--method FediOS --method.overflow reuse --method.rank 50 --net LeNet", "a rank of at most 42"),
    # different nets
    ("--method DCPFL --net [LeNet,FedAvgCNN]", "features of one size", "LeNet 84", "FedAvgCNN 512"),
    ("--method FedAvg --net [LeNet,CNN]", "FedAvg combines weights", "LeNet, CNN"),
    ("--net []", "at least one"),
    # nets without what a method needs
    ("--method FDSE --net LeNet", "net has none of FDSE's blocks", "FDSEAlexNet"),
    ("--method FedBN --net LeNet --unseen domain2 --data.partition DomainPerClient", "FedBN adapts", "CNNB"),
    # domains
    ("--unseen domain7", "no such domain", "domain0, domain1, domain2"),
    ("--unseen domain0 --data.partition IID", "together with others", "DomainPerClient"),
    # files
    (f"{OFFICE}/no_dslr", "domain dslr is missing", "no_dslr/dslr"),
    (f"{OFFICE}/no_mug", 'any image of the class "mug" is missing', "no_mug"),
    (f"{OFFICE}/empty", "the folder of a domain", "amazon, caltech, dslr, webcam"),
    (f"{OFFICE}/nowhere", "folder root is missing"),
    ("--data PACS --data.root ROOT/no_sketch --data.verify false", "domain sketch is missing"),
    ("--data DigitsFive --data.root ROOT/mnist_only --data.verify false", "DigitsFive", "missing"),
    ("--data DomainNet", "DomainNet needs the folder"),
    # validation
    (f"{DOMAINNET}/few", "cannot be divided 80/20"),
    (f"{DOMAINNET}/few_listed", "has no training samples"),
    ("--data.val_fraction 0.5 --clients 60 --data.train 60", "val_fraction is 0.5", "leaves nothing"),
    (
        f"{CIFAR10} --clients 40 --data.partition Pathological --data.partition.split pooled",
        "class",
        "too few",
    ),
    ("--protocol FedCO2Feature", "goes by validation accuracy", "data.val_fraction"),
    ("--protocol FDSE", "goes by validation accuracy", "data.val_fraction"),
    ("--protocol.patience 5", "Default(patience=5) goes by validation", "data.val_fraction"),
    ("--protocol DCPFL --protocol.choose best_val", "DCPFL(choose=best_val) goes by", "data.val_fraction"),
    ("--protocol.point unseen", "protocol.point is unseen, and all clients train", "--unseen DOMAIN"),
    ("--protocol.view onlin --method FedCO2 --net CNNB", "FedCO2 has personal, online, offline"),
    ("--protocol FDSE --protocol.average wieghted", "protocol.average is 'wieghted'", "'weighted'"),
    # partitions
    ("--data.partition Pathological --clients 7", "2 x 7 becomes a multiple of 10"),
    ("--data.partition Pathological --data.partition.split half", "split"),
    ("--data.partition Pachinko", "Pachinko needs classes that belong to superclasses", "labels=fine"),
    (f"{CIFAR100} --data.labels coarse --clients 1 --data.partition Pachinko", "labels=fine"),
    ("--data.partition Pachinko --data.partition.coarse_alpha 0", "data.partition.coarse_alpha is 0"),
    ("--data.partition Pachinko --data.partition.fine_beta .nan", "fine_beta"),
    (f"{CIFAR100} --clients 1 --data.partition Superclass", "labels=coarse"),
    (f"{CIFAR100} --data.labels medium", "labels"),
    ("--data.partition DomainDirichlet --data.partition.parts 0", "data.partition.parts is 0"),
    ("--data.partition DomainDirichlet --data.partition.alpha -1", "data.partition.alpha is -1"),
    (
        "--data.partition DomainDirichlet --data.partition.chosen {domain9: 1}",
        "chosen names the domain 'domain9'",
    ),
    ("--data.partition DomainDirichlet --data.partition.parts 2 --clients 7", "the domains have 6 parts"),
    ("--data.partition DomainDirichlet --data.partition.parts 9", "so that each of 9 parts has 2"),
    ("--data.partition DomainDirichlet --data.partition.alpha 0.001", "2,000,000 tries"),
    # images
    (f"{CIFAR10} --data.normalise mine", "normalise"),
    (f"{CIFAR10} --data.image_size 0", "data.image_size is 0: it must be at least 1"),
    (f"{CIFAR10} --data.image_size 100000", "data.image_size is 100000: it must be at least 1"),
    # memory
    ("--data Synthetic --data.train 100000000000", "GB of memory", "use fewer images"),
    (
        "--data Synthetic --data.classes 1000000000",
        "1,000,000,000 classes need",
        "use fewer images or classes",
    ),
    ("--data Synthetic --data.shape [3,1000000,1000000]", "3x1000000x1000000", "smaller images"),
    # noise
    (f"{CIFAR10} --data.noise -1", "data.noise is -1: it must be at least 0"),
    (f"{CIFAR10} --data.noise 5 --clients 1", "use at least 2 clients"),
]


def arguments(options: str) -> list[str]:
    """Split a command line at spaces, but not within braces."""
    words: list[str] = []
    for word in options.split(" "):
        if words and words[-1].count("{") > words[-1].count("}"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


@pytest.mark.parametrize(("options", "says"), [(b[0], b[1:]) for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input(
    tmp_path: Path,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: str,
    says: tuple[str, ...],
) -> None:
    monkeypatch.setenv("RAYFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RAYFL_DATA", raising=False)
    output = tmp_path / "run"
    base = "--engine Inline --rounds 2 --loggers []" + (" --net LeNet" if "--net" not in options else "")
    base += f" {SYNTHETIC}" if "--data " not in options else ""
    given = arguments(f"{base} {options}".replace("ROOT", str(root)))
    assert main([*given, "--output", str(output)]) == 2
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if not line.startswith("warning: ")]
    assert len(lines) == 1, said
    assert lines[0].startswith("rayfl: error: ")
    for text in says:
        assert text in lines[0]
    assert not output.exists(), "something was written before the settings were checked"


@pytest.mark.parametrize(
    ("data", "changes", "says"),
    [
        (Synthetic(train=30, test=30, val_fraction=0.5), {"clients": 30}, "leaves nothing"),
        (
            Synthetic(train=200, test=60, partition=Pathological(classes_per_client=3)),
            {"clients": 7},
            "so that 3 x 7 becomes a multiple of 10",
        ),
        (
            Synthetic(train=200, test=60, partition=IID()),
            {"protocol": Default(choose="best_val")},
            r"data\.val_fraction",
        ),
    ],
)
def test_the_same_from_python(tmp_path: Path, data: Data, changes: dict[str, object], says: str) -> None:
    settings: dict[str, object] = {"data": data, "net": LeNet(), "engine": Inline(), "quiet": True}
    with pytest.raises(UserError, match=says):
        Federation(**(settings | changes), output=str(tmp_path / "run")).run()  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["FedBN", "FedCO2"])
def test_methods_about_batch_norm_run_without_any_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    for net in ("LeNet", "CNNB"):
        options = f"--engine Inline --rounds 1 --loggers [] --quiet true {SYNTHETIC} --method {method}"
        assert main([*options.split(), "--net", net, "--output", str(tmp_path / net)]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "BatchNorm" in line]
    assert said == [
        f"warning: {method} leaves a part of the net with the clients, such as BatchNorm, and LeNet has no "
        "such part: all of it is averaged"
    ]
