"""The command ``rayfl``, which ``python -m rayfl`` is, too: ``rayfl run``, ``rayfl table`` and the others.

Nothing is imported before the command is known: ``rayfl --help`` answers at once.
"""

import sys
from importlib import import_module

import rayfl
from rayfl.shown import complain, did_you_mean, tell

COMMANDS = {
    "run": ("rayfl.run", "run one federation, or go on with one"),
    "table": ("rayfl.table", "run a table of experiments, such as one of a paper"),
    "tune": ("rayfl.tune.command", "search settings with Ray Tune"),
    "report": ("rayfl.report.command", "compare runs in a table, also with a paper's"),
    "figure": ("rayfl.figure", "draw runs the way papers do"),
    "export": ("rayfl.export", "write a client's trained model to a file"),
    "data": ("rayfl.data_command", "show a data set, or divide it among clients"),
    "doctor": ("rayfl.doctor", "say what is installed here, and what is missing"),
}
"""Command -> the module with its ``parser`` and ``main``, and what it does."""

SHELLS = ("bash", "zsh", "tcsh")


def overview() -> str:
    """Return the help of ``rayfl`` itself."""
    lines = [f"  {name:<12}{does}" for name, (_, does) in COMMANDS.items()]
    return "\n".join(
        (
            "usage: rayfl COMMAND [OPTIONS]",
            "",
            "Simulate personalised federated learning on Ray.",
            "",
            "commands:",
            *lines,
            f"  {'completion':<12}print completions for a shell: {', '.join(SHELLS)}",
            "",
            "  rayfl COMMAND --help lists the options of a command; rayfl --version says the version.",
            "  A first federation, on images of digits that come along: rayfl run --engine Inline --rounds 5",
        )
    )


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit code of the command; 2 where there is none of this name.
    """
    name, *others = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("--help", "-h"):
        tell(overview())
        return 0
    if name in ("--version", "-V"):
        tell(f"rayfl {rayfl.__version__}")
        return 0
    if name == "completion":
        return _completion(others)
    if name not in COMMANDS:
        known = (*COMMANDS, "completion")
        complain(f"rayfl: error: there is no command {name!r}{did_you_mean(name, known)} {_CHOOSE}")
        return 2
    code: int = import_module(COMMANDS[name][0]).main(others)
    return code


_CHOOSE = f"Choose one of {', '.join((*COMMANDS, 'completion'))}"


def _completion(given: list[str]) -> int:
    if len(given) != 1 or given[0] not in SHELLS:
        complain(f"rayfl: error: say for which shell: rayfl completion {'|'.join(SHELLS)}")
        return 2
    try:
        import shtab
    except ModuleNotFoundError:
        complain("rayfl: error: completions need the package shtab: pip install shtab")
        return 2
    import argparse

    made = argparse.ArgumentParser(prog="rayfl", add_help=False)
    made.add_argument("--help", "-h", action="help", help="say which commands there are")
    made.add_argument("--version", "-V", action="version", version=rayfl.__version__, help="say the version")
    commands = made.add_subparsers(metavar="COMMAND")
    for name, (module, does) in COMMANDS.items():
        parser = import_module(module).parser()
        commands._name_parser_map[name] = parser
        commands._choices_actions.append(commands._ChoicesPseudoAction(name, [], does))
    tell(shtab.complete(made, given[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
