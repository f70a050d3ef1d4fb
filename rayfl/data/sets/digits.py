"""`EmbeddedDigits`: a multi-domain digits task made from what scikit-learn and matplotlib bring along.

Below it is what all data sets of digits share.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rayfl.data.base import Data
from rayfl.data.dataset import TEST, TRAIN, VAL, Dataset
from rayfl.data.partitions.domain_per_client import DomainPerClient
from rayfl.data.readers.cache import Decoded, use_cache
from rayfl.randomness import numpy_generator

DOMAINS = ("handwriting", "photo", "inverted", "printed", "lowres")
VIEWS = 4  # renderings of a training source, each with a pose of its own
SIDE = 32  # pixels
_DIGITS_VERSION = 1  # raise it whenever the images change: it is part of the cache's name
_SEED = 2024  # of the whole recipe; independent of a run's seed

# Faces, like handwritten sources, belong to one of train, validation and test.
_FACES = {
    TRAIN: [
        "DejaVuSans",
        "DejaVuSans-Bold",
        "DejaVuSans-BoldOblique",
        "DejaVuSansMono",
        "DejaVuSansMono-Bold",
        "DejaVuSansMono-BoldOblique",
        "DejaVuSerif",
        "DejaVuSerif-Bold",
        "DejaVuSerif-Italic",
        "STIXGeneral",
        "STIXGeneralBol",
        "STIXGeneralBolIta",
        "cmr10",
        "cmb10",
        "cmtt10",
    ],
    VAL: ["DejaVuSans-Oblique", "cmti10"],
    TEST: ["DejaVuSansMono-Oblique", "DejaVuSerif-BoldItalic", "STIXGeneralItalic", "cmss10"],
}
# Photographs are cut into vertical strips, as fractions of their width; a patch lies within one strip.
_STRIPS = {TRAIN: (0.0, 0.7), VAL: (0.7, 0.8), TEST: (0.8, 1.0)}


class EmbeddedDigits(Data):
    """Five domains of digits, 10 classes, 3x32x32, without any download.

    The domains are plain handwriting; handwriting blended into photographs; inverted and thickened
    handwriting; printed digits with random face, pose and colour; noisy handwriting of low resolution.
    Handwriting is that of scikit-learn (1,797 images), split 70/10/20 into train, validation and test by
    source image, as are faces and photographs. A training image belongs to one handwriting domain, where it
    is drawn four times; a validation or test image is drawn once in each. The images are the same for every
    seed. They are kept in a cache folder: RAYFL_CACHE, or the platform's folder for caches.
    """

    _natural = DomainPerClient
    divides_itself = True  # the drawings of one source stay in one part

    def load(self) -> Dataset:
        """Make the images, or map what an earlier run has made."""
        libraries = [version(name) for name in ("numpy", "scikit-learn", "matplotlib")]
        images, arrays = use_cache("EmbeddedDigits", [_DIGITS_VERSION, libraries], build_digits)
        return digit_dataset(images, arrays, DOMAINS)


def build_digits() -> Decoded:
    """Make the images from scratch, with labels int64 [N], domains int64 [N] and origin uint8 [N]."""
    from sklearn.datasets import load_digits  # a second that is not spent where the cache is used

    digits = load_digits()
    sources = np.round(digits.images * (255 / 16)).astype(np.uint8)  # [1797, 8, 8], from values 0 to 16
    labels = digits.target.astype(np.int64)
    rng = numpy_generator(_SEED, "embedded digits")
    handwriting: dict[str, Callable[[np.ndarray, int, np.random.Generator], np.ndarray]] = {
        "handwriting": _draw_plain,
        "photo": _draw_photo,
        "inverted": _draw_inverted,
        "lowres": _draw_lowres,
    }
    parts: list[Part] = []
    for origin, chosen in _split_sources(labels, rng).items():
        for k, (name, render) in enumerate(handwriting.items()):
            mine = np.repeat(chosen[k :: len(handwriting)], VIEWS) if origin == TRAIN else chosen
            parts.append(Part(render(sources[mine], origin, rng), labels[mine], DOMAINS.index(name), origin))
        count = len(chosen) // 10 * 10
        printed = np.arange(count) % 10
        parts.append(Part(_draw_printed(printed, origin, rng), printed, DOMAINS.index("printed"), origin))
    arrays = join_labels(parts)
    shape = (len(arrays["labels"]), 3, SIDE, SIDE)
    return Decoded(shape, [part.images for part in parts], arrays)


def _split_sources(labels: np.ndarray, rng: np.random.Generator) -> dict[int, np.ndarray]:
    """Divide the sources 70/10/20, class by class; within a part the classes follow each other."""
    parts: dict[int, list[np.ndarray]] = {TRAIN: [], VAL: [], TEST: []}
    for c in range(10):
        indices = rng.permutation(np.flatnonzero(labels == c))
        ends = np.round(np.array([0.7, 0.8]) * len(indices)).astype(int)
        for origin, piece in zip(parts, np.split(indices, ends)):
            parts[origin].append(piece)
    return {origin: np.concatenate(pieces) for origin, pieces in parts.items()}


def _strokes(sources: np.ndarray, side: int, rng: np.random.Generator) -> np.ndarray:
    """Draw each source [N, 8, 8] with a random turn, size and place: float64 [N, side, side], 0 to 1."""
    n = len(sources)
    angle = np.deg2rad(rng.uniform(-12, 12, n))
    size = rng.uniform(0.85, 1.08, n) * side / 10  # pixels of the drawing per pixel of the source
    x0, y0 = rng.uniform(-0.06, 0.06, (2, n)) * side
    out = np.empty((n, side, side))
    for i, source in enumerate(sources):
        cos, sin = np.cos(angle[i]) / size[i], np.sin(angle[i]) / size[i]
        middle = side / 2
        # PIL wants the map from drawing to source; the source has a border of two pixels, so its middle is
        # (6, 6).
        to_source = (
            cos,
            sin,
            6 - cos * (middle + x0[i]) - sin * (middle + y0[i]),
            -sin,
            cos,
            6 + sin * (middle + x0[i]) - cos * (middle + y0[i]),
        )
        drawn = Image.fromarray(np.pad(source, 2)).transform(
            (side, side), Image.Transform.AFFINE, to_source, Image.Resampling.BICUBIC
        )
        out[i] = np.asarray(drawn)
    return np.clip((out / 255 - 0.15) / 0.6, 0, 1)  # steepen the edges that interpolation has blurred


def _pixels(images: np.ndarray) -> np.ndarray:
    """Turn [N, 32, 32] or [N, 3, 32, 32] from 0 to 1 into uint8 [N, 3, 32, 32]."""
    if images.ndim == 3:
        images = np.repeat(images[:, None], 3, axis=1)
    return np.round(np.clip(images, 0, 1) * 255).astype(np.uint8)


def _draw_plain(sources: np.ndarray, origin: int, rng: np.random.Generator) -> np.ndarray:
    """Draw white on black."""
    return _pixels(_strokes(sources, SIDE, rng))


def _draw_photo(sources: np.ndarray, origin: int, rng: np.random.Generator) -> np.ndarray:
    """Blend with a patch of a photograph by absolute difference (as MNIST-M: Ganin and Lempitsky, 2015)."""
    return _pixels(np.abs(_patches(len(sources), origin, rng) - _strokes(sources, SIDE, rng)[:, None]))


def _draw_inverted(sources: np.ndarray, origin: int, rng: np.random.Generator) -> np.ndarray:
    """Draw thick and dark on light paper."""
    from scipy.ndimage import maximum_filter  # as seldom needed as the cache is made

    thick = maximum_filter(_strokes(sources, SIDE, rng), (1, 3, 3), mode="constant")  # with all neighbours
    paper = rng.uniform(0.75, 1.0, (len(sources), 3, 1, 1))
    return _pixels(paper * (1 - thick[:, None]))


def _draw_lowres(sources: np.ndarray, origin: int, rng: np.random.Generator) -> np.ndarray:
    """Draw grey on grey at 8x8 pixels, with noise, and enlarge without smoothing."""
    strokes = _strokes(sources, 8, rng)
    contrast = rng.uniform(0.5, 0.7, (len(sources), 1, 1))
    coarse = 0.2 + contrast * strokes + rng.normal(0, 0.08, strokes.shape)
    fine = coarse.repeat(SIDE // 8, axis=1).repeat(SIDE // 8, axis=2)
    return _pixels(fine + rng.normal(0, 0.08, fine.shape))


def _draw_printed(labels: np.ndarray, origin: int, rng: np.random.Generator) -> np.ndarray:
    """Print with random face, size, turn, place and colours (as SynthDigits: Ganin and Lempitsky, 2015)."""
    faces = [_face(name, size) for name in _FACES[origin] for size in (24, 28, 32)]
    masks = np.empty((len(labels), SIDE, SIDE))
    for i, label in enumerate(labels):
        sheet = Image.new("L", (2 * SIDE, 2 * SIDE))
        face = faces[rng.integers(len(faces))]
        ImageDraw.Draw(sheet).text((SIDE, SIDE), str(label), fill=255, font=face, anchor="mm")
        turned = sheet.rotate(rng.uniform(-15, 15), Image.Resampling.BICUBIC)
        x, y = rng.integers(SIDE // 2 - 3, SIDE // 2 + 4, 2)
        masks[i] = np.asarray(turned)[y : y + SIDE, x : x + SIDE] / 255
    ink, paper = _colours(len(labels), rng)
    return _pixels(paper + masks[:, None] * (ink - paper))


def _colours(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw n pairs of colours, [n, 3, 1, 1] from 0 to 1, whose brightness differs by at least 0.3."""
    weights = np.array([0.299, 0.587, 0.114])  # of red, green and blue in brightness
    pairs = rng.uniform(0, 1, (20 * n, 2, 3))
    clear = pairs[np.abs((pairs[:, 0] - pairs[:, 1]) @ weights) >= 0.3][:n]
    return clear[:, 0, :, None, None], clear[:, 1, :, None, None]


