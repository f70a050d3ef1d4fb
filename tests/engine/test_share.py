"""What a trial gets of a cluster, and the arithmetic of those that can never be placed."""

import pytest

from rayfl import Inline, Ray
from rayfl.engine.ray_engine import TrialResources, trial_resources
from rayfl.errors import Shortage
from tests.support.refusals import refused

NODES = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0}]


@pytest.mark.parametrize(
    ("engine", "trials", "at_once", "bundles", "together"),
    [
        (Ray(), 50, None, [{"CPU": 1.0}], 12),
        (Ray(), 3, None, [{"CPU": 1.0}] * 4, 3),
        (Ray(), 50, 2, [{"CPU": 1.0}] * 6, 2),
        (Ray(cpus_per_actor=0.5), 50, 8, [{"CPU": 0.5}] * 3, 8),
        (Ray(actors=3), 50, None, [{"CPU": 1.0}] * 3, None),
        (Ray(actors=24), 50, None, [{"CPU": 0.5}] * 24, None),
        (Ray(clients_per_actor=5), 50, 1, [{"CPU": 1.0}] * 4, 1),
        (Ray(gpus_per_actor=0.25, cpus_per_actor=1), 8, None, [{"CPU": 1.0, "GPU": 0.25}], 8),
        (Ray(gpus_per_actor=1, cpus_per_actor=0), 2, None, [{"GPU": 1}], 2),
        (Ray(actors=2, cpus_per_actor=0), 9, None, [{"CPU": 0.001}] * 2, None),
        (Inline(threads=3), 50, None, [{"CPU": 3.0, "GPU": 1.0}], None),
        (Inline(), 50, 4, [{"CPU": 1.0, "GPU": 0.5}], 4),
        (Inline(device="cpu"), 50, 4, [{"CPU": 1.0}], 4),
    ],
)
def test_shares(engine, trials, at_once, bundles, together):
    found = trial_resources(engine, 20, NODES, trials, at_once)
    assert found.bundles == bundles
    assert found.at_once == together
    assert found.engine["engine.device"] == ("cuda" if "GPU" in bundles[0] else "cpu")
    if isinstance(engine, Ray):
        assert found.engine["engine.actors"] == len(bundles)


@pytest.mark.parametrize(
    ("gpus", "device", "at_once", "part"),
    [
        ([1], "auto", 4, 0.25),
        ([1, 2], "cuda", 6, 0.5),
        ([4], "auto", 2, 1),
        ([1], "cpu", 4, 0),
        ([0], "cuda", 4, 0.25),
    ],
)
def test_federations_without_actors_share_the_gpus(gpus, device, at_once, part):
    nodes = [{"CPU": 8.0, "GPU": float(count), "memory": 64e9} for count in gpus]
    found = trial_resources(Inline(device=device, threads=2), 20, nodes, 50, at_once, may_grow=True)
    assert (found.bundles[0]["CPU"], found.bundles[0].get("GPU", 0)) == (2.0, part)


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (Ray(actors=13, cpus_per_actor=1), "room for 12 of 13 actors with 1 CPU"),
        (Ray(gpus_per_actor=1, actors=3), "there is room for 2 of"),
        (Inline(threads=9), "1 actor with 9 CPUs"),
    ],
)
def test_what_can_never_be_placed(engine, says):
    with refused(Shortage, "engine.actors") as caught:
        trial_resources(engine, 20, NODES, 3, None)
    assert "a trial can never be placed" in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("engine", "at_once", "bundles"),
    [
        (Ray(actors=2, gpus_per_actor=0.5, cpus_per_actor=1), None, [{"CPU": 1.0, "GPU": 0.5}] * 2),
        (Ray(), 4, [{"CPU": 1.0}]),
        (Inline(device="cuda", threads=2), None, [{"CPU": 2.0, "GPU": 1.0}]),
    ],
)
def test_nothing_is_refused_where_hosts_may_come(engine, at_once, bundles):
    """None is there but a head that trains nobody; trials ask for as many hosts as they need."""
    found = trial_resources(engine, 20, [{"CPU": 0.0, "memory": 16e9}], 8, at_once, may_grow=True)
    assert (found.bundles, found.at_once) == (bundles, at_once)


@pytest.mark.parametrize(
    ("bundle", "fitting"),
    [({"CPU": 4.0}, 3), ({"CPU": 1.0, "GPU": 0.5}, 4), ({"GPU": 1.0}, 2), ({"CPU": 0.5, "memory": 4e9}, 24)],
)
def test_a_trial_that_no_longer_fits(bundle, fitting):
    for count in (1, fitting):
        TrialResources([bundle] * count, {}, None).check(NODES)
    with refused(Shortage, "engine.actors") as caught:
        TrialResources([bundle] * (fitting + 1), {}, None).check(NODES)
    assert "no trial can be placed" in str(caught.value)


def test_the_settings_of_a_trial():
    """It has no more actors than clients."""
    assert len(trial_resources(Ray(), 2, NODES, 1, None).bundles) == 2
    found = trial_resources(Ray(clients_per_actor=5, gpus_per_actor=0.25), 20, NODES, 1, 1)
    assert found.engine == {
        "engine.device": "cuda",
        "engine.actors": 4,
        "engine.clients_per_actor": "auto",
        "engine.cpus_per_actor": 1.0,
    }
