"""Options of data sets and partitions: from the command line, as they are recorded, and which are refused."""

import shlex

import pytest

import rayfl.data
from rayfl.errors import BadValue
from tests.support.federations import federation_from
from tests.support.refusals import refused

NAMES = "CIFAR10 CIFAR100 MNIST USPS EmbeddedDigits Synthetic DigitsFive OfficeCaltech10 DomainNet PACS"
NAMES += " ImageFolders WriterDigits ArrayFiles HuggingFaceData TorchvisionData"


def build(options):
    return federation_from(shlex.split(options)).data


@pytest.mark.parametrize("name", NAMES.split())
def test_common_options(name):
    partition = "--data.partition Pathological --data.partition.classes_per_client 5"
    data = build(f"--data {name} --data.val_fraction 0.1 --data.seed 3 {partition}")
    assert type(data) is getattr(rayfl.data, name)
    assert (data.val_fraction, data.seed) == (0.1, 3)
    assert data.partition.classes_per_client == 5


@pytest.mark.parametrize(
    ("name", "options", "settings"),
    [
        ("Pachinko", "", {"coarse_alpha": 0.3, "fine_beta": 10.0, "seed": 12345}),
        ("Superclass", "--data.partition.shuffle_subclasses true", {"shuffle_subclasses": True}),
        (
            "DomainDirichlet",
            "--data.partition.chosen '{painting: 2, quickdraw: 1}' --data.partition.whole_test [real]",
            {"chosen": {"painting": 2, "quickdraw": 1}, "thin": None, "whole_test": ["real"], "min_cell": 2},
        ),
    ],
)
def test_options_of_partitions(name, options, settings):
    data = build(f"--data CIFAR100 --data.noise 5 --data.partition {name} {options}")
    found = data.partition.settings()
    assert found["name"] == name
    assert {name: found[name] for name in settings} == settings
    assert data.settings()["noise"] == 5


def test_options_of_domains():
    text = "--data OfficeCaltech10 --data.split fdse --data.scale full --data.image_size 64 --data.cache X"
    data = build(f"{text} --data.augment true")
    assert (data.split, data.scale, data.image_size, data.augment) == ("fdse", "full", 64, True)
    assert "cache" not in data.settings()
    data = build("--data DigitsFive --data.domains [USPS,MNIST] --data.quantity 0.4")
    assert data.domains == ["MNIST", "USPS"]  # always in one order
    assert data.settings()["quantity"] == 0.4


NAN, INFINITE = float("nan"), float("inf")
NOT_ABOVE_0 = [0, -1.0, NAN, INFINITE]


BAD = {
    "Synthetic": {"train": [0], "test": [0], "classes": [1], "domains": [0], "shape": [(3, 0, 8)]},
    "CIFAR10": {"noise": [-1.0, NAN, INFINITE], "val_fraction": [-0.1, 1.0, NAN]},
    "CIFAR100": {"noise": [-1.0, NAN, INFINITE], "labels": ["medium"]},
    "WriterDigits": {"labelled": [9, 101]},
    "OfficeCaltech10": {"split": ["own"]},
    "DomainNet": {"scale": ["half"]},
    "PACS": {"image_size": [0]},
    "ImageFolders": {"split": ["fedbn"]},
    "DigitsFive": {"domains": [["MNIST", "EMNIST"], ["MNIST", "mnist"], []], "quantity": [0.001, 1.5, 11]},
    "Dirichlet": {"alpha": NOT_ABOVE_0, "min_samples": [-1]},
    "Pathological": {"classes_per_client": [0], "split": ["official"]},
    "Pachinko": {"coarse_alpha": NOT_ABOVE_0, "fine_beta": NOT_ABOVE_0},
    "DomainDirichlet": {"parts": [0], "alpha": NOT_ABOVE_0, "min_cell": [0], "thin": [{"real": 0}]},
    "ByUser": {"min_samples": [0]},
    "Mixed": {"groups": [((0, 1), ())]},
}
BAD["Synthetic"] |= {"noise": [-1.0, NAN], "dtype": ["float16"]}
BAD["DigitsFive"] |= {"scale": ["half"], "image_size": [0]}
BAD["DomainDirichlet"] |= {"chosen": [{"real": 3}, {"real": -1}]}


@pytest.mark.parametrize(("name", "option"), [(name, option) for name in BAD for option in BAD[name]])
def test_impossible_values_are_refused(name, option):
    kind = getattr(rayfl.data, name)
    for value in BAD[name][option]:
        with refused(BadValue, f"data{'.partition' * issubclass(kind, rayfl.data.Partition)}.{option}"):
            kind(**{option: value})
