"""The commit of the working directory, without a word from git."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rayfl.record.commit import checked_out
from rayfl.record.folder import environment

A, B = "a" * 40, "b" * 64


PACKED = f"# pack-refs with: peeled fully-peeled sorted\n{B} refs/heads/other\n{A} refs/heads/main\n^{B}\n"

CASES: list[tuple[str, dict[str, str], str | None]] = [
    ("no repository", {}, None),
    ("a commit", {".git/HEAD": f"{A}\n"}, A),
    ("a commit of SHA-256", {".git/HEAD": f"{B}\n"}, B),
    ("a branch", {".git/HEAD": "ref: refs/heads/a/b.c\n", ".git/refs/heads/a/b.c": f"{A}\n"}, A),
    ("a packed branch", {".git/HEAD": "ref: refs/heads/main\n", ".git/packed-refs": PACKED}, A),
    (
        "a branch that is newer than the packed one",
        {".git/HEAD": "ref: refs/heads/main", ".git/refs/heads/main": B, ".git/packed-refs": PACKED},
        B,
    ),
    ("no commit yet", {".git/HEAD": "ref: refs/heads/main\n"}, None),
    (
        "a worktree",
        {
            ".git": "gitdir: main/.git/worktrees/w\n",
            "main/.git/worktrees/w/HEAD": "ref: refs/heads/x\n",
            "main/.git/worktrees/w/commondir": "../..\n",
            "main/.git/refs/heads/x": A,
        },
        A,
    ),
    ("a submodule", {".git": "gitdir: above/modules/m\n", "above/modules/m/HEAD": A}, A),
    ("a name that leads elsewhere", {".git/HEAD": "ref: refs/../../stolen", "stolen": A}, None),
    ("a name that begins at the root", {".git/HEAD": "ref: /etc/hostname"}, None),
    ("names in a circle", {".git/HEAD": "ref: refs/x", ".git/refs/x": "ref: refs/x"}, None),
    ("something that is no hash", {".git/HEAD": "\x1b[31m" + A}, None),
    ("a file that leads nowhere", {".git": "gitdir: nowhere"}, None),
    ("a file of nothing", {".git": ""}, None),
    ("NUL in a name", {".git": "gitdir: a\0b"}, None),
    ("no text", {".git/HEAD": "\udcff"}, None),
]


@pytest.mark.parametrize(("files", "commit"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_commit_is_read_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], commit: str | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    (tmp_path / "deep" / "er").mkdir(parents=True)
    assert checked_out(tmp_path) == commit
    assert checked_out(tmp_path / "deep" / "er") == commit
    monkeypatch.chdir(tmp_path)
    assert checked_out(Path()) == commit


def test_a_pipe_in_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git" / "HEAD")
    assert checked_out(tmp_path) is None


def test_nothing_that_a_repository_names_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With git's ways to run a command when it is asked for its state, each leaving a file behind."""

    def git(*arguments: str) -> Any:
        call = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
        return subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True)

    git("init", "--quiet")
    (tmp_path / ".gitattributes").write_text("* filter=f diff=d\n")
    (tmp_path / "file").write_text("1")
    git("add", "--all")
    git("commit", "--quiet", "--message", "first")
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\ncat\n")
    hook.chmod(0o755)
    with (tmp_path / ".git" / "config").open("a") as config:
        config.write(f"[core]\n\tfsmonitor = {hook}\n\tpager = {hook}\n[diff]\n\texternal = {hook}\n")
        config.write(f'[filter "f"]\n\tclean = {hook}\n\tprocess = {hook}\n')
    (tmp_path / "file").write_text("22")
    subprocess.run(["git", "status"], cwd=tmp_path, capture_output=True)
    assert (tmp_path / "ran").exists()  # so this is how it would show
    (tmp_path / "ran").unlink()
    monkeypatch.chdir(tmp_path)
    found = environment()
    assert not (tmp_path / "ran").exists()
    (tmp_path / ".git" / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
    assert found["git_commit"] == git("rev-parse", "HEAD").stdout.strip()
    assert "git_changed" not in found
