"""Options of nets in their names."""

import sys
import types

import pytest
import torch
from torch import nn

from rayfl.errors import UserError
from rayfl.nets import SplitNet, build

MODULE = "a_users_own_nets_with_options"


def net(
    shape: tuple[int, int, int],
    classes: int,
    width: int = 4,
    scale: float = 1.0,
    bias: bool = True,
    act: str = "relu",
) -> SplitNet:
    hidden = nn.Linear(shape[0] * shape[1] * shape[2], width, bias=bias)
    hidden.weight.data *= scale
    layers = [hidden, nn.ReLU() if act == "relu" else nn.Tanh()]
    return SplitNet(nn.Flatten(), nn.Sequential(*layers), nn.Linear(width, classes))


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    """The import path of a net with options of all types."""
    module = types.ModuleType(MODULE)
    module.net = net  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    return f"{MODULE}.net"


def test_values_have_the_types_of_the_defaults(own: str) -> None:
    built = build(f"{own}( width = 6,scale=0.0, bias=false,act=tanh )", (1, 2, 2), 3)
    assert built.fc[0].weight.shape == (6, 4)  # type: ignore[index]
    assert not built.fc[0].weight.any()  # type: ignore[index]
    assert built.fc[0].bias is None  # type: ignore[index]
    assert isinstance(built.fc[1], nn.Tanh)  # type: ignore[index]
    assert build(f"{own}(bias=True)", (1, 2, 2), 3).fc[0].bias is not None  # type: ignore[index]


def test_without_options_the_defaults_hold(own: str) -> None:
    for name in (own, f"{own}()"):
        assert build(name, (1, 2, 2), 3).fc[0].weight.shape == (4, 4)  # type: ignore[index]
    torch.manual_seed(0)
    first = build("lenet()")
    torch.manual_seed(0)
    assert torch.equal(first.head.weight, build("lenet").head.weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("(widht=3)", "has no option 'widht'; its options and their defaults: width=4, scale=1.0, bias=True"),
        ("(shape=3)", "has no option 'shape'"),
        ("(width=wide)", "option width is 'wide': it must be a whole number"),
        ("(width=2.5)", "option width is '2.5': it must be a whole number"),
        ("(scale=big)", "option scale is 'big': it must be a number"),
        ("(bias=no)", "option bias is 'no': it must be True or False"),
        ("(width=3", "options are written in parentheses after the name"),
        ("(width=3)x", "options are written in parentheses after the name"),
        ("(width=3,)", "options are written in parentheses after the name"),
        ("(width)", "options are written in parentheses after the name"),
        ("(width=3, width=4)", "each of them once"),
        ("(=3)", "options are written in parentheses after the name"),
    ],
)
def test_bad_options_are_refused(own: str, options: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(own + options, (1, 2, 2), 3)


def test_nets_without_options_say_so() -> None:
    with pytest.raises(UserError, match=r"net 'lenet\(G=2\)' has no option 'G'; it has no options"):
        build("lenet(G=2)")


def test_an_unknown_name_with_options_suggests_the_net() -> None:
    with pytest.raises(UserError, match="no net 'FDSEAlexNet'; did you mean 'FDSE-AlexNet'"):
        build("FDSEAlexNet(G=2)")
