"""States of clients that do not fit into memory: as a dict, to the bit, and no more of them than allowed."""

import errno
import os
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rayfl import Inline, Ray, UserError, resumed
from rayfl.engine import client_states
from rayfl.engine.client_states import READ_AHEAD_STATES, ClientStates
from rayfl.errors import Shortage
from rayfl.methods import Ditto
from rayfl.record import checkpoint
from rayfl.record.checkpoint import Checkpoints, clients_per_file
from rayfl.training import State
from rayfl.training.params import Params
from rayfl.training.state import take_apart
from tests.support.federations import bytes_of_run, small
from tests.support.nets import same_bits
from tests.support.refusals import refused
from tests.support.workers import pretend

SIZE = 800
"""Bytes of a state of ``numbers``."""


def numbers(value: float) -> State:
    return {"w": torch.full((100,), value, dtype=torch.float64)}


def nested(value: int) -> State:
    """A state with everything that states may hold."""
    return {
        "own": Params(
            {"a": torch.arange(6.0).view(2, 3).T + value, "b": torch.tensor(value)}, frozenset({"a"})
        ),
        "flags": torch.tensor([True, False]),
        "half": torch.tensor([value / 7], dtype=torch.bfloat16),
        "nothing": torch.zeros(0, 3),
        3: {"deep": torch.tensor(float(value))},
        "count": value,
        "rate": value / 3,
        "none": None,
        "empty": {},
    }


def calls_of(name: str, patch: pytest.MonkeyPatch) -> list[Any]:
    """Return the calls of a function of ``os``, of which there is one for each state of ``numbers``."""
    calls, usual = list[Any](), getattr(os, name)
    patch.setattr(os, name, lambda *arguments: (calls.append(arguments), usual(*arguments))[1])
    return calls


@pytest.mark.parametrize("memory", [0, 1, 1e9])
def test_every_kind_of_state_comes_back(memory: float) -> None:
    states = ClientStates(memory)
    for i in range(5):
        states[i] = nested(i)
    for i in (3, 0, 4, 1, 2, 2, 3):
        (structure, tensors), (expected, wanted) = take_apart(states[i]), take_apart(nested(i))
        assert structure == expected
        assert all(torch.equal(tensors[name], tensor) for name, tensor in wanted.items())
        assert [t.dtype for t in tensors.values()] == [t.dtype for t in wanted.values()]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 7), st.integers(1, 40)),
        st.tuples(st.just("get"), st.integers(0, 7)),
        st.tuples(st.just("pop"), st.integers(0, 7)),
        st.tuples(st.just("expect"), st.lists(st.integers(0, 9), max_size=8)),
        st.tuples(st.just("clear")),
    ),
    max_size=60,
)


@settings(max_examples=100)
@given(operations=OPERATIONS, memory=st.integers(0, 1200))
def test_it_is_a_dict(operations: list[Any], memory: int) -> None:
    """Whatever is done with it, and however little stays in memory, it holds what a dict would hold."""
    states, expected = ClientStates(memory), dict[int, State]()
    for count, (name, *given_) in enumerate(operations):
        if name == "put":
            expected[given_[0]] = states[given_[0]] = {"w": torch.full((given_[1],), float(count))}
        elif name == "get":
            assert (given_[0] in states) == (given_[0] in expected)
            assert same_bits(states.get(given_[0], {}), expected.get(given_[0], {}))
        elif name == "pop":
            assert same_bits(states.pop(given_[0], {}), expected.pop(given_[0], {}))
        elif name == "expect":
            states.expect_reads(given_[0])
        else:
            states.clear()
            expected.clear()
        assert sorted(states) == sorted(expected)
        assert len(states) == len(expected)
    assert same_bits(dict(sorted(states.items())), dict(sorted(expected.items())))


def test_no_more_stay_in_memory_than_allowed() -> None:
    """Beside these, there may be the one in use, and the one that takes its place."""
    states, alive = ClientStates(5 * SIZE), weakref.WeakSet[Tensor]()
    for _ in range(3):
        states.expect_reads(range(40))
        for i in range(40):
            state = numbers(states[i]["w"][0].item() + 1 if i in states else i)
            alive.add(state["w"])
            states[i] = state
            assert len(alive) <= 5 + 2
    assert [state["w"][0].item() for _, state in sorted(states.items())] == [i + 2 for i in range(40)]


