"""FedCP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfl.methods.base import Facts, Method
from rayfl.randomness import generator
from rayfl.settings import at_least
from rayfl.training import Batch, Client, Context, Mean, Params, Reduction, State, noise
from rayfl.training.net import Net

BANDWIDTHS = (10, 15, 20, 50)
"""Of the kernels in the distance of features."""
TEMPERATURE = 1.0
"""Of the Gumbel-softmax of the policy."""


class FedCP(Method):
    """Separating feature information by a conditional policy (Zhang et al., KDD 2023).

    For every sample a small policy network divides each feature into a part for the client's own head and a
    part for the frozen global head; the scores of both are added. The extractor is drawn to the received one.

    Deviations from the paper: none known in training. For scores the policy's softmax is taken without
    Gumbel noise, which the public code keeps (``gumbel_eval``). The global head and the policy reach a client
    when it is sampled, and serve it until it is sampled again; the newest extractor is scored always.
    """

    facts = Facts(tasks=("classes", "numbers", "labels"))

    lam: Annotated[float, at_least(0)] = 0.1
    """Weight of the distance between own and received features, lambda in the paper."""
    gumbel_eval: bool = False
    """Whether the policy draws noise for scores, too."""

    def shared(self, net: Net, name: str, module: nn.Module) -> bool:
        """Share the extractor; heads go their own way."""
        return name not in net.names("last_layer", "head")

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return the extractor, the mean of own and global head, and the policy."""
        return {"weights": Mean(), "head": Mean(replaces=False), "policy": Mean()}

    def trained(self, client: Client, down: State, up: Mapping[str, Any]) -> State:
        """What the client has sent: its head, which is no change of the one received, among it."""
        return {**down, **up}

    def init_server(self, context: Context) -> State:
        """Start from the common weights and a random policy."""
        head = context.personal_part(context.initial)
        return {
            "weights": context.shared_part(context.initial),
            "head": head,
            "policy": initial_policy(context.seed, context.initial),
        }

    def init_client(self, client: Client) -> State:
        """Start from the common head; the context is drawn, as long as there has been no exchange."""
        head = client.personal_part(client.initial)
        draw = generator(client.context.seed, "client context", client.id, 0)  # the same in every round
        drawn = torch.rand(head["head.weight"].shape[1], generator=draw)
        context = F.normalize(drawn.to(head["head.weight"]), dim=0)
        policy = initial_policy(client.context.seed, client.initial)
        state: State = {"head": head, "global_head": head, "policy": policy, "context": context}
        return {**state, "trained": False}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train extractor, own head and policy beside the frozen global ones (Algorithm 1)."""
        net, given = client.net, down["head"]
        context = context_of(state["head"]) if state["trained"] else state["context"]

        def loss(w: dict[str, Params], batch: Batch, frozen: dict[str, Any]) -> Tensor:
            """Cross-entropy of both heads' scores + lambda times the distance of the features."""
            z = net.features(w["net"], batch.x)
            own, rest = divide_features(
                w["policy"], z, frozen["context"], gumbel_noise(noise.split(batch.key, 0), len(z), z)
            )
            scores = net.head(w["net"], own) + net.eval.head(frozen["head"], rest)
            distance = squared_mmd(z, net.eval.features(frozen["extractor"], batch.x).detach())
            return client.loss_of(scores, batch) + self.lam * distance

        start = {"net": down["weights"].merge(state["head"]), "policy": down["policy"]}
        frozen = {"extractor": down["weights"], "head": given, "context": context}
        w = (await client.fit(start, loss, frozen)).weights
        head = client.personal_part(w["net"])
        up = {"weights": client.shared_part(w["net"]), "head": 0.5 * (head + given), "policy": w["policy"]}
        own = {"head": head, "global_head": given, "policy": w["policy"], "context": context}
        return up, {**own, "trained": True}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the newest extractor with what the client had in its last round: heads, policy and context.

        The global model is the extractor with the newest global head, which gets all of every feature.
        """
        net = client.net.eval
        z = await client.features(down["weights"], x)
        drawn = None
        if self.gumbel_eval:
            key = torch.randint(2**62, (), generator=client.generator("gumbel")).to(z.device)
            drawn = gumbel_noise(key, len(z), z)
        own, rest = divide_features(state["policy"], z, state["context"], drawn)
        personal = net.head(state["head"], own) + net.head(state["global_head"], rest)
        return {"personal": personal, "global": net.head(down["head"], z)}


def initial_policy(seed: int, initial: Params) -> Params:
    """Return the initial policy of the run: Linear(d, 2d) as PyTorch draws it, and LayerNorm(2d)."""
    like = initial["head.weight"]
    d = like.shape[1]
    draw = generator(seed, "policy")
    weight, bias = ((2 * torch.rand(shape, generator=draw) - 1) / d**0.5 for shape in ((2 * d, d), (2 * d,)))
    tensors = {"weight": weight, "bias": bias, "scale": torch.ones(2 * d), "shift": torch.zeros(2 * d)}
    return Params({name: t.to(like) for name, t in tensors.items()}, frozenset(tensors))


def context_of(head: Params) -> Tensor:
    """Return the context, [d]: the sum of the head's rows, of length 1."""
    return F.normalize(head["head.weight"].sum(0), dim=0)


def divide_features(
    policy: Params, z: Tensor, context: Tensor, drawn: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Divide features, [B, d], into what is for the own and for the global head, [B, d] each.

    Args:
        policy: Linear(d, 2d), LayerNorm(2d), ReLU.
        z: features.
        context: [d].
        drawn: Gumbel noise, [B, 2, d].
    """
    h = F.linear(z * context, policy["weight"], policy["bias"])
    h = F.layer_norm(h, h.shape[-1:], policy["scale"], policy["shift"]).relu().view(-1, 2, z.shape[1])
    shares = ((h if drawn is None else h + drawn) / TEMPERATURE).softmax(1)
    return shares[:, 0] * z, shares[:, 1] * z


def gumbel_noise(key: Tensor, count: int, like: Tensor) -> Tensor:
    """Return standard Gumbel noise, [count, 2, d], for features like these, [B, d]."""
    u = noise.uniform(key, (count, 2, like.shape[1])) + 2.0**-25  # never 0; the largest is rounded to 1
    u = u.clamp(max=1 - 2.0**-24)
    return -torch.log(-torch.log(u.to(like.dtype)))


def squared_mmd(x: Tensor, y: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy of two samples, [B, d], with a sum of Gaussian kernels."""

    def gaussian_kernel(a: Tensor, b: Tensor) -> Tensor:
        square = (a[:, None] - b[None]).square().sum(2)
        return torch.stack([(-square / (2 * width)).exp() for width in BANDWIDTHS]).sum(0)

    return (gaussian_kernel(x, x) + gaussian_kernel(y, y) - 2 * gaussian_kernel(x, y)).mean()
