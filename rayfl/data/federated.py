"""A data set divided among clients, with the figures that describe the division."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.data.dataset import SPLITS, TEST, TRAIN, ClientData, Clients, Dataset
from rayfl.data.readers.encoding import Encoding
from rayfl.data.task import Classes, named_task
from rayfl.errors import Conflict, Unknown
from rayfl.randomness import numpy_generator
from rayfl.settings.base import DisplayMixin
from rayfl.system.files import write_file
from rayfl.system.text import counted, one_line

EACH = 10_000
"""Of more clients the record of a division is a summary."""
LEAST_TEST = 2
"""Test samples that a client needs which never trains: a method may adapt to them."""
_ROWS, _COLUMNS = 24, 20  # of the printed label matrix
_LINE = 400  # characters of a remark that are printed; records have all


@dataclass(frozen=True, repr=False)
class FederatedData(DisplayMixin):
    """A data set and every client's share of it.

    Attributes:
        dataset: the data set.
        clients: the clients' data, in the order of client numbers.
        settings: how they were made: data set, partition, seed; plain JSON values.
        unseen: how many clients, the last ones, are only scored and never train.
        contents: what the data set holds, whatever the seed, see :meth:`rayfl.data.Data.contents`.
        encoding: how the columns of a table have become inputs.
        common: int64 [n], the samples of a test set that all clients have in common; mostly none.
    """

    dataset: Dataset
    clients: Sequence[ClientData]
    settings: Mapping[str, Any] = field(default_factory=dict)
    unseen: int = 0
    contents: Mapping[str, Any] = field(default_factory=dict)
    encoding: Encoding | None = None
    common: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @cached_property
    def held(self) -> Clients:
        """The clients' data as the few arrays that hold them."""
        return self.clients if isinstance(self.clients, Clients) else Clients(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    def _repr_line_(self) -> dict[str, Any]:
        samples = {split: sum(len(client.split(split)) for client in self.clients) for split in SPLITS}
        unseen = {"unseen": self.unseen} if self.unseen else {}
        learned: dict[str, Any] = {self.dataset.task.kind: self.dataset.outputs}
        return {"clients": len(self), **unseen, **samples, **learned}

    @property
    def sizes(self) -> list[int]:
        """How many training samples each client has that may train."""
        found: list[int] = self.counts("train")[: self.seen].tolist()
        return found

    @property
    def seen(self) -> int:
        """How many clients may train: the first ones."""
        return len(self.clients) - self.unseen

    def hold_out(self, domain: str) -> "FederatedData":
        """Return the data with the clients of a domain last, as unseen ones; the others keep their order."""
        names = self.dataset.domain_names
        if domain not in names:
            raise Unknown("unseen", f"is {domain!r}: the data have no such domain, only {', '.join(names)}")
        held = [self.held.matrix(self.dataset.domains, len(names), split) for split in SPLITS]
        has = np.sum(held, axis=0) > 0
        mine = has[:, names.index(domain)]
        if len(mixed := np.flatnonzero(mine & (has.sum(axis=1) > 1))):
            problem = f"is {domain!r}: client {mixed[0]} has samples of this domain and of others"
            raise Conflict("unseen", problem, "use a partition by domains, such as DomainPerClient")
        if mine.all() or not mine.any():
            whose = "all clients have" if mine.any() else "no client has"
            raise Conflict("unseen", f"is {domain!r}: {whose} this domain; use more clients or another")
        order = np.argsort(mine, kind="stable")
        return replace(self, clients=Clients(self.clients[i] for i in order), unseen=int(mine.sum()))

    def hold_out_drawn(self, wanted: int, seed: int) -> "FederatedData":
        """Return the data with drawn clients last, as unseen ones; the others keep their order.

        A remark says which they were. Clients with fewer than two test samples are not drawn.

        Args:
            wanted: how many clients.
            seed: decides which.
        """
        order = numpy_generator(seed, "unseen clients").permutation(len(self))
        drawn = np.sort(order[self.counts("test")[order] >= LEAST_TEST][:wanted])
        rest = np.setdiff1d(order, drawn)
        if len(drawn) < wanted or not self.counts("train")[rest].any():
            asks = f"asks for {wanted} of {len(self)} clients"
            needs = f"each needs {LEAST_TEST} test samples, and one with training samples must be left"
            raise Conflict("unseen_clients", asks, needs)
        clients = [self.clients[i] for i in (*rest, *drawn)]
        remark = (
            f"The numbers of clients are not those of the partition: the last {wanted} of {len(self)} "
            f"clients never train; in the partition they are {', '.join(map(str, drawn))}"
        )
        dataset = replace(self.dataset, remarks=(*self.dataset.remarks, remark))
        return replace(self, dataset=dataset, clients=Clients(clients), unseen=wanted)

    def with_common_test(self) -> "FederatedData":
        """Return the data with the data set's own test part as a test set for all clients.

        Raises:
            Conflict: there is no such part, or clients train or validate with samples of it.
        """
        common = self.dataset.indices(TEST)
        if not len(common):
            raise Conflict("common_test", "is true, and the data set has no test part", "leave it out")
        held = np.concatenate([self.held.indices[split] for split in ("train", "val")])
        if used := int(np.isin(common, held).sum()):
            problem = f"is true, and clients train or validate with {used:,} of its {len(common):,} samples"
            raise Conflict("common_test", problem, "set data.test_from to published or training")
        return replace(self, common=common)

    @property
    def test_splits(self) -> tuple[str, ...]:
        """On what models are tested: ``test`` and, if clients have a test set in common, ``common``."""
        return ("test", "common") if len(self.common) else ("test",)

    def label_matrix(self, split: str = "train") -> np.ndarray:
        """Return how many samples of each class each client has: int64 [clients, classes]."""
        return self.held.matrix(self.dataset.labels, self.dataset.classes, split)

    def subclass_matrix(self, split: str = "train") -> np.ndarray:
        """Return how many samples of each subclass each client has: int64 [clients, subclasses].

        The data set must have subclasses.
        """
        subclasses = self.dataset.subclasses
        assert subclasses is not None
        return self.held.matrix(subclasses, int(subclasses.max()) + 1, split)

    def counts(self, split: str) -> np.ndarray:
        """Return each client's number of samples in a split: int64 [clients].

        Args:
            split: ``train``, ``val``, ``test`` or ``common``.
        """
        return np.broadcast_to(len(self.common), len(self)) if split == "common" else self.held.counts(split)

    def skew(self) -> dict[str, float]:
        """Return figures of how uneven the training splits are; means are over clients that have some.

        Returns:
            ``label_distance``: mean over clients of the total variation distance (0 to 1) between the
            client's label distribution and that of all clients' samples together; ``label_entropy``: mean
            entropy of the clients' label distributions in bits, with ``pooled_label_entropy`` as its upper
            reference; ``classes_min``, ``classes_mean``, ``classes_max``: classes per client;
            ``samples_min``, ``samples_median``, ``samples_max``: training samples per client. For data sets
            with subclasses also ``subclass_distance``: the first figure for subclasses in place of labels.
        """
        matrix = self.label_matrix("train")
        some = matrix.any(axis=1)
        shares, pooled = _shares(matrix[some])
        classes, samples = (matrix > 0).sum(axis=1), matrix.sum(axis=1)
        figures = {
            "label_distance": _distance(matrix[some]),
            "label_entropy": float(_entropy(shares).mean()),
            "pooled_label_entropy": float(_entropy(pooled)),
            "classes_min": int(classes.min()),
            "classes_mean": float(classes[some].mean()),
            "classes_max": int(classes.max()),
            "samples_min": int(samples.min()),
            "samples_median": float(np.median(samples)),
            "samples_max": int(samples.max()),
        }
        if self.dataset.subclasses is not None:
            figures["subclass_distance"] = _distance(self.subclass_matrix("train")[some])
        return figures

    def describe(self) -> dict[str, Any]:
        """Return everything that is recorded about the division, as plain JSON values.

        Of more than ``EACH`` clients there is a summary: their ``count``; per split, and for the domain,
        ``[value, how many clients in a row]`` in the order of clients; all samples of each class; and the
        digest of the division.

        Each client has its number of samples of every class in ``labels``, and of every subclass in
        ``subclasses`` where the data set has them. Its ``sha256`` is that of its train, val and test indices,
        one after the other, as little-endian 64-bit integers. Where every user's samples are with one client,
        ``users`` names those of the client.
        """
        return {
            "settings": dict(self.settings),
            "pool": dict(self.contents),
            "shape": list(self.dataset.shape),
            "inputs": {
                "dtype": str(self.dataset.inputs.dtype),
                "mean": list(map(float, self.dataset.mean)),
                "std": list(map(float, self.dataset.std)),
                "largest": self.dataset.largest,
            },
            "strata": self.dataset.task.strata_name,
            "class_names": list(self.dataset.class_names),
            **self._describe_task(),
            **({"encoding": self.encoding.record()} if self.encoding else {}),
            "domain_names": list(self.dataset.domain_names),
            "skew": self.skew(),
            "clients": self._summary() if len(self) > EACH else self._each_client(),
            "unseen": self.unseen,
            **({"common_test": len(self.common)} if len(self.common) else {}),
            **({"remarks": remarks} if (remarks := [*self.remarks, *self.dataset.warnings]) else {}),
        }

    def _describe_task(self) -> dict[str, Any]:
        """Return what is learned, where it is not the labels' classes."""
        task, targets = self.dataset.task, self.dataset.targets
        if type(task) is Classes:
            return {}
        return {
            "task": {
                "class_path": f"{type(task).__module__}.{type(task).__qualname__}",
                "outputs": self.dataset.outputs,
                "targets": [targets.dtype.name, *targets.shape[1:]],
                "figure": asdict(task.figure),
            }
        }

    def _each_client(self) -> list[dict[str, Any]]:
        matrices = {"labels": {split: self.label_matrix(split) for split in SPLITS}}
        if self.dataset.subclasses is not None:
            matrices["subclasses"] = {split: self.subclass_matrix(split) for split in SPLITS}
        clients: list[dict[str, Any]] = [
            {
                "domain": s.domain,
                **{split: len(s.split(split)) for split in SPLITS},
                **{kind: {split: m[split][i].tolist() for split in SPLITS} for kind, m in matrices.items()},
                "sha256": hashlib.sha256(
                    b"".join(s.split(p).astype("<i8").tobytes() for p in SPLITS)
                ).hexdigest(),
            }
            for i, s in enumerate(self.clients)
        ]
        for client, users in zip(clients, self._users()):
            client["users"] = [self.dataset.user_names[user] for user in users]
        return clients

    def _summary(self) -> dict[str, Any]:
        labels = self.dataset.labels
        return {
            "count": len(self),
            **{split: _runs(self.counts(split)) for split in SPLITS},
            "domain": [[None if d < 0 else d, n] for d, n in _runs(self.held.domains)],
            "labels": {
                split: np.bincount(labels[self.held.indices[split]], minlength=self.dataset.classes).tolist()
                for split in SPLITS
            },
            "sha256": self.digest(),
        }

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> "FederatedData":
        """Return data of the recorded form without their inputs, to build nets and methods for them.

        Labels, classes, sizes and normalisation are those of the run; all inputs are 0, and take no memory.

        Args:
            record: what ``describe`` returned.
        """
        inputs, clients, labels, n = record["inputs"], [], [np.zeros(0, np.int64)], 0
        for client in record["clients"]:
            parts = {}
            for split in SPLITS:
                counts = client["labels"][split]
                labels.append(np.repeat(np.arange(len(counts)), counts))
                parts[split] = np.arange(n, n + len(labels[-1]))
                n += len(labels[-1])
            clients.append(ClientData(**parts, domain=client["domain"]))
        shape, dtype = tuple(record["shape"]), np.dtype(inputs["dtype"])
        fill = 0 if inputs["largest"] is None else inputs["largest"]
        learned: dict[str, Any] = {}
        if task := record.get("task"):
            kind, *inside = task["targets"]
            learned = {
                "targets": np.broadcast_to(np.zeros((1, *inside), kind), (n, *inside)),
                "target_names": tuple(map(str, range(task["outputs"]))),
                "task": named_task(task["class_path"]),
            }
        dataset = Dataset(
            inputs=np.broadcast_to(np.full((1, *shape), fill, dtype), (n, *shape)),
            labels=np.concatenate(labels),
            domains=np.zeros(n, np.int64),
            origin=np.full(n, TRAIN, np.uint8),
            class_names=tuple(record["class_names"]),
            domain_names=tuple(record["domain_names"]),
            mean=tuple(inputs["mean"]),
            std=tuple(inputs["std"]),
            **learned,
        )
        encoding = Encoding.from_record(found) if (found := record.get("encoding")) else None
        return FederatedData(dataset, Clients(clients), unseen=record["unseen"], encoding=encoding)

    @property
    def remarks(self) -> list[str]:
        """What a run's user has to know of the data and their division, a line each; the record has it."""
        counts = [len(users) for users in self._users()]
        together = f"{sum(counts)} users are put together into {counted(len(counts), 'client')}"
        merged = [f"{together}, up to {max(counts)} in one"] if max(counts, default=1) > 1 else []
        in_common = [f"{count:,} {split}" for split, count in self.shared.items() if count]
        common = [f"Samples that several clients have: {', '.join(in_common)}"] if in_common else []
        return [*self.dataset.remarks, *merged, *common]

    @property
    def shared(self) -> dict[str, int]:
        """How many samples of each split several clients have."""
        return {name: int((np.bincount(held) > 1).sum()) for name, held in self.held.indices.items()}

    def _users(self) -> list[np.ndarray]:
        """Return the numbers of every client's users; nothing where clients share some, or there are none."""
        if self.dataset.users is None:
            return []
        pairs = [
            (np.repeat(np.arange(len(self)), self.counts(split)), self.dataset.users[indices])
            for split, indices in self.held.indices.items()
        ]
        clients, users = np.unique(np.concatenate(pairs, axis=1), axis=1)  # in the order of clients
        if len(np.unique(users)) < len(users):
            return []
        return np.split(users, np.searchsorted(clients, np.arange(1, len(self))))

    def digest(self) -> str:
        """Return what tells these data and their division from others, as a SHA-256.

        It is of the digest of the data set, and of every client's indices and labels.
        """
        found = hashlib.sha256(str(self.contents.get("sha256")).encode())
        parts = []
        for split, indices in self.held.indices.items():
            arrays = (indices.astype("<i8"), self.dataset.labels[indices].astype("<i8"))
            parts.append((split, self.held.ends[split].tolist(), *(a.view(np.uint8) for a in arrays)))
        for client in range(len(self)):
            for split, ends, indices, labels in parts:
                start, end = ends[client], ends[client + 1]
                found.update(f"{end - start} {split};".encode())
                found.update(indices[8 * start : 8 * end])
                found.update(labels[8 * start : 8 * end])
        return found.hexdigest()

    def write_indices(self, path: str | Path) -> None:
        """Write a file that :class:`rayfl.data.FromFile` reads: JSON of every client's indices.

        ``{"dataset": {"name": ..., "sha256": ...}, "clients": [{"train": [...], "val": [...], "test": [...]},
        ...]}``, where indices count the samples of the data set, of whatever split, from 0. Where clients
        share samples, ``shares`` says which: ``test`` or ``all``.
        """
        clients = [{split: s.split(split).tolist() for split in SPLITS} for s in self.clients]
        content: dict[str, Any] = {"clients": clients}
        fitted = np.concatenate([self.held.indices[split] for split in ("train", "val")])
        if (np.bincount(fitted) > 1).any():
            content["shares"] = "all"
        elif self.shared["test"]:
            content["shares"] = "test"
        if "sha256" in self.contents:
            name = self.settings.get("data", {}).get("name")
            content = {"dataset": {"name": name, "sha256": self.contents["sha256"]}} | content
        write_file(Path(path).expanduser(), json.dumps(content) + "\n")

    def table(self) -> str:
        """Return the label matrix of the training splits and the skew figures as text, cut to size.

        Of many clients the first and the last are shown; of many classes each client's three largest.
        """
        n = len(self.clients)
        shown = list(range(n)) if n <= _ROWS else [*range(_ROWS - 4), *range(n - 4, n)]
        columns = [["client", *map(str, shown)]]
        if len(self.dataset.domain_names) > 1:
            domains = [self.clients[i].domain for i in shown]
            names = [*map(one_line, self.dataset.domain_names), "-"]
            columns.append(["domain", *(names[-1 if domain is None else domain] for domain in domains)])
        for split in SPLITS:
            columns.append([split, *map(str, self.counts(split)[shown])])
        columns += self._label_columns(shown)
        lines = ["  ".join(cells).rstrip() for cells in zip(*map(_aligned, columns))]
        if n > _ROWS:
            lines.insert(_ROWS - 3, f"... {n - _ROWS} more clients ...")
        skew, kinds = self.skew(), self.dataset.task.strata_name
        lines.append(
            f"label skew: distance from the pooled labels {skew['label_distance']:.3f} (0 none, 1 all), "
            f"entropy {skew['label_entropy']:.2f} of {skew['pooled_label_entropy']:.2f} bits"
        )
        if (apart := skew.get("subclass_distance")) is not None:
            lines.append(f"subclass skew: distance from the pooled subclasses {apart:.3f}")
        lines.append(
            f"per client: {skew['classes_min']} to {skew['classes_max']} {kinds}, {skew['samples_min']} to "
            f"{skew['samples_max']} training samples (median {skew['samples_median']:g})"
        )
        remarks = [one_line(remark) for remark in self.remarks]
        return "\n".join(lines + [text if len(text) <= _LINE else text[:_LINE] + " ..." for text in remarks])

    def _label_columns(self, shown: list[int]) -> list[list[str]]:
        """Return a column per class, or one that names each client's largest classes where there are many."""
        matrix = self.label_matrix("train")[shown]
        names = [one_line(name) for name in self.dataset.class_names]
        held = [self.dataset.task.strata_name, *map(str, (matrix > 0).sum(axis=1))]
        if len(names) <= _COLUMNS:
            return [held, *([name[:7], *(str(k or ".") for k in row)] for name, row in zip(names, matrix.T))]
        order = np.argsort(-matrix, axis=1, kind="stable")[:, :3]
        words = [", ".join(f"{names[c]} {row[c]}" for c in top if row[c]) for row, top in zip(matrix, order)]
        return [held, [f"largest {self.dataset.task.strata_name}", *words]]


def _runs(values: np.ndarray) -> list[list[int]]:
    """Return each value with how often it comes in a row."""
    return [[value, len(list(group))] for value, group in groupby(values.tolist())]


def _shares(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distribution of each row of counts, and that of all rows together."""
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    return shares, matrix.sum(axis=0) / max(matrix.sum(), 1)


def _distance(matrix: np.ndarray) -> float:
    """Return the mean total variation distance between the rows' distributions and the pooled one."""
    shares, pooled = _shares(matrix)
    return float(0.5 * np.abs(shares - pooled).sum(axis=1).mean())


def _entropy(shares: np.ndarray) -> np.ndarray:
    """Return the entropy in bits over the last axis."""
    return -(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(axis=-1)


def _aligned(column: list[str]) -> list[str]:
    """Return the cells with equal width: numbers to the right, words to the left."""
    width = max(map(len, column))
    numbers = all(cell.isdigit() or cell == "." for cell in column[1:])
    return [cell.rjust(width) if numbers else cell.ljust(width) for cell in column]
