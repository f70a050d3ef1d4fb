"""Nets of tests are built without a trial, as rayfl's own are: it takes as long as a round."""

from typing import Any

import pytest

from rayfl.nets import module


@pytest.fixture(autouse=True)
def known_nets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take nets of these tests for rayfl's own."""
    decides = module.is_own_net

    def is_own_net(net: Any) -> bool:
        path = getattr(net, "path", net)
        return decides(net) and not (isinstance(path, str) and path.startswith("tests."))

    monkeypatch.setattr(module, "is_own_net", is_own_net)
