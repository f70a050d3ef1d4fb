"""What methods have in common whose models teach each other."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def softened_divergence(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """Return T^2 KL(teacher || student) of the softmax of logits / T, [B, classes], the mean over the batch.

    No gradient reaches the teacher (Hinton, Vinyals and Dean, arXiv 1503.02531, 2015).

    Args:
        teacher: logits.
        student: logits.
        temperature: T.
    """
    p = F.log_softmax(teacher.detach() / temperature, 1)
    q = F.log_softmax(student / temperature, 1)
    return temperature**2 * (p.exp() * (p - q)).sum(1).mean()
