"""Folders of Hugging Face's encoders of texts, which may be a stranger's: read from disk, running nothing."""

from pathlib import Path
from typing import Any

from rayfl.errors import Conflict, Damaged, Missing
from rayfl.system.text import short_repr


def encoder_config(folder: str) -> Any:
    """Return the configuration of the encoder in a folder, as ``transformers`` reads it.

    Raises:
        UserError: it is not there, or of what is no plain encoder of texts with a padding.
    """
    try:
        from transformers import AutoConfig  # takes seconds
    except ImportError as error:
        raise Missing("transformers", f"cannot be imported ({error}): pip install 'rayfl[text]'") from error
    file = Path(folder).expanduser() / "config.json"
    if not file.is_file():
        raise Missing(file.absolute(), "is not there", "give a folder with an encoder, on every host")
    try:
        config = AutoConfig.from_pretrained(file.parent, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of many kinds
        raise Damaged(file, f"cannot be read as a configuration of transformers ({error})") from error
    for name, fits in (
        ("vocab_size", lambda value: isinstance(value, int)),
        ("hidden_size", lambda value: isinstance(value, int)),
        ("pad_token_id", lambda value: isinstance(value, int)),
        ("is_encoder_decoder", lambda value: not value),
        ("quantization_config", lambda value: value is None),
    ):
        if not fits(value := getattr(config, name, None)):
            problem = f"has {name} {short_repr(value)}: it is of no plain encoder of texts with a padding"
            raise Conflict(file, problem, "choose another one, such as BERT or MiniLM")
    return config
