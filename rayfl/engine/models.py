"""The models that a run has trained."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from rayfl.data import FederatedData
from rayfl.engine.base import Plan
from rayfl.engine.process import torch_defaults
from rayfl.engine.server import Server
from rayfl.engine.worker import Worker
from rayfl.errors import BadValue, Missing, Unknown
from rayfl.evaluation.score import BATCH, answer_at_once, replaced, sum_figures
from rayfl.training.net import Net, only_net
from rayfl.training.params import Params
from rayfl.training.state import State, as_tensor


@torch_defaults()
def local_pair(plan: Plan, data: FederatedData) -> tuple[Worker, Server]:
    """Return a new worker and a new server in this process, on the CPU."""
    engine = replace(plan.engine, device="cpu", execution="loop", threads=torch.get_num_threads())
    here = replace(plan, engine=engine, metrics=())
    return Worker(here, data), Server(here, data)


class Models:
    """The models of all clients after a round, as :func:`rayfl.load_models` and callbacks give them.

    They are the models that an evaluation after this round's aggregation scores: from what the server would
    send a client now, and the client's own state. Those of clients that never train are scored at ``unseen``.

    Attributes:
        data: the data set and each client's part of it.
        round: rounds that had been completed.
        views: the models of a client, by the names under which records have them: ``personal``...

    Args:
        worker: with the states of all clients that have one.
        server: with its state.
        round: rounds that have been completed.
        trained: clients of which an update had been used.
        has_data: whether the inputs are there.
    """

    def __init__(
        self,
        worker: Worker,
        server: Server,
        round: int,
        trained: Container[int],
        has_data: bool = True,
    ) -> None:
        self.data = worker.data
        self.round = round
        self.trained = trained
        self._has_data = has_data
        self._worker, self._server = worker, server
        self.views = tuple(worker.method.views)
        self._personalised: dict[int, State] = {}
        self._ended_round = max(0, round - 1)  # the round that has ended, from 0

    def __len__(self) -> int:
        """Return the number of clients; those that never train have the models of a new client."""
        return len(self.data)

    def __getitem__(self, client: int) -> ClientModels:
        """Return the models of one client."""
        self._check_client(client)
        return ClientModels(self, client)

    def __iter__(self) -> Iterator[ClientModels]:
        """Go through the models of all clients."""
        return (self[client] for client in range(len(self)))

    def __repr__(self) -> str:
        return f"Models of {len(self)} clients {self.when}: {', '.join(self.views)}"

    def state(self, client: int) -> dict[Any, Any]:
        """Return a copy of a client's personal state, as its method names it: ``{"own": {name: tensor}}``.

        It is what the client keeps between rounds, empty where that is nothing; before its first training it
        is what the client would begin with.
        """
        self._check_client(client)
        return _as_plain(self._worker.state(client, self._worker.client(client, self._ended_round)))

    @property
    def server(self) -> dict[Any, Any]:
        """A copy of the server's state, as its method names it: mostly ``{"weights": {name: tensor}}``."""
        return _as_plain(self._server.state)

    @property
    def when(self) -> str:
        """After how many rounds, in words."""
        return f"after {self.round} round{'' if self.round == 1 else 's'}"

    def batch(self, client: int, split: str = "test") -> tuple[Tensor, Tensor]:
        """Return a client's data as nets take them: inputs [n, ...], images normalised, and targets [n, ...].

        Args:
            client: its number.
            split: ``train``, ``val`` or ``test``.
        """
        self._check_client(client)
        if not self._has_data:
            raise Missing("these models were read without their data: read them with load_models(folder)")
        return self._worker.examples.batch(as_tensor(self.data.clients[client].split(split)))

    def scores(self, client: int, x: Tensor) -> dict[str, Tensor]:
        """Return the scores, [B, classes], of every view of a client for inputs [B, ...].

        They are differentiable by the inputs.
        """
        self._check_client(client)
        seen = self._worker.client(client, self._ended_round)
        down = self._server.build_download([client]).for_client(client)
        new = client >= self.data.seen  # and is scored at the point ``unseen``
        untrained, by, given = client not in self.trained, None if new else self._worker.plan.counts_by, {}
        if untrained and by is None:
            found = self._worker.state_for_new_clients(range(len(self)))
            given = self._worker.for_new_clients(found).everyone
        state = self._worker.state(client, seen, given)
        if not new and self._worker.method.overrides("personalise"):
            state = self._personalised_state(client, state, down)
        scores = dict(answer_at_once(self._worker.method.scores(seen, state, down, x)))
        return replaced(scores, by) if untrained else scores

    def _personalised_state(self, client: int, state: State, down: State) -> State:
        """Return the state with which a client is scored; that of the last one is kept."""
        if client not in self._personalised:
            found = self._worker.personalised_states(self._ended_round, {client: state}, {client: down})
            self._personalised = {client: found.get(client, state)}
        return self._personalised[client]

    def figures(self, clients: Sequence[int], view: str = "personal") -> np.ndarray:
        """Return the figures, such as accuracy, of clients' models on each other's test data, float64 [n, n].

        NaN stands for the data of a client without test samples.

        Args:
            clients: their numbers, for rows (models) and columns (data).
            view: the model.
        """
        self._check_view(view)
        found = np.full((len(clients), len(clients)), np.nan)
        for column, owner in enumerate(clients):
            x, y = self.batch(owner)
            for row, client in enumerate(clients if len(y) else ()):
                with torch.no_grad():
                    scores = torch.cat([self.scores(client, part)[view] for part in x.split(BATCH)])
                (total,) = sum_figures(self.data.dataset.task, scores, y, [len(y)])
                found[row, column] = math.nan if total is None else total / len(y)
        return found

    def features(self, client: int, x: Tensor) -> dict[str, Tensor]:
        """Return what enters the last layer, [B, d], for inputs [B, ...], by view.

        A view is absent if its scores are not the output of a single last layer: sums of two models, or
        distances to prototypes.
        """
        self._check_client(client)
        passed: list[tuple[Tensor, Tensor]] = []
        head = self._worker.client(client, self.round).net.eval.module.head
        with head.register_forward_hook(lambda _, inputs, output: passed.append((inputs[0], output))):
            scores = self.scores(client, x)
        return {v: z.to(score) for v, score in scores.items() for z, output in passed if output is score}

    def _check_client(self, client: int) -> None:
        if not 0 <= client < len(self):
            raise Unknown(f"client {client}", f"is not there: clients are numbered from 0 to {len(self) - 1}")

    def _check_view(self, view: str) -> None:
        if view not in self.views:
            raise Unknown("view", f"is {view!r}: there are {', '.join(self.views)}")

    def module(self, client: int, view: str) -> nn.Module:
        """Return a view of a client as a module of PyTorch's own; see :meth:`ClientModels.module`."""
        plain = self.plain(client, view)
        return self._traced_module(client, view, self.example_inputs()) if plain is None else plain

    def plain(self, client: int, view: str) -> nn.Module | None:
        """Return a view that is a single net as this net, under its own names; None for other views."""
        self._check_client(client)
        self._check_view(view)
        like, own = self.example_inputs(), self._worker.client(client, self.round).net
        nets = {own.eval, *(net.eval for net in self._worker.context.nets.values())}
        found = only_net(nets, lambda: self.scores(client, like)[view], like)
        return None if found is None else _plain_module(*found)

    def _traced_module(self, client: int, view: str, like: Tensor) -> nn.Module:
        """Return a graph of the operations that compute the scores of a view that is no single net."""

        def scores(x: Tensor) -> Tensor:
            return self.scores(client, x)[view]

        with torch.no_grad():
            graph = make_fx(scores, tracing_mode="symbolic", _allow_non_fake_inputs=True)(like)
        for node in graph.graph.nodes:
            if node.target is torch.ops.aten.view.default:  # which takes inputs of one memory layout only
                node.target = torch.ops.aten.reshape.default
        graph.graph.eliminate_dead_code()  # such as the numbers of the clients' samples
        # A new module has the tensors that are used, the weights, as buffers, and so in its state_dict.
        return torch.fx.GraphModule(graph, graph.graph).eval()

    def example_inputs(self) -> Tensor:
        """Return a few inputs as nets take them.

        No other dimension has the size of their number: a graph that is traced would mix the two up.
        """
        dataset = self.data.dataset
        few = next(n for n in count(2) if n not in dataset.shape)
        x = torch.from_numpy(dataset.inputs[:1].copy()).expand(few, *dataset.shape)
        return self._worker.examples.normalised(x)

    def preprocess(self, inputs: Any, client: int | None = None) -> Tensor:
        """Return inputs as nets take them: uint8 images [n, C, H, W] scaled and normalised, others as floats.

        Args:
            inputs: as the data set has them, [n, ...]; of a table a frame of pandas with its columns.
            client: whose rows of a table they are, where clients have scales of their own.
        """
        if (encoding := self.data.encoding) and not isinstance(inputs, Tensor):
            whose = np.full(len(inputs), -1 if client is None or client >= self.data.seen else client)
            inputs = torch.from_numpy(encoding.encode(inputs, whose))
        kind, shape = str(self.data.dataset.inputs.dtype), self.data.dataset.shape
        if tuple(inputs.shape[1:]) != shape or inputs.dtype != getattr(torch, kind):
            given = f"{str(inputs.dtype).removeprefix('torch.')} {list(inputs.shape)}"
            wanted = f"{kind} [n, {', '.join(map(str, shape))}]"
            raise BadValue("inputs", f"are {given}: the models take {wanted}")
        return self._worker.examples.normalised(inputs)


