"""What all engines share: settings, and the groups of a round."""

import os
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rayfl import Inline, Ray, Training
from rayfl.engine import inline
from rayfl.engine.base import GROUP_SIZE, LOOP_GROUPS
from rayfl.engine.process import CUDA_CONTEXT_BYTES, cap_gpu_memory, prepare_gpu
from rayfl.errors import Conflict, Missing
from rayfl.methods import Local
from rayfl.record.folder import read_config
from tests.support.by_hand import ragged
from tests.support.federations import small
from tests.support.refusals import refused

COHORTS = st.lists(st.integers(0, 5000), unique=True, max_size=300).map(sorted) | st.integers(300, 2000).map(
    lambda size: list(range(size))
)


@given(COHORTS, st.sampled_from(["loop", "stacked"]), st.integers(1, 40))
def test_groups_are_the_cohort_in_order(cohort, execution, stack):
    groups = Inline(execution=execution, stack=stack).groups(cohort)
    assert [i for group in groups for i in group] == cohort
    assert all(groups)
    if execution == "stacked":
        assert all(len(b) == stack for b in groups[:-1])
        assert all(len(b) <= stack for b in groups)
    else:
        assert len(groups) >= min(len(cohort), LOOP_GROUPS)
        assert len(groups) <= max(LOOP_GROUPS, len(cohort) / GROUP_SIZE + 1)
        assert all(len(group) <= GROUP_SIZE for group in groups)
        assert max(map(len, groups), default=0) - min(map(len, groups), default=0) <= 1


@given(st.integers(1, 3000))
def test_each_of_eight_actors_has_one_automatic_stack(size):
    groups = Inline(execution="stacked").groups(range(size))
    assert len(groups) <= 8 or size > 8 * 32
    assert max(map(len, groups)) <= 32
    assert len(groups) == size if size <= 8 else max(map(len, groups)) > 1


def test_the_stack_is_recorded_as_the_number_that_it_was(tmp_path):
    """It goes by the cohort alone: 6 of 12 clients, 18 of 36."""
    for clients, stack in ((12, 1), (36, 3)):
        folder, engine = tmp_path / str(clients), Inline(execution="stacked")
        small(folder, engine=engine, clients=clients, rounds=1, method=Local(), eval_every=0).run()
        assert read_config(folder)["engine"]["init_args"]["stack"] == stack
        assert engine.stack == "auto"


def test_a_run_leaves_the_federation_as_it_was(tmp_path):
    federation = small(tmp_path / "run", rounds=1, clients=None)
    before = dict(vars(federation))
    federation.run()
    assert vars(federation) == before


@given(COHORTS, st.sampled_from(["loop", "stacked"]))
def test_groups_do_not_depend_on_the_engine(cohort, execution):
    known = Inline(execution=execution, stack=8).groups(cohort)
    for other in (Ray(actors=3), Ray(clients_per_actor=1), Ray(cpus_per_actor=0.5)):
        assert replace(other, execution=execution, stack=8).groups(cohort) == known


def test_auto_becomes_what_it_means_here(monkeypatch):
    for cuda, options, expected in [
        (False, {}, ("cpu", "loop", "channels_last")),
        (False, {"execution": "stacked"}, ("cpu", "stacked", "contiguous")),
        (False, {"memory_format": "contiguous"}, ("cpu", "loop", "contiguous")),
        (True, {}, ("cuda", "stacked", "contiguous")),
        (True, {"device": "cpu"}, ("cpu", "loop", "channels_last")),
        (True, {"execution": "loop"}, ("cuda", "loop", "contiguous")),
    ]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        engine = Inline(**options).resolve()
        assert (engine.device, engine.execution, engine.memory_format) == expected


@pytest.mark.parametrize("here", [False, True])
def test_a_share_of_a_gpu_decides_the_device_wherever_the_driver_is(here, monkeypatch, caplog):
    monkeypatch.setattr("rayfl.engine.ray_workers.RayEngineSession", MagicMock())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: here)
    for share, asked, device in ((0.5, "auto", "cuda"), (0.5, "cpu", "cpu"), (0, "cpu", "cpu")):
        engine = Ray(gpus_per_actor=share, device=asked)
        with engine.start_in_background("run"):
            assert (engine.resolve().device, caplog.records) == (device, [])
    with Ray().start_in_background("trial", in_group=True):
        assert caplog.records == []
    with Ray().start_in_background("run"):
        assert Ray().resolve().device == "cpu"
    assert ["engine.gpus_per_actor is 0" in record.message for record in caplog.records] == [True] * here


