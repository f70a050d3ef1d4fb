"""FDSE and its baseline FedSR: the authors' servers and clients, on as much of their FLGo as these need."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from importlib import import_module, util
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.public.harness import ALL, Pair, case
from rayfl.nets import DSECNN
from rayfl.nets.dse import DSEConv, DSELinear
from tests.methods.forms.cases import CASES, by_client
from tests.methods.forms.world import Outcome, Weights, World, load, mean

OPTIONS = {"lam": 0.5, "tau": 0.5, "beta": 0.05}


def code_of(name: str) -> Any:
    """Return one of the authors' modules; of FLGo it gets empty servers and clients, and its arithmetic."""
    fedavg = import_module("flgo.algorithm.fedavg")
    fedavg.Server, fedavg.Client = type("Server", (), {}), type("Client", (), {})
    path = Path(sys.path[0]).parent / "easyFL/flgo/utils/fmodule.py"
    spec: Any = util.spec_from_file_location("flgo.utils.fmodule", path)
    sys.modules[spec.name] = import_module("flgo.utils").fmodule = util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])
    return import_module(f"algorithm.{name}")


def train(world: World, code: Any, net: nn.Module, before: Callable[[Any, int], None], **options: Any) -> Any:
    """Let a server iterate for three rounds; return it.

    Args:
        world: what to train.
        code: the authors' module.
        net: the server's.
        before: called with each client and its place before it trains.
        options: of the method.
    """
    now = SimpleNamespace(round=0)
    server = code.Server()
    vars(server).update(options, device="cpu", model=net, current_round=1, init_algo_para=lambda _: None)

    def client(i: int) -> Any:
        own, data = code.Client(), world.clients[i]
        batches: list[Tensor] = []

        def get_batch_data() -> tuple[Tensor, Tensor]:
            batches[:] = batches or world.batches(i, now.round)
            places = batches.pop(0)
            return data.x[places], data.y[places]

        calculator = SimpleNamespace(
            get_optimizer=lambda net, **given: torch.optim.SGD(net.parameters(), **given),
            compute_loss=lambda net, batch: {"loss": F.cross_entropy(net(batch[0]), batch[1])},
        )
        vars(own).update(
            options, device="cpu", server=server, train_data=data.y, calculator=calculator,
            get_batch_data=get_batch_data, learning_rate=world.lr, weight_decay=world.weight_decay,
            momentum=world.momentum, clip_grad=world.clip,
        )  # fmt: skip
        return own

    def communicate(ids: list[int]) -> dict[str, list[nn.Module]]:
        models = []
        for i in ids:
            each = server.clients[i]
            each.num_steps, each.round = len(world.batches(i, now.round)), now.round
            model = each.unpack(server.pack(i))
            before(each, i)
            each.train(model)
            models.append(each.pack(model)["model"])
        return {"model": models}

    server.clients = [client(i) for i in range(len(world.clients))]
    server.initialize()
    for each in server.clients:
        each.initialize()
    server.sample, server.communicate = (lambda: list(world.cohorts[now.round])), communicate
    for now.round in range(len(world.cohorts)):
        server.iterate()
        server.current_round += 1
    return server


def counted(state: Weights, like: Weights) -> Weights:
    """Return entries in the shapes that rayfl has, without counts of batches."""
    names = [key for key in state if not key.endswith("num_batches_tracked")]
    return {key: state[key].detach().reshape(like[key].shape).clone() for key in names}


# ---- FDSE


def theirs(module: nn.Module, code: Any) -> nn.Module:
    """Return a net of rayfl's with the authors' blocks in the place of its own."""
    for name, child in module.named_children():
        if isinstance(child, DSEConv):
            first, width = child.dfe_conv, len(child.dfe_bias)
            block = code.DSEConv(first.in_channels, width, first.kernel_size[0], padding=first.padding[0])
        elif isinstance(child, DSELinear):
            block = code.DSELinear(child.dfe_conv.in_features, len(child.dfe_bias))
        else:
            theirs(child, code)
            continue
        own = child.state_dict()
        state = {k: own[k].reshape(v.shape) if k in own else v for k, v in block.state_dict().items()}
        block.load_state_dict(state)
        setattr(module, name, block)
    return module


def quadprog(P: np.ndarray, *_: Any) -> np.ndarray:
    """Return the u >= 0 of sum 1 with the least u P u, exactly: the best of all faces."""
    gram, best = torch.as_tensor(P), (np.inf, np.zeros((len(P), 1)))
    for face in (list(f) for k in range(len(P)) for f in combinations(range(len(P)), k + 1)):
        ones = torch.ones(len(face), 1)
        system = torch.cat([torch.cat([gram[face][:, face], ones], 1), F.pad(ones.T, (0, 1))])
        u = torch.zeros(len(P))
        u[face] = torch.linalg.pinv(system)[:-1, -1]
        if (u >= 0).all() and float(u @ gram @ u) < best[0]:
            best = float(u @ gram @ u), u[:, None].numpy()
    return best[1]


