"""`Transformer`: an encoder of Hugging Face's from a folder, with a linear head."""

from pathlib import Path

from torch import Tensor, nn

from rayfl.errors import Conflict, Damaged
from rayfl.nets.base import Architecture
from rayfl.nets.head import kind_name
from rayfl.nets.split import Shape, SplitNet
from rayfl.nets.weights import file_digest
from rayfl.system.encoder_folder import encoder_config


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

    def digests(self) -> dict[str, str]:
        """Return those of configuration and weights, and the version of transformers."""
        encoder_config(self.folder)
        from transformers import __version__

        there = Path(self.folder).expanduser()
        files = {
            f"file {f}": file_digest(f) for f in (there / "config.json", *sorted(there.glob("*.safetensors")))
        }
        return {"transformers": __version__, **files, **super().digests()}

    def check_inputs(self, like: Tensor, classes: int) -> None:
        """Refuse inputs that are no token ids, or beyond the vocabulary."""
        if like.dim() != 2 or like.is_floating_point():
            problem = f"{self} takes token ids of shape (length,), and the data have {kind_name(like)}"
            raise Conflict("net", problem, "name a column of texts as data.text of a Table")
        known = encoder_config(self.folder).vocab_size
        if not like.is_meta and (largest := int(like.max())) >= known:
            problem = f"{self} knows the token ids 0 to {known - 1}, and the data have {largest}"
            raise Conflict("net", problem, "let data.tokenizer be the folder of the net")

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        from transformers import AutoModel  # takes seconds
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        config = encoder_config(self.folder)
        try:
            body, found = AutoModel.from_pretrained(
                Path(self.folder).expanduser(),
                config=config,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                attn_implementation="eager",  # others leave out a mask where no text of a call is padded
                output_loading_info=True,
            )
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, AttributeError) as error:
            raise Damaged(self.folder, f"cannot be read as an encoder ({error})") from error
        lost = [name for name in found["missing_keys"] if not name.startswith("pooler.")]
        if lost or found["mismatched_keys"]:
            odd = [*lost, *found["mismatched_keys"]][0]
            raise Damaged(self.folder, f"lacks weights of its encoder, or has others, such as {odd}")
        if getattr(body, "pooler", None) is not None:
            body.pooler = None  # its output is not used
        encoder = Encoder(body, config.pad_token_id, self.positions)
        net = SplitNet(encoder, nn.Sequential(), nn.Linear(config.hidden_size, classes))
        net.draws = True  # attention drops by PyTorch's generator
        return net
