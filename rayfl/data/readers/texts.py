"""Texts as token ids, by a tokenizer in a folder."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rayfl.errors import Damaged, Missing
from rayfl.settings.imports import is_installed
from rayfl.system.encoder_folder import encoder_config


def token_ids(texts: Sequence[str], folder: str, length: int) -> tuple[np.ndarray, int]:
    """Return token ids int64 [n, L], L up to ``length``, padded at their ends, and how many texts are cut.

    Args:
        texts: [n].
        folder: has ``tokenizer.json``, and ``config.json``, which says what the padding is.
        length: most tokens of a text.
    """
    if not is_installed("tokenizers"):
        raise Missing("data.text", "needs tokenizers: pip install 'rayfl[text]'")
    from tokenizers import Tokenizer

    file = Path(folder).expanduser() / "tokenizer.json"
    if not file.is_file():
        raise Missing(file.absolute(), "is not there", "give data.tokenizer, a folder with a tokenizer")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # which is of no kind of its own
        raise Damaged(file, f"cannot be read as a tokenizer ({error})") from error
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(pad_id=encoder_config(folder).pad_token_id)
    encoded = tokenizer.encode_batch([*texts])
    ids = np.array([each.ids for each in encoded], dtype=np.int64)
    return ids, sum(bool(each.overflowing) for each in encoded)
