"""What an upload goes through between a client's training and the server's step, one file each."""

from rayfl.settings.base import classes_by_name
from rayfl.transforms.aggregation import Aggregation
from rayfl.transforms.attacks import Attack
from rayfl.transforms.base import Change, Transform
from rayfl.transforms.compression import Compression
from rayfl.transforms.privacy import ClientDP, LocalDP
from rayfl.transforms.quantise import Quantise
from rayfl.transforms.topk import TopK

TRANSFORMS: dict[str, type[Transform]] = classes_by_name(globals(), Transform)
"""The transforms that come with rayfl, by name: those imported above that are not abstract."""

__all__ = ["TRANSFORMS", "Aggregation", "Attack", "Change", "ClientDP"]
__all__ += ["Compression", "LocalDP", "Quantise", "TopK", "Transform"]
