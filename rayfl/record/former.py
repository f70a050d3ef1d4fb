"""Configurations of runs of before, read as if they had been written today.

Nets and protocols were texts, ``FDSE-AlexNet(G=4)`` and ``fdse+weighted``; training had ``lr_decay``, and no
optimiser but SGD; ``tensorboard`` was the only logger. Everything stands here as it was then, so that later
defaults do not change what an old run was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rayfl.record.description import deciding

_WITHOUT_FILES = ("rayfl.data.EmbeddedDigits", "rayfl.data.Synthetic")

_DSE: dict[str, Any] = {"G": 2, "dw": 3, "act": "relu"}
_VIT: dict[str, Any] = {"patch": 32, "depth": 6}
_SMALL: dict[str, Any] = {"stem": "auto", "pretrained": False}

_NETS: dict[str, tuple[str, dict[str, Any]]] = {
    "lenet": ("LeNet", {}),
    "cnn": ("CNN", {}),
    "cnn-b": ("CNNB", {}),
    "DigitModel": ("DigitModel", {"fc_norm": True}),
    "DigitModel-nobn1": ("DigitModel", {"fc_norm": False}),
    "FedAvgCNN": ("FedAvgCNN", {}),
    **{f"CNN-{number}": ("FedGHCNN", {"number": number}) for number in range(1, 6)},
    "ResNet18": ("ResNet18", _SMALL),
    "ResNet18-7x7": ("ResNet18", {"stem": "original", "pretrained": False}),
    "MobileNetV2": ("MobileNetV2", _SMALL),
    "EfficientNet-B0": ("EfficientNetB0", _SMALL),
    "DenseNet121": ("DenseNet121", _SMALL),
    "AlexNet": ("AlexNet", {"width": 4096, "fc_norm": True}),
    "AlexNet-nobn1": ("AlexNet", {"width": 4096, "fc_norm": False}),
    "AlexNet-1024": ("AlexNet", {"width": 1024, "fc_norm": True}),
    "FDSE-AlexNet": ("FDSEAlexNet", {**_DSE, "padding": "paper"}),
    "DSE-CNN": ("DSECNN", _DSE),
    "ResNet50": ("ResNet50", {}),
    "DSE-ResNet50": ("DSEResNet50", _DSE),
    "ViT": ("ViT", _VIT),
    "DSE-ViT": ("DSEViT", {**_VIT, "G": 2, "act": "relu"}),
}
"""Name -> class, and all options."""

_DEFAULT: dict[str, Any] = {
    "point": "after_aggregation",
    "view": "personal",
    "average": "mean_clients",
    "choose": "last",
    "k": 5,
    "length": 200,
    "step": 1,
    "choose_by": "mean_clients",
    "trained_only": False,
    "spread": "runs",
    "patience": 0,
}
_WINDOW: dict[str, Any] = {"average": "pooled", "choose": "window", "step": 5, "spread": "evaluations"}
_BEST: dict[str, Any] = {"average": "pooled", "choose": "best_val", "choose_by": "weighted"}

_PROTOCOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("Default", {}),
    "fedco2_feature": ("FedCO2Feature", {"choose": "best_val"}),
    "fedco2_last": ("FedCO2Last", {}),
    "fedco2_cifar": ("FedCO2CIFAR", _WINDOW),
    "fedios": ("FediOS", {"point": "after_training", "choose": "last_k"}),
    "fedios_global": ("FediOSGlobal", {"view": "global", "average": "pooled", "choose": "last_k"}),
    "dcpfl": ("DCPFL", {"point": "after_training", "trained_only": True}),
    "fdse": ("FDSE", {**_BEST, "point": "after_training"}),
    "fdse_global": ("FDSEGlobal", {**_BEST, "view": "global"}),
}
"""Name -> class, and the options that differ from ``_DEFAULT``."""

_WORDS: dict[str, dict[str, Any]] = {
    **{word: {"point": word} for word in ("after_aggregation", "after_training")},
    **{word: {"point": word} for word in ("unseen", "unseen_adapted", "unseen_control")},
    **{word: {"view": word} for word in ("personal", "global")},
    **{word: {"average": word} for word in ("mean_clients", "pooled", "weighted")},
    **{word: {"choose": word} for word in ("last", "best_val")},
    "trained_only": {"trained_only": True},
}
"""Word that changes a protocol, as in ``fdse+weighted`` -> options."""

_SCORED: dict[str, Any] = {"eval_clients": None, "eval_draw": "once", "scoring": "each"}
"""How clients were scored before there was a choice."""

MOVED = {
    "training.lr_decay": "--training.schedule Exponential --training.schedule.decay and its value",
    "tensorboard": "--loggers '[]' for false, --loggers '[tensorboard]' for true",
}
"""Option that there was -> what takes its place."""

_COUNTED = {
    r"last_([1-9]\d*)": ("last_k", "k"),
    r"every_([1-9]\d*)_of_last_([1-9]\d*)": ("window", "step", "length"),
}


_LATER: dict[str, dict[str, Any]] = {"rayfl.methods.PartialFed": {"method.share": 1.0}}
"""Method -> the options that it has had since, as they were before."""


def without_unused(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without options that data sets had, and never used."""
    data = config.get("data")
    if not isinstance(data, dict) or data.get("class_path") not in _WITHOUT_FILES:
        return dict(config)
    options = data.get("init_args")
    if not isinstance(options, dict):
        return dict(config)
    used = {name: value for name, value in options.items() if name not in ("root", "verify")}
    return {**config, "data": {**data, "init_args": used}}