@pytest.mark.parametrize(("card", "share"), [(16e9, 0.25), (80e9, 0.1), (4e9, 0.1)])
def test_shares_of_a_gpu_and_contexts_fit_the_card(card, share, monkeypatch):
    caps = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=card))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", caps.append)
    for each in (share, 0, 1):
        cap_gpu_memory(each)
    (cap,) = caps
    assert cap == 0 or 1 / share * (cap * card + CUDA_CONTEXT_BYTES) == pytest.approx(card)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused(Missing, "engine.device"):
        prepare_gpu(deterministic=False, tf32=False)


def test_a_gpu_uses_tf32_and_deterministic_kernels_only_if_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # the user's own
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    try:
        for asked in (False, True):
            prepare_gpu(deterministic=asked, tf32=not asked)
            assert (products.allow_tf32, convolutions.allow_tf32) == (not asked, not asked)
            assert torch.are_deterministic_algorithms_enabled() is asked
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
        prepare_gpu(deterministic=False, tf32=False)
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
        prepare_gpu(deterministic=True, tf32=False)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)
        products.allow_tf32, convolutions.allow_tf32 = before


def test_inline_gives_back_which_kernels_gpus_may_use(tmp_path):
    federation = small(tmp_path / "run", engine=Inline().resolve())
    with federation.engine.start_in_background("run") as started:
        workers = started.make_workers(federation.plan(), federation.federated_data())
    assert len(workers) == 0
    workers.start(allow_fewer=False)
    assert len(workers) == 1
    torch.use_deterministic_algorithms(True)  # as a run does that asks for it
    workers.close()
    assert not torch.are_deterministic_algorithms_enabled()
    assert len(workers) == 0
    workers.start(allow_fewer=False)
    workers.keep_survivors()  # there is one process for all
    assert len(workers) == 0


def test_inline_on_a_gpu(tmp_path, monkeypatch):
    """It must be there, and no more than what is reserved of it is filled."""
    federation, caps = small(tmp_path / "run", engine=Inline(device="cuda")), []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused(Missing, "engine.device"):
        federation.engine.resolve()
    monkeypatch.setattr(inline, "cap_gpu_memory", caps.append)
    for reserved, cap in ((None, 0), (0.25, 0.25)):
        monkeypatch.setattr(inline, "reserved_gpus", lambda reserved=reserved: reserved)
        with federation.engine.start_in_background("run") as started:
            started.make_workers(federation.plan(), federation.federated_data())
        assert caps.pop() == cap


def test_how_a_stack_is_tried(tmp_path, monkeypatch):
    """With the two largest clients of each net, in a loop on the CPU; in float32 where float64 fails."""
    tried, ended = [], []

    class Tried(inline.InlineWorkers):
        def __init__(self, plan, data):
            tried.append(plan)
            super().__init__(plan, data)

        def call(self, k, name, *arguments, **options):
            if name == "updates":
                assert arguments[1] == [0, 2, 3, 1]
            return super().call(k, name, *arguments, **options)

        def close(self):
            ended.append(True)
            super().close()

    def differ(updates, tolerance):
        for update in updates:
            update.close()
        tried.append(tolerance)
        if len(tried) == 2:
            raise ValueError
        return "otherwise"

    monkeypatch.setattr(inline, "InlineWorkers", Tried)
    monkeypatch.setattr(inline, "discrepancy", differ)
    nets = ["rayfl.testing.by_hand.tiny", "rayfl.testing.by_hand.tiny_wide"]
    plan = small(tmp_path, engine=Inline(execution="stacked", device="cpu")).plan()
    plan = replace(plan, net=nets, method=Local())
    assert inline.stack_difference(plan, ragged((30, 12, 20, 22, 9, 10))) == "otherwise"
    first, tolerance, second, coarser = tried
    assert (first.training.precision, tolerance) == ("float64", 1e-8)
    assert (second.training.precision, coarser) == ("float32", 1e-4)
    engine = first.engine
    assert (engine.execution, engine.device, engine.memory_format) == ("loop", "cpu", "contiguous")
    assert ended == [True, True]


@pytest.mark.parametrize(
    ("engine", "cohort", "clients", "idle"),
    [
        (Ray(), 1, 9, False),
        (Ray(actors=4), 4, 9, False),
        (Ray(actors=5), 4, 9, True),
        (Ray(clients_per_actor=3), 3, 9, False),
        (Ray(clients_per_actor=3), 3, 10, True),
        (Ray(actors=3, execution="stacked", stack=2), 5, 9, False),
        (Ray(actors=3, execution="stacked", stack=2), 4, 9, True),
    ],
)
def test_actors_without_work_are_told_of(engine, cohort, clients, idle, caplog):
    engine.with_stack(cohort, clients)
    assert len(caplog.records) == idle


def test_tf32_is_refused_on_a_cpu(tmp_path):
    federation = small(tmp_path / "run", training=Training(precision="tf32"), engine=Inline(device="cpu"))
    with refused(Conflict, "training.precision"):
        federation.run()
