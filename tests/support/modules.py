"""Data and modules of the user's own, as import paths name them: texts, vectors, layers of many kinds."""

import math
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rayfl.data import TEST, TRAIN, Data, Dataset
from rayfl.nets import SplitNet
from rayfl.randomness import numpy_generator
from rayfl.settings import at_least

LENGTH, TOKENS = 6, 5


class Sequences(Data):
    """Texts whose class is their last token plus one, and vectors that say the same."""

    kind: Literal["tokens", "vectors"] = "tokens"
    """What the inputs are."""
    n: Annotated[int, at_least(1)] = 240
    """Number of training samples; there are half as many test samples."""

    def load(self) -> Dataset:
        """Make the sequences."""
        rng = numpy_generator(0, "test sequences")
        n = self.n + self.n // 2
        tokens = rng.integers(0, TOKENS, (n, LENGTH))
        vectors = np.eye(TOKENS, dtype=np.float32)[tokens].reshape(n, -1)
        return Dataset(
            inputs=tokens if self.kind == "tokens" else vectors,
            labels=(tokens[:, -1] + 1) % TOKENS,
            domains=np.zeros(n, dtype=np.int64),
            origin=np.where(np.arange(n) < self.n, TRAIN, TEST).astype(np.uint8),
            class_names=tuple("abcde"),
            domain_names=("one",),
        )


class Transformer(nn.Module):
    """Embeddings, causal attention with dropout beside it, LayerNorm, and constants of three kinds."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        (length,) = shape
        self.tokens = nn.Embedding(TOKENS, 8)
        self.places = nn.Embedding(length, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        layer.self_attn.dropout = 0.0
        self.blocks = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(8, num_classes)
        self.register_buffer("numbers", torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes], of token ids [B, L]."""
        x = self.tokens(x) + self.places(self.numbers)
        scores: Tensor = self.out(self.blocks(x, mask=self.mask, is_causal=True)[:, -1])
        return scores


class Grouped(nn.Module):
    """Convolution, GroupNorm, LayerNorm and dropout of channels, for vectors."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Unflatten(1, (TOKENS, LENGTH)),
            nn.Conv1d(TOKENS, 8, 3),
            nn.GroupNorm(2, 8),
            nn.SiLU(inplace=True),
            nn.Dropout1d(0.2),
            nn.LayerNorm(LENGTH - 2),
            nn.Flatten(),
            nn.Linear(8 * (LENGTH - 2), num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes], of vectors [B, D]."""
        scores: Tensor = self.layers(x)
        return scores


class Recurrent(nn.Module):
    """A GRU in both directions, with dropout after it."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, 4)
        self.gru = nn.GRU(4, 5, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(10, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes], of token ids [B, L]."""
        scores: Tensor = self.out(self.drop(self.gru(self.tokens(x))[0].mean(1)))
        return scores


class Plain(nn.Module):
    """A small net for images as most people write one: layers by name, BatchNorm, dropout, the head last."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 6, 5, 2)
        self.norm = nn.BatchNorm2d(6)
        self.hidden = nn.Linear(6 * ((shape[1] - 3) // 2) ** 2, 12)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(12, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes], of images [B, C, H, H]."""
        x = self.norm(self.conv(x)).relu().flatten(1)
        scores: Tensor = self.out(self.drop(self.hidden(x).tanh()))
        return scores


def hooked(shape: tuple[int, ...], classes: int) -> SplitNet:
    """A net whose hooks on parameters mask a gradient, change it in turn, and hold on to the parameter."""
    net = SplitNet(nn.Flatten(), nn.Sequential(nn.Linear(math.prod(shape), 3)), nn.Linear(3, classes))
    weight, bias, head = net.fc[0].weight, net.fc[0].bias, net.head.weight
    bias.register_hook(torch.zeros_like)
    weight.register_hook(lambda gradient: gradient + 1)
    weight.register_hook(lambda gradient: None)
    weight.register_hook(lambda gradient: gradient * 2)
    head.register_hook(lambda gradient: gradient + 0.5 * head)
    return net


def hooked_too_late(shape: tuple[int, ...], classes: int) -> SplitNet:
    """A net with a hook that comes once a gradient is in its place."""
    net = hooked(shape, classes)
    net.head.bias.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.zero_())
    return net


class Sharpened(nn.Module):
    """A small net with code after its head that acts in training alone."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(math.prod(shape), 3), nn.Linear(3, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes], of inputs [B, ...]."""
        scores: Tensor = self.out(self.body(x.flatten(1)).tanh())
        return (3 * scores).log_softmax(1) if self.training else scores