def present(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded configuration with net and protocol as they are recorded now.

    What is no text of before stays as it is.
    """
    found = dict(config)
    if "net" in config:
        nets = config["net"]
        found["net"] = [_net(net) for net in nets] if isinstance(nets, list) else _net(nets)
    if "protocol" in config:
        found["protocol"] = _protocol(config["protocol"])
    if isinstance(training := config.get("training"), dict):
        found["training"] = _training(training)
    if isinstance(wanted := config.get("tensorboard"), bool):
        del found["tensorboard"]
        found["loggers"] = ["tensorboard"] if wanted else []
    if "participation" in config:
        found.setdefault("sampling", _described("rayfl.sampling.Uniform", {}))
        found.setdefault("metrics", [])
    if config.keys() >= {"participation", "eval_every", "on_bad_update"}:  # recorded, and not made by hand
        found = _SCORED | found
    return found


def present_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a checkpoint carries, by their dotted names, as they are now."""
    texts = {key: settings[key] for key in ("net", "protocol") if key in settings}
    now = {key: value for key, value in present(texts).items() if value != texts[key]}
    before = {key: settings[name] for key in ("lr", "lr_decay") if (name := f"training.{key}") in settings}
    if before and "training.optimiser" not in settings:
        now["training"] = _training(before)
    kept = {key: value for key, value in settings.items() if key != "training.lr_decay"}
    later = _LATER.get(str(settings.get("method")), {})
    return {"sampling": "rayfl.sampling.Uniform", "metrics": [], **later, **_SCORED, **kept, **deciding(now)}


def remedy(name: str, value: Any) -> str:
    """Say how a text of before is written now; empty if it is none.

    Args:
        name: ``net`` or ``protocol``.
        value: its value.
    """
    for text in value if isinstance(value, list) else [value]:
        now = _net(text) if name == "net" else _protocol(text)
        if now is text:
            continue
        cls = now["class_path"].rpartition(".")[2]
        options = {k: v for k, v in now.get("init_args", {}).items() if _usual(name, cls)[k] != v}
        python = f"{cls}({', '.join(f'{k}={v!r}' for k, v in options.items())})"
        shell = " ".join([f"--{name} {cls}", *(f"--{name}.{k} {v}" for k, v in options.items())])
        if isinstance(value, list):
            arguments = ", ".join(f"{k}: {v}" for k, v in options.items())
            shell = f"{{class_path: {cls}, init_args: {{{arguments}}}}}" if options else cls
        return f"{name} {text!r} has another form now: write {shell}, or in Python {python}"
    return ""


def _usual(name: str, cls: str) -> dict[str, Any]:
    """Return the defaults of a class."""
    if name == "protocol":
        return {**_DEFAULT, **next(options for known, options in _PROTOCOLS.values() if known == cls)}
    return next(options for known, options in _NETS.values() if known == cls)


def _training(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of training as they are recorded now."""
    if "lr" not in options or "optimiser" in options:
        return options
    found = {key: value for key, value in options.items() if key != "lr_decay"}
    found["optimiser_state"] = "fresh"
    found["optimiser"] = _described("rayfl.training.SGD", {"nesterov": False})
    decay = options.get("lr_decay", 1.0)
    falls = decay != 1.0
    schedule, own = ("Exponential", {"decay": decay}) if falls else ("Constant", {})
    return found | {"schedule": _described(f"rayfl.training.{schedule}", {"warmup": 0, **own})}


def _net(text: Any) -> Any:
    """Return a net as it is recorded now."""
    name, opened, rest = text.partition("(") if isinstance(text, str) else ("", "", "")
    if name.strip() not in _NETS or (opened and not rest.endswith(")")):
        return text
    cls, options = _NETS[name.strip()]
    options = dict(options)
    for pair in filter(None, rest.removesuffix(")").split(",")):
        key, _, value = (part.strip() for part in pair.partition("="))
        kind: Any = type(options.get(key))
        try:
            options[key] = value.lower() == "true" if kind is bool else kind(value)
        except (TypeError, ValueError):
            return text
    return _described(f"rayfl.nets.{cls}", options)


def _protocol(text: Any) -> Any:
    """Return a protocol as it is recorded now."""
    first, *words = text.split("+") if isinstance(text, str) else [""]
    if first not in _PROTOCOLS:
        first, words = "default", [first, *words]
    cls, options = _PROTOCOLS[first]
    options = {**_DEFAULT, **options}
    for word in words:
        meaning = _meaning(word)
        if not meaning:
            return text
        options |= meaning
    return _described(f"rayfl.evaluation.{cls}", options)


def _meaning(word: str) -> dict[str, Any]:
    """Return the options that a word sets; none if it is no such word."""
    if found := re.fullmatch(r"patience_([1-9]\d*)", word):
        return {"patience": int(found[1])}
    for form, (choose, *keys) in _COUNTED.items():
        if found := re.fullmatch(form, word):
            return {"choose": choose, **dict(zip(keys, map(int, found.groups()), strict=True))}
    return _WORDS.get(word, {})


def _described(path: str, options: dict[str, Any]) -> dict[str, Any]:
    return {"class_path": path, **({"init_args": options} if options else {})}
