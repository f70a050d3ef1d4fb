"""Reading arrays from files of strangers: .npz, folders of .npy, parquet; nothing is ever unpickled."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from rayfl.errors import BadData, Missing, Unknown, UserError
from rayfl.files import open_file
from rayfl.memory import check_memory

_LESS = "use fewer samples"


def read_arrays(path: Path, wanted: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return arrays by name, from an .npz file, or from a folder with a file NAME.npy of each.

    Those of a folder are mapped into memory.

    Raises:
        OSError: a file cannot be read.
        ValueError: it holds something else.
    """
    if path.is_dir():
        return {name: _mapped(path / f"{name}.npy") for name in wanted}
    found = {}
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            members = {info.filename: info for info in archive.infolist()}
            for name in wanted:
                info = members.get(f"{name}.npy")
                if info is None:
                    names = ", ".join(sorted(m.removesuffix(".npy") for m in members)[:10])
                    raise Unknown(path, f"has no array {name!r}, only {names or 'none'}")
                check_memory(info.file_size, f"the array {name!r} in {path}", _LESS)
                with archive.open(info) as member:
                    shape, order, kind = _head(member, name)
                    size = math.prod(shape) * kind.itemsize
                    content = member.read()
                if len(content) != size:
                    raise ValueError(f"the array {name!r} announces {size} bytes and has {len(content)}")
                found[name] = np.frombuffer(content, kind).reshape(shape, order=order)
    except (OSError, UserError, ValueError, MemoryError):
        raise
    except zipfile.BadZipFile as error:
        if path.suffix.lower() == ".npz":
            raise ValueError(str(error)) from error
        raise BadData(
            path,
            "is no file that rayfl reads: write the arrays into .npz, a folder of .npy files or .parquet",
        ) from None
    except Exception as error:  # a damaged archive can raise nearly anything
        raise ValueError(str(error)) from error
    return found


def _mapped(path: Path) -> np.ndarray:
    if not path.exists():
        raise Missing(path.parent, f"has no file {path.name}")
    with open_file(path) as file:
        shape, order, kind = _head(file, path.name)
        size, start = math.prod(shape) * kind.itemsize, file.tell()
        if (there := os.fstat(file.fileno()).st_size - start) != size:
            raise ValueError(f"{path.name} announces {size} bytes and has {there}")
        if not size:
            return np.zeros(shape, kind)
        return np.asarray(np.memmap(file, kind, "r", start, shape, order=order))


def _head(file: IO[Any], name: str) -> tuple[tuple[int, ...], Any, np.dtype]:
    """Return shape, order and kind of an array of NumPy's format, whose content follows."""
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            raise ValueError(f"version {version} of the format is not read")
        shape, fortran, kind = read(file)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a forged header can raise nearly anything
        raise ValueError(f"{name} is no array of NumPy's format ({error})") from error
    if kind.hasobject or kind.kind not in "fiuUb" or not kind.itemsize:
        raise ValueError(
            f"{name} holds {kind}, and rayfl reads numbers and texts alone, never pickled objects"
        )
    if any(length < 0 for length in shape):
        raise ValueError(f"{name} has the shape {list(shape)}")
    return shape, "F" if fortran else "C", kind


def read_parquet(path: Path, wanted: Sequence[str], others: bool) -> Mapping[str, np.ndarray]:
    """Return columns of a parquet file by name: [n], or [n, k] of lists of k numbers each.

    Args:
        path: the file.
        wanted: names of columns.
        others: whether all other columns are read, too, but for an index of pandas.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else.
    """
    import pyarrow.parquet as pq  # which few need

    try:
        with open_file(path) as file:
            table = pq.ParquetFile(file)
            names = table.schema_arrow.names
            if missing := [name for name in wanted if name not in names]:
                raise Unknown(path, f"has no column {missing[0]!r}, only {', '.join(names[:10])}")
            if len(set(names)) < len(names):
                raise ValueError("two columns have the same name")
            index = _index(table.schema_arrow)
            rest = [name for name in names if name in wanted or name not in index]
            read = rest if others else list(dict.fromkeys(wanted))
            head = table.metadata
            groups = (head.row_group(i).total_byte_size for i in range(head.num_row_groups))
            size = max(sum(groups), 8 * head.num_rows * len(read))
            check_memory(2 * size, f"the columns of {path}", _LESS)
            found = table.read(columns=read, use_threads=False)
            return {name: column(name, found.column(name)) for name in read}
    except (OSError, UserError, ValueError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(str(error)) from error


def _index(schema: Any) -> list[str]:
    """Return the columns that hold the numbers or names of pandas' rows, which are no data."""
    written = (schema.pandas_metadata or {}).get("index_columns", [])
    return [name for name in written if isinstance(name, str)]


def column(name: str, values: Any) -> np.ndarray:
    """Return an Arrow column as an array: [n], or [n, k] of lists of k numbers each."""
    import pyarrow as pa

    if values.null_count:
        raise ValueError(
            f"column {name!r} has {values.null_count} empty entries: leave out or fill in such rows"
        )
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if any(known(values.type) for known in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)):
        return values.to_numpy()
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return np.array(values.to_pylist(), dtype=str)
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    inner = getattr(values.type, "value_type", None)
    known = isinstance(inner, pa.DataType)  # Hugging Face's Array2D has a text there
    numeric = known and (pa.types.is_integer(inner) or pa.types.is_floating(inner))
    if numeric and any(is_list(values.type) for is_list in lists):
        whole = values.combine_chunks()
        whole = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
        lengths = np.unique(whole.value_lengths().to_numpy(zero_copy_only=False))
        inside = whole.flatten()
        if len(lengths) > 1 or inside.null_count:
            raise ValueError(f"column {name!r} has lists of different lengths, or with empty entries")
        length = lengths[0] if len(lengths) else 0
        return inside.to_numpy(zero_copy_only=False).reshape(len(whole), length)
    raise ValueError(f"column {name!r} holds {values.type}: rayfl reads numbers, texts and lists of numbers")
