"""Per-FedAvg."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from torch import Tensor
from torch.func import grad

from rayfl.methods.base import Facts, Method
from rayfl.settings import above, at_least
from rayfl.training import Batch, Client, Params, State
from rayfl.training.dropout import draw_from
from rayfl.training.optimisers import PLAIN_STEPS


class PerFedAvg(Method):
    """Personalised FedAvg by meta-learning (Fallah et al., NeurIPS 2020).

    The global model is trained to be good after one step of gradient descent on a client's data, which every
    client takes before it is scored.

    Deviations from the paper: a batch of the run is divided into the independent batches of a step (two, or
    three with Hessian vectors), and serves as all of them where it is too small.
    """

    alpha: Annotated[float, above(0)] = 0.01
    """Size of the inner step; also of the step before scoring."""
    hessian: Literal["none", "differences"] = "none"
    """``none`` leaves out the second derivatives (FO); ``differences`` takes their product with the gradient
    by finite differences (HF).
    """
    delta: Annotated[float, above(0), "hessian=none leaves it out"] = 1e-3
    """Distance of the finite differences along the gradient."""
    step_samples: Annotated[int, at_least(0)] = 0
    """Samples of the step before scoring, drawn for it; 0 takes all training data."""

    @property
    def facts(self) -> Facts:  # type: ignore[override]
        """Differences of two losses that are nearly equal need all digits."""
        exact = {"precision": ("float32", "float64")}
        return Facts(averaging="uniform", works_with=exact if self.hessian == "differences" else {})

    @property
    def fallback(self) -> None:
        """Let clients that have never trained take the step, too: they keep nothing in any case."""
        return None

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Take steps by the meta-gradient (I - alpha H(w, D'')) g(w - alpha g(w, D), D') (Algorithm 1)."""
        net, hessian = client.net, self.hessian == "differences"

        def loss_at(theta: dict[str, Tensor], rest: dict[str, Tensor], batch: Batch) -> Tensor:
            w = Params({**theta, **{n: t.clone() for n, t in rest.items()}}, frozenset(theta), live=True)
            return client.loss_of(net(w, batch.x), batch)

        def meta_loss(w: Params, batch: Batch, extra: None) -> Tensor:
            """Return the loss after the inner step, with the gradient of the line above."""
            theta = {n: t for n, t in w.items() if n in w.train_names}
            rest = {n: t for n, t in w.items() if n not in theta}
            first, second, *third = _parts(batch, 3 if hessian else 2)
            here = {n: t.detach() for n, t in theta.items()}
            inner = grad(loss_at)(here, rest, first)
            stepped = {n: t - self.alpha * inner[n] for n, t in theta.items()}
            moved = Params({**rest, **stepped}, w.train_names, live=True)
            loss = client.loss_of(net(moved, second.x), second)
            if not hessian:
                return loss
            g = grad(loss_at)({n: moved[n].detach() for n in theta}, rest, second)
            ahead, behind = ({n: t + d * g[n] for n, t in theta.items()} for d in (self.delta, -self.delta))
            draw_from(batch.key)  # dropout must not differ between the two
            term = loss_at(ahead, rest, third[0])
            draw_from(batch.key)
            term = self.alpha * (term - loss_at(behind, rest, third[0])) / (2 * self.delta)
            return loss - (term - term.detach())  # its gradient alone

        return {"weights": (await client.fit(down["weights"], meta_loss)).weights}, state

    async def personalise(self, client: Client, state: State, down: State) -> State:
        """Take one step of gradient descent, w - alpha g(w)."""
        count = self.step_samples or client.samples
        share = min(1.0, (count - 0.5) / client.samples)  # of which the next whole number is count
        step = {"epochs": 1, "batch_size": 0, "lr": self.alpha, "share": share, **PLAIN_STEPS}
        return {**state, "stepped": (await client.fit(down["weights"], client.loss, **step)).weights}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the model after the step, and before."""
        common = await client.eval(down["weights"], x)
        own = await client.eval(state["stepped"], x) if "stepped" in state else common
        return {"personal": own, "global": common}


def _parts(batch: Batch, count: int) -> list[Batch]:
    """Divide a batch into parts of at least two samples; a smaller one is all of them."""
    if len(batch.y) < 2 * count:
        return [batch] * count
    parts = zip(batch.x.tensor_split(count), batch.y.tensor_split(count), strict=True)
    return [batch._replace(x=x, y=y) for x, y in parts]
