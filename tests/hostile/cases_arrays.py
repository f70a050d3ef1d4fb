"""Files of arrays that are damaged, forged or of other kinds."""

import io
import zipfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayfl.errors import BadData, Damaged, Missing, Unknown, UserError
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

SAMPLES = "ArrayFiles: the training samples"

FILES: dict[str, tuple[str, bytes, type[UserError], str]] = {
    "empty": ("a.npz", b"", Damaged, "a.npz"),
    "cut": ("a.npz", npz()[:-30], Damaged, "a.npz"),
    "no labels": ("a.npz", zipped(x=npy(X)), Unknown, "a.npz"),
    "no array": ("a.npz", zipped(x=b"none", y=npy(Y)), Damaged, "a.npz"),
    "objects": ("a.npz", zipped(x=npy(np.array([Evil()] * 4)), y=npy(Y)), Damaged, "a.npz"),
    "objects as labels": ("a.npz", npz(y=np.array([Evil(), 1, 2, 3])), Damaged, "a.npz"),
    "a forged shape": ("a.npz", zipped(x=forged(HUGE % "10**9, 2"), y=npy(Y)), Damaged, "a.npz"),
    "a huge shape": ("a.npz", zipped(x=forged(HUGE % "4, 99999999999"), y=npy(Y)), Damaged, "a.npz"),
    "another length": ("a.npz", zipped(x=forged(HUGE % "5, 2"), y=npy(Y)), BadData, "a.npz"),
    "a head of code": ("a.npz", zipped(x=forged("__import__('os')"), y=npy(Y)), Damaged, "a.npz"),
    "records": ("a.npz", npz(x=np.zeros(4, "f4,f4")), BadData, SAMPLES),
    "NaN": ("a.npz", npz(x=X * np.nan), BadData, SAMPLES),
    "labels without a form": ("a.npz", npz(y=np.zeros((4, 2, 2))), BadData, SAMPLES),
    "labels too large for int64": ("a.npz", npz(y=Y.astype(np.uint64) + 2**63), BadData, SAMPLES),
    "fewer labels": ("a.npz", npz(y=Y[:3]), BadData, "a.npz"),
}
TABLES: dict[str, tuple[str, bytes, type[UserError], str]] = {
    "no parquet": ("a.parquet", b"PAR1" * 9, Damaged, "a.parquet"),
    "parquet, cut": ("a.parquet", parquet()[:-9], Damaged, "a.parquet"),
    "far more than it weighs": ("a.parquet", parquet(a=[np.zeros(2_500_000)] * 2), Damaged, "a.parquet"),
    "no column": ("a.parquet", parquet().replace(b"\x01y", b"\x01z"), Unknown, "data"),
    "nothing there": ("a.parquet", parquet(b=[1.0, None]), BadData, "column 'b'"),
    "lists that differ": ("a.parquet", parquet(a=[[1.0], [1.0, 2.0]]), BadData, "column 'a'"),
    "lists of lists": ("a.parquet", parquet(a=[[[1.0]], [[2.0]]]), BadData, "column 'a'"),
    "no numbers and no texts": ("a.csv", b'a,y\n1,"0\n', Damaged, "a.csv"),
    "no text at all": ("a.csv", b"\xff\xfe\x00", Damaged, "a.csv"),
    "no rows": ("a.csv", b"a,y\n", BadData, "data"),
    "no JSON": ("a.jsonl", b'{"a": 1,\n', Damaged, "a.jsonl"),
}

CASES = [
    *(
        Case(f"arrays: {name}", RUN + file, kind, place, files={file: content})
        for name, (file, content, kind, place) in FILES.items()
    ),
    *(
        Case(f"tables: {name}", RUN.replace("ArrayFiles", "Table") + file, kind, place, files={file: content})
        for name, (file, content, kind, place) in TABLES.items()
    ),
    Case("arrays: no file", RUN + "a.npz", Missing, "a.npz"),
    Case("arrays: no name", RUN.replace(" --data.train ", ""), Missing, "data.train"),
    Case("arrays: other names", RUN + "a.npz --data.x a", Unknown, "a.npz", files={"a.npz": npz()}),
    Case("arrays: no .npy", RUN + "a", Missing, "a", files={"a/x.npy": npy(X)}),
    *(
        Case(f"arrays: {name}", RUN + "a", kind, "a", files={"a/x.npy": content, "a/y.npy": npy(Y)})
        for name, kind, content in (
            ("objects in .npy", Damaged, npy(np.array([Evil()]))),
            (".npy of another length", BadData, npy(X[:3])),
        )
    ),
    Case(
        "arrays: a folder", RUN + "a.npz", Missing, "a.npz", prepare=lambda folder: (folder / "a.npz").mkdir()
    ),
    Case("arrays: of Python", "run --data Arrays --engine Inline --output out", Missing, "data"),
]
