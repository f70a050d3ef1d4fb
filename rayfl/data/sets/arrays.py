"""`Arrays`: data that a Python program has in its memory."""

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

from rayfl.data.dataset import Dataset
from rayfl.data.readers.samples import Form, SampleData, Samples, dataset_of
from rayfl.errors import Conflict, Missing


class Arrays(SampleData):
    """Arrays or tensors of your own, from Python: images, vectors, series, token ids.

    With users, a client per user (or several) is the default partition. A run's configuration records
    ``sha256`` in the place of the arrays, so that it is resumed from Python, with the same arrays:
    ``rayfl.resumed(folder, data=Arrays(...))``. Without x_test the test samples of x are the published ones
    of ``test_from``.
    """

    _unrecorded: ClassVar[tuple[str, ...]] = tuple(
        f"{key}{part}" for part in ("", "_test", "_val") for key in ("x", "y", "users", "domains")
    )

    x: Any = field(default=None, kw_only=False)
    """Inputs: uint8 [N, C, H, W], images; floats [N, ...], used as float32; whole numbers [N, ...], token
    ids.
    """
    y: Any = field(default=None, kw_only=False)
    """What is learned: classes [N], whole numbers or texts (those that are not 0, 1, 2, ... name their
    classes); floats [N] or [N, k], numbers; truth values [N, k], several labels; whole numbers [N, ...],
    classes of positions, -100 where none is asked for.
    """
    x_test: Any = field(default=None, kw_only=False)
    """Inputs for testing, of the same form."""
    y_test: Any = field(default=None, kw_only=False)
    """Their targets."""
    x_val: Any = None
    """Inputs for validation, of the same form."""
    y_val: Any = None
    """Their targets."""
    users: Any = None
    """The user of each sample [N], numbers or texts."""
    users_test: Any = None
    """The user of each test sample."""
    users_val: Any = None
    """The user of each validation sample."""
    domains: Any = None
    """The domain of each sample [N], numbers or texts."""
    domains_test: Any = None
    """The domain of each test sample."""
    domains_val: Any = None
    """The domain of each validation sample."""
    mean: Sequence[float] | None = None
    """Per channel, of images scaled to [0, 1]; 0 by default."""
    std: Sequence[float] | None = None
    """Per channel, of images scaled to [0, 1]; 1 by default."""
    sha256: str | None = None
    """Digest that the data must have."""

    def __post_init__(self) -> None:
        super().__post_init__()
        made = vars(self)["_dataset"] = None if self.x is None and self.y is None else self._make_dataset()
        if made is not None:
            found = made.digest()
            if self.sha256 not in (None, found):
                raise Conflict("data.sha256", f"is {self.sha256}, but these arrays have the digest {found}")
            vars(self)["sha256"] = found

    def _make_dataset(self) -> Dataset:
        form = Form("Arrays", self.names, self.test_fraction, self.mean, self.std, task=self.task)
        train = Samples(self.x, self.y, self.users, self.domains)
        return dataset_of(train, self._part("test"), form, self._part("val"))

    def _part(self, name: str) -> Samples | None:
        """Return the samples for testing or for validation, where they are given."""
        given = [getattr(self, f"{key}_{name}") for key in ("x", "y", "users", "domains")]
        return None if all(value is None for value in given) else Samples(*given)

    def load(self) -> Dataset:
        """Return the arrays."""
        made: Dataset | None = vars(self)["_dataset"]
        if made is None:
            again = (
                "resume the run by rayfl.resumed(folder, data=Arrays(x, y, ...)); from files, use ArrayFiles"
            )
            raise Missing("data", ": Arrays are given in Python", again)
        return made
