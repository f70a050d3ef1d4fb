"""FedFA: Zhou and Konukoglu, ICLR 2023 (feature augmentation)."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tests.methods.forms.world import (
    Outcome,
    World,
    adopt,
    cnn,
    mean,
    score,
    sgd,
    step,
    uncounted,
    weights_of,
)


class FFA(nn.Module):
    """Augments a batch of features [B, F, ...]; its statistics are 4 numbers for each of F channels."""

    def __init__(self, momentum: float):
        super().__init__()
        self.momentum, self.noise = momentum, None  # noise [B, 2, F] where it augments
        self.means, self.variances = torch.empty(0), torch.empty(0)  # of mu and of s, each [2, F]

    def forward(self, x: Tensor) -> Tensor:
        if self.noise is None or len(x) == 1 or x[0, 0].numel() == 1:
            return x
        mu, s = x.mean((2, 3)), (x.var((2, 3)) + 1e-6).sqrt()
        both = torch.stack([mu, s], 1)  # [B, 2, F]
        self.means = self.momentum * self.means + (1 - self.momentum) * both.detach().mean(0)
        q = 1 / (1 + 1 / (self.variances + 1e-6))
        gamma = q.shape[1] * q / q.sum(1, keepdim=True)
        spread = ((gamma + 1) * (both.var(0) + 1e-6)).sqrt()
        shift, scale = (both + spread * self.noise).unbind(1)
        normal = (x - mu[:, :, None, None]) / s[:, :, None, None]
        return scale[:, :, None, None] * normal + shift[:, :, None, None]


class Net(nn.Module):
    """Convolutions with augmentation behind the pools, linear layers, head."""

    def __init__(self, world: World, convs: Sequence[int], fcs: Sequence[int], kernel: int, momentum: float):
        super().__init__()
        self.conv, self.fc = cnn(world, convs, fcs, kernel, lambda: [FFA(momentum)])
        self.head = nn.Linear(fcs[-1], world.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.fc(self.conv(x)))


def run(
    world: World,
    *,
    prob: float = 0.5,
    momentum: float = 0.99,
    var_mode: str = "channel",
    convs: Sequence[int] = (16, 32),
    fcs: Sequence[int] = (120, 84),
    kernel: int = 5,
    names: Mapping[str, str] | None = None,
) -> Outcome:
    """Train a net with layers of augmentation; fit 0.

    Draws: "augment" (client, round, 0, step) [L], from U(0, 1): a layer augments where it is below ``prob``;
    "noise" (client, round, 0, step) [B, 2, F], standard normal, for means and deviations of the F channels of
    all layers. ``names`` maps this net's entries, ``conv.0.weight`` to ``head.bias``, to those of
    ``world.make()``; by default in order.
    """
    given = weights_of(world.make())
    net = uncounted(Net(world, convs, fcs, kernel, momentum))
    names = adopt(net, given, names)
    weights = weights_of(net)
    means = torch.cat([torch.zeros(1, sum(convs)), torch.ones(1, sum(convs))]).double()  # of mu and s [2, F]
    variances = torch.ones_like(means)

    def build() -> tuple[Net, list[FFA]]:
        net = uncounted(Net(world, convs, fcs, kernel, momentum)).train()
        net.load_state_dict(weights, strict=False)
        layers = [layer for layer in net.conv if isinstance(layer, FFA)]
        for layer, m, v in zip(layers, means.split(list(convs), 1), variances.split(list(convs), 1)):
            layer.means, layer.variances = m, v
        return net, layers

    for round, cohort in enumerate(world.cohorts):
        trained, statistics = [], []
        for i in cohort:
            (net, layers), data = build(), world.clients[i]
            optimiser = sgd(world, net)
            for s, batch in enumerate(world.batches(i, round)):
                noise = world.draw("noise", i, round, 0, s).split(list(convs), 2)
                for layer, u, e in zip(layers, world.draw("augment", i, round, 0, s), noise):
                    layer.noise = e if u < prob else None
                step(world, world.loss(net(data.x[batch]), data.y[batch]), optimiser, net)
            trained.append(weights_of(net))
            statistics.append(torch.cat([layer.means for layer in layers], 1))
        shares, found = world.samples(cohort), torch.stack(statistics)
        weights = mean(trained, shares)
        means = mean([{"means": m} for m in statistics], shares)["means"]
        if len(cohort) > 1 and var_mode == "channel":
            variances = found.var(0, correction=0)
        elif len(cohort) > 1:  # one number for each layer and statistic
            each = [part.var((0, 2), correction=0) for part in found.split(list(convs), 2)]
            variances = torch.cat([v[:, None].expand(2, c) for v, c in zip(each, convs)], 1)

    scores = torch.stack([score(build()[0], world.probe)] * len(world.clients))
    renamed = {names[k]: v.reshape(given[names[k]].shape) for k, v in weights.items()}
    server = {"weights": renamed, "statistics": {"means": means, "variances": variances}}
    return Outcome(server, [{} for _ in world.clients], {"personal": scores, "global": scores})
