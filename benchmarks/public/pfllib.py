"""PFLlib: its servers and clients, driven through their own rounds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.public.harness import ALL, BN, PLAIN_SGD, SOME, Batches, Pair, Small, case, entries, layers
from tests.methods.forms.cases import CASES
from tests.methods.forms.world import Outcome, Weights, World, score

FOLDER = "PFLlib/system"


def build(
    world: World,
    file: str,
    fits: Sequence[Sequence[int]],
    made_by: Sequence[Sequence[int]] = (),
    **options: Any,
) -> Any:
    """Return a server of PFLlib with all clients, whose loaders give the world's batches.

    Args:
        world: what to train.
        file: the server's module, without its first word.
        fits: of the k-th loader of a round: which fits its epochs belong to.
        made_by: the same of the k-th loader with which the server is made, before the first round.
        options: arguments of PFLlib's command line.
    """
    data = import_module("utils.data_utils")
    data.read_client_data = lambda _, i, is_train=True, **__: list(
        zip(world.clients[i].x, world.clients[i].y)
    )
    base, module = import_module("flcore.clients.clientbase"), import_module(f"flcore.servers.server{file}")
    loads: dict[tuple[int, int], int] = {}
    server: Any = SimpleNamespace(round=-1)

    def load_train_data(client: Any, batch_size: int | None = None) -> Batches:
        key = client.id, server.round
        loads[key] = number = loads.get(key, -1) + 1
        each = fits if server.round >= 0 else made_by
        wanted = each[number] if number < len(each) else ()
        return Batches(world, client.id, [epoch for fit in wanted for epoch in world.order(*key, fit)])

    base.Client.load_train_data = load_train_data
    kind = next(v for v in vars(module).values() if getattr(v, "__module__", "") == module.__name__)
    server = kind(arguments(world, **options), 0)
    server.round = -1

    def select_clients() -> list[Any]:
        server.round += 1
        return [server.clients[i] for i in world.cohorts[server.round]]

    server.select_clients = select_clients
    server.evaluate = lambda *_, **__: server.rs_test_acc.append(0.0)
    server.evaluate_personalized = lambda *_: vars(server).setdefault("rs_test_acc_per", []).append(0.0)
    server.save_results = server.save_global_model = lambda *_: None
    return server


def arguments(world: World, **options: Any) -> SimpleNamespace:
    """Return what PFLlib's command line gives, with the defaults of its main.py."""
    net = world.make()
    split = import_module("flcore.trainmodel.models").BaseHeadSplit
    own = {
        "model": split(nn.Sequential(layers(net.conv, "conv") | layers(net.fc, "fc")), net.head),
        "device": "cpu", "dataset": "", "num_classes": world.classes, "batch_size": 8,
        "global_rounds": len(world.cohorts) - 1, "local_epochs": world.epochs, "plocal_epochs": world.epochs,
        "local_learning_rate": world.lr, "num_clients": len(world.clients),
        "join_ratio": len(world.cohorts[0]) / len(world.clients), "random_join_ratio": False, "few_shot": 0,
        "algorithm": "", "time_select": False, "goal": "", "time_threthold": 1e9, "save_folder_name": "",
        "top_cnt": 100, "auto_break": False, "eval_gap": 1, "client_drop_rate": 0.0, "train_slow_rate": 0.0,
        "send_slow_rate": 0.0, "dlg_eval": False, "dlg_gap": 100, "batch_num_per_client": 2,
        "num_new_clients": 0, "fine_tuning_epoch_new": 0, "learning_rate_decay": False,
        "learning_rate_decay_gamma": 0.99, "server_learning_rate": 1.0,
    }  # fmt: skip
    return SimpleNamespace(**{**own, **options})


