"""ImageNet weights of torchvision's nets, from files that are at hand: nothing is downloaded."""

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rayfl.errors import Conflict, Damaged, Missing
from rayfl.nets.split import Shape

_HEADS = ("classifier.", "fc.")
_OLD_DENSE = re.compile(r"(denselayer\d+\.(?:norm|conv))\.(\d)")  # names from before they lost a dot


def load_pretrained(net: nn.Module, weights: Any, name: str, shape: Shape) -> None:
    """Load all of torchvision's weights for a net but its head's.

    Args:
        net: as torchvision builds it, with the stem that the weights were trained with.
        weights: which weights: a member of one of torchvision's enumerations.
        name: the net's name, for messages.
        shape: channels, height and width of an image.
    """
    if shape[0] != 3:
        raise Conflict("net", f"{name} takes 3 channels, the images have {shape[0]}", "leave pretrained out")
    path = Path(torch.hub.get_dir(), "checkpoints", Path(weights.url).name)
    if not path.is_file():
        raise Missing(
            path,
            f"is needed for net {name}, and not there. Download {weights.url} and save it there, on every "
            "machine, or set TORCH_HOME to the folder whose hub/checkpoints has it",
        )
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        state = {_OLD_DENSE.sub(r"\1\2", n): t for n, t in found.items() if not n.startswith(_HEADS)}
        missing, unexpected = net.load_state_dict(state, strict=False)
    except (RuntimeError, OSError, EOFError, AttributeError, pickle.UnpicklingError) as error:
        raise Damaged(path, f"cannot be loaded for net {name} ({error})") from error
    odd = [*unexpected, *(n for n in missing if not n.startswith(_HEADS))]
    if odd:
        raise Damaged(path, f"is of another net than {name}, see {odd[0]!r}")
