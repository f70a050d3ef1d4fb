"""Divide a data set among clients, show how, and write the division to a file for others.

``python -m rayfl.divide division.json --data EmbeddedDigits --clients 10``
"""

import sys

from jsonargparse import auto_cli

from rayfl.data import EmbeddedDigits
from rayfl.data.base import Data
from rayfl.errors import exit_code
from rayfl.imports import guard_parsers
from rayfl.shown import tell


def divide(output: str, data: Data | None = None, clients: int = 5, seed: int = 0) -> None:
    """Write every client's indices as JSON, as ``--data.partition FromFile`` reads them.

    Args:
        output: JSON file to write.
        data: the data set with its partition; EmbeddedDigits by default.
        clients: number of clients.
        seed: seed of the division, as of a run.
    """
    divided = (data or EmbeddedDigits()).federate(clients, seed)
    tell(divided.table())
    divided.write_indices(output)


def main() -> int:
    """Run from the command line; return the exit code."""
    guard_parsers()
    return exit_code(lambda: auto_cli(divide))


if __name__ == "__main__":
    sys.exit(main())
