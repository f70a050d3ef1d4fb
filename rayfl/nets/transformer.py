"""`Transformer`: an encoder of Hugging Face's from a folder, with a linear head."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rayfl.errors import Conflict, Damaged, Missing
from rayfl.nets.base import Architecture
from rayfl.nets.head import kind_name
from rayfl.nets.split import Shape, SplitNet
from rayfl.settings.imports import is_installed
from rayfl.system.files import read_json


class Encoder(nn.Module):
    """Maps token ids [B, L] to the mean of their last states [B, d], or to all of these [B, L, d].

    Args:
        body: of Hugging Face's, which takes ``input_ids`` and ``attention_mask``.
        padding: the token id that is none.
        positions: whether every position has its own features.
    """

    def __init__(self, body: nn.Module, padding: int, positions: bool) -> None:
        super().__init__()
        self.body = body
        self.padding, self.positions = padding, positions

    def forward(self, x: Tensor) -> Tensor:
        """Return the features."""
        there = x != self.padding
        states: Tensor = self.body(input_ids=x, attention_mask=there.long()).last_hidden_state
        if self.positions:
            return states
        weights = there.unsqueeze(-1).to(states)
        return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


class Transformer(Architecture):
    """An encoder of Hugging Face's, such as BERT, with a new linear head, for token ids int64 [B, L].

    A folder has its ``config.json`` and ``model.safetensors``; nothing is fetched, and no code in it is run.
    The padding is left out of attention and of the mean over positions. Needs ``rayfl[text]``.
    """

    folder: str
    """Folder with the encoder, on every host; mostly it has the tokenizer, too, see ``data.tokenizer``."""
    positions: bool = False
    """Whether each position has scores of its own, for targets that are positions."""

    @property
    def files(self) -> list[str]:
        """The configuration and the weights."""
        there = Path(self.folder).expanduser()
        return [*map(str, (there / "config.json", *sorted(there.glob("*.safetensors")))), *super().files]

    def _facts(self) -> dict[str, Any]:
        file = Path(self.folder).expanduser() / "config.json"
        if not file.is_file():
            raise Missing(file.absolute(), "is not there", "give net.folder with an encoder, on every host")
        found = read_json(file)
        if not isinstance(found, dict) or not isinstance(found.get("vocab_size"), int):
            raise Damaged(file, "does not describe an encoder of texts: it has no vocab_size")
        return {"pad_token_id": 0, "max_position_embeddings": None} | found

    def check_inputs(self, like: Tensor, classes: int) -> None:
        """Refuse inputs that are no token ids, beyond the vocabulary, or too long."""
        facts = self._facts()
        if like.dim() != 2 or like.is_floating_point():
            problem = f"{self} takes token ids of shape (length,), and the data have {kind_name(like)}"
            raise Conflict("net", problem, "name a column of texts as data.text of a Table")
        known, longest = facts["vocab_size"], facts["max_position_embeddings"]
        if not like.is_meta and (largest := int(like.max())) >= known:
            problem = f"{self} knows the token ids 0 to {known - 1}, and the data have {largest}"
            raise Conflict("net", problem, "let data.tokenizer be the folder of the net")
        if longest is not None and like.shape[1] > longest:
            problem = f"{self} takes {longest} tokens, and texts have {like.shape[1]}"
            raise Conflict("net", problem, f"set data.length to {longest} at most")

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        if not is_installed("transformers"):
            raise Missing("net", f"is {self}, which needs transformers: pip install 'rayfl[text]'")
        from transformers import AutoModel  # takes seconds
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        facts, folder = self._facts(), str(Path(self.folder).expanduser())
        try:
            body = AutoModel.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, use_safetensors=True
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise Damaged(self.folder, f"cannot be read as an encoder ({error})") from error
        if getattr(body, "pooler", None) is not None:
            body.pooler = None  # its output is not used
        net = SplitNet(
            Encoder(body, int(facts["pad_token_id"] or 0), self.positions),
            nn.Sequential(),
            nn.Linear(body.config.hidden_size, classes),
        )
        net.draws = True  # attention drops by PyTorch's generator
        return net
