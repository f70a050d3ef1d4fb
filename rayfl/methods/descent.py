"""What methods have in common that take steps of plain gradient descent."""

from __future__ import annotations

from typing import Any

from rayfl.training import SGD

PLAIN_STEPS: dict[str, Any] = {"optimiser": SGD(), "momentum": 0.0, "weight_decay": 0.0, "clip": 0.0}
"""What makes the steps of ``client.fit`` plain gradient descent, whatever the optimiser of the run is."""
