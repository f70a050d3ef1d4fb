"""Settings in which methods are compared with their forms, and what of rayfl's states is what of a form's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfl.nets import DSECNN, FedFACNN, FedSRCNN
from tests.methods.forms import draws

CLIENTS = 5

Part = str | Callable[[Any], Any] | None
"""A key of a state of rayfl's, or what makes of a state what the form has; None where it has it elsewhere."""


@dataclass(frozen=True)
class Case:
    """A method in some settings, and how its form is called.

    Attributes:
        options: of rayfl's method and of the form.
        finetune: options of the run's fine-tuning, and of the form.
        own: further options of rayfl's method, of what a form reads from the world.
        server: key of the form's server -> rayfl's part.
        client: key of the form's clients -> rayfl's part.
        settings: of the training, in the place of those of all.
        draws: what is drawn: name -> function of (run, world, client, round, fit, step).
        fits: number of a fit in the form -> number in rayfl, where the form counts otherwise.
        takes_means: whether the server does no more than to take means, so that a client that has had a round
            alone predicts with what it has trained.
        turns: how many fits of the form take turns, epoch by epoch, in one of rayfl's.
        net: by import path, or one of rayfl's, which the form has written itself.
        side: of the images, in pixels.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    finetune: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Part] = field(default_factory=lambda: {"weights": "weights"})
    client: Mapping[str, Part] = field(default_factory=lambda: {"personal": "own"})
    settings: Mapping[str, Any] = field(default_factory=dict)
    draws: Mapping[str, Any] = field(default_factory=dict)
    fits: Mapping[int, int] = field(default_factory=dict)
    takes_means: bool = True
    turns: int = 1
    net: Any = "tests.methods.forms.parity.small"
    side: int = 16


def each(kept: Mapping[int, Any]) -> Any:
    """Return what is kept of clients, stacked; 0 for those of which there is nothing."""
    first = next(iter(kept.values()))
    if isinstance(first, Mapping):
        return {name: each({i: own[name] for i, own in kept.items()}) for name in first}
    none = torch.zeros_like(torch.as_tensor(first))
    return torch.stack([torch.as_tensor(kept.get(i, none), dtype=torch.float64) for i in range(CLIENTS)])


OWN = torch.eye(CLIENTS, dtype=torch.float64)


def affinities(state: Any) -> Tensor:
    """Return FedFomo's affinities [clients, clients]: at first 1 for the own model."""
    found = OWN.clone()
    for i, row in state["affinity"].items():
        for j, affinity in row.items():
            found[i, j] = affinity
    return found


def column(head: Mapping[str, Tensor]) -> Tensor:
    """Return a head with its bias as the last column."""
    return torch.column_stack([head["head.weight"], head["head.bias"]])


def by_client(key: str, name: str) -> dict[str, Part]:
    """Return parts of what a server keeps of each client."""
    return {f"{name} {i}": lambda state, i=i: state[key][i] for i in range(CLIENTS)}


def of_ffa(state: Any) -> dict[str, Tensor]:
    """Return FedFA's statistics of means and of scales, and their variances, over all layers, [2, F]."""
    ends = {"means": (".mean", ".scale"), "variances": (".mean_var", ".scale_var")}
    layers = state["statistics"].items()
    return {
        key: torch.stack([torch.cat([t for name, t in layers if name.endswith(end)]) for end in both])
        for key, both in ends.items()
    }


def known_means(state: Any) -> dict[str, Tensor]:
    """Return the means of the classes that DC-PFL knows."""
    return {str(c): mean for c, (mean, known) in enumerate(zip(state["means"], state["known"])) if known}


def posterior(state: Any) -> dict[str, Tensor]:
    """Return mean and deviation of a head of pFedVEM."""
    return {"mean": column(state["mean"]), "deviation": F.softplus(column(state["spread"]))}


def dse(state: Any) -> Mapping[str, Tensor]:
    """Return the parameters of a client's DSE."""
    found: Mapping[str, Tensor] = state["own"].trainable()
    return found


