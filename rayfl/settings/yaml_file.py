"""Reads YAML files that may come from strangers, with bounds on their size and depth."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import yaml

from rayfl.errors import Damaged
from rayfl.system.files import explain_read_errors, open_file

MOST_BYTES = 1_000_000
"""Bytes of a file, or characters of an option's value; rayfl's own files have at most 20,000."""
DEEPEST = 50
"""Mappings and lists within each other; a complete configuration has six."""
MOST_VALUES = 100_000
"""Values of a file, including those that aliases repeat."""

_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class OutOfBounds(yaml.MarkedYAMLError):
    """YAML that is too large, too deep or endless; ``problem`` says which."""


class _Loader(_FAST):  # type: ignore[misc, valid-type]
    """Refuses duplicate names, of which YAML would silently drop one; reads dates as texts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = {name for name in names if name != "<<" and names.count(name) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(
                problem=f"{twice.pop()!r} is there twice", problem_mark=node.start_mark
            )
        return super().construct_mapping(node, deep)


# Options are texts, numbers, true, false, null, and lists and mappings of these.
_PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")
_Loader.yaml_constructors = {
    tag: make
    for tag, make in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in _PLAIN
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if not tag.endswith(":timestamp")]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Dumper(yaml.SafeDumper):
    """Quotes texts that this reader, or another one, would read as another type."""


# Numbers such as 1e-3 and 08, which YAML 1.1 reads as texts.
for name, pattern in {"float": r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$", "int": r"^[-+]?\d+$"}.items():
    for kind in (_Loader, _Dumper):
        kind.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(pattern), list("-+.0123456789"))


def _make_int(_: yaml.SafeLoader, node: yaml.ScalarNode) -> int | str:
    """Return a whole number: 010 is 10, not 8 as in YAML 1.1; and 1:30 is a text, not 90."""
    digits = str(node.value).replace("_", "")
    base = 0 if digits.lstrip("-+").startswith(("0x", "0b")) else 10
    return str(node.value) if ":" in digits else int(digits, base)


def _make_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float | str:
    return str(node.value) if ":" in node.value else loader.construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _make_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _make_float)


def yaml_text(content: Any) -> str:
    """Return content as YAML that reads back as the same content."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False)


def parse_yaml(text: str) -> Any:
    """Parse YAML within bounds.

    Raises:
        OutOfBounds: it is too large, too deep or endless.
        yaml.YAMLError: it is no YAML.
        ValueError, LookupError: a value does not match its tag.
    """
    check_bounds(text)
    return yaml.load(text, _Loader)


def check_bounds(text: str) -> None:
    """Refuse YAML that is too large, too deep, or endless by its aliases, without building its values.

    Raises:
        OutOfBounds: it is one of these.
        yaml.YAMLError: it is no YAML.
    """
    if len(text) > MOST_BYTES:
        raise OutOfBounds(problem=f"it has more than {MOST_BYTES:,} characters")
    sizes: dict[str, int | None] = {}  # anchor -> values that it names; None until its end
    open_ones: list[tuple[str | None, int]] = []
    found = 0
    for event in yaml.parse(text, Loader=_FAST):
        if isinstance(event, yaml.AliasEvent):
            size = sizes.get(str(event.anchor), 1)
            if size is None:
                raise _out_of_bounds(event, f"*{event.anchor} stands within what it names")
            found += size
        elif isinstance(event, yaml.CollectionStartEvent):
            found += 1
            open_ones.append((event.anchor, found))
            sizes |= {event.anchor: None} if event.anchor else {}
            if len(open_ones) > DEEPEST:
                raise _out_of_bounds(event, f"lists and mappings are nested more than {DEEPEST} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_ones.pop()
            sizes |= {anchor: found - before + 1} if anchor else {}
        elif isinstance(event, yaml.ScalarEvent):
            found += 1
            sizes |= {event.anchor: 1} if event.anchor else {}
        if found > MOST_VALUES:
            raise _out_of_bounds(event, f"it has more than {MOST_VALUES:,} values")


def _out_of_bounds(event: yaml.Event, problem: str) -> OutOfBounds:
    return OutOfBounds(problem=problem, problem_mark=cast(Any, event.start_mark))


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        UserError: it cannot be read, or is no YAML within bounds.
    """
    with explain_read_errors(path, "mend it"), open_file(path) as file:
        content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES // 1_000_000} MB")
        text = content.decode()
    try:
        return parse_yaml(text)
    except (yaml.YAMLError, ValueError, LookupError) as error:  # the latter two: value and tag do not match
        where = f" in line {m.line + 1}" if (m := getattr(error, "problem_mark", None)) else ""
        problem = getattr(error, "problem", None)
        raise Damaged(path, f"is not valid YAML{where}{f': {problem}' if problem else ''}") from error


def read_mapping(path: Path, what: str) -> dict[str, Any]:
    """Read a YAML file that is a mapping.

    Args:
        path: the file.
        what: what it should be, for the message.

    Returns:
        The content of the file; an empty mapping if it is empty or only has comments.
    """
    content = read_yaml(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise Damaged(
            path,
            f"is not a {what}: it must map names to values, as in 'rounds: 3', and holds a "
            f"{type(content).__name__}",
        )
    return content
