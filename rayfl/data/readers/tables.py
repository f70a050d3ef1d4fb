"""Reading arrays and tables from files of strangers; nothing is ever unpickled.

A file that is damaged may raise any error here: see :func:`rayfl.system.files.explain_decode_errors`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.data.readers.files import check_decoded
from rayfl.errors import BadData, Missing, Unknown
from rayfl.system.files import explain_decode_errors, explain_read_errors, open_file
from rayfl.system.memory import check_memory

if TYPE_CHECKING:
    import pandas as pd

_HELD = 8
"""How much larger a text file of numbers is in memory, at most."""


def read_arrays(path: Path, wanted: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return arrays by name, from an .npz file, or from a folder with a file NAME.npy of each.

    Those of a folder are mapped into memory.
    """
    if path.is_dir():
        found = {name: _map_array(path / f"{name}.npy") for name in wanted}
        _check_lengths(path, {name: array.shape for name, array in found.items()})
        return found
    with open_file(path) as file:
        if path.suffix.lower() != ".npz" and not zipfile.is_zipfile(file):
            problem = "is no file that rayfl reads"
            remedy = "write arrays into .npz or a folder of .npy files; --data Table reads tables"
            raise BadData(path, problem, remedy)
        archive: Any = np.lib.npyio.NpzFile(file, allow_pickle=False)
        members = archive.zip.namelist()  # of which NumPy prefers one without the ending
        if missing := [name for name in wanted if f"{name}.npy" not in members]:
            known = ", ".join(sorted(archive.files)[:10])
            raise Unknown(path, f"has no array {missing[0]!r}, only {known or 'none'}")
        check_decoded(path, sum(archive.zip.getinfo(f"{name}.npy").file_size for name in wanted))
        _check_lengths(path, {name: _shape(archive.zip, f"{name}.npy") for name in wanted})
        return {name: archive[f"{name}.npy"] for name in wanted}


def _shape(archive: zipfile.ZipFile, member: str) -> tuple[int, ...]:
    """Return the shape of an array in an archive, of which its first bytes tell; refuse what is no array."""
    with archive.open(member) as file:
        version = "_".join(map(str, np.lib.format.read_magic(file)))
        shape: tuple[int, ...] = getattr(np.lib.format, f"read_array_header_{version}")(file)[0]
        return shape


def _check_lengths(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    if len({shape[:1] for shape in shapes.values()}) > 1:
        each = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise BadData(path, f"has arrays of different lengths: {each}")


def _map_array(path: Path) -> np.ndarray:
    if not path.exists():
        raise Missing(path.parent, f"has no file {path.name}")
    open_file(path).close()  # a pipe could be waited for without end
    return np.asarray(np.lib.format.open_memmap(path, mode="r"))


def read_frame(path: Path) -> pd.DataFrame:
    """Return the rows of a .csv, .tsv, .jsonl or .parquet file."""
    import pandas as pd

    readers: dict[str, Callable[[Any], Any]] = {
        ".csv": pd.read_csv,
        ".tsv": partial(pd.read_csv, sep="\t"),
        ".jsonl": partial(pd.read_json, lines=True, dtype=False),
        ".parquet": partial(_read_parquet, path),
    }
    if path.suffix.lower() not in readers:
        raise BadData(path, "is no table that rayfl reads", f"write it as one of {', '.join(readers)}")
    with explain_read_errors(path):
        file = open_file(path)
    with explain_decode_errors(path, "write it again"), file:
        check_memory(_HELD * path.stat().st_size, f"the content of {path}", "use fewer rows")
        frame: pd.DataFrame = readers[path.suffix.lower()](file)
        return frame.reset_index(drop=True)


def _read_parquet(path: Path, file: Any) -> pd.DataFrame:
    import pyarrow as pa  # which few need
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file)
    head, schema = table.metadata, table.schema_arrow
    groups, columns = range(head.num_row_groups), range(head.num_columns)
    chunks = [head.row_group(i).column(j) for i in groups for j in columns]
    # A number has 8 bytes; it is held as Arrow's and as NumPy's. A text is held once, with its places.
    check_decoded(path, sum(max(16 * chunk.num_values, chunk.total_uncompressed_size) for chunk in chunks))
    kinds = (pa.types.is_string, pa.types.is_large_string)
    texts = [field.name for field in schema if any(is_text(field.type) for is_text in kinds)]
    return pq.ParquetFile(file, read_dictionary=texts).read(use_threads=False).to_pandas()


def column(path: object, name: str, values: Any) -> np.ndarray:
    """Return an Arrow column of a file as an array: [n], or [n, k] of lists of k entries each."""
    import pyarrow as pa

    if values.null_count:
        problem = f": column {name!r} has {values.null_count} empty entries"
        raise BadData(path, problem, "leave out or fill in such rows")
    held = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if isinstance(held, pa.BaseExtensionType):
        raise BadData(path, f": column {name!r} holds {held}", "give numbers, texts or lists of numbers")
    found: np.ndarray = values.cast(held).to_numpy()
    if len(found) and isinstance(found[0], np.ndarray):
        if len(lengths := {*map(len, found)}) > 1:
            raise BadData(path, f": column {name!r} has lists of different lengths, {sorted(lengths)[:2]}")
        found = np.stack(list(found))
    return found
