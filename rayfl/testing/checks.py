"""Checks that every method must pass: each runs a small federation in float64 on the CPU.

A check that fails raises an ``AssertionError`` of one sentence, which names the method and the check.
"""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from rayfl.data import FederatedData
from rayfl.engine.worker import Worker
from rayfl.errors import UserError
from rayfl.evaluation.score import answer_at_once
from rayfl.methods import SCAFFOLD, FedAvg, Method
from rayfl.methods.base import has_exchange
from rayfl.nets import Architecture
from rayfl.running.checks import check_class
from rayfl.testing.by_hand import Run, assert_same, ragged, start, tiny, tiny_wide
from rayfl.training import Params, State, Training
from rayfl.training.state import take_apart
from rayfl.training.sums import Mean, payload_bytes
from rayfl.transforms import Transform

TestedNets = Architecture | str | list[Architecture | str]
TINY = f"{tiny.__module__}.{tiny.__name__}"
TINY_WIDE = f"{tiny_wide.__module__}.{tiny_wide.__name__}"
SOME = ([0, 1, 2], [1, 3], [0, 2, 3])
"""Cohorts of three rounds."""


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What only the author of a method knows about it.

    Attributes:
        net: a net that the method works with, by import path or as an architecture; by default a tiny one
            with BatchNorm.
        stateless: whether clients keep nothing; None: unknown.
        personal: patterns such as ``head.*`` of entries of the net that must not travel, in addition to
            those that ``shared`` keeps.
        apart: patterns of entries that ``shared`` keeps and that still travel, under a key of their own,
            such as heads that are gathered.
        mean: how the server weights clients in its ``weights``, if these are a mean; None: as the method
            declares, if ``aggregate`` is not overridden.
        limits: (options, other method): with these options the method must equal the other one, in the
            server's ``weights`` and in the scores of ``personal``.
        plain: options with which a federation of one client is plain SGD; None: there are none.
        counts_less: whether ``communication_bytes`` leaves out part of a payload on purpose.
    """

    net: TestedNets = TINY
    stateless: bool | None = None
    personal: Sequence[str] = ()
    apart: Sequence[str] = ()
    mean: Literal["samples", "uniform"] | None = None
    limits: Sequence[tuple[dict[str, Any], Method]] = ()
    plain: dict[str, Any] | None = None
    counts_less: bool = False


@dataclass(frozen=True)
class _Subject:
    """The method under test, and the federations that checks run with it."""

    method: Method
    intent: Intent
    transforms: Sequence[Transform] = ()

    @cached_property
    def data(self) -> FederatedData:
        """Clients of uneven sizes."""
        return self.clients()

    def clients(self, *sizes: int) -> FederatedData:
        """Return clients of these sizes, by default uneven, with validation data if the method uses them."""
        val = 3 if self.method.facts.validation == "needed" else 0
        return ragged(sizes, val=val) if sizes else ragged(val=val)

    def start(self, method: Method | None = None, data: FederatedData | None = None, **options: Any) -> Run:
        """Make a federation without running it."""
        settings: dict[str, Any] = {"rounds": 3, "momentum": 0.5, "transforms": self.transforms} | options
        return start(method or self.method, data or self.data, self.intent.net, **settings)

    def run(
        self, cohorts: Sequence[Sequence[int]] = SOME, method: Method | None = None, **options: Any
    ) -> Run:
        """Run the rounds of some cohorts."""
        run = self.start(method, **options)
        for cohort in cohorts:
            run.round(cohort)
        return run

    def with_options(self, **options: Any) -> Method:
        """Return the method with some options changed."""
        cls = type(self.method)
        kept = {name: getattr(self.method, name) for name in inspect.signature(cls).parameters}
        return cls(**(kept | options))

    @cached_property
    def values(self) -> dict[str, Tensor]:
        """All tensors of the states after three rounds."""
        return self.run().values()

    @cached_property
    def payloads(self) -> list[tuple[Any, Any, Any, Any]]:
        """The payloads of all updates of a run: (down, up, bytes down, bytes up)."""
        run, seen = self.start(), []
        count = run.worker.method.communication_bytes

        def spy(client: Any, down: Any, up: Any) -> Any:
            found = count(client, down, up)
            seen.append((down, up, *found))
            return found

        attributes = vars(run.worker.method)  # of a method that is frozen
        attributes["communication_bytes"] = spy
        try:
            for cohort in SOME:
                run.round(cohort)
        finally:
            del attributes["communication_bytes"]
        return seen


def _images() -> Tensor:
    return torch.tensor(ragged().dataset.inputs[:6]).double()


def _match(values: dict[str, Tensor], others: dict[str, Tensor], sentence: str, tolerance: float = 0) -> None:
    try:
        assert_same(values, others, tolerance)
    except AssertionError as error:
        raise AssertionError(f"{sentence}; see {str(error).splitlines()[0]}") from None


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise AssertionError(sentence)


# ---- checks, in the order in which they run


def runs(subject: _Subject) -> None:
    """Three rounds of four uneven clients run, and leave finite state."""
    check_class(type(subject.method))
    finite = all(bool(t.isfinite().all()) for t in subject.values.values())
    _require(finite, "the states have NaN or infinity in them")


def trains(subject: _Subject) -> None:
    """Results depend on the learning rate, or, if a method has rates of its own, on the labels."""
    dataset = subject.data.dataset
    if _values_differ(subject.values, subject.run(lr=0.05).values()):
        return
    others = replace(dataset, labels=(dataset.labels + 1) % dataset.classes)
    relabelled = subject.run(data=replace(subject.data, dataset=others)).values()
    _require(
        _values_differ(subject.values, relabelled),
        "states are the same whatever the learning rate and the labels: clients do not train",
    )


def seed_matters(subject: _Subject) -> None:
    """Runs of two seeds differ."""
    differ = _values_differ(subject.values, subject.run(seed=4).values())
    _require(differ, "runs with different seeds are the same: the seed is ignored")


def stacked_equals_loop(subject: _Subject) -> None:
    """Training clients together gives the same as training them one by one."""
    stacked = subject.run(execution="stacked").values()
    _match(stacked, subject.values, "stacked and loop execution differ", 1e-9)


def processes_do_not_matter(subject: _Subject) -> None:
    """Two workers that share the clients, and take them in another order, give the bytes of one."""
    one, two = subject.start(), subject.start()
    second = Worker(two.worker.plan, two.worker.data)
    for run, turns in (
        (one, ((one.worker, (0, 1)), (one.worker, (2, 3)))),
        (two, ((second, (2, 3)), (two.worker, (0, 1)))),
    ):
        for number in range(2):
            down = run.server.download(range(4))
            if has_exchange(subject.method, number):
                parts = [w.train(number, down, [group], hook="before_round")[0] for w, group in turns]
                run.server.keep_exchange(*parts)
                down = run.server.download(range(4))
            parts = [worker.train(number, down, [group])[0] for worker, group in turns]
            run.server.step(run.server.build_cohort(range(4), number), *parts)
    two.worker.states.update(second.states)
    _match(
        one.values(),
        two.values(),
        "two processes give other bytes than one: something is kept outside of the states",
    )


def resumes(subject: _Subject) -> None:
    """A run that is resumed from saved states gives the same bytes as an uninterrupted run."""
    run, fresh = subject.run(SOME[:2]), subject.start()
    with tempfile.TemporaryDirectory() as folder:
        server = run.server.save(folder)
        clients = run.worker.save(folder, 0, range(4))
        fresh.server.restore(folder, server)
        fresh.worker.restore(folder, [clients] if clients else [])
    fresh.results = list(run.results)
    for r in (run, fresh):
        r.round(SOME[2])
    _match(fresh.values(), run.values(), "a resumed run differs: something is kept outside of the states")


def values_handed_in_stay(subject: _Subject) -> None:
    """Another round does not change old states."""
    run = subject.run(SOME[:2])
    kept = {"server": run.server.state, "clients": dict(run.worker.states)}
    before = {name: t.clone() for name, t in take_apart(kept)[1].items()}
    run.round([0, 1, 2, 3])
    after = take_apart(kept)[1]
    changed = [name for name in before if name not in after or not torch.equal(before[name], after[name])]
    _require(not changed, f"a round changed the old {', '.join(changed[:1])} in place")


def state_is_used(subject: _Subject) -> None:
    """The states that clients keep affect later results."""
    run, forgetful, first = subject.run(SOME[:2]), subject.run(SOME[:2]), subject.start().worker
    keeps = bool(run.worker.states)
    problem = f"clients keep {'a' if keeps else 'no'} state, against `stateless` of the check"
    _require(subject.intent.stateless in (None, not keeps), problem)
    if not keeps:
        return
    x = _images()

    def scores(run: Run) -> dict[str, Tensor]:
        return {f"{view} of {i}": t for i in range(4) for view, t in run.scores(i, x).items()}

    forgetful.worker.states.clear()
    pairs = [(scores(run), scores(forgetful))]
    for r in (run, forgetful):
        r.round([0, 1, 2, 3])
    pairs += [(run.values(), forgetful.values())]
    kept, last = scores(run), dict(run.worker.states)
    moved = any(not _states_equal(state, first.state(i, first.client(i, 0))) for i, state in last.items())
    run.worker.states.clear()
    pairs += [(kept, scores(run))]
    _require(
        not moved or any(_values_differ(*pair) for pair in pairs),
        "forgetting the clients' states changes nothing: they are never used",
    )


def _values_differ(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return any(not torch.equal(t, other.get(name, t * 0)) for name, t in one.items())


def _states_equal(one: State, other: State) -> bool:
    (shape, old), (other_shape, new) = take_apart(one), take_apart(other)
    return shape == other_shape and all(torch.equal(t, new[name]) for name, t in old.items())


def _family(key: str) -> str:
    """Return a key without its number: of the models ``m0``, ``m1``..., some may have no clients."""
    return re.sub(r"\d+", "", key)


def every_part_of_the_state_changes(subject: _Subject) -> None:
    """Every key of a client's or the server's state changes; of numbered keys, some may stay the same."""
    run = subject.start()

    def states() -> dict[str, State]:
        clients = {i: run.worker.client(i, len(run.results)) for i in range(2)}
        kept = {f"client {i}": run.worker.state(i, client) for i, client in clients.items()}
        return {"server": run.server.state, **kept}

    first = states()
    for _ in range(3):
        run.round([0, 1, 2, 3])
    last = states()
    for owner, state in first.items():
        still: dict[str, list[str]] = {}
        moved = set()
        for key, value in state.items():
            old, new = (_floats(x) for x in (value, last[owner].get(key)))
            if old and len(old) == len(new) and all(map(torch.equal, old, new)):
                still.setdefault(_family(key), []).append(key)
            else:
                moved.add(_family(key))
        found = [key for family, keys in still.items() if family not in moved for key in keys]
        _require(not found, f"{', '.join(found)} of the state of {owner} never changes")


def _floats(value: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(value) if isinstance(x, Tensor) and x.is_floating_point()]


def declared_uploads_are_sent(subject: _Subject) -> None:
    """Every key of ``uploads`` is uploaded by some client; of numbered keys, one is enough."""
    sent = {_family(key) for _, up, *_ in subject.payloads for key in up}
    context = subject.start().server.context
    declared = subject.method.uploads(context)
    missing = [key for key in declared if _family(key) not in sent] if sent else []
    _require(not missing, f"`uploads` declares {', '.join(map(repr, missing))}, which nobody sends")


def means_have_their_weights(subject: _Subject) -> None:
    """The server's ``weights`` are the mean of the clients', with the declared weights."""
    declared = subject.start().server.uploads.get("weights")
    mean: str | None = subject.intent.mean
    if mean is None and type(subject.method).aggregate is Method.aggregate and isinstance(declared, Mean):
        mean = declared.by
    if mean not in ("samples", "uniform"):
        return
    found = []
    for cohort in ([0], [1], [0, 1]):  # after one exchange, on which it may depend what clients do
        run = subject.start()
        run.round(cohort, asked=[0, 1])
        found.append(run.server.state["weights"])
    *alone, both = found
    sizes = [len(subject.data.clients[i].train) for i in (0, 1)] if mean == "samples" else [1, 1]
    for name in both:
        expected = sum(n * w[name].double() for n, w in zip(sizes, alone, strict=True)) / sum(sizes)
        close = torch.allclose(both[name].double(), torch.as_tensor(expected), rtol=1e-9, atol=1e-9)
        _require(close, f"{name} of the server is not the mean of the clients' weighted by {mean}")


def personal_entries_stay(subject: _Subject) -> None:
    """No download and no upload has personal entries."""
    context = subject.start().worker.context
    intent, names = subject.intent, context.net.modules_of
    kept = {n for n in names if n not in context.shared and not any(fnmatch(n, p) for p in intent.apart)}
    kept |= {n for n in names if any(fnmatch(n, p) for p in intent.personal)}
    for down, up, *_ in subject.payloads:
        for way, payload in (("download", down), ("upload", up)):
            leaves = pytree.tree_leaves(payload, is_leaf=lambda x: isinstance(x, Params))
            travel = {n for leaf in leaves if isinstance(leaf, Params) for n in leaf}
            found = sorted(travel & kept)
            problem = f"{', '.join(found[:2])} of the net is personal, and travels in the {way}"
            meant = f"; if it should, under a key of its own, name it in the check: apart={found[:2]}"
            _require(not found, problem + (meant if found and found[0] not in context.shared else ""))


def bytes_are_those_of_payloads(subject: _Subject) -> None:
    """``communication_bytes`` counts the bytes of the payloads."""
    for down, up, bytes_down, bytes_up in subject.payloads:
        for way, payload, counted in (("download", down, bytes_down), ("upload", up, bytes_up)):
            for key, value in payload.items():
                real, said = payload_bytes(value), counted.get(key, 0)
                fine = 0 <= said <= real if subject.intent.counts_less else said == real
                _require(
                    fine, f"{key!r} of the {way} has {real} bytes, and communication_bytes counts {said}"
                )


def views_are_scored(subject: _Subject) -> None:
    """Every view has finite scores, one row per input and one column per class, before and after training."""
    x = _images()
    for run in (subject.start(), subject.run()):
        scores = run.scores(0, x)
        declared = set(run.worker.method.views)
        _require(
            set(scores) == declared, f"scores has the views {sorted(scores)}, and `views` {sorted(declared)}"
        )
        for view, found in scores.items():
            shape = (len(x), subject.data.dataset.classes)
            _require(tuple(found.shape) == shape, f"scores of {view!r} have the shape {tuple(found.shape)}")
            _require(bool((~found.isnan()).all()), f"scores of {view!r} have NaN in them")


def scores_change_nothing(subject: _Subject) -> None:
    """Scoring twice gives the same scores, and changes no state and no later round."""
    run, other, x = subject.run(), subject.run(), _images()
    before = {name: t.clone() for name, t in run.values().items()}
    one, two = run.scores(1, x), run.scores(1, x)
    _require(
        all(torch.equal(one[v], two[v]) for v in one), "scoring the same inputs twice gives other scores"
    )
    after = run.values()
    _require(all(torch.equal(t, after[n]) for n, t in before.items()), "scores changes a state")
    for each in (run, other):
        each.round([1, 2])
    _require(not _values_differ(run.values(), other.values()), "scoring changes what is trained later")


def exchange_keeps_nothing(subject: _Subject) -> None:
    """What clients upload before a round changes none of their states, and is the same if asked again."""
    if not has_exchange(subject.method, 0):
        return
    run = subject.run(SOME[:1])
    down, before = run.server.download(range(4)), take_apart(dict(run.worker.states))
    kept = [t.clone() for t in before[1].values()]
    for _ in range(2):
        uploads, result = run.worker.train(1, down, [(0, 1, 2, 3)], hook="before_round")
        _require(not result.bad, f"before_round uploads what cannot be used: {result.bad}")
        run.server.keep_exchange(uploads)
        run.servers.append(run.server.state)
    now = take_apart(dict(run.worker.states))
    same = now[0] == before[0] and all(map(torch.equal, kept, now[1].values()))
    _require(same, "before_round changes the clients' states")
    one, two = (_floats(state) for state in run.servers[-2:])
    _require(all(map(torch.equal, one, two)), "before_round uploads something else if it is asked again")


def scores_without_personalising(subject: _Subject) -> None:
    """Where nobody has personalised, as right after training, ``scores`` works with the ordinary state."""
    run, x = subject.run(), _images()
    view = run.worker.client(0, len(run.results))
    down = run.server.download([0]).for_client(0)
    found = answer_at_once(subject.method.scores(view, run.worker.state(0, view), down, x))
    finite = all(bool((~t.isnan()).all()) for t in found.values())
    _require(finite, "scores without personalise has NaN in it")


def inputs_are_scored_alone(subject: _Subject) -> None:
    """The scores of an input do not depend on the other inputs of the batch."""
    run, x = subject.run(), _images()
    whole, part = run.scores(2, x), run.scores(2, x[:2])
    for view in whole:
        close = torch.allclose(whole[view][:2], part[view], rtol=1e-6, atol=1e-9)
        _require(close, f"scores of {view!r} depend on the other inputs of the batch: use client.eval")


def options_are_kept(subject: _Subject) -> None:
    """The method can be rebuilt from its options, as configurations do."""
    rebuilt = subject.run(method=subject.with_options()).values()
    _match(rebuilt, subject.values, "the method rebuilt from its options differs")


def different_nets_work_or_are_refused(subject: _Subject) -> None:
    """Clients with two nets train, or the method refuses them before anything starts."""
    nets: list[Architecture | str] = [TINY, TINY_WIDE]
    try:
        run = start(subject.method, subject.data, nets, rounds=2)
    except UserError:
        _require(subject.method.facts.nets == "equal", "its facts allow different nets, and it refuses two")
        return
    run.round([0, 1, 2, 3])


def plain_sgd_with_one_client(subject: _Subject) -> None:
    """With the options of ``plain``, a federation of one client is FedAvg's, which is plain SGD."""
    if subject.intent.plain is not None:
        alone = {"data": subject.clients(16), "momentum": 0.0}
        same = _score_alike(subject, subject.intent.plain, FedAvg(), [[0]] * 3, **alone)
        _require(same, "one client alone is not plain SGD, by the scores of its personal view")


