"""Encoders of Hugging Face's and texts: from folders alone, with padding that changes nothing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from rayfl import Federation, Ray, Training, load_models
from rayfl.data import Table
from rayfl.errors import BadCode, Conflict, Damaged, Missing, UserError
from rayfl.methods import FedPer
from rayfl.nets import LoRA, Transformer, build
from rayfl.training import Net
from tests.support.federations import bytes_of_run, small
from tests.support.refusals import refused

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "green", "blue", "sky", "leaf", "rose", "a", "the"]
PADDING = 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT and a tokenizer of a dozen words."""
    made = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=12,
        pad_token_id=PADDING,
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(made)
    kinds = tokenizers.models, tokenizers.pre_tokenizers, tokenizers.processors
    model = kinds[0].WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = kinds[1].Whitespace()
    tokenizer.post_processor = kinds[2].TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(made / "tokenizer.json"))
    return made


def texts(folder: Path, **options: Any) -> Table:
    """Two hundred texts of two kinds, and a number beside them."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 2, 200)
    rows = [" ".join(rng.choice(WORDS[4:7] if k else WORDS[7:10], rng.integers(1, 5))) for k in kinds]
    frame = pd.DataFrame(
        {"words": rows, "number": rng.random(200), "y": [("thing", "colour")[k] for k in kinds]}
    )
    return Table(frame, **{"text": "words", "tokenizer": str(folder), "length": 8, **options})


def federation(output: Path, folder: Path, **changes: Any) -> Federation:
    """A small federation of texts."""
    net = LoRA(of=Transformer(folder=str(folder)), rank=2, targets=["query", "value"])
    training = Training(lr=0.3, batch_size=16)
    settings = {"data": texts(folder), "net": net, "clients": 4, "participation": 1.0, "rounds": 3}
    return small(output, training=training, **{**settings, **changes})


def test_texts_are_token_ids(folder: Path) -> None:
    rows = pd.DataFrame({"words": ["the sky", "a red red red red rose", "nothing known"], "y": [0, 1, 0]})
    found = Table(rows, text="words", tokenizer=str(folder), length=6, test_fraction=0).load()
    assert found.inputs.dtype == np.int64
    assert found.inputs.tolist() == [
        [2, 11, 7, 3, PADDING, PADDING],
        [2, 10, 4, 4, 4, 3],
        [2, 1, 1, 3, PADDING, PADDING],
    ]
    assert any("1 of 3 texts are cut" in remark for remark in found.remarks)


def test_padding_changes_nothing(folder: Path) -> None:
    net = build(Transformer(folder=str(folder)), (6,), 3, torch.full((2, 6), len(WORDS) - 1)).eval()
    short = torch.tensor([[2, 4, 5, 3]])
    long = torch.nn.functional.pad(short, (0, 5), value=PADDING)
    torch.testing.assert_close(net(long), net(short))
    plain = transformers.AutoModel.from_pretrained(folder)(short).last_hidden_state.mean(1)
    torch.testing.assert_close(net.features(short), plain)
    every = build(Transformer(folder=str(folder), positions=True), (6,), 3, torch.zeros(2, 6).long()).eval()
    torch.testing.assert_close(every(long)[:, :4], every(short))
    assert every(long).shape == (1, 9, 3)


def test_the_base_is_held_and_drawn_from_nothing(folder: Path) -> None:
    like, net = torch.full((2, 8), 11), LoRA(of=Transformer(folder=str(folder)), targets=["query"])
    made = [Net(lambda: build(net, (8,), 2, like), seed=seed) for seed in (0, 1)]
    assert made[0].frozen_digest() == made[1].frozen_digest()
    assert {name.rpartition(".")[2] for name in made[0].initial(0)} == {"A", "B", "weight", "bias"}
    assert made[0].draws
    assert not any("pooler" in name for name in made[0].frozen)


def test_fine_tuning_learns_and_is_the_same_in_all_processes(folder: Path, tmp_path: Path) -> None:
    result = federation(tmp_path / "inline", folder, method=FedPer(personal=["B"])).run()
    assert result.summary["headline"]["figure"] > 0.8
    federation(tmp_path / "ray", folder, method=FedPer(personal=["B"]), engine=Ray(actors=2)).run()
    one, other = (bytes_of_run(tmp_path / name, settings=False) for name in ("inline", "ray"))
    assert one == other
    models = load_models(tmp_path / "ray", data=False)
    x = torch.tensor([[2, 4, 5, 3], [2, 8, 9, 3]])  # colours, things
    colour, thing = models.scores(0, x)["personal"].unbind(1)
    assert (colour - thing)[0] > (colour - thing)[1]
    torch.testing.assert_close(models[0].module()(x), models.scores(0, x)["personal"])
    recorded = json.loads((tmp_path / "ray" / "environment.json").read_text())["code"]
    assert recorded["transformers"] == transformers.__version__
    assert {Path(name).name for name in recorded if name.startswith("file ")} == {
        *("config.json", "model.safetensors")
    }


@pytest.mark.parametrize(
    ("changes", "kind", "place"),
    [
        ({"data": {"x": ["number"]}}, Conflict, "data.text"),
        ({"data": {"tokenizer": None}}, Conflict, "data.text"),
        ({"data": {"y": "words"}}, Conflict, "data.text"),
        ({"data": {"text": None, "tokenizer": None, "x": ["number"]}}, Conflict, "net"),
        ({"data": {"tokenizer": "nowhere"}}, Missing, "tokenizer.json"),
        ({"net": {"folder": "nowhere"}}, Missing, "config.json"),
        ({"net": {"positions": True}}, Conflict, "net"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(
    changes: dict[str, Any], kind: type[UserError], place: str, folder: Path, tmp_path: Path
) -> None:
    def check() -> None:
        net = Transformer(**{"folder": str(folder), **changes.get("net", {})})
        made = federation(tmp_path, folder, data=texts(folder, **changes.get("data", {})), net=net)
        made.check(made.federated_data())

    with pytest.raises(kind) as caught:
        check()
    assert place in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "like", "word"),
    [
        (BadCode, torch.zeros(2, 13).long(), "(13,)"),
        (Conflict, torch.full((2, 6), 12), "token ids"),
    ],
)
def test_texts_beyond_the_encoder_are_refused(
    kind: type[UserError], like: torch.Tensor, word: str, folder: Path
) -> None:
    with refused(kind, "net") as caught:
        build(Transformer(folder=str(folder)), tuple(like.shape[1:]), 2, like)
    assert word in str(caught.value)


def test_damaged_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    net, like = Transformer(folder=str(tmp_path)), torch.zeros(2, 6).long()
    known = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    for config, kept, kind in (
        ({"a": 1}, weights, Damaged),
        (known | {"pad_token_id": None}, weights, Conflict),
        (known | {"model_type": "t5"}, weights, UserError),
        (known | {"quantization_config": {"quant_method": "bitsandbytes"}}, weights, UserError),
        (known, {n: t for n, t in weights.items() if "layer.1" not in n}, Damaged),
        (known | {"hidden_size": 32}, weights, Damaged),
        (
            known | {"model_type": "detr", "backbone": "some/net", "use_pretrained_backbone": True},
            weights,
            UserError,
        ),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(kind):
            build(net, (6,), 2, like)
    (tmp_path / "config.json").write_text(json.dumps(known))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(Damaged):
        texts(tmp_path).load()
