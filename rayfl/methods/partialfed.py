"""PartialFed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from rayfl.data import FederatedData
from rayfl.errors import Conflict
from rayfl.methods.base import Cohort, Facts, Method, Metrics
from rayfl.settings import above, at_least, at_most
from rayfl.training import Batch, Client, Context, Gather, Mean, Params, Reduction, State, Training, noise
from rayfl.training.net import Net, is_batch_norm

_LINEAR = (nn.Linear, nn.modules.conv._ConvNd, nn.GroupNorm, nn.LayerNorm, nn.Embedding)
"""Layers whose output is linear in their weights, so that a mixture of weights gives that of outputs."""


class PartialFed(Method):
    """Cross-domain personalised federated learning via partial initialisation (Sun et al., NeurIPS 2021).

    A client starts a round with some layers of the global model and its own other ones, trains and uploads
    all of them, and the server averages as in FedAvg. Which layers these are is fixed, or learned by each
    client (``adaptive``): layer by layer, it trains logits of both choices while outputs are mixed by them.

    Deviations from the paper: there is no public code, and the adaptive strategy is a re-implementation from
    summaries, not verified against the full text: the relaxation, its temperatures and its data. It learns on
    validation data where the client has some, with the running statistics of BatchNorm; ties choose global.
    """

    mode: Literal["adaptive", "all", "no_bn", "no_cls", "bottom", "top"] = "adaptive"
    """Layers taken from the global model: learned (``adaptive``), ``all``, all but BatchNorm (``no_bn``), all
    but the classifier (``no_cls``), or the ``k`` first (``bottom``) or last ones (``top``).
    """
    k: Annotated[int, at_least(1)] = 1
    """Layers of ``bottom`` and ``top``; BatchNorm counts with the layer before it."""
    gumbel_start: Annotated[float, above(0)] = 5.0
    """Temperature of the relaxed choice in the first round (``adaptive``)."""
    gumbel_end: Annotated[float, above(0)] = 0.5
    """Temperature below which it does not fall."""
    gumbel_decay: Annotated[float, above(0), at_most(1)] = 0.965
    """Factor of the temperature from round to round."""
    share: Annotated[float, above(0), at_most(1)] = 1.0
    """Share of the samples on which the choice is learned (``adaptive``), drawn anew in each round."""

    @property
    def facts(self) -> Facts:  # type: ignore[override]
        """Choices are learned on validation data."""
        return Facts(validation="preferred" if self.mode == "adaptive" else "unused")

    def prepare(self, context: Context) -> list[list[str]]:
        """Return the net's entries by layers."""
        net = context.net
        layers = layers_of(net)
        if self.mode in ("bottom", "top") and self.k > len(layers):
            raise Conflict("method.k", f"is {self.k}, and the net has {len(layers)} layers")
        if self.mode == "adaptive":
            known = (*_LINEAR, nn.modules.batchnorm._BatchNorm)
            odd = {type(m).__name__ for m in net.modules_of.values() if not isinstance(m, known)}
            if odd:
                raise Conflict(
                    "method.mode",
                    f"is adaptive: it mixes outputs of layers, and has no rule for {', '.join(sorted(odd))}",
                    "Choose another net, or another mode, such as no_bn",
                )
        return layers

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return the model; with learned choices also which layers the client has kept, 1, or loaded, 0."""
        kept: dict[str, Reduction] = {"kept": Gather()} if self.mode == "adaptive" else {}
        return {"weights": Mean(), **kept}

    def download(self, server: State) -> State:
        """Send the model."""
        return {"weights": server["weights"]}

    def init_client(self, client: Client) -> State:
        """Start from the common weights and undecided logits; with these everything is loaded at first."""
        state: State = {"own": client.initial, "trained": False}
        if self.mode == "adaptive":
            logits = torch.zeros(len(client.context.prepared), 2).to(next(iter(client.initial.values())))
            state |= {"logits": logits, "kept": logits[:, 0]}
        return state

    def state_for_new_clients(self, context: Context, state: State) -> State:
        """New clients start from the mean of the layers that stay; where choices are learned, none do."""
        if self.mode == "adaptive":
            return {}
        return {"own": state["own"].select(partial(self._stays_personal, context))}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Choose layers, begin with them, and train everything."""
        state = dict(state)
        if self.mode == "adaptive" and state["trained"]:
            state["logits"] = await self._learn_choices(client, state, down["weights"])
            state["kept"] = (state["logits"][:, 1] > state["logits"][:, 0]).to(state["logits"])
        start = self._chosen_model(client.context, state, down["weights"])
        trained = (await client.fit(start, client.loss, stream=0, phase="local")).weights
        w = down["weights"].replace(trained.tensors)
        kept = {"kept": state["kept"]} if self.mode == "adaptive" else {}
        return {"weights": w, **kept}, {**state, "own": w, "trained": True}

    async def _learn_choices(self, client: Client, state: State, received: Params) -> Tensor:
        """Return the logits, [layers, 2], after an epoch of SGD on them alone."""
        net, layers = client.net.eval, client.context.prepared

        def loss(policy: Params, batch: Batch, extra: dict[str, Any]) -> Tensor:
            logits = policy["logits"]
            u = noise.uniform(batch.key, tuple(logits.shape)).double() + 2.0**-25  # neither 0 nor 1
            gumbel = -(-u.log()).log().to(logits)
            v = F.softmax((logits + gumbel) / extra["temperature"], 1)
            scores = mixed_scores(net, layers, (extra["received"], extra["own"]), v, batch.x)
            return client.loss_of(scores, batch)

        temperature = max(self.gumbel_end, self.gumbel_start * self.gumbel_decay**client.round)
        extra = {"received": received, "own": state["own"], "temperature": temperature}
        start = Params({"logits": state["logits"]}, frozenset({"logits"}))
        split: Literal["train", "val"] = "val" if client.val_samples else "train"
        fitted = await client.fit(
            start,
            loss,
            extra,
            epochs=1,
            weight_decay=0.0,
            stream=1,
            split=split,
            share=self.share,
            phase="choice",
        )
        return fitted.weights["logits"]

    def _chosen_model(self, context: Context, state: State, received: Params) -> Params:
        """Return the model that a client begins with."""
        own: Params = state["own"]
        if self.mode != "adaptive":  # in the order of FedBN and FedPer, which are cases of it
            stays = partial(self._stays_personal, context)
            return received.select(lambda name: not stays(name)).merge(own.select(stays))
        if not state["trained"]:
            return received
        layers = zip(state["kept"].tolist(), context.prepared)
        kept = {name for keep, layer in layers if keep for name in layer}
        return received.merge(own.select(kept.__contains__))

    def _stays_personal(self, context: Context, name: str) -> bool:
        """Return whether an entry stays with the client if the choice is fixed."""
        if self.mode == "no_bn":
            return is_batch_norm(context.net.modules_of[name])
        if self.mode == "no_cls":
            return name in context.net.names("last_layer", "head")
        layers = context.prepared
        loaded = {"all": layers, "bottom": layers[: self.k], "top": layers[-self.k :]}
        return not any(name in layer for layer in loaded[self.mode])

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Take the mean of the models, and note who has kept what, [cohort, layers]."""
        if self.mode != "adaptive":
            return {"weights": up["weights"]}
        return {"weights": up["weights"], "kept": torch.stack([*up["kept"].values()])}

    def server_metrics(self, context: Context, server: State) -> dict[str, float | list[float]]:
        """Return which share of the cohort has kept each layer, how many layers each of its clients, and of
        each layer which clients.
        """
        if "kept" not in server:
            return {}
        kept: Tensor = server["kept"]
        names = [layer[0].rpartition(".")[0] for layer in context.prepared]
        of_layers = {f"kept {name}": by.tolist() for name, by in zip(names, kept.T, strict=True)}
        return {"kept": kept.mean(0).tolist(), "kept_by": kept.sum(1).tolist(), **of_layers}

    def warning(self, training: Training, data: FederatedData, metrics: Metrics) -> str | None:
        """Warn if the clients no longer take anything from the others."""
        kept = metrics.get("kept")
        if not isinstance(kept, list) or min(kept) < 1:
            return None
        return (
            "PartialFed has collapsed to Local: in the last round all clients kept all of their layers. "
            "Learn the choice on validation data (--data.val_fraction 0.2), or fix it (--method.mode no_bn)"
        )

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the layers that the client chose last, as they are now, and the global model."""
        own = await client.eval(self._chosen_model(client.context, state, down["weights"]), x)
        return {"personal": own, "global": await client.eval(down["weights"], x)}


