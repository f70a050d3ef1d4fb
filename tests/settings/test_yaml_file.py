"""YAML is read within bounds, before its values are built."""

import pytest

from rayfl.settings.yaml_file import OutOfBounds, check_bounds

REPEATED = f"[&a [{'1,' * 9_999}]{', *a' * 8}, &b 1"


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        ("#" * 10**6, "#" * (10**6 + 1)),
        ("[" * 50 + "]" * 50, "[" * 51 + "]" * 51),
        (f"[{'1,' * 99_999}]", f"[{'1,' * 100_000}]"),
        (f"{REPEATED}{', *b' * 9_998}]", f"{REPEATED}{', *b' * 9_999}]"),
        ("[&a 1, *a, &a [*b]]", "[&a [&b [*a]]]"),
    ],
    ids=["characters", "depth", "values", "values of aliases", "itself"],
)
def test_what_is_too_large_or_endless_is_refused(within: str, beyond: str) -> None:
    check_bounds(within)
    with pytest.raises(OutOfBounds):
        check_bounds(beyond)
