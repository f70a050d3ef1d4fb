"""Files of LEAF that are damaged, forged or of other kinds."""

import json
from typing import Any

from tests.hostile.damage import into_fifo, into_folder, into_loop
from tests.hostile.harness import Case

RUN = (
    "run --engine Inline --data LEAFFiles --data.root data --net LeNet --rounds 1 --clients 1 --output out "
    "--data.shape [1,2,2]"
)
FILE, OTHER = "data/train/a.json", "data/test/a.json"
GOOD = {"x": [[0, 1, 0.5, 1]], "y": [1]}


def user(given: Any, **more: Any) -> str:
    return json.dumps({"users": ["a"], "num_samples": [1], "user_data": {"a": given}} | more)


FILES: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "a.json is damaged"),
    "no text": (b"\xff", "a.json is damaged"),
    "cut": (user(GOOD)[:-3], "a.json is damaged"),
    "nested": ("[" * 100_000, "nested too deeply"),
    "a list": ("[1]", "it must be like"),
    "no users": ("{}", "it must be like"),
    "no data of a user": (user(GOOD, users=["a", "b"]), "user 'b' has no 'user_data'"),
    "a user as number": (user(GOOD, users=[1]), "user 1 has no 'user_data'"),
    "a user twice": (user(GOOD, users=["a", "a"]), "user 'a' is there twice"),
    "a list for a user": (user([1]), "user 'a' must have lists 'x' and 'y'"),
    "no labels": (user({"x": [[1]]}), "user 'a' must have lists 'x' and 'y'"),
    "fewer labels": (user({"x": [[1], [2]], "y": [1]}), "of the same length"),
    "a negative label": (user(GOOD | {"y": [-1]}), "the label -1"),
    "a label without end": (user(GOOD | {"y": [10**40]}), "and it must be 0 or above"),
    "a label as text": (user(GOOD | {"y": ["1"]}), "the label '1'"),
    "true as label": (user(GOOD | {"y": [True]}), "the label True"),
    "numbers alone": (user({"x": [1], "y": [1]}), "rayfl reads lists of equally many numbers"),
    "lists of nothing": (user({"x": [[]], "y": [1]}), "rayfl reads lists of equally many numbers"),
    "lists that differ": (user({"x": [[1], [1, 2]], "y": [1, 1]}), "lists of equally many numbers"),
    "words": (user({"x": [["to", "be"]], "y": [1]}), "lists of equally many numbers"),
    "too large": (user({"x": [[1e300, 1, 1, 1]], "y": [1]}), "lists of equally many numbers"),
    "whole numbers without end": (user({"x": [[10**40, 1, 1, 1]], "y": [1]}), "lists of equally many"),
    "nothing at all": (user({"x": [], "y": []}), "has no samples"),
    "another shape": (user({"x": [[1, 2]], "y": [1]}), "has 2 numbers per sample, not the shape [1, 2, 2]"),
    "texts that differ": (user({"x": ["a", "bc"], "y": ["a", "b"]}), "texts of different lengths"),
    "a text without letters": (user({"x": [""], "y": ["a"]}), "or empty ones"),
    "a word after a text": (user({"x": ["a"], "y": ["be"]}), "no single character"),
    "half a character": (
        '{"users": ["a"], "user_data": {"a": {"x": ["\\ud800"], "y": ["a"]}}}',
        "is damaged",
    ),
    "text and numbers": (user({"x": ["abcd"], "y": ["a"]}), "samples of several kinds"),
    "text for a net of images": (user({"x": ["ab"], "y": ["c"]}), "samples of several kinds"),
}

CASES = [
    *(
        Case(f"LEAF: {name}", RUN, says=says, files={FILE: content, OTHER: user(GOOD)})
        for name, (content, says) in FILES.items()
    ),
    Case("LEAF: no folder", RUN, says="train cannot be read"),
    Case("LEAF: no test files", RUN, says="test cannot be read", files={FILE: user(GOOD)}),
    Case(
        "LEAF: another file", RUN, says="no files of LEAF", files={"data/train/x.txt": "", OTHER: user(GOOD)}
    ),
    Case("LEAF: no root", RUN.replace("--data.root data ", ""), says="root"),
    Case("LEAF: a shape of nothing", RUN.replace("[1,2,2]", "[0]"), says="its numbers must be at least 1"),
    Case("LEAF: no shape", RUN.replace("[1,2,2]", "[]"), says="its numbers must be at least 1"),
    *(
        Case(
            f"LEAF: {name}",
            RUN,
            says="a.json",
            files={FILE: "", OTHER: ""},
            prepare=lambda f, h=how: h(f / FILE),
        )
        for name, how in (("a folder", into_folder), ("a fifo", into_fifo), ("a loop", into_loop))
    ),
]
