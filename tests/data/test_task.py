"""What is learned: its figures, strata, losses, divergences and metrics by hand, and data that decide it."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.data import Arrays, Dataset, FederatedData
from rayfl.data.task import ACCURACY, NOT_ASKED, TASKS, WORST_FIGURE, Figure, Numbers, task_of
from rayfl.errors import BadCode, BadData, BadValue, Conflict, Unknown
from rayfl.evaluation.measures import measures
from rayfl.evaluation.score import score_rows
from rayfl.training.losses import BCE, LOSSES, MAE, MSE, BatchLoss, CrossEntropy, Focal, Huber, resolve_loss
from tests.support.refusals import refused

X = np.zeros((12, 3), np.float32)
NUMBERS = np.array([3.0, 1.0, 2.0] * 4, np.float32)
LABELS = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 1]] * 3, bool)
POSITIONS = np.array([[0, 1], [2, NOT_ASKED]] * 6)


def learned(y: Any, **options: Any) -> Dataset:
    return Arrays(X, y, **options).load()


# ---- figures


def test_a_figure_is_printed_in_per_cent_or_with_four_digits() -> None:
    error = Figure("MSE", higher=False)
    assert [ACCURACY.shown(0.91234), ACCURACY.shown(1.0, 0.001)] == ["91.23", "100.00 ± 0.10"]
    shown = [error.shown(value) for value in (0.0246501, 12.3456, 1234.5, 0.0, None, math.nan)]
    assert shown == ["0.02465", "12.35", "1234", "0.000", "n/a", "n/a"]
    assert error.shown(0.02465, 0.0001) == "0.02465 ± 0.00010"
    assert (ACCURACY.title, ACCURACY.unit, ACCURACY.sign, ACCURACY.scale) == ("accuracy in %", " %", 1, 100)
    assert (error.title, error.unit, error.sign, error.scale) == ("MSE", "", -1, 1)


# ---- what data are


def test_targets_decide_what_is_learned() -> None:
    kinds = {
        "classes": [[0, 1, 2] * 4, ["a", "b"] * 6, [True, False] * 6, [[0], [1]] * 6, [0.0, 1.0] * 6],
        "numbers": [NUMBERS, NUMBERS[:, None], [[0.5, 1.0]] * 12],
        "labels": [LABELS],
        "positions": [POSITIONS],
    }
    for kind, given in kinds.items():
        assert [learned(np.array(y)).task.kind for y in given] == [kind] * len(given)
    assert [learned(y).outputs for y in (NUMBERS, LABELS, POSITIONS)] == [1, 3, 3]
    assert learned(POSITIONS, names=["a", "b", "c", "d"]).outputs == 4
    assert learned(NUMBERS).targets.shape == (12, 1)
    classes = learned(np.array([0, 1, 2] * 4))
    assert classes.targets is classes.labels
    assert classes.digest() == learned([0, 1, 2] * 4).digest()
    assert len({learned(y).digest() for y in (NUMBERS, NUMBERS + 1, LABELS, POSITIONS)}) == 4


def test_a_task_may_be_named() -> None:
    whole = np.array([0, 1, 5] * 4)
    assert learned(whole, task="numbers").targets[:3, 0].tolist() == [0, 1, 5]
    assert learned(LABELS.astype(int), task="labels").targets.tolist() == LABELS.tolist()
    assert learned(np.array([2.0, 4.0] * 6), task="classes").class_names == ("2", "4")
    own = learned(NUMBERS, task="tests.data.test_task.Survival")
    assert (own.task.kind, own.outputs, type(own.task)) == ("numbers", 1, Survival)
    for odd, y in (("labels", NUMBERS), ("positions", NUMBERS), ("numbers", np.array(["a"] * 12))):
        with pytest.raises(BadData):
            learned(y, task=odd)
    for name, kind in (("number", Unknown), ("math.sqrt", BadValue), ("tests.data.test_task.Cox", Unknown)):
        with refused(kind, "data.task"):
            learned(NUMBERS, task=name)


@pytest.mark.parametrize(
    "y",
    [
        np.array([[0, 1], [1, 0]] * 6),  # several labels or two positions: nobody can tell
        np.full((12, 2), -1),
        np.array([np.nan] * 12, np.float32),
        np.zeros((12, 2, 2), np.float32),
        np.array([["a", "b"]] * 12),
        [1, 2],
    ],
)
def test_targets_that_nobody_can_learn_are_refused(y: Any) -> None:
    with pytest.raises(BadData):
        learned(y)


def test_a_column_of_pandas_has_its_categories_in_order() -> None:
    pd = pytest.importorskip("pandas")
    sizes = pd.Series(
        ["big", "small", "middle"] * 4, dtype=pd.CategoricalDtype(["small", "middle", "big"], True)
    )
    assert learned(sizes).class_names == ("small", "middle", "big")
    assert learned(pd.Categorical(sizes)).labels[:3].tolist() == [2, 0, 1]
    assert learned(pd.Series(NUMBERS)).task.kind == "numbers"
    with refused(BadData, "Arrays: the training samples"):
        learned(pd.Categorical([None, *["a"] * 11]))


def test_strata_by_hand() -> None:
    numbers, labels, positions = (TASKS[kind].strata for kind in ("numbers", "labels", "positions"))
    assert numbers(NUMBERS[:, None])[0].tolist() == [2, 0, 1] * 4
    places, names = numbers(np.arange(100, dtype=np.float32)[:, None])
    assert np.bincount(places).tolist() == [10] * 10
    assert names[:2] == ("≥0", "≥9.9")
    places, names = labels(LABELS)
    assert [names[k] for k in places[:4]] == ["0", "1", "none", "2"]
    assert positions(POSITIONS) == (pytest.approx(np.zeros(12)), ("all",))
    data = Arrays(np.zeros((200, 2), np.float32), np.arange(200, dtype=np.float32)).federate(2, 0)
    assert data.label_matrix("test").sum(axis=0).tolist() == [4] * 10  # the same share of each range


def test_a_division_is_read_back_with_what_is_learned() -> None:
    for y, name in ((NUMBERS, "MSE"), (LABELS, "label accuracy"), (POSITIONS, "accuracy")):
        data = Arrays(X, y, test_fraction=0.5).federate(2, 0)
        record = data.describe()
        assert record["task"]["figure"]["name"] == name
        again = FederatedData.from_record(record).dataset
        assert (type(again.task), again.outputs) == (type(data.dataset.task), data.dataset.outputs)
        assert again.targets.shape[1:] == data.dataset.targets.shape[1:]
    assert "task" not in Arrays(X, [0, 1, 2] * 4).federate(2, 0).describe()


# ---- scores


def figures(y: np.ndarray, scores: Tensor, counts: tuple[int, ...] = (2, 2)) -> list[tuple[Any, Any]]:
    """The sum of the figure and the mean loss of each of two clients."""
    targets = torch.from_numpy(y)
    targets = targets.float() if y.dtype == bool else targets
    rows = score_rows({"v": scores}, targets, counts, task_of(y))
    return [(row["v"].score, row["v"].loss) for row in rows]


def test_figures_and_losses_of_numbers() -> None:
    found = figures(NUMBERS[:4, None], torch.tensor([[3.0], [2.0], [2.0], [0.0]]))
    assert found == [(1.0, 0.5), (9.0, 4.5)]


def test_figures_and_losses_of_labels() -> None:
    scores = torch.tensor([[2.0, -1.0, -1.0], [2.0, -1.0, -1.0], [1.0, 1.0, 1.0], [9.0, -9.0, 9.0]])
    found = figures(LABELS[:4], scores)
    assert [score for score, _ in found] == pytest.approx([1 + 2 / 3, 1.0])
    each = F.binary_cross_entropy_with_logits(scores, torch.from_numpy(LABELS[:4]).float(), reduction="none")
    assert [loss for _, loss in found] == pytest.approx(each.view(2, -1).mean(1).tolist())


def test_figures_and_losses_of_positions() -> None:
    """A sample without a position that is asked for does not count; a client of them has no numbers."""
    y = np.array([[0, 1], [2, NOT_ASKED], [NOT_ASKED, NOT_ASKED], [NOT_ASKED, NOT_ASKED]])
    scores = torch.zeros(4, 2, 3)
    scores[0, 0, 0] = scores[1, 0, 1] = 5.0
    (first, loss), second = figures(y, scores)
    assert first == pytest.approx(2 * 1 / 3)
    assert second[0] is None
    assert math.isnan(second[1])
    ln3, right, wrong = math.log(3), math.log1p(2 * math.exp(-5)), math.log(math.exp(5) + 2)
    assert loss == pytest.approx((right + ln3 + wrong) / 3, rel=1e-6)
    plain = F.cross_entropy(scores.movedim(-1, 1), torch.from_numpy(y), ignore_index=NOT_ASKED)
    assert CrossEntropy().mean(scores, torch.from_numpy(y)).item() == pytest.approx(plain.item())
    assert Focal(gamma=0).mean(scores, torch.from_numpy(y)).item() == pytest.approx(plain.item())


def test_a_model_gone_wrong_is_not_left_out_of_means() -> None:
    nothing = torch.tensor([[math.nan], [math.inf], [2.0], [0.0]])
    assert [score for score, _ in figures(NUMBERS[:4, None], nothing)] == [2 * WORST_FIGURE, 9.0]
    assert [score for score, _ in figures(LABELS[:4], torch.full((4, 3), math.nan))] == [0.0, 0.0]


class Survival(Numbers):
    """Of each sample the time and whether it has died then; scores are risks. Cox's loss needs the batch."""

    figure = Figure("C-index")
    loss = "tests.data.test_task.Cox"

    def outputs(self, targets: np.ndarray) -> int:
        return 1

    def of_client(self, scores: Tensor, targets: Tensor) -> float | None:
        (time, died), risk = targets.unbind(1), scores[:, 0]
        first = (time[:, None] < time) & (died[:, None] > 0)
        return float(((risk[:, None] > risk) & first).sum() / first.sum()) if first.any() else None


