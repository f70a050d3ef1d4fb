"""What is refused, by the kind of the mistake and its place instead of by its sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rayfl.errors import UserError


@contextmanager
def refused(kind: type[UserError], place: object = "") -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect an error of exactly this kind and place.

    Args:
        kind: its class.
        place: a setting, client or class as the error names it; of a file, its path or the end of that.
    """
    with pytest.raises(kind) as caught:
        yield caught
    check(caught.value, kind, place)


def check(error: UserError, kind: type[UserError], place: object) -> None:
    """Assert kind and place of an error, as :func:`refused` takes them."""
    assert type(error) is kind, f"{type(error).__name__}, not {kind.__name__}: {error}"
    said, wanted = error.place, str(place)
    at = said == wanted or (wanted and Path(said).parts[-len(Path(wanted).parts) :] == Path(wanted).parts)
    assert at, f"at {said!r}, not {wanted!r}: {error}"
