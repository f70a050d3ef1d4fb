"""JSON from strangers, and files of which nobody sees a part."""

import errno
from pathlib import Path
from typing import IO

import pytest

from rayfl.errors import Shortage
from rayfl.system import files
from rayfl.system.files import append_to_file, parse_json, write_file
from tests.support.refusals import refused


class FullDisk(files.Disk):
    """Takes some bytes, and then no more; writes down what is done."""

    def __init__(self, room: int) -> None:
        self.room, self.done = room, list[str]()

    def write(self, file: IO[bytes], content: bytes) -> int:
        self.done.append("write")
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = super().write(file, content[: self.room])
        self.room -= written
        return written

    def sync(self, file: IO[bytes]) -> None:
        self.done.append("sync")
        super().sync(file)

    def rename(self, old: Path, new: Path) -> None:
        self.done.append("rename")
        super().rename(old, new)


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = FullDisk(5), tmp_path / "new" / "file"
    monkeypatch.setattr(files, "disk", disk)
    write_file(path, "words")
    assert (path.read_text(), disk.done) == ("words", ["write", "sync", "rename"])
    with refused(Shortage, path) as caught:
        write_file(path, "more", "ask for a larger disk")
    assert str(caught.value).endswith("ask for a larger disk")
    assert [each.name for each in path.parent.iterdir()] == ["file"]
    assert path.read_text() == "words"


def test_all_of_a_line_is_appended_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\n")
    monkeypatch.setattr(files, "disk", FullDisk(2))
    with refused(Shortage, path):
        append_to_file(path, b"second\n")
    assert path.read_bytes() == b"one\n"
    with files.disk.open_end(path) as file:  # a kill leaves what was written
        file.write(b"at once")
        assert path.read_bytes() == b"one\nat once"


def test_json_is_strict_utf_8_of_a_bounded_depth() -> None:
    assert parse_json(b'["\\ud83d\\ude00", -1.5]') == ["\U0001f600", -1.5]
    assert parse_json(b"\xef\xbb\xbf[1]") == [1]  # as some editors begin a file
    for content in (b"NaN", b"[-Infinity]", b"[" * 100_000, b'"\\ud800"', b'"\\uD800"', b"\xff", b""):
        with pytest.raises(ValueError, match=r"."):
            parse_json(content)
