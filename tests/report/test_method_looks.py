"""A method looks alike everywhere."""

from itertools import islice, permutations

from rayfl.methods import METHODS
from rayfl.report.look import marker, style
from rayfl.report.method_looks import COLOURS, LOOKS, USUAL_METHODS, looks_of


def test_a_method_has_one_look_whatever_stands_beside_it() -> None:
    alone = {name: looks_of([name])[0] for name in METHODS}
    assert len(set(alone.values())) == len(METHODS)
    for names in islice(permutations(METHODS, 3), 0, None, 997):
        assert looks_of(names) == [alone[name] for name in names]
    assert len({alone[name] % COLOURS for name in USUAL_METHODS}) == COLOURS


def test_further_lines_of_a_method_have_its_colour() -> None:
    found = looks_of(["Ditto"] * 8)
    assert len(set(found)) == 8
    assert len({look % COLOURS for look in found}) == 1
    assert len(set(looks_of(["Ditto"] * LOOKS))) == LOOKS, "as many as there are"
    assert looks_of(["Mine"]) == looks_of(["Mine"])


def test_no_two_looks_are_drawn_alike() -> None:
    drawn = {(*map(str, style(look).values()), marker(look)["marker"]) for look in range(LOOKS)}
    assert len(drawn) == LOOKS