def layers_of(net: Net) -> list[list[str]]:
    """Return the names of the entries of each layer, in order; BatchNorm belongs to the layer before it."""
    layers: list[list[str]] = []
    last: nn.Module | None = None
    for name, module in net.modules_of.items():
        if module is not last and not (is_batch_norm(module) and layers):
            layers.append([])
        layers[-1].append(name)
        last = module
    return layers


def mixed_scores(
    net: Net, layers: list[list[str]], both: tuple[Params, Params], v: Tensor, x: Tensor
) -> Tensor:
    """Return the scores of a net whose layers put out v[l, 0] F(h; w_0) + v[l, 1] F(h; w_1), [B, classes].

    F includes the BatchNorm of its layer, so both branches are computed up to there. Layers without one are
    linear in their weights, and these are mixed.

    Args:
        net: in evaluation mode.
        layers: names of the entries of each layer.
        both: w_0 and w_1.
        v: weights of the mixture, [layers, 2].
        x: inputs, [B, ...].
    """
    mixed = dict(both[0])
    with ExitStack() as hooks:
        for layer, share in zip(layers, v, strict=True):
            modules = {net.modules_of[name]: name.rpartition(".")[0] for name in layer}
            if not any(map(is_batch_norm, modules)):
                mixed |= {name: share[0] * both[0][name] + share[1] * both[1][name] for name in layer}
                continue
            branches = _Branches(share)
            for module, above in modules.items():
                own = [name.rpartition(".")[2] for name in layer if net.modules_of[name] is module]
                weights = [{name: w[f"{above}.{name}"] for name in own} for w in both]
                hooks.enter_context(module.register_forward_pre_hook(branches.record_input, prepend=True))
                hooks.enter_context(module.register_forward_hook(partial(branches.mix_outputs, weights)))
        return net(Params(mixed, frozenset()), x)


class _Branches:
    """The two branches of a layer with BatchNorm, as long as one of its modules directly follows another."""

    def __init__(self, share: Tensor) -> None:
        self._share = share
        self._inside = False  # one of the branches runs
        self._out: Any = None  # the mixture, which the net sees
        self._both: list[Tensor] = []

    def record_input(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Note what goes into a module: the branches, or one input for both."""
        if not self._inside and inputs[0] is not self._out:
            self._both = [inputs[0]] * 2

    def mix_outputs(
        self, weights: list[dict[str, Tensor]], module: nn.Module, inputs: Any, output: Tensor
    ) -> Tensor | None:
        """Return the mixture of what the module puts out with either weights."""
        if self._inside:
            return None
        self._inside = True
        self._both = [functional_call(module, w, (h,)) for w, h in zip(weights, self._both, strict=True)]
        self._inside = False
        self._out = self._share[0] * self._both[0] + self._share[1] * self._both[1]
        return self._out
