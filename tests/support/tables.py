"""Small table files, and stand-ins for those of the papers."""

from pathlib import Path
from typing import Any

from rayfl.jobs.table_file import Table
from rayfl.settings.reader import DottedSettings

ROOT = Path(__file__).parents[2] / "examples"
FILES = sorted(path for path in ROOT.glob("*/*.yaml") if path.parent.name != "clusters")
TABLES = {table.name: table for table in map(Table.load, FILES)}

TINY = """\
table: tiny
title: A tiny table
seeds: [0, 5]
missing: [FedNova]
base:
  data: Synthetic
  data.train: 200
  data.test: 60
  net: LeNet
  clients: 4
  rounds: 2
  training.batch_size: 20
  loggers: []
columns:
  even:
    data.partition: IID
  by class:
    data.partition: Dirichlet
    data.partition.min_samples: 1
rows:
  FedAvg:
    method: FedAvg
  Prox:
    method: FedProx
    method.mu: 0.1
    at:
      by class: {method.mu: 0.5}
  FedNova (ours):
    method: FedNova
"""

PLAIN = ("CNN", "FedAvgCNN", "FedGHCNN")


def write(folder: Path, text: str = TINY) -> str:
    path = folder / "table.yaml"
    path.write_text(text)
    return str(path)


def available(table: Table) -> list[str]:
    """The rows whose methods rayfl has."""
    column = next(iter(table.columns))
    return [row for row in table.rows if table.missing_method(table.settings(row, column)) is None]


OF_THEIR_OWN = {"DSE": "DSECNN", "FedFA": "FedFACNN", "FedSR": "FedSRCNN"}
"""A part of the name of a net that a method needs -> the small one of its kind."""


def stand_in(settings: DottedSettings) -> dict[str, Any]:
    """What makes a cell of a paper's table one that is trained in no time: small data, a net of its kind."""
    net = settings["net"]
    kind = "LeNet" if net in PLAIN or settings.get("net.fc_norm") is False else "CNNB"
    if isinstance(net, list):
        kind = ["LeNet", "CNN"]
    elif found := [small for part, small in OF_THEIR_OWN.items() if part in net]:
        kind = found[0]
    small: dict[str, Any] = {
        "data": "Synthetic",
        "data.train": 96,
        "data.test": 40,
        "data.domains": 2,
        "data.shape": [3, 28, 28],
        "data.val_fraction": 0.25,
        "net": kind,
        "clients": 4,
        "participation": 0.5 if settings.get("participation", 1.0) < 1 else 1.0,
        "rounds": 1,
        "eval_every": 1,
        "checkpoint_every": 0,
        "loggers": [],
        "quiet": True,
        "engine": "Inline",
        "training.epochs": 1,
        "training.batch_size": 9,
    }
    if kind == "DSECNN" and "net.act" in settings:
        small["net.act"] = settings["net.act"]
    if settings.get("unseen"):
        small |= {"unseen": "domain1", "data.partition": "DomainPerClient"}
    return small
