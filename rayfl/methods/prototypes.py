"""Class prototypes: how clients take the mean output for a class, and how heads learn from such means."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.training import Batch, Client, Params
from rayfl.training.net import Net


async def class_means(
    client: Client, w: Params, outputs: Callable[[Params, Tensor], Tensor], dtype: torch.dtype
) -> Tensor:
    """Return the mean output for each class of a client's training data, [classes, k]; 0 where it has none.

    Args:
        client: whose data.
        w: the weights.
        outputs: weights and inputs [B, ...] -> [B, k], such as ``client.net.eval.features``.
        dtype: in which is summed.
    """

    def class_sums(w: Params, batch: Batch, classes: int) -> Tensor:
        member = F.one_hot(batch.y, classes).to(dtype)
        return member.T @ outputs(w, batch.x).to(dtype)

    total: Tensor = await client.total(class_sums, w, client.classes)
    return total / client.class_counts.clamp(min=1)[:, None]


def bytes_of_owned(client: Client, rows: Tensor) -> int:
    """Return the bytes of rows, one for each class, without those of classes that the client has not."""
    return rows[: int((client.class_counts > 0).sum())].nbytes


def head_step(
    net: Net, head: Params, z: Tensor, y: Tensor, lr: float, masked: Tensor | None = None
) -> Params:
    """Return a head after a step of plain gradient descent on the mean cross-entropy of features.

    It is a server's step, eq. 8, 9 and 12 of DC-PFL and that on prototypes in FedGH's Algorithm 1, and not a
    client's training: its loss is not the run's.

    Args:
        net: whose last layer it is.
        head: its weights.
        z: features, [n, d].
        y: classes, int64 [n].
        lr: length of the step.
        masked: bool [classes], classes whose scores are left out.
    """
    live = head.map(lambda t: t.detach().requires_grad_())
    scores = net.eval.head(live, z)
    if masked is not None:
        scores = scores.masked_fill(masked, -torch.inf)
    gradients = torch.autograd.grad(F.cross_entropy(scores, y), list(live.tensors.values()))
    return head - lr * Params(dict(zip(head, gradients, strict=True)), head.train_names)
