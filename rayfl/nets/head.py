"""Plain modules as nets of extractor and head: the head is their last linear layer."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rayfl.errors import BadCode, Conflict, Unknown
from rayfl.nets.memory import attributes, buffers, changed_value, check_batches, check_weights, generators
from rayfl.nets.split import SplitNet
from rayfl.system.text import short_repr

_BY_PROCESS = "so that results depend on which process has a client"


def split_at_head(module: nn.Module, name: str, classes: int, like: Tensor, head: str = "") -> SplitNet:
    """Return a module as a ``SplitNet`` of all but its head, nothing, and its head.

    The head is the last linear layer that a trial calls. With the head apart the scores must be those of the
    whole, and with the head's output negated they must be negative: what comes after it, such as a softmax or
    ReLU, would be lost.

    Args:
        module: maps inputs [B, ...] to scores [B, classes].
        name: of the net, for errors.
        classes: number of classes.
        like: two inputs to try it with, see :func:`with_numbers`.
        head: name of the head within the module, if it is not to be found.
    """
    called: list[str] = []
    hooks = [
        layer.register_forward_hook(partial(_note, called, path))
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    scores = eval_scores(module, name, like)
    for hook in hooks:
        hook.remove()
    path = head or (called[-1] if called else "")
    linear = dict(module.named_modules()).get(path)
    if not isinstance(linear, nn.Linear):
        problem = f"{head!r} is no nn.Linear of {name}, and methods need one at its end"
        raise Unknown("net.head", problem, f"it calls {', '.join(map(repr, called)) or 'none'}")
    if linear.out_features != classes:
        problem = f"{name}: its last layer has {linear.out_features} outputs, and the data need {classes}"
        remedy = "write a function (shape, classes) that makes the net, or name the argument in net.arguments"
        raise Conflict("net", problem, remedy)
    with linear.register_forward_hook(lambda module, inputs, output: -output):
        negated = eval_scores(module, name, like)
    net = SplitNet(_without_layer(module, path), nn.Sequential(), linear)
    net.head_name = path
    with torch.no_grad():
        features = net.eval().features(like)
        same = features.dim() >= 2 and torch.allclose(net.head(features), scores, rtol=1e-4, atol=1e-5)
    if not same or not torch.allclose(negated, -scores):
        problem = f"{name}: its scores are not what its head, the linear layer {path!r}, makes of [B, ..., d]"
        remedy = "leave out what follows it, such as a softmax, and call it once; or name another as net.head"
        raise BadCode("net", problem, remedy)
    return net


def check_training(net: SplitNet, name: str, like: Tensor) -> None:
    """Put a net in train mode, and refuse one that fails or has nothing to train there; note if it draws.

    PyTorch's own layers are left in eval mode: those that draw are replaced or noted where they are used.
    """
    check_batches(net.eval(), name, like)
    trained = copy.deepcopy(net.train())
    for layer in trained.modules():
        if type(layer).__module__.startswith(("torch.", "torchvision.ops.")):
            layer.training = False
    weights, constants = buffers(trained, weights=True), buffers(trained, weights=False)
    constants = {entry: buffer.clone() for entry, buffer in constants.items()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = generators()
        trained(like)
        drawn = [whose for whose, state in generators().items() if state != before[whose]]
        replaced = [n for n, b in buffers(trained, weights=True).items() if weights.get(n) is not b]
        changed, first = changed_value(constants, buffers(trained, weights=False)), attributes(trained)
        trained.load_state_dict(net.state_dict(), strict=False)  # so that what differs now is no weight
        trained(like)
    if "NumPy" in drawn:
        problem = f"{name} draws from NumPy's global generator in train mode, {_BY_PROCESS}"
        raise BadCode("net", problem, "draw from PyTorch's, which rayfl seeds")
    net.draws = "PyTorch" in drawn
    if replaced:
        problem = f"{name} replaces its buffer {replaced[0]!r} in train mode by another tensor, which is lost"
        remedy = f"write into the buffer, as self.{replaced[0].rpartition('.')[2]}.copy_(...) does"
        raise BadCode("net", problem, remedy)
    if changed := changed or changed_value(first, attributes(trained)):
        problem = f"{name} changes {changed!r} in train mode, which clients do not keep, {_BY_PROCESS}"
        raise BadCode("net", problem, "write into a buffer of floats (self.register_buffer)")
    if not any(parameter.requires_grad for parameter in net.parameters()):
        raise BadCode("net", f"{name} has nothing to train: requires_grad is False for all its parameters")
    check_weights(copy.deepcopy(net).eval(), name, like)


def parts_differ(net: SplitNet, like: Tensor) -> bool:
    """Return whether the three parts of a net, in train mode, give other scores or gradients than the whole.

    Then there is code after the head, or in a forward of the net's own, that acts in training alone.
    """
    whole = _trained(net, like, whole=True)
    try:
        parts = _trained(net, like, whole=False)
        return not torch.allclose(parts, whole, rtol=1e-4, atol=1e-5, equal_nan=True)
    except Exception:  # what is right for scores need not work for features
        return True


def eval_scores(net: nn.Module, name: str, like: Tensor) -> Tensor:
    """Return what a net makes of two inputs in eval mode, in which it must not draw."""
    net.eval()
    before = generators()
    lazy = any(map(nn.parameter.is_lazy, net.parameters()))  # whose weights are drawn in the first call
    with torch.no_grad():
        scores = net(like.float() if like.is_floating_point() else like)
    if generators() != before and not lazy:
        problem = f"{name} draws random numbers in evaluation mode, {_BY_PROCESS}"
        raise BadCode("net", problem, "draw only where self.training is true")
    if not isinstance(scores, Tensor):
        remedy = "write a module that returns that alone, as in `return self.net(x).logits`"
        raise BadCode("net", f"{name} returns {short_repr(scores)} and not the tensor of its scores", remedy)
    return scores


def with_numbers(like: Tensor) -> Tensor:
    """Return two inputs that are no zeros, which would hide what comes after the head."""
    if not like.is_floating_point():
        return like
    return torch.rand(like.shape, generator=torch.Generator().manual_seed(0))


def kind_name(like: Tensor) -> str:
    """Name inputs [2, ...] like these."""
    shape = tuple(like.shape[1:])
    if like.is_floating_point():
        return f"inputs of shape {shape}"
    return f"token ids of shape {shape} up to {int(like.max())}"


def _trained(net: SplitNet, like: Tensor, whole: bool) -> Tensor:
    """Return a net's scores in train mode and its gradients, as the whole or as its parts, flat."""
    net = copy.deepcopy(net).train()
    with torch.random.fork_rng(devices=[]):  # so that both ways draw the same
        scores = net(like) if whole else net.head(net.fc(net.conv(like)))
    trained = [p for p in net.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(scores.sum(), trained, materialize_grads=True)
    return torch.cat([each.flatten() for each in (scores, *gradients)])


def _note(called: list[str], path: str, *_: Any) -> None:
    called.append(path)


def _without_layer(module: nn.Module, path: str) -> nn.Module:
    """Return a module that hands on what goes into one of its layers, which may be itself."""
    if not path:
        return nn.Identity()
    module.set_submodule(path, nn.Identity())
    return module
