"""Any ``nn.Module`` as a net: how it is called, where its head is, and what is refused."""

import socket
import sys
import types
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet18

from rayfl.errors import BadCode, BadValue, Conflict, Unknown, UserError
from rayfl.federation import federation_of
from rayfl.nets import CNNB, MLP, Architecture, CharLSTM, Module, SplitNet, TokenMLP, build
from rayfl.settings.description import dump_config
from rayfl.training import Net
from tests.support.federations import federation_from, small
from tests.support.metrics import brier
from tests.support.refusals import refused

OWN = "modules_of_ones_own"
TEXTS = torch.tensor([[0, 1, 2, 3], [4, 4, 4, 4]])


class Plain(nn.Module):
    """A net for images of 1x4x4, whose head is not defined last."""

    def __init__(self, classes: int = 3, width: int = 5) -> None:
        super().__init__()
        self.last = nn.Linear(width, classes)
        self.first = nn.Linear(16, width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.act(self.first(x.flatten(1))))
        return out


class Texts(nn.Module):
    """A recurrent net whose head is put to every token before the last is taken."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.out = nn.Linear(6, num_classes)
        self.register_buffer("places", torch.arange(4))
        self.register_buffer("noise", torch.rand(4, 4), persistent=False)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.noise[self.places] * self.scale
        scores: Tensor = self.out(self.lstm(x)[0])
        return scores[:, -1]


class Changed(Plain):
    """``Plain`` with something after its head."""

    def __init__(self, after: nn.Module) -> None:
        super().__init__()
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.after(super().forward(x))
        return out


class Twice(nn.Module):
    """One layer that is both the first and the last."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(num_classes, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(self.layer(x).relu())
        return out


class Auxiliary(Plain):
    """Returns more in train mode."""

    def forward(self, x: Tensor) -> Any:
        out = super().forward(x)
        return (out, out) if self.training else out


class Functional(Plain):
    """Drops inputs by a function, not by a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.1, self.training))


class Drawn(Plain):
    """Drops inputs in evaluation mode, too."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.1, training=True))


def functional(shape: tuple[int, ...], classes: int) -> SplitNet:
    return SplitNet(Functional(5), nn.Sequential(), nn.Linear(5, classes))


def typed(shape: tuple[int, ...], classes: int, width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), width), nn.Linear(width, classes))


def frozen(shape: tuple[int, ...], classes: int) -> nn.Module:
    return typed(shape, classes).requires_grad_(False)


def untyped(size, number):  # type: ignore[no-untyped-def]
    return typed(size, number)


def renamed(size: tuple[int, ...], number: int) -> nn.Module:
    return typed(size, number)


def without(*, num_classes: int, **others: Any) -> nn.Module:
    return Plain(num_classes, **others)


