"""Augmented batches: what is done to images, that it follows from the key alone, and where it happens."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from PIL import Image

from rayfl.data import Dataset
from rayfl.evaluation.score import score_clients
from rayfl.training.examples import Examples, _erase_and_shift, _erasure_numbers, apply_changes, draw_changes
from rayfl.training.loop import fit_loop, total_loop
from rayfl.training.noise import step_keys, uniform
from rayfl.training.stacked import fit_stacked, total_stacked
from tests.support.nets import close, make_client, make_dataset, same_bits, smooth_net


def pictures(n, height=24, width=24, seed=0):
    return torch.from_numpy(
        np.random.default_rng(seed).integers(1, 256, (n, 3, height, width), dtype=np.uint8)
    )


def changed(images, keys, kind):
    """The augmented images, and where they are blank."""
    return apply_changes(images, draw_changes(keys, len(images), *images.shape[2:], kind), kind)


def shown(images, keys, kind):
    """The augmented images, 0 where they are blank."""
    found, blank = changed(images, keys, kind)
    assert found.dtype == images.dtype
    return found.masked_fill(blank, 0)


KEYS = step_keys(7, 3)


@pytest.mark.parametrize("kind", ["fedbn", "fedgh", "reflect"])
def test_a_stack_gives_the_bits_of_the_loop(kind):
    images = pictures(3 * 37, 17, 23)
    together = shown(images, KEYS, kind)
    one_by_one = [shown(part, key, kind) for part, key in zip(images.split(37), KEYS)]
    assert torch.equal(together, torch.cat(one_by_one))
    assert not torch.equal(one_by_one[0], shown(images[:37], KEYS[1], kind))


def test_turned_as_pillow_turns():
    """By an angle found by search, flipped or not: all but a few pixels of rounding agree."""
    images = pictures(6, 21, 30)
    flips = 0
    for image, found in zip(images, shown(images, KEYS[0], "fedbn")):
        picture, target = image.permute(1, 2, 0).numpy(), found.permute(1, 2, 0).numpy()
        best = 0.0
        for flip in (False, True):
            start = Image.fromarray(np.ascontiguousarray(picture[:, ::-1]) if flip else picture)
            for angle in np.arange(-30, 30.01, 0.25):
                turned = np.asarray(start.rotate(angle, Image.Resampling.NEAREST))
                agree = float((turned == target).all(2).mean())
                if agree > best:
                    best, flipped = agree, flip
        assert best > 0.93
        flips += flipped
    assert 0 < flips < 6


def test_angles_fill_their_range():
    """A bar from the middle to the right edge ends at sin(angle) above or below it."""
    side = 101
    bar = torch.zeros(400, 1, side, side, dtype=torch.uint8)
    bar[:, :, side // 2, side // 2 + 30] = 255
    # a turned pixel may fall between the grid's, so a fat one is drawn
    bar = torch.nn.functional.max_pool2d(bar.float(), 3, 1, 1)
    found = shown(bar, KEYS[0], "fedbn")
    weight = found.sum((1, 2, 3))
    y = (found.sum(3).squeeze(1) * (torch.arange(side) - side // 2)).sum(1) / weight
    x = (found.sum(2).squeeze(1) * (torch.arange(side) - side // 2)).sum(1) / weight
    angles = torch.rad2deg(torch.atan(y / x))
    assert angles.abs().max() < 32
    assert angles.min() < -27
    assert angles.max() > 27
    assert abs(angles.mean()) < 3
    assert abs((x < 0).float().mean() - 0.5) < 0.1


def test_flip_erase_and_crop():
    """Every image is the old one, maybe mirrored, shifted by up to 4, with at most a rectangle missing."""
    n, side = 200, 20
    images = pictures(n, side, side)
    flips = erased = 0
    shifts = set()
    for image, new in zip(images, shown(images, KEYS[0], "fedgh")):
        both = torch.stack([torch.nn.functional.pad(each, (4,) * 4) for each in (image, image.flip(2))])
        windows = both.unfold(2, side, 1).unfold(3, side, 1)  # [flips, channels, 9, 9, side, side]
        same = (windows == new[None, :, None, None]).all(1)
        flip, dy, dx = np.unravel_index(int(same.sum((3, 4)).argmax()), (2, 9, 9))
        differs = ~same[flip, dy, dx]
        assert (new[:, differs] == 0).all()
        rows, columns = (differs.any(d).nonzero() for d in (1, 0))
        if len(rows):
            tall, wide = int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1
            assert differs.sum() == tall * wide  # one full rectangle
            assert tall * wide <= 9 * 9  # 20 % are 80 pixels: sqrt(80) is 8.9
            erased += 1
        flips += flip
        shifts.add((dy, dx))
    assert {dy for dy, _ in shifts} == {dx for _, dx in shifts} == set(range(9))
    assert abs(flips / n - 0.5) < 0.12
    assert abs(erased / n - 0.5) < 0.12


def test_reflected_as_pytorch_pads():
    """Every one of 81 crops of the padded image, flipped or not, and each as often as the others."""
    images = pictures(1, 12, 10).expand(4000, -1, -1, -1)
    padded = torch.nn.functional.pad(images[:1].float(), (4, 4, 4, 4), mode="reflect").byte()[0]
    crops = {
        (flip, down, right): padded[:, down : down + 12, right : right + 10].flip([2] if flip else [])
        for flip in (False, True)
        for down in range(9)
        for right in range(9)
    }
    names = {crop.contiguous().numpy().tobytes(): name for name, crop in crops.items()}
    assert len(names) == 162
    found, blank = changed(images, KEYS[0], "reflect")
    assert not blank.any()
    crops = [names[image.contiguous().numpy().tobytes()] for image in found]
    for place, count in enumerate((2, 9, 9)):
        often = np.bincount([int(name[place]) for name in crops], minlength=count)
        assert (abs(often - 4000 / count) < 4.5 * math.sqrt(4000 / count)).all()


@pytest.mark.parametrize(
    ("area", "ratio", "tall", "wide"),
    [
        (0.0, 0.5, 20, 20),  # 4 %: 400 pixels of 100 x 100
        (1.0, 0.5, 45, 45),  # 20 %: sqrt(2000) = 44.7
        (1.0, 1.0, 63, 32),  # twice as tall as wide: sqrt(4000) = 63.2, sqrt(1000) = 31.6
        (1.0, 0.0, 32, 63),
        (0.5, 0.5, 35, 35),  # 12 %: sqrt(1200) = 34.6
    ],
)
@pytest.mark.parametrize("corner", [0.0, 0.999])
def test_rectangles_by_hand(area, ratio, tall, wide, corner):
    """Their sides are the roots of area times and by ratio, to the nearest pixel; nothing is shifted."""
    still = (4 + 0.5) / 9
    for erase in (0.49, 0.5):
        draws = torch.tensor([[erase, area, ratio, corner, corner, still, still]], dtype=torch.float64)
        numbers = [each[:, None, None] for each in _erasure_numbers(draws, 100, 100)]
        rows, columns, erased = _erase_and_shift(numbers, 100, 100)
        assert rows[0, :, 0].tolist() == columns[0, 0].tolist() == list(range(100))
        where = torch.zeros(100, 100, dtype=torch.bool)
        top, left = (0, 0) if corner == 0 else (100 - tall, 100 - wide)
        where[top : top + tall, left : left + wide] = erase < 0.5
        assert torch.equal(erased[0], where)


def image_dataset(augment, n=60):
    images = pictures(n, 12, 12).numpy()
    return Dataset(
        inputs=images,
        labels=np.arange(n) % 3,
        domains=np.zeros(n, np.int64),
        origin=np.zeros(n, np.uint8),
        class_names=tuple("abc"),
        domain_names=("one",),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        augment=augment,
    )


@pytest.mark.parametrize("channels_last", [False, True])
def test_batches_are_augmented_with_a_key_only(channels_last):
    images = Examples(image_dataset("fedgh"), torch.device("cpu"), torch.float32, channels_last)
    plain = Examples(image_dataset("none"), torch.device("cpu"), torch.float32, channels_last)
    indices = torch.arange(10)
    clean, _ = plain.batch(indices)
    assert torch.equal(images.batch(indices)[0], clean)
    assert plain.draw_changes([indices], KEYS[:1]) == [None]
    found, labels = images.batch(indices, *images.draw_changes([indices], KEYS[:1]))
    assert labels.tolist() == (np.arange(10) % 3).tolist()
    assert not torch.equal(found, clean)
    # blank is 0 after normalisation, what is shown is normalised as ever
    bytes_, blank = changed(torch.from_numpy(image_dataset("none").inputs[:10]), KEYS[0], "fedgh")
    expected = ((bytes_ / 255 - 0.5) / 0.25).masked_fill(blank, 0)
    assert torch.allclose(found, expected, atol=1e-6)
    both = torch.stack([indices, indices])
    stacked, _ = images.batch(both, *images.draw_changes([both], [KEYS[:2]]))
    assert torch.equal(stacked[0], found)
    assert torch.equal(stacked[1], images.batch(indices, *images.draw_changes([indices], KEYS[1:2]))[0])


def test_fits_agree_and_totals_are_clean():
    def clients(augment):
        dataset = dataclasses.replace(make_dataset(40), augment=augment)
        images = Examples(dataset, torch.device("cpu"), torch.float64, False)
        return [make_client(net, images, 12, id=k, first=12 * k) for k in range(2)]

    def fits(augment):
        return [c.fit(c.initial, c.loss, epochs=2) for c in clients(augment)]

    def totals(augment):
        return [c.total(lambda w, batch, _: batch.x.sum(0), c.initial) for c in clients(augment)]

    net = smooth_net()
    loop, stack = [fit_loop(r) for r in fits("fedgh")], fit_stacked(fits("fedgh"))
    for a, b, request in zip(loop, stack, fits("none")):
        assert close(a.weights, b.weights, 1e-12)
        assert not close(a.weights, fit_loop(request).weights, 1e-6)
    expected = [total_loop(r) for r in totals("none")]
    assert same_bits([total_loop(r) for r in totals("fedgh")], expected)
    assert same_bits(total_stacked(totals("fedgh")), expected)


def test_scores_are_augmented_with_a_key_only(monkeypatch):
    """Each batch otherwise: of twice the same images, the second half is not turned like the first."""
    monkeypatch.setattr("rayfl.evaluation.score.BATCH", 30)
    images = Examples(image_dataset("fedbn"), torch.device("cpu"), torch.float32, False)
    seen = []

    async def predict(x):
        seen.append(x)
        return {"v": x.mean((2, 3))}

    for key in (None, 3, 3, 4):
        score_clients({7: predict}, {7: torch.arange(30).repeat(2)}, images, keys=key and {7: key})
    assert torch.equal(seen[0], images.batch(torch.arange(30))[0])
    assert torch.equal(seen[2], seen[4])
    assert len({x.numpy().tobytes() for x in seen}) == 5


@pytest.mark.parametrize("kind", ["fedbn", "fedgh", "reflect"])
def test_a_loss_may_draw_with_the_key_of_its_step(monkeypatch, kind):
    """And has other numbers than the augmentation of its batch."""
    keys = []

    def kept(key, shape):
        keys.append(int(key))
        return uniform(key, shape)

    monkeypatch.setattr("rayfl.training.examples.uniform", kept)
    draw_changes(KEYS, 6, 24, 24, kind)
    assert len({*keys, *KEYS.tolist()}) == 6
