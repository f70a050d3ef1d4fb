"""Clients that are natural users, without any download: what they gain by learning together.

    python examples/natural_users.py

Ten modules of Python's library predict their next characters, and fourteen writers' digits are read from ten
labelled ones of each. Local is on its own, FedAvg shares a model, FedPer shares all but the last layer,
Ditto keeps a model of each client's own beside the shared one.
"""

from tempfile import TemporaryDirectory
from typing import Any

from stdlib_text import StdlibText
from torch import nn

from rayfl import Federation, Inline, Training
from rayfl.data import WriterDigits
from rayfl.methods import Ditto, FedAvg, FedPer, Local, Method
from rayfl.nets import MLP, Architecture, Shape, SplitNet
from rayfl.system.text import print_note

MODULES = [
    *["argparse", "ast", "calendar", "csv", "difflib"],
    *["inspect", "optparse", "random", "shutil", "tarfile"],
]


class TextNet(Architecture):
    """Embedded characters, two hidden layers."""

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net for inputs [B, length] of character ids."""
        embed = nn.Sequential(nn.Embedding(classes, 16), nn.Flatten())
        hidden = nn.Sequential(nn.Linear(16 * shape[0], 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        return SplitNet(embed, hidden, nn.Linear(32, classes))


SETTINGS: dict[str, dict[str, Any]] = {
    "modules": {
        "data": StdlibText(length=5, samples=600, modules=MODULES),
        "net": TextNet(),
        "clients": 10,
        "rounds": 15,
        "training": Training(lr=0.1, batch_size=20, epochs=2, momentum=0.9),
    },
    "writers": {
        "data": WriterDigits(labelled=10),
        "net": MLP(hidden=(32,)),
        "clients": 14,
        "rounds": 100,
        "training": Training(lr=0.3, batch_size=10, momentum=0.5),
    },
}


def accuracy(users: str, method: Method, seed: int = 0) -> float:
    """Return the mean accuracy over the clients, each on its own test samples, after the last round."""
    settings = SETTINGS[users]
    with TemporaryDirectory() as folder:
        federation = Federation(
            method=method,
            **settings,
            seed=seed,
            eval_every=settings["rounds"],
            engine=Inline(execution="stacked", stack=32),  # all clients in one call
            checkpoint_every=0,
            loggers=[],
            quiet=True,
            output=f"{folder}/run",
        )
        return federation.run().figure


if __name__ == "__main__":
    for users in SETTINGS:
        found = {type(m).__name__: accuracy(users, m) for m in (Local(), FedPer(), FedAvg(), Ditto())}
        print_note(f"{users}: " + ", ".join(f"{name} {value:.1%}" for name, value in found.items()))