def limits_hold(subject: _Subject) -> None:
    """With the options of each limit, the method equals the other method."""
    for options, other in subject.intent.limits:
        given = ", ".join(f"{k}={v}" for k, v in options.items()) or "these options"
        same = _score_alike(subject, options, other, SOME)
        _require(same, f"with {given} it does not equal {type(other).__name__}, by the scores of personal")


def _score_alike(
    subject: _Subject, options: dict[str, Any], other: Method, cohorts: Sequence[Sequence[int]], **more: Any
) -> bool:
    """Return whether the method with these options gives every client the scores of another method."""
    runs = [subject.run(cohorts, method, **more) for method in (subject.with_options(**options), other)]
    clients, x = range(len(runs[0].worker.data.clients)), _images()
    one, another = (torch.stack([run.scores(i, x)["personal"] for i in clients]) for run in runs)
    return torch.allclose(one, another, rtol=1e-9, atol=1e-9)


CHECKS: dict[str, Callable[[_Subject], None]] = {
    name: thing
    for name, thing in globals().items()
    if inspect.isfunction(thing) and thing.__module__ == __name__ and not name.startswith("_")
}
"""Name -> check, in the order in which they run: the public functions above."""


def ray_equals_inline(subject: _Subject) -> None:
    """Two actors give the same bytes as one process."""
    from rayfl.data import Synthetic
    from rayfl.engine.inline import Inline
    from rayfl.engine.ray_engine import Ray
    from rayfl.federation import Federation

    found = []
    with tempfile.TemporaryDirectory() as folder:
        for engine in (Inline(), Ray(actors=2)):
            output = Path(folder) / type(engine).__name__
            Federation(
                method=subject.method,
                data=Synthetic(
                    train=120, test=40, val_fraction=0.2 if subject.method.facts.validation == "needed" else 0
                ),
                net=subject.intent.net,
                clients=4,
                rounds=2,
                training=Training(batch_size=10),
                engine=engine,
                loggers=[],
                quiet=True,
                output=str(output),
            ).run()
            found.append((output / "metrics.jsonl").read_bytes())
    _require(found[0] == found[1], "two actors of Ray give other records than one process")


