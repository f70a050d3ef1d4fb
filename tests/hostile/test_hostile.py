"""All cases of bad input, from the files beside this one; see :mod:`tests.hostile.harness`."""

import importlib
from pathlib import Path

import pytest

from tests.hostile.harness import Case, carry_out

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("cases_*.py"))
CASES: list[tuple[str, Case]] = [
    (f"{module.removeprefix('cases_')}: {case.name}", case)
    for module in MODULES
    for case in importlib.import_module(f"tests.hostile.{module}").CASES
]


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[name for name, _ in CASES])
def test_bad_input_is_refused_in_one_line(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    carry_out(case, folder, monkeypatch, capsys)
