"""Folders of made-up images, and lists of their division."""

import pickle

import numpy as np
from PIL import Image


def colour(domain, label, k):
    """A colour that tells an image from every other one."""
    return 40 * domain + 5, 20 * label + 5, 3 * k + 5


def write(root, domains, classes, per_class, kind="png"):
    """Write plain images, ``per_class[d]`` of each class of domain d; return root."""
    for d, domain in enumerate(domains):
        for c, name in enumerate(classes):
            place = root / domain / name
            place.mkdir(parents=True)
            for k in range(per_class[d]):
                Image.new("RGB", (6 + k % 3, 5), colour(d, c, k)).save(place / f"frame_{k:04d}.{kind}")
    return root


def lists(folder, domains, classes, per_class, above, held_out=1, as_lists=False, spelled=str):
    """Write lists like FedBN's: shuffled arrays of paths and of class names; the last of each class tests."""
    rng = np.random.default_rng(1)
    order = {}
    for d, domain in enumerate(domains):
        rows = [(c, k) for c in range(len(classes)) for k in range(per_class[d])]
        for part, chosen in (
            ("train", [r for r in rows if r[1] < per_class[d] - held_out]),
            ("test", [r for r in rows if r[1] >= per_class[d] - held_out]),
        ):
            chosen = [chosen[i] for i in rng.permutation(len(chosen))]
            paths = [f"{above}/{domain}/{spelled(classes[c])}/frame_{k:04d}.png" for c, k in chosen]
            names = [spelled(classes[c]) for c, _ in chosen]
            content = (paths, names) if as_lists else (np.array(paths), np.array(names))
            (folder / f"{domain}_{part}.pkl").write_bytes(pickle.dumps(content, protocol=4))
            order[domain, part] = chosen
    return order
