import numpy as np
import pytest
from sklearn.datasets import load_digits

import rayfl.data.sets.digits as digits
from rayfl.data import TEST, TRAIN, VAL, EmbeddedDigits
from rayfl.data.readers.cache import Decoded

SPLITS = (TRAIN, VAL, TEST)


@pytest.fixture(scope="module")
def built():
    return build()


def build():
    """The images and what belongs to them, by name."""
    made = digits.build_digits()
    return {"images": np.concatenate(list(made.chunks)), **made.arrays}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def builds(built, monkeypatch):
    """Count how often the images are made, without making them."""
    calls = []

    def build():
        calls.append(1)
        arrays = dict(built)
        images = arrays.pop("images")
        return Decoded(images.shape, [images], arrays)

    monkeypatch.setattr(digits, "build_digits", build)
    return calls


def same(dataset, arrays):
    held = {"images": dataset.inputs, **vars(dataset)}
    return all(np.array_equal(held[name], array) for name, array in arrays.items())


def test_shape_domains_and_sizes(cache, builds):
    dataset = EmbeddedDigits().load()
    assert dataset.inputs.dtype == np.uint8
    assert dataset.shape == (3, 32, 32)
    assert dataset.classes == 10
    assert len(dataset.domain_names) == 5
    for domain in range(5):
        for origin, least in ((TRAIN, 1200), (VAL, 170), (TEST, 340)):
            mine = (dataset.domains == domain) & (dataset.origin == origin)
            counts = np.bincount(dataset.labels[mine], minlength=10)
            assert counts.sum() >= least
            assert counts.min() > 0.09 * counts.sum()


def test_every_byte_is_the_same_when_made_anew(built):
    again = build()
    assert all(np.array_equal(built[name], again[name]) for name in built)


def test_sources_are_divided_by_image():
    labels = np.repeat(np.arange(10), 180)
    parts = digits._split_sources(labels, np.random.default_rng(0))
    everything = np.concatenate([parts[origin] for origin in SPLITS])
    assert np.array_equal(np.sort(everything), np.arange(1800))
    for origin, share in zip(SPLITS, (0.7, 0.1, 0.2)):
        assert (np.bincount(labels[parts[origin]]) == round(180 * share)).all()


def test_each_drawing_gets_sources_of_its_own_part_only(monkeypatch):
    """Follow every source image: none appears in two parts, and a training image is in one domain."""
    scans = np.round(load_digits().images * (255 / 16)).astype(np.uint8)
    number = {image.tobytes(): i for i, image in enumerate(scans)}
    assert len(number) == 1797
    seen = {}

    def follow(domain):
        def render(sources, origin, rng):
            if domain != "printed":
                seen[domain, origin] = [number[s.tobytes()] for s in sources]
            return np.zeros((len(sources), 3, 32, 32), np.uint8)

        return render

    for domain in ("plain", "photo", "inverted", "lowres", "printed"):
        monkeypatch.setattr(digits, f"_draw_{domain}", follow(domain))
    digits.build_digits()
    used = {o: {s for (_, of), each in seen.items() if of == o for s in each} for o in SPLITS}
    assert sum(map(len, used.values())) == 1797 == len(set().union(*used.values()))
    train = [set(sources) for (_, origin), sources in seen.items() if origin == TRAIN]
    assert sum(map(len, train)) == len(used[TRAIN])
    for (_, origin), sources in seen.items():
        times = set(np.unique(sources, return_counts=True)[1].tolist())
        assert times == {digits.VIEWS if origin == TRAIN else 1}
        assert origin == TRAIN or set(sources) == used[origin]


def test_faces_and_photo_strips_are_divided():
    faces = [face for origin in SPLITS for face in digits._FACES[origin]]
    assert len(set(faces)) == len(faces) == 21
    assert digits._STRIPS[TRAIN][1] <= digits._STRIPS[VAL][0]
    assert digits._STRIPS[VAL][1] <= digits._STRIPS[TEST][0]


def test_patches_stay_within_their_strip(monkeypatch):
    import sklearn.datasets

    columns = np.broadcast_to(np.arange(640) // 3, (427, 640))[..., None].repeat(3, axis=2)
    monkeypatch.setattr(
        sklearn.datasets, "load_sample_images", lambda: type("Photos", (), {"images": [columns] * 2})
    )
    for origin in SPLITS:
        found = digits._patches(500, origin, np.random.default_rng(0)) * 255 * 3
        low, high = digits._STRIPS[origin]
        assert found.min() > 640 * low - 3
        assert found.max() < 640 * high


def test_labels_match_the_pictures(built):
    """The mean picture of a class looks like the same class in the test split, of fixed polarity."""
    for domain in ("handwriting", "inverted", "lowres"):
        mine = built["domains"] == digits.DOMAINS.index(domain)
        flat = built["images"].reshape(len(mine), -1)
        train, test = (mine & (built["origin"] == origin) for origin in (TRAIN, TEST))
        means = np.stack([flat[train & (built["labels"] == c)].mean(axis=0) for c in range(10)])
        x = flat[test].astype(np.float64)
        nearest = (-2 * x @ means.T + (means**2).sum(axis=1)).argmin(axis=1)
        assert (nearest == built["labels"][test]).mean() > 0.6


def test_domains_look_different(built):
    means = [built["images"][built["domains"] == d].mean() / 255 for d in range(5)]
    assert means[0] < 0.3  # white on black
    assert means[2] > 0.4  # black on light paper
    grey = np.ptp(built["images"], axis=1).reshape(len(built["labels"]), -1).max(axis=1)
    for d, coloured in enumerate((False, True, True, True, False)):
        assert (grey[built["domains"] == d].mean() > 5) == coloured


def test_ink_on_paper_and_grey_on_grey(monkeypatch):
    """Prints have two colours; coarse ink is 0.2 and a contrast of 0.5 to 0.7, beside noise."""
    rng = np.random.default_rng(0)
    colours = np.full((40, 3, 1, 1), 0.2), np.full((40, 3, 1, 1), 0.6)
    monkeypatch.setattr(digits, "_colours", lambda n, rng: colours)
    prints = digits._draw_printed(np.arange(40) % 10, TRAIN, rng)
    assert (prints.min(), prints.max()) == (0.2 * 255, 0.6 * 255)
    full = digits._draw_lowres(np.full((500, 8, 8), 255, np.uint8), TRAIN, rng)
    assert full[..., 16, 16].mean() / 255 == pytest.approx(0.8, abs=0.02)


def test_the_cache_is_used_and_holds_the_same(cache, builds, built):
    dataset = EmbeddedDigits().load()
    assert same(dataset, built)
    assert same(EmbeddedDigits(seed=7).load(), built)
    assert len(builds) == 1
    assert [path.suffix for path in cache.iterdir()] == [".npz"]