def test_those_that_have_stayed_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round after round with all clients, only the others travel."""
    states, reads = ClientStates(6 * SIZE), calls_of("preadv", monkeypatch)
    for i in range(10):
        states[i] = numbers(i)
    for _ in range(4):
        states.expect_reads(range(10))
        for i in range(10):
            states[i] = numbers(states[i]["w"][0].item())
    assert len(reads) == 4 * 4  # which is the best possible


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system cannot be asked to read ahead")
def test_some_are_read_ahead_of_those_that_are_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many at first, and then with each that is read another one; those in memory are none of them."""
    states, asked = ClientStates(SIZE), list[int]()
    for i in range(READ_AHEAD_STATES + 5):
        states[i] = numbers(i)
    monkeypatch.setattr(os, "posix_fadvise", lambda file, start, size, advice: asked.append(start // size))
    later = [*reversed(range(1, READ_AHEAD_STATES + 5))]  # number i is the ith on the disk, from 1
    states.expect_reads([0, *later])
    assert asked == [i - 1 for i in later[:READ_AHEAD_STATES]]
    for turn, i in enumerate(later, 1):
        assert states[i]["w"][0] == i
        assert len(asked) == min(READ_AHEAD_STATES + turn, READ_AHEAD_STATES + 4)


def test_states_that_fit_touch_no_disk() -> None:
    for states in (ClientStates(), ClientStates(10 * SIZE)):
        for i in range(10):
            states[i] = numbers(i)
        assert len(states) == 10
        assert states._disk is None


def test_half_of_what_is_free_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is shared among the workers of a machine."""
    monkeypatch.setattr(client_states, "ALWAYS_KEPT_BYTES", 0)
    for workers in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(client_states, "available_memory", lambda: float(20 * SIZE))
            writes = calls_of("pwrite", patch)
            states = ClientStates()
            states.set_worker_count(workers)
            for i in range(15):
                states[i] = numbers(i)
            assert len(writes) == 15 - 10 // workers


def test_a_state_of_the_same_size_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    states = ClientStates(0)
    for turn in range(20):
        for i in range(4):
            states[i] = numbers(100 * turn + i)
    assert states._disk is not None
    assert [states[i]["w"][0].item() for i in range(4)] == [1900 + i for i in range(4)]
    assert os.fstat(states._disk._file.fileno()).st_size <= 5 * SIZE


def test_the_file_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no name there, and it goes with the process."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(client_states, "gettempdir", lambda: str(tmp_path))
    states = ClientStates(0)
    for i in range(3):
        states[i] = numbers(i)
    assert states._disk is not None
    assert states._disk._folder == tmp_path
    assert not list(tmp_path.iterdir())


# ---- in federations


@pytest.fixture(scope="module")
def from_memory(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("from_memory") / "run"
    small(folder, method=Ditto(), rounds=3).run()
    return bytes_of_run(folder, settings=False)


@pytest.mark.usefixtures("kept_actors")
def test_the_same_bytes_on_actors(tmp_path: Path, from_memory: dict[str, bytes]) -> None:
    small(tmp_path / "run", method=Ditto(), rounds=3, engine=Ray(actors=2, state_memory=0)).run()
    assert bytes_of_run(tmp_path / "run", settings=False) == from_memory


def test_a_full_disk_says_so(
    tmp_path: Path, from_memory: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with room again the run goes on."""
    written, pwrite = 0, os.pwrite

    def full(*arguments: Any) -> int:
        nonlocal written
        written += 1
        if written > 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(*arguments)

    run = small(tmp_path / "run", method=Ditto(), rounds=3, engine=Inline(state_memory=0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with refused(Shortage, client_states.spill_folder()):
            run.run()
    resumed(tmp_path / "run").run()
    assert bytes_of_run(tmp_path / "run", settings=False) == from_memory


def test_a_folder_that_cannot_be_written_or_a_file_that_is_cut_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = ClientStates(0)
    states[0] = numbers(0)
    with monkeypatch.context() as patch, refused(Shortage, tmp_path / "gone"):
        patch.setattr(client_states, "spill_folder", lambda: tmp_path / "gone")
        states[1] = numbers(1)
    states[1] = numbers(1)
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with refused(Shortage, client_states.spill_folder()):
        states.get(1)


# ---- client files


@pytest.mark.parametrize(
    ("largest", "count"), [(0, 16), (1, 16), (2**24, 16), (2**24 + 1, 15), (2**27, 2), (2**28, 1), (2**40, 1)]
)
def test_large_states_share_a_file_with_fewer(largest: int, count: int) -> None:
    assert clients_per_file(largest) == count


def test_a_checkpoint_of_large_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for every client; workers read them as those of many, and go on with the same numbers."""
    small(tmp_path / "together", method=Ditto(), rounds=2).run()
    monkeypatch.setattr(checkpoint, "BYTES_PER_FILE", 1)
    small(tmp_path / "run", method=Ditto(), rounds=1, engine=pretend(count=3)).run()
    monkeypatch.undo()
    resumed(tmp_path / "run", {"rounds": 2}).run()
    manifest = Checkpoints(tmp_path / "run" / "checkpoints").newest_intact()[0]
    together = Checkpoints(tmp_path / "together" / "checkpoints").newest_intact()[0]
    assert manifest is not None
    assert together is not None
    assert manifest.clients_per_file == 1
    assert len(manifest.clients) > len(together.clients) == 1
    assert manifest.server == together.server
    for number, name in manifest.clients.items():
        content = Checkpoints(tmp_path / "run" / "checkpoints").read(name)
        both = Checkpoints(tmp_path / "together" / "checkpoints").read(together.clients[0])
        assert same_bits(content, {number: both[number]})


@pytest.mark.parametrize("count", [0, 17, True, "1", None])
def test_an_impossible_count_of_clients_per_file_is_damage(tmp_path: Path, count: Any) -> None:
    checkpoints = Checkpoints(tmp_path)
    manifest = checkpoint.Manifest(1, checkpoints.write_server({}), {}, {}, {}, count)
    checkpoints.commit(manifest)
    with pytest.raises(UserError, match=r"manifest-000001\.json is damaged"):
        checkpoints.newest_intact()
