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
    assert type(caught.value) is kind
    said, wanted = caught.value.place, str(place)
    assert said == wanted or (wanted and Path(said).parts[-len(Path(wanted).parts) :] == Path(wanted).parts)
