"""What is asked of Ray when actors are started, lost, added and stopped, with a Ray that writes it down."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from rayfl.engine.base import SERVER, ClusterLost, WorkersLost
from rayfl.engine.placement import RayRequest
from rayfl.errors import Conflict, Shortage
from tests.support.refusals import refused

exceptions: Any = pytest.importorskip("ray.exceptions")

from rayfl.engine import ray_workers  # noqa: E402
from rayfl.engine.ray_workers import RayEngineSession, RayWorkers  # noqa: E402

ASKED = RayRequest(3, None, 1.0, 0.5, 0.0, 2, None, False)


class Sign:
    """The reference of a result."""

    def __init__(self, actor: Any = None, value: Any = None) -> None:
        self.actor, self.value, self.ready = actor, value, True


class Actor:
    """An actor: with which options and arguments it was started, and what was called."""

    def __init__(self, kind: str, options: dict[str, Any], arguments: Any, node: str) -> None:
        self.kind, self.options, self.arguments, self.node = kind, options, arguments, node
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.busy = False

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Sign:
            self.calls.append((name, *arguments))
            sign = Sign(self, {"node": self.node})
            sign.ready = not self.busy
            return sign

        def several(num_returns: int) -> Any:
            return SimpleNamespace(remote=lambda *arguments: [remote(*arguments)] * num_returns)

        return SimpleNamespace(remote=remote, options=several)


class Group:
    """A placement group."""

    def __init__(self, bundles: list[dict[str, float]]) -> None:
        self.bundle_specs, self.state, self.fits = bundles, "CREATED", True

    def ready(self) -> Sign:
        sign = Sign()
        sign.ready = self.fits
        return sign

    def wait(self, seconds: float) -> bool:
        return self.fits


class WrittenDown:
    """A Ray with hosts a and b, of 2 CPUs and a GPU each."""

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.killed: list[Any] = []
        self.groups: list[Group] = []
        self.removed: list[Any] = []
        self.room = math.inf  # bundles of actors for which there is room
        self.free = {"CPU": 4.0, "GPU": 2.0}

    def nodes(self) -> list[dict[str, Any]]:
        known = [("a", True), ("b", True), ("gone", False)]
        return [{"NodeID": n, "Alive": up, "Resources": {"CPU": 2.0, "GPU": 1.0}} for n, up in known]

    def available_resources(self) -> dict[str, float]:
        return self.free

    def remote(self, kind: type) -> Any:
        def options(**given: Any) -> Any:
            def start(*arguments: Any) -> Actor:
                node = "a" if kind.__name__ == "ServerActor" or len(self.actors) < 3 else "b"
                self.actors.append(Actor(kind.__name__, given, arguments, node))
                return self.actors[-1]

            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)

    def wait(self, signs: list[Sign], num_returns: int = 1, timeout: float = 0) -> Any:
        return [s for s in signs if s.ready], [s for s in signs if not s.ready]

    def get(self, signs: Any, timeout: float = 0) -> Any:
        if isinstance(signs, list):
            return [self.get(sign) for sign in signs]
        if not signs.ready:
            raise exceptions.GetTimeoutError
        if signs.actor is not None and signs.actor.error is not None:
            raise signs.actor.error
        return signs.value

    def group(self, bundles: list[dict[str, float]], strategy: str) -> Group:
        self.groups.append(Group(bundles))
        self.groups[-1].fits = len(bundles) - 1 <= self.room
        return self.groups[-1]

    def table(self, group: Group) -> dict[str, Any]:
        return {"state": group.state, "bundles_to_node_id": {0: "a", 1: "b"}}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> WrittenDown:
    made = WrittenDown()
    for name, there in {
        "ray": made,
        "placement_group": made.group,
        "placement_group_table": made.table,
        "remove_placement_group": made.removed.append,
        "put_by_value": lambda *_: "plan",
    }.items():
        monkeypatch.setattr(ray_workers, name, there)
    monkeypatch.setattr(ray_workers, "RESOURCE_SECONDS", 0.01)
    return made


def workers(request: RayRequest = ASKED, groups: int | None = None, **changes: Any) -> RayWorkers:
    settings = {"request": request, "run": "mine", "quiet": True, "in_group": False, "is_own": True}
    settings |= {"shared": "data", "code": {}, "dead_process": lambda now=False: None}
    started: Any = SimpleNamespace(**settings | changes)
    plan: Any = SimpleNamespace(import_paths=[])
    data: Any = SimpleNamespace(clients=range(9))
    return RayWorkers(started, plan, data, groups)


def opened(*given: Any, **changes: Any) -> RayWorkers:
    made = workers(*given, **changes)
    made.start(allow_fewer=False)
    return made


def shared_by(actors: list[Any]) -> list[Any]:
    """Return among how many workers each believes to share its host."""
    return [[count for name, *count in actor.calls if name == "share_memory"][-1][0] for actor in actors]


def test_how_actors_are_started(written: WrittenDown, capsys: pytest.CaptureFixture[str]) -> None:
    """The server has the last bundle; two workers share a host with it, and the third is on another."""
    made = opened()
    (group,) = written.groups
    assert group.bundle_specs == [{"CPU": 1.0, "GPU": 0.5}] * 3 + [{"memory": 1.0}]
    server, *clients = written.actors
    assert (server.kind, server.arguments) == ("ServerActor", ("mine", "plan", "data"))
    assert server.options["num_cpus"] == 0
    assert [(a.kind, a.arguments) for a in clients] == [("ClientActor", ("mine", "plan", "data", 0.5))] * 3
    for actor in clients:
        assert [actor.options[n] for n in ("num_cpus", "num_gpus", "memory")] == [1.0, 0.5, 0]
    places = [actor.options["scheduling_strategy"] for actor in written.actors]
    assert [place.placement_group_bundle_index for place in places] == [3, 0, 1, 2]
    assert all(place.placement_group is group for place in places)
    assert len({actor.options["name"] for actor in written.actors}) == 4
    assert len(made) == 3
    assert [made.host_of(k) for k in (SERVER, 0, 1, 2)] == ["a", "a", "a", "b"]
    assert shared_by(clients) == [2, 2, 1]
    made.call(1, "save", "folder")
    assert clients[1].calls[-1] == ("save", "folder")
    assert len(made.call(2, "train", returns=2)) == 2
    assert not capsys.readouterr().out
    opened(quiet=False)
    assert "(3 actors)" in capsys.readouterr().out


def test_as_many_actors_as_have_work(written: WrittenDown) -> None:
    auto = ASKED._replace(actors=None)
    assert [len(opened(auto, groups)) for groups in (2, None)] == [2, 4]
    assert len(opened(ASKED, 2)) == 3  # as asked for


def test_survivors_are_kept_and_the_others_replaced(written: WrittenDown) -> None:
    """A lost server as well, and none that is busy; where there is memory for fewer, the last ones end."""
    made = opened()
    server, zero, one, two = written.actors
    one.error, zero.busy = exceptions.RayActorError(), True
    made.keep_survivors()
    assert (made.server, made.actors, made.bundle_numbers) == (server, [zero, two], [0, 2])
    zero.busy = False
    assert written.killed == [one]
    server.error = exceptions.RayActorError()
    made.keep_survivors()
    assert made.server is None
    made.start(allow_fewer=True)
    assert [actor.kind for actor in written.actors[4:]] == ["ServerActor", "ClientActor"]
    assert (made.server, made.actors) == (written.actors[4], [zero, two, written.actors[5]])
    assert made.bundle_numbers == [0, 2, 1]
    assert shared_by(made.actors) == [1, 2, 2]
    assert len(written.groups) == 1
    made._most_actors = 2
    made.keep_survivors()
    assert made.actors == [zero, two]
    made.start(allow_fewer=True)
    assert len(made) == 2


def test_nothing_is_kept_where_a_host_is_lost(written: WrittenDown) -> None:
    made = opened()
    written.groups[0].state = "RESCHEDULING"
    made.keep_survivors()
    assert (len(made), made.server, made.reserved) == (0, None, None)
    assert set(written.killed) == set(written.actors)
    assert written.removed == written.groups


def test_a_host_that_is_lost_while_actors_start(
    written: WrittenDown, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, looked = workers(), list[bool]()
    monkeypatch.setattr(made, "check", lambda: looked.append(True))

    def wait(signs: list[Sign], **_: Any) -> Any:
        if len(signs) == 1:  # of what is reserved
            return signs, []
        written.groups[0].state = "RESCHEDULING"
        looked.clear()
        return signs[1:], signs[:1]

    monkeypatch.setattr(written, "wait", wait)
    with refused(WorkersLost):
        made.start(allow_fewer=False)
    assert looked == [True]


def test_what_is_stopped(written: WrittenDown, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group of a trial is not the run's to remove."""
    made = opened()
    made.joining = [(joining := Actor("ClientActor", {}, (), "b"), Sign())]
    made.stop()
    assert {*written.killed} == {*written.actors, joining}
    assert written.removed == written.groups
    assert (len(made), made.server, made.joining, made.bundle_numbers) == (0, None, [], [])
    group = Group([{"CPU": 2.0}] * 3)
    monkeypatch.setattr(ray_workers, "get_current_placement_group", lambda: group)
    trial = opened(in_group=True)
    assert trial.reserved is group
    assert [actor.options["num_cpus"] for actor in written.actors[-3:]] == [2.0] * 3
    trial.stop()
    assert group not in written.removed
    group.fits = False
    with pytest.raises(RuntimeError, match="lost a host"):
        opened(in_group=True)


