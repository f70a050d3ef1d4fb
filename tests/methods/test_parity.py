"""Methods beside independent forms: plain PyTorch, written from their papers without a look at rayfl's methods."""

import pytest

from tests.methods.forms.parity import CASES, compare


@pytest.mark.parametrize("execution", ["loop", "stacked"])
@pytest.mark.parametrize("name", CASES)
def test_a_method_equals_its_independent_form(name: str, execution: str) -> None:
    found = compare(name, CASES[name], execution)
    assert max(found.values()) < 1e-9, found
