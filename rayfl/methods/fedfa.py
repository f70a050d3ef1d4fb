"""FedFA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from torch import Tensor, nn

from rayfl.errors import Conflict
from rayfl.methods.base import Cohort, Facts, Method
from rayfl.nets import FFA, ffa_layers
from rayfl.settings import at_least, at_most
from rayfl.training import Client, Context, Gather, Mean, Params, Reduction, State, weighted_mean
from rayfl.training.net import Net


class FedFA(Method):
    """Federated feature augmentation (Zhou and Konukoglu, ICLR 2023): FedAvg, with statistics that are drawn.

    Layers of the net replace the channel means and deviations of each image by ones drawn around them; how
    wide, they learn from the batch and, by the server, from how much the statistics differ between clients.

    Deviations from the paper: none known in the formulas. Compared with the paper and public code, which
    takes one variance over all clients and channels (``var_mode``), so that all channels count alike.
    """

    facts = Facts(tasks=("classes", "numbers", "labels"))

    prob: Annotated[float, at_least(0), at_most(1)] = 0.5
    """Probability with which a layer augments a batch."""
    momentum: Annotated[float, at_least(0), at_most(1)] = 0.99
    """Of the running statistics that clients upload."""
    var_mode: Literal["channel", "scalar"] = "channel"
    """Variance over clients: of each ``channel``, or one of all, as in the public code (``scalar``)."""

    def prepare(self, context: Context) -> None:
        """Switch the layers on; refuse nets without any."""
        layers = ffa_layers(context.net.module)
        if not layers:
            raise Conflict("net", "has no layers of FedFA: choose FedFAAlexNet, or FedFACNN for small images")
        for layer in layers.values():
            layer.prob, layer.momentum = self.prob, self.momentum

    def shared(self, net: Net, name: str, module: nn.Module) -> bool:
        """Average what FedAvg averages; the statistics go apart."""
        return not isinstance(module, FFA)

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return the weights, and every client's running statistics, for their variance over clients."""
        return {"weights": Mean(), "statistics": Gather(replaces=False)}

    def init_server(self, context: Context) -> State:
        """Start from the common weights and statistics."""
        return {
            "weights": context.shared_part(context.initial),
            "statistics": context.personal_part(context.initial),
        }

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train with augmented features."""
        w = (await client.fit(down["weights"].merge(down["statistics"]), client.loss)).weights
        own = client.personal_part(w).select(lambda name: not name.endswith("_var"))
        return {"weights": client.shared_part(w), "statistics": own}, state

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Average, and take the variances of the statistics over the clients."""
        gathered: dict[int, Params] = up["statistics"]
        by_samples = dict(zip(cohort.ids, cohort.samples, strict=True))
        weights = {i: by_samples[i] if cohort.context.averaging == "samples" else 1 for i in gathered}
        mean: Params = weighted_mean(gathered, weights)
        statistics = server["statistics"].merge(mean)
        if len(gathered) > 1:  # one client has no variance: the earlier one stays
            stacked = Params.stack(gathered.values())
            statistics = statistics.replace(
                {f"{n}_var": self._client_variance(t) for n, t in stacked.items()}
            )
        return {"weights": up["weights"], "statistics": statistics}

    def _client_variance(self, values: Tensor) -> Tensor:
        """Return the variance over clients of values [clients, C], as [C]."""
        if self.var_mode == "channel":
            return values.var(0, correction=0)
        return values.var(correction=0).expand(values.shape[1]).clone()

    def trained(self, client: Client, down: State, up: Mapping[str, Any]) -> State:
        """The client's own weights and statistics."""
        return {"weights": up["weights"], "statistics": down["statistics"].merge(up["statistics"])}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the model, which augments nothing then."""
        scores = await client.eval(down["weights"].merge(down["statistics"]), x)
        return {"personal": scores, "global": scores}