class ClientModels:
    """The models of one client, by view.

    Attributes:
        trained: whether an update of the client had been used; if not, its models are the initial ones, or
            the server's, and ``personal`` is what ``Method.fallback`` says.

    Args:
        models: of all clients.
        client: the client's number.
    """

    def __init__(self, models: Models, client: int) -> None:
        self._models, self.client = models, client
        self.views = models.views
        self.trained = client in models.trained

    def __repr__(self) -> str:
        never = "" if self.trained else ", which has never trained,"
        return f"models of client {self.client}{never} {self._models.when}: {', '.join(self.views)}"

    def module(self, view: str = "personal") -> nn.Module:
        """Return a model as a module that needs nothing of rayfl: where the view is one net, this net.

        It takes inputs as nets do, see ``Models.preprocess``, [B, ...], and returns scores, [B, classes], in
        evaluation mode. Other views, such as sums of two nets, are graphs of operations.
        """
        return self._models.module(self.client, view)

    def predict(self, inputs: Any, view: str = "personal") -> Tensor:
        """Return probabilities, or numbers, [n, outputs], for inputs as the data set has them, [n, ...].

        Args:
            inputs: images as uint8 [n, C, H, W], or vectors, or token ids; or a frame of a table's columns.
            view: the model.
        """
        given = as_tensor(inputs) if isinstance(inputs, np.ndarray) else inputs
        x = self._models.preprocess(given, self.client)
        with torch.no_grad():
            return self._models.data.dataset.task.predict(self._models.scores(self.client, x)[view])


def _as_plain(node: Any) -> Any:
    """Return a copy of a state: dicts of tensors, numbers, bools and None."""
    if isinstance(node, Mapping):
        return {name: _as_plain(value) for name, value in node.items()}
    return node.detach().clone() if isinstance(node, Tensor) else node


def _plain_module(net: Net, weights: Params) -> nn.Module:
    """Return a net with these weights as modules of PyTorch's own, in evaluation mode."""
    module = deepcopy(net.module)
    copies = {name: value.detach().clone() for name, value in weights.items()}
    parameters = {name: nn.Parameter(copies[name]) for name in net.train_names}
    for path, name in net.entry_at.items():
        above, _, own = path.rpartition(".")
        owner = module.get_submodule(above)
        if own in owner._parameters:
            owner._parameters[own] = parameters.setdefault(name, nn.Parameter(copies[name]))
        else:
            owner._buffers[own] = copies[name]
    return module.plain().eval()
