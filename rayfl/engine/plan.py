"""The plan of a federation, and what is tried of its method before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from rayfl.arguments import shown
from rayfl.data import Dataset, FederatedData
from rayfl.engine.guard import guarded
from rayfl.engine.process import exits_as_errors
from rayfl.engine.returned import check_state, check_views
from rayfl.errors import BadCode, UserError
from rayfl.evaluation.finetune import NO_FINETUNING, Finetune
from rayfl.methods import Method
from rayfl.nets import Architecture, build
from rayfl.training.client import Client
from rayfl.training.examples import Examples
from rayfl.training.net import Net
from rayfl.training.settings import Training
from rayfl.training.state import State, as_tensor

Group = tuple[int, ...]
"""Client numbers, ascending, that are always trained by one process and summed in this order."""


@dataclass(frozen=True)
class Plan:
    """What every process of a federation has to know; with the data it determines every result.

    Attributes:
        method: the method, not yet set up with a net.
        net: the net; or several, of which client k uses number k modulo their count.
        training: the settings of local training.
        seed: the run's seed.
        rounds: how many the run is to have.
        execution: ``loop`` or ``stacked``.
        device: ``cpu`` or ``cuda``.
        threads: torch threads of every process.
        channels_last: whether training uses the channels-last memory layout.
        deterministic: whether GPUs may use deterministic kernels only.
        metrics: what is measured besides accuracy and loss, see ``rayfl.evaluation.measures``.
        counts_by: the view by which clients count that have never trained, see ``Method.fallback``.
        state_memory: bytes of clients' states that stay in memory on each machine; None for half of what is
            free.
        together: whether samples of several clients are scored at once, where the method allows it.
        finetune: how clients are fine-tuned before they are scored.
        run: its name, for people who look at the processes; it decides nothing.
    """

    method: Method
    net: Architecture | str | list[Architecture | str]
    training: Training
    seed: int
    rounds: int = 1
    execution: Literal["loop", "stacked"] = "loop"
    device: str = "cpu"
    threads: int = 1
    channels_last: bool = False
    deterministic: bool = False
    state_memory: float | None = None
    metrics: tuple[str, ...] = ()
    counts_by: str | None = "personal"
    together: bool = False
    finetune: Finetune = NO_FINETUNING
    run: str = ""

    @property
    def nets(self) -> Sequence[Architecture | str]:
        """The nets as a list, also where there is one."""
        return self.net if isinstance(self.net, list | tuple) else [self.net]

    @property
    def goes_by_rounds(self) -> bool:
        """Whether the number of rounds decides what happens in each: such a run cannot be made longer."""
        return self.method.uses_rounds or self.training.schedule.uses_rounds


def set_up(method: Method, plan: Plan, data: FederatedData) -> list[Net]:
    """Build the plan's nets and those that the method has besides, and set the method up for the first.

    Returns:
        The nets in the plan's order, for the data's input shape and classes: client k's is number k modulo
        their count. Equal ones share a net.

    Raises:
        UserError: there is no such net, or the method cannot work with these.
    """
    names = [str(net) for net in plan.nets]
    nets: dict[str, Net] = {}
    like = _like(data.dataset)
    for name, net in zip(names, plan.nets, strict=True):
        if name not in nets:
            nets[name] = _net(net, plan, data.dataset, like)
    if len(nets) > 1:
        method.check_nets(nets)
    further: dict[str, Net] = {}
    for option, further_net in method.architectures.items():
        name = names[0] if further_net is None else str(further_net)
        try:
            further[option] = nets.get(name) or _net(further_net or name, plan, data.dataset, like)
        except UserError as error:
            raise type(error)(f"method.{option}", f": {error}") from error
    method.nets = further
    method.rounds = plan.rounds
    method.setup(nets[names[0]], data.seen, plan.seed)
    return [nets[name] for name in names]


def _net(net: Architecture | str, plan: Plan, dataset: Dataset, like: torch.Tensor | None) -> Net:
    return Net(
        partial(build, net, dataset.shape, dataset.classes, like),
        dtype=plan.training.dtype,
        bfloat16=plan.training.precision == "bfloat16",
    )


def _like(dataset: Dataset) -> torch.Tensor | None:
    """Return two inputs of the largest token id, int64 [2, ...]; None where inputs are no token ids."""
    return None if dataset.largest is None else torch.full((2, *dataset.shape), dataset.largest)


def try_scores(method: Method, net: Net, plan: Plan, data: FederatedData) -> dict[str, torch.Tensor]:
    """Send, and score a sample twice with initial weights, to see what the method's simple mistakes are.

    Args:
        method: set up with the net.
        net: client 0's.
        plan: for the settings that every client has.
        data: whose first sample is scored.

    Returns:
        The scores by view; nothing where it takes the run itself to get them.

    Raises:
        UserError: the server's state is none, ``scores`` has other views than the method declares, or
            ``download`` does more than to return something.
    """
    examples = Examples(data.dataset, torch.device("cpu"), plan.training.dtype, channels_last=False)
    counts, train = as_tensor(data.label_matrix("train"))[0], as_tensor(data.clients[0].train)
    try:
        with exits_as_errors(), torch.random.fork_rng(devices=[]), torch.no_grad():
            initial = net.initial(plan.seed)
            further = method.nets
            client = Client(
                0, net, initial, examples, train, counts, plan.training, plan.seed, 0, nets=further
            )
            name = f"{type(method).__name__}.init_server"
            server = check_state(name, method.init_server(initial), "before the first round")
            down, state = _sent(method, server), method.init_client(client)
            x, _ = examples.batch(torch.zeros(2, dtype=torch.int64))
            found = method.scores(client, state, down, x)
    except UserError:
        raise
    except Exception:  # it may need what only the run has, such as a GPU: the run will tell
        return {}
    check_views(method, found)
    for view, scores in found.items():
        shape = list(scores.shape) if isinstance(scores, torch.Tensor) else shown(scores)
        if shape != [2, data.dataset.classes]:
            raise BadCode(
                f"{type(method).__name__}.scores",
                f"returns {shape} for {view!r} of two inputs: it must be a tensor of scores [B, classes], "
                f"here [2, {data.dataset.classes}]",
            )
    return found


def _sent(method: Method, server: State) -> State:
    """Return what client 0 would receive; refuse a hook that draws, or changes what it is given."""
    found: list[State] = []
    for call, given in (
        ("download", (server,)),
        ("download_for", (server, 0)),
        ("server_metrics", (server,)),
    ):
        with guarded(method, torch.device("cpu"), call, "tried before the start", server=[server]):
            found.append(getattr(method, call)(*given))
    return {**found[0], **found[1]}