class SharpenedSplit(SplitNet):
    """A net in parts whose scores have another gradient in training."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Sequential(), nn.Linear(math.prod(shape), num_classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes], of inputs [B, ...]."""
        scores = super().forward(x)
        return 2 * scores - scores.detach() if self.training else scores


class Remembering(nn.Module):
    """A net for vectors that goes by the ``last`` features of other steps, or the ``first``, kept in lists.

    Or by their ``number``, in a hook.
    """

    def __init__(self, num_classes: int, kind: str) -> None:
        super().__init__()
        self.kind, self.seen = kind, [torch.zeros(6)]
        self.body, self.out = nn.Linear(LENGTH * TOKENS, 6), nn.Linear(6, num_classes)
        if kind == "number":
            self.body.weight.register_hook(lambda gradient: gradient / len(self.seen))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes], of vectors [B, D]."""
        h = self.body(x)
        if self.training:
            self.seen.append(h.detach().mean(0))
            h = h + {"last": self.seen[-2], "first": self.seen[1], "number": 0}[self.kind]
        scores: Tensor = self.out(h)
        return scores


class Odd(nn.Module):
    """Two linear layers with something between them that many clients in one call do not go through alike."""

    def __init__(self, num_classes: int, kind: str = "") -> None:
        super().__init__()
        self.kind = kind
        self.first, self.head = nn.Linear(LENGTH * TOKENS, 6), nn.Linear(6, num_classes)
        if kind == "module hook":
            self.inner = nn.Linear(6, 6)
            self.inner.register_full_backward_hook(lambda module, into, out: (0.5 * into[0],))
        if kind == "zero head":
            nn.init.zeros_(self.head.weight)
            self.first.weight.register_hook(lambda gradient: gradient / 2)
        if kind == "zero gate":
            self.inner, self.gate = nn.Linear(6, 6), nn.Parameter(torch.zeros(()))
            self.inner.register_full_backward_hook(lambda module, into, out: (0.5 * into[0],))
        if kind == "spectral norm":
            self.first = nn.utils.parametrizations.spectral_norm(self.first)
        if kind == "cell":
            self.cell = nn.LSTMCell(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes], of vectors [B, D]."""
        h = self.first(x.float() if self.kind == "float32" else x).tanh()
        if self.kind == "module hook":
            h = self.inner(h)
        elif self.kind == "zero gate":
            h = h + self.gate * self.inner(h)
        elif self.kind == "tensor hook" and h.requires_grad:
            h.register_hook(lambda gradient: gradient / 2)
        elif self.kind in ("branch", "float32") and h.requires_grad:
            h = 2 * h
        elif self.kind == "cell":
            h = self.cell(h)[0]
        elif self.kind in ("checkpoint", "reentrant"):
            h = checkpoint(torch.tanh, h, use_reentrant=self.kind == "reentrant")
        elif self.kind == "routing":
            h = h if h.sum() > 0 else -h
        scores: Tensor = self.head(h)
        return scores


class FrozenNorm(nn.BatchNorm2d):
    """BatchNorm with the statistics and the weights that it was made with."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.running_mean += 0.3
        self.running_var *= 2
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> "FrozenNorm":
        """Stay as in evaluation."""
        super().train(False)
        return self


class Centred(nn.Module):
    """Features [B, D] without their moving mean, a buffer that every call in train mode renews."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        """Return features [B, D]."""
        mean: Tensor = self.get_buffer("mean")
        if self.training:
            mean.mul_(0.7).add_(0.3 * x.detach().mean(0))
        return x - mean


def buffered(shape: tuple[int, ...], classes: int) -> SplitNet:
    """A smooth net for images with buffers of four kinds, none of which a bias comes right before."""
    instances = nn.InstanceNorm2d(3, affine=True, track_running_stats=True)
    conv = nn.Sequential(nn.Conv2d(shape[0], 3, 5, 3, bias=False), instances, nn.Softplus(), FrozenNorm(3))
    conv += nn.Sequential(nn.Conv2d(3, 2, 2, bias=False), nn.BatchNorm2d(2), nn.Softplus(), nn.Flatten())
    features = 2 * ((shape[1] - 5) // 3) * ((shape[2] - 5) // 3)
    fc = nn.Sequential(nn.Linear(features, 5), Centred(5), nn.Tanh())
    return SplitNet(conv, fc, nn.Linear(5, classes))
