"""A small run of every method, or of some: ``python -m tests.support.every_method FOLDER [METHOD ...]``."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rayfl.data import Dirichlet, Synthetic
from rayfl.methods import METHODS
from rayfl.nets import CNNB
from tests.methods.cases import net_of
from tests.support.federations import small


def run_every_method(folder: Path, names: Sequence[str] = ()) -> None:
    """Run each into a folder of its own; with BatchNorm, and so long that what clients keep matters."""
    for name in names or METHODS:
        data = Synthetic(
            train=160, test=40, shape=(3, 20, 20), partition=Dirichlet(alpha=1.0), val_fraction=0.2
        )
        net = net_of(name, CNNB())
        small(
            folder / name, method=METHODS[name](), net=net, data=data, clients=4, rounds=3, checkpoint_every=3
        ).run()


if __name__ == "__main__":
    run_every_method(Path(sys.argv[1]), sys.argv[2:])
