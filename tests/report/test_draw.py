import numpy as np
import pytest
from matplotlib.image import imread

from rayfl import evaluation
from rayfl.errors import UserError
from rayfl.evaluation.result import Result
from rayfl.report.compare import group_runs
from rayfl.report.draw import accuracy_curve, client_accuracies, draw, loss_curve
from tests.support.records import write_run


def test_three_pictures_are_drawn(tmp_path):
    runs = [
        Result.load(write_run(tmp_path / f"{m}{s}", method=m, seed=s)) for m in ("A", "B") for s in (0, 1)
    ]
    runs += [Result.load(write_run(tmp_path / f"C{i}", method=f"C{i}", stop_after=i)) for i in range(8)]
    written = draw(group_runs(runs), tmp_path / "new" / "plots")
    assert [path.name for path in written] == ["accuracy.png", "loss.png", "clients.png"]
    for path in written:
        picture = imread(path)[..., :3]
        assert picture.shape[1] == 1050
        colours = {tuple(c) for c in np.round(255 * picture.reshape(-1, 3)).astype(int)}
        # The curves of the first two groups are there in their own colours.
        assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours


def test_runs_without_any_evaluation_still_make_pictures(tmp_path):
    run = Result.load(write_run(tmp_path / "run", eval_every=0))
    assert len(draw(group_runs([run]), tmp_path / "plots")) == 3


def test_curves_count_completed_rounds(tmp_path):
    run = Result.load(write_run(tmp_path / "run", rounds=5, eval_every=2))
    rounds, accuracy = accuracy_curve(run)
    assert rounds.tolist() == [2, 4, 5]
    assert accuracy[-1] == pytest.approx(100 * run.accuracy)
    rounds, loss = loss_curve(run)
    assert rounds.tolist() == [1, 2, 3, 4, 5]
    assert loss[-1] == run.summary["loss"]
    assert client_accuracies(run).mean() == pytest.approx(run.accuracy)


def test_curves_are_averaged_as_the_protocol_says(tmp_path):
    run = Result.load(write_run(tmp_path / "run", protocol=evaluation.FediOSGlobal(), rounds=6))
    assert accuracy_curve(run)[1][-5:].mean() == pytest.approx(100 * run.accuracy)
    assert len(accuracy_curve(run.scored(view="online"))[0]) == 0


def test_a_place_that_cannot_be_written_is_an_explained_error(tmp_path):
    run = Result.load(write_run(tmp_path / "run"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another place"):
        draw(group_runs([run]), tmp_path / "file")