def _checks_to_make(subject: _Subject, only: Sequence[str]) -> dict[str, str]:
    """Return the checks to make, each with why the method says that it does not hold; empty: it does.

    Raises:
        AssertionError: there is no check of a name.
    """
    unchecked = subject.method.facts.unchecked
    if odd := {*only, *unchecked} - CHECKS.keys():
        raise AssertionError(f"there is no check {min(odd)!r}: there are {', '.join(CHECKS)}")
    return {name: unchecked.get(name, "") for name in only or CHECKS}


def _carry_out(check: Callable[[_Subject], None], subject: _Subject) -> None:
    try:
        check(subject)
    except Exception as error:
        kind = "" if isinstance(error, AssertionError | UserError) else f"{type(error).__name__}: "
        failing = subject.transforms[0] if subject.transforms else subject.method
        what = f"{type(failing).__name__} fails the check {check.__name__}"
        raise AssertionError(f"{what}: {kind}{error}") from error


def check_method(
    method: type[Method] | Method, *, only: Sequence[str] = (), ray: bool = False, **intent: Any
) -> dict[str, str]:
    """Check what every method must do, in a few seconds, without Ray and without data files.

    Args:
        method: a class, which is built with its defaults, or an object.
        only: names of checks to make, instead of all.
        ray: whether to also run on two actors of Ray.
        intent: what only the author knows; see ``Intent``.

    Returns:
        The checks that were left out, because the method's ``facts`` say that they do not hold -> why.

    Raises:
        AssertionError: a sentence with the method, the check and the problem.

    Examples:
        >>> from rayfl.methods import FedProx
        >>> from rayfl.testing import check_method
        >>> check_method(FedProx(mu=0.5), only=["resumes"])
        {}
    """
    subject = _Subject(method() if isinstance(method, type) else method, Intent(**intent))
    checks = _checks_to_make(subject, only)
    for check in (*(CHECKS[name] for name, why in checks.items() if not why), *([ray_equals_inline] * ray)):
        _carry_out(check, subject)
    return {name: why for name, why in checks.items() if why}


