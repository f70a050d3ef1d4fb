"""Fed-CO2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from torch import Tensor, nn

from rayfl.data import FederatedData
from rayfl.methods.base import Cohort, Facts, Method, Metrics
from rayfl.methods.fedbn import BatchNormPart, in_batch_norm
from rayfl.settings import above, at_least
from rayfl.training import Batch, Client, Context, Gather, Mean, Params, Reduction, State, Training
from rayfl.training.net import Cut, Net

NetWeights = dict[str, Params]
OTHER = {"online": "offline", "offline": "online"}
CHOSEN = {"both": ("online", "offline"), "online": ("online",), "offline": ("offline",), "none": ()}


class FedCO2(Method):
    """Cooperation of online and offline models (Cai et al., NeurIPS 2023).

    Every client has two nets. The online net is averaged as in FedBN, the offline net never leaves the
    client; predictions are fused by adding their logits. Under feature skew (Algorithm 1) the two nets of a
    client first teach each other (intra-client transfer), and then learn, together with their own task, to
    extract features on which the offline classifiers of the other clients work (inter-client transfer).
    Without feature skew (Algorithm 2, ``intra=none``, ``inter=none``) they are trained side by side.

    Deviations from the paper: none in the formulas. Where it is silent: the exchanged classifier is the whole
    fully connected stack; each phase takes one epoch; a client's first participation has no mutual phase;
    teachers and foreign classifiers run in eval mode, these with their owners' BatchNorm statistics; clients
    that are not sampled are represented by their last classifier, and by the common initial one before their
    first. Each phase starts with a velocity of its own. The recorded training loss is the sum over both nets.
    """

    facts = Facts(averaging="uniform")
    views = ("personal", "online", "offline")

    mu: Annotated[float, at_least(0)] = 1.0
    """Weight of the loss through each foreign classifier."""
    mutual_epochs: Annotated[int, at_least(1), "intra=none leaves it out"] = 1
    """Epochs of mutual learning in a round."""
    adapt_epochs: Annotated[int, at_least(1)] | None = None
    """Epochs of local adaptation; those of the run if not given."""
    kd_temperature: Annotated[float, above(0)] = 1.0
    """Temperature of mutual learning. The divergence is multiplied by its square, so that gradients keep
    their size.
    """
    bn_personal: BatchNormPart = "all"
    """What of the online net's BatchNorm layers is personal: ``all``, or ``affine_only`` (weight and bias;
    running statistics are averaged).
    """
    intra: Literal["both", "to_online", "to_offline", "none"] = "both"
    """Direction of the mutual learning: ``both``, ``to_online`` (the offline net teaches), ``to_offline``
    (the online net teaches) or ``none``.
    """
    inter: Literal["both", "online", "offline", "none"] = "both"
    """Which nets learn through foreign classifiers: ``both``, ``online``, ``offline`` or ``none``; with none
    no classifier is sent. Where all clients have one domain, as with label skew alone, the paper has
    ``intra=none`` and ``inter=none`` (Algorithm 2).
    """
    personal: Literal["bn", "head", "bn_and_head"] = "bn"
    """What the online net keeps to itself: its BatchNorm layers (``bn``), its classifier as ``exchange`` cuts
    it (``head``), or both (``bn_and_head``).
    """
    exchange: Cut = "fc_stack"
    """The classifier that is sent: everything after the flatten with its BatchNorm layers (``fc_stack``), or
    the last linear layer (``last_layer``).
    """
    offline_init: Literal["same", "independent"] = "same"
    """Offline nets start from the common weights (``same``) or each from its own (``independent``)."""

    def warning(self, training: Training, data: FederatedData, metrics: Metrics) -> str | None:
        """Warn of foreign classifiers where all clients have one domain."""
        train = data.held.indices["train"][: data.held.ends["train"][data.seen]]
        if self.inter == "none" or len(set(data.dataset.domains[train].tolist())) > 1:
            return None
        return (
            "all clients have one domain, and Fed-CO2 adds up their losses through the classifiers of all "
            "others, which is meant for several domains: training may diverge, or learn nothing. For label "
            "skew the paper has Algorithm 2: method.intra=none method.inter=none"
        )

    # ---- what is exchanged

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return the shared part of the online net and, for the transfer, the offline classifier."""
        weights: dict[str, Reduction] = {"weights": Mean()}  # eq. 2
        return weights if self.inter == "none" else {**weights, "head": Gather()}

    def shared(self, net: Net, name: str, module: nn.Module) -> bool:
        """Share the online net but for its BatchNorm layers, its classifier, or both."""
        in_bn = self.personal != "head" and in_batch_norm(name, module, self.bn_personal)
        in_head = self.personal != "bn" and name in net.names(self.exchange, "head")
        return not (in_bn or in_head)

    def communication_bytes(
        self, client: Client, down: State, up: Mapping[str, Any]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Count the foreign classifiers only: a client has its own."""
        if "heads" in down:
            down = {**down, "heads": {j: head for j, head in down["heads"].items() if j != client.id}}
        return super().communication_bytes(client, down, up)

    # ---- server

    def init_server(self, context: Context) -> State:
        """Start with the initial classifier for every client (Algorithm 1, line 3)."""
        state: State = {"weights": context.shared_part(context.initial)}
        if self.inter != "none":
            head = context.head_part(context.initial, self.exchange)
            state["heads"] = dict.fromkeys(range(context.population), head)
        return state

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Average the online nets and store the offline classifiers beside those of earlier rounds."""
        if self.inter == "none":
            return {"weights": up["weights"]}
        return {"weights": up["weights"], "heads": dict(sorted({**server["heads"], **up["head"]}.items()))}

    # ---- client

    def init_client(self, client: Client) -> State:
        """Start both nets from the common weights, or the offline net from its own."""
        offline = client.initial if self.offline_init == "same" else client.random_weights()
        return {"own": client.personal_part(client.initial), "offline": offline, "trained": False}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Run both phases of a round (Algorithm 1; Algorithm 2 without the transfers)."""
        net, cut = client.net, self.exchange

        def mutual_loss(w: NetWeights, batch: Batch, teachers: NetWeights) -> Tensor:
            """Eq. 4 and 5: each net learns from the other as it was when the round began."""
            loss = batch.x.new_zeros(())
            for m in CHOSEN[self.intra.removeprefix("to_")]:
                taught = net.eval(teachers[OTHER[m]], batch.x)
                loss = loss + client.task.divergence(taught, net(w[m], batch.x), self.kd_temperature)
            return loss

        def foreign_loss(head: Params, z: Tensor, batch: Batch, own: bool | Tensor) -> Tensor:
            """Return the loss of features z, [B, d], sent through a foreign classifier.

            In a stack ``own`` is a tensor where the classifier is that of one of its clients: of this one
            nothing goes in, and 0 comes out, whatever the classifier would make of its features.
            """
            if isinstance(own, Tensor):
                z = z.masked_fill(own, 0)
            loss = client.loss_of(net.eval.head(head, z, cut), batch)
            return loss.masked_fill(own, 0) if isinstance(own, Tensor) else loss

        def adapt(w: NetWeights, batch: Batch, foreign: dict[str, Any]) -> Tensor:
            """Eq. 6 and 7: the own task, and the same task through the others' frozen classifiers."""
            loss = batch.x.new_zeros(())
            for m in CHOSEN["both"]:
                z = net.features(w[m], batch.x, cut)
                loss = loss + client.loss_of(net.head(w[m], z, cut), batch)
                if m in CHOSEN[self.inter]:
                    for head, own in zip(foreign["heads"], foreign["own"]):
                        if own is not True:
                            loss = loss + self.mu * foreign_loss(head, z, batch, own)
            return loss

        nets: NetWeights = {"online": down["weights"].merge(state["own"]), "offline": state["offline"]}
        if self.intra != "none" and state["trained"]:
            taught = await client.fit(nets, mutual_loss, nets, epochs=self.mutual_epochs, phase="mutual")
            nets = taught.weights
        heads = down.get("heads", {})
        # all clients are handed the same heads, so that a stack holds them once
        foreign = {"heads": list(heads.values()), "own": [j == client.id for j in heads]}
        nets = (await client.fit(nets, adapt, foreign, epochs=self.adapt_epochs, phase="adapt")).weights

        up = {"weights": client.shared_part(nets["online"])}
        if self.inter != "none":
            up["head"] = client.context.head_part(nets["offline"], cut)
        own = client.personal_part(nets["online"])
        return up, {"own": own, "offline": nets["offline"], "trained": True}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score both nets and their fusion, the sum of logits, of numbers the mean (eq. 3)."""
        online = await client.eval(down["weights"].merge(state["own"]), x)
        offline = await client.eval(state["offline"], x)
        return {"personal": client.task.fuse(online, offline), "online": online, "offline": offline}
