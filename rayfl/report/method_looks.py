"""How lines and bars look: a method has one colour and one kind of line in all pages and pictures."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import count

from rayfl.methods import METHODS

COLOURS, KINDS = 7, 8
"""Colours; and, of each, dashes and markers, which tell lines apart for readers who see no colours."""
LOOKS = COLOURS * KINDS
USUAL_METHODS = ("FedAvg", "Local", "FedPer", "Ditto", "FedBN", "FedRep", "FedCO2")
"""Methods of which most pictures have some: each has a colour of its own among them."""
PLACES = {name: place for place, name in enumerate(dict.fromkeys([*USUAL_METHODS, *METHODS]))}
"""The order of methods in pictures; those of one's own follow."""


def looks_of(methods: Iterable[str]) -> list[int]:
    """Return the number of each line's look, from 0 to ``LOOKS - 1``.

    Args:
        methods: class names of the lines' methods. The first line of a method has that method's look, further
            ones its colour with the next free dashes and markers.
    """
    found: list[int] = []
    for name in methods:
        own = PLACES.get(name, zlib.crc32(name.encode())) % LOOKS
        others = ((own + COLOURS * k + k // KINDS) % LOOKS for k in count())
        latest = found[-LOOKS + 1 :]
        found.append(next(look for look in others if look not in latest))
    return found
