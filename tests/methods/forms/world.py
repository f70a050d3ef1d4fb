"""What an independent form of a method is given, and what it returns.

A form is a paper's algorithm in plain PyTorch: ``nn.Module``, ``torch.optim``, ``backward()``. Of rayfl it
reads what is here: the data, the initial weights, the order of batches, and what is drawn at random.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Weights = dict[str, Tensor]
"""Entries of a net under the names of its ``state_dict``: parameters and buffers."""


class SplitModule(Protocol):
    """A net in three parts: ``head(fc(conv(x)))``; each is an ``nn.Module``, the head an ``nn.Linear``."""

    conv: nn.Module
    fc: nn.Module
    head: nn.Linear


@dataclass(frozen=True)
class Samples:
    """A client's own data, in float64: inputs [n, ...] and int64 labels [n]."""

    x: Tensor
    y: Tensor
    x_val: Tensor
    y_val: Tensor


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """Return KL(teacher || student) of the softmax of logits, the mean over samples."""
    target = F.log_softmax(teacher.detach(), 1)
    return F.kl_div(F.log_softmax(student, 1), target, reduction="batchmean", log_target=True)


@dataclass
class World:
    """A small federation.

    Attributes:
        clients: all of them, taking part or not.
        cohorts: for every round the clients that take part, ascending.
        classes: number of classes.
        lr, momentum, weight_decay: of SGD, which starts anew with every fit.
        clip: largest norm of the gradient of a net in a step, before weight decay; 0 does not clip.
        epochs: passes over the client's data in a fit.
        probe: inputs [P, ...] that every client scores after the last round.
        make: returns a new net with the initial weights, in float64 and train mode; by name where a method
            has others than the clients' (``make("meme")``); ``make(seed=k)`` has other initial weights, those
            of stream k.
        loss: ``loss(scores, targets)`` returns the mean loss of samples: [B, classes] and [B] -> a number.
        divergence: ``divergence(teacher, student)`` returns how far scores are apart, the mean over samples.
        fuse: returns what two models' scores say together.
        order: ``order(client, round, fit)`` returns the batches of a fit: for every epoch a list of int64
            places among the client's samples. The round before the first is that of an exchange before
            training, the one after the last that in which clients are personalised before they are scored.
        draw: ``draw(what, client, round, fit, step)`` returns what is drawn at random there.
        at: the client and the round for which a form has asked for batches or draws last.
    """

    clients: Sequence[Samples]
    cohorts: Sequence[Sequence[int]]
    classes: int
    lr: float
    momentum: float
    weight_decay: float
    clip: float
    epochs: int
    probe: Tensor
    make: Callable[..., nn.Module]
    order: Callable[[int, int, int], list[list[Tensor]]]
    draw: Callable[..., Tensor]
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    divergence: Callable[[Tensor, Tensor], Tensor] = kl
    fuse: Callable[[Tensor, Tensor], Tensor] = torch.add
    at: tuple[int, int] = (0, 0)

    def batches(self, client: int, round: int, fit: int = 0) -> list[Tensor]:
        """Return the batches of all epochs of a fit, one after another: places among the client's samples.

        Fits are counted within the round, from 0; those that see the same batches have one number.
        """
        return [batch for epoch in self.order(client, round, fit) for batch in epoch]

    def samples(self, ids: Sequence[int]) -> Tensor:
        """Return how many training samples these clients have, float64."""
        return torch.tensor([len(self.clients[i].y) for i in ids], dtype=torch.float64)


@dataclass
class Outcome:
    """What a form has come to after the last round.

    Attributes:
        server: what the server holds: key of the state -> entries.
        clients: what each client keeps: key of the state -> entries; empty where it keeps nothing.
        logits: view -> scores [clients, P, classes] of the probe, in eval mode.
    """

    server: dict[str, Weights] = field(default_factory=dict)
    clients: list[dict[str, Weights]] = field(default_factory=list)
    logits: dict[str, Tensor] = field(default_factory=dict)


def weights_of(net: nn.Module) -> Weights:
    """Return copies of a net's entries."""
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def mean(each: Sequence[Weights], shares: Tensor | None = None) -> Weights:
    """Return the mean of weights, by shares [n] that are brought to a sum of 1; uniform by default."""
    shares = torch.ones(len(each), dtype=torch.float64) if shares is None else shares
    shares = shares / shares.sum()
    return {name: sum(s * w[name] for s, w in zip(shares, each, strict=True)) for name in each[0]}


