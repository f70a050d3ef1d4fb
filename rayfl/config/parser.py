"""Configurations: from command lines and YAML files to federations, by one parser."""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
from argparse import SUPPRESS, Action
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import yaml
from jsonargparse import ActionConfigFile, ArgumentError, ArgumentParser, Namespace
from jsonargparse._typehints import ActionTypeHint

from rayfl.arguments import arguments_of, expected, fits
from rayfl.config.declared import check_kind
from rayfl.config.help import Parser, names_of, words_of
from rayfl.config.table_file import COMPONENTS, expand, find_data
from rayfl.data import Data
from rayfl.errors import BadValue, Conflict, Missing, Unknown, UserError, own_fault
from rayfl.evaluation.result import read_config
from rayfl.federation import Federation
from rayfl.files import refuse_links
from rayfl.imports import guard_parsers, refusal
from rayfl.record.description import RESUMABLE, class_name, differing
from rayfl.record.folder import check_is
from rayfl.settings import class_names, own_classes
from rayfl.shown import closest, did_you_mean
from rayfl.yaml_file import OutOfBounds, check_bounds, read_mapping

CHOICES = {"method", "net", "protocol", "training.optimiser", "training.schedule"}
"""Options that name a class whose options are forgotten where another class is named: one name has another
meaning and default there. Those of data sets and engines mean the same in all of them, and stay.
"""


class _ConfigFile(ActionConfigFile):
    """``--config``: a look into the file comes first, because the parser's own messages do not name it."""

    blank = False  # whether a file may be without any settings

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        """Take the settings of a file."""
        path = _home(values)
        settings = read_mapping(path, "configuration")
        check_kind(path, settings, "configuration")
        files = [name for name in settings.keys() & _groups(parser) if isinstance(settings[name], str)]
        for name in files:
            settings[name] = read_mapping(path.parent / _home(settings[name]), f"file with options of {name}")
        _check_names(parser, path, settings)
        _check_classes(path, settings)
        for name in CHOICES:
            above, _, last = name.rpartition(".")
            inside = settings.get(above)
            for key, place in ((name, settings), (last, inside if isinstance(inside, dict) else {})):
                if key in place:
                    _forget(cfg, name, place[key])
        if settings:
            nested = _nested(path, settings, _groups(parser))
            for name, kind in arguments_of(Federation).items():
                if name in nested:  # the parser would stumble over null
                    _check_value(name, nested[name], kind)
            super().__call__(parser, cfg, yaml.safe_dump(nested), option_string)
        elif not self.blank:
            raise Missing(path, "has no settings")


class _Choice(ActionTypeHint):
    """An option that names a class: with another one, the options of the class before it are forgotten.

    The parser keeps those that both classes have, even defaults: a protocol would get those of another.
    """

    named = False  # whether the command line has named a class
    early = ""  # an option that it has given before

    def __call__(self, *arguments: Any, **others: Any) -> Any:
        """Take a value."""
        _, cfg, value, option = arguments
        if option == f"--{self.dest}":
            if self.early:
                raise Conflict(self.early, f"stands before {option} {value}: name the class first")
            _forget(cfg, self.dest, value)
            self.named = True
        elif not self.named:
            self.early = option
        return super().__call__(*arguments, **others)


def _forget(cfg: Namespace, name: str, value: Any) -> None:
    """Forget the class that an option has named, and its options, unless the same is named again."""
    before = cfg.get(name)
    path = class_name(value.get("class_path") if isinstance(value, dict) else value)
    known = str(before["class_path"]) if isinstance(before, Namespace) and "class_path" in before else ""
    if known.rpartition(".")[2] != str(path).rpartition(".")[2]:
        cfg[name] = None


