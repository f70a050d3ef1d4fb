"""Reading arrays from files of strangers: .npz, folders of .npy, parquet; nothing is ever unpickled.

A file that is damaged may raise any error here: see :func:`rayfl.system.files.explain_decode_errors`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.data.readers.files import check_decoded
from rayfl.data.readers.samples import NamedLabels
from rayfl.errors import BadData, Missing, Unknown
from rayfl.system.files import open_file


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
            raise BadData(path, problem, "write the arrays into .npz, a folder of .npy files or .parquet")
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


def read_parquet(path: Path, wanted: Sequence[str], others: bool, labels: str = "") -> Mapping[str, Any]:
    """Return columns of a parquet file by name: [n], or [n, k] of lists of k numbers each.

    Args:
        path: the file.
        wanted: names of columns.
        others: whether all other columns are read, too, but for an index of pandas.
        labels: name of the column whose categories keep their order, if they have one in pandas.
    """
    import pyarrow as pa  # which few need
    import pyarrow.parquet as pq

    with open_file(path) as file:
        table = pq.ParquetFile(file)
        schema, head = table.schema_arrow, table.metadata
        if missing := [name for name in wanted if name not in schema.names]:
            raise Unknown(path, f"has no column {missing[0]!r}, only {', '.join(schema.names[:10])}")
        index = _index(schema)
        rest = [name for name in schema.names if name in wanted or name not in index]
        read = rest if others else list(dict.fromkeys(wanted))
        groups, columns = range(head.num_row_groups), range(head.num_columns)
        chunks = [head.row_group(i).column(j) for i in groups for j in columns]
        mine = tuple(f"{name}." for name in read)
        own = [chunk for chunk in chunks if f"{chunk.path_in_schema}.".startswith(mine)]
        # A number has 8 bytes; it is held as Arrow's and as NumPy's.
        size = sum(max(16 * chunk.num_values, chunk.total_uncompressed_size) for chunk in own)
        check_decoded(path, size)
        empty = {name: column(path, name, pa.chunked_array([], schema.field(name).type)) for name in read}
        texts = [name for name, values in empty.items() if values.dtype.kind == "U"]
        found = pq.ParquetFile(file, read_dictionary=texts).read(columns=read, use_threads=False)
        check_decoded(path, size + sum(_text_bytes(found.column(name)) for name in texts))
        arrays: dict[str, Any] = {name: column(path, name, found.column(name)) for name in read}
        kind = schema.field(labels).type if labels else None
        if kind is not None and pa.types.is_dictionary(kind) and kind.ordered:
            names = found.column(labels).unify_dictionaries().chunk(0).dictionary.to_pylist()
            numbers = {name: number for number, name in enumerate(names)}
            arrays[labels] = NamedLabels([numbers[each] for each in arrays[labels].tolist()], names)
        return arrays


def _text_bytes(values: Any) -> int:
    """Return the bytes of a column of texts as an array, in which each has the length of the longest."""
    import pyarrow.compute as pc

    chunks = values.dictionary_encode().chunks
    longest = [pc.max(pc.utf8_length(chunk.dictionary)).as_py() or 0 for chunk in chunks]
    return 4 * max(longest, default=0) * (len(values) + sum(len(chunk.dictionary) for chunk in chunks))


def _index(schema: Any) -> list[str]:
    """Return the columns that hold the numbers or names of pandas' rows, which are no data."""
    written = (schema.pandas_metadata or {}).get("index_columns", [])
    return [name for name in written if isinstance(name, str)]


def column(path: object, name: str, values: Any) -> np.ndarray:
    """Return an Arrow column of a file as an array: [n], or [n, k] of lists of k numbers each."""
    import pyarrow as pa

    if values.null_count:
        raise BadData(
            path, f": column {name!r} has {values.null_count} empty entries", "leave out or fill in such rows"
        )
    held = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if pa.types.is_string(held) or pa.types.is_large_string(held):
        whole = values.dictionary_encode().combine_chunks()
        return np.array(whole.dictionary.to_pylist(), dtype=str)[whole.indices.to_numpy()]
    values = values.cast(held)
    if _is_number_type(held) or pa.types.is_boolean(held):
        return np.asarray(values.to_numpy())
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if any(is_list(held) for is_list in lists) and _is_number_type(held.value_type):
        whole = values.combine_chunks()
        whole = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
        inside = whole.flatten()
        lengths = np.unique(whole.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) > 1 or inside.null_count:
            raise BadData(path, f": column {name!r} has lists of different lengths, or with empty entries")
        return inside.to_numpy(zero_copy_only=False).reshape(len(whole), lengths[0] if len(lengths) else 0)
    raise BadData(path, f": column {name!r} holds {held}: rayfl reads numbers, texts and lists of numbers")


def _is_number_type(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
