"""`Data`: what all data sets have in common, from loading to every client's checked data."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from rayfl.data.dataset import TRAIN, UNUSED, VAL, ClientData, Clients, Dataset, check_finite
from rayfl.data.federated import FederatedData
from rayfl.data.partitions.by_user import ByUser
from rayfl.data.partitions.iid import IID
from rayfl.data.partitions.partition import Partition, check_samples, round_shares, settings_of
from rayfl.errors import BadCode, BadData, Conflict
from rayfl.randomness import numpy_generator
from rayfl.settings import Settings, above, at_least, below
from rayfl.system.own_code import is_own
from rayfl.system.text import warn

TestFrom = Literal["published", "pooled", "training"]
_TEST_SHARE = 0.25  # PFLlib's
_DIVIDED_AS = {"pooled": (TRAIN, TRAIN, TRAIN, UNUSED), "training": (TRAIN, VAL, UNUSED, UNUSED)}
"""Where clients' test data come from -> as what partitions see each part of the published division."""
_USERS = "the clients are the users that the data name; data.partition divides them otherwise"
_DIVIDED = {"pooled": "all samples together", "training": "the training samples alone"}


class Data(Settings, ABC, place="data"):
    """A data set and how it is divided among clients.

    Examples:
        >>> import numpy as np
        >>> from rayfl.data import Arrays
        >>> x, y = np.zeros((60, 4)), np.arange(60) % 2
        >>> Arrays(x=x, y=y, users=np.arange(60) % 3).federate(clients=None, seed=0)
        FederatedData(clients=3, train=48, val=0, test=12, classes=2)
    """

    _natural: ClassVar[type[Partition]] = IID
    """The partition that is used if none is given."""

    partition: Partition | None = None
    """How samples are divided among clients; each data set has its own default, mostly IID."""
    val_fraction: Annotated[float, at_least(0), below(1)] = 0.0
    """Fraction of every client's training samples that becomes its validation split, in addition to the
    validation samples that a data set may bring.
    """
    test_from: TestFrom = "published"
    """Where clients' test samples come from. ``published``: the data set's own test part is divided, too.
    ``pooled``: all parts together are divided, and then each client's own samples are split. ``training``:
    the training part alone is divided and split so, and nobody gets the test part.
    """
    test_share: Annotated[float, above(0), below(1)] | None = None
    """With ``pooled`` and ``training``, the share of each client's samples that is for testing; 0.25 if not
    given.
    """
    test_by_class: bool = False
    """Whether the test samples are the same share of each of a client's classes, instead of a random part."""
    seed: int | None = None
    """Seed of the partition and of the test and validation splits; the run's seed if not given."""

    def __post_init__(self) -> None:
        vars(self)["_unnamed"] = self.partition is None
        vars(self)["partition"] = self._partition  # so that it is recorded, as if it had been given
        given = [f"data.{name}" for name in ("test_share", "test_by_class") if getattr(self, name)]
        if self.test_from != "published":
            vars(self)["test_share"] = self.test_share or _TEST_SHARE
        elif given:
            remedy = "leave it out or give null, or set data.test_from to pooled or training"
            raise Conflict(given[0], "is given, and the test samples are the published ones", remedy)
        who = self if self.divides_itself else self._partition
        if self.test_from != "published" and (self.divides_itself or self._partition.decides_test):
            why = "says itself what is for testing, or lets clients share samples"
            raise Conflict("data.test_from", f"is {self.test_from}, and {who} {why}", "use published")

    @property
    def divides_itself(self) -> bool:
        """Whether other divisions than the data set's own would be wrong, as where samples go together."""
        return False

    @property
    def _partition(self) -> Partition:
        return self.default_partition() if self.partition is None else self.partition

    def default_partition(self) -> Partition:
        """Return the partition that is used if none is given."""
        return self._natural()

    @abstractmethod
    def load(self) -> Dataset:
        """Read or make the data set."""

    def divide(self, dataset: Dataset, seed: int) -> Dataset:
        """Return the dataset with the division into parts that belongs to a seed.

        Most data sets come divided: they have one division, whatever the seed.
        """
        return dataset

    def published_sizes(self) -> Mapping[str, int]:
        """Return how many samples each domain has in the published data set; empty where nobody knows.

        They are those that ``load`` puts into the dataset, used or not.
        """
        return {}

    def contents(self, dataset: Dataset) -> dict[str, Any]:
        """Return what is recorded of the data set itself, the same for every seed of the run.

        Args:
            dataset: what ``load`` has returned.

        Returns:
            ``sha256``, the digest of the dataset with the division of seed 0; ``images``, the number of
            samples in each domain; and ``published``, see ``published_sizes``.
        """
        return {
            "sha256": self.divide(dataset, 0).digest(),
            "images": dataset.sizes(),
            "published": dict(self.published_sizes()),
        }

    def settings(self) -> dict[str, Any]:
        """Return the class name and the constructor's arguments, but for those that say where files lie."""
        arguments = settings_of(
            self, leave_out=("root", "verify", "download", "cache", "partition", *self._unrecorded)
        )
        return arguments | {"partition": self._partition.settings()}

    def encode(self, data: FederatedData) -> FederatedData:
        """Return the data with inputs that go by what clients have for training; most go by nothing of it."""
        return data

    def federate(self, clients: int | None, seed: int) -> FederatedData:
        """Load the data set and divide it.

        Args:
            clients: number of clients, at least 1; None for the partition's own.
            seed: the run's seed; the data set's own wins where it was given.
        """
        seed = seed if self.seed is None else self.seed
        loaded = self.load()
        name = type(self).__name__
        if is_own(type(self)):  # rayfl's readers have looked already
            check_finite(name, "inputs", loaded.inputs)
        for warning in loaded.warnings:
            warn(warning)
        if vars(self).get("_unnamed") and loaded.users is not None and type(self._partition) is IID:
            vars(self)["partition"] = ByUser()  # recorded, too
            loaded = replace(loaded, remarks=(*loaded.remarks, _USERS))
        dataset = divided = self.divide(loaded, seed)
        if share := self.test_share:
            origin = np.array(_DIVIDED_AS[self.test_from], np.uint8)[dataset.origin]
            divided = replace(dataset, origin=origin)
            dataset = replace(dataset, remarks=(*dataset.remarks, self._remark(share)))
        size = len(divided.indices(TRAIN))
        if not size:
            raise BadData(name, "has no training samples: there is nothing to learn from")
        if clients is None:
            clients = self._partition.default_clients(divided)
        if clients > size:
            raise Conflict("clients", f"is {clients}, and {name} has {size} training samples", "use fewer")
        contents = self.contents(loaded)
        self._partition.check(contents)
        clients_data = self._partition.assign(divided, clients, numpy_generator(seed, "partition"))
        if is_own(type(self._partition)):
            try:
                if len(clients_data) != clients:
                    raise ValueError(f"there are {len(clients_data)} clients, not {clients}")
                check_samples(clients_data, len(dataset), self._partition.may_share)
            except ValueError as error:
                raise BadCode(f"{type(self._partition).__name__}.assign", f"is wrong: {error}") from None
        if share:
            clients_data = [
                hold_out_test(dataset, each, share, self.test_by_class, numpy_generator(seed, "test", client))
                for client, each in enumerate(clients_data)
            ]
        if self.val_fraction:
            if any(len(client_data.train) == 1 for client_data in clients_data):
                problem = f"is {self.val_fraction:g}, and a client has a single training sample"
                raise Conflict("data.val_fraction", problem, "use fewer clients or a more even partition")
            clients_data = [
                carve(dataset, each, self.val_fraction, numpy_generator(seed, "validation", client))
                for client, each in enumerate(clients_data)
            ]
        self._check(clients_data)
        settings = {"data": self.settings(), "clients": clients, "seed": seed}
        return self.encode(FederatedData(dataset, Clients(clients_data), settings, contents=contents))

    def _remark(self, share: float) -> str:
        """Return where the test samples come from, in words."""
        how = "the same share of each class" if self.test_by_class else "drawn at random"
        text = f"test samples are {100 * share:g} % of each client's own samples, {how}"
        return f"The clients divide {_DIVIDED[self.test_from]}, and {text}"

    def _check(self, clients_data: Sequence[ClientData]) -> None:
        """Warn of clients that cannot train or cannot be tested; refuse if all are such."""
        option = ", ".join(f"{k}={v}" for k, v in self._partition.settings().items() if k != "name")
        what = f"with the partition {type(self._partition).__name__}({option}) of {type(self).__name__}"
        trains, tested = (np.array([len(c.split(s)) > 0 for c in clients_data]) for s in ("train", "test"))
        for part, some in (("training", trains), ("test", trains & tested)):
            if not some.any():
                raise BadData("data.partition", f": no client has {part} samples {what}")
        without = (("training", ~trains, "takes no step"), ("test", trains & ~tested, "trains"))
        for part, lacks, does in without:
            if lacks.any():
                such = f"client {lacks.argmax()} ({lacks.sum()} such clients of {len(lacks)})"
                warn(f"{such} has no {part} samples {what}: it {does}, and is left out of the means")


