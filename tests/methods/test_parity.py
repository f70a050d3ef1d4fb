"""Methods beside independent forms: plain PyTorch, from papers and pages alone, without a look at rayfl's."""

import pytest

from rayfl.methods import METHODS
from tests.methods.forms.cases import CASES
from tests.methods.forms.parity import DIVISIONS, compare


@pytest.mark.parametrize("execution", ["loop", "stacked"])
@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("name", CASES)
def test_a_method_equals_its_independent_form(name: str, division: str, execution: str) -> None:
    found = compare(name, execution, division)
    assert max(found.values()) < 1e-9, found


def test_every_method_has_a_form() -> None:
    assert {name.split()[0] for name in CASES} == METHODS.keys()