class Cox(BatchLoss):
    """The negative partial log-likelihood, a mean over those who have died (Cox, 1972)."""

    def mean(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        (time, died), risk = targets.unbind(1), scores[:, 0]
        at_risk = torch.where(time >= time[:, None], risk, -math.inf).logsumexp(1)
        return ((at_risk - risk) * died).sum() / died.sum().clamp(min=1)


def test_a_task_of_ones_own_has_a_figure_of_the_client_and_a_loss_of_the_batch() -> None:
    targets = torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0], [1.0, 0.0], [2.0, 0.0]])
    scores = torch.tensor([[0.5], [1.0], [0.0], [1.0], [2.0]])
    (first, second) = score_rows({"v": scores}, targets, (3, 2), Survival())
    assert first["v"].score == pytest.approx(3 * 1 / 2)
    assert second["v"].score is None
    assert second["v"].loss == 0
    first_term = math.log(sum(math.exp(r) for r in (0.5, 1.0, 0.0))) - 0.5
    assert first["v"].loss == pytest.approx(first_term / 2)
    cox = resolve_loss(None, Survival())
    assert type(cox) is Cox
    with refused(Conflict, "training.loss"):
        cox.per_sample(scores, targets)


# ---- losses and divergences


def test_losses_go_with_their_targets_alone() -> None:
    fitting = {kind: [name for name, loss in LOSSES.items() if kind in loss.kinds] for kind in TASKS}
    assert fitting == {
        "classes": ["CrossEntropy", "Focal", "BalancedSoftmax"],
        "numbers": ["MSE", "MAE", "Huber"],
        "labels": ["BCE"],
        "positions": ["CrossEntropy", "Focal"],
    }
    for kind, task in TASKS.items():
        assert type(resolve_loss(None, task)).__name__ == fitting[kind][0]
        for name, cls in LOSSES.items():
            if name not in fitting[kind]:
                with refused(Conflict, "training.loss"):
                    resolve_loss(cls(), task)
    for y in (NUMBERS, LABELS, POSITIONS, np.array([0, 1, 2] * 4)):
        dataset = learned(y)
        for name in fitting[dataset.task.kind]:
            LOSSES[name]().check(dataset)
    with refused(BadCode, "training.loss"):
        resolve_loss(f"{__name__}.of_the_batch", TASKS["numbers"]).check(learned(NUMBERS))


