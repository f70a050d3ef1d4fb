"""Small mistakes put into methods one at a time: signs, factors, wrong means, which a form must show.

Every mistake is a function that takes the place of one that the method calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from inspect import iscoroutinefunction
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.nn import functional as F

from rayfl.methods import METHODS
from rayfl.training.client import Client

Change = Callable[[], AbstractContextManager[Any]]


def put(target: str, changed: Callable[[Any], Any]) -> Change:
    """Return what puts a function in the place of another, ``module:name`` below rayfl.

    A function of PyTorch, ``module:F.name``, is replaced for this module alone.
    """

    @contextmanager
    def patched() -> Iterator[None]:
        module, _, path = target.partition(":")
        above, _, name = path.rpartition(".")
        if above == "F":
            those = SimpleNamespace(**{**vars(F), name: changed(getattr(F, name))})
            replaced = mock.patch(f"rayfl.{module}.F", those)
        else:
            owner = resolve_name(f"rayfl.{module}:{above}")
            replaced = mock.patch.object(owner, name, changed(getattr(owner, name)))
        with replaced:
            yield

    return patched


def out(target: str, f: Callable[..., Any]) -> Change:
    """Return what changes a function's result: ``f(result, *arguments)``."""

    def changed(original: Any) -> Any:
        async def later(*given: Any, **options: Any) -> Any:
            return f(await original(*given, **options), *given)

        def at_once(*given: Any, **options: Any) -> Any:
            return f(original(*given, **options), *given)

        return later if iscoroutinefunction(original) else at_once

    return put(target, changed)


def into(target: str, f: Callable[..., Any]) -> Change:
    """Return what changes a function's arguments: it gets those that ``f`` returns."""
    return put(target, lambda original: lambda *given, **options: original(*f(*given), **options))


def times(factor: float, *keys: Any) -> Callable[..., Any]:
    """Return what multiplies a result, or what it has under some keys."""

    def f(result: Any, *_: Any) -> Any:
        if keys:
            found = dict(result) if isinstance(result, Mapping) else list(result)
            for key in keys:
                found[key] = times(factor)(found[key])
            return found if isinstance(found, dict) else tuple(found)
        return factor * result

    return f


def evenly(alpha: torch.Tensor, *_: Any) -> torch.Tensor:
    """Return equal weights in the place of others."""
    return torch.full_like(alpha, 1 / alpha.shape[1])


def step(name: str, factor: float, key: str = "weights") -> Change:
    """Return what lets the server go ``factor`` times as far."""

    def f(result: Any, _: Any, server: Any, *__: Any) -> Any:
        return {**result, key: server[key] + factor * (result[key] - server[key])}

    return out(f"{module_of(name)}:{name}.aggregate", f)


def kept(name: str, factor: float, key: str = "own") -> Change:
    """Return what lets a client's state go ``factor`` times as far."""

    def f(result: Any, _: Any, client: Any, state: Any, down: Any) -> Any:
        up, after = result
        return up, {**after, key: state[key] + factor * (after[key] - state[key])}

    return out(f"{module_of(name)}:{name}.local_update", f)


def sent(name: str, factor: float, key: str = "weights") -> Change:
    """Return what multiplies a client's upload."""

    def f(result: Any, *_: Any) -> Any:
        up, after = result
        return {**up, key: factor * up[key]}, after

    return out(f"{module_of(name)}:{name}.local_update", f)


def module_of(name: str) -> str:
    return METHODS[name].__module__.removeprefix("rayfl.")


def in_fits(f: Callable[..., dict[str, Any]]) -> Change:
    """Return what changes the named arguments of fits, which ``f`` gets."""

    def fit(
        self: Client, start: Any, loss: Any, extra: Any = None, original: Any = Client.fit, **given: Any
    ) -> Any:
        return original(self, start, loss, **f(extra=extra, **given))

    return lambda: mock.patch.object(Client, "fit", fit)


def rule(factor: float) -> Change:
    """Return what multiplies by how much the rules of fits change a gradient."""

    def scaled(original: Any) -> Any:
        return lambda g, w, extra: g + factor * (original(g, w, extra) - g)

    def f(**given: Any) -> dict[str, Any]:
        return {k: scaled(v) if k in ("before_clip", "after_clip") and v else v for k, v in given.items()}

    return in_fits(f)


