"""The loggers that a federation may name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rayfl.callbacks.logger import Logger
from rayfl.callbacks.mlflow import MLflow
from rayfl.callbacks.tensorboard import TensorBoard
from rayfl.callbacks.wandb import WandB
from rayfl.errors import BadValue, Missing
from rayfl.settings.imports import installed

Name = Literal["tensorboard", "mlflow", "wandb"]

LOGGERS: dict[Name, type[Logger]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def check_loggers(names: Sequence[Name]) -> None:
    """Refuse a logger that is named twice, or whose package is not installed.

    Raises:
        UserError: there is one.
    """
    for place, name in enumerate(names):
        if name in names[:place]:
            raise BadValue("loggers", f"has {name} twice")
        if not installed(name):
            extra = "" if name == "tensorboard" else f"'rayfl[{name}]'"
            raise Missing(
                "loggers", f"has {name}, which is not installed: pip install {extra or name}, or leave it out"
            )
