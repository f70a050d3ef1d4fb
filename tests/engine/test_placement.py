"""The arithmetic of who runs where, without Ray."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayfl.engine.placement import (
    ACTOR_MEMORY,
    Pace,
    Reservation,
    bundles_that_fit,
    place_groups,
    plan_reservation,
)
from rayfl.errors import Shortage
from tests.support.refusals import refused


def ask(nodes, clients=100, actors=None, clients_per_actor=None, cpus=None, gpus=0.0, allow_fewer=False):
    return plan_reservation(nodes, clients, actors, clients_per_actor, cpus, gpus, allow_fewer)


def node(cpus, gpus=0, memory=64e9):
    return {"CPU": float(cpus), "GPU": float(gpus), "memory": memory}


@pytest.mark.parametrize(
    ("nodes", "options", "expected"),
    [
        # auto: one per CPU, but not more than clients
        ([node(4)], {}, Reservation(4, 1.0, 0.0)),
        ([node(4), node(2)], {}, Reservation(6, 1.0, 0.0)),
        ([node(64)], {"clients": 5}, Reservation(5, 1.0, 0.0)),
        ([node(0.5)], {}, Reservation(1, 0.5, 0.0)),
        # as many as asked for, each with less than a CPU where there are too few
        ([node(4)], {"actors": 2}, Reservation(2, 1.0, 0.0)),
        ([node(2)], {"actors": 3}, Reservation(3, 0.666, 0.0)),
        ([node(1)], {"actors": 4}, Reservation(4, 0.25, 0.0)),
        ([node(8)], {"actors": 4, "clients": 3}, Reservation(4, 1.0, 0.0)),
        ([node(2), node(1)], {"actors": 4}, Reservation(4, 0.666, 0.0)),  # not 0.75: they fit no node
        ([node(16, 1), node(2, 4)], {"actors": 7, "gpus": 0.25}, Reservation(7, 0.666, 0.25)),
        # shares of CPUs
        ([node(4)], {"cpus": 2.0}, Reservation(2, 2.0, 0.0)),
        ([node(3), node(3)], {"cpus": 2.0}, Reservation(2, 2.0, 0.0)),
        ([node(1)], {"cpus": 0.25}, Reservation(4, 0.25, 0.0)),
        # clients per actor
        ([node(4)], {"clients_per_actor": 30}, Reservation(4, 1.0, 0.0)),
        ([node(4)], {"clients_per_actor": 1, "clients": 8}, Reservation(8, 0.5, 0.0)),
        ([node(4)], {"clients_per_actor": 99}, Reservation(2, 1.0, 0.0)),
        # shares of GPUs: a share below one is of one GPU
        ([node(8, 1)], {"gpus": 0.25}, Reservation(4, 1.0, 0.25)),
        ([node(8, 2)], {"gpus": 0.3}, Reservation(6, 1.0, 0.3)),
        ([node(8, 2)], {"gpus": 0.6}, Reservation(2, 1.0, 0.6)),
        ([node(8, 4)], {"gpus": 1.0}, Reservation(4, 1.0, 1.0)),
        ([node(2, 2)], {"gpus": 0.5, "actors": 4}, Reservation(4, 0.5, 0.5)),
        ([node(2, 4)], {"gpus": 0.5, "cpus": 0.5}, Reservation(4, 0.5, 0.5)),
        ([node(2, 1), node(8)], {"gpus": 0.5}, Reservation(2, 1.0, 0.5)),
        # nothing reserved
        ([node(4)], {"cpus": 0.0}, Reservation(4, 0.0, 0.0)),
        ([node(4)], {"cpus": 0.0, "actors": 9}, Reservation(9, 0.0, 0.0)),
        ([node(4, 1)], {"cpus": 0.0, "gpus": 0.5}, Reservation(2, 0.0, 0.5)),
    ],
)
def test_reservations(nodes, options, expected):
    assert ask(nodes, **options) == expected


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 64), st.integers(0, 8)), min_size=1, max_size=4),
    st.integers(1, 200),
    st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]),
)
def test_what_is_chosen_automatically_always_fits(nodes, clients, gpus):
    made = [node(*n) for n in nodes]
    if gpus and not sum(g for _, g in nodes):
        with refused(Shortage, "engine.actors"):
            ask(made, clients, gpus=gpus)
        return
    wanted = ask(made, clients, gpus=gpus)
    assert 1 <= wanted.actors <= clients
    assert 0 < wanted.cpus <= 1


@pytest.mark.parametrize(
    ("nodes", "options", "arithmetic"),
    [
        (
            [node(8, 2)],
            {"actors": 3, "gpus": 0.6},
            "there is room for 2 of 3 actors with 1 CPU and 0.6 GPUs each, which take 3 CPUs and 1.8 GPUs in "
            "all (node 1: 8 CPUs and 2 GPUs, room for 2)",
        ),
        ([node(8)], {"gpus": 0.25}, "with 1 CPU and 0.25 GPUs each"),
    ],
)
def test_what_cannot_fit_is_refused_with_the_arithmetic(nodes, options, arithmetic):
    with refused(Shortage, "engine.actors") as caught:
        ask(nodes, **options)
    assert arithmetic in str(caught.value)


def test_an_actor_per_client_is_refused_for_lack_of_memory():
    roomy, tight = [node(4, memory=50e9)], [node(4, memory=8e9)]
    assert ask(roomy, clients=100, clients_per_actor=1).actors == 100
    with refused(Shortage, "engine.clients_per_actor"):
        ask(tight, clients=100, clients_per_actor=1)
    assert ask(tight, clients=100, clients_per_actor=10).actors == 10


def test_more_actors_than_the_memory_holds_are_refused():
    two = [node(2, memory=4e9), node(2, memory=2e9)]
    with refused(Shortage, "engine.actors") as caught:
        ask(two, actors=200)
    assert "200 actors take about 0.42 GB each, 84.0 GB in all" in str(caught.value)
    assert "6.0 GB, room for 14 of them" in str(caught.value)
    assert ask(two, actors=14).actors == 14
    assert ask([node(2, memory=2 * ACTOR_MEMORY)], actors=2).actors == 2
    assert ask([{"CPU": 4.0}], actors=200).actors == 200  # nobody says how much memory there is


def test_memory_is_reserved_where_there_is_enough_for_the_server_too():
    for nodes, bundle in (
        ([node(2, memory=1.3e9)], {"CPU": 1.0, "memory": 420e6}),
        ([node(2, memory=0.9e9)], {"CPU": 1.0}),  # two actors and no server
        ([node(2, memory=0.5e9), node(0, memory=9e9)], {"CPU": 1.0}),  # not where the CPUs are
        ([{"CPU": 2.0}], {"CPU": 1.0}),
    ):
        wanted = ask(nodes, actors=2)
        assert wanted.bundles == [bundle, bundle, {"memory": bundle.get("memory", 1.0)}]


def test_automatic_actors_are_no_more_than_the_memory_holds():
    assert ask([node(64, memory=4.3e9)]).actors == 10
    assert ask([node(64, memory=0.1e9)]).actors == 64  # less than any run needs says nothing


@pytest.mark.parametrize(
    ("nodes", "options", "expected"),
    [
        ([node(4), node(4)], {"actors": 3}, Reservation(3, 1.0, 0.0)),  # there is room
        ([node(4)], {"actors": 6, "cpus": 1.0}, Reservation(4, 1.0, 0.0)),
        ([node(1)], {"actors": 6, "cpus": 1.0}, Reservation(1, 1.0, 0.0)),
        ([node(2)], {"actors": 6}, Reservation(6, 0.333, 0.0)),  # each makes do with less
        ([node(8, 1)], {"actors": 8, "gpus": 0.25}, Reservation(4, 1.0, 0.25)),
        ([node(4, memory=8e9)], {"clients_per_actor": 1, "cpus": 0.5}, Reservation(8, 0.5, 0.0)),
    ],
)
def test_what_is_left_of_a_cluster_must_do(nodes, options, expected):
    assert ask(nodes, **options, allow_fewer=True) == expected


@pytest.mark.parametrize(
    ("nodes", "options", "expected"),
    [
        ([node(1)], {"gpus": 0.25}, Reservation(1, 1.0, 0.25)),  # a group of GPUs that is empty
        ([node(1)], {"gpus": 0.25, "actors": 4}, Reservation(4, 1.0, 0.25)),
        ([node(1)], {"actors": 4}, Reservation(4, 1.0, 0.0)),
        ([node(1)], {"actors": 4, "cpus": 8.0}, Reservation(4, 8.0, 0.0)),
        ([node(4), node(4)], {}, Reservation(8, 1.0, 0.0)),
    ],
)
def test_what_may_come_is_not_refused(nodes, options, expected):
    assert (
        plan_reservation(
            nodes, 100, *map(options.get, ("actors", "hosted", "cpus")), options.get("gpus", 0), may_grow=True
        )
        == expected
    )


def test_a_cluster_on_which_nothing_is_left():
    with refused(Shortage, "engine.actors"):
        ask([node(8)], actors=4, gpus=0.25, allow_fewer=True)


@pytest.mark.parametrize(
    ("free", "bundle", "count"),
    [
        ({"CPU": 3.0, "memory": 4e9}, {"CPU": 1.0, "memory": 2e9}, 2),
        ({"CPU": 0.3}, {"CPU": 0.1}, 3),  # in floats 2.9999
        ({"CPU": 1.9}, {"CPU": 1.0}, 1),
        ({"CPU": 8.0}, {"CPU": 1.0, "GPU": 0.5}, 0),
    ],
)
def test_how_many_bundles_are_free(free, bundle, count):
    assert bundles_that_fit(free, bundle) == count


# ---- groups


@st.composite
def rounds(draw):
    sizes = draw(st.lists(st.integers(1, 4), max_size=12))
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    groups = [tuple(range(s, s + n)) for s, n in zip(starts, sizes)]
    actors = draw(st.integers(1, 5))
    costs = {b: draw(st.floats(0, 100)) for b in groups}
    homes = {b: draw(st.one_of(st.none(), st.integers(0, actors - 1))) for b in groups}
    return groups, costs, homes, actors


@settings(max_examples=100)
@given(rounds())
def test_every_group_is_placed_whole_and_once_and_work_is_even(made):
    groups, costs, homes, actors = made
    placed = place_groups(groups, costs.__getitem__, homes.__getitem__, actors)
    assert len(placed) == actors
    assert sorted(b for mine in placed for b in mine) == groups
    assert all(mine == sorted(mine) for mine in placed)
    loads = [sum(costs[b] for b in mine) for mine in placed]
    largest = max(costs.values(), default=0)
    assert max(loads) <= (sum(loads) / actors + largest) * (1 + 1e-5) + 1e-6
    assert place_groups(list(reversed(groups)), costs.__getitem__, homes.__getitem__, actors) == placed


def test_clients_stay_at_home_where_work_is_even():
    groups = [(k,) for k in range(12)]
    placed = place_groups(groups, lambda b: 1.0, lambda b: (b[0] * 7) % 3, 3)
    assert all((b[0] * 7) % 3 == actor for actor, mine in enumerate(placed) for b in mine)


def test_a_long_group_stays_at_home_where_home_is_as_free_as_any():
    """It exceeds the fair share wherever it goes."""
    costs = {(0,): 9.0, (1,): 1.0, (2,): 1.0}
    for home in range(3):
        placed = place_groups(list(costs), costs.__getitem__, {(0,): home, (1,): None, (2,): None}.get, 3)
        assert placed[home] == [(0,)]


def test_long_groups_count_for_what_they_cost():
    costs = {(0, 1): 9.0, (2,): 3.0, (3,): 3.0, (4,): 3.0}
    placed = place_groups(list(costs), costs.__getitem__, lambda b: None, 2)
    assert placed == [[(0, 1)], [(2,), (3,), (4,)]]


def test_an_actor_keeps_its_groups_up_to_its_fair_share():
    """Of 8 seconds each has 4: the first keeps 3 + 1, and 2 would be too much."""
    costs = {(0,): 3.0, (1,): 2.0, (2,): 2.0, (3,): 1.0}
    assert place_groups(list(costs), costs.__getitem__, lambda b: 0, 2) == [[(0,), (3,)], [(1,), (2,)]]


def test_the_pace_of_clients_by_hand():
    """Who has not been measured counts as the mean of the others, and each new measurement counts half."""
    pace = Pace(np.array([10, 20, 30, 0]))
    assert [pace.cost(group) for group in ((0, 1), (2,), (3,))] == [30, 30, 0]  # samples
    pace.learn({(0, 1): 60.0})  # 2 seconds per sample
    assert [pace.cost(group) for group in ((0,), (0, 1), (2,))] == [20, 60, 60]
    pace.learn({(0,): 40.0})  # 4 seconds, so that client 0 has 3 and the mean is 2.5
    assert [pace.cost(group) for group in ((0, 1), (2,), (1, 2))] == [70, 75, 115]
    pace.learn({(2,): 15.0, (3,): 4.5})  # 0.5 seconds, and 4.5 for no sample
    assert [pace.cost(group) for group in ((2,), (3,))] == [15, 0]
    assert pace._sum / pace._measured == (3 + 2 + 0.5 + 4.5) / 4
