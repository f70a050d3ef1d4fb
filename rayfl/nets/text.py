"""Nets for texts as token ids: what comes after the last L characters."""

from collections import OrderedDict
from typing import Annotated

from torch import Tensor, nn

from rayfl.nets.base import TokenArchitecture
from rayfl.nets.split import Shape, SplitNet
from rayfl.settings import at_least


class TokenMLP(TokenArchitecture):
    """The neural language model of Bengio et al. (JMLR 2003), without direct connections.

    Every token is embedded, the embeddings of a text are put side by side, and a hidden layer with tanh
    follows. 175,568 parameters for texts of 80 tokens and 80 classes.
    """

    embedding: Annotated[int, at_least(1)] = 16
    """Numbers that a token is embedded in."""
    hidden: Annotated[int, at_least(1)] = 128
    """Units of the hidden layer."""

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        embed = nn.Embedding(self.vocabulary or classes, self.embedding)
        hidden = nn.Linear(shape[0] * self.embedding, self.hidden)
        return SplitNet(
            nn.Sequential(embed, nn.Flatten()),
            nn.Sequential(hidden, nn.Tanh()),
            nn.Linear(self.hidden, classes),
        )


class OutputsOfLSTM(nn.LSTM):
    """An LSTM of which all outputs are taken: [B, L, D] of [B, L, E]."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Return the output after every token."""
        outputs: Tensor = super().forward(x)[0]
        return outputs


class LastOfLSTM(OutputsOfLSTM):
    """An LSTM of which the last output is taken: [B, D] of [B, L, E]."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Return the output after the last token."""
        return super().forward(x)[:, -1]


class CharLSTM(TokenArchitecture):
    """The LSTM of LEAF for Shakespeare (Caldas et al., 2018): 8, then 256 twice.

    819,920 parameters for 80 classes, of which 2,048 are the second bias that PyTorch gives every gate. It
    trains in a loop only: PyTorch's LSTM has no form for many clients at once.
    """

    embedding: Annotated[int, at_least(1)] = 8
    """Numbers that a token is embedded in."""
    hidden: Annotated[int, at_least(1)] = 256
    """Units of every layer."""
    layers: Annotated[int, at_least(1)] = 2
    """Layers of the LSTM."""
    positions: bool = False
    """Whether it tells what follows every token, for data whose targets are classes of positions."""

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        kind = OutputsOfLSTM if self.positions else LastOfLSTM
        layers = OrderedDict[str, nn.Module](
            embed=nn.Embedding(self.vocabulary or classes, self.embedding),
            lstm=kind(self.embedding, self.hidden, self.layers, batch_first=True),
        )
        return SplitNet(nn.Sequential(layers), nn.Sequential(), nn.Linear(self.hidden, classes))
