"""Reading arrays from files of strangers: .npz, folders of .npy, parquet; nothing is ever unpickled.

A file that is damaged makes these functions raise nearly anything: see :func:`rayfl.files.decoding`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.errors import BadData, Missing, Unknown
from rayfl.files import open_file
from rayfl.memory import check_memory

_LESS = "use fewer samples"


def read_arrays(path: Path, wanted: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return arrays by name, from an .npz file, or from a folder with a file NAME.npy of each.

    Those of a folder are mapped into memory.
    """
    if path.is_dir():
        return {name: _mapped(path / f"{name}.npy") for name in wanted}
    found = {}
    with open_file(path) as file:
        if path.suffix.lower() != ".npz" and not zipfile.is_zipfile(file):
            told = (
                "is no file that rayfl reads: write the arrays into .npz, a folder of .npy files or .parquet"
            )
            raise BadData(path, told)
        archive: Any = np.lib.npyio.NpzFile(file, allow_pickle=False)
        for name in wanted:
            if name not in archive.files:
                known = ", ".join(sorted(archive.files)[:10])
                raise Unknown(path, f"has no array {name!r}, only {known or 'none'}")
            size = archive.zip.getinfo(f"{name}.npy").file_size
            check_memory(size, f"the array {name!r} in {path}", _LESS)
            found[name] = archive[name]
    return found


def _mapped(path: Path) -> np.ndarray:
    if not path.exists():
        raise Missing(path.parent, f"has no file {path.name}")
    open_file(path).close()  # a pipe could be waited for without end
    return np.asarray(np.lib.format.open_memmap(path, mode="r"))


def read_parquet(path: Path, wanted: Sequence[str], others: bool) -> Mapping[str, np.ndarray]:
    """Return columns of a parquet file by name: [n], or [n, k] of lists of k numbers each.

    Args:
        path: the file.
        wanted: names of columns.
        others: whether all other columns are read, too, but for an index of pandas.
    """
    import pyarrow.parquet as pq  # which few need

    with open_file(path) as file:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        if missing := [name for name in wanted if name not in names]:
            raise Unknown(path, f"has no column {missing[0]!r}, only {', '.join(names[:10])}")
        index = _index(table.schema_arrow)
        rest = [name for name in names if name in wanted or name not in index]
        read = rest if others else list(dict.fromkeys(wanted))
        head = table.metadata
        groups = (head.row_group(i).total_byte_size for i in range(head.num_row_groups))
        size = max(sum(groups), 8 * head.num_rows * len(read))
        check_memory(2 * size, f"the columns of {path}", _LESS)
        found = table.read(columns=read, use_threads=False)
        return {name: column(path, name, found.column(name)) for name in read}


def _index(schema: Any) -> list[str]:
    """Return the columns that hold the numbers or names of pandas' rows, which are no data."""
    written = (schema.pandas_metadata or {}).get("index_columns", [])
    return [name for name in written if isinstance(name, str)]


def column(path: object, name: str, values: Any) -> np.ndarray:
    """Return an Arrow column of a file as an array: [n], or [n, k] of lists of k numbers each."""
    import pyarrow as pa

    if values.null_count:
        raise BadData(
            path,
            f": column {name!r} has {values.null_count} empty entries: leave out or fill in such rows",
        )
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if _is_number(values.type) or pa.types.is_boolean(values.type):
        return np.asarray(values.to_numpy())
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return np.array(values.to_pylist(), dtype=str)
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if any(is_list(values.type) for is_list in lists) and _is_number(values.type.value_type):
        whole = values.combine_chunks()
        whole = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
        inside = whole.flatten()
        lengths = np.unique(whole.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) > 1 or inside.null_count:
            told = f": column {name!r} has lists of different lengths, or with empty entries"
            raise BadData(path, told)
        return inside.to_numpy(zero_copy_only=False).reshape(len(whole), lengths[0] if len(lengths) else 0)
    raise BadData(
        path, f": column {name!r} holds {values.type}: rayfl reads numbers, texts and lists of numbers"
    )


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
