"""Files of arrays that are damaged, forged or of other kinds."""

import io
import zipfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.hostile.damage import into_fifo, into_folder, into_loop
from tests.hostile.harness import Case

RUN = "run --engine Inline --data ArrayFiles --net MLP --rounds 1 --clients 1 --output out --data.train "
X, Y = np.ones((4, 2), np.float32), np.arange(4) % 2


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **({"x": X, "y": Y} | arrays))
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def forged(head: str) -> bytes:
    text = head.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"a": [0.0, 1.0], "y": [0, 1]} | columns), file)
    return file.getvalue()


class Evil:
    def __reduce__(self) -> Any:
        import os

        return os.system, ("touch CANARY",)


HUGE = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }"

FILES: dict[str, tuple[str, bytes, str]] = {
    "empty": ("a.npz", b"", "a.npz is damaged"),
    "cut": ("a.npz", npz()[:-30], "a.npz is damaged"),
    "no archive": ("a.npz", b"PK" * 50, "a.npz is damaged"),
    "no labels": ("a.npz", zipped(x=npy(X)), "a.npz has no array 'y', only x"),
    "objects": ("a.npz", zipped(x=npy(np.array([Evil()])), y=npy(Y)), "never pickled objects"),
    "objects as labels": ("a.npz", npz(y=np.array([Evil(), 1, 2, 3])), "never pickled objects"),
    "a forged shape": ("a.npz", zipped(x=forged(HUGE % "10**9, 2"), y=npy(Y)), "no array of NumPy's format"),
    "a huge shape": ("a.npz", zipped(x=forged(HUGE % "99999999999, 2"), y=npy(Y)), "announces 7999"),
    "a negative shape": ("a.npz", zipped(x=forged(HUGE % "-4, -2"), y=npy(Y)), "has the shape [-4, -2]"),
    "a head of code": ("a.npz", zipped(x=forged("__import__('os')"), y=npy(Y)), "no array of NumPy's"),
    "records": ("a.npz", npz(x=np.zeros(4, "f4,f4")), "numbers and texts alone"),
    "complex numbers": ("a.npz", npz(x=X * 1j), "numbers and texts alone"),
    "NaN": ("a.npz", npz(x=X * np.nan), "NaN or infinity in x, first in sample 0"),
    "labels as numbers": ("a.npz", npz(y=Y / 2), "no regression"),
    "fewer labels": ("a.npz", npz(y=Y[:3]), "4 in x and 3 in y"),
    "one number": ("a.npz", npz(x=np.float32(1)), "x of float32 []"),
    "no parquet": ("a.parquet", b"PAR1" * 9, "a.parquet is damaged"),
    "parquet, cut": ("a.parquet", parquet()[:-9], "a.parquet is damaged"),
    "no column": ("a.parquet", parquet().replace(b"\x01y", b"\x01z"), "a.parquet"),
    "texts": ("a.parquet", parquet(b=["u", "v"]), "column 'b' is no column of numbers"),
    "nothing there": ("a.parquet", parquet(b=[1.0, None]), "column 'b' has 1 empty entries"),
    "lists that differ": ("a.parquet", parquet(a=[[1.0], [1.0, 2.0]]), "lists of different lengths"),
    "lists of lists": ("a.parquet", parquet(a=[[[1.0]], [[2.0]]]), "column 'a' holds list"),
}

CASES = [
    *(
        Case(f"arrays: {name}", RUN + file, says=says, files={file: content})
        for name, (file, content, says) in FILES.items()
    ),
    Case("arrays: no file", RUN + "a.npz", says="a.npz cannot be read"),
    Case("arrays: no name", RUN.replace(" --data.train ", ""), says="ArrayFiles needs a file"),
    Case("arrays: a path as name", RUN + "a --data.y ../y", says="must be the name of an array"),
    Case(
        "arrays: two names", RUN + "a.npz --data.x [a,b]", says="it must be one name", files={"a.npz": npz()}
    ),
    Case("arrays: no .npy", RUN + "a", says="y.npy", files={"a/x.npy": npy(X)}),
    Case(
        "arrays: objects in .npy",
        RUN + "a",
        says="never pickled objects",
        files={"a/x.npy": npy(np.array([Evil()])), "a/y.npy": npy(Y)},
    ),
    Case("arrays: .npy cut", RUN + "a", says="and has 31", files={"a/x.npy": npy(X)[:-1], "a/y.npy": npy(Y)}),
    *(
        Case(
            f"arrays: {name}",
            RUN + "a.npz",
            says="a.npz",
            files={"a.npz": b""},
            prepare=lambda f, h=how: h(f / "a.npz"),
        )
        for name, how in (("a folder", into_folder), ("a fifo", into_fifo), ("a loop", into_loop))
    ),
    Case("arrays: of Python", "run --data Arrays --output out", says="Arrays are given in Python"),
]
