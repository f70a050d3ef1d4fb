"""The command ``rayfl``, which ``python -m rayfl`` is, too: ``rayfl run``, ``rayfl table`` and the others.

Nothing is imported before the command is known: ``rayfl --help`` answers at once.
"""

import signal
import sys
from importlib import import_module

import rayfl
from rayfl.errors import Missing, Unknown
from rayfl.system.error_report import exit_code
from rayfl.system.text import complain, did_you_mean, print_note

COMMANDS = {
    "run": ("rayfl.commands.run", "run one federation, or go on with one"),
    "table": ("rayfl.commands.table", "run a table of experiments, such as one of a paper"),
    "tune": ("rayfl.commands.tune", "search settings with Ray Tune"),
    "report": ("rayfl.commands.report", "compare runs in a table, also with a paper's"),
    "figure": ("rayfl.commands.figure", "draw runs the way papers do"),
    "runs": ("rayfl.commands.runs", "list runs: their figures, and how far they have got"),
    "diff": ("rayfl.commands.diff", "say in what two runs differ"),
    "export": ("rayfl.commands.export", "write a client's trained model to a file"),
    "data": ("rayfl.commands.data", "show a data set, or divide it among clients"),
    "doctor": ("rayfl.commands.doctor", "say what is installed here, and what is missing"),
}
"""Command -> the module with its ``parser`` and ``main``, and what it does."""

SHELLS = ("bash", "zsh", "tcsh")
COMPLETION = """\
Print completions for a shell. They need the package shtab: pip install shtab.
For bash, write this into ~/.bashrc: eval "$(rayfl completion bash)"
For zsh and tcsh, the first lines that are printed say where to put them."""
"""What its help says."""

FILES = ("RUN", "RUN_FOLDER", "FILE", "SPACE", "FOLDER", "DIR", "PATH", "OUTPUT")
"""What the help calls values that are files or folders."""


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
        The exit code of the command; 2 where there is none of this name; 130 after Ctrl-C.
    """
    name, *others = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in COMMANDS:
        try:
            command = import_module(COMMANDS[name][0])
        except KeyboardInterrupt:  # PyTorch takes seconds to import
            complain("rayfl: interrupted")
            return 128 + signal.SIGINT
        code: int = command.main(others)
        return code
    return exit_code(lambda: _said(name, others))


def _said(name: str, others: list[str]) -> int:
    """Print what needs no command; return the exit code."""
    if name in ("--help", "-h"):
        print_note(overview())
        return 0
    if name in ("--version", "-V"):
        print_note(f"rayfl {rayfl.__version__}")
        return 0
    if name == "completion":
        return _completion(others)
    known = (*COMMANDS, "completion")
    hint = f"{did_you_mean(name, known)} Choose one of {', '.join(known)}"
    raise Unknown("command", f"{name!r} is unknown{hint}")


def _completion(given: list[str]) -> int:
    if given in (["--help"], ["-h"]):
        print_note(f"usage: rayfl completion {'|'.join(SHELLS)}\n\n{COMPLETION}")
        return 0
    if len(given) != 1 or given[0] not in SHELLS:
        raise Missing("completion", f"needs the name of a shell: rayfl completion {'|'.join(SHELLS)}")
    try:
        import shtab
    except ModuleNotFoundError:
        raise Missing("shtab", "is a package that completions need", "pip install shtab") from None
    import argparse

    from rayfl.commands.command_line import Parser, argument_kind, value_words

    def completed(parser: argparse.ArgumentParser) -> None:
        """Say which words and files the values of options may be."""
        if isinstance(parser, Parser):
            parser.with_settings()
        for action in parser._actions:
            if isinstance(action.choices, dict):  # subcommands
                for one in action.choices.values():
                    completed(one)
            elif words := value_words(argument_kind(action)):
                action.choices = words
            elif action.metavar in FILES or action.dest in ("config", "output"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]

    made = argparse.ArgumentParser(prog="rayfl", add_help=False)
    made.add_argument("--help", "-h", action="help", help="say which commands there are")
    made.add_argument("--version", "-V", action="version", version=rayfl.__version__, help="say the version")
    commands = made.add_subparsers(metavar="COMMAND")
    for name, (module, does) in COMMANDS.items():
        parser = import_module(module).parser()
        completed(parser)
        commands._name_parser_map[name] = parser
        commands._choices_actions.append(commands._ChoicesPseudoAction(name, [], does))
    this = commands.add_parser("completion", help="print completions for a shell")
    this.add_argument("shell", choices=SHELLS)
    print_note(shtab.complete(made, given[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
