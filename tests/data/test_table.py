"""Tables: what columns become, by training rows alone, beside scikit-learn and by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from rayfl import Federation, Inline, Training, load_models, resumed
from rayfl.commands.export import main as export
from rayfl.data import ArrayFiles, FederatedData, Table
from rayfl.errors import BadData, Conflict, Damaged, Missing, Shortage, Unknown
from rayfl.nets import MLP
from tests.support.refusals import refused

RNG = np.random.default_rng(0)
N = 120
FRAME = pd.DataFrame(
    {
        "hospital": RNG.choice(["north", "south", "east"], N),
        "age": RNG.integers(20, 90, N),
        "sex": RNG.choice(["f", "m"], N),
        "smokes": RNG.random(N) < 0.3,
        "dose": RNG.normal(100, 40, N).round(1),
        "outcome": RNG.choice(["well", "ill"], N),
    }
)
HOLED = FRAME.assign(dose=FRAME["dose"].mask(FRAME.index.isin([3, 7])))
WRITERS: dict[str, Any] = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    "parquet": lambda frame, path: frame.to_parquet(path),
}


def table(frame: Any = FRAME, **options: Any) -> Table:
    return Table(frame, **({"y": "outcome", "users": "hospital"} | options))


@pytest.mark.parametrize("ending", WRITERS)
def test_a_file_is_read_as_the_frame_from_which_it_was_written(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"patients.{ending}"
    WRITERS[ending](FRAME, path)
    found, wanted = (each.federate(None, 0) for each in (table(None, train=str(path)), table()))
    np.testing.assert_allclose(found.dataset.inputs, wanted.dataset.inputs, rtol=1e-6)
    assert found.dataset.labels.tolist() == wanted.dataset.labels.tolist()
    assert found.dataset.class_names == ("ill", "well")
    assert found.dataset.user_names == ("east", "north", "south")
    assert len(found) == 3


def test_columns_are_those_of_scikit_learn_fitted_on_training_rows() -> None:
    data = table(HOLED, missing="mean").federate(None, 0)
    train = np.sort(data.held.indices["train"])
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    values = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = [("age", numbers, ["age"]), ("sex", values, ["sex"]), ("rest", numbers, ["smokes", "dose"])]
    frame = HOLED.astype({"smokes": float})
    expected = ColumnTransformer(columns).fit(frame.iloc[train]).transform(frame)
    np.testing.assert_allclose(data.dataset.inputs, expected, rtol=1e-5, atol=1e-6)
    assert [column.name for column in data.encoding.columns] == ["age", "sex", "smokes", "dose"]
    assert "inputs: age (number), sex (f, m), smokes (number), dose (number)" in data.remarks


@pytest.mark.parametrize("standardise", ["all", "client"])
def test_nothing_of_test_rows_is_in_the_inputs_of_training(standardise: str) -> None:
    """Their values may be anything: a text that nobody else has, and numbers out of all proportion."""
    options = {"standardise": standardise, "missing": "mean"}
    before = table(HOLED, **options).federate(None, 0)
    train, test = (before.held.indices[split] for split in ("train", "test"))
    odd = HOLED.copy()
    odd.loc[test, ["age", "sex", "dose"]] = [1_000_000, "other", np.nan]
    after = table(odd, **options).federate(None, 0)
    assert after.held.indices["train"].tolist() == train.tolist()
    np.testing.assert_array_equal(after.dataset.inputs[train], before.dataset.inputs[train])
    assert after.dataset.inputs.shape == before.dataset.inputs.shape
    assert not after.dataset.inputs[test, 1:3].any()


def test_each_client_has_scales_of_its_own_and_new_ones_those_of_all() -> None:
    data = table(standardise="client").federate(None, 0)
    for client in data.clients:
        own = data.dataset.inputs[client.train][:, [0, 4]]
        np.testing.assert_allclose(own.mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(own.std(0), 1, rtol=1e-5)
    settings = {"net": MLP(hidden=[2]), "engine": Inline(), "quiet": True}
    held = Federation(data=table(standardise="client"), unseen_clients=1, **settings).federated_data()
    seen = FRAME["age"].iloc[np.concatenate([client.train for client in held.clients[:2]])]
    own = held.clients[2].test
    expected = (FRAME["age"].iloc[own] - seen.mean()) / seen.std(ddof=0)
    np.testing.assert_allclose(held.dataset.inputs[own, 0], expected, rtol=1e-5)
    plain = table(standardise="none").federate(None, 0)
    np.testing.assert_array_equal(plain.dataset.inputs[:, 0], FRAME["age"])


def test_missing_values_are_named_until_somebody_says_what_to_do() -> None:
    with refused(BadData, "column 'dose'") as caught:
        table(HOLED).federate(None, 0)
    assert "2 missing values, first in row 3" in str(caught.value)
    zero = table(HOLED, missing="zero", standardise="none").federate(None, 0)
    assert zero.dataset.inputs[[3, 7], -1].tolist() == [0.0, 0.0]
    dropped = table(HOLED, missing="drop").federate(None, 0)
    assert len(dropped.dataset) == N - 2
    assert any("2 of 120 rows" in remark for remark in dropped.remarks)
    texts = FRAME.assign(sex=FRAME["sex"].where(FRAME.index != 5, None))
    assert not table(texts, missing="mean").federate(None, 0).dataset.inputs[5, 1:3].any()
    unknown = FRAME.assign(outcome=FRAME["outcome"].where(FRAME.index != 5, None))
    for missing in ("error", "mean"):
        with refused(BadData, "column 'outcome'"):
            table(unknown, missing=missing).federate(None, 0)


def test_what_is_learned_follows_the_column() -> None:
    def kind(**options: Any) -> Any:
        return table(**options).load().task.kind

    assert kind(y="dose") == "numbers"
    assert kind(y="age") == "classes"
    assert kind(y="age", task="numbers") == "numbers"
    assert kind(y=["age", "dose"], task="numbers") == "numbers"
    floats = FRAME.assign(outcome=(FRAME["outcome"] == "ill").astype(float))
    assert table(floats).load().class_names == ("0", "1")
    assert "--data.task numbers" in " ".join(table(y="age").load().remarks)


@pytest.mark.parametrize(
    ("changes", "options", "kind", "place"),
    [
        ({"when": pd.date_range("2020-01-01", periods=N)}, {}, BadData, "column 'when'"),
        ({"when": [f"2020-01-{1 + k % 28:02d}" for k in range(N)]}, {}, BadData, "column 'when'"),
        ({"name": [f"patient {k}" for k in range(N)]}, {}, BadData, "column 'name'"),
        ({"list": [[1, 2]] * N}, {}, BadData, "column 'list'"),
        ({}, {"y": "outcom"}, Unknown, "data"),
        ({}, {"drop": ["ag"]}, Unknown, "data"),
        ({"part": "exam"}, {"split": "part"}, BadData, "column 'part'"),
        ({}, {"x": []}, BadData, "data"),
        ({}, {"sha256": "0" * 64}, Conflict, "data.sha256"),
    ],
)
def test_what_is_no_input_is_refused_with_what_to_do(
    changes: Any, options: Any, kind: Any, place: str
) -> None:
    if options == {"x": []}:
        options = {"drop": ["age", "sex", "smokes", "dose"]}
    with refused(kind, place):
        table(FRAME.assign(**changes), **options).federate(None, 0)
    if "when" in changes:
        assert len(table(FRAME.assign(**changes), drop=["when"]).federate(None, 0)) == 3


def test_rows_for_testing_are_the_last_ones_or_whole_groups_or_named() -> None:
    frame = FRAME.assign(time=RNG.permutation(N), session=np.arange(N) // 6)
    late = table(frame, test_by="time", drop=["session"]).federate(None, 0)
    whole = table(frame, test_group="session", drop=["time"]).federate(None, 0)
    for client in late.clients:
        assert frame["time"].iloc[client.train].max() < frame["time"].iloc[client.test].min()
    for client in whole.clients:
        both = (set(frame["session"].iloc[rows]) for rows in (client.train, client.test))
        assert not set.intersection(*both)
    part = ["train", "test", "val", "train"] * (N // 4)
    named = table(FRAME.assign(part=part), split="part").federate(None, 0)
    assert [named.counts(split).sum() for split in ("train", "val", "test")] == [N // 2, N // 4, N // 4]
    for others in (
        {"split": "sex"},
        {"test": "x.csv"},
        {"test_share": 0.2, "test_from": "training"},
        {"val_fraction": 0.2},
    ):
        for way in ("test_by", "test_group"):
            with refused(Conflict, f"data.{way}"):
                table(frame, **{way: "session"}, **others)
    with refused(Conflict, "data.test_by"):
        table(frame, test_by="time", test_group="session")


def test_every_row_keeps_its_inputs_and_targets() -> None:
    """Whatever the order in which rows of the three parts come; a model of the run takes rows as they are."""
    part, n = ["test", "train", "val", "train", "train"] * 12, np.arange(60)
    frame = pd.DataFrame({"a": n, "b": n % 2 == 0, "c": pd.Categorical(n % 3), "y": n + 0.5, "part": part})
    frame["b"] = frame["b"].astype(object)  # as with a gap
    data = Table(frame, y="y", split="part", standardise="none").federate(1, 0)
    x, y = data.dataset.inputs, data.dataset.targets[:, 0] - 0.5
    assert [data.counts(split).sum() for split in ("train", "val", "test")] == [36, 12, 12]
    assert x.tolist() == [[k, k % 2 == 1, k % 2 == 0, k % 3 == 0, k % 3 == 1, k % 3 == 2] for k in y.tolist()]
    assert data.encoding is not None
    assert data.encoding.encode(frame.head(7)).tolist() == [x[y == k][0].tolist() for k in range(7)]


def test_gaps_make_no_numbers_of_classes_and_no_classes_of_texts() -> None:
    frame = FRAME.assign(outcome=RNG.integers(0, 3, N), dose=np.r_[np.inf, FRAME["dose"][1:]], file=1.0)
    holed = frame.assign(outcome=frame["outcome"].where(frame.index != 5))
    data = table(holed, missing="drop").federate(None, 0)
    assert (len(data.dataset), data.dataset.task.kind, data.dataset.classes) == (N - 2, "classes", 3)
    assert data.encoding is not None
    assert [column.name for column in data.encoding.columns] == ["age", "sex", "smokes", "dose", "file"]
    with refused(BadData, "column 'dose'"):
        table(frame).federate(None, 0)
    part = np.where(np.arange(N) % 4 > 0, "train", "test")
    unknown = frame.assign(dose=np.where(part == "test", "late", None), part=part)
    assert table(unknown, split="part", missing="zero").federate(None, 0).dataset.shape == (5,)
    both = frame[["age", "smokes"]].assign(u=frame["outcome"], v=1 - frame["outcome"])
    assert Table(both, y=["u", "v"]).federate(2, 0).dataset.task.kind == "numbers"


def test_files_of_equal_names_are_several_users(tmp_path: Path) -> None:
    for name in ("north", "south"):
        (tmp_path / name).mkdir()
        FRAME[FRAME["hospital"] == name].drop(columns="hospital").to_csv(tmp_path / name / "data.csv")
    found = table(None, train=f"{tmp_path}/*/data.csv", users="file").federate(None, 0)
    assert found.dataset.user_names == tuple(f"{tmp_path}/{name}/data.csv" for name in ("north", "south"))


def test_long_texts_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 kB: a text of 1,000 letters for each of 100,000 rows, which NumPy would hold in 400 MB."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("rayfl.system.memory.available_memory", lambda: 1e8)
    texts = pa.DictionaryArray.from_arrays(np.arange(100_000, dtype=np.int32) % 2, ["a" * 1000, "b" * 1000])
    columns = {"x": np.zeros(100_000), "z": np.arange(100_000) % 3, "y": texts}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", compression="zstd")
    dataset = Table(train=str(tmp_path / "t.parquet")).load()
    assert np.bincount(dataset.labels).tolist() == [50_000, 50_000]
    with refused(Shortage):
        Table(train=str(tmp_path / "t.parquet"), users="y", y="z").load()


def test_an_index_of_pandas_is_no_input_and_columns_may_have_any_order(tmp_path: Path) -> None:
    shuffled = FRAME.sample(frac=1, random_state=0)
    shuffled.rename_axis("patient").to_parquet(tmp_path / "t.parquet")
    shuffled[FRAME.columns[::-1]].to_csv(tmp_path / "test.csv", index=False)
    found = table(None, train=str(tmp_path / "t.parquet"), test=str(tmp_path / "test.csv")).federate(None, 0)
    assert [column.name for column in found.encoding.columns] == ["age", "sex", "smokes", "dose"]
    np.testing.assert_allclose(found.dataset.inputs[:N], found.dataset.inputs[N:], rtol=1e-6)


def test_every_file_may_be_a_client(tmp_path: Path) -> None:
    for name, rows in FRAME.drop(columns="hospital").groupby(FRAME["hospital"]):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    data = Table(train=str(tmp_path / "*.csv"), y="outcome", users="file").federate(None, 0)
    assert data.dataset.user_names == ("east", "north", "south")
    assert data.counts("train").tolist() == table().federate(None, 0).counts("train").tolist()
    with refused(Missing, "nothing.csv"):
        Table(train=str(tmp_path / "nothing.csv"), y="outcome").federate(None, 0)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    with refused(Damaged, "broken.parquet"):
        Table(train=str(tmp_path / "broken.parquet"), y="outcome").federate(None, 0)


def test_a_run_keeps_what_its_columns_became(tmp_path: Path) -> None:
    """Its models take frames as they come, also elsewhere; an export says how."""
    federation = Federation(
        data=table(standardise="client"), net=MLP(hidden=[4]), rounds=2, engine=Inline(), quiet=True,
        training=Training(lr=0.1, batch_size=8), output=str(tmp_path / "run"), checkpoint_every=1, loggers=[],
    )  # fmt: skip
    federation.run()
    models, data = load_models(tmp_path / "run", data=False), federation.federated_data()
    for client in range(3):
        test = data.clients[client].test
        x = models.preprocess(FRAME.iloc[test], client).numpy()
        np.testing.assert_array_equal(x, data.dataset.inputs[test])
        np.testing.assert_allclose(models[client].predict(FRAME.iloc[test]).sum(1), 1, rtol=1e-5)
    record = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert FederatedData.from_record(record).encoding == data.encoding
    assert export([str(tmp_path / "run"), "--client", "0", "--view", "personal"]) == 0
    about = json.loads(next((tmp_path / "run" / "models").glob("*.json")).read_text())
    assert about["columns"] == json.loads(json.dumps(data.encoding.record()))
    resumed(tmp_path / "run", {"rounds": 3, "quiet": True}, data=table(standardise="client")).run()
    with refused(Conflict, "data"):
        other = table(FRAME.assign(dose=1.0), standardise="client")
        resumed(tmp_path / "run", {"rounds": 4, "quiet": True}, data=other).run()


def test_arrays_for_testing_may_have_names_of_their_own(tmp_path: Path) -> None:
    """MedMNIST's form: one file, images of one channel without a place for it, and labels [N, 1]."""
    images, labels = RNG.integers(0, 255, (60, 8, 8), dtype=np.uint8), RNG.integers(0, 2, (60, 1))
    np.savez(
        tmp_path / "medical.npz",
        train_images=images[:40], train_labels=labels[:40], test_images=images[40:], test_labels=labels[40:],
    )  # fmt: skip
    names = {"x": "train_images", "y": "train_labels", "x_test": "test_images", "y_test": "test_labels"}
    data = ArrayFiles(train=str(tmp_path / "medical.npz"), **names).load()
    assert (data.inputs.shape, data.classes) == ((60, 1, 8, 8), 2)
    np.testing.assert_array_equal(data.inputs[:, 0], images)
    assert data.indices(2).tolist() == [*range(40, 60)]
    assert replace(data).digest() == data.digest()
