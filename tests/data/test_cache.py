import errno
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from rayfl.data.dataset import Dataset
from rayfl.data.readers.cache import Decoded, MappedImages, cache_folder, checksum, map_images, use_cache
from rayfl.errors import Damaged, Missing, Shortage
from rayfl.system import memory
from tests.support.refusals import refused

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 3, 5, 4), dtype=np.uint8)
LABELS = np.arange(7)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Decoder:
    """Makes IMAGES in chunks and counts how often."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return Decoded(IMAGES.shape, iter([IMAGES[:3], IMAGES[3:]]), {"labels": LABELS})


def test_decoded_once_then_mapped(folder):
    decode = Decoder()
    for _ in range(3):
        images, arrays = use_cache("pictures", ["key", 1], decode)
        assert isinstance(images, MappedImages)
        assert np.array_equal(images, IMAGES)
        assert np.array_equal(arrays["labels"], LABELS)
        with pytest.raises(ValueError, match="read-only"):
            images[0] = 0
    assert decode.calls == 1
    assert [p.suffix for p in folder.iterdir()] == [".npz"]


def test_mapped_images_have_the_checksum_of_those_in_memory(folder):
    def dataset(images):
        zeros = np.zeros(len(images), np.int64)
        names = {"class_names": ("c",), "domain_names": ("d",), "mean": (0.0,) * 3, "std": (1.0,) * 3}
        return Dataset(inputs=images, labels=zeros, domains=zeros, origin=zeros.astype(np.uint8), **names)

    images, _ = use_cache("pictures", 1, Decoder())
    assert images.crc is not None
    assert dataset(images).digest() == dataset(IMAGES).digest()
    assert images[1:].crc is None, "a part has another one"
    assert dataset(images[1:]).digest() == dataset(IMAGES[1:]).digest() != dataset(IMAGES[:-1]).digest()


def test_another_key_is_another_file(folder, tmp_path):
    decode = Decoder()
    for key in (["a", 1], ["a", 2], {"b": 1}):
        use_cache("pictures", key, decode)
    assert decode.calls == len(list(folder.iterdir())) == 3
    use_cache("pictures", ["a", 1], Decoder(), str(tmp_path / "other"))  # the option names the folder
    assert len(list((tmp_path / "other").iterdir())) == 1
    assert len(list(folder.iterdir())) == 3


def test_folder_of_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("RAYFL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "rayfl"


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "cut":
        content = content[: len(content) // 2]
    elif how == "a byte of an image":
        content[content.index(IMAGES[2].tobytes())] ^= 1
    elif how in ("", "rubbish"):
        content = how.encode()
    path.write_bytes(bytes(content))
    if how == "of NumPy":
        np.savez(path, images=IMAGES)


@pytest.mark.parametrize("how", ["cut", "a byte of an image", "", "rubbish", "of NumPy"])
def test_damage_is_found_and_repaired(folder, caplog, how):
    decode = Decoder()
    use_cache("pictures", 1, decode)
    (path,) = folder.iterdir()
    damage(path, how)
    images, _ = use_cache("pictures", 1, decode)
    assert np.array_equal(images, IMAGES)
    assert decode.calls == 2
    assert f"{path} is damaged" in caplog.text
    use_cache("pictures", 1, decode)
    assert decode.calls == 2
    if how == "a byte of an image":  # without verify images are not read through
        damage(path, how)
        images, _ = use_cache("pictures", 1, decode, verify=False)
        assert (np.asarray(images) != IMAGES).sum() == 1


def test_two_at_once_leave_one_good_file(folder):
    """The second has begun before the first has written, and replaces what that one has in use."""
    found = []

    def decode():
        found.append(use_cache("p", 1, Decoder())[0])
        return Decoder()()

    found.append(use_cache("p", 1, decode)[0])
    assert len(found) == 2
    assert all(np.array_equal(images, IMAGES) for images in found)
    assert len(list(folder.iterdir())) == 1


def test_an_interrupted_write_leaves_nothing(folder, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    def chunks():
        yield IMAGES[:3]
        stop()

    with pytest.raises(KeyboardInterrupt):
        use_cache("pictures", 1, lambda: Decoded(IMAGES.shape, chunks(), {}))
    assert list(folder.iterdir()) == []
    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        use_cache("pictures", 1, Decoder())
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("closed", [False, True])
def test_where_nothing_can_be_written_images_stay_in_memory(tmp_path, caplog, monkeypatch, closed):
    """If they fit into it."""

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    (tmp_path / "file").write_text("in the way")
    folder = str(tmp_path / "file" / "cache")
    if closed:
        monkeypatch.setattr(Path, "is_file", refuse)
    monkeypatch.setattr(memory, "available_memory", lambda: IMAGES.size)
    images, arrays = use_cache("pictures", 1, Decoder(), folder)
    assert type(images) is np.ndarray
    assert np.array_equal(images, IMAGES)
    assert np.array_equal(arrays["labels"], LABELS)
    assert "could not be written" in caplog.text
    assert "damaged" not in caplog.text
    monkeypatch.setattr(memory, "available_memory", lambda: IMAGES.size - 1)
    with refused(Shortage):
        use_cache("pictures", 1, Decoder(), folder)


def test_a_closed_folder_of_images_is_named(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with refused(Missing, tmp_path):
        checksum([tmp_path])


def test_only_the_name_of_the_file_travels(folder):
    images, _ = use_cache("pictures", 1, Decoder())
    packed = pickle.dumps(images, protocol=5)
    assert len(packed) < 400
    assert IMAGES[0].tobytes() not in packed
    again = pickle.loads(packed)
    assert np.array_equal(again, IMAGES)
    assert again.file == images.file
    for part in (images[2:4], images[[0, 3]], images.copy()):
        assert np.array_equal(pickle.loads(pickle.dumps(part)), np.asarray(part))
    assert np.array_equal(pickle.loads(pickle.dumps(images[2:4])), IMAGES[2:4])


def test_a_file_that_is_not_shared_is_named(folder):
    images, _ = use_cache("pictures", 1, Decoder())
    packed = pickle.dumps(images)
    path = Path(images.file)
    os.rename(path, path.with_suffix(".moved"))
    with refused(Damaged, path):
        pickle.loads(packed)
    path.write_bytes(b"something else")
    with refused(Damaged, path):
        map_images(path)