def carve(dataset: Dataset, client_data: ClientData, fraction: float, rng: np.random.Generator) -> ClientData:
    """Return data with a fraction of the training samples in the validation split.

    It is the same fraction of each class if possible.

    The number moved is the nearest whole number, but at least one and never all; see ``split_by_class``.
    """
    n = len(client_data.train)
    size = min(max(round(fraction * n), 1), n - 1)
    if size < 1:
        return client_data
    train, val = split_by_class(dataset, client_data.train, size, rng)
    return replace(client_data, train=np.sort(train), val=np.sort(np.concatenate([client_data.val, val])))


def hold_out_test(
    dataset: Dataset, client_data: ClientData, share: float, alike: bool, rng: np.random.Generator
) -> ClientData:
    """Return data with a part of the training samples in the test split.

    Of n samples, share * n are moved, rounded up as scikit-learn does it for PFLlib, but never all. PFLlib
    shuffles them by a generator that all clients draw from in turn; here each client has its own.

    Args:
        dataset: the data set.
        client_data: the client's.
        share: of the samples, above 0 and below 1.
        alike: whether it is the same share of each class, if possible.
        rng: source of randomness.
    """
    n = len(client_data.train)
    size = min(math.ceil(round(share * n, 9)), n - 1)  # rounded, because 0.07 * 100 is above 7
    if size < 1:
        return client_data
    if alike:
        train, test = split_by_class(dataset, client_data.train, size, rng)
    else:
        test, train = np.split(rng.permutation(client_data.train), [size])
    return replace(client_data, train=np.sort(train), test=np.sort(np.concatenate([client_data.test, test])))


def split_by_class(
    dataset: Dataset, indices: np.ndarray, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return a random part without ``size`` of the indices, and these, the same share of each class.

    Classes get their numbers by largest remainders.
    """
    n = len(indices)
    shuffled = rng.permutation(indices)
    labels = dataset.labels[shuffled]
    counts = np.bincount(labels, minlength=dataset.classes)
    take = round_shares(counts * size / n, size)
    order = np.argsort(labels, kind="stable")
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = rank < take[labels]
    return shuffled[~chosen], shuffled[chosen]
