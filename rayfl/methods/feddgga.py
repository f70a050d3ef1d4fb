"""FedDG-GA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor

from rayfl.data.task import Kind
from rayfl.methods.base import Cohort, Facts, Method
from rayfl.settings import at_least, at_most
from rayfl.training import Batch, Client, Context, Gather, Params, Reduction, State, weighted_mean


class FedDGGA(Method):
    """Generalisation adjustment (Zhang et al., "Federated domain generalization with generalization
    adjustment", CVPR 2023): FedAvg whose weights of clients follow their generalisation gaps.

    A client for which the mean of the models is worse than its own one gets more weight.

    Deviations from the paper: a client measures its gap when it next receives the model, on its validation
    data or, where it has none, on its training data. It is equal to the authors' public code, but for d,
    which is d (1 - (r - 2)/T) there in round r.
    """

    step: Annotated[float, at_least(0), at_most(1)] = 0.2
    """Length of an adjustment, d in the paper. Round r of T, from 0, has d (1 - r/T). The first gaps are
    known in round 1, so the first length is d (1 - 1/T). With 0 this is FedAvg with uniform means.
    """
    metric: Literal["accuracy", "loss"] = "accuracy"
    """By which the gap is measured."""
    center: bool = False
    """Whether the mean gap of a cohort is taken off."""

    @property
    def facts(self) -> Facts:  # type: ignore[override]
        """Errors are counted by classes; losses go with all tasks."""
        tasks: tuple[Kind, ...] = get_args(Kind) if self.metric == "loss" else ("classes",)
        return Facts(
            validation="preferred", uses_rounds=True, tasks=tasks, reads_losses=self.metric == "loss"
        )

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return models and gaps, one by one: the weights of the mean depend on all gaps."""
        return {"weights": Gather(), "gap": Gather()}

    def init_server(self, context: Context) -> State:
        """Start from equal weights, a_i = 1 / N."""
        return {
            "weights": context.initial,
            "a": torch.full((context.population,), 1 / context.population, dtype=torch.float64),
        }

    def download(self, server: State) -> State:
        """Send the model."""
        return {"weights": server["weights"]}

    def init_client(self, client: Client) -> State:
        """Start without a model to compare with."""
        return {"badness": torch.zeros((), dtype=torch.float64), "known": False}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Measure how much worse the received model is than the own one was; train; measure the own one."""
        now = await self._error_measure(client, down["weights"])
        gap = now - state["badness"] if state["known"] else torch.zeros_like(now)
        dtype = down["weights"]["head.weight"].dtype  # gaps are sent at the width of the weights
        w = (await client.fit(down["weights"], client.loss)).weights
        return {"weights": w, "gap": gap.to(dtype)}, {
            "badness": await self._error_measure(client, w),
            "known": True,
        }

    async def _error_measure(self, client: Client, w: Params) -> Tensor:
        """Return the mean loss of a model on a client's validation data, or its share of errors, float64."""
        net, by_loss = client.net.eval, self.metric == "loss"

        def batch_errors(w: Params, batch: Batch, extra: None) -> Tensor:
            scores = net(w, batch.x)
            if by_loss:
                return client.losses_of(scores, batch).double().sum()
            return (scores.argmax(1) != batch.y).double().sum()

        split: Literal["train", "val"] = "val" if client.val_samples else "train"
        total: Tensor = await client.total(batch_errors, w, split=split)
        return total / (client.val_samples or client.samples)

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Adjust the weights, a_i <- a_i + d_r/N gap_i / max |gap|, and take the weighted mean."""
        ids = torch.tensor(list(up["gap"]))
        gaps = torch.stack([gap.double() for gap in up["gap"].values()])
        if self.center:
            gaps = gaps - gaps.mean()
        a = server["a"].clone()
        if gaps.any():
            length = self.step * (1 - cohort.round / cohort.context.rounds) / cohort.context.population
            a[ids] = (a[ids] + length * gaps / gaps.abs().max()).clamp(0, 1)
            a = a / a.sum() if a.sum() else torch.full_like(a, 1 / len(a))
        mine = a[ids] if a[ids].any() else torch.ones(len(ids), dtype=a.dtype)
        shares = dict(zip(up["gap"], mine.tolist(), strict=True))
        return {"weights": weighted_mean(up["weights"], shares), "a": a}

    def server_metrics(self, context: Context, server: State) -> dict[str, float | list[float]]:
        """Record the clients' weights."""
        return {"a": server["a"].tolist()}
