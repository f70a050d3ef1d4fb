"""Fed-CO2: Cai et al., NeurIPS 2023, Algorithms 1 and 2."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.methods.forms.world import Outcome, World, mean, net_of, score, sgd, step, weights_of


def halves(net: nn.Module, exchange: str) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Return the extractor f and the classifier C of a net."""
    if exchange == "fc_stack":
        return net.conv, lambda h: net.head(net.fc(h))
    return lambda x: net.fc(net.conv(x)), net.head


def run(
    world: World,
    *,
    mu: float = 1.0,
    mutual_epochs: int = 1,
    adapt_epochs: int | None = None,
    kd_temperature: float = 1.0,
    bn_personal: str = "all",
    intra: str = "both",
    inter: str = "both",
    personal: str = "bn",
    exchange: str = "fc_stack",
    offline_init: str = "same",
) -> Outcome:
    """Train an online and an offline net per client; nothing is drawn.

    Mutual learning is fit 0 and adaptation fit 1; adaptation alone is fit 0. A phase of k epochs takes the
    first k of its fit's.
    """
    initial, n, T = weights_of(world.make()), len(world.clients), kd_temperature
    norms = [(m, v) for m, v in world.make().named_modules() if hasattr(v, "running_mean")]
    bn = {f"{m}.{k}" for m, v in norms for k in v.state_dict() if bn_personal == "all" or "running" not in k}
    head = {k for k in initial if k.startswith(("fc.", "head.") if exchange == "fc_stack" else "head.")}
    own = {"bn": bn, "head": head, "bn_and_head": bn | head}[personal]

    shared = {k: v for k, v in initial.items() if k not in own}
    kept = [{k: v for k, v in initial.items() if k in own}] * n
    offline = [weights_of(world.make(seed=i)) if offline_init == "independent" else initial for i in range(n)]
    heads = [{k: initial[k] for k in initial if k in head}] * n  # line 3: of everybody the initial classifier
    met: set[int] = set()
    for round, cohort in enumerate(world.cohorts):
        uploads, new_heads = [], list(heads)
        for i in cohort:
            nets = {"online": net_of(world, shared | kept[i]), "offline": net_of(world, offline[i])}
            x, y = world.clients[i].x, world.clients[i].y
            mutual = intra != "none" and i in met  # nothing to teach at first
            if mutual:
                teachers = {k: copy.deepcopy(nets[m]).eval() for k, m in zip(nets, reversed(nets))}
                students = {m: sgd(world, nets[m]) for m in nets if intra in ("both", f"to_{m}")}
                for batch in (b for epoch in world.order(i, round, 0)[:mutual_epochs] for b in epoch):
                    for m in students:  # eq. 4 and 5
                        with torch.no_grad():
                            taught = teachers[m](x[batch])
                        loss = T**2 * world.divergence(taught / T, nets[m](x[batch]) / T)
                        step(world, loss, students[m], nets[m])
            others = [net_of(world, initial | heads[j]).eval() for j in range(n) if j != i]
            foreign = [halves(net.requires_grad_(False), exchange)[1] for net in others]
            optimisers = {m: sgd(world, nets[m]) for m in nets}
            epochs = world.order(i, round, int(mutual))[: adapt_epochs or world.epochs]
            for batch in (b for epoch in epochs for b in epoch):
                for m in nets:  # eq. 6 and 7
                    f, classify = halves(nets[m], exchange)
                    h = f(x[batch])
                    loss = world.loss(classify(h), y[batch])
                    if inter in ("both", m):
                        loss = loss + mu * sum(world.loss(c(h), y[batch]) for c in foreign)
                    step(world, loss, optimisers[m], nets[m])
            online, offline[i] = weights_of(nets["online"]), weights_of(nets["offline"])
            uploads.append({k: online[k] for k in shared})
            kept[i], new_heads[i] = {k: online[k] for k in kept[i]}, {k: offline[i][k] for k in heads[i]}
            met.add(i)
        shared, heads = mean(uploads), new_heads  # eq. 2: uniform
    logits = {"online": torch.stack([score(net_of(world, shared | k), world.probe) for k in kept])}
    logits["offline"] = torch.stack([score(net_of(world, w), world.probe) for w in offline])
    logits["personal"] = world.fuse(logits["online"], logits["offline"])  # eq. 3
    server = {"weights": shared} | {f"head {i}": heads[i] for i in range(n) if inter != "none"}
    return Outcome(server, [{"online": kept[i], "offline": offline[i]} for i in range(n)], logits)
