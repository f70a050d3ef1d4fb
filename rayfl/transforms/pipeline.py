"""What clients' changes of weights go through, as workers and server apply it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rayfl.errors import BadCode, Conflict
from rayfl.system.memory import check_memory
from rayfl.training.client import Client
from rayfl.training.context import Cohort, Context
from rayfl.training.params import Params
from rayfl.training.state import State
from rayfl.training.sums import (
    Gather,
    Mean,
    Reduction,
    Sum,
    flatten_payload,
    lack_of_means,
    needed_for_means,
    unflatten_payload,
)
from rayfl.transforms.aggregation import Aggregation
from rayfl.transforms.attacks import Attack
from rayfl.transforms.base import Change, Transform

MEMORY = "memory of transforms"
"""Key of a state, of a client or of the server, under which transforms keep theirs; methods do not see it."""

TOTAL, SQUARES, HONEST = "attack: sum", "attack: squares", "attack: honest"
"""Upload keys of what attackers have to know of the honest clients."""


@dataclass(frozen=True)
class Pipeline:
    """What clients' changes go through: an attack, all client halves, the sum or a rule, all server halves.

    Attributes:
        uploads: how the method combines what clients upload, by upload key.
        expected: how many clients a round has on average.
        transforms: in the order of the clients.
        attack: what attackers do.
        attackers: who they are.
        rule: what takes the place of sums.
    """

    uploads: Mapping[str, Reduction]
    expected: float
    transforms: Sequence[Transform] = ()
    attack: Attack | None = None
    attackers: Collection[int] = ()
    rule: Aggregation | None = None

    @property
    def by_expected(self) -> bool:
        """Whether sums are divided by the expected number of clients; there is a step in every round then."""
        return any(each.divisor == "expected" for each in self.transforms)

    @property
    def gathers(self) -> bool:
        """Whether changes travel one by one, for a rule."""
        return self.rule is not None and not self.rule.is_mean

    @property
    def attacks_by_cohort(self) -> bool:
        """Whether the server makes what attackers send."""
        return self.attack is not None and self.attack.at == "cohort"

    @property
    def parts(self) -> dict[str, str]:
        """What changes are asked for, by the settings that ask for them; nothing is done without."""
        found = {"transforms": ", ".join(type(each).__name__ for each in self.transforms)}
        found["attack"] = type(self.attack).__name__ if self.attack and self.attack.at != "data" else ""
        found["aggregation"] = type(self.rule).__name__ if self.gathers else ""
        return {place: names for place, names in found.items() if names}

    def check(
        self, context: Context, declared: Mapping[str, Reduction], down: State, per_client: bool
    ) -> None:
        """Refuse a method that does not send the same weights to all, or whose clients send none back.

        Args:
            context: the facts of the run.
            declared: all uploads of the method, also those before a round.
            down: what clients receive in the first round.
            per_client: whether the method sends something else to each of them.
        """
        if not self.parts:
            return
        covered, (place, names) = self._covered(down), next(iter(self.parts.items()))
        advice = "choose another method, such as FedAvg or FedPer"
        if per_client:
            problem = f"has {names}, and this method sends a model of its own to each client, of which the "
            raise Conflict(place, f"{problem}server cannot add up changes", advice)
        if not covered:
            problem = f"has {names}, for changes of weights, and clients of this method send none"
            raise Conflict(place, problem, advice)
        alone = [key for key, how in covered.items() if isinstance(how, Gather)]
        if alone and (self.gathers or self.attacks_by_cohort):
            problem = f"has {names}, and this method's server goes by the {alone[0]!r} of each client"
            raise Conflict([*self.parts][-1], problem, advice)
        if self.by_expected and self.gathers:
            raise Conflict(
                "aggregation", f"is {self.parts['aggregation']}, and {names} needs sums", "choose Mean"
            )
        whole = (key for key, how in covered.items() if isinstance(how, Sum) and not how.adds_to)
        if (key := next(whole, None)) is not None:
            problem = f"has {names}, for changes of weights, and this method adds up the whole {key!r}"
            raise Conflict(place, problem, "declare a Mean, or upload changes: Sum(adds_to=...)")
        uneven = (key for key, how in covered.items() if isinstance(how, Mean) and how.key is not None)
        if (self.by_expected or self.attacks_by_cohort) and (key := next(uneven, None)):
            problem = f"has {names}, and this method's mean of {key!r} is weighted by what clients send"
            raise Conflict(place, problem, advice)
        for number, each in enumerate(self.transforms, 1):
            if each.last and number < len(self.transforms):
                raise Conflict("transforms", f"has {type(each).__name__}, which others follow", "put it last")
            if (last := self.transforms[-1]).last and each.sums and each is not last:
                problem = f"has {type(last).__name__}, which does not cover sums of {type(each).__name__}"
                raise Conflict("transforms", problem, "leave one of them out")
            each.check(context, declared, down, self.expected)
        if self.gathers:
            changed = sum(down[how.base(key)].numel() for key, how in covered.items())
            needed = 3 * 8 * changed * self.expected  # float64, and two more while it is sorted and mixed
            what = f"the changes of {self.expected:g} clients, which aggregation={names} compares,"
            check_memory(needed, what, "sample fewer clients, or choose Mean")

    def _covered(self, down: State) -> dict[str, Reduction]:
        """Return the uploads that are weights, or changes of them, which the download has."""
        if not self.parts:
            return {}
        return {key: how for key, how in self.uploads.items() if isinstance(down.get(how.base(key)), Params)}

    def _by_name(self) -> list[tuple[str, Transform]]:
        """Return the transforms by the names of their memories: the same class may be there twice."""
        return [(f"{k} {type(each).__name__}", each) for k, each in enumerate(self.transforms)]

    def reductions(self, down: State) -> dict[str, Reduction]:
        """Return how what clients send is combined, with the sums of transforms and of an attack."""
        further: dict[str, Reduction] = {name: Sum() for name, each in self._by_name() if each.sums}
        further |= dict.fromkeys((TOTAL, SQUARES, HONEST), Sum()) if self.attacks_by_cohort else {}
        if self.by_expected or self.gathers:
            further |= dict.fromkeys(self._covered(down), Gather() if self.gathers else Sum())
        return {**self.uploads, **further}

    def left_out(self, down: State) -> Collection[str]:
        """Return the upload keys that some clients do not send, although others send them for a mean."""
        return self._covered(down) if self.attacks_by_cohort else ()

    def init_server(self, context: Context) -> State:
        """Return what the server halves keep before the first round."""
        return {name: kept for name, each in self._by_name() if (kept := each.init_server(context))}

    def at_client(
        self,
        up: Mapping[str, Any],
        sizes: Mapping[str, int],
        down: State,
        memory: State,
        client: Client,
        received: State,
    ) -> tuple[dict[str, Any], State, dict[str, int]]:
        """Return what is added up of a client's upload, what it keeps, and what it sends in bytes.

        Args:
            up: what the method uploads.
            sizes: the bytes of that, by upload key, as the method counts them.
            down: what the client has received.
            memory: what transforms have kept with the client.
            client: the client.
            received: what server halves keep.

        Raises:
            UserError: something lacks that a mean is taken of, or sums are not those that are declared.
        """
        if lack := lack_of_means(needed_for_means(self.uploads), up):
            raise BadCode(f"client {client.id}", lack)
        covered = {key: how for key, how in self._covered(down).items() if isinstance(up.get(key), Params)}
        change: Change = {
            key: up[key] if how.adds_to else up[key] - down[how.base(key)] for key, how in covered.items()
        }
        sizes = {key: sizes.get(key, each.nbytes) for key, each in change.items()}
        attack = self.attack if client.id in self.attackers else None
        change = attack.change(change) if attack else change
        kept: State = {}
        sums: dict[str, dict[str, float]] = {}
        for name, each in self._by_name():
            found = each.at_client(change, memory.get(name) or {}, client, received.get(name) or {})
            change, own, further = found
            if further.keys() != set(each.sums):
                raise BadCode(
                    f"{type(each).__name__}.at_client",
                    f"returns the sums {sorted(further)}, and `sums` declares {sorted(each.sums)}",
                )
            kept |= {name: own} if own else {}
            sums |= {name: dict(further)} if further else {}
            sizes = each.upload_bytes(change, sizes) | ({name: 4 * len(further)} if further else {})
        if not self.attacks_by_cohort:
            return {**up, **change, **sums}, kept, sizes
        if attack:  # the server makes what it sends of the change
            return {**{key: up[key] for key in up if key not in change}, **sums}, kept, sizes
        exact = {
            key: (change.get(key) or down[how.base(key)].zeros()).to(torch.float64)
            for key, how in self._covered(down).items()
        }
        squares = {key: each * each for key, each in exact.items()}
        return {**up, **change, **sums, TOTAL: exact, SQUARES: squares, HONEST: 1}, kept, sizes

    def at_server(
        self, up: dict[str, Any], down: State, memory: State, cohort: Cohort
    ) -> tuple[dict[str, Any], State]:
        """Return the uploads as the method combines them, and what server halves keep.

        Args:
            up: what has been combined of what clients have sent, as ``reductions`` says.
            down: what clients have received.
            memory: what server halves have kept.
            cohort: who has sent it.
        """
        covered = self._covered(down)
        if self.attacks_by_cohort:
            self._add_attackers(up, covered, down, cohort)
        if self.by_expected:
            up = {key: down[how.base(key)].zeros() for key, how in covered.items()} | up
        if self.gathers:
            up |= self._by_rule({key: up[key] for key in covered if key in up})
        alone = {key: how for key, how in covered.items() if isinstance(how, Gather) and key in up}
        change: Change = {key: up[key] for key in covered if key in up and key not in alone}
        kept = dict(memory)
        for name, each in reversed(self._by_name()):
            sums = up.pop(name, dict.fromkeys(each.sums, 0.0))
            generator = cohort.context.generator(f"transform {name}", cohort.round)
            change, own = each.at_server(change, memory.get(name) or {}, sums, cohort, generator)
            kept |= {name: own} if own else {}
        if self.by_expected:
            means = {key for key, how in covered.items() if isinstance(how, Mean)}
            change = {key: each / self.expected if key in means else each for key, each in change.items()}
        whole: dict[str, Any] = {
            key: _as_upload(each, covered[key], key, down) for key, each in change.items()
        }
        for key, how in alone.items():
            whole[key] = {i: _as_upload(each, how, key, down) for i, each in up[key].items()}
        return up | whole, kept

    def _by_rule(self, rows: Mapping[str, Mapping[int, Params]]) -> Change:
        """Return what a rule makes of clients' changes, all keys of a client together; of sums that many.

        What a client has left out is no change.
        """
        ids = sorted({i for each in rows.values() for i in each})
        if self.rule is None or not ids:
            return {}
        likes = {key: next(iter(each.values())) for key, each in rows.items()}

        def row(i: int) -> dict[str, Params]:
            # adding to zeros puts the entries of all clients into one order
            zeros = {key: like.zeros() for key, like in likes.items()}
            return {key: zero + rows[key][i] if i in rows[key] else zero for key, zero in zeros.items()}

        matrix = torch.stack([flatten_payload(row(i))[0].double() for i in ids])
        _, template = flatten_payload(likes)
        change: Change = unflatten_payload(template, self.rule.combine(matrix), mean=True)
        sums = {key for key in change if isinstance(self.uploads[key], Sum)}
        return {key: each * len(ids) if key in sums else each for key, each in change.items()}

    def _add_attackers(
        self, up: dict[str, Any], covered: Mapping[str, Reduction], down: State, cohort: Cohort
    ) -> None:
        """Add what the attackers of a cohort send, made of what its honest clients have sent."""
        total, squares, honest = up.pop(TOTAL, None), up.pop(SQUARES, None), up.pop(HONEST, 0)
        attacking = [i for i in cohort.ids if i in self.attackers]
        if self.attack is None or not attacking:
            return
        if honest:
            mean = {key: each / honest for key, each in total.items()}
            spread = {key: squares[key] - honest * mean[key] * mean[key] for key in mean}
            deviation = {
                key: each.map(lambda t: (t.clamp(min=0) / max(1, honest - 1)).sqrt())
                for key, each in spread.items()
            }
        else:  # nobody is there to go by: they send no change
            mean = {key: down[how.base(key)].zeros() for key, how in covered.items()}
            deviation = mean
        samples = dict(zip(cohort.ids, cohort.samples, strict=True))
        for key, each in self.attack.from_cohort(mean, deviation).items():
            crafted, how = each.to(next(iter(down[covered[key].base(key)].values())).dtype), covered[key]
            if self.gathers:
                up[key] = dict(sorted({**up.get(key, {}), **dict.fromkeys(attacking, crafted)}.items()))
                continue
            weights = [samples[i] if isinstance(how, Mean) and how.by == "samples" else 1 for i in cohort.ids]
            theirs = sum(w for i, w in zip(cohort.ids, weights, strict=True) if i in self.attackers)
            others = sum(weights) - theirs
            if isinstance(how, Sum) or self.by_expected:
                up[key] = len(attacking) * crafted + up[key] if key in up else len(attacking) * crafted
            elif key in up:
                up[key] = (others / (others + theirs)) * up[key] + (theirs / (others + theirs)) * crafted
            else:
                up[key] = crafted


def _as_upload(change: Params, how: Reduction, key: str, down: State) -> Params:
    """Return a change in the form of its upload: weights where these replace what was received."""
    return change if how.adds_to else down[how.base(key)] + change
