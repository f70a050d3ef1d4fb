"""FDSE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rayfl.errors import Conflict
from rayfl.methods.base import Cohort, Facts
from rayfl.methods.fdse.consensus import counted_mean, minimum_norm_step, mix_by_similarity
from rayfl.methods.fdse.consistency import Consistency, ratio_of_gradients
from rayfl.methods.partly_personal import PartlyPersonal
from rayfl.nets import dse_blocks
from rayfl.settings import above, at_least, below
from rayfl.training import Batch, Client, Context, Gather, Mean, Net, Params, Reduction, State
from rayfl.training.optimisers import PLAIN_STEPS


class Blocks(NamedTuple):
    """The DSE blocks of the net: their names, their BatchNorm layers of the DFE, and their regulariser."""

    names: list[str]
    norms: list[str]
    consistency: Consistency


class FDSE(PartlyPersonal):
    """Federated learning with domain shift eraser (Wang et al., CVPR 2025).

    The net's layers are DSE blocks: a domain-agnostic feature extractor (DFE), and an eraser (DSE) that
    derives further channels. DFE and head are aggregated so that no client's update is opposed (eq. 8), each
    client's DSE is mixed with those of clients whose DSE is similar (eq. 9), and a regulariser draws the
    statistics of what the DSE puts out to the global ones (eq. 4 to 7).

    Deviations from the paper: similarities are computed tensor by tensor, as in the public code, because
    those of whole blocks are so close to 1 that eq. 9 becomes a plain mean. There is no regularisation in the
    first round, whose targets would be untrained. Updates of norm 0 have no direction and take no part in
    eq. 8. Layers outside DSE blocks are units of consensus of their own; statistics of other BatchNorm layers
    are averaged. The paper prints neither ``gamma`` nor where the running estimates start.
    """

    facts = Facts(averaging="uniform", tasks=("classes", "numbers", "labels"))

    lam: Annotated[float, at_least(0)] = 0.1
    """Weight of the regulariser, lambda."""
    tau: Annotated[float, above(0)] = 0.1
    """Temperature of the attention over clients' DSE parameters."""
    beta: float = 0.001
    """The regulariser of block l is weighted by exp(beta l)."""
    gamma: Annotated[float, at_least(0), below(1)] = 0.9
    """Share of the past in the running estimates of the regulariser."""
    unit: Literal["block", "tensor"] = "block"
    """What is combined as one vector: the DFE of a ``block``, or each ``tensor``."""
    attn_unit: Literal["block", "tensor"] = "tensor"
    """What is compared between clients as one vector: the DSE of a ``block``, or each ``tensor``."""
    reg: Literal["paper", "code"] = "paper"
    """The regulariser of the ``paper``, or that of the public ``code``."""
    ema_init: Literal["received", "bias_corrected"] = "received"
    """Running estimates begin a round at the ``received`` statistics, or with the first batch
    (``bias_corrected``); the ``code`` regulariser always begins with the first batch.
    """
    consensus: bool = True
    """Whether eq. 8 aggregates; if not, DFE and head are averaged."""
    attention: bool | Literal["mean"] = True
    """Whether eq. 9 mixes; if not, each client keeps its own DSE, and with ``mean`` they are averaged."""
    share_every: Annotated[int, at_least(0), "0: never"] = 10
    """Rounds between two measurements of the regulariser's share of the gradient."""
    unseen_epochs: Annotated[int, at_least(1)] = 5
    """Epochs of the adaptation to an unseen domain."""
    unseen_lr: Annotated[float, at_least(0)] = 1e-3
    """Learning rate of this adaptation, constant, whatever ``training.schedule`` is; below 10 it hardly
    moves anything.
    """

    def prepare(self, context: Context) -> Blocks:
        """Find the DSE blocks; those that are frozen have no statistics to compare."""
        names = [b for b in dse_blocks(context.net.module) if f"{b}.dfe_bn.running_mean" in context.initial]
        if not names:
            raise Conflict(
                "net",
                "trains no blocks of FDSE: choose FDSEAlexNet, DSECNN (small images), DSEResNet50 or DSEViT",
            )
        consistency = Consistency(len(names), self.beta, self.gamma, self.reg, self.ema_init)
        return Blocks(names, [f"{name}.dfe_bn" for name in names], consistency)

    # ---- what is exchanged

    def shared(self, net: Net, name: str, module: nn.Module) -> bool:
        """Share everything but the DSE: ``dse_conv`` and ``dse_bn`` of every block."""
        return not any(name.startswith((f"{b}.dse_conv.", f"{b}.dse_bn.")) for b in dse_blocks(net.module))

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return DFE and head with their statistics, the DSE's parameters, and a measurement."""
        each: dict[str, Reduction] = {"weights": Gather() if self.consensus else Mean()}
        if self.attention:
            each["dse"] = Mean() if self.attention == "mean" else Gather()
        return {**each, "share": Gather()}

    def communication_bytes(
        self, client: Client, down: State, up: Mapping[str, Any]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Leave out the measurement, which the method does not need."""
        return super().communication_bytes(client, down, {key: up[key] for key in up if key != "share"})

    # ---- server

    def init_server(self, context: Context) -> State:
        """Start without any client's DSE: clients have the initial one."""
        return {"weights": context.shared_part(context.initial), "dse": {}, "figures": {}}

    def download(self, server: State) -> State:
        """Send DFE and head, and the mean DSE where there is one."""
        mean = {"dse": server["dse"]} if isinstance(server["dse"], Params) else {}
        return {"weights": server["weights"], **mean}

    def download_for(self, server: State, client: int) -> State:
        """Send a client its own mixture of DSE parameters, from its second participation on."""
        own = server["dse"].get(client) if self.attention is True else None
        return {} if own is None else {"dse": own}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Agree on DFE and head (eq. 8), and mix the DSEs (eq. 9)."""
        weights, dse = up["weights"], up.get("dse", {})
        figures: dict[str, Tensor] = {}
        if self.consensus:
            weights, figures = self._consensus_step(server["weights"], list(up["weights"].values()), cohort)
        if self.attention is True:
            mixed, selves = self._mix_dses(dse, cohort.context.prepared.names)
            dse = dict(sorted({**server["dse"], **mixed}.items()))
            figures |= selves
        if "share" in up:
            figures["regulariser/share"] = torch.tensor(list(up["share"].values()), dtype=torch.float64)
        return {"weights": weights, "dse": dse, "figures": figures}

    def _consensus_step(
        self, old: Params, new: Sequence[Params], cohort: Cohort
    ) -> tuple[Params, dict[str, Tensor]]:
        """Return weights after the step of eq. 8, with averaged statistics, and what there is to record."""
        counts = cohort.samples if cohort.context.averaging == "samples" else [1] * len(new)
        tensors = {n: counted_mean([w[n] for w in new], counts) for n in old if n not in old.train_names}
        figures: dict[str, Tensor] = {}
        for unit, names in trainable_units(old, self.unit, cohort.context.prepared.names).items():
            step = minimum_norm_step(old, new, names)
            tensors |= step.tensors
            figures |= {f"norm/{unit}": step.norms, f"u/{unit}": step.shares}
        return Params({name: tensors[name] for name in old}, old.train_names), figures

    def _mix_dses(
        self, dse: Mapping[int, Params], blocks: Sequence[str]
    ) -> tuple[dict[int, Params], dict[str, Tensor]]:
        """Return each client's mixture (eq. 9), and the weights that clients give themselves."""
        mixed = list(dse.values())
        figures: dict[str, Tensor] = {}
        for unit, names in trainable_units(mixed[0], self.attn_unit, blocks).items():
            rows, attention = mix_by_similarity(
                [w.select(names.__contains__) for w in dse.values()], self.tau
            )
            mixed = [w.merge(row) for w, row in zip(mixed, rows)]
            figures[f"self/{unit}"] = attention.diagonal().clone()
        return dict(zip(dse, mixed)), figures

    def server_metrics(self, context: Context, server: State) -> dict[str, float | list[float]]:
        """Return, per unit and client, norms, u and self-weights, and the regulariser's share."""
        return {name: values.tolist() for name, values in server["figures"].items()}

    # ---- client

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train DFE and DSE together on cross-entropy + lambda L_con."""
        w = self._whole_model(state, down)
        up: dict[str, Any] = {}
        if self.lam == 0 or client.round == 0:
            w = (await client.fit(w, client.loss, phase="local")).weights
        else:
            net, (_, norms, consistency) = client.net, client.context.prepared
            targets = consistency.global_statistics(down["weights"], norms)

            def both_terms(
                w: dict[str, Params], batch: Batch, targets: list[Tensor]
            ) -> tuple[Tensor, Tensor]:
                scores, inputs = net.watch(w["net"], batch.x, norms)
                con = consistency.loss(inputs, w["seen"], targets)
                return client.loss_of(scores, batch), self.lam * con

            def loss(w: dict[str, Params], batch: Batch, targets: list[Tensor]) -> Tensor:
                own_task, con = both_terms(w, batch, targets)
                return own_task + con

            start = {"net": w, "seen": consistency.initial_estimates(targets)}
            if self.share_every and (client.round - 1) % self.share_every == 0:
                up["share"] = float(
                    await client.total(ratio_of_gradients(both_terms), start, targets, batches=1)
                )
            w = (await client.fit(start, loss, targets, phase="local")).weights["net"]
        own = client.personal_part(w)
        if self.attention:
            up["dse"] = own.trainable()
        return {"weights": client.shared_part(w), **up}, {"own": own}

    async def adapt(self, client: Client, state: State, down: State, moves: bool) -> State:
        """Draw the statistics of an unseen domain to the global ones by its DSE alone (Algorithm 3).

        Its steps are of plain gradient descent on L_con. The run's weight decay, momentum and clip have no
        part in it: weight decay alone would move the DSE much further than L_con does.
        """
        w = self._whole_model(state, down)
        own = client.personal_part(w)
        blocks, norms, consistency = client.context.prepared
        net = client.net.training_only([f"{block}.dse_bn" for block in blocks])
        targets = consistency.global_statistics(w, norms)

        def loss(w: dict[str, Params], batch: Batch, targets: list[Tensor]) -> Tensor:
            inputs = net.watch(w["net"], batch.x, norms)[1]
            return consistency.loss(inputs, w["seen"], targets)

        start = {"net": Params(w.tensors, own.train_names), "seen": consistency.initial_estimates(targets)}
        lr = self.unseen_lr if moves else 0.0
        fitted = await client.fit(start, loss, targets, epochs=self.unseen_epochs, lr=lr, **PLAIN_STEPS)
        return {"own": fitted.weights["net"].select(own.keys().__contains__), "adapted": True}

    def _whole_model(self, state: State, down: State) -> Params:
        """Return the client's whole model; the mixture of DSEs replaces its own, unless that has adapted."""
        own: Params = down["weights"].merge(state["own"])
        return own.merge(down["dse"]) if "dse" in down and "adapted" not in state else own

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the client's own model."""
        return {"personal": await client.eval(self._whole_model(state, down), x)}


def trainable_units(
    w: Params, kind: Literal["block", "tensor"], blocks: Sequence[str]
) -> dict[str, list[str]]:
    """Return unit -> its trainable entries: DSE blocks and other layers, or single tensors."""
    units: dict[str, list[str]] = {}
    for name in (n for n in w if n in w.train_names):
        block = next((b for b in blocks if name.startswith(f"{b}.")), name.rpartition(".")[0])
        units.setdefault(block if kind == "block" else name, []).append(name)
    return units
