"""Files of LEAF that are damaged, forged or of other kinds."""

import json
from typing import Any

from rayfl.errors import BadData, BadValue, Conflict, Damaged, Missing, UserError
from tests.hostile.damage import into_fifo
from tests.hostile.harness import Case

RUN = (
    "run --engine Inline --data LEAFFiles --data.root data --net LeNet --rounds 1 --clients 1 --output out "
    "--data.shape [1,2,2]"
)
FILE, OTHER = "data/train/a.json", "data/test/a.json"
GOOD = {"x": [[0, 1, 0.5, 1]], "y": [1]}


def user(given: Any, **more: Any) -> str:
    return json.dumps({"users": ["a"], "num_samples": [1], "user_data": {"a": given}} | more)


DAMAGED: dict[str, str | bytes] = {
    "empty": "",
    "cut": user(GOOD)[:-3],
    "nested": "[" * 100_000,
    "no users": "{}",
    "no data of a user": user(GOOD, users=["a", "b"]),
    "a user twice": user(GOOD, users=["a", "a"]),
    "a list for a user": user([1]),
    "fewer labels": user({"x": [[1], [2]], "y": [1]}),
    "lists that differ": user({"x": [[1], [1, 2]], "y": [1, 1]}),
    "half a character": '{"users": ["a"], "user_data": {"a": {"x": ["\\ud800"], "y": ["a"]}}}',
}

USER = "data/train/a.json: user 'a'"
UNFIT: dict[str, tuple[str, type[UserError], str]] = {
    "nothing at all": (user({"x": [], "y": []}), BadData, "data/train"),
    "text for a net of images": (user({"x": ["ab"], "y": ["c"]}), BadData, "data"),
    "a label without end": (user(GOOD | {"y": [10**40]}), BadData, USER),
    "whole numbers without end": (user({"x": [[10**40, 1, 1, 1]], "y": [1]}), BadData, USER),
    "texts that differ": (user({"x": ["a", "bc"], "y": ["a", "b"]}), BadData, USER),
    "a part of a number as label": (user(GOOD | {"y": [0.5]}), BadData, USER),
    "lists of nothing": (user({"x": [[]], "y": [1]}), Conflict, "data.shape"),
    "too large": (user({"x": [[1e300, 1, 1, 1]], "y": [1]}), BadData, "LEAFFiles: the training samples"),
}

CASES = [
    *(
        Case(f"LEAF: {name}", RUN, Damaged, FILE, files={FILE: content, OTHER: user(GOOD)})
        for name, content in DAMAGED.items()
    ),
    *(
        Case(f"LEAF: {name}", RUN, kind, place, files={FILE: content, OTHER: user(GOOD)})
        for name, (content, kind, place) in UNFIT.items()
    ),
    Case("LEAF: no folder", RUN, Missing, "data/train"),
    Case("LEAF: no test files", RUN, Missing, "data/test", files={FILE: user(GOOD)}),
    Case("LEAF: another file", RUN, Missing, "data/train", files={"data/train/x.txt": "", OTHER: user(GOOD)}),
    Case("LEAF: no root", RUN.replace("--data.root data ", ""), Missing, "data.root"),
    Case("LEAF: a shape of nothing", RUN.replace("[1,2,2]", "[0]"), BadValue, "data.shape"),
    Case(
        "LEAF: a fifo", RUN, Missing, FILE, files={OTHER: ""}, prepare=lambda folder: into_fifo(folder / FILE)
    ),
]
