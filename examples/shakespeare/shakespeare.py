"""Speakers of plays as users, in LEAF's form: windows of 80 characters, and the character that follows.

    python examples/shakespeare/shakespeare.py input.txt shakespeare

The text has blocks with a blank line between them, whose first line is a speaker's name and a colon, as the
plays in https://github.com/karpathy/char-rnn have. The last fifth of what a speaker says is for testing.
"""

import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path

LENGTH, STRIDE, LEAST = 80, 40, 4000


def read_speakers(text: str) -> dict[str, str]:
    """Return what each speaker says, for those who say at least ``LEAST`` characters."""
    speakers: dict[str, str] = defaultdict(str)
    for block in text.split("\n\n"):
        name, _, words = block.partition(":\n")
        speakers[name.strip()] += words + "\n"
    return {name: words for name, words in speakers.items() if len(words) >= LEAST}


def cut_windows(text: str) -> dict[str, list[str]]:
    """Return texts of ``LENGTH`` characters (x), and the characters that follow (y)."""
    starts = range(0, len(text) - LENGTH, STRIDE)
    return {"x": [text[k : k + LENGTH] for k in starts], "y": [text[k + LENGTH] for k in starts]}


def write_part(folder: Path, texts: dict[str, str]) -> None:
    """Write samples of all speakers as a file of LEAF."""
    data = {name: cut_windows(text) for name, text in texts.items()}
    counts = [len(each["y"]) for each in data.values()]
    folder.mkdir(parents=True, exist_ok=True)
    content = {"users": list(data), "num_samples": counts, "user_data": data}
    (folder / "speakers.json").write_text(json.dumps(content))


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    content = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    speakers = read_speakers(content.decode())
    write_part(target / "train", {name: text[: len(text) * 4 // 5] for name, text in speakers.items()})
    write_part(target / "test", {name: text[len(text) * 4 // 5 :] for name, text in speakers.items()})
