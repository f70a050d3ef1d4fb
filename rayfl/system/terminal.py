"""The console of all command lines."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from rayfl.system.text import is_hidden


class Terminal(Console):
    """rich's console for text from anywhere: without markup, and without characters that a terminal acts on.

    They are left out and not escaped, because rich has measured the text without them by then.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def on_broken_pipe(self) -> None:
        """Raise the error; rich would end the program itself."""
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the parts of what is printed; moves of the cursor, which are rich's own, as they are."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                text = "".join(c for c in segment.text if c in "\n\t" or not is_hidden(c))
                yield Segment(text, segment.style)
