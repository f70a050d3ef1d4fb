"""Data sets and partitions from the command line."""

import pytest

from rayfl.data import (
    CIFAR10,
    CIFAR100,
    MNIST,
    PACS,
    USPS,
    ArrayFiles,
    DigitsFive,
    Dirichlet,
    DomainNet,
    DomainPerClient,
    EmbeddedDigits,
    HuggingFaceData,
    ImageFolders,
    OfficeCaltech10,
    Synthetic,
    TorchvisionData,
    WriterDigits,
)
from tests.support.federations import federation_from

KINDS = [
    *[CIFAR10, CIFAR100, MNIST, USPS, EmbeddedDigits, Synthetic],
    *[DigitsFive, OfficeCaltech10, DomainNet, PACS, ImageFolders],
    *[WriterDigits, ArrayFiles, HuggingFaceData, TorchvisionData],
]


def build(*options):
    return federation_from(options).data


def test_nested_partition():
    data = build(
        *[
            "--data",
            "CIFAR10",
            "--data.root",
            "X",
            "--data.partition",
            "Dirichlet",
            "--data.partition.alpha",
            "0.5",
        ]
    )
    assert isinstance(data, CIFAR10)
    assert data.root == "X"
    assert isinstance(data.partition, Dirichlet)
    assert data.partition.alpha == 0.5


def test_default():
    data = build()
    assert isinstance(data, EmbeddedDigits)
    assert isinstance(data.partition, DomainPerClient)


@pytest.mark.parametrize("kind", KINDS)
def test_common_options(kind):
    options = "--data.val_fraction 0.1 --data.seed 3 --data.partition Pathological"
    data = build("--data", kind.__name__, *options.split(), "--data.partition.classes_per_client", "5")
    assert type(data) is kind
    assert (data.val_fraction, data.seed) == (0.1, 3)
    assert data.partition.classes_per_client == 5


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (["Pachinko"], {"coarse_alpha": 0.3, "fine_beta": 10.0, "seed": 12345}),
        (["Pachinko", "--data.partition.seed", "7"], {"seed": 7}),
        (["Superclass", "--data.partition.shuffle_subclasses", "true"], {"shuffle_subclasses": True}),
        (["Pathological", "--data.partition.split", "pooled"], {"split": "pooled", "distinct": True}),
        (
            [
                *["DomainDirichlet", "--data.partition.chosen", "{painting: 2, quickdraw: 1}"],
                *["--data.partition.parts", "5", "--data.partition.whole_test", "[real]"],
            ],
            {"parts": 5, "chosen": {"painting": 2, "quickdraw": 1}, "thin": None, "whole_test": ["real"]},
        ),
    ],
)
def test_options_of_partitions(options, settings):
    data = build("--data", "CIFAR100", "--data.noise", "5", "--data.partition", *options)
    found = data.partition.settings()
    assert found["name"] == options[0]
    assert {name: found[name] for name in settings} == settings
    assert data.settings()["noise"] == 5


def test_synthetic_options():
    data = build(
        *[
            "--data",
            "Synthetic",
            "--data.train",
            "100",
            "--data.test",
            "10",
            "--data.shape",
            "[1,8,8]",
            "--data.domains",
            "2",
        ]
    )
    assert data.load().shape == (1, 8, 8)


def test_options_of_domains():
    text = "--data OfficeCaltech10 --data.split fdse --data.scale full --data.image_size 64 --data.cache X"
    data = build(*text.split(), "--data.augment", "true")
    assert (data.split, data.scale, data.image_size, data.augment) == ("fdse", "full", 64, True)
    assert "cache" not in data.settings()
    data = build("--data", "DigitsFive", "--data.domains", "[USPS,MNIST]", "--data.quantity", "0.4")
    assert data.domains == ["MNIST", "USPS"]  # always in one order
    assert data.settings()["quantity"] == 0.4
    assert build("--data", "CIFAR10", "--data.augment", "fedgh").augment == "fedgh"
    data = build(*["--data", "CIFAR100", "--data.normalise", "half", "--data.image_size", "224"])
    assert (data.normalise, data.image_size) == ("half", 224)


@pytest.mark.parametrize("options", [["--data", "CIFAR11"], ["--data.colour", "red"], ["--data.seed", "x"]])
def test_unknown_options_are_refused(options):
    with pytest.raises(Exception, match=options[-1] if options[0] == "--data" else "data"):
        build(*options)


def test_help_comes_from_the_docstrings(capsys):
    with pytest.raises(SystemExit):
        federation_from(["--data.help", "EmbeddedDigits"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Fraction of every client's training samples" in text
    assert "How samples are divided among clients" in text
