"""A client per user."""

import logging
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rayfl import resumed
from rayfl.data import IID, Arrays, ByUser, EmbeddedDigits, WriterDigits
from rayfl.errors import Conflict
from rayfl.nets import MLP
from tests.support.datasets import ORIGIN, assign, make_dataset
from tests.support.federations import bytes_of_run, small
from tests.support.refusals import refused


def with_users(users, seed=0, **counts):
    """A dataset whose samples belong to users at random."""
    dataset = make_dataset(**({"train": [30, 25], "test": [12, 13], "val": [5, 0]} | counts))
    drawn = np.random.default_rng(seed).integers(0, users, len(dataset))
    return replace(dataset, users=drawn, user_names=tuple(f"u{i}" for i in range(users)))


@settings(max_examples=25)
@given(users=st.integers(1, 12), clients=st.integers(1, 12), least=st.integers(1, 8), seed=st.integers(0, 99))
def test_users_are_dealt_whole(users, clients, least, seed):
    dataset = with_users(users, seed)
    counts = np.bincount(dataset.users[dataset.origin == ORIGIN["train"]], minlength=users)
    used = set(np.flatnonzero(counts >= least))
    partition = ByUser(min_samples=least)
    if clients > len(used):
        with refused(Conflict, "clients"):
            partition.assign(dataset, clients, np.random.default_rng(seed))
        return
    found = assign(partition, dataset, clients, seed)
    owners = [{u for part in ORIGIN for u in dataset.users[mine.split(part)]} for mine in found]
    assert sum(map(len, owners)) == len(used)
    assert set().union(*owners) == used
    sizes = [len(mine) for mine in owners]
    assert max(sizes) - min(sizes) <= 1
    for part, origin in ORIGIN.items():  # all that these users have, and nothing else
        given_out = np.sort(np.concatenate([mine.split(part) for mine in found]))
        wanted = np.flatnonzero(np.isin(dataset.users, list(used)) & (dataset.origin == origin))
        assert given_out.tolist() == wanted.tolist()


def test_with_as_many_clients_as_users_client_i_is_user_i():
    """Fewer get users by the seed."""
    dataset = with_users(9)
    for number, mine in enumerate(assign(ByUser(), dataset, 9)):
        assert set(dataset.users[np.concatenate([mine.train, mine.val, mine.test])]) == {number}
    few = [assign(ByUser(), dataset, 3, seed) for seed in (0, 0, 1)]
    owners = [[frozenset(dataset.users[mine.train]) for mine in each] for each in few]
    assert owners[0] == owners[1] != owners[2]


def test_the_record_names_the_users_of_a_client():
    """Unless clients share them."""
    data = WriterDigits(partition=ByUser())
    named = [client["users"] for client in data.federate(14, 0).describe()["clients"]]
    assert named == [[f"form{i}"] for i in range(14)]
    named = [client["users"] for client in data.federate(5, 0).describe()["clients"]]
    assert sorted(name for names in named for name in names) == sorted(f"form{i}" for i in range(14))
    shared = WriterDigits(partition=IID()).federate(2, 0).describe()["clients"]
    plain = EmbeddedDigits().federate(2, 0).describe()["clients"]
    assert all("users" not in client for client in shared + plain)


def test_every_user_is_a_client_unless_fewer_are_asked_for(tmp_path):
    """24 users of four samples each; the configuration of a run names their number."""
    users = [f"patient {i}" for i in range(24) for _ in range(4)]
    x = np.random.default_rng(0).standard_normal((96, 3))
    data = Arrays(x, np.arange(96) % 2, users=users, test_fraction=0.5)
    small(tmp_path / "all", data=data, clients=None, net=MLP(), rounds=1).run()
    resumed(tmp_path / "all", {"rounds": 2}, data=data).run()
    small(tmp_path / "whole", data=data, clients=24, net=MLP(), rounds=2).run()
    assert bytes_of_run(tmp_path / "all") == bytes_of_run(tmp_path / "whole")
    assert data.federate(None, 0).remarks == []
    few = data.federate(5, 0)
    assert len(few) == 5
    assert few.remarks[0].startswith("24 users are put together into 5 clients")
    assert len(EmbeddedDigits().federate(None, 0)) == 5


def test_users_with_too_few_samples_are_named_by_number(caplog):
    """User 0 has one training sample, user 1 none, but test samples."""
    dataset = make_dataset([9], [6])
    users = np.full(len(dataset), 2)
    users[np.flatnonzero(dataset.origin == ORIGIN["train"])[0]] = 0
    users[np.flatnonzero(dataset.origin == ORIGIN["test"])[0]] = 1
    dataset = replace(dataset, users=users, user_names=("a", "b", "c"))
    with caplog.at_level(logging.WARNING):
        one, two = assign(ByUser(), dataset, 2)
    assert "1 of 3 users have fewer than 1 training samples" in caplog.text
    assert (len(one.train), len(one.test), len(two.train), len(two.test)) == (1, 0, 8, 5)
    (mine,) = assign(ByUser(min_samples=2), dataset, 1)
    assert len(mine.train) == 8
    with refused(Conflict, "clients"):
        ByUser(min_samples=2).assign(dataset, 2, np.random.default_rng(0))


def test_data_without_users_are_refused():
    with refused(Conflict, "data.partition"):
        ByUser().assign(make_dataset([9], [6]), 2, np.random.default_rng(0))
    assert len(IID().assign(with_users(3), 2, np.random.default_rng(0))) == 2