def _home(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # ~name, and there is nobody of this name
        return Path(path)


def _groups(made: ArgumentParser) -> set[str]:
    """Return the options that map names to values, such as ``training``, and may name a file that does."""
    return {name for group in made._action_groups if (name := getattr(group, "dest", None))}


def _read_files(made: ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """Return a command line with the content of files in the place of their names, as in --training FILE."""
    groups = {f"--{name}" for name in _groups(made)}
    read: list[str] = []
    for argument in arguments:
        option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        option = option or (read[-1] if read else "an argument")
        if option in ("--method", "--method.of", "--method.help") and class_name(value) != value:
            value = class_name(value)
            argument = f"{option}={value}" if equals else value
        try:
            value.encode()
            check_bounds(value)
        except UnicodeError as error:
            raise BadValue(option, f": {value!a} is not valid UTF-8") from error
        except OutOfBounds as error:
            raise BadValue(option, f": its value cannot be used: {error.problem}") from error
        except yaml.YAMLError:
            pass  # a text
        if option in groups and value:
            options = _group(option, value)
            where = option if _is_mapping(value) else _home(value)
            _check_names(made, where, {option[2:]: options})
            value = json.dumps(_nested(where, options, (), f"{option[2:]}."))
            argument = f"{option}={value}" if equals else value
        read.append(argument)
    return read


def _is_mapping(value: str) -> bool:
    """Say whether the value of a group is meant to be a mapping, and no file's name."""
    return value.lstrip().startswith("{")


def _group(option: str, value: str) -> dict[str, Any]:
    """Return what a group is given, as a mapping or in a file."""
    if not _is_mapping(value):
        if not _home(value).exists():
            raise BadValue(option[2:], f"is {value!r}: give a YAML file that is there, or single options")
        return read_mapping(_home(value), f"file with options of {option[2:]}")
    try:
        content = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise BadValue(option[2:], f"is {value!r}, which is not valid YAML") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise BadValue(option[2:], f"is {value!r}: it must map names to values")
    return content


def _nested(
    path: Path | str, settings: dict[str, Any], groups: Collection[str] = (), whole: str = ""
) -> dict[str, Any]:
    """Return a file's settings with nests for dotted names, such as ``method.mu`` beside ``method``.

    Args:
        path: the file, or the option in its place, for messages.
        settings: the settings; or those of a class or group in it, in which names may be dotted, too.
        groups: names of which the values are groups.
        whole: what stands before names in messages, such as ``training.``.
    """
    nest: dict[str, Any] = {}
    for name, value in sorted(settings.items(), key=lambda setting: setting[0].count(".")):
        place = nest
        *above, last = name.split(".")
        for part in above:
            if isinstance(place.get(part), str):
                place[part] = {"class_path": place[part]}
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise Conflict(f"{whole}{name}", f"is an option of {part}, which is {place!r}").within(path)
            if "class_path" in place:
                place = place.setdefault("init_args", {})
        if last in ("method", "of", "class_path"):
            value = class_name(value)
        if last in place:
            raise Conflict(f"{whole}{name}", "is there twice").within(path)
        inner = isinstance(value, dict) and ("class_path" in value or last == "init_args" or last in groups)
        if inner and all(isinstance(key, str) for key in value):
            value = _nested(path, value, (), whole if last == "init_args" else f"{whole}{name}.")
        place[last] = value
    return nest


def _check_names(made: ArgumentParser, path: Path | str, settings: dict[str, Any]) -> None:
    """Refuse names in a configuration file that are no options, as far as the parser knows all of them."""
    options = [action.dest for action in made._actions if not action.dest.endswith(".help")]
    groups = {option.partition(".")[0] for option in options if "." in option}
    for name, value in settings.items():
        if name in groups and not isinstance(value, dict):
            raise BadValue(name, f"must map options to values, and is {value!r}").within(path)
        inside = name in groups and isinstance(value, dict)
        for key in [f"{name}.{inner}" for inner in value] if inside else [str(name)]:
            head = key.partition(".")[0]
            if any(key.startswith(f"{choice}.") for choice in CHOICES):
                continue  # an option of a class
            if key not in options and (head in groups or head not in options):
                raise _no_option(made, key, options).within(path)


def _check_classes(path: Path, settings: dict[str, Any], above: str = "") -> None:
    """Refuse mappings that should name a class and its arguments, and do not."""
    for name, value in settings.items():
        key = f"{above}{name}"
        for each in value if isinstance(value, list) else [value]:  # nets may be several
            if not isinstance(each, dict):
                continue
            if not isinstance(each.get("class_path", ""), str):
                raise BadValue(f"{key}.class_path", "must be the name of a class").within(path)
            inner = each.get("init_args", {} if "class_path" in each else each)
            if not isinstance(inner, dict):
                raise BadValue(f"{key}.init_args", "must map arguments to values").within(path)
            beside = [other for other in each if other not in ("class_path", "init_args", "dict_kwargs")]
            if "class_path" in each and beside:
                raise Conflict(key, f"has {beside[0]} beside class_path: put it below init_args").within(path)
            _check_classes(path, inner, f"{key}.")


@cache  # it takes longer to make one than to use it, and tables and sweeps use it for every cell and point
def parser(blank: bool = False) -> ArgumentParser:
    """Return the parser of ``rayfl.run``: the arguments of ``Federation``, ``--config`` and ``--resume``.

    Args:
        blank: whether files of ``--config`` may be without any settings; that of a run has all of them.
    """
    guard_parsers()
    made = Parser(
        prog="rayfl run",
        usage="rayfl run [OPTIONS]",
        description="Run a personalised federation: a method on data split over clients.",
        epilog="Examples: `rayfl run` runs the default; `--method FedCO2 --method.mu 0.5` chooses "
        "a method and an option of it. Methods, data sets, partitions, nets, engines and protocols have "
        "options of their own: `--method.help FedCO2`, `--data.help CIFAR10`, `--data.partition.help "
        "Dirichlet`, `--net.help FDSEAlexNet`, `--training.optimiser.help Adam`, "
        "`--engine.help Ray` and `--protocol.help FDSE` list them.",
    )
    config = made.add_argument(
        "--config",
        action=_ConfigFile,
        help="YAML file with any of the options below; or a table of experiments, of which --row ROW and "
        "--column COLUMN choose a cell.",
    )
    config.blank = blank
    made.add_argument(
        "--resume",
        type=str | None,
        default=None,
        metavar="RUN_FOLDER",
        help="Go on with a run that was stopped; of the other options only "
        f"{', '.join(RESUMABLE)} may be given.",
    )
    made.add_class_arguments(Federation)
    for action in (a for a in made._actions if a.dest in ("training", "finetune")):
        action.help = f"YAML file with options of {action.dest}."
    for action in made._actions:
        if action.dest in CHOICES:
            action.__class__ = _Choice
        if action.dest == "print_config":
            action.metavar = "[=skip_default]"
            action.help = "Print all options as YAML, as --config reads them, and run nothing; with "
            action.help += "=skip_default only those that differ from their defaults."
        if action.dest == "cell" or action.dest.endswith(".help"):  # tables give it; the text below tells
            action.help = SUPPRESS
    net = next(a for a in made._actions if a.dest == "net")
    net.option_strings = ["--net"]  # and no --net+, which would add a net to the default one
    del made._option_string_actions["--net+"]
    made.set_defaults(
        {
            "method": {"class_path": "rayfl.methods.FedBN"},
            "data": {"class_path": "rayfl.data.EmbeddedDigits"},
            "net": {"class_path": "rayfl.nets.CNNB"},
            "engine": {"class_path": "rayfl.engine.Ray"},
            "protocol": {"class_path": "rayfl.evaluation.Default"},
            "training.optimiser": {"class_path": "rayfl.training.SGD"},
            "training.schedule": {"class_path": "rayfl.training.Constant"},
        }
    )
    return made


def federation_from(arguments: list[str]) -> Federation:
    """Build the federation that a command line asks for."""
    made = parser(blank=True)
    arguments = expand(arguments)
    config = _parse(made, arguments)
    if config.resume is None:
        return _build(made, find_data(config))
    given = _parse(made, arguments, defaults=False)
    given.pop("resume")
    names = {
        re.sub(r"\.(class_path|init_args)\b.*", "", k) for k, value in given.items() if value is not None
    }
    if odd := sorted(name for name in names if name.partition(".")[0] not in (*RESUMABLE, "cell")):
        odd = ["config"] if "config" in odd else odd  # which has given the others
        wrong = ", ".join(f"--{key}" for key in odd)
        told = f"takes everything but {', '.join(RESUMABLE)} from the run folder; remove {wrong}"
        raise Conflict("--resume", told)
    return resumed(config.resume, arguments)


def resumed(folder: str | Path, arguments: list[str] | None = None, data: Data | None = None) -> Federation:
    """Build the federation of a run folder, to go on where its last checkpoint is.

    Args:
        folder: the run folder.
        arguments: command-line options among ``RESUMABLE`` that take the place of the recorded ones.
        data: the same data again, where the run's configuration cannot hold them: ``rayfl.data.Arrays``.
    """
    path = Path(folder) / "config.yaml"
    check_is(path.parent, "run", path.name)
    refuse_links(path.parent)
    read_config(path.parent)  # refuses what the parser would stumble over
    made = parser()
    try:
        config = _parse(made, ["--config", str(path), *(arguments or [])])
    except UserError as error:
        raise error.within(f"the configuration {path} cannot be used") from error
    federation = _build(made, config)
    told = "--cell" in (arguments or ())  # by the table, which knows how many rounds its file has
    if (
        federation.cell
        and not told
        and federation.rounds != read_mapping(path, "configuration").get("rounds")
    ):
        others = [text for text in federation.cell.changed if not text.startswith("rounds=")]
        federation.cell = replace(federation.cell, changed=[*others, f"rounds={federation.rounds}"])
    if data is not None:
        federation = _with_data(federation, data, path)
    return federation.resume(folder)


def _with_data(federation: Federation, data: Data, path: Path) -> Federation:
    """Return a federation with data that must be those of its configuration."""
    given = copy(federation)
    given.data = data
    if other := differing(federation.deciding(), given.deciding()):
        raise Conflict(path, f"is of a run with other data: {', '.join(other)} differ")
    return given


def _build(made: ArgumentParser, config: Namespace) -> Federation:
    try:
        built = made.instantiate(config)
    except UserError:
        raise
    except Exception as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise own_fault(error) or explain(made, error) from error
    arguments = inspect.signature(Federation).parameters
    return Federation(**{a: getattr(built, a) for a in arguments})


def _parse(made: ArgumentParser, arguments: list[str], defaults: bool = True) -> Namespace:
    for action in made._actions:
        if isinstance(action, _Choice):
            action.named, action.early = False, ""
    try:
        config = made.parse_args(_read_files(made, arguments), defaults=defaults)
    except OSError as error:
        if error.filename is None:
            raise
        raise Missing(error.filename, f"cannot be read: {error.strerror}") from error
    except (ArgumentError, TypeError, ValueError, LookupError) as error:
        raise own_fault(error) or _too_early(arguments) or explain(made, error) from error
    if defaults:
        _check_null(Federation, config, "")
    return config


def _check_null(cls: type, config: Namespace, above: str) -> None:
    """Refuse ``null`` where it is of no use; the parser lets it pass in classes and in files."""
    for name, kind in arguments_of(cls).items():
        if name not in config:
            continue
        value, where = config[name], f"{above}{name}"
        _check_value(where, value, kind)
        if isinstance(value, Namespace) and "class_path" in value:
            inner = pkgutil.resolve_name(value["class_path"])
            _check_null(inner, value.get("init_args") or Namespace(), f"{where}.")
        elif isinstance(value, Namespace) and is_dataclass(kind) and isinstance(kind, type):
            _check_null(kind, value, f"{where}.")


def _check_value(where: str, value: Any, kind: Any) -> None:
    if value is None and not fits(None, kind):
        raise BadValue(where, "is null: it needs a value; leave it out for its default")


def _too_early(arguments: Sequence[str]) -> Conflict | None:
    """Say which option of a class stands before the class; None if there is none."""
    given = [argument.partition("=")[0].removeprefix("--") for argument in arguments]
    for i, option in enumerate(given):
        for above in COMPONENTS:
            if option.startswith(f"{above}.") and above in given[i:] and above not in given[:i]:
                later = given.index(above)
                value = arguments[later].partition("=")[2] or "".join(arguments[later + 1 : later + 2])
                return Conflict(f"--{option}", f"stands before --{above} {value}: name the class first")
    return None


def explain(made: ArgumentParser, error: BaseException) -> UserError:
    """Return what is wrong with a command line, and what would be right, as an error of one line.

    Args:
        made: the parser.
        error: what it has raised.
    """
    where, kind, path, cause = _place(made, error)
    text = str(cause).partition("\n")[0]
    known = [name for each in (kind, *get_args(kind)) for name in class_names(each)]
    cls = path.rpartition(".")[2]
    _, no_class, name = text.partition("Expected a dot import path string: ")
    _, no_value, value = text.partition(". Got value: ")
    if isinstance(cause, ModuleNotFoundError):
        also = "run, table and tune also look in the current folder"
        return Missing(where, f": {text}. Set PYTHONPATH to the folder that has it; {also}")
    if text.startswith("Importing '"):  # is not allowed
        denied = text.split("'")[1]
        return BadValue(where, f"is {refusal(denied)}")
    if path and (found := re.match(r"Option '(.*?)'|unrecognized arguments: --([^.=]+)", text)):
        wrong, options = found[1] or found[2], arguments_of(pkgutil.resolve_name(path))
        return Unknown(f"{where}.{wrong}", f"is no option of {cls}{_hint(wrong, options)}")
    if nested := re.search(r"Got value: NestedArg\(key='([\w.]+)'", text):
        return _no_option(made, f"{where}.{nested[1]}", [a.dest for a in made._actions], "--")
    if text.startswith("unrecognized arguments: --"):
        wrong = text.removeprefix("unrecognized arguments: --").partition(" ")[0]
        of_runs = "--seeds" in made._option_string_actions  # tables and sweeps take them, too
        parsers = [made, parser()] if of_runs else [made]
        known = [o.lstrip("-") for each in parsers for a in each._actions for o in a.option_strings]
        return _no_option(parsers[-1], wrong, known, "--")
    if text.startswith("unrecognized arguments: "):
        return _no_place(made, text.removeprefix("unrecognized arguments: ").partition(" ")[0])
    if found := re.match(r"argument (--[\w.]+)(?:/\S+)?: expected ", text):
        lacks = "needs more values" if text.endswith(" arguments") else "has no value"
        option = _without_value(made, found[1])
        above = [a for a in _actions(made) if f"--{a.dest}.help" == option]
        known = names_of(getattr(above[0], "_typehint", None)) if above else []
        listed = _hint("", known) if known else ""
        return Missing(option, f"{lacks}: write {option} {_value(made, option)}{listed}")
    if made._subcommands_action is not None:
        commands = list(made._subcommands_action.choices)
        if found := re.match(r'expected "(\w+)" to be one of ', text):
            return Missing(found[1], f"must be given: one of {', '.join(commands)} (--help explains them)")
        if found := re.match(r"argument (\w+): invalid choice: '(.*)' \(choose from ", text):
            hint = f"{did_you_mean(found[2], commands)} Choose one of {', '.join(commands)}"
            return Unknown(found[1].lower(), f"'{found[2]}' is unknown{hint}")
    if text.startswith("the following arguments are required: ") and (path or not where):
        names = text.partition(": ")[2].split(", ")
        first, *others = [f"--{where}.{name}" if where else _spoken(made, name) for name in names]
        also = "".join(f"and {other} " for other in others)
        why = f": {cls} needs it" if where else " (--help explains all arguments)"
        return Missing(first, f"{also}must be given{why}")
    if no_class and known:
        own = "" if where in ("engine", "protocol") else ", or the import path of your own"
        return Unknown(where, f"{name!r} is unknown{_hint(name, known)}{own}")
    if no_class:
        return BadValue(where, f"is {name!r}: it must be a mapping")
    if no_value and kind is not None:
        wanted = "a name" if known else expected(kind).removesuffix(" or None")
        text = f"is {'null' if value == 'None' else value}: it must be {wanted}"
    elif where:
        text = f": {text}"
    if abstract := re.match(r"Expected an instantiatable class, but (?:.*\.)?(\w+) is abstract", str(cause)):
        text = f"names no class that can be used: {abstract[1]} is abstract"
    hint = f"; give --{where} NAME, then its options{_hint('', known)}" if known else ""
    return BadValue(where, f"{text}{hint}")


def _place(made: ArgumentParser, error: BaseException) -> tuple[str, Any, str, BaseException]:
    """Follow an error of the parser to its cause, which tells of one option.

    Returns:
        The option, its type, the class that is named for it, as far as there are such; and the cause.
    """
    keys: list[str] = []
    kinds, path = {action.dest: getattr(action, "_typehint", None) for action in _actions(made)}, ""
    while True:
        key = re.match(r'(?:Parser key "|--)([\w.]+?)(?:"|\.help):', str(error))
        named = re.match(r"Problem with given class_path '(.+)':", str(error))
        if key and path:
            kinds, path = arguments_of(pkgutil.resolve_name(path)), ""
            keys.append(key[1])
        elif key:
            keys[-1:] = [key[1]]  # wrapped, and said twice
        elif named:
            path = named[1]
        if error.__cause__ is None:
            return ".".join(keys), kinds.get(keys[-1]) if keys else None, path, error
        error = error.__cause__


def _actions(made: ArgumentParser) -> list[Action]:
    """Return the arguments of a parser, and of its subcommands."""
    inner = made._subcommands_action.choices.values() if made._subcommands_action else ()
    return [action for each in (made, *inner) for action in each._actions]


def _spoken(made: ArgumentParser, name: str) -> str:
    """Return what a command line calls an argument, of a subcommand, too."""
    above, _, last = name.rpartition(".")
    inner = [a.choices[above] for a in made._actions if isinstance(a.choices, dict) and above in a.choices]
    (action,) = [a for a in (*inner, made)[0]._actions if a.dest == last]
    return str((*action.option_strings, action.metavar or last)[0])


def _without_value(made: ArgumentParser, option: str) -> str:
    """Return the option that has no value; the parser itself names the outermost, as for --method.mu."""
    given = getattr(made, "given", ())
    alone = [one for one, following in zip(given, [*given[1:], "--"]) if following.startswith("--")]
    return next((one for one in alone if one.startswith(f"{option}.")), option)


def _value(made: ArgumentParser, option: str) -> str:
    """Return an example of the value of an option, or what stands for it."""
    action = next((a for a in _actions(made) if option in a.option_strings), None)
    if action is None:  # an option of a class
        return "NAME" if option.endswith(".help") or option[2:] in COMPONENTS else "VALUE"
    if words := words_of(action):
        return "NAME" if names_of(getattr(action, "_typehint", None)) else words[0]
    shown = action.metavar or "VALUE"
    return shown if isinstance(shown, str) else " ".join(shown)


def _no_place(made: ArgumentParser, value: str) -> Unknown:
    """Say that a value stands behind no option, and which option it may have been meant for."""
    if value.startswith("-"):
        return Unknown(value, "is no option. --help lists all")
    own = [a for a in made._actions if a.option_strings and not a.dest.endswith(".help")]
    meant = [a.option_strings[0] for a in own if value in words_of(a)]
    if value.endswith((".yaml", ".yml")) and any(a.dest == "config" for a in made._actions):
        meant = ["--config"]
    does = f"write {meant[0]} {value}" if meant else "each option takes one value; --help lists all options"
    return Unknown(value, f"belongs to no option: {does}")


def _longer(made: ArgumentParser, wrong: str) -> list[str]:
    """Return options whose last part is a name: of the parser itself, and of the classes that it may name."""
    last = wrong.replace("-", "_").lower()
    options = {a.dest: getattr(a, "_typehint", None) for a in made._actions if not a.dest.endswith(".help")}
    waiting, found = [*options.items()], []
    bases: list[Any] = []  # each once: wrappers take methods, too
    for option, kind in waiting:
        if "." in option and option.rpartition(".")[2].lower() == last and option not in found:
            found.append(option)
        for base in (kind, *get_args(kind)):
            classes = [] if base in bases else own_classes(base)
            bases += [base] if classes else []
            for cls in classes:
                waiting += [(f"{option}.{name}", inner) for name, inner in arguments_of(cls).items()]
    return found


def _no_option(made: ArgumentParser, wrong: str, options: list[str], prefix: str = "") -> Unknown:
    """Say that there is no such option, and which one may have been meant."""
    group, dot, name = wrong.rpartition(".")
    options = [option for option in options if not option.endswith(".help")]
    if siblings := [option[len(group) + 1 :] for option in options if dot and option.startswith(f"{group}.")]:
        return Unknown(f"{prefix}{wrong}", f"is no option{_hint(name, siblings, f'{prefix}{group}.')}")
    # A slip of the finger comes before a short form: --metric is --metrics, and not --method.metric.
    slip = closest(wrong.lower(), options, 0.9)
    if longer := [] if dot or slip else _longer(made, wrong):
        near = f"; did you mean {' or '.join(prefix + each for each in longer[:3])}?"
    else:
        near = did_you_mean(wrong, options, prefix)
    return Unknown(f"{prefix}{wrong}" or "an empty name", f"is no option{near} --help lists all")


def _hint(wrong: str, known: Collection[str], before: str = "") -> str:
    choices = f" Choose one of {', '.join(sorted(known, key=str.lower))}" if known else " It has none"
    return did_you_mean(wrong, known, before) + choices