def of_the_batch(scores: Tensor, targets: Tensor) -> Tensor:
    return (scores - targets).square().mean()


def test_losses_by_hand() -> None:
    scores, y = torch.tensor([[1.0, 4.0], [0.0, 0.5]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert MSE().per_sample(scores, y).tolist() == [2.0, 0.125]
    assert MAE().per_sample(scores, y).tolist() == [1.0, 0.25]
    assert Huber(delta=1.0).per_sample(scores, y).tolist() == [0.75, 0.0625]
    there = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    expected = F.binary_cross_entropy_with_logits(
        scores, there, reduction="none", pos_weight=torch.tensor([3.0, 3.0])
    ).mean(1)
    torch.testing.assert_close(BCE(pos_weight=3.0).per_sample(scores, there), expected)
    logits, asked = torch.randn(2, 3, 4, dtype=torch.float64), torch.tensor([[1, NOT_ASKED, 2], [3, 0, 1]])
    flat = F.cross_entropy(logits[0, [0, 2]], asked[0, [0, 2]]), F.cross_entropy(logits[1], asked[1])
    torch.testing.assert_close(CrossEntropy().per_sample(logits, asked), torch.stack(flat))
    of_all = F.cross_entropy(logits.movedim(-1, 1), asked)
    torch.testing.assert_close(CrossEntropy().mean(logits, asked), of_all)
    torch.testing.assert_close(Focal(gamma=0.0).per_sample(logits, asked), torch.stack(flat))


@pytest.mark.parametrize("kind", TASKS)
def test_a_divergence_is_zero_for_equals_and_teaches_the_student_alone(kind: str) -> None:
    task = TASKS[kind]  # type: ignore[index]
    scores = torch.randn(4, 2, 3, dtype=torch.float64) if kind == "positions" else torch.randn(4, 3).double()
    teacher = (scores + torch.tensor([1.0, 0.0, -1.0])).requires_grad_()
    student = scores.clone().requires_grad_()
    assert task.divergence(scores, scores).item() == pytest.approx(0, abs=1e-12)
    task.divergence(teacher, student, 2.0).backward()
    assert teacher.grad is None
    moved = student.detach() - 0.1 * student.grad
    assert task.divergence(teacher, moved, 2.0) < task.divergence(teacher, student, 2.0)


def test_divergences_by_hand() -> None:
    t, s = torch.tensor([[0.0, 1.0]], dtype=torch.float64), torch.tensor([[2.0, 1.0]], dtype=torch.float64)
    assert TASKS["numbers"].divergence(t, s) == 2.0
    p, q = t.softmax(1)[0], s.softmax(1)[0]
    assert TASKS["classes"].divergence(t, s).item() == pytest.approx((p * (p / q).log()).sum().item())
    p, q = (t / 2).sigmoid(), (s / 2).sigmoid()
    both = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    assert TASKS["labels"].divergence(t, s, 2.0).item() == pytest.approx(4 * both.mean().item())
    fused = [TASKS[kind].fuse(t, s)[0].tolist() for kind in ("classes", "numbers")]
    assert fused == [[2.0, 2.0], [1.0, 1.0]]


# ---- metrics


def measured(name: str, y: np.ndarray, scores: Tensor) -> float | None:
    (measure,) = measures([name], learned(np.resize(y, (12, *y.shape[1:]))))
    targets = torch.from_numpy(y)
    return measure.value(scores, targets.float() if y.dtype == bool else targets)


def test_metrics_by_hand() -> None:
    y, scores = np.array([[1.0], [2.0], [4.0]], np.float32), torch.tensor([[1.0], [4.0], [3.0]])
    assert measured("rmse", y, scores) == pytest.approx(math.sqrt(5 / 3))
    assert measured("mae", y, scores) == pytest.approx(1.0)
    assert measured("r2", y, scores) == pytest.approx(1 - 5 / (14 / 3))
    assert measured("r2", np.ones((3, 1), np.float32) / 2, scores) is None, "all are equal"
    logits = torch.tensor([[1.0, -1.0, -1.0], [1.0, 1.0, -1.0], [1.0, -1.0, -1.0], [1.0, -1.0, -1.0]])
    assert measured("f1", LABELS[:4], logits) == pytest.approx((6 / 7 + 1.0 + 0.0) / 3)
    assert measured("f1", LABELS[:2], logits[:2]) == 1.0, "a label that nobody has or predicts does not count"
    asked = np.array([[0, NOT_ASKED], [1, 2]])
    assert measured("perplexity", asked, torch.zeros(2, 2, 3)) == pytest.approx(3.0)


def test_metrics_of_another_task_are_refused_with_those_that_there_are() -> None:
    for name, y in (("auroc", NUMBERS), ("rmse", LABELS), ("f1", POSITIONS), ("r2", np.array([0, 1, 2] * 4))):
        dataset = learned(y)
        with refused(Conflict, "metrics") as caught:
            measures([name], dataset)
        assert str(caught.value).endswith(f"there are {', '.join(dataset.task.metrics)}")
