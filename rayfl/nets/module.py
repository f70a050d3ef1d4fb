"""Nets as a run asks for them: rayfl's, a class of the user's own, or any module by import path."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Annotated, Any, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from rayfl.errors import BadCode, BadValue, Missing, Unknown, UserError, error_context, out_of_memory
from rayfl.nets.adapters import put_adapters
from rayfl.nets.base import Architecture
from rayfl.nets.head import check_training, eval_scores, kind_name, parts_differ, split_at_head, with_numbers
from rayfl.nets.memory import generators
from rayfl.nets.split import Shape, SplitNet, drop_batch_counts, share_weights
from rayfl.nets.transformer import Transformer
from rayfl.nets.weights import load_weights
from rayfl.settings import above, at_least
from rayfl.settings.arguments import describe_object, union_members
from rayfl.settings.base import class_names
from rayfl.settings.imports import ImportPath, import_by_path
from rayfl.system.own_code import is_own
from rayfl.system.text import did_you_mean, short_repr

_FETCHED = ("weights", "pretrained")
"""What the arguments begin with that have torchvision and others fetch weights."""
_NO_SPLIT_NET = "put it into one of the parts, or derive the net from nn.Module"


class Module(Architecture):
    """Any ``nn.Module`` that ends in a linear layer, of a class or a function by import path.

    ``--net torchvision.models.resnet18`` is short for it where no other option is needed. What the class or
    function takes of ``shape``, ``classes`` and ``num_classes`` it gets. A function that does not say by an
    annotation what it returns is called with shape and classes.
    """

    path: ImportPath
    """Import path ``module.name`` of the class or function."""
    head: str = ""
    """Name of the last linear layer, such as ``classifier.1``; by default it is found."""
    arguments: dict[str, Any] | None = None
    """Further arguments by name, such as ``{width_mult: 0.5}``."""

    def __post_init__(self) -> None:
        for name, value in (self.arguments or {}).items():
            if name.startswith(_FETCHED) and value:
                problem = f"is {short_repr(value)}: rayfl downloads no weights"
                known = "ResNet18, MobileNetV2, EfficientNetB0 and DenseNet121 have pretrained=True"
                raise BadValue(f"net.arguments.{name}", problem, f"leave it out; for files at hand, {known}")

    def __str__(self) -> str:
        """Return the import path, where there is no other option."""
        return describe_object(self) if self.head or self.arguments or self.weights else self.path

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Call the class or function; what it returns need not be an ``nn.Module``."""
        function = self._function()
        positional, by_name = self._facts(function, shape, classes)
        found: nn.Module = function(*positional, **by_name)
        return found

    def _function(self) -> Callable[..., Any]:
        """Return the class or function that the path names."""
        path = self.path
        if not all(part.isidentifier() for part in path.split(".")) or "." not in path:
            raise Unknown("net", _no_net(path))
        try:
            with error_context("net"):
                function = import_by_path(path)
        except (ImportError, AttributeError) as error:
            kind = Missing if isinstance(error, ImportError) else Unknown
            raise kind("net", f"{path}: {error}") from error
        kinds = [get_origin(each) or each for each in union_members(_return_type(function))]
        if all(isinstance(each, type) and not issubclass(each, nn.Module) for each in kinds):
            raise BadCode("net", f"{path} makes a {kinds[0].__name__}, and no torch.nn.Module")
        return function

    def _facts(
        self, function: Callable[..., Any], shape: Shape, classes: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that the class or function is called with, by place and by name.

        Only what says that it makes an ``nn.Module`` gets others than shape and classes: a configuration
        must not be able to call functions of any kind.
        """
        arguments, facts = self.arguments or {}, {"shape": shape, "classes": classes, "num_classes": classes}
        promised = _return_type(function)
        if not isinstance(promised, type):
            if arguments:
                promise = f"write `def {self.path.rpartition('.')[2]}(...) -> torch.nn.Module`"
                raise BadCode("net", f"{self} takes arguments, and must say that it returns a net", promise)
            return (shape, classes), {}
        try:
            signature = inspect.signature(function)
        except ValueError:  # it is not written in Python
            return (shape, classes), {}
        parameters = signature.parameters.values()
        takes = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
        if not isinstance(function, type) and any(p.kind is p.VAR_KEYWORD for p in parameters):
            takes.add("num_classes")  # as torchvision's functions do, which hand it on
        by_name = {name: value for name, value in facts.items() if name in takes}
        by_name |= {p.name: None for p in parameters if p.name.startswith(_FETCHED) and p.default}
        by_name |= arguments
        foreign = isinstance(function, type) and not issubclass(function, SplitNet)  # of any arguments
        if not (foreign or arguments or _binds(signature, **by_name)) and _binds(signature, shape, classes):
            return (shape, classes), {}
        return (), by_name


def _binds(signature: inspect.Signature, *positional: Any, **by_name: Any) -> bool:
    """Return whether something can be called like this."""
    try:
        signature.bind(*positional, **by_name)
    except TypeError:
        return False
    return True


def _no_net(text: str) -> str:
    names = class_names(Architecture)
    if text in names:
        return f"is the text {text!r}: write the net itself, {text}() of rayfl.nets"
    return (
        f": there is no net {text!r}{did_you_mean(text, names)} Nets: {', '.join(names)}; or the import path "
        "of a class or function that makes a torch.nn.Module"
    )


def _return_type(function: Callable[..., Any]) -> Any:
    """Return the type that comes from a call, as far as that can be told without one; else None."""
    if isinstance(function, type):
        return function
    called: Any = function.func if isinstance(function, partial) else function
    called = inspect.unwrap(called if inspect.isroutine(called) else type(called).__call__)
    try:  # of the others, some may be names that only type checkers import
        said = SimpleNamespace(
            __annotations__={"return": called.__annotations__["return"]}, __globals__=called.__globals__
        )
        return get_type_hints(said)["return"]
    except Exception:  # whatever its annotations raise
        return None


class LoRA(Architecture):
    """A net with low-rank adapters (Hu et al., "LoRA", ICLR 2022): they and the head are trained and travel.

    All else is frozen. A is drawn as a linear layer's weights are, B starts at 0.
    """

    of: Architecture | str
    """The net; its own ``weights`` are those of the base."""
    rank: Annotated[int, at_least(1)] = 8
    """Rows of A, columns of B."""
    alpha: Annotated[float, above(0)] = 16.0
    """Adapters are multiplied by ``alpha / rank``."""
    targets: list[str] | None = None
    """Linear layers that get adapters: their names, the ends of these, or patterns such as ``*.mlp.*``; by
    default all below the head.
    """
    train_a: bool = True
    """Whether A is trained; else it stays as it is drawn (FFA-LoRA: Sun et al., ICLR 2024)."""

    def digests(self) -> dict[str, str]:
        """Return those of the base, and the net's own."""
        return {**({} if isinstance(self.of, str) else self.of.digests()), **super().digests()}

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        return build(self, shape, classes)

    def put_adapters(self, net: SplitNet) -> SplitNet:
        """Put the adapters into the base."""
        return put_adapters(net, self.rank, self.alpha, self.targets, self.train_a)


_THREAD = threading.local()
"""Has the net that this thread makes, if it makes one."""


def build(
    net: Architecture | str,
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    like: Tensor | None = None,
    again: bool = False,
) -> SplitNet:
    """Build a net that fits the data, with PyTorch's random initial weights; the caller seeds them.

    Args:
        net: the net, or the import path of a class or function, see ``Module``.
        shape: of one input, such as (channels, height, width).
        classes: number of outputs, such as classes.
        like: [2, *shape], two inputs to try the net with; zeros if not given. Token ids are int64, and the
            largest of the data is among them.
        again: whether this process has built it before, and seen that it can be trained.
    """
    if isinstance(net, str):
        net = Module(path=net)
    like = torch.zeros(2, *shape) if like is None else like
    if isinstance(net, LoRA):
        adapted = net.put_adapters(build(net.of, shape, classes, like, again))
        return _try_call(net, _with_weights(net, adapted), like)
    net.check_inputs(like, classes)
    if isinstance(net, Transformer):
        return _try_call(net, _build_watched(net, shape, classes), like)
    if not is_own_net(net):
        known: Any = net.build(shape, classes)
        return _with_weights(net, known)
    try:
        built, like = _build_watched(net, shape, classes), with_numbers(like)
        if not isinstance(built, SplitNet):
            head = net.head if isinstance(net, Module) else ""
            built = split_at_head(built, str(net), classes, like, head)
        else:
            _check_scores(built, str(net), classes, like)
        if not again:
            check_training(built, str(net), like)
            built.uncut = str(net) if parts_differ(built, like) else ""
        return built
    except Exception as error:
        if isinstance(error, UserError) or out_of_memory(error):
            raise
        raised = f"it raises {type(error).__name__}: {error}"
        problem = f"{net} does not work for {classes} classes and {kind_name(like)}"
        raise BadCode("net", problem, raised) from error


def without_adapters(net: Architecture | str) -> Architecture | str:
    """Return a net without adapters."""
    return without_adapters(net.of) if isinstance(net, LoRA) else net


def is_own_net(net: Architecture | str) -> bool:
    """Return whether a net is the user's own or of another package, and none of rayfl's."""
    net = without_adapters(net)
    path = net.path if isinstance(net, Module) else net
    return not path.startswith("rayfl.") if isinstance(path, str) else is_own(type(net))


def _try_call(net: Architecture, built: SplitNet, like: Tensor) -> SplitNet:
    """Call a net once, and return it: lengths of texts, or layers that read others' weights, may not fit."""
    try:
        eval_scores(built, str(net), with_numbers(like))
    except (RuntimeError, IndexError, AttributeError) as error:
        problem = f"{net} does not work for {kind_name(like)}"
        raise BadCode("net", problem, f"it raises {type(error).__name__}: {error}") from error
    return built


def _build_watched(net: Architecture, shape: Shape, classes: int) -> Any:
    """Return what a net of the user's own or of another package builds."""
    before = generators()["NumPy"]
    _watch_addresses()
    _THREAD.net = str(net)
    try:
        built = net.build(shape, classes)
    finally:
        _THREAD.net = ""
    if generators()["NumPy"] != before:
        problem = f"{net} draws from NumPy's global generator where it is made"
        raise BadCode("net", problem, "draw from PyTorch's, which rayfl seeds")
    return _with_weights(net, built)


def _with_weights(net: Architecture, built: Any) -> Any:
    """Return what a net has built, with the weights of its file if it has one."""
    if net.weights:
        share_weights(built)  # which have one memory now, and would have two
        load_weights(built, net.weights, str(net))
    return built


@cache
def _watch_addresses() -> None:
    """Begin, once in a process, to watch what reaches for an address: nothing ends that."""

    def watch(event: str, _: tuple[Any, ...]) -> None:
        if event in ("socket.getaddrinfo", "socket.connect") and (net := getattr(_THREAD, "net", "")):
            problem = f"{net} reaches for the network where it is made, and rayfl downloads nothing"
            raise BadCode("net", problem, "use files at hand")

    sys.addaudithook(watch)


def _check_scores(net: SplitNet, name: str, classes: int, like: Tensor) -> None:
    """Send two inputs through a net, and see that one score per class comes back, from its three parts."""
    scores = eval_scores(net, name, like)
    drop_batch_counts(net)  # of lazy layers, which had none yet
    if (len(scores), scores.shape[-1]) != (2, classes):
        problem = f"{name}: for 2 inputs it returns {tuple(scores.shape)}, not 2 x {classes} scores"
        raise BadCode("net", problem)
    if odd := [entry for entry in net.state_dict() if entry.partition(".")[0] not in ("conv", "fc", "head")]:
        problem = (
            f"{name}: {odd[0]!r} is in none of a SplitNet's parts conv, fc and head, which alone are trained"
        )
        raise BadCode("net", problem, _NO_SPLIT_NET)
    with torch.no_grad():
        parts = net.head(net.fc(net.conv(like)))
    if not torch.allclose(parts, scores, rtol=1e-4, atol=1e-5, equal_nan=True):
        problem = f"{name}: its scores are not head(fc(conv(x))), as those of a SplitNet must be"
        raise BadCode("net", problem, _NO_SPLIT_NET)
