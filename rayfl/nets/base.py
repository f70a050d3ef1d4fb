"""`Architecture`: what describes a net, and builds it for the images at hand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import field
from pathlib import Path
from typing import Annotated

from torch import Tensor, nn

from rayfl.errors import Conflict
from rayfl.nets.head import kind_name
from rayfl.nets.split import Shape
from rayfl.nets.weights import file_digest
from rayfl.settings import Value, at_least


class Architecture(Value, ABC, place="net"):
    """A net without weights: a class with the options that it is built with, see :mod:`rayfl.settings`."""

    weights: str | None = field(default=None, kw_only=True)
    """File of safetensors with the weights that all clients start from, as ``rayfl export`` writes them."""

    def digests(self) -> dict[str, str]:
        """Return digests of what decides numbers besides options, such as files; all hosts need the same."""
        return {f"file {self.weights}": file_digest(Path(self.weights).expanduser())} if self.weights else {}

    def check_inputs(self, like: Tensor, classes: int) -> None:
        """Refuse data that the net is not for.

        Args:
            like: [2, ...], inputs; token ids are int64, with the largest of the data.
            classes: number of classes.
        """

    @abstractmethod
    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the net, with PyTorch's random initial weights; the caller seeds them.

        What is no ``SplitNet`` must end in a linear layer, see :func:`rayfl.nets.head.split_at_head`.

        Args:
            shape: of one input, such as (channels, height, width).
            classes: number of outputs, such as classes.
        """


_OTHERS = "choose MLP for vectors, CNNB and others for images, TokenMLP or CharLSTM for texts"


class ImageArchitecture(Architecture):
    """A net for images, float [B, C, H, W]."""

    def check_inputs(self, like: Tensor, classes: int) -> None:
        """Refuse inputs that are no images."""
        if like.dim() != 4 or not like.is_floating_point():
            problem = f"{self} takes images of (channels, height, width), and the data have {kind_name(like)}"
            raise Conflict("net", problem, _OTHERS)


class TokenArchitecture(Architecture):
    """A net for texts of a fixed length L as token ids, int64 [B, L]."""

    vocabulary: Annotated[int, at_least(0)] = 0
    """Number of different tokens; 0: as many as there are classes, as where the next character is told."""

    def check_inputs(self, like: Tensor, classes: int) -> None:
        """Refuse inputs that are no token ids, or beyond the vocabulary."""
        if like.dim() != 2 or like.is_floating_point():
            problem = f"{self} takes token ids of shape (length,), and the data have {kind_name(like)}"
            raise Conflict("net", problem, _OTHERS)
        known = self.vocabulary or classes
        if not like.is_meta and (largest := int(like.max())) >= known:
            problem = f"{self} knows the token ids 0 to {known - 1}, and the data have {largest}"
            raise Conflict("net", problem, f"set net.vocabulary, as with --net.vocabulary {largest + 1}")
