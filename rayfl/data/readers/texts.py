"""Texts as token ids, by a tokenizer in a folder."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rayfl.errors import Damaged, Missing
from rayfl.settings.imports import is_installed
from rayfl.system.files import read_json


def token_ids(texts: Sequence[str], folder: str, length: int) -> tuple[np.ndarray, int]:
    """Return token ids int64 [n, L], L up to ``length``, padded at their ends, and how many texts are cut.

    Args:
        texts: [n].
        folder: has ``tokenizer.json``, and ``config.json`` with the id of the padding (else 0), as folders of
            Hugging Face's models have.
        length: most tokens of a text.
    """
    if not is_installed("tokenizers"):
        raise Missing("data.text", "needs tokenizers: pip install 'rayfl[text]'")
    from tokenizers import Tokenizer

    file, beside = (Path(folder).expanduser() / name for name in ("tokenizer.json", "config.json"))
    if not file.is_file():
        raise Missing(file.absolute(), "is not there", "give data.tokenizer, a folder with a tokenizer")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # which is of no kind of its own
        raise Damaged(file, f"cannot be read as a tokenizer ({error})") from error
    padding = (read_json(beside).get("pad_token_id") if beside.is_file() else None) or 0
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(pad_id=padding)
    encoded = tokenizer.encode_batch([*texts])
    ids = np.array([each.ids for each in encoded], dtype=np.int64)
    return ids, sum(bool(each.overflowing) for each in encoded)
