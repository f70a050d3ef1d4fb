"""FedSR: Nguyen, Torr and Lim, NeurIPS 2022."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.methods.forms.world import Outcome, World, adopt, cnn, mean, sgd, step, uncounted, weights_of


class Net(nn.Module):
    """Convolutions, linear layers, a layer of the means and scales of z features, and a head on a draw."""

    def __init__(self, world: World, convs: Sequence[int], fcs: Sequence[int], kernel: int, z_dim: int):
        super().__init__()
        self.conv, self.fc = cnn(world, convs, fcs, kernel)
        self.gaussian = nn.Linear(fcs[-1], 2 * z_dim)
        self.head = nn.Linear(z_dim, world.classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means and scales [B, z]."""
        mu, raw = self.gaussian(self.fc(self.conv(x))).chunk(2, 1)
        return mu, F.softplus(raw).clamp(min=1e-6)


class Classes(nn.Module):
    """A client's Gaussians of features, for each class, and the factor C."""

    def __init__(self, classes: int, z_dim: int):
        super().__init__()
        self.r_mu = nn.Parameter(torch.zeros(classes, z_dim, dtype=torch.float64))
        self.r_sigma = nn.Parameter(torch.ones_like(self.r_mu))
        self.C = nn.Parameter(torch.ones((), dtype=torch.float64))

    def divergence(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """Return the mean divergence of C z from the Gaussian of its class (CMI)."""
        c = self.C.abs().clamp(min=1e-3)
        m, s = self.r_mu[y], F.softplus(self.r_sigma[y]).clamp(min=1e-6)
        kl = s.log() - (c * sigma).log() + ((c * sigma) ** 2 + (c * mu - m) ** 2) / (2 * s**2) - 0.5
        return kl.sum(1).mean()


def run(
    world: World,
    *,
    alpha_l2r: float = 0.01,
    alpha_cmi: float = 0.001,
    convs: Sequence[int] = (16, 32),
    fcs: Sequence[int] = (120, 84),
    kernel: int = 5,
    z_dim: int = 64,
    names: Mapping[str, str] | None = None,
) -> Outcome:
    """Train a net with a probabilistic layer; fit 0.

    Draws, standard normal: "noise" (client, round, 0, step) [B, z]; "test" (client, rounds, 0, 0)
    [test_samples, z], which all inputs share. ``names`` maps this net's entries, ``conv.0.weight`` to
    ``gaussian.bias`` and ``head.bias``, to those of ``world.make()``; by default in order. Views are
    logarithms of mean probabilities.
    """
    given, n = weights_of(world.make()), len(world.clients)
    net = uncounted(Net(world, convs, fcs, kernel, z_dim))
    names = adopt(net, given, names)
    weights, classes = weights_of(net), [Classes(world.classes, z_dim) for _ in range(n)]
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            net, data = uncounted(Net(world, convs, fcs, kernel, z_dim)), world.clients[i]
            net.load_state_dict(weights, strict=False)
            optimiser = sgd(world, net, classes[i])
            for s, batch in enumerate(world.batches(i, round)):
                y, (mu, sigma) = data.y[batch], net(data.x[batch])
                z = mu + sigma * world.draw("noise", i, round, 0, s)
                loss = world.loss(net.head(z), y) + alpha_l2r * z.norm(dim=1).mean()
                loss = loss + alpha_cmi * classes[i].divergence(mu, sigma, y)
                step(world, loss, optimiser, net, classes[i])  # clipped one by one
            trained.append(weights_of(net))
        weights = mean(trained, world.samples(cohort))

    net.load_state_dict(weights, strict=False)
    with torch.no_grad():
        mu, sigma = net.eval()(world.probe)
        draws = [world.draw("test", i, len(world.cohorts), 0, 0) for i in range(n)]
        each = [torch.stack([net.head(mu + sigma * e).softmax(1) for e in draw]).mean(0) for draw in draws]
    renamed = {names[k]: v.reshape(given[names[k]].shape) for k, v in weights.items()}
    views = {view: torch.stack(each).log() for view in ("personal", "global")}
    return Outcome({"weights": renamed}, [{"classes": weights_of(c)} for c in classes], views)