WIDER = "tests.methods.forms.parity.wider"
CASES: dict[str, Case] = {
    "Local": Case(server={}, client={"personal": "weights"}),
    "FedAvg": Case(client={}),
    "FedAvg-FT": Case(finetune={"epochs": 2}, client={}),
    "FedProx": Case({"mu": 0.5}, client={}),
    "FedBN": Case(),
    "FedPer": Case(),
    "FedRep": Case(),
    "LGFedAvg": Case(),
    "FedRoD": Case(),
    "MOON": Case({"mu": 0.7}, client={"previous": "previous"}),
    "SCAFFOLD": Case(server={"weights": "weights", "control": "control"}, client={"control": "control"}),
    "FedDyn": Case(
        takes_means=False, server={"weights": "weights", "h": "drift"}, client={"gradient": "gradient"}
    ),
    "FedOpt": Case(takes_means=False, server={"weights": "weights", "m": "change", "v": "square"}, client={}),
    "Ditto": Case({"mu": 0.5}),
    "MRMTL": Case({"lam": 0.5}),
    "APFL": Case(client={"personal": "own", "alpha": "alpha"}),
    "PFedMe": Case(settings={"momentum": 0.0, "weight_decay": 0.0, "clip": 0.0}),
    "FD": Case(
        {"gamma": 0.7},
        server={"outputs": "outputs", "owners": "owners"},
        client={"personal": "weights", "outputs": "outputs"},
    ),
    "FedProto": Case(
        {"lam": 0.7}, takes_means=False, server={"prototypes": "prototypes"}, client={"personal": "weights"}
    ),
    "COPA": Case(takes_means=False, server={"weights": "weights", "heads": "heads"}, client={"head": "own"}),
    "FedHEAL": Case(
        takes_means=False,
        server={
            "weights": "weights",
            "history": lambda state: each(state["history"]),
            "p": lambda state: each(state["p"]),
            "delta": lambda state: each(state["delta"]),
        },
        client={},
    ),
    "FedALA": Case(
        {"eta": 0.5, "threshold": 0.03, "num_pre_loss": 4},
        client={"own": "own", "W": "W"},
        draws={"subset": draws.subset},
    ),
    "FedKD": Case(client={"personal": "mentor", "W_h": "map"}, draws={"W_h": draws.mapping}),
    "FedGH": Case(
        server={"head": "head"}, client={"personal": "weights"}, draws={"order": draws.server_order}
    ),
    "FedCO2": Case(
        {"mu": 0.7},
        server={"weights": "weights", **by_client("heads", "head")},
        client={"online": "own", "offline": "offline"},
    ),
    "FediOS": Case({"alpha": 0.3}, client={"individual": "own"}, draws={"basis": draws.basis}),
    "FedDGGA": Case(server={"weights": "weights", "a": "a"}, client={"badness": "badness"}),
    "PartialFed": Case(
        client={"personal": "own", "choice": "logits"},
        fits={0: 1, 1: 0},
        draws={"gumbel": draws.gumbel_layers},
    ),
    "FedCP": Case(
        server={"weights": "weights", "head": "head", "policy": "policy"},
        client={
            **{key: key for key in ("head", "policy", "global_head")},
            "context": lambda state: state["context"] * state["trained"],  # the form draws it later
        },
        draws={"context": draws.context, "gumbel": draws.gumbel_pair},
    ),
    "PFedVEM": Case(
        {"head_lr": 0.8},
        settings={"momentum": 0.5},  # heads have another
        server={"weights": "weights", "head": lambda state: {"mean": column(state["head"])}},
        client={"head": posterior},
        fits={0: 1},
        draws={"prior": draws.prior, "head noise": draws.of_heads(0), "base noise": draws.of_heads(1)},
    ),
    "DCPFL": Case(
        own={"num_virtual": 60},
        server={"head": "head", "means": known_means},
        client={"personal": "weights"},
        draws={"order": draws.server_order, "virtual": draws.virtual, "shuffle": draws.shuffle},
    ),
    "FML": Case({"alpha": 0.4, "beta": 0.7}, own={"meme": WIDER}),
    "FDSE": Case(
        {"lam": 10.0},
        server={"weights": "weights", **by_client("dse", "dse"), "dse 4": None},  # of 4 nothing was uploaded
        client={
            "dse": None,
            "statistics": lambda state: {k: t for k, t in state["own"].items() if k not in dse(state)},
        },
        net=DSECNN(),
    ),
    "FedFA": Case(
        server={"weights": "weights", "statistics": of_ffa},
        client={},
        net=FedFACNN(),
        side=20,
        draws={"augment": draws.augment, "noise": draws.statistics},
    ),
    "FedSR": Case(
        own={"test_samples": 3},
        client={
            "classes": lambda state: {
                {"mean": "r_mu", "scale": "r_sigma"}.get(n, n): t for n, t in state["classes"].items()
            }
        },
        net=FedSRCNN(),
        draws={"noise": draws.features, "test": draws.at_test},
    ),
    "FedBABU": Case(takes_means=False, client={}),
    "PerFedAvg": Case({"alpha": 0.1}, takes_means=False, client={}),
    "FedFomo": Case(
        {"models": 3, "epsilon": 0.7},
        server={"models": lambda state: each(state["models"]), "P": lambda state: affinities(state) - OWN},
        client={"personal": "weights", "start": "start"},
        draws={"peer": draws.peer},
    ),
    "FedAMP": Case(
        {"alpha": 0.02, "sigma": 0.1, "lam": 0.2},  # models are that far apart
        server={"models": lambda state: each(state["models"])},
        client={"personal": "weights"},
    ),
    "FedDBE": Case(
        {"kappa": 5.0, "momentum": 0.3},
        server={"weights": "weights", "mean": lambda state: state["before"]["mean"]},
        client={"memory": lambda state: state["memory"]["bias"]},
    ),
    "FedPAC": Case(
        {"lam": 0.7},
        server={
            "weights": "weights",
            "centroids": "centroids",
            "change": lambda state: each(state["changes"]),
        },
    ),
}