def _face(name: str, size: int) -> ImageFont.FreeTypeFont:
    import matplotlib

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"), size)


def _patches(n: int, origin: int, rng: np.random.Generator) -> np.ndarray:
    """Cut n patches from the strips of the photographs that belong to a part: [n, 3, 32, 32], 0 to 1."""
    from sklearn.datasets import load_sample_images

    photos = np.stack(load_sample_images().images)  # [2, 427, 640, 3]
    _, height, width, _ = photos.shape
    left, right = (int(edge * width) for edge in _STRIPS[origin])
    which = rng.integers(len(photos), size=n)
    y = rng.integers(height - SIDE + 1, size=n)
    x = rng.integers(left, right - SIDE + 1, size=n)
    patches = np.stack([photos[p, b : b + SIDE, a : a + SIDE] for p, b, a in zip(which, y, x)])
    return patches.transpose(0, 3, 1, 2) / 255


# ---- what all data sets of digits share


class Part(NamedTuple):
    """Images of one domain and one part of the published division.

    Attributes:
        images: uint8 [n, ...].
        labels: [n], whole numbers from 0 to 9.
        domain: number of the domain.
        origin: TRAIN, VAL, TEST or UNUSED.
    """

    images: np.ndarray
    labels: np.ndarray
    domain: int
    origin: int


def join_labels(parts: Sequence[Part]) -> dict[str, np.ndarray]:
    """Return ``labels``, ``domains`` and ``origin`` of all parts, one after the other, as in `Dataset`."""
    sizes = [len(part.labels) for part in parts]
    return {
        "labels": np.concatenate([part.labels for part in parts]).astype(np.int64),
        "domains": np.repeat(np.array([part.domain for part in parts], np.int64), sizes),
        "origin": np.repeat(np.array([part.origin for part in parts], np.uint8), sizes),
    }


def digit_dataset(
    images: np.ndarray, arrays: Mapping[str, np.ndarray], domain_names: tuple[str, ...]
) -> Dataset:
    """Return images, uint8 [N, 3, H, W], with what ``join_labels`` returns, normalised to -1 to 1."""
    return Dataset(
        inputs=images,
        labels=arrays["labels"],
        domains=arrays["domains"],
        origin=arrays["origin"],
        class_names=tuple("0123456789"),
        domain_names=domain_names,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )
