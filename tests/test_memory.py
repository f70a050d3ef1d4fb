"""Free memory: the machine's, or less where a container has a limit of its own."""

from pathlib import Path

import pytest

from rayfl import UserError, memory
from rayfl.memory import available_memory, check_memory


def test_the_limit_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    everything = available_memory()
    assert everything > 100_000
    (tmp_path / "memory.current").write_text("5000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory() > 100_000
    (tmp_path / "memory.max").write_text("60000\n")
    assert available_memory() == 55_000
    (tmp_path / "memory.stat").write_text("anon 3000\ninactive_file 1500\n")
    assert available_memory() == 56_500


def test_what_does_not_fit_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 2.5e9)
    check_memory(2.5e9, "images", "use fewer")
    with pytest.raises(UserError, match=r"^images need 3,000\.0 GB of memory, and 2\.5 are free: use fewer$"):
        check_memory(3e12, "images", "use fewer")
