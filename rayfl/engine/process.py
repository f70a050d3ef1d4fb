"""What concerns a process: exits, the GPU, and the memory that it keeps."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rayfl.errors import UserError

MAPPED = 32 * 2**20
"""Bytes above which glibc gives a block back to the system as soon as it is freed."""


@contextmanager
def exits_as_errors() -> Iterator[None]:
    """Make an error of what would end this process without a word: a method's code that calls ``sys.exit``.

    A KeyboardInterrupt counts where Ctrl-C does not raise it, and so must come from the code itself.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as end:
        here = threading.current_thread() is threading.main_thread()
        if (
            isinstance(end, KeyboardInterrupt)
            and here
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            raise
        raise RuntimeError(f"the method's code would end the process ({type(end).__name__}: {end})") from end


def prepare_gpu(deterministic: bool, tf32: bool) -> None:
    """See that there is a GPU, and let it use deterministic kernels only, or TF32, if that is asked for."""
    if not torch.cuda.is_available():
        raise UserError("engine.device is cuda, but torch sees no CUDA device here: use device=auto or cpu")
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32  # which PyTorch does unasked, and for convolutions alone


def keep_freed_memory() -> None:
    """Let the process keep what it frees, for the rest of its life; only glibc offers it.

    Where large vectors are allocated anew again and again, and that means pages that the system first has to
    clear, a step of AlexNet takes half as long again, and adding an upload of ResNet18 three times as long.
    """
    trim_threshold, mmap_max = -1, -4  # names of options in glibc's malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, -1)  # never