def stacked(kept: Mapping[int, Weights], count: int) -> Weights:
    """Return weights of some of all clients as rows [count, ...], zeros for the others."""
    first = next(iter(kept.values()))
    none = {name: torch.zeros_like(value) for name, value in first.items()}
    return {name: torch.stack([kept.get(i, none)[name] for i in range(count)]) for name in first}


def sgd(world: World, *nets: nn.Module) -> torch.optim.SGD:
    """Return SGD with the world's settings for the parameters of some nets."""
    parameters = [p for net in nets for p in net.parameters() if p.requires_grad]
    return torch.optim.SGD(parameters, world.lr, world.momentum, weight_decay=world.weight_decay)


def clip(world: World, *nets: nn.Module) -> None:
    """Clip the gradient of each of some nets by its own norm."""
    for net in nets if world.clip else ():
        nn.utils.clip_grad_norm_([p for p in net.parameters() if p.grad is not None], world.clip)


def score(net: nn.Module, x: Tensor) -> Tensor:
    """Return a net's scores in eval mode, without changing it."""
    training = net.training
    net.eval()
    with torch.no_grad():
        found: Tensor = net(x)
    net.train(training)
    return found


def load(net: nn.Module, weights: Weights) -> nn.Module:
    """Give a net these entries, keep its others, and return it."""
    entries = net.state_dict()
    for name, value in weights.items():
        entries[name].copy_(value.detach())
    return net


def net_of(world: World, weights: Weights, *name: str) -> nn.Module:
    """Return a new net with these weights, in train mode."""
    return load(world.make(*name), weights)


def loss_of_samples(world: World, scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of what the loss is of each sample alone."""
    return torch.stack([world.loss(*pair) for pair in zip(scores.split(1), targets.split(1))]).mean()


def step(world: World, loss: Tensor, optimiser: torch.optim.Optimizer, *nets: nn.Module) -> None:
    """Take one step along the gradient of a loss, clipped net by net."""
    optimiser.zero_grad()
    loss.backward()
    clip(world, *nets)
    optimiser.step()


def train(world: World, net: nn.Module, data: Samples, batches: Sequence[Tensor]) -> None:
    """Train what is not frozen of a net, as FedAvg does."""
    optimiser = sgd(world, net)
    for batch in batches:
        step(world, world.loss(net(data.x[batch]), data.y[batch]), optimiser, net)


def class_means(rows: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean row [classes, k] of every class, zeros where it has none, and its rows' number."""
    counts = torch.bincount(y, minlength=classes).to(rows)
    sums = rows.new_zeros(classes, rows.shape[1]).index_add_(0, y, rows)
    return sums / counts.clamp(min=1)[:, None], counts


def feature(net: SplitModule, x: Tensor) -> Tensor:
    """Return a net's features in eval mode, without changing it."""
    return score(nn.Sequential(net.conv, net.fc), x)


def adopt(net: nn.Module, given: Weights, names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Fill a net that a form has written itself with given entries; return own name -> given name.

    Without ``names`` entries are taken in their order, and those that do not fit are passed over.
    """
    own, rest = net.state_dict(), iter(given)
    names = names or {k: next(n for n in rest if given[n].numel() == v.numel()) for k, v in own.items()}
    net.load_state_dict({k: given[names[k]].reshape(v.shape) for k, v in own.items()}, strict=False)
    return {k: names[k] for k in own}


def uncounted(net: nn.Module) -> nn.Module:
    """Return a net of a form's own in float64, its BatchNorm layers without their counter."""
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.num_batches_tracked = None
    return net.double()


def cnn(
    world: World,
    convs: Sequence[int],
    fcs: Sequence[int],
    kernel: int,
    behind: Callable[[], list[nn.Module]] = list,
) -> tuple[nn.Sequential, nn.Sequential]:
    """Return stages of convolution, BatchNorm, ReLU, pool and what comes behind; then linear ones."""
    width, layers = world.probe.shape[1], []
    for out in convs:
        layers += [nn.Conv2d(width, out, kernel), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2), *behind()]
        width = out
    conv, fc = nn.Sequential(*layers, nn.Flatten()).eval(), []
    width = conv(world.probe[:1].float()).shape[1]
    for out in fcs:
        fc, width = [*fc, nn.Linear(width, out), nn.BatchNorm1d(out), nn.ReLU()], out
    return conv.train(), nn.Sequential(*fc)