@pytest.mark.parametrize(("dead", "left"), [(None, 0), ("raylet", 3)])
def test_without_rays_processes_nothing_can_be_stopped(
    written: WrittenDown, dead: str | None, left: int
) -> None:
    closed: list[None] = []
    made = opened(dead_process=lambda now=False: dead if now else None, close=lambda: closed.append(None))
    made.close()
    assert (len(closed), len(made)) == (1, left)


# ---- others use the cluster


@pytest.mark.parametrize("again", [False, True])
def test_fewer_actors_where_others_use_the_cluster(
    written: WrittenDown, caplog: pytest.LogCaptureFixture, again: bool
) -> None:
    """As many as seem to fit, or half of them where this is not the reason; nothing else stays reserved."""
    written.room, written.free = 2, {"CPU": 3.0, "GPU": 1.5}
    made = workers(ASKED._replace(actors=None))
    made.start(allow_fewer=again)
    assert [len(group.bundle_specs) - 1 for group in written.groups] == [4, 3, 1]
    assert len(made) == 1
    assert written.removed == written.groups[:-1]
    assert len(caplog.records) == (0 if again else 2)


def test_what_others_use_is_refused_in_the_end(written: WrittenDown) -> None:
    written.room = 0
    for request, actors in ((ASKED, 3), (ASKED._replace(actors=None), 1)):
        with refused(Shortage, "engine.wait"):
            opened(request)
        assert len(written.groups[-1].bundle_specs) == actors + 1


