"""Names and texts from anywhere, made safe for where people read them."""

import difflib
import logging
import re
import sys
import unicodedata
from collections.abc import Iterable
from fnmatch import fnmatchcase

_ACTED_ON = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # categories of Unicode that control a terminal, or are invisible
_JOINERS = "\u200c\u200d"  # invisible, but parts of words and of emoji


def is_hidden(character: str) -> bool:
    """Return whether a character controls a terminal, such as escape, or is invisible."""
    return unicodedata.category(character) in _ACTED_ON and character not in _JOINERS


def escape_hidden(text: str, kept: str = "\n\t") -> str:
    r"""Return a text with escapes such as ``\x1b`` in place of hidden characters.

    Args:
        text: the text.
        kept: hidden characters that stay.
    """
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if is_hidden(c) and c not in kept else c for c in text)


def one_line(text: str) -> str:
    r"""Return a text with escapes for line ends, too: for names within other text."""
    return escape_hidden(text, kept="")


def indent_message(text: str) -> str:
    """Return a message with its further lines indented, so that none looks like a message of its own."""
    return escape_hidden(text).replace("\n", "\n  ")


def short_repr(value: object) -> str:
    """Return a value for a message, in one short line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # its __repr__ fails
        text = f"an object of class {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:60]}...{text[-15:]}"


def counted(count: float, thing: str) -> str:
    """Return a number of things, such as ``1 round``, ``2 rounds`` or ``0.5 GPUs``."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{number} {thing}{'' if count == 1 else 's'}"


OTHER_NAMES = {
    **dict.fromkeys(("personalised", "personalized"), ("personal", "protocol.view personal")),
    **dict.fromkeys(("generalised", "generalized"), ("global", "protocol.view global")),
    **dict.fromkeys(("join_ratio", "fraction_fit", "fraction_train"), ("participation",)),
    **dict.fromkeys(("num_clients", "num_supernodes"), ("clients",)),
    **dict.fromkeys(("global_rounds", "num_rounds", "global_epoch"), ("rounds",)),
    **dict.fromkeys(("max_test_accuracy", "best_accuracy"), ("best_test", "protocol.choose best_test")),
    **dict.fromkeys(("local_epochs", "local_epoch"), ("training.epochs",)),
    **dict.fromkeys(("local_learning_rate", "learning_rate"), ("training.lr",)),
    **dict.fromkeys(("fedavgft", "fedavg_ft"), ("FedAvg --finetune.epochs 1 --protocol.view finetuned",)),
    **{f"fed{rule}": (f"FedOpt --method.rule {rule}",) for rule in ("adam", "yogi", "adagrad")},
    **{"fedavgm": ("FedOpt --method.rule momentum",), "fedavg_dbe": ("FedDBE",)},
    **{"algorithm": ("method",), "dataset": ("data",), "eval_gap": ("eval_every",), "model": ("net",)},
}
"""What other simulators call something -> what rayfl calls it, as a value or as an option."""


def fits_pattern(name: str, pattern: str) -> bool:
    """Return whether a dotted name, or its end after a dot, is as a pattern with ``*`` and ``?`` says."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def did_you_mean(wrong: str, known: Iterable[str], before: str = "") -> str:
    """Return the end of a sentence about a wrong name: a suggestion, if a known name is close to it.

    Args:
        wrong: the wrong name.
        known: the known names.
        before: a prefix of all these names.
    """
    lower = {name.lower(): name for name in known}
    same = closest_name(wrong.lower(), lower, 0.9)
    for ours in OTHER_NAMES.get(re.sub("[-+ ]", "_", wrong.lower()), ()) if same is None else ():
        for meant in (ours, ours.rpartition(".")[2]):  # within training, training.lr is lr
            if meant.partition(" ")[0].partition(".")[0].lower() in lower:
                return f"; did you mean {before}{meant}?"
    near = closest_name(wrong.lower(), lower)
    return f"; did you mean {before}{lower[near]}?" if near is not None else "."


def closest_name(wrong: str, known: Iterable[str], alike: float = 0.6) -> str | None:
    """Return the known name that is closest to a wrong one, None if none is close.

    Args:
        wrong: the wrong name.
        known: the known names.
        alike: the similarity, from 0 to 1, at which a name is close.
    """
    return next(iter(difflib.get_close_matches(wrong, list(known), 1, alike)), None)


def print_note(text: object) -> None:
    """Print on standard output, without delay even if that is a pipe."""
    print(escape_hidden(str(text)), flush=True)


def complain(text: str) -> None:
    """Print a message on standard error."""
    print(indent_message(text), file=sys.stderr)


def warn(text: str) -> None:
    """Warn, by the logger ``rayfl``: see :mod:`rayfl.system.log`."""
    logging.getLogger("rayfl").warning("%s", text)


def csv_cell(value: object) -> object:
    """Return a value as a cell of a CSV file: a text that a spreadsheet would run as a formula has a ' first.

    Numbers stay as they are, also as texts, such as ``-0.5``.
    """
    if not isinstance(value, str) or not value.lstrip().startswith(("=", "+", "-", "@")):
        return value
    try:
        float(value)
    except ValueError:
        return "'" + value
    return value


def escape_markdown(text: str) -> str:
    """Return a text as Markdown that shows it as it is: no HTML, links, images or further cells."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", text)


_LATEX = str.maketrans(
    {
        **{character: "\\" + character for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': "''",
        **{character: f"{{{character}}}" for character in "[]*"},  # which change the end of the row above
        "±": r"$\pm$",
        "–": "--",
    }
)


def escape_latex(text: str) -> str:
    """Return a text as LaTeX that shows it as it is: no commands, formulas or further cells."""
    return one_line(text).translate(_LATEX)
