"""FDSE: Wang et al., CVPR 2025."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.methods.forms.world import (
    Outcome,
    Weights,
    World,
    adopt,
    mean,
    score,
    sgd,
    step,
    uncounted,
    weights_of,
)


class Block(nn.Module):
    """A DSE block, eq. 3: T / G channels by a convolution, the others from these by depth-wise ones."""

    def __init__(self, inputs: int, outputs: int, kernel: int, G: int, dw: int, act: str):
        super().__init__()
        a = -(-outputs // G)
        self.dfe_conv = nn.Conv2d(inputs, a, kernel, padding=kernel // 2)
        self.dse_bn, self.act = nn.BatchNorm2d(a), nn.ReLU() if act == "relu" else nn.Identity()
        self.dse_conv = nn.Conv2d(a, a * (G - 1), dw, padding=dw // 2, groups=a, bias=False)
        self.dfe_bias, self.dfe_bn = nn.Parameter(torch.zeros(outputs)), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.dse_bn(self.dfe_conv(x)))
        h = torch.cat([h, self.dse_conv(h)], 1)[:, : len(self.dfe_bias)]
        self.erased = h + self.dfe_bias[:, None, None]  # the input of dfe_bn, which L_con looks at
        return self.dfe_bn(self.erased).relu()


class Net(nn.Module):
    """Convolutional blocks, each with a pool; a linear one, which has a map of one pixel; a head."""

    def __init__(self, world: World, widths: Sequence[int], kernel: int, G: int, dw: int, act: str):
        super().__init__()
        sizes, halved = [world.probe.shape[1], *widths[:-1]], 2 ** (len(widths) - 1)
        flat = widths[-2] * (world.probe.shape[2] // halved) * (world.probe.shape[3] // halved)
        blocks = [Block(s, t, kernel, G, dw, act) for s, t in zip(sizes, widths[:-1])]
        self.blocks = nn.ModuleList([*blocks, Block(flat, widths[-1], 1, G, 1, act)])
        self.head = nn.Linear(widths[-1], world.classes)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks[:-1]:
            x = F.max_pool2d(block(x), 2)
        return self.head(self.blocks[-1](x.flatten(1)[:, :, None, None]).flatten(1))


class Consistency:
    """L_con of the blocks in a fit: with running estimates of each block (paper), or one for all (code)."""

    def __init__(self, net: Net, gamma: float, start: str):
        self.target = [(b.dfe_bn.running_mean.clone(), b.dfe_bn.running_var.clone()) for b in net.blocks]
        self.past = list(self.target) if start == "received" else [(0.0, 0.0)] * len(self.target)
        self.gamma, self.corrected, self.steps, self.chain = gamma, start == "bias_corrected", 0, None

    def paper(self, net: Net) -> list[Tensor]:
        """Eq. 4 to 6. The past is detached, and its variances are biased as those of the batch."""
        self.steps, found = self.steps + 1, []
        for j, (block, (mu_g, var_g)) in enumerate(zip(net.blocks, self.target)):
            now = block.erased.mean((0, 2, 3)), block.erased.var((0, 2, 3), correction=0)
            mu, var = (self.gamma * p + (1 - self.gamma) * q for p, q in zip(self.past[j], now))
            self.past[j] = mu.detach(), var.detach()
            share = 1 - self.gamma**self.steps if self.corrected else 1
            found.append(((mu / share - mu_g) ** 2).mean() + (var / share - var_g).mean() ** 2)
        return found

    def code(self, net: Net) -> list[Tensor]:
        """As in the public code: of the mean and variance over channels, chained through the blocks."""
        found, chain = [], self.chain and [v.detach() for v in self.chain]
        for block, (mu_g, var_g) in zip(net.blocks, self.target):
            f = block.erased.mean((0, 2, 3))
            now = [f.mean(), f.var()]
            chain = [self.gamma * p + (1 - self.gamma) * q for p, q in zip(chain, now)] if chain else now
            m, v = chain
            found.append(((mu_g**2 - m**2) / (2 * v.clamp(min=1e-8))).mean())
            found[-1] = found[-1] + 0.5 * ((v / (var_g + 1e-8)).log() + var_g / (v + 1e-8)).mean()
        self.chain = chain
        return found


def rows(each: Sequence[Weights], names: Sequence[str]) -> Tensor:
    """Return some entries of several weights as one vector for each."""
    return torch.stack([torch.cat([w[k].flatten() for k in names]) for w in each])


def entries(row: Tensor, names: Sequence[str], like: Weights) -> Weights:
    """Return the entries of a vector."""
    return {k: v.view_as(like[k]) for k, v in zip(names, row.split([like[k].numel() for k in names]))}


def shortest(d: Tensor) -> Tensor:
    """Return the shortest u_1 d_1 + ... with u >= 0 of sum 1, eq. 8: the best of all faces of the simplex."""
    found = []
    for face in (list(f) for k in range(len(d)) for f in combinations(range(len(d)), k + 1)):
        gram, ones = d[face] @ d[face].T, torch.ones(len(face), 1, dtype=d.dtype)
        u = torch.linalg.pinv(torch.cat([torch.cat([gram, ones], 1), F.pad(ones.T, (0, 1))]))[:-1, -1]
        if (u >= 0).all() and (u.sum() - 1).abs() < 1e-9:
            found.append(u @ d[face])
    return min(found, key=lambda v: float(v.norm()))


def run(
    world: World,
    *,
    lam: float = 0.1,
    tau: float = 0.1,
    beta: float = 0.001,
    gamma: float = 0.9,
    unit: str = "block",
    attn_unit: str = "tensor",
    reg: str = "paper",
    ema_init: str = "received",
    consensus: bool = True,
    attention: bool | str = True,
    widths: Sequence[int] = (32, 64, 128),
    kernel: int = 5,
    G: int = 2,
    dw: int = 3,
    act: str = "relu",
    names: Mapping[str, str] | None = None,
) -> Outcome:
    """Train a net of DSE blocks; nothing is drawn; fit 0.

    ``names`` maps this net's entries, ``blocks.0.dfe_conv.weight`` to ``head.bias``, to those of
    ``world.make()``; by default the l-th with the same last part, such as ``dfe_conv.weight``.
    """
    given, n = weights_of(world.make()), len(world.clients)

    def build(weights: Weights) -> Net:
        net = uncounted(Net(world, widths, kernel, G, dw, act))
        net.load_state_dict(weights, strict=False)
        return net

    def renamed(weights: Weights) -> Weights:
        return {names[k]: v.reshape(given[names[k]].shape) for k, v in weights.items()}

    def units(keys: Sequence[str], by: str) -> list[list[str]]:
        of = {k: k if by == "tensor" else k[:8] if k.startswith("blocks") else "head" for k in keys}
        return [[k for k in keys if of[k] == u] for u in dict.fromkeys(of.values())]

    net = build({})
    keys = list(net.state_dict())
    if names is None:
        parts = {k: k[9:] if k.startswith("blocks") else k for k in keys}
        names = {k: [g for g in given if g.endswith(p)][int(k[7]) if k != p else 0] for k, p in parts.items()}
    adopt(net, given, names)
    server, dse = weights_of(net), [k for k in keys if "dse_" in k and "running" not in k]
    shared = [k for k in keys if k not in dse and "running" not in k]
    own = [{k: server[k] for k in keys if "dse_" in k}] * n
    server = {k: server[k] for k in keys if "dse_" not in k}
    importance = torch.softmax(beta * torch.arange(len(widths), dtype=torch.float64), 0)
    for round, cohort in enumerate(world.cohorts):
        uploads = []
        for i in cohort:
            net, x, y = build(server | own[i]), world.clients[i].x, world.clients[i].y
            optimiser, consistency = sgd(world, net), Consistency(net, gamma, ema_init)
            for batch in world.batches(i, round):
                loss = world.loss(net(x[batch]), y[batch])
                if round:  # eq. 7; the targets of the first round say nothing
                    loss = loss + lam * sum(w * L for w, L in zip(importance, getattr(consistency, reg)(net)))
                step(world, loss, optimiser, net)
            uploads.append(weights_of(net))
        new = mean(uploads)
        for part in units(shared, unit) if consensus else []:  # eq. 8
            before = rows([server], part)[0]
            norms = (rows(uploads, part) - before).norm(dim=1)
            norms = torch.where(norms < 1e-12, 0, norms)  # these have no direction, and length 0 in the mean
            d = [(row - before) / norm for row, norm in zip(rows(uploads, part), norms) if norm]
            new |= entries(before + norms.mean() * shortest(torch.stack(d)) if d else before, part, new)
        for i, upload in zip(cohort, uploads):
            own[i] = {k: upload[k] for k in own[i]}
        for part in units(dse, attn_unit) if attention else []:  # eq. 9
            V = rows(uploads, part)
            share = torch.softmax(F.normalize(V) @ F.normalize(V).T / tau, 1)
            for i, row in zip(cohort, V.mean(0).expand_as(V) if attention == "mean" else share @ V):
                own[i] |= entries(row, part, new)
        server = {k: new[k] for k in server}
    scores = torch.stack([score(build(server | w), world.probe) for w in own])
    kept = [renamed({k: w[k] for k in dse}) for w in own]
    statistics = [renamed({k: v for k, v in w.items() if k not in dse}) for w in own]
    state = {"weights": renamed(server)} | {f"dse {i}": kept[i] for i in range(n) if attention}
    clients = [{"dse": d, "statistics": v} for d, v in zip(kept, statistics)]
    return Outcome(state, clients, {"personal": scores})
