"""Command lines: options, values and the ways to give them."""

from tests.hostile.harness import Case

TINY = (
    "run --engine Inline --data Synthetic --data.train 200 --data.test 60 --net lenet --tensorboard false "
    "--output out"
)

CASES = [
    Case("rounds below one", f"{TINY} --rounds 0", "rounds is 0: it must be at least 1"),
    Case("an unknown option", f"{TINY} --rouns 3", "did you mean --rounds?"),
]
