"""FedAvg."""

from __future__ import annotations

from typing import Any

from rayfl.methods.base import Method
from rayfl.training import Client, State


class FedAvg(Method):
    """Federated averaging (McMahan et al., AISTATS 2017).

    Every client trains the server's model on its own data; the server takes the mean of the results.

    Deviations from the paper: none. BatchNorm statistics are averaged like the weights.
    """

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train the received model and send all of it (Algorithm 1, ClientUpdate)."""
        w = (await client.fit(down["weights"], client.loss)).weights
        return {"weights": w}, state