def extra(factor: float, *keys: str) -> Change:
    """Return what multiplies something that losses of fits are given besides."""

    def f(extra: Any, **given: Any) -> dict[str, Any]:
        return {"extra": times(factor, *keys)(extra), **given}

    return in_fits(f)


def option(name: str, value: Any) -> Change:
    """Return what gives an option another value than the form has."""

    def changed(original: Any) -> Any:
        def set_up(plan: Any, data: Any) -> Any:
            object.__setattr__(plan.method, name, value)
            return original(plan, data)

        return set_up

    return put("engine.worker:set_up", changed)


def other_mean(name: str) -> Change:
    """Return what weights a mean by samples that is uniform, and the other way round."""
    facts = METHODS[name]().facts
    other = replace(facts, averaging={"samples": "uniform", "uniform": "samples"}[facts.averaging])
    return lambda: mock.patch.object(METHODS[name], "facts", other)


def tuning_uphill(settings: Any, method: Any, client: Any, *given: Any) -> tuple[Any, ...]:
    client.fit = partial(client.fit, before_clip=lambda gradient, w, extra: -1 * gradient)
    return settings, method, client, *given


def uphill(net: Any, head: Any, z: Any, y: Any, lr: float, *masked: Any) -> tuple[Any, ...]:
    return net, head, z, y, -lr, *masked


def uncounted(up: Any) -> tuple[Any]:
    """Count one sample of each class of a client of DC-PFL."""
    means = {i: {**own, "counts": torch.ones_like(own["counts"])} for i, own in up["means"].items()}
    return ({**up, "means": means},)