def pair(
    method: str,
    file: str,
    server: Mapping[str, Callable[[Any], Any]],
    client: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    scored: Callable[[Any], nn.Module] | None = None,
    fits: Sequence[Sequence[int]] = ((0,),),
    before: Callable[[World, Any], Any] | None = None,
    own: Mapping[str, Any] | None = None,
    norm: bool = False,
    cohorts: Sequence[Sequence[int]] = SOME,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Pair:
    """Return a method of rayfl beside a server of PFLlib.

    Args:
        method: rayfl's.
        file: see ``build``.
        server: key of the server's state -> what of PFLlib's server is compared with it.
        client: the same of a client's state, called with server and client.
        scored: the module whose scores are those of the view ``personal``, after the server has sent.
        fits: see ``build``.
        before: changes the server before it trains.
        own: options of rayfl's method, in the place of those of parity.
        norm: whether the net has BatchNorm.
        cohorts: who takes part in each round.
        settings: of rayfl's training, besides plain SGD.
        options: see ``build``.
    """
    usual = CASES[method]
    changes: dict[str, Any] = {} if own is None else {"options": own}
    changes["server"] = {key: usual.server[key] for key in server}
    changes["client"] = {key: usual.client[key] for key in client or {}}

    def form(world: World) -> Outcome:
        made = build(world, file, fits, **options)
        if before:
            before(world, made)
        made.train()
        made.round = len(world.cohorts)
        kept = [{key: read(made, each) for key, read in (client or {}).items()} for each in made.clients]
        outcome = copy.deepcopy(Outcome({key: read(made) for key, read in server.items()}, kept))
        if scored is not None:
            made.send_models()
            outcome.logits["personal"] = torch.stack([score(scored(c), world.probe) for c in made.clients])
        return outcome

    own_case = case(method, net=Small(norm=norm), settings=PLAIN_SGD | dict(settings or {}), **changes)
    return Pair(method, FOLDER, form, own_case, cohorts, ("h5py", "torchvision", "sklearn"))


# ---- what is read of servers and clients


def listed(server: Any, values: Sequence[Tensor]) -> Weights:
    """Return values in the order of the net's parameters under rayfl's names."""
    names = [key for key, _ in server.args.model.named_parameters()]
    return entries(dict(zip(names, values, strict=True)))


def prototypes(server: Any) -> Tensor:
    return torch.stack([server.global_protos[c] for c in range(server.num_classes)])


def in_batch_norm(weights: Weights, wanted: bool) -> Weights:
    return {key: value for key, value in weights.items() if key.startswith(BN) == wanted}


class Both(nn.Module):
    """FedRoD's two heads on one extractor."""

    def __init__(self, client: Any) -> None:
        super().__init__()
        self.model, self.head = client.model, client.head

    def forward(self, x: Tensor) -> Tensor:
        z = self.model.base(x)
        found: Tensor = self.model.head(z) + self.head(z)
        return found


def remembering(client: Any) -> nn.Module:
    """Return FedDBE's model, which adds the client's memory below the head from now on."""
    client.model.head.register_forward_pre_hook(lambda _, given: (given[0] + client.client_mean,))
    return model(client)


GLOBAL = {"weights": lambda s: entries(s.global_model)}
OWN = {"personal": lambda s, c: entries(c.model)}
HEAD = {"personal": lambda s, c: entries(c.model.head)}


def model(client: Any) -> nn.Module:
    found: nn.Module = client.model
    return found


# ---- what the same code does with its deviations undone, and with rayfl's random numbers


def after(first: Callable[..., None], second: Callable[[], None]) -> Callable[..., None]:
    def both(*given: Any) -> None:
        first(*given)
        second()

    return both


def statistics_too(world: World, server: Any) -> None:
    """Send BatchNorm statistics with the parameters, and average those of all clients."""

    def send() -> None:
        for client in server.clients:
            for theirs, own in zip(server.global_model.buffers(), client.model.buffers(), strict=True):
                own.copy_(theirs)

    def average() -> None:
        for k, buffer in enumerate(server.global_model.buffers()):
            each = [list(uploaded.buffers())[k] for uploaded in server.uploaded_models]
            buffer.copy_(sum(w * b for w, b in zip(server.uploaded_weights, each, strict=True)))

    server.send_models = after(server.send_models, send)
    server.aggregate_parameters = after(server.aggregate_parameters, average)


def still_teachers(world: World, server: Any) -> None:
    """The same, and MOON's two frozen models in eval mode."""
    statistics_too(world, server)
    for client in server.clients:
        client.set_parameters = after(client.set_parameters, partial(still, client))


def still(client: Any) -> None:
    client.old_model.eval()
    client.global_model.eval()


def prototypes_after_training(world: World, server: Any) -> None:
    """Take prototypes in a pass after training, by the function that PFLlib has for it and does not call."""
    for client in server.clients:
        client.train = after(client.train, client.collect_protos)


def own_header(world: World, server: Any) -> None:
    """Give the server a header that is not client 0's, and batches of one prototype in rayfl's order."""
    server.head = copy.deepcopy(server.head)
    server.opt_h = torch.optim.SGD(server.head.parameters(), server.server_learning_rate)

    def in_order(protos: list[Any], *_: Any, **__: Any) -> list[Any]:
        rest, each = iter(protos), []
        for client in server.selected_clients:
            each.append(sorted([next(rest) for _ in client.protos], key=lambda p: int(p[1])))
        order = world.draw("order", -1, server.round).tolist()
        return [(mean[None], c[None]) for k in order for mean, c in each[k]]

    import_module("flcore.servers.servergh").DataLoader = in_order


def squared_norm(world: World, server: Any) -> None:
    """Square the norm in FedDyn's penalty."""
    squared = {**vars(torch), "norm": lambda v, _: v.square().sum()}
    import_module("flcore.clients.clientdyn").torch = SimpleNamespace(**squared)


def theta_kept(world: World, server: Any) -> None:
    """Keep pFedMe's personal models before their parameters are overwritten; no weight decay for them."""
    for client in server.clients:
        client.optimizer.param_groups[0]["mu"] = 0.0
        client.theta = [p.detach().clone() for p in client.model.parameters()]
        client.update_parameters = partial(kept_first, client, client.update_parameters)


def kept_first(client: Any, update: Callable[..., None], *given: Any) -> None:
    client.theta = [p.detach().clone() for p in client.personalized_params]
    update(*given)


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    return F.kl_div(student, teacher.detach(), reduction="batchmean")


def still_divergence(world: World, server: Any) -> None:
    """Let no gradient reach a teacher, and sum divergences over classes."""
    for client in server.clients:
        client.KL = divergence


def own_starts(world: World, server: Any) -> None:
    """Start FedKD's mentors and maps as rayfl does, each from its own numbers."""
    for client in server.clients:
        values = world.make(seed=client.id).state_dict().values()
        client.model.load_state_dict(dict(zip(client.model.state_dict(), values, strict=True)))
        client.W_h.weight.data.copy_(world.draw("W_h", client.id, 0))


class Over:
    """A loss that is divided by another one as by a number."""

    def __init__(self, loss: Tensor) -> None:
        self.loss = loss

    def __truediv__(self, other: Tensor) -> Tensor:
        return self.loss / other.detach()


class InTurn(nn.Linear):
    """FedKD's map: of the mentor's loss first, which must not reach the mentee, then of the mentee's."""

    calls = 0

    def forward(self, z: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(z.detach() if self.calls % 2 else z)


def mutual_and_whole(world: World, server: Any) -> None:
    """The same, no gradient to a teacher or through the divisor, and nothing compressed."""
    own_starts(world, server)

    def distance(maps: InTurn, z: Tensor, other: Tensor) -> Over:
        return Over(F.mse_loss(z if maps.calls % 2 else z.detach(), other))

    for client in server.clients:
        client.W_h.__class__ = InTurn
        client.MSE = partial(distance, client.W_h)
        client.KL = lambda *given: Over(divergence(*given))
        client.decomposition = partial(whole, client)
    server.decomposition = lambda: vars(server).update(compressed_param=dict(server.global_model))


def whole(client: Any) -> None:
    named = client.global_model.named_parameters()
    client.compressed_param = {key: value.detach().numpy().copy() for key, value in named}


def subsets(world: World, server: Any) -> None:
    """Let FedALA learn its weights on rayfl's samples, and settle at once."""
    ala = import_module("utils.ALA")

    class Passes:
        def __init__(self, client: Any) -> None:
            self.client, self.number = client, 0

        def __iter__(self) -> Any:
            data = world.clients[self.client.id]
            rows = world.draw("subset", self.client.id, server.round, 0, self.number)
            self.number += 1
            return iter([(data.x[row[row >= 0]], data.y[row[row >= 0]]) for row in rows])

    def start(client: Any, first: Callable[..., None], received: nn.Module) -> None:
        ala.DataLoader = lambda *_, **__: Passes(client)
        first(received)

    for client in server.clients:
        client.ALA.threshold = 1.0
        client.local_initialization = partial(start, client, client.local_initialization)


def drawn(world: World, server: Any) -> None:
    """Draw FedCP's contexts and its noise as rayfl does."""
    now = {"client": 0, "step": 0}

    def gumbel_softmax(x: Tensor, tau: float, hard: bool, dim: int) -> Tensor:
        noise = world.draw("gumbel", now["client"], server.round, 0, now["step"])
        now["step"] += 1
        return ((x + noise) / tau).softmax(dim)

    import_module("flcore.servers.servercp").F = SimpleNamespace(gumbel_softmax=gumbel_softmax)
    policy = list(world.make("policy").state_dict().values())
    for client in server.clients:
        client.context = world.draw("context", client.id, 0)[None]
        gate = client.model.gate.cs
        gate.load_state_dict(dict(zip(gate.state_dict(), policy, strict=True)))
        client.train_cs_model = after(partial(now.update, client=client.id, step=0), client.train_cs_model)


def tuned(world: World, server: Any, newest: bool = False) -> None:
    """Give FedBABU's tuning rayfl's batches, and the newest body if ``newest``; keep what is tuned."""

    def tune(client: Any, first: Callable[[], None]) -> None:
        server.round = len(world.cohorts)
        if newest:
            client.set_parameters(server.global_model)
        first()
        client.tuned = copy.deepcopy(client.model)

    for client in server.clients:
        client.fine_tune = partial(tune, client, client.fine_tune)


def passes_in_turn(world: World, server: Any) -> None:
    """Let Per-FedAvg's two trainings of a round have one loader, which goes on to the next epoch."""
    loaders: dict[tuple[int, int], Batches] = {}
    kind = import_module("flcore.clients.clientbase").Client
    load_anew = kind.load_train_data

    def load_train_data(client: Any, *_: Any) -> Batches:
        key = client.id, server.round
        loaders[key] = found = loaders.get(key) or load_anew(client)
        return found

    kind.load_train_data = load_train_data
    server.evaluate_one_step = server.evaluate


def stepped(client: Any) -> nn.Module:
    client.train_one_step()
    return model(client)


def validated(world: World, server: Any) -> None:
    """Give FedFomo's clients rayfl's batches, and all validation data in one."""
    load = import_module("flcore.clients.clientbase").Client.load_train_data

    def both(client: Any) -> Any:
        own = world.clients[client.id]
        return load(client), [(own.x_val, own.y_val)]

    type(server.clients[0]).load_train_data = both


def ranked(world: World, server: Any) -> None:
    """The same; choose among models that clients have sent, of equal ones the next after the client's."""
    validated(world, server)
    ids, sent = torch.arange(len(world.clients)), set()
    order = (ids - ids[:, None] - 1) % len(ids)  # in which rayfl takes models of equal affinity

    def send(first: Callable[[], None]) -> None:
        sent.update(server.uploaded_ids)
        whole = server.P
        server.P = whole - 1e-9 * order
        server.P[:, [i for i in ids if int(i) not in sent]] = -torch.inf
        first()
        server.P = whole

    server.send_models = partial(send, server.send_models)


def pulled(world: World, server: Any) -> None:
    """Add FedAMP's penalty with a gradient, and squared."""

    def loss(client: Any, scores: Tensor, y: Tensor) -> Tensor:
        each = zip(client.model.parameters(), client.client_u.parameters(), strict=True)
        off = sum((own - cloud.detach()).square().sum() for own, cloud in each)
        return F.cross_entropy(scores, y) + 0.5 * client.lamda / client.alphaK * off

    for client in server.clients:
        client.loss = partial(loss, client)


def mixed_apart(world: World, server: Any) -> None:
    """Leave FedPAC's heads in the order of their statistics, mix copies, and weight centroids by samples."""
    code = import_module("flcore.servers.serverpac")
    code.random = SimpleNamespace(sample=lambda clients, _: clients)

    def copied() -> None:
        server.uploaded_heads = copy.deepcopy(server.uploaded_heads)

    def aggregated(protos: list[dict[int, Tensor]]) -> dict[int, Tensor]:
        ys = [world.clients[client.id].y for client in server.selected_clients]
        sums = {
            c: sum((y == c).sum() * own.get(c, 0) for own, y in zip(protos, ys, strict=True))
            for c in range(world.classes)
        }
        return {c: total / torch.cat(ys).eq(c).sum() for c, total in sums.items()}

    server.receive_models = after(server.receive_models, copied)
    code.proto_aggregation = aggregated


# ---- all of them

MOON: Any = {
    "server": GLOBAL,
    "client": {"previous": lambda s, c: entries(c.old_model)},
    "mu": 1.0,
    "tau": 0.5,
}
FML: Any = {
    "server": GLOBAL, "client": OWN, "scored": model, "own": {"init": "common"}, "alpha": 0.5, "beta": 0.5,
}  # fmt: skip
PFEDME: Any = {"server": GLOBAL, "lamda": 15.0, "K": 5, "p_learning_rate": 0.05, "beta": 1.0}
PROTO: Any = {"server": {"prototypes": prototypes}, "client": OWN, "lamda": 1.0}
GH: Any = {"server": {"head": lambda s: entries(s.head)}, "client": OWN, "server_learning_rate": 0.01}
KD: Any = {
    "server": GLOBAL, "client": {**OWN, "W_h": lambda s, c: {"weight": c.W_h.weight.detach()}},
    "T_start": 0.95, "T_end": 0.98, "mentee_learning_rate": 0.05,
}  # fmt: skip
BABU: Any = {"server": GLOBAL, "scored": lambda c: c.tuned, "fine_tuning_epochs": 5}
FOMO: Any = {
    "server": {"P": lambda s: s.P - torch.eye(s.num_clients)},
    "client": {"personal": lambda s, c: entries(c.model), "start": lambda s, c: entries(c.old_model)},
    "scored": model, "M": 3, "own": {"own": "affinity", "epsilon": 0.0, "models": 3},
}  # fmt: skip
AMP: Any = {"client": OWN, "server": {}, "scored": model, "alphaK": 0.02, "sigma": 0.1, "lamda": 0.2}
PAC: Any = {
    "server": {**GLOBAL, "centroids": lambda s: torch.stack([s.global_protos[c] for c in range(4)])},
    "scored": model, "fits": ((), (0, 1)), "lamda": 0.7,
}  # fmt: skip
PAIRS: dict[str, Pair] = {
    "FedAvg": pair("FedAvg", "avg", GLOBAL, scored=model),
    "FedAvg, BatchNorm": pair("FedAvg", "avg", GLOBAL, scored=model, norm=True),
    "FedAvg, BatchNorm, statistics sent and averaged": pair(
        "FedAvg", "avg", GLOBAL, scored=model, before=statistics_too, norm=True
    ),
    "FedProx": pair("FedProx", "prox", GLOBAL, scored=model, mu=0.5),
    "FedPer": pair("FedPer", "per", GLOBAL, HEAD, model),
    "FedRep": pair("FedRep", "rep", GLOBAL, HEAD, model, ((0, 1),), own={"head_epochs": 2}),
    "LG-FedAvg": pair("LGFedAvg", "lg", GLOBAL, {"personal": lambda s, c: entries(c.model.base)}, model),
    "FedBN": pair(
        "FedBN", "bn", {"weights": lambda s: in_batch_norm(entries(s.global_model), False)},
        {"personal": lambda s, c: in_batch_norm(entries(c.model), True)}, model, norm=True,
    ),
    "Ditto": pair(
        "Ditto", "ditto", GLOBAL, {"personal": lambda s, c: entries(c.model_per)},
        lambda c: c.model_per, ((0,), (0,)), mu=0.5,
    ),
    "FedProto": pair("FedProto", "proto", **PROTO),
    "FedProto, prototypes after training": pair(
        "FedProto", "proto", before=prototypes_after_training, **PROTO
    ),
    "FedRoD": pair("FedRoD", "rod", GLOBAL, {"personal": lambda s, c: entries(c.head)}, Both),
    "SCAFFOLD": pair(
        "SCAFFOLD", "scaffold", {**GLOBAL, "control": lambda s: listed(s, s.global_c)},
        {"control": lambda s, c: listed(s, c.client_c)}, model,
    ),
    "MOON": pair("MOON", "moon", **MOON),
    "MOON, BatchNorm": pair("MOON", "moon", norm=True, **MOON),
    "MOON, BatchNorm, statistics sent and averaged, teachers in eval mode": pair(
        "MOON", "moon", before=still_teachers, norm=True, **MOON
    ),
    "FedDyn": pair("FedDyn", "dyn", GLOBAL, scored=model, alpha=0.01),
    "FedDyn, norm squared": pair("FedDyn", "dyn", GLOBAL, scored=model, before=squared_norm, alpha=0.01),
    "APFL": pair(
        "APFL", "apfl", GLOBAL,
        {"personal": lambda s, c: entries(c.model_per), "alpha": lambda s, c: torch.tensor(c.alpha)},
        alpha=0.5,
    ),
    "pFedMe": pair(
        "PFedMe", "pFedMe", client={"personal": lambda s, c: listed(s, c.personalized_params)}, **PFEDME
    ),
    "pFedMe, personal models kept, no weight decay": pair(
        "PFedMe", "pFedMe", client={"personal": lambda s, c: listed(s, c.theta)}, before=theta_kept, **PFEDME
    ),
    "FML": pair("FML", "fml", **FML),
    "FML, teachers detached, divergences summed": pair("FML", "fml", before=still_divergence, **FML),
    "FedKD": pair("FedKD", "kd", before=own_starts, **KD),
    "FedKD, teachers and divisor detached, divergences summed, nothing compressed": pair(
        "FedKD", "kd", before=mutual_and_whole, own={"T_start": 1.0, "T_end": 1.0}, **KD
    ),
    "FedGH": pair("FedGH", "gh", cohorts=ALL, **GH),
    "FedGH, a header of the server's own": pair("FedGH", "gh", before=own_header, cohorts=ALL, **GH),
    "FedALA": pair(
        "FedALA", "ala", GLOBAL,
        {
            "own": lambda s, c: entries(c.model.head),
            "W": lambda s, c: dict(zip(("head.weight", "head.bias"), c.ALA.weights, strict=True)),
        },
        before=subsets, cohorts=ALL, eta=0.5, rand_percent=80, layer_idx=2,
    ),
    "FedCP": pair(
        "FedCP", "cp", {"weights": lambda s: entries(s.global_modules), "head": lambda s: entries(s.head)},
        {"head": lambda s, c: entries(c.model.model.head)}, before=drawn, cohorts=ALL, lamda=0.1,
    ),
    "FedBABU": pair("FedBABU", "babu", before=tuned, **BABU),
    "FedBABU, tuned from the newest body": pair(
        "FedBABU", "babu", before=partial(tuned, newest=True), **BABU
    ),
    "Per-FedAvg": replace(
        pair(
            "PerFedAvg", "peravg", GLOBAL, None, stepped, before=passes_in_turn, local_epochs=1, batch_size=4,
            own={"alpha": 0.05, "step_samples": 4}, settings={"last_batch": "drop"},
        ),
        averaging="samples",
    ),
    "FedFomo": pair("FedFomo", "fomo", before=validated, **FOMO),
    "FedFomo, models chosen as in rayfl": pair("FedFomo", "fomo", before=ranked, **FOMO),
    "FedAMP": pair("FedAMP", "amp", own=CASES["FedAMP"].options, **AMP),
    "FedAMP, lam=0": pair("FedAMP", "amp", own={"lam": 0.0}, **AMP),
    "FedAMP, pull squared, with a gradient, all clients": pair(
        "FedAMP", "amp", before=pulled, own=CASES["FedAMP"].options, cohorts=ALL, **AMP
    ),
    "FedDBE": pair(
        "FedDBE", "dbe", {**GLOBAL, "mean": lambda s: s.clients[0].global_mean},
        {"memory": lambda s, c: c.client_mean.detach()}, remembering,
        made_by=((), (0,)), own=CASES["FedDBE"].options, kl_weight=5.0, momentum=0.3,
    ),
    "FedPAC": pair("FedPAC", "pac", own={"lam": 0.7, "head_lr": None}, **PAC),
    "FedPAC, copies of heads in order, centroids by samples": pair(
        "FedPAC", "pac", own={"lam": 0.7, "head_lr": None, "least_weight": 1e-3}, before=mixed_apart, **PAC
    ),
}  # fmt: skip
