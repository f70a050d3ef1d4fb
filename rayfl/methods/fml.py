"""FML."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from torch import Tensor

from rayfl.methods.base import Facts, Method
from rayfl.nets import Architecture
from rayfl.settings import at_least, at_most
from rayfl.training import Batch, Client, Context, Params, State


class FML(Method):
    """Federated mutual learning (Shen et al., arXiv 2006.16765, 2020).

    Every client has a private model of any architecture, and trains it together with a shared one, the meme:
    each learns from the labels and from what the other predicts. Memes are averaged.

    Deviations from the paper: none known in training; both models take their steps at once, on the same
    batches, and learn from the other's predictions as they are (no gradient reaches the teacher).
    """

    facts = Facts(averaging="uniform", nets="any")

    alpha: Annotated[float, at_least(0), at_most(1)] = 0.5
    """Weight of the labels for the private model; the rest is the meme's. With 1 it is trained locally."""
    beta: Annotated[float, at_least(0), at_most(1)] = 0.5
    """Weight of the labels for the meme; the rest is the private model's. With 1 memes are FedAvg."""
    meme: Architecture | str | None = None
    """The net of the meme; that of the clients if not given, the first one where they have several."""
    init: Literal["independent", "common"] = "independent"
    """Private models start each from its own weights (``independent``), or from ``common`` ones, from which
    they and memes of the same net learn nothing of each other at first.
    """

    def init_server(self, context: Context) -> State:
        """Start from the common weights of the meme's net."""
        return {"weights": context.initial if self.meme is None else context.initial_of("meme")}

    def init_client(self, client: Client) -> State:
        """Start the private model."""
        return {"own": client.initial if self.init == "common" else client.random_weights()}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train both models (eq. 5 and 6)."""
        net, meme_net, alpha, beta = client.net, client.nets["meme"], self.alpha, self.beta

        def loss(w: dict[str, Params], batch: Batch, extra: None) -> Tensor:
            own, meme = net(w["own"], batch.x), meme_net(w["meme"], batch.x)
            of_own = alpha * client.loss_of(own, batch) + (1 - alpha) * client.task.divergence(meme, own)
            of_meme = beta * client.loss_of(meme, batch) + (1 - beta) * client.task.divergence(own, meme)
            return of_own + of_meme

        w = (await client.fit({"own": state["own"], "meme": down["weights"]}, loss)).weights
        return {"weights": w["meme"]}, {"own": w["own"]}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the private model and the meme."""
        meme = await client.eval(down["weights"], x, "meme")
        return {"personal": await client.eval(state["own"], x), "global": meme}
