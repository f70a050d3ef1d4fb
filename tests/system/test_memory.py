"""Free memory: the machine's, or less where a container has a limit; and when garbage is searched for."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayfl.errors import Shortage
from rayfl.system import memory
from rayfl.system.memory import available_memory, check_memory, gc_paused
from tests.support.refusals import refused


def test_the_limit_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CGROUP_ROOT", tmp_path)
    everything = available_memory()
    assert everything > 100_000
    (tmp_path / "memory.current").write_text("5000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory() > 100_000
    (tmp_path / "memory.max").write_text("60000\n")
    assert available_memory() == 55_000
    (tmp_path / "memory.stat").write_text("anon 3000\ninactive_file 1500\n")
    assert available_memory() == 56_500


def test_the_limit_of_a_batch_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host the limit is that of the job, or of a group above it, and the topmost group has none."""
    monkeypatch.setattr(memory, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(memory, "OWN_CGROUP", tmp_path / "own")
    (tmp_path / "own").write_text("1:name=systemd:/other\n0::/slurm/job_1/step_0\n")
    for name, limit, used in (("slurm", "max", 9000), ("slurm/job_1", "60000", 5000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.max").write_text(f"{limit}\n")
        (tmp_path / name / "memory.current").write_text(f"{used}\n")
    assert available_memory() == 55_000
    (tmp_path / "own").unlink()
    assert available_memory() > 100_000


def test_what_does_not_fit_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 2.5e9)
    check_memory(2.5e9, "images", "use fewer")
    with refused(Shortage) as caught:
        check_memory(3e12, "images", "use fewer")
    assert str(caught.value) == "images need 3,000.0 GB of memory, and 2.5 are free: use fewer"


@pytest.fixture
def collector() -> Iterator[None]:
    """Give the collector back as it was."""
    enabled, thresholds = gc.isenabled(), gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    (gc.enable if enabled else gc.disable)()


class Knot:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.usefixtures("collector")
def test_uncollected_objects_stay_within_reach() -> None:
    """What is made uncollected is of the oldest generation but not out of reach."""
    gc.enable()
    gc.collect()
    gc.set_threshold(100_000, 50, 50)  # nothing by chance
    with gc_paused():
        assert not gc.isenabled()
        knot = weakref.ref(Knot())
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    gc.collect(1)
    assert knot() is not None
    gc.collect()
    assert knot() is None


@pytest.mark.usefixtures("collector")
def test_a_program_that_steers_the_collector_is_left_alone() -> None:
    """A program that steers the collector itself is left alone."""
    gc.disable()
    with gc_paused():
        pass
    assert not gc.isenabled()
    gc.enable()
    gc.freeze()
    try:
        with gc_paused():
            assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


@pytest.mark.usefixtures("collector")
def test_the_collector_is_on_again_after_an_import_that_failed() -> None:
    gc.enable()
    with pytest.raises(ImportError), gc_paused():
        raise ImportError
    assert gc.isenabled()


def test_an_actor_imports_without_a_search_for_garbage() -> None:
    """What an actor's process imports first is the package of its class."""
    count = "sum(generation['collections'] for generation in gc.get_stats())"
    program = f"import gc; before = {count}; import rayfl.engine; print({count} - before, gc.isenabled())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    searches, on = done.stdout.split()
    assert int(searches) < 30  # some 400 where they are not kept off
    assert on == "True"