def rectified(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Whose scores are all positive, and so are the head's."""
    net = Changed(nn.ReLU())
    nn.init.ones_(net.last.bias)
    nn.init.zeros_(net.last.weight)
    return net


class Made(Architecture):
    """A user's class that builds a plain module."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return typed(shape, classes)


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(OWN)
    vars(module).update({name: thing for name, thing in globals().items() if not name.startswith("_")})
    module.fixed = lambda shape, classes: Plain(4)  # type: ignore[attr-defined]
    module.soft = lambda shape, classes: Changed(nn.Softmax(1))  # type: ignore[attr-defined]
    module.rectified = rectified  # type: ignore[attr-defined]
    module.same = lambda shape, classes: Changed(nn.Identity())  # type: ignore[attr-defined]
    module.convolved = lambda shape, classes: nn.Conv2d(1, classes, 4)  # type: ignore[attr-defined]
    module.linear = lambda shape, classes: nn.Linear(*shape, classes)  # type: ignore[attr-defined]
    module.two = lambda shape, classes: nn.Bilinear(4, 4, classes)  # type: ignore[attr-defined]
    module.none = lambda shape, classes: None  # type: ignore[attr-defined]
    module.text = "text"  # type: ignore[attr-defined]
    module.shapely = lambda shape: Plain()  # type: ignore[attr-defined]
    module.four = lambda shape, classes: SplitNet(nn.Flatten(), nn.Sequential(), nn.Linear(16, 4))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, OWN, module)


IMAGES = (1, 4, 4)


@pytest.mark.parametrize(
    ("net", "head", "features"),
    [
        (f"{OWN}.Plain", "last", 5),
        (f"{OWN}.typed", "2", 4),
        (f"{OWN}.untyped", "2", 4),
        (f"{OWN}.renamed", "2", 4),
        (f"{OWN}.without", "last", 5),
        (f"{OWN}.same", "last", 5),
        (Made(), "2", 4),
        (Module(path=f"{OWN}.typed", arguments={"width": 9}), "2", 9),
        (Module(path=f"{OWN}.without", arguments={"width": 9}), "last", 9),
        (Module(path=f"{OWN}.Plain", head="last"), "last", 5),
    ],
    ids=str,
)
def test_scores_are_those_of_the_module(net: Architecture | str, head: str, features: int) -> None:
    """With the head apart; a net has the module's parameters, and the head's have another name."""
    torch.manual_seed(0)
    split = build(net, IMAGES, 3)
    torch.manual_seed(0)
    plain: nn.Module = (
        net.build(IMAGES, 3) if isinstance(net, Architecture) else Module(path=net).build(IMAGES, 3)
    )
    x = torch.randn(5, *IMAGES)
    assert split.training
    assert torch.equal(split(x), plain(x))
    assert split.features(x).shape == (5, features)
    assert torch.equal(split.head(split.features(x)), split(x))
    assert {n: v.shape for n, v in split.state_dict().items()} == {
        n.replace(head, "head") if n.startswith(f"{head}.") else f"conv.{n}": v.shape
        for n, v in plain.state_dict().items()
    }
    assert split.plain().state_dict().keys() >= plain.state_dict().keys()  # under its own names again


def test_layers_do_not_overwrite_their_inputs() -> None:
    assert not build(f"{OWN}.Plain", IMAGES, 3).get_submodule("conv.act").inplace


def test_a_linear_layer_alone_is_a_net() -> None:
    net = build(f"{OWN}.linear", (7,), 3)
    assert list(net.state_dict()) == ["head.weight", "head.bias"]
    assert net(torch.zeros(2, 7)).shape == (2, 3)
    assert list(net.plain().state_dict()) == ["weight", "bias"]


def test_classifiers_of_torchvision() -> None:
    """With another number of classes."""
    torchvision, shape = pytest.importorskip("torchvision"), (3, 64, 64)
    net = build("torchvision.models.mobilenet_v3_small", shape, 7)
    plain = torchvision.models.mobilenet_v3_small(num_classes=7)
    count = sum(p.numel() for p in plain.parameters())
    assert sum(p.numel() for p in net.parameters()) == count
    assert net.head.out_features == 7
    assert "num_batches_tracked" not in "".join(net.state_dict())
    assert net(torch.zeros(2, *shape)).shape == (2, 7)


def test_texts_and_constants() -> None:
    """Buffers of whole numbers, and those that are not persistent, are no weights."""
    build_it = lambda: build(f"{OWN}.Texts", (4,), 3, TEXTS)  # noqa: E731
    first, second = Net(build_it), Net(build_it)
    w = first.initial(5)
    assert {n for n in w if n not in w.train_names} == {"conv.scale"}
    assert not {"conv.places", "conv.noise"} & w.keys()
    assert torch.equal(first.eval(w, TEXTS), second(w, TEXTS))  # what is drawn is the same everywhere
    plain = Texts(3)
    plain.load_state_dict(
        {n.removeprefix("conv.").replace("head", "out"): t for n, t in w.items()}
        | {"places": torch.arange(4)}
    )
    plain.noise = first.module.get_buffer("conv.noise")
    torch.testing.assert_close(first(w, TEXTS), plain(TEXTS))
    other = w.map(lambda t: t * 2)
    assert not torch.allclose(first(other, TEXTS), first(w, TEXTS), atol=1e-3)  # the LSTM follows the weights
    first.release()
    assert torch.equal(first(w, TEXTS), second(w, TEXTS))


@pytest.mark.parametrize(("net", "draws"), [("Functional", True), ("functional", True), ("Plain", False)])
def test_what_draws_in_train_mode_is_noted(net: str, draws: bool) -> None:
    assert build(f"{OWN}.{net}", IMAGES, 3).draws == draws


@pytest.mark.parametrize(
    ("net", "kind", "word"),
    [
        (f"{OWN}.fixed", Conflict, "4 outputs"),
        (f"{OWN}.soft", BadCode, "layer 'last'"),
        (f"{OWN}.rectified", BadCode, "layer 'last'"),
        (f"{OWN}.Auxiliary", BadCode, "'tuple' object"),
        (f"{OWN}.Drawn", BadCode, "evaluation mode"),
        (f"{OWN}.frozen", BadCode, "requires_grad"),
        (f"{OWN}.two", BadCode, "TypeError"),
        (f"{OWN}.none", BadCode, "NoneType"),
        (f"{OWN}.Changed", BadCode, "'after'"),
        (f"{OWN}.text", BadCode, "not callable"),
        (f"{OWN}.shapely", BadCode, "does not work"),
        (f"{OWN}.four", BadCode, "(2, 4)"),
        ("torch.nn.Linear", BadValue, "torch.nn.Linear"),
        (Module(path=f"{OWN}.Plain", head="first"), Conflict, "5 outputs"),
        (Module(path=f"{OWN}.Plain", arguments={"height": 3}), BadCode, "argument 'height'"),
        (Module(path=f"{OWN}.untyped", arguments={"height": 3}), BadCode, "must say that it returns a net"),
        (Module(path="torchvision.models.get_model", arguments={"name": "nowhere"}), BadCode, "nowhere"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(net: Architecture | str, kind: type[UserError], word: str) -> None:
    with refused(kind, "net") as caught:
        build(net, IMAGES, 3)
    assert word in str(caught.value)


@pytest.mark.parametrize(
    "net",
    [Module(path=f"{OWN}.Plain", head="lost"), Module(path=f"{OWN}.Plain", head="act"), f"{OWN}.convolved"],
    ids=str,
)
def test_a_head_that_is_no_linear_layer_is_refused(net: Architecture | str) -> None:
    with refused(Unknown, "net.head"):
        build(net, IMAGES, 3)


def test_a_layer_that_is_called_twice_is_no_head() -> None:
    with refused(BadCode, "net"):
        build(f"{OWN}.Twice", (3,), 3)


@pytest.mark.parametrize("name", ["weights", "pretrained", "weights_backbone"])
def test_weights_that_would_be_fetched_are_refused(name: str) -> None:
    with refused(BadValue, f"net.arguments.{name}"):
        Module(path="torchvision.models.resnet18", arguments={name: "DEFAULT"})


def fetching(weights: str | None = "DEFAULT", pretrained: bool = False) -> nn.Module:
    assert weights is None
    assert not pretrained
    return Plain()


def test_weights_that_are_fetched_by_default_are_not() -> None:
    assert build(f"{OWN}.fetching", IMAGES, 3).head.out_features == 3


class Counter:
    calls = 0

    def __call__(self, shape: "of_type_checkers", classes: int) -> list[int] | None:  # type: ignore # noqa: F821
        Counter.calls += 1


counter = Counter()


def test_what_says_that_it_returns_no_net_is_not_called() -> None:
    with refused(BadCode, "net"):
        build(f"{OWN}.counter", IMAGES, 3)
    assert not Counter.calls


def connected(shape: tuple[int, ...], classes: int) -> nn.Module:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        socket.create_connection(listening.getsockname()).close()
    return Plain(classes)


def test_a_net_is_made_without_the_network() -> None:
    """The same function may be called elsewhere."""
    with refused(BadCode, "net"):
        build(f"{OWN}.connected", IMAGES, 3)
    assert connected(IMAGES, 3)


def test_as_a_configuration_names_it(tmp_path: Path) -> None:
    options = ["--net", "Module", "--net.path", f"{OWN}.without", "--net.head", "last"]
    federation = federation_from([*options, "--net.arguments", "{width: 9}"])
    assert federation.net == Module(path=f"{OWN}.without", head="last", arguments={"width": 9})
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(federation))
    assert federation_from(["--config", str(path)]).net == federation.net
    assert federation_from(["--net", f"{OWN}.Plain"]).net == f"{OWN}.Plain"
    assert str(Module(path="a.b")) == "a.b"


def test_python_may_give_what_a_path_names(tmp_path: Path) -> None:
    """The class or function itself, of nets and of metrics, unless no configuration could name it."""
    federation = small(tmp_path, net=[Plain, resnet18, CNNB()], metrics=[brier, "f1"])
    assert federation.net[:2] == [f"{__name__}.Plain", "torchvision.models.resnet.resnet18"]
    assert federation.metrics == ["tests.support.metrics.brier", "f1"]
    assert Module(path=without).path == federation_of({"net": without}).net == f"{__name__}.without"

    def inner(shape: tuple[int, ...], classes: int) -> nn.Module:
        return Plain(classes)

    other = wraps(without)(lambda **_: Plain())  # whose path names another
    for net in (Plain(), inner, partial(Plain), other, nn.Linear, CNNB):
        with refused(BadValue, "net"):
            small(tmp_path, net=[net])
    with refused(BadValue, "metrics"):
        small(tmp_path, metrics=[F.cross_entropy])


# ---- the nets for other inputs that come with rayfl


def test_mlp() -> None:
    net = build(MLP(hidden=[7, 5]), (2, 3), 4)
    assert [tuple(p.shape) for p in net.parameters()] == [(7, 6), (7,), (5, 7), (5,), (4, 5), (4,)]
    assert build(MLP(hidden=()), (9,), 4).head.in_features == 9
    assert MLP(hidden=[7, 5]) == MLP(hidden=(7, 5))
    with refused(Conflict, "net"):
        build(MLP(), (4,), 5, TEXTS)


@pytest.mark.parametrize("kind", [TokenMLP, CharLSTM])
def test_nets_for_texts(kind: type[TokenMLP | CharLSTM]) -> None:
    net = build(kind(), (4,), 5, TEXTS)
    assert net.get_parameter("conv.0.weight" if kind is TokenMLP else "conv.embed.weight").shape[0] == 5
    assert net(TEXTS).shape == (2, 5)
    with refused(Conflict, "net"):
        build(kind(), (4,), 4, TEXTS)
    assert build(kind(vocabulary=5), (4,), 4, TEXTS)(TEXTS).shape == (2, 4)
    with refused(Conflict, "net"):
        build(kind(), (4,), 5, torch.zeros(2, 4))
    with refused(Conflict, "net"):
        build(kind(), (4, 4), 5, torch.zeros(2, 4, 4, dtype=torch.int64))


def test_token_mlp_by_hand() -> None:
    net = build(TokenMLP(embedding=2, hidden=3), (4,), 5, TEXTS)
    p = dict(net.named_parameters())
    z = torch.cat([p["conv.0.weight"][TEXTS[:, k]] for k in range(4)], 1)
    h = (z @ p["fc.0.weight"].T + p["fc.0.bias"]).tanh()
    torch.testing.assert_close(net(TEXTS), h @ p["head.weight"].T + p["head.bias"])


def test_char_lstm_by_hand() -> None:
    net = build(CharLSTM(embedding=2, hidden=3, layers=1), (4,), 5, TEXTS)
    p = {n.rpartition(".")[2]: t for n, t in net.conv.named_parameters()}
    h = c = torch.zeros(2, 3)
    for k in range(4):
        x = p["weight"][TEXTS[:, k]]
        gates = x @ p["weight_ih_l0"].T + h @ p["weight_hh_l0"].T + p["bias_ih_l0"] + p["bias_hh_l0"]
        i, f, g, o = gates.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    torch.testing.assert_close(net.features(TEXTS), h)
