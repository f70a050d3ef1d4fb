"""Methods beside independent forms: plain PyTorch, from papers and pages alone, without a look at rayfl's."""

import pytest

from tests.methods.forms.parity import CASES, compare


@pytest.mark.parametrize("execution", ["loop", "stacked"])
@pytest.mark.parametrize("name", CASES)
def test_a_method_equals_its_independent_form(name: str, execution: str) -> None:
    found = compare(name, CASES[name], execution)
    assert max(found.values()) < 1e-9, found
