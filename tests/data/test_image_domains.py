"""Office-Caltech10, DomainNet, PACS and image folders, on small files in their layouts."""

import os
import pickle
import shutil

import numpy as np
import pytest
from PIL import Image

from rayfl.data import PACS, TEST, TRAIN, UNUSED, VAL, Dataset, DomainNet, ImageFolders, OfficeCaltech10
from rayfl.data.sets.folders import divide_randomly, read_image
from rayfl.errors import BadData, Damaged, Missing
from tests.support.image_folders import colour, lists, write
from tests.support.refusals import refused

OFFICE = OfficeCaltech10.order["fedbn"]
SIZES = (6, 7, 5, 6)  # images of each class in the four domains


@pytest.fixture(autouse=True)
def folder(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("RAYFL_CACHE", str(folder))
    return folder


def office(root, per_class=SIZES, classes=OfficeCaltech10.classes):
    return write(root / "office_caltech_10", OFFICE, classes, per_class)


def counts(dataset):
    """Train, val and test images of every domain."""
    return {
        name: tuple(int(((dataset.domains == d) & (dataset.origin == o)).sum()) for o in (TRAIN, VAL, TEST))
        for d, name in enumerate(dataset.domain_names)
    }


def load(kind, root, **options):
    return kind(root=str(root), **({"image_size": 4, "verify": False} | options)).load()


# ---- images and caches


def test_images_classes_and_domains(tmp_path):
    """And other files are left alone."""
    root = office(tmp_path)
    (root / "amazon" / "bike" / "Thumbs.db").write_bytes(b"x")
    (root / "amazon" / ".DS_Store").write_bytes(b"x")
    dataset = load(OfficeCaltech10, tmp_path, scale="full")
    assert dataset.shape == (3, 4, 4)
    assert dataset.domain_names == ("amazon", "caltech", "dslr", "webcam")
    assert (dataset.class_names[0], dataset.class_names[-1]) == ("back_pack", "projector")
    assert (dataset.mean, dataset.std) == ((0.0,) * 3, (1.0,) * 3)
    assert (dataset.inputs == dataset.inputs[:, :, :1, :1]).all()
    seen = [tuple(image[:, 0, 0].tolist()) for image in dataset.inputs]
    assert len({*seen}) == len(seen) == 240
    for (red, green, _), label, domain in zip(seen, dataset.labels, dataset.domains):
        assert (red, green) == colour(domain, label, 0)[:2]


def test_what_is_in_the_files_tells_them_apart(tmp_path, folder):
    """A copy of other times is the same; an image that changes under its old size and times is not."""
    path = office(tmp_path / "here") / "dslr" / "mug" / "frame_0001.png"
    first = load(OfficeCaltech10, tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "there", copy_function=shutil.copyfile)
    assert load(OfficeCaltech10, tmp_path / "there").inputs.file == first.inputs.file
    before = path.stat()
    Image.new("RGB", (7, 5), (200, 100, 50)).save(path)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = load(OfficeCaltech10, tmp_path / "here").inputs
    [image] = changed[np.any(changed != first.inputs, axis=(1, 2, 3))]
    assert image[:, 0, 0].tolist() == [200, 100, 50]
    assert len(list(folder.iterdir())) == 2


def test_decoded_once_whatever_the_division(tmp_path, folder):
    office(tmp_path)
    first = load(OfficeCaltech10, tmp_path)
    second = load(OfficeCaltech10, tmp_path, split="fdse", scale="full")
    assert first.inputs.file == second.inputs.file
    assert second.domain_names == ("caltech", "amazon", "dslr", "webcam")
    for dataset in (first, second):
        for d, name in enumerate(dataset.domain_names):
            red = dataset.inputs[dataset.domains == d][0, 0, 0, 0]
            assert red == colour(OFFICE.index(name), 0, 0)[0]
    load(OfficeCaltech10, tmp_path, image_size=5)
    assert len(list(folder.iterdir())) == 2


def test_scaled_with_antialiasing_and_as_rgb(tmp_path):
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8))
    picture.save(tmp_path / "x.png")
    expected = np.asarray(picture.resize((4, 4), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(read_image(tmp_path / "x.png", 4), expected)
    assert read_image(tmp_path / "x.png").shape == (3, 9, 7)
    grey = picture.convert("L")
    grey.save(tmp_path / "grey.png")
    assert np.array_equal(read_image(tmp_path / "grey.png"), np.repeat(np.asarray(grey)[None], 3, axis=0))
    Image.new("RGBA", (3, 3), (200, 100, 50, 255)).save(tmp_path / "alpha.png")
    assert read_image(tmp_path / "alpha.png")[:, 0, 0].tolist() == [200, 100, 50]
    assert len({*read_image(tmp_path / "alpha.png", grey_unless_rgb=True)[:, 0, 0].tolist()}) == 1


# ---- FedBN's division


def test_fedbn_lists(tmp_path):
    order = lists(office(tmp_path), OFFICE, OfficeCaltech10.classes, SIZES, "office_caltech_10")
    dataset = load(OfficeCaltech10, tmp_path)
    # the smallest training list is dslr's with 40: half of it trains, two fifths validate
    assert counts(dataset) == dict.fromkeys(OFFICE, (20, 16, 10))

    def shown(domain, origin):
        mine = dataset.inputs[(dataset.domains == domain) & (dataset.origin == origin)]
        return {tuple(image[:, 0, 0].tolist()) for image in mine}

    for d, name in enumerate(OFFICE):
        train = [colour(d, c, k) for c, k in order[name, "train"]]
        assert shown(d, TRAIN) == set(train[:20])
        assert shown(d, VAL) == set(train[-16:])
        assert shown(d, TEST) == {colour(d, c, k) for c, k in order[name, "test"]}
    assert counts(load(OfficeCaltech10, tmp_path, scale="full")) == {
        name: (10 * (n - 1), 0, 10) for name, n in zip(OFFICE, SIZES)
    }


@pytest.mark.parametrize("as_lists", [False, True])
def test_lists_may_spell_folders_otherwise(tmp_path, as_lists):
    classes = ("backpack", *OfficeCaltech10.classes[1:])
    root = office(tmp_path, classes=classes)
    (root / "caltech").rename(root / "Caltech")
    spelled = {"as_lists": as_lists, "spelled": lambda name: name.replace("backpack", "back_pack")}
    lists(root, OFFICE, classes, SIZES, "somewhere/office_caltech_10", **spelled)
    assert counts(load(OfficeCaltech10, tmp_path)) == dict.fromkeys(OFFICE, (20, 16, 10))
    (root / "caltech_test.pkl").unlink()
    with refused(Missing, root / "caltech_test.pkl"):
        load(OfficeCaltech10, tmp_path)


def test_without_lists_stratified(tmp_path, caplog):
    root = office(tmp_path, (5, 10, 5, 5))
    dataset = load(OfficeCaltech10, root, scale="full")  # root may be the data set's own folder
    assert "each domain is divided 80/20" in caplog.text
    for d, n in enumerate((5, 10, 5, 5)):
        for c in range(10):
            mine = (dataset.domains == d) & (dataset.labels == c)
            assert (dataset.origin[mine] == TEST).sum() == n / 5
    again = load(OfficeCaltech10, root, scale="full", seed=9)
    assert np.array_equal(dataset.origin, again.origin)
    few = load(OfficeCaltech10, root)
    assert counts(few) == {name: (20, 16, 20 if name == "caltech" else 10) for name in OFFICE}
    chosen = few.labels[(few.domains == 0) & (few.origin == TRAIN)]
    assert len(np.unique(chosen)) > 5  # from a shuffled list


def test_domainnet_takes_a_twentieth_twice(tmp_path):
    root = write(tmp_path / "DomainNet", DomainNet.order["fedbn"], DomainNet.classes, (9, 8, 8, 8, 8, 8))
    lists(root, DomainNet.order["fedbn"], DomainNet.classes, (9, 8, 8, 8, 8, 8), "DomainNet", held_out=2)
    found = counts(load(DomainNet, tmp_path))
    assert found == dict.fromkeys(DomainNet.order["fedbn"], (3, 3, 20))  # int(0.05 * 60)


def test_sizes_of_the_published_protocols():
    assert [int(s * 125) for s in OfficeCaltech10.shares] == [62, 50]
    assert [int(s * 2103) for s in DomainNet.shares] == [105, 105]


def test_too_few_images_for_the_protocol(tmp_path):
    root = write(tmp_path / "DomainNet", DomainNet.order["fedbn"], DomainNet.classes, (5,) * 6)
    lists(root, DomainNet.order["fedbn"], DomainNet.classes, (5,) * 6, "DomainNet", held_out=4)
    with refused(BadData, "DomainNet"):
        DomainNet(root=str(tmp_path), verify=False, image_size=4).federate(6, 0)
    for name in root.glob("*.pkl"):
        name.unlink()
    shutil.rmtree(root / "real" / "zebra")
    (root / "real" / "zebra").mkdir()
    Image.new("RGB", (3, 3)).save(root / "real" / "zebra" / "only.png")
    with refused(BadData, "domain real"):
        load(DomainNet, tmp_path)


@pytest.mark.parametrize(
    ("change", "kind", "place"),
    [
        (lambda p, n: (p, n, n), Damaged, "dslr_train.pkl"),
        (lambda p, n: (np.arange(len(p)), n), Damaged, "dslr_train.pkl"),
        (lambda p, n: (np.append(p[1:], "a/dslr/bike/none.png"), n), Missing, "office_caltech_10"),
        (lambda p, n: (np.char.replace(p, "dslr", "webcam"), n), Damaged, "dslr_train.pkl"),
        (lambda p, n: (np.append(p[1:], p[1]), np.append(n[1:], n[1])), Damaged, "office_caltech_10"),
        (lambda p, n: {"paths": p}, Damaged, "dslr_train.pkl"),
    ],
)
def test_damaged_lists(tmp_path, change, kind, place):
    root = office(tmp_path)
    lists(root, OFFICE, OfficeCaltech10.classes, SIZES, "office_caltech_10")
    path = root / "dslr_train.pkl"
    path.write_bytes(pickle.dumps(change(*pickle.loads(path.read_bytes()))))
    with refused(kind, place):
        load(OfficeCaltech10, tmp_path)


# ---- FDSE's division


def test_fdse_sizes():
    """Of n images int(n / 5) are held out, half of them (down) for testing."""
    sizes = {"caltech": 1123, "amazon": 958, "dslr": 157, "webcam": 295}
    domains = np.repeat(np.arange(4), list(sizes.values()))
    zeros = np.zeros(len(domains), np.int64)
    dataset = Dataset(
        *(np.zeros((len(zeros), 1, 1, 1), np.float32), zeros, domains, zeros.astype(np.uint8)),
        class_names=("a",),
        domain_names=tuple(sizes),
    )
    found = counts(divide_randomly(dataset, 2))
    assert [*found.values()] == [(899, 112, 112), (767, 96, 95), (126, 16, 15), (236, 30, 29)]


def test_fdse_follows_the_run_seed(tmp_path):
    """What is drawn does not tell data apart."""
    office(tmp_path)
    options = {"root": str(tmp_path), "split": "fdse", "image_size": 4, "verify": False}
    data = OfficeCaltech10(**options)
    a, b, again = (data.federate(4, seed) for seed in (2, 4388, 2))
    assert [s.domain for s in a.clients] == [0, 1, 2, 3]
    assert np.array_equal(a.dataset.origin, again.dataset.origin)
    assert not np.array_equal(a.dataset.origin, b.dataset.origin)
    sizes = {"caltech": (56, 7, 7), "amazon": (48, 6, 6), "dslr": (40, 5, 5), "webcam": (48, 6, 6)}
    assert counts(a.dataset) == sizes
    own = OfficeCaltech10(**options, seed=2).federate(4, 7)
    assert np.array_equal(own.dataset.origin, a.dataset.origin)
    assert a.contents == b.contents == own.contents
    assert a.contents["published"] == OfficeCaltech10.published
    assert a.contents["images"]["dslr"] == 10 * SIZES[2]
    office(tmp_path / "other", per_class=(6, 7, 5, 7))
    other = OfficeCaltech10(**options | {"root": str(tmp_path / "other")}).federate(4, 0)
    assert other.contents["sha256"] != a.contents["sha256"]
    with refused(Damaged, tmp_path / "office_caltech_10"):
        load(OfficeCaltech10, tmp_path, split="fdse", verify=True)


def test_domainnet_official_lists(tmp_path, caplog):
    """Only listed images of the ten classes take part; the lists name other classes, too."""
    names = DomainNet.order["fdse"]
    root = write(tmp_path / "DomainNet", names, DomainNet.classes, (4,) * 6)
    assert counts(load(DomainNet, tmp_path, split="fdse"))["real"] == (32, 4, 4)
    assert "all images of the folders" in caplog.text
    numbered = list(enumerate(DomainNet.classes))
    for domain in names:
        for part, ks in (("train", (0, 1)), ("test", (2,))):
            rows = [f"{domain}/{c}/frame_{k:04d}.png {i}" for i, c in numbered for k in ks]
            rows.insert(3, f"{domain}/aircraft_carrier/{domain}_1.png 345")
            (root / f"{domain}_{part}.txt").write_text("\n".join(rows) + "\n")
    dataset = load(DomainNet, tmp_path, split="fdse")
    assert counts(dataset) == dict.fromkeys(names, (24, 3, 3))
    assert (dataset.origin == UNUSED).sum() == 60
    (root / "real_test.txt").unlink()
    with refused(Missing, "real_test.txt"):
        load(DomainNet, tmp_path, split="fdse")


def test_pacs(tmp_path):
    names = ("art_painting", "cartoon", "photo", "sketch")
    write(tmp_path / "PACS", names, PACS.classes, (5, 6, 5, 5))
    dataset = load(PACS, tmp_path)
    assert dataset.domain_names == names
    assert dataset.class_names == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    assert counts(dataset)["cartoon"] == (34, 4, 4)
    assert dataset.augment == "none"
    federated = PACS(root=str(tmp_path), verify=False, image_size=4).federate(8, 0)
    assert [s.domain for s in federated.clients] == [0, 1, 2, 3] * 2


# ---- what is missing or damaged


def test_a_missing_domain_or_class_is_named(tmp_path):
    root = office(tmp_path)
    with refused(Damaged, root):
        OfficeCaltech10(root=str(tmp_path), scale="full", image_size=4).load()
    bike = root / "webcam" / "bike"
    shutil.rmtree(bike)
    assert "domain webcam has no images of class bike" in load(OfficeCaltech10, tmp_path).remarks
    shutil.rmtree(root / "dslr")
    with refused(Missing, root / "dslr"):
        load(OfficeCaltech10, tmp_path)


def test_root_is_needed_and_must_hold_domains(tmp_path):
    (tmp_path / "empty").mkdir()
    for _ in range(2):
        with refused(BadData, tmp_path / "empty"):
            load(ImageFolders, tmp_path / "empty")
        (tmp_path / "empty" / "day").mkdir(exist_ok=True)
    with refused(Missing, "data.root"):
        PACS().load()
    with refused(Missing, tmp_path / "no"):
        PACS(root=str(tmp_path / "no")).load()
    with refused(Missing, tmp_path.name):
        PACS(root=str(tmp_path)).load()


@pytest.mark.parametrize("content", [b"not an image", b"half"])
def test_a_damaged_image_is_named(tmp_path, folder, content):
    path = office(tmp_path) / "dslr" / "mug" / "frame_0001.png"
    path.write_bytes(path.read_bytes()[:45] if content == b"half" else content)
    with refused(Damaged, path):
        load(OfficeCaltech10, tmp_path)
    assert list(folder.iterdir()) == []


def test_augmentation_as_the_protocol_has_it(tmp_path):
    office(tmp_path)
    for options, expected in (
        ({}, ("fedbn", False)),
        ({"split": "fdse"}, ("none", False)),
        ({"split": "fdse", "augment": True}, ("fedbn", False)),
        ({"val_augment": True}, ("fedbn", True)),
        ({"augment": False, "val_augment": True}, ("none", False)),
    ):
        dataset = load(OfficeCaltech10, tmp_path, **options)
        assert (dataset.augment, dataset.val_augment) == expected


# ---- any image folders


def test_image_folders(tmp_path):
    write(tmp_path, ("day", "night"), ("cat", "dog", "owl"), (5, 10))
    dataset = load(ImageFolders, tmp_path)
    assert dataset.domain_names == ("day", "night")
    assert dataset.class_names == ("cat", "dog", "owl")
    assert counts(dataset) == {"day": (12, 0, 3), "night": (24, 0, 6)}
    dataset = load(ImageFolders, tmp_path, split="fdse", domains=["Night"], classes=["owl", "cat"])
    assert counts(dataset) == {"Night": (16, 2, 2)}
    assert dataset.inputs[dataset.labels == 0][0, 1, 0, 0] == colour(1, 2, 0)[1]
    shutil.rmtree(tmp_path / "night" / "dog")
    shutil.rmtree(tmp_path / "day" / "dog")
    with refused(Missing, tmp_path):
        load(ImageFolders, tmp_path, classes=["cat", "dog"])


@pytest.mark.parametrize("left", ["no folder", "an empty folder"])
def test_a_domain_without_a_class_and_an_image_that_is_there_twice(tmp_path, left, caplog):
    """A hospital may lack a class; a copy of a picture may be for training and for testing."""
    root = write(tmp_path / "data", ("north", "south"), ("ill", "well"), (10, 10))
    shutil.rmtree(root / "south" / "ill")
    if left == "an empty folder":
        (root / "south" / "ill").mkdir()
    shutil.copy(root / "north" / "ill" / "frame_0000.png", root / "north" / "ill" / "frame_0000 (1).png")
    partition = ImageFolders(root=str(root), image_size=4).federate(2, 0).describe()
    held = [[n > 0 for n in client["labels"]["train"]] for client in partition["clients"]]
    assert held == [[True, True], [False, True]]
    lacks, scaled, copies = partition["remarks"]
    assert scaled == "images are scaled to 4 x 4 pixels"
    assert lacks == "domain south has no images of class ill"
    assert copies.startswith("1 of 31 images are copies of others")
    assert "frame_0000 (1).png" in copies
    assert copies in caplog.text


@pytest.mark.parametrize("names", [("кот", "пёс"), ("छ", "छि"), ("+", "-")])
def test_folders_are_told_apart_in_any_script(tmp_path, names):
    """The images of one class do not stand in for those of another one that is missing."""
    write(tmp_path, ("a", "b"), names, (5, 5))
    assert set(load(ImageFolders, tmp_path).class_names) == set(names)
    shutil.rmtree(tmp_path / "b" / names[1])
    dataset = load(ImageFolders, tmp_path)
    assert dataset.remarks[0] == f"domain b has no images of class {names[1]}"
    assert [dataset.class_names[label] for label in set(dataset.labels[dataset.domains == 1])] == [names[0]]


def test_images_belong_to_one_class_and_domain(tmp_path):
    """Two spellings of a folder are two names, and images must not count twice."""
    write(tmp_path / "accents", ("a",), ("caf\u00e9", "bar"), (5,))  # composed or not, as systems store it
    accented = load(ImageFolders, tmp_path / "accents", domains=["a"], classes=["bar", "Cafe\u0301"])
    assert counts(accented) == {"a": (8, 0, 2)}
    shutil.rmtree(tmp_path / "accents")
    write(tmp_path, ("a",), ("back_pack", "bike"), (5,))
    write(tmp_path, ("b",), ("backpack", "bike"), (5,))
    with refused(BadData, tmp_path / "a" / "back_pack"):
        load(ImageFolders, tmp_path)
    assert counts(load(ImageFolders, tmp_path, classes=["backpack", "bike"])) == {
        "a": (8, 0, 2),
        "b": (8, 0, 2),
    }
    with refused(BadData, tmp_path / "a" / "bike"):
        load(ImageFolders, tmp_path, domains=["a", "a"], classes=["bike"])


def test_what_is_no_image_is_left_out_with_a_warning(tmp_path, caplog):
    """It may be images in a format that is not read."""
    write(tmp_path, ("a",), ("cat", "dog"), (5,))
    for name in ("more.avif", ".hidden"):
        (tmp_path / "a" / "cat" / name).touch()
    (tmp_path / "a" / "dog" / "more").mkdir()
    assert counts(load(ImageFolders, tmp_path)) == {"a": (8, 0, 2)}
    assert "ImageFolders: 2 files or folders among the images are left out, such as" in caplog.text
    assert "more.avif" in caplog.text
    (tmp_path / "a" / "cat" / "more.png").symlink_to(tmp_path / "gone.png")  # named, and not left out
    with refused(Missing, "more.png"):
        load(ImageFolders, tmp_path)


def test_what_systems_leave_among_images_is_skipped_in_silence(tmp_path, caplog):
    """An archive made on a Mac has ``._1.png`` beside 1.png, and the same again in ``__MACOSX``."""
    write(tmp_path, ["a", "b"], ["x", "y"], [5, 5])
    wanted = load(ImageFolders, tmp_path).digest()
    for place in ("__MACOSX/a/x", ".cache/x", "a/__MACOSX", "a/x", "b/y"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        for name in ("._frame_0000.png", ".DS_Store", "Thumbs.db", "desktop.ini"):
            (tmp_path / place / name).write_bytes(b"\0\5\x16\7")
    assert load(ImageFolders, tmp_path).digest() == wanted
    assert not caplog.text


def test_image_folders_of_one_domain(tmp_path):
    """Classes lie in the root itself, whatever it is called; 80 % of each are for training."""
    write(tmp_path, ("day",), ("cat", "dog"), (5, 10))
    dataset = load(ImageFolders, tmp_path / "day")
    assert dataset.domain_names == ("ImageFolders",)
    assert dataset.class_names == ("cat", "dog")
    assert counts(dataset) == {"ImageFolders": (8, 0, 2)}
    assert np.array_equal(dataset.inputs, load(ImageFolders, tmp_path).inputs)
    other = load(ImageFolders, (tmp_path / "day").rename(tmp_path / "night"), classes=["dog", "cat"])
    assert other.class_names == ("dog", "cat")


def test_folders_of_a_division_are_domains_with_a_warning(tmp_path, caplog):
    write(tmp_path, ("Test", "train"), ("cat", "dog"), (5, 5))
    assert counts(load(ImageFolders, tmp_path)) == {"Test": (8, 0, 2), "train": (8, 0, 2)}
    assert "ImageFolders: Test and train in" in caplog.text
    caplog.clear()
    write(tmp_path, ("day",), ("cat", "dog"), (5,))
    load(ImageFolders, tmp_path)
    assert not caplog.text