FIXED = {"client": {"personal": "own", "choice": None}}
FURTHER: tuple[tuple[Any, ...], ...] = (
    ("APFL", {"alpha": 0.3, "adaptive": False}),
    ("COPA", {"w_foreign": 0.5, "foreign": "mean"}),
    ("DCPFL", {"cov_formula": "printed", "absent": "reuse", "min_class_count": 3, "eval_head": "global"}),
    ("DCPFL", {"absent": "mask", "min_class_count": 3, "server_steps": 2}),
    ("FDSE", {"lam": 0.5, "reg": "code", "unit": "tensor", "attn_unit": "block"}),
    (
        "FDSE",
        {"ema_init": "bias_corrected", "consensus": False, "attention": False},
        {"server": {"weights": "weights"}, "client": {**CASES["FDSE"].client, "dse": dse}},
    ),
    ("FedALA", {"layer_idx": 4, "threshold": 0.005}),
    ("FedAvg-FT", {}, {"finetune": {"epochs": 1, "lr": 0.02, "part": "head"}}),
    ("FedAvg-FT", {}, {"finetune": {"epochs": 1, "part": "body"}}),
    ("FedAMP", {"alpha": 0.1, "sigma": 10.0, "lam": 1.0}),
    ("FedBABU", {"tune_epochs": 2, "cut": "fc_stack"}),
    ("FedBN", {"bn_personal": "affine_only"}),
    ("FedCO2", {"intra": "none", "inter": "none"}, {"server": {"weights": "weights"}}),
    (
        "FedCO2",
        {"intra": "to_online", "inter": "offline", "personal": "bn_and_head", "exchange": "last_layer"},
    ),
    ("FedCO2", {"offline_init": "independent", "kd_temperature": 2.0, "mutual_epochs": 2, "adapt_epochs": 1}),
    ("FedDBE", {"kappa": 0.0}),
    ("FedDBE", {"momentum": 1.0}),
    ("FedDGGA", {"metric": "loss", "center": True}),
    ("FedFA", {"var_mode": "scalar"}),
    (
        "FedFomo",
        {"models": 2, "own": "affinity", "epsilon": 0.0},
        {"server": {"models": CASES["FedFomo"].server["models"], "P": affinities}},
    ),
    ("FedHEAL", {"tau": 0.5}),
    ("FediOS", {"basis": "identity", "rank": 2, "overflow": "reuse", "ortho_reg_on": "cos"}),
    ("FediOS", {"projections": False}),
    ("FediOS", {"ortho_reg_on": "relu", "schedule": "alternating"}, {"turns": 2}),
    ("FediOS", {"individual_extractor": False}),
    ("FedKD", {"T_start": 0.5, "T_end": 0.9}, {"own": {"mentee": WIDER}}),
    ("FedOpt", {"rule": "momentum", "server_lr": 0.5}, {"server": {"weights": "weights", "m": "change"}}),
    ("FedOpt", {"rule": "adagrad"}),
    ("FedOpt", {"rule": "yogi"}),
    ("FedPAC", {"least_weight": 0.3}),
    (
        "FedPAC",
        {"head_epochs": 2, "head_lr": None, "collaborate": False},
        {"server": {"weights": "weights", "centroids": "centroids"}},
    ),
    ("FedPer", {"personal": "fc_stack"}),
    ("FedProto", {"predict": "head", "prototype_weights": "counts"}),
    ("FedProx", {"norm": "l2"}),
    ("FedRep", {"personal": "fc_stack", "head_epochs": 2}),
    ("FedRoD", {"balanced": False, "head": "fc_stack"}),
    ("FML", {"init": "common"}),
    ("LGFedAvg", {"p": 4}),
    ("PartialFed", {"mode": "no_bn"}, FIXED),
    ("PartialFed", {"mode": "no_cls"}, FIXED),
    ("PartialFed", {"mode": "bottom", "k": 2}, FIXED),
    ("PartialFed", {"mode": "top", "k": 2}, FIXED),
    ("PerFedAvg", {"hessian": "differences"}),
    ("PerFedAvg", {"step_samples": 5}, {"draws": {"step": draws.first_batch}}),
    ("PFedMe", {"K": 3, "personal_lr": 0.5, "beta": 0.5}),
    ("PFedVEM", {"beta": 0.5, "normalize_elbo": False, "head_lr": 0.05, "head_epochs": 3}),
    ("SCAFFOLD", {"server_lr": 0.6}),
)
"""Further settings of methods, in which they do something else: method, options, changes of its case."""

for name, options, *changed in FURTHER:
    case = replace(CASES[name], options={**CASES[name].options, **options})
    case = replace(case, **(changed[0] if changed else {}))
    own = {key: value for key, value in case.own.items() if key not in CASES[name].own}
    given = {**options, **own, **{f"finetune.{key}": value for key, value in case.finetune.items()}}
    CASES[f"{name} {', '.join(f'{key}={value}' for key, value in given.items())}"] = case
