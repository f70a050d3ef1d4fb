"""PartialFed: Sun et al., NeurIPS 2021. Its adaptive strategy is that of summaries, not of the full text."""

import torch
from torch import Tensor, nn

from tests.methods.forms.world import Outcome, World, mean, net_of, score, sgd, step, weights_of

BatchNorm = nn.modules.batchnorm._BatchNorm


class Choice(nn.Module):
    """Two logits for each layer: global, own [L, 2]."""

    def __init__(self, logits: Tensor):
        super().__init__()
        self.logits = nn.Parameter(logits.clone())


class Mixed(nn.Module):
    """A layer whose output is v_0 F(h; global) + v_1 F(h; own)."""

    def __init__(self, received: list[nn.Module], own: list[nn.Module]):
        super().__init__()
        self.received, self.own, self.v = nn.Sequential(*received), nn.Sequential(*own), torch.zeros(2)

    def forward(self, h: Tensor) -> Tensor:
        return self.v[0] * self.received(h) + self.v[1] * self.own(h)


def layers(net: nn.Module) -> list[list[str]]:
    """Return the layers of a net: modules with parameters, each with the BatchNorm right behind it."""
    found: list[list[str]] = []
    for name, module in net.named_modules():
        if isinstance(module, BatchNorm) and found:
            found[-1].append(name)
        elif list(module.parameters(recurse=False)):
            found.append([name])
    return found


def mix(net: nn.Module, own: nn.Module) -> list[Mixed]:
    """Mix a net's layers, in place, with those of another one; return the mixtures."""
    mixtures = []
    for layer in layers(net):
        mixtures.append(Mixed(*([m.get_submodule(name) for name in layer] for m in (net, own))))
        for name, module in zip(layer, [mixtures[-1]] + [nn.Identity()] * len(layer)):
            net.set_submodule(name, module)
    return mixtures


def run(
    world: World,
    *,
    mode: str = "adaptive",
    k: int = 1,
    gumbel_start: float = 5.0,
    gumbel_end: float = 0.5,
    gumbel_decay: float = 0.965,
) -> Outcome:
    """Start from some global and some own layers.

    Draws: "gumbel" (client, round, 0, step) [L, 2], standard Gumbel noise: global, own; L layers in order.
    Logits are learned in fit 0, whose places are among the validation samples if there are any, and only the
    first epoch of which counts. The model is trained in fit 1; in fit 0 where no logits are learned.
    """
    net, n = world.make(), len(world.clients)
    weights, all_layers = weights_of(net), layers(net)
    norms = [[name] for name, module in net.named_modules() if isinstance(module, BatchNorm)]
    fixed = {"adaptive": [], "all": [], "no_bn": norms, "no_cls": [["head"]]}
    fixed |= {"bottom": all_layers[k:], "top": all_layers[: len(all_layers) - k]}
    own, kept = [weights] * n, [fixed[mode]] * n
    logits = [torch.zeros(len(all_layers), 2, dtype=torch.float64)] * n
    met: set[int] = set()

    def start(i: int) -> nn.Module:
        modules = {name for layer in kept[i] for name in layer}
        return net_of(world, weights | {e: v for e, v in own[i].items() if e.rsplit(".", 1)[0] in modules})

    for round, cohort in enumerate(world.cohorts):
        tau, trained = max(gumbel_end, gumbel_start * gumbel_decay**round), []
        for i in cohort:
            data, learn = world.clients[i], mode == "adaptive" and i in met
            if learn:
                x, y = (data.x_val, data.y_val) if len(data.y_val) else (data.x, data.y)
                net, choice = net_of(world, weights), Choice(logits[i])
                mixtures = mix(net, net_of(world, own[i]))
                optimiser = torch.optim.SGD(choice.parameters(), world.lr, world.momentum)  # logits: no decay
                net.eval().requires_grad_(False)  # BatchNorm has its running statistics, each branch its own
                for s, batch in enumerate(world.order(i, round, 0)[0]):
                    v = ((choice.logits + world.draw("gumbel", i, round, 0, s)) / tau).softmax(1)
                    for mixture, share in zip(mixtures, v):
                        mixture.v = share
                    step(world, world.loss(net(x[batch]), y[batch]), optimiser, choice)
                logits[i] = choice.logits.detach()
                kept[i] = [layer for layer, (a, b) in zip(all_layers, logits[i]) if b > a]
            net = start(i)
            optimiser = sgd(world, net)
            for batch in world.batches(i, round, int(learn)):
                step(world, world.loss(net(data.x[batch]), data.y[batch]), optimiser, net)
            own[i] = weights_of(net)
            trained.append(own[i])
            met.add(i)
        weights = mean(trained, world.samples(cohort))

    scores = {"personal": torch.stack([score(start(i), world.probe) for i in range(n)])}
    scores["global"] = torch.stack([score(net_of(world, weights), world.probe)] * n)
    clients = [{"personal": own[i], "choice": {"logits": logits[i]}} for i in range(n)]
    return Outcome({"weights": weights}, clients, scores)
