"""Command line: ``rayfl run`` runs a federation; ``--help`` lists the options."""

from __future__ import annotations

import signal
import sys

from rayfl.config.parser import federation_from, parser
from rayfl.errors import exit_code
from rayfl.imports import from_here

__all__ = ["main", "parser"]


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for.

    Returns:
        0 after a complete run, 2 after an error of the user's, 130 for a run that was stopped or interrupted.
    """

    def run() -> int:
        with from_here():
            result = federation_from(sys.argv[1:] if arguments is None else arguments).run()
        return 0 if result.complete else 128 + signal.SIGINT

    return exit_code(run)


if __name__ == "__main__":
    sys.exit(main())
