"""Low-rank adapters: what they compute, what travels, and how they are merged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from rayfl import Federation, Inline, load_models
from rayfl.commands.export import export
from rayfl.data import Synthetic
from rayfl.errors import BadCode, Conflict, Unknown, UserError
from rayfl.methods import METHODS, FedPer
from rayfl.nets import MLP, Architecture, LoRA, SplitNet, build
from rayfl.nets.adapters import LoRALinear, merge_adapters
from rayfl.training import Net
from tests.support.federations import small
from tests.support.refusals import refused

SHAPE, CLASSES = (1, 4, 4), 4
DATA = Synthetic(train=200, test=80, shape=SHAPE, classes=CLASSES)


class Attending(nn.Module):
    """Attention of two kinds, and layers beside it."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)
        self.block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.last = nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes]."""
        x = x.squeeze(1)
        x = (self.query(x) @ x.transpose(1, 2)).softmax(-1) @ self.value(x)
        return self.last(self.block(self.inner(x, x, x)[0]).flatten(1))


OWN = f"{__name__}.Attending"


def adapted(**options: Any) -> SplitNet:
    """An adapted net of the seed 3."""
    torch.manual_seed(3)
    return build(LoRA(**{"of": MLP(hidden=(6, 5)), "rank": 2, "alpha": 4, **options}), SHAPE, CLASSES)


def federation(output: Path, **changes: Any) -> Federation:
    """A small federation with adapters."""
    settings = {"data": DATA, "net": LoRA(of=OWN, rank=2, targets=["query", "value"]), "clients": 4}
    return small(output, **{**settings, "participation": 1.0, "rounds": 2, **changes})


def test_an_adapter_by_hand() -> None:
    layer = LoRALinear(nn.Linear(3, 2), rank=1, scale=0.5)
    x = torch.tensor([[1.0, 2.0, 3.0]])
    assert torch.equal(layer(x), layer.base(x))
    layer.A.data, layer.B.data = torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([[2.0], [4.0]])
    torch.testing.assert_close(layer(x) - layer.base(x), torch.tensor([[-2.0, -4.0]]))
    torch.testing.assert_close(layer.merge()(x), layer(x))
    assert layer.merge().weight is not layer.base.weight


def test_adapters_begin_as_the_base() -> None:
    torch.manual_seed(3)
    base, net, x = build(MLP(hidden=(6, 5)), SHAPE, CLASSES), adapted(), torch.rand(7, *SHAPE)
    torch.testing.assert_close(net(x), base(x), rtol=0, atol=0)
    bound = 3**0.5 / 4  # of 16 inputs, as PyTorch draws linear layers with a = sqrt(5): 1 / sqrt(16)
    a = net.get_parameter("fc.0.A")
    assert a.shape == (2, 16)
    assert 0.2 < a.abs().max() <= 0.25 < bound
    assert [n for n, p in net.named_parameters() if p.requires_grad] == [
        *("fc.0.A", "fc.0.B", "fc.2.A", "fc.2.B", "head.weight", "head.bias")
    ]


def test_merged_is_the_same_function() -> None:
    net, x = adapted(), torch.rand(7, *SHAPE)
    for layer in net.modules():
        if isinstance(layer, LoRALinear):
            nn.init.normal_(layer.B)
    scores, names = net(x), build(MLP(hidden=(6, 5)), SHAPE, CLASSES).state_dict().keys()
    merged = merge_adapters(net)
    torch.testing.assert_close(merged(x), scores, rtol=0, atol=1e-6)
    assert merged.state_dict().keys() == names


@pytest.mark.parametrize(
    ("targets", "chosen"),
    [
        (None, ["fc.0", "fc.2"]),
        (["2"], ["fc.2"]),
        (["fc.0", "0"], ["fc.0"]),
        (["f*"], ["fc.0", "fc.2"]),
    ],
)
def test_targets_are_names_ends_or_patterns(targets: list[str] | None, chosen: list[str]) -> None:
    net = adapted(targets=targets)
    assert [n for n, m in net.named_modules() if isinstance(m, LoRALinear)] == chosen


@pytest.mark.parametrize(
    ("of", "targets", "kind"),
    [
        (MLP(hidden=(6,)), ["querry"], Unknown),
        (MLP(hidden=(6,)), ["head"], Unknown),  # which is trained whole
        (MLP(hidden=()), None, Unknown),
        (OWN, ["query", "out_proj"], BadCode),
        (OWN, ["linear1"], BadCode),
        (OWN, None, BadCode),
    ],
    ids=str,
)
def test_targets_that_no_adapter_fits_are_refused(
    of: Architecture | str, targets: list[str] | None, kind: type[UserError]
) -> None:
    with refused(kind, "net.targets"):
        build(LoRA(of=of, targets=targets), SHAPE, CLASSES)


def test_adapters_and_head_travel(tmp_path: Path) -> None:
    result = federation(tmp_path).run()
    own = 2 * (2 * 4 + 4 * 2) + 16 * CLASSES + CLASSES
    assert result.summary["up"] == 2 * 4 * 4 * own
    assert sum(t.numel() for t in load_models(tmp_path).server["weights"].values()) == own


@pytest.mark.parametrize("method", ["FedAvg", "Ditto", "FedPer", "FedCO2", "APFL"])
def test_loop_and_stack_agree(method: str, tmp_path: Path) -> None:
    training = small(tmp_path).training
    runs = []
    for execution in ("loop", "stacked"):
        settings = {"net": LoRA(of=MLP(hidden=(6,)), rank=2), "method": METHODS[method]()}
        exact = type(training)(lr=0.1, batch_size=20, precision="float64")
        folder = tmp_path / execution
        federation(folder, engine=Inline(execution=execution), training=exact, **settings).run()
        runs.append(load_models(folder))
    x = torch.rand(5, *SHAPE, dtype=torch.float64)
    loop, stacked = (each.scores(1, x)["personal"] for each in runs)
    torch.testing.assert_close(loop, stacked, rtol=0, atol=1e-9)


def test_the_mean_of_products_is_the_product_of_means_where_a_is_frozen() -> None:
    """Sun et al., "Improving LoRA in privacy-preserving federated learning", ICLR 2024, Section 4."""
    net = Net(lambda: adapted(train_a=False), dtype=torch.float64)
    assert "fc.0.A" in net.frozen
    w = net.initial(0)
    assert w.keys() == {"fc.0.B", "fc.2.B", "head.weight", "head.bias"}
    a, draw = net.frozen["fc.0.A"], torch.Generator().manual_seed(0)
    each = [w.map(lambda t: torch.randn(t.shape, generator=draw, dtype=t.dtype)) for _ in range(3)]
    products = torch.stack([clients["fc.0.B"] @ a for clients in each]).mean(0)
    torch.testing.assert_close(((each[0] + each[1] + each[2]) / 3)["fc.0.B"] @ a, products)


def test_entries_stay_with_the_client_by_name(tmp_path: Path) -> None:
    """FedSA-LoRA: A and the head travel, B stays."""
    federation(tmp_path, method=FedPer(personal=["B"])).run()
    models = load_models(tmp_path)
    assert {*models.state(0)["own"]} == {"conv.query.B", "conv.value.B"}
    assert {*models.server["weights"]} == {"conv.query.A", "conv.value.A", "head.weight", "head.bias"}
    own = [models.state(k)["own"]["conv.query.B"] for k in (0, 1)]
    assert not torch.equal(*own)


def test_a_merged_model_has_the_names_of_its_base(tmp_path: Path) -> None:
    federation(tmp_path, method=METHODS["Ditto"]()).run()
    models, x = load_models(tmp_path), torch.rand(3, *SHAPE)
    export(tmp_path, 2, tmp_path / "merged.safetensors", merged=True)
    base = Attending(SHAPE, CLASSES)
    base.load_state_dict(load_file(tmp_path / "merged.safetensors"))
    torch.testing.assert_close(base.eval()(x), models.scores(2, x)["personal"], rtol=0, atol=1e-5)
    program = export(tmp_path, 2, tmp_path / "merged.pt2", format="torch", merged=True)
    found = torch.export.load(program).module()
    torch.testing.assert_close(found(x), models.scores(2, x)["personal"], rtol=0, atol=1e-5)
    assert not any(name.endswith((".A", ".B")) for name in found.state_dict())
    apart = export(tmp_path, 2, tmp_path / "apart.safetensors")
    assert "query.base.weight" in load_file(apart)


def test_what_has_no_adapters_is_not_merged(tmp_path: Path) -> None:
    federation(tmp_path / "run", net=OWN).run()
    with refused(Conflict, "merged"):
        export(tmp_path / "run", 2, tmp_path / "plain.safetensors", merged=True)


def test_names_that_no_entry_has_are_refused(tmp_path: Path) -> None:
    made = federation(tmp_path, method=FedPer(personal=["B", "hed.*"]))
    with refused(Unknown, "method.personal"):
        made.check(made.federated_data())


class Shared(nn.Module):
    """Two layers under two names each, one of them statistics without parameters."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.first = self.second = nn.Linear(16, 16)
        self.norm = self.same_norm = nn.BatchNorm1d(16, affine=False)
        self.last = nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes]."""
        return self.last(self.norm(self.second(self.first(x.flatten(1)).relu())))


def test_a_layer_of_two_names_has_one_adapter(tmp_path: Path) -> None:
    federation(tmp_path, net=LoRA(of=f"{__name__}.Shared")).run()
    models, x = load_models(tmp_path), torch.rand(3, *SHAPE)
    assert {*models.server["weights"]} == {"conv.first.A", "conv.first.B", "head.weight", "head.bias"}
    written = export(tmp_path, 0, tmp_path / "merged.safetensors", merged=True)
    base = Shared(SHAPE, CLASSES)
    base.load_state_dict(load_file(written))
    torch.testing.assert_close(base.eval()(x), models.scores(0, x)["global"], rtol=0, atol=1e-5)


def weight_normed(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A layer whose weight is computed."""
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(16, 8))
    return nn.Sequential(nn.Flatten(), layer, nn.Linear(8, num_classes))


class Reading(Shared):
    """Reads a layer's weight itself."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes]."""
        return self.last(x.flatten(1) @ self.first.weight.T)


@pytest.mark.parametrize("net", ["weight_normed", "Reading"])
def test_layers_whose_weight_is_computed_or_read_by_others_are_refused(net: str) -> None:
    with pytest.raises(BadCode):
        build(LoRA(of=f"{__name__}.{net}"), SHAPE, CLASSES)