# Method -> a wrong sign, a wrong factor, a wrong mean.
CHANGES: dict[str, tuple[Change, Change, Change]] = {
    "Local": (
        kept("Local", -1, "weights"),
        kept("Local", 1.1, "weights"),
        out("training.losses:F.cross_entropy", lambda mean, scores, y: mean * len(y)),
    ),
    "FedAvg": (step("FedAvg", -1), step("FedAvg", 1.1), other_mean("FedAvg")),
    "FedAvg-FT": (
        into("engine.worker:finetune_model", tuning_uphill),
        into("engine.worker:finetune_model", lambda settings, *given: (replace(settings, lr=0.055), *given)),
        other_mean("FedAvg"),
    ),
    "FedProx": (rule(-1), rule(1.1), other_mean("FedProx")),
    "FedBN": (kept("FedBN", -1), step("FedBN", 1.1), other_mean("FedBN")),
    "FedPer": (kept("FedPer", -1), step("FedPer", 1.1), other_mean("FedPer")),
    "FedRep": (kept("FedRep", -1), step("FedRep", 1.1), other_mean("FedRep")),
    "LGFedAvg": (kept("LGFedAvg", -1), step("LGFedAvg", 1.1), other_mean("LGFedAvg")),
    "FedRoD": (extra(-1), extra(1.1), other_mean("FedRoD")),
    "MOON": (
        out("methods.moon:F.cosine_similarity", times(-1)),
        out("methods.moon:F.cosine_similarity", times(1.1)),
        other_mean("MOON"),
    ),
    "SCAFFOLD": (rule(-1), sent("SCAFFOLD", 1.1, "control"), other_mean("SCAFFOLD")),
    "FedDyn": (rule(-1), kept("FedDyn", 1.1, "gradient"), other_mean("FedDyn")),
    "FedOpt": (
        step("FedOpt", -1),
        out("methods.fedopt:FedOpt._squared_change", times(1.1)),
        other_mean("FedOpt"),
    ),
    "Ditto": (rule(-1), rule(1.1), other_mean("Ditto")),
    "MRMTL": (rule(-1), rule(1.1), other_mean("MRMTL")),
    "APFL": (
        out("methods.apfl:grad", lambda slope, *_: lambda alpha: -slope(alpha)),
        into("methods.apfl:mix_models", lambda alpha, v, w: (1.1 * alpha, v, w)),
        other_mean("APFL"),
    ),
    "PFedMe": (step("PFedMe", -1), option("lam", 16.5), other_mean("PFedMe")),
    "FD": (
        out("methods.fd:FD._others_outputs", times(-1, "targets")),
        out("methods.fd:class_means", times(1.1)),
        into("methods.fd:FD._others_outputs", lambda self, state, down: (self, {**state, "round": -2}, down)),
    ),
    "FedProto": (
        extra(-1, "prototypes"),
        out("methods.fedproto:class_means", times(1.1)),
        option("prototype_weights", "counts"),
    ),
    "COPA": (extra(-1, "weight"), out("methods.copa:through_all", times(1.1)), other_mean("COPA")),
    "FedHEAL": (
        step("FedHEAL", -1),
        option("beta", 0.44),
        into(
            "methods.fedheal:FedHEAL.aggregate",
            lambda self, server, *given: (self, {**server, "p": {}}, *given),
        ),
    ),
    "FedALA": (
        out("training.losses:F.cross_entropy", times(-1)),
        out("training.losses:F.cross_entropy", times(1.1)),
        other_mean("FedALA"),
    ),
    "FedKD": (
        out("data.task:Classes.divergence", times(-1)),
        into("methods.fedkd:truncate_svd", lambda matrix, energy: (matrix, 0.9 * energy)),
        other_mean("FedKD"),
    ),
    "FedGH": (
        into("methods.fedgh:head_step", uphill),
        out("methods.fedgh:class_means", times(1.1)),
        out("methods.fedgh:class_means", lambda means, *_: means.mean(0).expand_as(means)),
    ),
    "FedCO2": (
        out("data.task:Classes.divergence", times(-1)),
        option("mu", 0.77),
        other_mean("FedCO2"),
    ),
    "FediOS": (out("methods.fedios:project_onto", times(-1)), option("alpha", 0.33), other_mean("FediOS")),
    "FedDGGA": (
        out("methods.feddgga:FedDGGA._error_measure", times(-1)),
        option("step", 0.22),
        into("methods.feddgga:weighted_mean", lambda each, shares: (each, dict.fromkeys(shares, 1.0))),
    ),
    "PartialFed": (
        out("methods.partialfed:mixed_scores", times(-1)),
        option("gumbel_decay", 0.9),
        other_mean("PartialFed"),
    ),
    "FedCP": (
        out("methods.fedcp:squared_mmd", times(-1)),
        out("methods.fedcp:context_of", times(1.1)),
        other_mean("FedCP"),
    ),
    "PFedVEM": (
        out("methods.pfedvem:posterior_divergence", times(-1)),
        out("methods.pfedvem:variance_of", times(1.1)),
        other_mean("PFedVEM"),
    ),
    "DCPFL": (
        into("methods.dcpfl:head_step", uphill),
        out("methods.dcpfl:symmetric_root", times(1.1)),
        into("methods.dcpfl:pool_statistics", uncounted),
    ),
    "FML": (out("data.task:Classes.divergence", times(-1)), option("alpha", 0.44), other_mean("FML")),
    "FDSE": (
        out("methods.fdse.consistency:Consistency.loss", times(-1)),
        into("methods.fdse.method:mix_by_similarity", lambda rows, tau: (rows, 1.1 * tau)),
        other_mean("FDSE"),
    ),
    "FedFA": (
        out("nets.augmenting:FFA._draw_statistic", lambda drawn, layer, around, across: 2 * around - drawn),
        out("methods.fedfa:FedFA._client_variance", times(1.1)),
        other_mean("FedFA"),
    ),
    "FedSR": (
        out("methods.fedsr:kl_to_classes", times(-1)),
        out("methods.fedsr:mean_and_scale", times(1.1, 1)),
        other_mean("FedSR"),
    ),
    "FedBABU": (step("FedBABU", -1), option("tune_epochs", 4), other_mean("FedBABU")),
    "PerFedAvg": (option("alpha", -0.1), option("alpha", 0.11), other_mean("PerFedAvg")),
    "FedFomo": (
        out("methods.fedfomo:FedFomo._mean_loss", times(-1)),
        out("methods.fedfomo:FedFomo._mean_loss", times(1.1)),
        out("methods.fedfomo:FedFomo._mean_loss", lambda mean, _, client, w: mean * client.samples),
    ),
    "FedAMP": (option("lam", -0.2), option("lam", 0.22), option("sigma", 0.11)),
    "FedDBE": (option("kappa", -5.0), option("momentum", 0.33), other_mean("FedDBE")),
    "FedPAC": (step("FedPAC", -1), out("methods.fedpac:mixing_weights", evenly), other_mean("FedPAC")),
}
