"""FedCP: Zhang et al., KDD 2023."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.methods.forms.world import Outcome, World, adopt, mean, net_of, sgd, step, weights_of


class Policy(nn.Module):
    """The conditional policy network: z * v [B, d] and noise [B, 2, d] -> shares r_p, r_g [B, d]."""

    def __init__(self, d: int):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, 2 * d), nn.LayerNorm(2 * d), nn.ReLU()).double()

    def forward(self, zv: Tensor, noise: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
        shares = (self.net(zv).view(len(zv), 2, -1) + noise).softmax(1)  # Gumbel-softmax of temperature 1
        return shares[:, 0], shares[:, 1]


def kernel(a: Tensor, b: Tensor) -> Tensor:
    """Return the kernel of the maximum mean discrepancy of two sets of features [B, d]."""
    squares = ((a[:, None] - b[None]) ** 2).sum(2)
    return sum(torch.exp(-squares / (2 * width)) for width in (10, 15, 20, 50))


def run(world: World, *, lam: float = 0.1) -> Outcome:
    """Train an extractor, an own head and a policy per client, beside the received extractor and head.

    ``world.make("policy")`` has the policy's initial entries in order: linear layer, LayerNorm.
    Draws: "context" (client, round, 0, 0) [d], from U(0, 1), in a client's first round, brought to length 1
    here; "gumbel" (client, round, 0, step) [B, 2, d], standard Gumbel noise: own part, global part. Fit 0.
    """
    initial, n = world.make(), len(world.clients)
    d = initial.head.in_features
    weights = {k: v for k, v in weights_of(initial).items() if not k.startswith("head.")}
    head, policy = weights_of(initial.head), Policy(d)
    names, policy_now = adopt(policy, weights_of(world.make("policy"))), weights_of(policy)
    start = {"head": head, "global_head": head, "policy": policy_now}
    clients = [start | {"context": {"context": torch.zeros(d, dtype=torch.float64)}} for _ in range(n)]
    met: set[int] = set()

    def parts(i: int) -> tuple[nn.Module, nn.Linear, Policy, Tensor]:
        """Return the newest extractor with the client's own head, and its global head, policy and context."""
        kept, h_g, cpn = clients[i], copy.deepcopy(initial.head), Policy(d)
        h_g.load_state_dict(kept["global_head"])
        cpn.load_state_dict(kept["policy"])
        net = net_of(world, weights | {f"head.{k}": v for k, v in kept["head"].items()})
        return net, h_g.requires_grad_(False), cpn, kept["context"]["context"]

    for round, cohort in enumerate(world.cohorts):
        uploads = []
        for i in cohort:
            rows = clients[i]["head"]["weight"].sum(0) if i in met else world.draw("context", i, round, 0, 0)
            clients[i] |= {"global_head": head, "policy": policy_now}
            clients[i]["context"] = {"context": F.normalize(rows, dim=0)}
            met.add(i)
            net, h_g, cpn, v = parts(i)
            received = copy.deepcopy(net).eval()
            optimiser, data = sgd(world, net, cpn), world.clients[i]
            for s, batch in enumerate(world.batches(i, round)):
                x = data.x[batch]
                z = net.fc(net.conv(x))
                r_p, r_g = cpn(z * v, world.draw("gumbel", i, round, 0, s))
                loss = world.loss(net.head(r_p * z) + h_g(r_g * z), data.y[batch])
                with torch.no_grad():
                    before = received.fc(received.conv(x))
                distance = (kernel(z, z) + kernel(before, before) - 2 * kernel(z, before)).mean()
                step(world, loss + lam * distance, optimiser, net, cpn)  # two nets, clipped one by one
            clients[i] |= {"head": weights_of(net.head), "policy": weights_of(cpn)}
            extractor = {k: w for k, w in weights_of(net).items() if k in weights}
            uploads.append((extractor, mean([clients[i]["head"], head]), clients[i]["policy"]))
        weights, head, policy_now = (mean(each, world.samples(cohort)) for each in zip(*uploads))

    scores: dict[str, list[Tensor]] = {"personal": [], "global": []}
    for i in range(n):
        net, h_g, cpn, v = parts(i)
        with torch.no_grad():
            z = net.eval().fc(net.conv(world.probe))
            r_p, r_g = cpn(z * v)
            scores["personal"].append(net.head(r_p * z) + h_g(r_g * z))
            scores["global"].append(F.linear(z, head["weight"], head["bias"]))
    for kept in clients:
        kept["policy"] = {names[k]: w for k, w in kept["policy"].items()}
    server = {"weights": weights, "head": head, "policy": {names[k]: w for k, w in policy_now.items()}}
    return Outcome(server, clients, {view: torch.stack(each) for view, each in scores.items()})
