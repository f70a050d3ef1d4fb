"""What concerns a process: PyTorch's state, exits, the GPU, and the memory that it keeps."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.modules import module
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from rayfl.errors import Conflict, Missing, Shortage, out_of_memory, text_of
from rayfl.system.error_report import in_one_line
from rayfl.system.text import complain, warn

MMAP_THRESHOLD = 32 * 2**20
"""Bytes above which glibc gives a block back to the system as soon as it is freed."""
CUDA_CONTEXT_BYTES = 600e6
"""Bytes of GPU memory for CUDA, its libraries and kernels in each process, besides torch's own."""


_replaceable = False
_RUNNING = threading.RLock()  # a callback may run another federation, in the same thread


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Set the state of PyTorch that decides numbers and is no setting; restore it at the end.

    New tensors are of float32 and on the CPU, gradients are recorded, nothing is cast to a lower precision,
    and oneDNN computes. Hooks of all modules and modes of all functions are told: actors do not have them.
    """
    hooks = [name for name, there in vars(module).items() if name.startswith("_global_") and there]
    modes = [mode for mode in _get_current_function_mode_stack() if not isinstance(mode, DeviceContext)]
    if odd := [*hooks, *(type(mode).__name__ for mode in modes)]:
        warn(f"PyTorch has {odd[0]} set for all modules or functions here, which other processes do not have")
    mkldnn: Any = torch.backends.mkldnn
    products = mkldnn.matmul  # set when PyTorch is imported
    with ExitStack() as states:
        states.callback(torch.set_default_dtype, torch.get_default_dtype())
        states.callback(setattr, products, "fp32_precision", products.fp32_precision)
        torch.set_default_dtype(torch.float32)
        products.fp32_precision = "ieee"
        for state in (torch.inference_mode(False), torch.enable_grad()):
            states.enter_context(state)
        states.callback(setattr, mkldnn, "enabled", mkldnn.enabled)
        mkldnn.enabled = True
        for device in ("cpu", "cuda"):
            states.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device().type != "cpu":  # the mode costs time in every call
            states.enter_context(torch.device("cpu"))
        yield


@contextmanager
def federation_lock() -> Iterator[None]:
    """Keep other threads of this process from running a federation meanwhile.

    Raises:
        UserError: one does.
    """
    if not _RUNNING.acquire(blocking=False):
        raise Conflict(
            "this process",
            "runs a federation already, in another thread, and both would set its threads and generators",
            "run one after the other, or each in a process of its own",
        )
    try:
        yield
    finally:
        _RUNNING.release()


@contextmanager
def without_collection() -> Iterator[None]:
    """Let Python look for circular garbage after the body, which makes many small objects."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def exit_on_gpu_failure() -> None:
    """End this process if its GPU fails: another one then takes its place."""
    global _replaceable
    _replaceable = True


@contextmanager
def exits_as_errors() -> Iterator[None]:
    """Raise an error where a method's code would end this process silently, as ``sys.exit`` does.

    A KeyboardInterrupt counts where Ctrl-C does not raise it, and so must come from the code itself. Faults
    of the machine are not the code's: if memory does not suffice, of a GPU or of the host, the run stops, and
    if a GPU fails its process ends.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise Shortage(
            "the GPU",
            f"has too little memory ({' '.join(str(error).split())[:400]}). Lower engine.stack, the clients "
            "that train in one call, or raise engine.gpus_per_actor; then go on with --resume",
        ) from error
    except torch.AcceleratorError as error:
        what = f"has failed: {str(error).splitlines()[0]}"
        if _replaceable:
            complain(f"the GPU {what}")
            sys.stderr.flush()
            os._exit(1)  # nothing works in this process any more
        raise Shortage("the GPU", what, "Start the process again, and go on with --resume") from error
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise Shortage(
            "the memory",
            f"of {socket.gethostname()} does not suffice ({in_one_line(text_of(error)) or 'MemoryError'})",
            "Use fewer actors, a smaller training.batch_size or a larger machine; then go on with --resume",
        ) from error
    except (SystemExit, KeyboardInterrupt) as end:
        here = threading.current_thread() is threading.main_thread()
        if (
            isinstance(end, KeyboardInterrupt)
            and here
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            raise
        raise RuntimeError(f"the method's code would end the process ({type(end).__name__}: {end})") from end


def reserved_gpus() -> float | None:
    """Return the share of GPUs that Ray has reserved for this process; None outside of Ray."""
    ray = sys.modules.get("ray")  # which is not there without having been imported
    if ray is None or not ray.is_initialized():
        return None
    try:
        return float(ray.get_runtime_context().get_assigned_resources().get("GPU", 0))
    except (AssertionError, RuntimeError):  # which is how Ray says that
        return None


def cap_gpu_memory(share: float) -> None:
    """Limit this process to its share of a GPU's memory, minus its CUDA context.

    Otherwise the shares and the contexts of all processes together exceed the card.

    Args:
        share: of a GPU; 0 and 1 set no limit.
    """
    if 0 < share < 1 and torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(max(0.0, share - CUDA_CONTEXT_BYTES / total))


def check_gpu() -> None:
    """Refuse to go on without a GPU."""
    if not torch.cuda.is_available():
        raise Missing(
            "engine.device",
            f"is cuda, but torch sees no CUDA device on {socket.gethostname()}",
            "install a PyTorch for CUDA there (rayfl doctor shows what there is), or set engine.device=cpu",
        )


def prepare_gpu(deterministic: bool, tf32: bool) -> None:
    """Check that there is a GPU, and set deterministic kernels and TF32 as asked."""
    check_gpu()
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32  # which PyTorch does unasked, and for convolutions alone


def keep_freed_memory() -> None:
    """Let the process keep memory that it frees; only glibc offers that.

    Otherwise the system has to clear new pages whenever large vectors are allocated: then
    a step of AlexNet takes 50 % longer, and adding an upload of ResNet18 three times as long.
    """
    trim_threshold, mmap_max = -1, -4  # names of options in glibc's malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, -1)  # never
