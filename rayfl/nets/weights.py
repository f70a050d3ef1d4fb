"""Weights from a file, as every net may begin with them."""

import hashlib
from functools import cache
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.nn.parameter import is_lazy

from rayfl.errors import Conflict, Damaged, Missing
from rayfl.system.files import explain_read_errors, open_file

_COUNT = "num_batches_tracked"  # of BatchNorm, which nets here have not


def file_digest(path: Path) -> str:
    """Return a SHA-256 of a file, which is read once while it stays as it is."""
    with explain_read_errors(path, "every host needs the file"):
        state = path.stat()
    return _digest_of(path, state.st_mtime_ns, state.st_size)


@cache
def _digest_of(path: Path, changed: int, size: int) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def load_weights(module: nn.Module, file: str, net: str) -> None:
    """Give a module the weights of a file, in memory that the processes of a host share while nobody writes.

    Args:
        module: has these names and shapes.
        file: safetensors, such as ``rayfl export`` writes.
        net: its name, for errors.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise Missing(path.absolute(), f"is needed for {net}, and not there", "every host needs the file")
    try:
        found = {name: t for name, t in load_file(path).items() if not name.endswith(_COUNT)}
    except (OSError, SafetensorError) as error:
        raise Damaged(path, f"cannot be read as safetensors ({error})") from error
    state, own = module.state_dict(keep_vars=True), getattr(module, "own_name", str)
    wanted = {own(n): t for n, t in state.items() if not n.endswith(_COUNT)}
    if odd := sorted(found.keys() ^ wanted.keys()):
        where = "it" if odd[0] in found else "the net"
        problem = f"is {file}: {odd[0]!r} ({len(odd)} such names) is in {where} alone"
        raise Conflict("net.weights", problem, f"give a file of {net}")
    for name, tensor in wanted.items():
        if is_lazy(tensor):
            tensor.materialize(found[name].shape)
        if found[name].shape != tensor.shape:
            shapes = f"{name!r} has the shape {[*found[name].shape]}, and in the net {[*tensor.shape]}"
            raise Conflict("net.weights", f"is {file}: {shapes}", f"give a file of {net}")
        tensor.data = found[name].to(tensor.dtype)
