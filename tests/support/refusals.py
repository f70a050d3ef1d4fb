"""What is refused, by the kind of the mistake and its place instead of by its sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rayfl.errors import UserError
from rayfl.system import error_report


@contextmanager
def refused(kind: type[UserError], place: object = "") -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect an error of exactly this kind and place.

    Args:
        kind: its class.
        place: a setting, client or class as the error names it; of a file, its path or the end of that, also
            as a pattern such as ``server-*.safetensors``.
    """
    with pytest.raises(kind) as caught:
        yield caught
    check(caught.value, kind, place)


@contextmanager
def told(kind: type[UserError], place: object = "") -> Iterator[None]:
    """Expect that a command tells of one error, of this kind and place; see :func:`refused`."""
    with pytest.MonkeyPatch.context() as patch:
        found = listen(patch)
        yield
    assert len(found) == 1, f"{len(found)} errors were told of"
    check(found[0], kind, place)


def listen(monkeypatch: pytest.MonkeyPatch) -> list[UserError]:
    """Return the errors that commands will tell of."""
    found: list[UserError] = []
    usual = error_report.report_error

    def refuse(error: UserError, cause: BaseException | None = None) -> int:
        found.append(error)
        return usual(error, cause)

    monkeypatch.setattr(error_report, "report_error", refuse)
    return found


def check(error: UserError, kind: type[UserError], place: object) -> None:
    """Assert kind and place of an error, as :func:`refused` takes them."""
    assert type(error) is kind, f"{type(error).__name__}, not {kind.__name__}: {error}"
    said, wanted = error.place, str(place)
    at = said == wanted or (wanted and Path(said).match(wanted))
    assert at, f"at {said!r}, not {wanted!r}: {error}"
