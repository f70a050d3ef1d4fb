"""Configurations: from objects to YAML and back, by one command-line parser."""

from __future__ import annotations

import difflib
import inspect
import re
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace, set_parsing_settings

from rayfl.errors import UserError
from rayfl.experiments import expand

if TYPE_CHECKING:
    from rayfl.federation import Federation

RESUMABLE = ("rounds", "engine", "checkpoint_every", "quiet", "tensorboard")
"""What may change when a run is resumed; anything else would make it another run."""


def dump(federation: Federation) -> str:
    """Return a federation's complete configuration as YAML, which ``rayfl.run --config`` takes."""
    arguments = [a for a in inspect.signature(type(federation)).parameters if a != "output"]
    return yaml.safe_dump({a: _plain(getattr(federation, a)) for a in arguments}, sort_keys=False)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    cls = type(value)
    arguments = {}
    for name in inspect.signature(cls).parameters:
        if not hasattr(value, name):
            raise UserError(
                f"{cls.__name__} does not keep its argument {name!r}: write self.{name} = {name} in its "
                "__init__, so that the run's configuration can be recorded"
            )
        arguments[name] = _plain(getattr(value, name))
    described: dict[str, Any] = {"class_path": f"{cls.__module__}.{cls.__qualname__}"}
    return described | ({"init_args": arguments} if arguments else {})


def parser() -> ArgumentParser:
    """Return the parser of ``rayfl.run``: the arguments of ``Federation``, ``--config`` and ``--resume``."""
    from rayfl.federation import Federation

    set_parsing_settings(import_path_denylist=[])  # from here on jsonargparse's own list is enforced
    made = ArgumentParser(
        prog="python -m rayfl.run",
        allow_abbrev=False,
        description="Run a personalised federation: a method on data split over clients.",
        epilog="Examples: `python -m rayfl.run` runs the default; `--method FedCO2 --method.mu 0.5` chooses "
        "a method and an option of it; `--method.help FedCO2` lists its options.",
    )
    made.add_argument(
        "--config",
        action="config",
        help="YAML file with any of the options below; or a table of experiments, of which --row ROW and "
        "--column COLUMN choose a cell.",
    )
    made.add_argument(
        "--resume",
        type=str | None,
        default=None,
        metavar="RUN_FOLDER",
        help="Go on with a run that was stopped; of the other options only "
        f"{', '.join(RESUMABLE)} may be given.",
    )
    made.add_class_arguments(Federation)
    made.exit_on_error = False
    made.set_defaults(
        {
            "method": {"class_path": "rayfl.methods.FedBN"},
            "data": {"class_path": "rayfl.data.EmbeddedDigits"},
            "engine": {"class_path": "rayfl.engine.Ray"},
        }
    )
    return made


def federation_from(arguments: list[str]) -> Federation:
    """Build the federation that a command line asks for.

    Raises:
        UserError: a value is impossible, or the folder to resume is not a run.
    """
    made = parser()
    arguments = expand(arguments)
    config = _parse(made, arguments)
    if config.resume is None:
        return _build(made, config)
    given = _parse(made, arguments, defaults=False)
    given.pop("resume")
    odd = sorted({key.split(".")[0] for key, value in given.items() if value is not None} - {*RESUMABLE})
    if odd:
        raise UserError(
            f"--resume takes everything but {', '.join(RESUMABLE)} from the run folder; remove "
            f"{', '.join('--' + key for key in odd)}"
        )
    return resumed(config.resume, arguments)


def resumed(folder: str | Path, arguments: list[str] | None = None) -> Federation:
    """Build the federation of a run folder, to go on where its last checkpoint is.

    Args:
        folder: the run folder.
        arguments: command-line options among ``RESUMABLE`` that take the place of the recorded ones.

    Raises:
        UserError: there is no such run, or its configuration cannot be read.
    """
    path = Path(folder) / "config.yaml"
    if not path.is_file():
        raise UserError(f"{folder} cannot be resumed: it is not a run folder (it has no config.yaml)")
    made = parser()
    try:
        config = _parse(made, ["--config", str(path), *(arguments or [])])
    except UserError as error:
        raise UserError(f"the configuration {path} cannot be used: {error}") from error
    federation = _build(made, config)
    federation.output = str(folder)
    federation._resumes = True
    return federation


def _build(made: ArgumentParser, config: Namespace) -> Federation:
    from rayfl.federation import Federation

    try:
        built = made.instantiate(config)
    except UserError:
        raise
    except Exception as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise UserError(_explain(made, str(error))) from error
    arguments = inspect.signature(Federation).parameters
    return Federation(**{a: getattr(built, a) for a in arguments})


def _parse(made: ArgumentParser, arguments: list[str], defaults: bool = True) -> Namespace:
    try:
        return made.parse_args(arguments, defaults=defaults)
    except (ArgumentError, TypeError, ValueError) as error:
        raise UserError(_explain(made, str(error))) from error


def _explain(made: ArgumentParser, text: str) -> str:
    """Return a parser's message in one line, with the names that would have been right."""
    keys = re.findall(r'Parser key "([^"]+)"', text)
    where = ".".join(keys)
    if found := re.search(r"Expected a dot import path string: (\S+)", text):
        known = _known_classes(keys[-1] if keys else "")
        return (
            f"there is no {where} {found[1]!r}{_hint(found[1], known)}; or the import path of your own class"
        )
    if found := re.search(r"Importing '([^']+)' is not allowed", text):
        return (
            f"{where} is {found[1]!r}, which no configuration may name: it is of the parts of Python that "
            "run programs or reach files and networks"
        )
    if found := re.search(r"unrecognized arguments: (--\S+)", text):
        options = [o for action in made._actions for o in action.option_strings]
        return f"there is no option {found[1]}{_hint(found[1], options, listed=False)} (--help lists all)"
    if found := re.search(r"class_path '([^']+)'.*Option '([^']+)' is not accepted", text, re.DOTALL):
        name = found[1].rsplit(".", 1)[-1]
        return f"{where} {name} has no option {found[2]!r}: --{where}.help {name} lists what it has"
    lines = [line.strip(" -") for line in text.splitlines()]
    noise = ("Does not validate", "Subtypes:", "Errors:", "Given value", "Expected a <class 'NoneType'>")
    kept = [x for x in lines if x and not x.startswith((*noise, "Parser key", "Problem with"))]
    return ": ".join([*([where] if where else []), *(kept or lines)])


def _known_classes(key: str) -> list[str]:
    from rayfl import data, engine, methods

    bases = {
        "method": (methods, methods.Method),
        "data": (data, data.Data),
        "partition": (data, data.Partition),
        "engine": (engine, engine.Engine),
    }
    if key not in bases:
        return []
    module, base = bases[key]
    named = [(name, getattr(module, name)) for name in module.__all__]
    return [name for name, c in named if isinstance(c, type) and issubclass(c, base) and c is not base]


def _hint(wrong: str, known: list[str], listed: bool = True) -> str:
    close = {k.lower(): k for k in known}
    near = difflib.get_close_matches(wrong.lower(), close, n=1)
    hint = f"; did you mean {close[near[0]]}?" if near else ""
    return hint + (f" Choose one of {', '.join(sorted(known, key=str.lower))}" if known and listed else "")
