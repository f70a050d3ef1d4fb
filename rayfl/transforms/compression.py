"""Changes that are sent in fewer bytes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch

from rayfl.training.client import Client
from rayfl.training.params import Params
from rayfl.training.state import State
from rayfl.transforms.base import Change, Transform


class Compression(Transform):
    """Base of the transforms that compress changes key by key.

    BatchNorm statistics, which are no parameters, are sent whole. What the server sends is not compressed.
    """

    error_feedback: bool = True
    """Whether clients keep what they did not send, and add it to their next change."""

    @abstractmethod
    def compress(self, change: Params, generator: torch.Generator) -> Params:
        """Return what the server gets of the trainable entries of a change.

        Args:
            change: of one upload key.
            generator: for what is drawn; one for all upload keys, so that no two have the same draws.
        """

    @abstractmethod
    def compressed_bytes(self, sent: Params) -> int:
        """Return the bytes of what ``compress`` has returned."""

    def at_client(
        self, change: Change, memory: State, client: Client, received: State
    ) -> tuple[Change, State, Mapping[str, float]]:
        """Send what is due in few bytes."""
        due = {key: each.trainable() for key, each in change.items()}
        due = {key: each + memory[key] if key in memory else each for key, each in due.items()}
        generator = client.generator(f"{self}")
        sent = {key: self.compress(each, generator) for key, each in due.items()}
        left = {key: due[key] - sent[key] for key in due} if self.error_feedback else {}
        return {key: each.merge(sent[key]) for key, each in change.items()}, {**memory, **left}, {}

    def upload_bytes(self, change: Change, sizes: Mapping[str, int]) -> dict[str, int]:
        """Count what is sent, unless the whole would be less."""
        found = dict(sizes)
        for key, each in change.items():
            trained = each.trainable()
            found[key] = min(sizes[key], each.nbytes - trained.nbytes + self.compressed_bytes(trained))
        return found