def test_hosts_may_come_where_they_are_waited_for(written: WrittenDown) -> None:
    """So that what no host has room for is asked for, and without waiting is refused at once."""
    with refused(Shortage, "engine.actors"):
        opened(ASKED._replace(actors=5))
    assert not written.groups
    assert len(opened(ASKED._replace(actors=5, wait=1.0))) == 5


def test_what_is_waited_for_is_told_every_half_minute(
    written: WrittenDown, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Looked at after 0, 1, 2, 30, 31, 60 seconds, and given up after 70."""
    clock = iter([0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 30.0, 31.0, 60.0, 70.0, 70.0])
    monkeypatch.setattr(ray_workers, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(RayWorkers, "check", lambda self: None)
    written.room = 0
    with refused(Shortage, "engine.wait"):
        opened(ASKED._replace(wait=70.0))
    assert [float(r.getMessage().split(", for ")[1].split()[0]) for r in caplog.records] == [1, 30, 60]


# ---- hosts that join


def joined(written: WrittenDown, **changes: Any) -> tuple[RayWorkers, list[Any]]:
    """Return an actor on each of four CPUs, and those to whom data were sent; two CPUs come."""
    sent: list[Any] = []
    made = opened(
        ASKED._replace(actors=None, gpus_per_actor=0.0), share_with_new_hosts=sent.append, **changes
    )
    assert len(made) == 4
    usual = written.nodes()
    written.nodes = lambda: [*usual, usual[0]]  # type: ignore[method-assign]
    written.free = {"CPU": 2.0}
    return made, sent


def test_actors_on_hosts_that_have_joined(written: WrittenDown) -> None:
    """They start beside the rounds, and work as soon as they run; those that fail are left out."""
    made, sent = joined(written)
    made.add_workers()
    assert not made.joining  # not every round looks for hosts
    made._look_at = 0.0
    made.add_workers()
    assert sent == [made._data]
    (first, up), (second, _) = made.joining
    assert (first.kind, first.options["num_cpus"], first.arguments[3]) == ("ClientActor", 1.0, 0)
    up.ready = False
    made.add_workers()
    assert made.joining == [(first, up)]
    assert made.actors[4:] == [second]
    assert made.bundle_numbers == [0, 1, 2, 3, None]
    assert made.host_of(4) == "b"
    assert shared_by(made.actors) == [2, 2, 3, 3, 3]
    up.ready, first.error = True, exceptions.RayActorError()
    made.add_workers()
    assert (len(made), made.joining, written.killed) == (5, [], [first])
    made.add_workers()
    assert not made.joining  # nor is it tried again at once
    assert made._look_at > ray_workers.HOST_CHECK_SECONDS
    made._look_at = 0.0
    made.add_workers()
    assert made.joining  # but later


@pytest.mark.parametrize("why", ["others", "trial", "gcs"])
def test_when_no_actors_join(written: WrittenDown, why: str) -> None:
    """Where others have taken the room, in trials, and while a process of Ray's may be gone."""
    made, sent = joined(written, dead_process=lambda now=False: "gcs" if now and why == "gcs" else None)
    written.free = {"CPU": 0.0 if why == "others" else 2.0}
    made._started.in_group, made._look_at = why == "trial", 0.0
    made.add_workers()
    assert (made.joining, sent) == ([], [])
    assert (made._look_at > 0) == (why != "trial")


def test_a_host_that_joins_with_other_software(written: WrittenDown, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def ask(hosts: Any, ids: Any, get: Any) -> Any:
        asked.append([*ids])
        if len(asked) > 1:
            raise Conflict("host b", "has another rayfl")
        return {"host a": {}}

    monkeypatch.setattr(ray_workers, "ask_hosts", ask)
    made, _ = joined(written, is_own=False)
    assert made.hosts == {"host a": {}}
    made._look_at = 0.0
    made.add_workers()
    made.add_workers()
    assert asked == [["a", "b"], ["b"], ["b"]]
    assert (len(made), len(written.killed)) == (4, 2)


# ---- results and errors


def test_which_errors_are_losses(written: WrittenDown, monkeypatch: pytest.MonkeyPatch) -> None:
    made = opened()
    sign = made.call(0, "train")
    assert made.get([sign]) == [{"node": "a"}]

    def task(cause: Exception) -> Exception:
        return exceptions.RayTaskError("train", "its trace", cause)

    for error, kind in (
        (exceptions.RayActorError(), WorkersLost),
        (task(exceptions.WorkerCrashedError()), WorkersLost),
        (exceptions.RayActorError(actor_init_failed=True), Shortage),
        (task(Conflict("net", "is wrong")), Conflict),
        (exceptions.OutOfMemoryError("killed"), WorkersLost),
    ):
        assert made._most_actors == math.inf
        written.actors[1].error = error
        with refused(kind, "net" if kind is Conflict else ""):
            made.get([sign])
    assert made._most_actors == 1  # half of three
    written.actors[1].error = task(ValueError("of the method"))
    with pytest.raises(exceptions.RayTaskError):
        made.get([sign])


def test_results_are_waited_for_while_ray_lives(
    written: WrittenDown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes are looked at when they were last seen a second ago; the clock takes steps of 0.4 s."""
    steps, looks = iter(range(100)), list[int]()

    def look(now: bool = False) -> str | None:
        looks.append(next(steps))
        return "raylet" if len(looks) == 3 else None

    made = opened()
    made._started.dead_process = look  # type: ignore[method-assign]
    monkeypatch.setattr(ray_workers, "time", SimpleNamespace(monotonic=lambda: 10 + 0.4 * next(steps)))
    made._seen, sign = 9.5, made.call(0, "train")
    sign.ready = False
    with refused(ClusterLost):
        made.get([sign])
    assert looks == [5, 9, 13]


def test_a_call_that_takes_too_long_is_told_with_its_place(
    written: WrittenDown, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After ten times what is usual, and a minute; then again after twice as long. The clock takes steps."""
    made, times, hung = opened(), [0.0], list[bool]()

    def get(signs: Any, timeout: float = 0) -> Any:
        times.append(times[-1] + 10)
        hung.append(made.hangs)
        if len(hung) < 20:
            raise exceptions.GetTimeoutError
        return ["over"]

    monkeypatch.setattr(written, "get", get)
    monkeypatch.setattr(ray_workers, "time", SimpleNamespace(monotonic=lambda: times[-1]))
    made.where[1] |= {"pid": 7, "host": "there", "stack": 3}
    made.actors[1].busy = True
    assert made.get([made.call(0, "train")], usual=7.0) == ["over"]
    assert hung[:8] == [False] * 8
    assert all(hung[8:])
    assert not made.hangs
    assert caplog.text.count("7 s are usual, from process 7 on there") == 2


def test_a_host_that_leaves_is_named_once(written: WrittenDown, monkeypatch: pytest.MonkeyPatch) -> None:
    made, leaving = opened(), dict[str, int]()
    made._started.is_own = False
    monkeypatch.setattr(ray_workers, "draining_nodes", lambda: leaving)
    leaving["other"] = 1
    assert not made.hosts_leave()
    leaving["a"] = 1
    assert made.hosts_leave()
    assert not made.hosts_leave()


@pytest.mark.parametrize(
    ("text", "fails", "expected"),
    [
        ("The actor died.\n\tclass_name: KeptClient\n\tpid: 7\nIt ended.", False, "It ended (KeptClient, 7)"),
        ("It ended. Worker exit type: SYSTEM_ERROR and more", False, "an actor died: It ended"),
        ("It ended. Some common causes include: many", False, "an actor died: It ended"),
        ("first\nrayfl.errors.Missing: no GPU", True, "an actor cannot start: no GPU"),
        ("ModuleNotFoundError: No module named 'mine'", True, "before Ray is started"),
    ],
)
def test_why_an_actor_has_died(text: str, fails: bool, expected: str) -> None:
    told = ray_workers._death_text(exceptions.RayActorError(error_msg=text, actor_init_failed=fails))
    assert told.endswith(expected)


@pytest.mark.parametrize(
    ("changes", "in_group", "reports"),
    [({}, False, 0), ({"dashboard": True}, False, 1), ({"address": "auto"}, False, 1), ({}, True, 1)],
)
def test_rounds_are_reported_where_somebody_may_look(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], in_group: bool, reports: int
) -> None:
    monkeypatch.setattr(ray_workers, "RayMetrics", lambda run: run)
    session = object.__new__(RayEngineSession)
    session.request, session.run, session.in_group = ASKED._replace(**changes), "mine", in_group
    assert session.round_callbacks() == ["mine"] * reports
