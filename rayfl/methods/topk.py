"""Top-k sparsification."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch

from rayfl.methods.wrapper import Wrapper
from rayfl.settings import above, at_most
from rayfl.training import Client, Context, Params, State

INDEX = 4
"""Bytes of a place among a net's entries."""


class TopK(Wrapper):
    """Clients upload the largest entries of their change alone (Aji and Heafield, EMNLP 2017; Stich,
    Cordonnier and Jaggi, NeurIPS 2018).

    Of all trainable entries of a change together, the share with the largest magnitudes is sent, as values
    and places. The rest is kept, and added to the client's next change (error feedback). Around any method
    whose clients upload weights.

    Deviations from the papers: they compress gradients or single steps; here it is the change by a whole
    local update. BatchNorm statistics, which are no parameters, are sent whole. What the server sends is not
    compressed. Models right after training are scored as the server sees them.
    """

    share: Annotated[float, above(0), at_most(1)] = 0.1
    """Share of the entries that is sent, at least one."""
    error_feedback: bool = True
    """Whether clients keep what they did not send, and add it to their next change."""

    def prepare(self, context: Context) -> Any:
        """Refuse methods without weights to compress."""
        self.need_changes(context)
        return super().prepare(context)

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train as the wrapped method does, and send the largest entries of what is due."""
        up, kept = await super().local_update(client, state, down)
        changes = self.change_of(client, down, up)
        due = {key: change.trainable() for key, change in changes.items()}
        if self.own in state:
            left = state[self.own]
            due = {key: change + left[key] if key in left else change for key, change in due.items()}
        sent = {key: self._largest_entries(change) for key, change in due.items()}
        up = self.with_change(client, down, up, {key: changes[key].merge(sent[key]) for key in changes})
        if self.error_feedback:
            kept = {**kept, self.own: {key: due[key] - sent[key] for key in due}}
        return up, kept

    def communication_bytes(
        self, client: Client, down: State, up: Mapping[str, Any]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Count values and places of what is sent, unless all of it would be less."""
        received, sent = super().communication_bytes(client, down, up)
        for key in self.reductions_of_changes(client, down, up).keys() & sent.keys():
            trained = up[key].trainable()
            widths = {t.element_size() for t in trained.values()}
            sparse = (
                self._kept_count(trained) * (max(widths, default=0) + INDEX) + up[key].nbytes - trained.nbytes
            )
            sent[key] = min(sent[key], sparse)
        return received, sent

    def _kept_count(self, change: Params) -> int:
        return min(change.numel(), max(1, math.ceil(self.share * change.numel() - 1e-9)))

    def _largest_entries(self, change: Params) -> Params:
        """Return the entries of largest magnitude, and zeros for the others."""
        flat = torch.cat([t.reshape(-1) for t in change.values()]) if len(change) else torch.zeros(0)
        places = flat.abs().topk(self._kept_count(change), sorted=False).indices
        kept = torch.zeros_like(flat).scatter(0, places, flat[places])
        pieces = kept.split([t.numel() for t in change.values()])
        return change.replace({n: p.view_as(t) for (n, t), p in zip(change.items(), pieces, strict=True)})