class Norm(Tensor):
    """A norm to which nothing is added: the code adds 1e-8 before it divides by it."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __add__(self, _: Any) -> Tensor:
        return self.as_subclass(Tensor)


def fdse(world: World) -> Outcome:
    code = code_of("fdse")

    class Net(code.fuf.FModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            net = theirs(world.make(), code)
            self.conv, self.fc, self.head = net.conv, net.fc, net.head

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.head(self.fc(self.conv(x)))
            return found

    options = {"lmbd": OPTIONS["lam"], "tau": OPTIONS["tau"], "beta": OPTIONS["beta"]}
    server = train(world, code, Net(), lambda *_: None, quadprog=quadprog, **options)
    like = world.make().state_dict()
    shared = {key: server.model.state_dict()[key] for key in server.shared_weight_keys}
    found = {f"dse {i}": counted(state, like) for i, state in enumerate(server.client_states)}
    local = [{key: c.model.state_dict()[key] for key in server.local_keys} for c in server.clients]
    kept = [{"statistics": counted(each, like)} for each in local]
    return Outcome({"weights": counted(shared, like), **found}, kept)


def fdse_exact(world: World) -> Outcome:
    norm = Tensor.norm
    with mock.patch.object(Tensor, "norm", lambda self: norm(self).as_subclass(Norm)):
        return fdse(world)


# ---- FedSR


def fedsr(world: World, fresh: bool = False) -> Outcome:
    """``fresh`` sets the gradients of the classes' tables to zero before each step."""
    code = code_of("fedsr")

    class Net(code.OfficeModel):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            code.fmodule.FModule.__init__(self)
            net = world.make()
            self.conv, self.fc, self.head = net.conv, net.fc, net.head
            self.zdim, self.num_classes, self.zstat = net.head.in_features, world.classes, None

        def forward(self, x: Tensor) -> Tensor:
            self.zstat = self.resample_z(self.fc[:-1](self.conv(x)))  # rayfl's fc leaves out the scales
            found: Tensor = self.head(self.zstat[0])
            return found

    steps = SimpleNamespace(client=None, place=0, number=0)

    def begin(client: Any, i: int) -> None:
        steps.client, steps.place, steps.number = client, i, 0

    def rsample(self: Any, _: Any) -> Tensor:
        eps = world.draw("noise", steps.place, steps.client.round, 0, steps.number)
        steps.number += 1
        for table in steps.client.cmi.parameters() if fresh else ():
            table.grad = None
        found: Tensor = self.base_dist.loc + self.base_dist.scale * eps
        return found[None]

    def aggregate(models: list[nn.Module]) -> nn.Module:
        return load(Net(), mean([model.state_dict() for model in models]))

    code.Server.pack = lambda self, _: self.model
    code.Client.unpack = lambda self, model: copy.deepcopy(model)
    code.Client.pack = lambda self, model: {"model": model}
    options = {"num_samples": 1, "beta1": 0.01, "beta2": 0.001, "aggregate": aggregate}
    with mock.patch.object(torch.distributions.Independent, "rsample", rsample):
        server = train(world, code, Net(), begin, **options)
    like = world.make().state_dict()
    kept = [{"classes": {k: v.detach() for k, v in c.cmi.state_dict().items()}} for c in server.clients]
    return Outcome({"weights": counted(server.model.state_dict(), like)}, kept)


LIKE_CODE = case(
    "FDSE", net=DSECNN(act="none"), server={"weights": "weights", **by_client("dse", "dse")},
    options={**OPTIONS, "unit": "tensor", "attn_unit": "tensor", "reg": "code"},
    client={"statistics": CASES["FDSE"].client["statistics"]},
    settings={"momentum": 0.0, "weight_decay": 0.01, "clip": 0.7},
)  # fmt: skip
SR = case("FedSR", net=CASES["FedSR"].net, settings={"momentum": 0.9, "weight_decay": 0.01, "clip": 0.0})
FOLDER, ABSENT = "FDSE_CVPR25", ("flgo", "cvxopt")
PAIRS: dict[str, Pair] = {
    "FDSE": Pair("FDSE", FOLDER, fdse, LIKE_CODE, ALL, ABSENT),
    "FDSE, nothing added to norms": Pair("FDSE", FOLDER, fdse_exact, LIKE_CODE, ALL, ABSENT),
    "FedSR": Pair("FedSR", FOLDER, fedsr, SR, ALL, ABSENT, "uniform"),
    "FedSR, gradients of the classes' tables set to zero": Pair(
        "FedSR", FOLDER, lambda world: fedsr(world, fresh=True), SR, ALL, ABSENT, "uniform"
    ),
}