def method_checks(*methods: type[Method] | Method, **intent: Any) -> Any:
    """Decorate a pytest test; each check of each method becomes a case of it::

        @method_checks(FedX(), FedX(mu=0), stateless=True)
        def test_fedx(check):
            check()

    Args:
        methods: classes or objects.
        intent: what only the author can know; see ``Intent``.
    """
    import pytest

    cases = []
    for method in methods:
        subject = _Subject(method() if isinstance(method, type) else method, Intent(**intent))
        cases += [
            pytest.param(
                partial(_carry_out, CHECKS[name], subject),
                id=f"{type(subject.method).__name__}-{name}",
                marks=[pytest.mark.skip(reason=why)] if why else [],
            )
            for name, why in _checks_to_make(subject, ()).items()
        ]
    return pytest.mark.parametrize("check", cases)


# ---- transforms


def client_half_is_a_function(subject: _Subject) -> None:
    """The client half gives the same again, leaves what it is handed, and draws from clients alone."""
    run, transform = subject.start(), subject.transforms[0]
    down = run.server.download(range(4))
    change = {"weights": 0.1 * down.everyone["weights"], "control": down.everyone["weights"]}
    received = transform.init_server(run.server.context)
    for i in range(2):
        memory: State = {}
        for round in range(2):
            handed = {"change": change, "memory": memory, "received": received}
            before = {name: t.clone() for name, t in take_apart(handed)[1].items()}
            drawn = torch.get_rng_state()
            found = [
                transform.at_client(change, memory, run.worker.client(i, round), received) for _ in range(2)
            ]
            _require(torch.equal(drawn, torch.get_rng_state()), "at_client draws from a global generator")
            _match(take_apart(handed)[1], before, "at_client changes what it is handed")
            (first, further), (again, more) = (
                ({"change": dict(sent), "memory": kept}, dict(sums)) for sent, kept, sums in found
            )
            _match(take_apart(first)[1], take_apart(again)[1], "at_client gives something else when repeated")
            _require(further == more, "at_client gives other sums when it is repeated")
            memory = found[0][1]


def upload_bytes_are_numbers(subject: _Subject) -> None:
    """``upload_bytes`` has a whole number, 0 or more, for each key that is sent."""
    run, transform = subject.start(), subject.transforms[0]
    change = {"weights": run.worker.initial}
    found = transform.upload_bytes(change, {"weights": change["weights"].nbytes})
    fine = found.keys() == change.keys() and all(isinstance(n, int) and n >= 0 for n in found.values())
    _require(fine, f"upload_bytes returns {found}: it must have a whole number for each upload key")


def check_transform(transform: type[Transform] | Transform, method: Method | None = None) -> None:
    """Check what every transform must do, in a few seconds; compare :func:`check_method`.

    Args:
        transform: a class, which is built with its defaults, or an object.
        method: with which it runs; SCAFFOLD by default, which uploads two changes and keeps a state.

    Raises:
        AssertionError: a sentence with the transform, the check and the problem.
    """
    made = transform() if isinstance(transform, type) else transform
    subject = _Subject(method or SCAFFOLD(), Intent(), (made,))
    alone = (client_half_is_a_function, upload_bytes_are_numbers)
    for check in (*alone, runs, stacked_equals_loop, processes_do_not_matter, resumes, values_handed_in_stay):
        _carry_out(check, subject)
