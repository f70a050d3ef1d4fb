"""Top-k sparsification."""

from __future__ import annotations

import math
from typing import Annotated

import torch

from rayfl.settings import above, at_most
from rayfl.training.params import Params
from rayfl.transforms.compression import Compression

INDEX = 4
"""Bytes of a place among a net's entries."""


class TopK(Compression):
    """Clients upload the largest entries of their change alone (Aji and Heafield, EMNLP 2017; Stich,
    Cordonnier and Jaggi, NeurIPS 2018).

    Of the trainable entries of an upload key, the share with the largest magnitudes is sent, as values and
    places. The rest is kept, and added to the client's next change (error feedback).

    Deviation from the papers: they compress gradients or single steps; here it is the change by a whole
    local update.
    """

    share: Annotated[float, above(0), at_most(1)] = 0.1
    """Share of the entries that is sent, at least one."""

    def compress(self, change: Params, generator: torch.Generator) -> Params:
        """Return the entries of largest magnitude, and zeros for the others."""
        flat = torch.cat([t.reshape(-1) for t in change.values()]) if len(change) else torch.zeros(0)
        places = flat.abs().topk(self._kept_count(change), sorted=False).indices
        kept = torch.zeros_like(flat).scatter(0, places, flat[places])
        pieces = kept.split([t.numel() for t in change.values()])
        return change.replace({n: p.view_as(t) for (n, t), p in zip(change.items(), pieces, strict=True)})

    def compressed_bytes(self, sent: Params) -> int:
        """Count values and places."""
        width = max((t.element_size() for t in sent.values()), default=0)
        return self._kept_count(sent) * (width + INDEX)

    def _kept_count(self, change: Params) -> int:
        return min(change.numel(), max(1, math.ceil(self.share * change.numel() - 1e-9)))
