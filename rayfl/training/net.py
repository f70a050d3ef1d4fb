"""Nets called as functions of their weights."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from rayfl.errors import BadCode
from rayfl.nets import CUTS, SplitNet
from rayfl.nets.split import own_entries
from rayfl.randomness import seed_of
from rayfl.training.dropout import put_dropout
from rayfl.training.params import Params

Cut = Literal["last_layer", "fc_stack"]


class Batch(NamedTuple):
    """What a loss gets: inputs x [B, ...], targets y [B, ...], and the step's noise key (0-d int64).

    ``counts`` are the client's training samples per class, int64 [classes], where the run's loss uses them.
    """

    x: Tensor
    y: Tensor
    key: Tensor
    counts: Tensor | None = None


PARTS = ("conv", "fc", "head")


class Net:
    """A net without weights of its own: ``net(w, x)``, ``net.features(w, x)``, ``net.head(w, z)``.

    Only what is frozen it holds, once for all clients of a process: parameters without ``requires_grad``, and
    the statistics of modules all of whose parameters are frozen, which compute in evaluation mode. They are
    no entries of Params, so that they neither travel nor change.

    ``cut`` says where extractor and head part: ``last_layer`` (the head is the last linear layer) or
    ``fc_stack`` (the head is everything after the flatten). Names in Params do not depend on it.

    Attributes:
        eval: the twin that leaves BatchNorm statistics alone: for teachers, frozen heads and evaluation.
        has_batch_norm: whether training reads or writes batch statistics.
        modules_of: name of an entry -> the module it belongs to.
        entry_at: path of a weight in the module -> the name of its entry. Paths that share a weight have one,
            the head's if it is among them, or else the first.
        frozen: path in the module -> what is held there.
        draws: whether it draws from PyTorch's global generator in train mode.

    Args:
        build: builds the net from PyTorch's generator.
        seed: of the initial and of the frozen weights.
        dtype: of all weights.
        bfloat16: whether the net computes in bfloat16 where that is safe.
        again: in place of ``build`` from the second time on.
    """

    eval: Net

    def __init__(
        self,
        build: Callable[[], SplitNet],
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        bfloat16: bool = False,
        again: Callable[[], SplitNet] | None = None,
    ) -> None:
        self._build = build
        self._seed = seed
        self._dtype = dtype
        self._bfloat16 = bfloat16
        module = self._draw_module(seed)
        self._build = again or build
        self._uncut = module.uncut
        self._name_entries(module)
        self._hooked = [each for each in hooks_of(module) if each[0] in self.entry_at]
        self.draws = put_dropout(module) or module.draws
        spare_padding(module)
        if bfloat16:
            widen_norms(module)
            module.head.register_forward_hook(_as_float32)
        self._set_module(module.train())
        self._initial = self._weights_of(module)
        self.eval = self._twin()
        self.eval.eval = self.eval

    def rebuilt(self) -> Net:
        """Return another net of the same making, on the CPU, which remembers nothing of this one's calls."""
        other = Net(self._build, seed=self._seed, dtype=self._dtype, bfloat16=self._bfloat16)
        other.draws = self.draws  # which is noted where a net is built for the first time
        return other

    def training_only(self, names: Collection[str]) -> Net:
        """Return a twin of which only these layers are in train mode.

        Args:
            names: of layers; their own parts follow their own names.
        """
        twin = self._twin()
        twin.module.training = True  # it counts as training, see _refuse_renewal; the layers below decide
        for name in {*names} - self._frozen_layers:
            twin.module.get_submodule(name).training = True
        return twin

    def frozen_digest(self) -> str | None:
        """Return a SHA-256 of what is frozen, as hexadecimal digits; None where nothing is."""
        found = hashlib.sha256()
        for path, tensor in self.frozen.items():
            found.update(f"{path}\0{tensor.dtype}{[*tensor.shape]}".encode())
            found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return found.hexdigest() if self.frozen else None

    def _draw_module(self, seed: int, *counters: int) -> SplitNet:
        """Build the module from the stream (seed, "init", counters)."""
        with torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(seed_of(seed, "init", *counters))
            return self._build().to(self._dtype)

    def _weights_of(self, module: SplitNet) -> Params:
        """Return copies of a module's weights, but for what is frozen."""
        tensors = {name: _tensor_at(module, name).detach().clone() for name in self.modules_of}
        return Params(tensors, self.train_names)

    def _twin(self) -> Net:
        """Return a net of the same entries in evaluation mode: another module, which has the same tensors."""
        own = (t for part in self.module.modules() for t in (part._parameters | part._buffers).values())
        twin = copy.copy(self)
        twin._set_module(copy.deepcopy(self.module, {id(t): t for t in own if t is not None}).eval())
        return twin

    def _name_entries(self, module: SplitNet) -> None:
        """Name the entries of Params, and tell apart what is frozen."""
        self._frozen_layers = frozen_modules(module) | module.frozen_layers
        self.frozen, entries = dict[str, Tensor](), dict[str, Tensor]()
        for prefix, part in module.named_modules():
            for own in own_entries(part):
                tensor, path = getattr(part, own), f"{prefix}.{own}" if prefix else own
                trained = (
                    tensor.requires_grad
                    if isinstance(tensor, nn.Parameter)
                    else prefix not in self._frozen_layers
                )
                (entries if trained else self.frozen)[path] = tensor
        paths = sorted(entries, key=lambda path: not path.startswith("head."))
        name_of = {id(entries[path]): path for path in reversed(paths)}
        self.entry_at = {path: name_of[id(tensor)] for path, tensor in entries.items()}
        names = [path for path, name in self.entry_at.items() if name == path]
        self.train_names = frozenset(name for name in names if entries[name].requires_grad)
        self._names = {  # which methods ask for in each scoring
            (cut, side): frozenset(n for n in names if (n.partition(".")[0] in parts) == side)
            for cut, parts in CUTS.items()
            for side in (True, False)
        }

    def _set_module(self, module: SplitNet) -> None:
        """Compute with a module that has the entries of these names."""
        self.module = module
        layers = dict(module.named_modules())
        for name in self._frozen_layers:
            if layers[name]._buffers:  # statistics, such as BatchNorm's, that would change
                layers[name].training = False
        normed = {
            n.partition(".")[0] for n in layers.keys() - self._frozen_layers if is_batch_norm(layers[n])
        }
        self.has_batch_norm = bool(normed)
        self._normed = frozenset(normed)
        # Where each entry of a part lives: setting them once per fit, not at every call as functional_call
        # does, saves a fiftieth of a small net's step.
        self._slots: dict[str, list[tuple[str, dict[str, Any], str]]] = {part: [] for part in PARTS}
        self.modules_of = dict[str, nn.Module]()
        for path, entry in self.entry_at.items():
            above, _, own = path.rpartition(".")
            owner = module.get_submodule(above)
            slots = owner._parameters if own in owner._parameters else owner._buffers
            self._slots[path.partition(".")[0]].append((entry, slots, own))
            if path == entry:
                self.modules_of[entry] = owner
        self._loaded: dict[str, Params | None] = dict.fromkeys(PARTS)
        recurrent = [(n, m) for n, m in layers.items() if isinstance(m, nn.RNNBase)]
        self._recurrent = {
            part: [m for n, m in recurrent if f"{n}.".startswith(f"{part}.")] for part in PARTS
        }

    def to(self, device: torch.device) -> None:
        """Move what the modules hold besides their entries to a device: frozen weights, and constants."""
        for net in (self, self.eval):
            net.module.to(device)

    def initial(self, seed: int, *counters: int) -> Params:
        """Return the initial weights, or draw others from the stream (seed, "init", counters)."""
        if (seed, *counters) == (self._seed,):
            return self._initial
        return self._weights_of(self._draw_module(seed, *counters))

    def names(self, cut: Cut, part: Literal["features", "head"]) -> frozenset[str]:
        """Return the names of the extractor's or the head's entries under a cut."""
        return self._names[cut, part == "head"]

    def __call__(self, w: Params, x: Tensor) -> Tensor:
        """Return the logits, [B, classes], of inputs x, [B, ...]."""
        self._refuse_renewal(PARTS, w)
        self._load(PARTS, w)
        scores: Tensor = self._run_modules([self.module], x)
        return scores

    def features(self, w: Params, x: Tensor, cut: Cut = "last_layer") -> Tensor:
        """Return the head's input, [B, d], of inputs x, [B, ...]."""
        return self._run([p for p in PARTS if p not in CUTS[cut]], w, x)

    def head(self, w: Params, z: Tensor, cut: Cut = "last_layer") -> Tensor:
        """Return the logits, [B, classes], of features z, [B, d]; ``w`` needs the head's entries only."""
        return self._run(CUTS[cut], w, z)

    def watch(self, w: Params, x: Tensor, layers: Sequence[str]) -> tuple[Tensor, list[Tensor]]:
        """Return the logits, [B, classes], of inputs x, and what goes into each of these layers."""
        seen: dict[str, Tensor] = {}

        def keep(name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen[name] = inputs[0]

        watched = {name: self.module.get_submodule(name) for name in layers}
        hooks = [layer.register_forward_pre_hook(partial(keep, name)) for name, layer in watched.items()]
        try:
            scores = self(w, x)
        finally:
            for hook in hooks:
                hook.remove()
        return scores, [seen[name].float() if self._bfloat16 else seen[name] for name in layers]

    def _run(self, parts: Sequence[str], w: Params, x: Tensor) -> Tensor:
        if self._uncut and self.module.training:
            raise BadCode(
                "net",
                f"{self._uncut} has code after its head that acts in training alone, and the method asks for "
                "features and head apart: leave that code out, or choose a method that trains the whole net",
            )
        self._refuse_renewal(parts, w)
        self._load(parts, w)
        return self._run_modules([getattr(self.module, part) for part in parts], x)

    def _run_modules(self, modules: Sequence[nn.Module], x: Tensor) -> Tensor:
        """Return what modules, one after another, make of inputs."""
        if not self._bfloat16:
            for module in modules:
                x = module(x)
            return x
        # Without the cache: it would keep what a teacher has cast without gradients for the net in training.
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            for module in modules:
                x = module(x)
        return x.float()

    def _load(self, parts: Sequence[str], w: Params) -> None:
        """Let the module compute with the tensors of ``w``: they are referred to, not copied."""
        for part in parts:
            if self._loaded[part] is not w:
                self._loaded[part] = None
                try:
                    for name, owner, own in self._slots[part]:
                        owner[own] = w.tensors[name]
                except KeyError:
                    if name.startswith(f"{part}."):
                        raise
                    problem = f"shares {name!r} with its {part}, which the method computes without it"
                    raise BadCode(
                        "net", problem, "choose another method, or share no weights there"
                    ) from None
                for layer in self._recurrent[part]:  # which keep a list of their weights besides
                    layer._flat_weights = [layer._parameters[own] for own in layer._flat_weights_names]
                self._loaded[part] = w
        for name, parameter, hooks in self._hooked:
            tensor = w.tensors.get(self.entry_at[name])  # of a part that is not called it may lack
            if tensor is not None and tensor.requires_grad and not tensor._backward_hooks:
                parameter.data = tensor.detach()  # hooks may hold on to the parameter
                for hook in hooks:
                    tensor.register_hook(hook)

    def release(self) -> None:
        """Let go of the weights last computed with, here and in the eval twin.

        They may be a whole stack of clients', in the wrappers of a vmap that has ended.
        """
        for net in (self, self.eval):
            for part in PARTS:
                net._loaded[part] = None
                for _, owner, own in net._slots[part]:
                    owner[own] = None
                for layer in net._recurrent[part]:
                    layer._flat_weights = [None] * len(layer._flat_weights_names)

    def _refuse_renewal(self, parts: Sequence[str], w: Params) -> None:
        if self._normed and self.module.training and not w.live and not self._normed.isdisjoint(parts):
            raise RuntimeError(
                "a train-mode call would change the BatchNorm statistics of weights that are not being "
                "trained: use net.eval for teachers, frozen heads and evaluation; weights that a loss "
                "computes from those in training take their place by w.replace(...)"
            )


def only_net(
    nets: Iterable[Net], scores: Callable[[], Tensor | None], x: Tensor
) -> tuple[Net, Params] | None:
    """Return the net that gives some scores, and its weights; None where it is not one net alone.

    Args:
        nets: those that may be called, in evaluation mode.
        scores: calls them, and returns the scores; None stands for what the first whole net puts out.
        x: the inputs.
    """
    calls: list[tuple[Net, str, Params, Tensor, Tensor]] = []

    def note(net: Net, part: str, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        parts = [part] if part else PARTS  # a whole net is all three, whatever it calls within
        ends = [inputs[0], *(torch.empty(0) for _ in parts[1:]), output]
        for each, start, end in zip(parts, ends[:-1], ends[1:], strict=True):
            w = net._loaded[each]
            assert w is not None
            calls.append((net, each, w, start, end))

    with ExitStack() as hooks, torch.no_grad():
        for net in nets:
            for part in ("", *PARTS):
                hook = net.module.get_submodule(part).register_forward_hook(partial(note, net, part))
                hooks.enter_context(hook)
        put_out = scores()
    for end in [c[-1] for c in calls if c[1] == "head"] if put_out is None else [put_out]:
        tensors: dict[str, Tensor] = {}
        for wanted in reversed(PARTS):
            found = [(net, w, z) for net, part, w, z, out in calls if part == wanted and out is end]
            if not found:
                break
            net, w, end = found[-1]  # a whole net comes after the layers that it calls
            tensors |= {name: value for name, value in w.items() if name.startswith(f"{wanted}.")}
        else:
            if end is x:
                return net, Params(tensors, net.train_names)
    return None


def hooks_of(module: nn.Module) -> list[tuple[str, nn.Parameter, list[Callable[[Tensor], Tensor | None]]]]:
    """Return the parameters that have hooks on their gradients, by name, with these in their order."""
    for name, parameter in module.named_parameters():
        if parameter._post_accumulate_grad_hooks:
            raise BadCode(
                f"parameter {name!r}",
                "of the net has a hook of register_post_accumulate_grad_hook, and rayfl puts no gradients "
                "into .grad: use register_hook, which changes a gradient before that",
            )
    named = module.named_parameters()
    return [(n, p, [*p._backward_hooks.values()]) for n, p in named if p._backward_hooks]


def spare_padding(module: nn.Module) -> None:
    """Let no embedding train the row of its padding, as PyTorch does where many clients go into one call."""
    for layer in module.modules():
        if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
            layer.register_forward_hook(_without_padding, with_kwargs=True)


def _without_padding(
    layer: nn.Embedding, inputs: tuple[Tensor, ...], named: Mapping[str, Tensor], output: Tensor
) -> Tensor:
    """Return the embeddings without gradients where there is padding."""
    ids = inputs[0] if inputs else named["input"]
    assert layer.padding_idx is not None
    return torch.where(torch.eq(ids, layer.padding_idx).unsqueeze(-1), output.detach(), output)


def widen_norms(module: nn.Module) -> None:
    """Let BatchNorm layers compute in float32 where many clients go into one call on the CPU.

    PyTorch takes no inputs in bfloat16 there.
    """
    for layer in module.modules():
        if is_batch_norm(layer):
            layer.register_forward_pre_hook(_in_float32)


def _as_float32(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Return the scores in float32, so that what a net returns is what its last layer has put out."""
    return output.float()


def _in_float32(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the inputs, in float32 if they are those of several clients on the CPU."""
    return tuple(x.float() if is_functorch_wrapped_tensor(x) and x.is_cpu else x for x in inputs)


def frozen_modules(net: nn.Module) -> frozenset[str]:
    """Return the names of the modules of which no parameter is trained, and of all that is within them."""
    found = set[str]()
    for name, module in net.named_modules():
        trains = [parameter.requires_grad for parameter in module.parameters()]
        if (name and name.rpartition(".")[0] in found) or (trains and not any(trains)):
            found.add(name)
    return frozenset(found)


def _tensor_at(module: nn.Module, path: str) -> Tensor:
    above, _, own = path.rpartition(".")
    tensor: Tensor = getattr(module.get_submodule(above), own)
    return tensor


def is_batch_norm(module: nn.Module) -> bool:
    """Return whether a module is a BatchNorm layer of any dimension."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm)
