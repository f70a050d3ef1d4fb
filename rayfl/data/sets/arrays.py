"""`Arrays`: data that a Python program has in its memory."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from rayfl.data.base import TestFrom
from rayfl.data.dataset import Dataset
from rayfl.data.partitions.partition import Partition
from rayfl.data.readers.samples import Form, SampleData, Samples, dataset_of
from rayfl.errors import Conflict, Missing
from rayfl.settings import above, at_least, below


class Arrays(SampleData):
    """Arrays or tensors of your own, from Python: images, vectors, series, token ids.

    With users, a client per user (or several) is the default partition. A run's configuration records
    ``sha256`` in the place of the arrays, so that it is resumed from Python, with the same arrays:
    ``rayfl.resumed(folder, data=Arrays(...))``.

    Args:
        x: inputs: uint8 [N, C, H, W], images; floats [N, ...], used as float32; whole numbers [N, ...],
            token ids.
        y: what is learned: classes [N], whole numbers or texts (those that are not 0, 1, 2, ... name their
            classes); floats [N] or [N, k], numbers; truth values [N, k], several labels; whole numbers
            [N, ...], classes of positions, -100 where none is asked for.
        x_test: inputs for testing, of the same form.
        y_test: their targets.
        x_val: inputs for validation, of the same form.
        y_val: their targets.
        users: the user of each sample [N], numbers or texts.
        users_test: the user of each test sample.
        users_val: the user of each validation sample.
        domains: the domain of each sample [N], numbers or texts.
        domains_test: the domain of each test sample.
        domains_val: the domain of each validation sample.
        names: names of the classes, for labels from 0; the labels by default. Of other targets, of outputs.
        task: ``classes``, ``numbers``, ``labels``, ``positions``, or the import path of a class of your own,
            see :class:`rayfl.data.task.Task`; by default as the targets say.
        test_fraction: if there is no x_test: the share of every user's samples, or of all samples, that is
            for testing; the same samples for every seed.
        mean: per channel, of images scaled to [0, 1]; 0 by default.
        std: per channel, of images scaled to [0, 1]; 1 by default.
        sha256: digest that the data must have.
        partition: how samples are divided among clients; IID by default, or by users.
        val_fraction: see Data.
        test_from: see Data; the test samples of ``x`` are its published ones where there is no x_test.
        test_share: see Data.
        test_by_class: see Data.
        seed: of the partition and the validation split; the run's seed if not given.
    """

    _unrecorded: ClassVar[tuple[str, ...]] = tuple(
        f"{key}{part}" for part in ("", "_test", "_val") for key in ("x", "y", "users", "domains")
    )

    def __init__(
        self,
        x: Any = None,
        y: Any = None,
        x_test: Any = None,
        y_test: Any = None,
        *,
        x_val: Any = None,
        y_val: Any = None,
        users: Any = None,
        users_test: Any = None,
        users_val: Any = None,
        domains: Any = None,
        domains_test: Any = None,
        domains_val: Any = None,
        names: Sequence[str] | None = None,
        task: str | None = None,
        test_fraction: Annotated[float, at_least(0), below(1)] = 0.2,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        sha256: str | None = None,
        partition: Partition | None = None,
        val_fraction: Annotated[float, at_least(0), below(1)] = 0.0,
        test_from: TestFrom = "published",
        test_share: Annotated[float, above(0), below(1)] | None = None,
        test_by_class: bool = False,
        seed: int | None = None,
    ) -> None:
        self.x, self.y, self.x_test, self.y_test = x, y, x_test, y_test
        self.x_val, self.y_val = x_val, y_val
        self.users, self.users_test, self.users_val = users, users_test, users_val
        self.domains, self.domains_test, self.domains_val = domains, domains_test, domains_val
        self.names, self.task, self.test_fraction = names, task, test_fraction
        self.mean, self.std, self.sha256 = mean, std, sha256
        self.partition, self.val_fraction, self.seed = partition, val_fraction, seed
        self.test_from, self.test_share, self.test_by_class = test_from, test_share, test_by_class
        self._dataset = None if x is None and y is None else self._make_dataset()
        if self._dataset is not None:
            self.sha256 = self._dataset.digest()
            if sha256 not in (None, self.sha256):
                raise Conflict("data.sha256", f"is {sha256}, but these arrays have the digest {self.sha256}")
        super().__post_init__()

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
        if self._dataset is None:
            raise Missing(
                "data",
                ": Arrays are given in Python: make Arrays(x, y, ...) there, and to go on with a run use "
                "rayfl.resumed(folder, data=Arrays(x, y, ...)) with the same; from files, use ArrayFiles",
            )
        return self._dataset
