"""Write a part of CIFAR-10 or CIFAR-100 in the published layout, for runs that are to be short.

    python examples/part_of_cifar.py DATA/cifar-10-batches-py PART --train 100 --test 100

keeps, in each of the five training files and in the test file, the first 100 images of every class: a tenth.
PART is then a data.root of its own; as its files are not the published ones, runs need data.verify=false.
"""

import argparse
import pickle
import shutil
from pathlib import Path

import numpy as np

from rayfl.data.readers.files import unpickle
from rayfl.system.text import print_note

META = {"batches.meta": "labels", "meta": "fine_labels"}
"""Name of the file that comes with the batches -> where these have the labels that count."""
BATCHES = ("data_batch_", "test", "train")
"""How the names of files with images begin."""


def keep_first(content: dict, labels: str, count: int) -> dict:
    """Return a batch with the first ``count`` images of every class, in their order."""
    of_image = np.array(content[labels])
    kept = np.sort(np.concatenate([np.flatnonzero(of_image == c)[:count] for c in np.unique(of_image)]))
    lists = {key: value for key, value in content.items() if isinstance(value, list)}
    part = {key: [value[i] for i in kept] for key, value in lists.items() if len(value) == len(of_image)}
    return part | {"data": content["data"][kept]}


def main() -> None:
    """Read the command line and write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="folder of the batches, such as DATA/cifar-100-python")
    parser.add_argument("part", type=Path, help="folder to write to, which must not exist")
    parser.add_argument("--train", type=int, required=True, help="images of a class in a training file")
    parser.add_argument("--test", type=int, required=True, help="images of a class in the test file")
    given = parser.parse_args()
    meta = next((name for name in META if (given.source / name).is_file()), None)
    if meta is None:
        parser.error(f"{given.source} has none of the files {', '.join(META)}")
    if given.part.exists():
        parser.error(f"{given.part} already exists")
    folder = given.part / given.source.resolve().name
    folder.mkdir(parents=True)
    shutil.copyfile(given.source / meta, folder / meta)
    for path in sorted(p for p in given.source.iterdir() if p.name.startswith(BATCHES)):
        count = given.test if path.name.startswith("test") else given.train
        part = keep_first(unpickle(path), META[meta], count)
        with (folder / path.name).open("wb") as file:
            pickle.dump(part, file)
        print_note(f"{folder / path.name}: {len(part['data'])} images")


if __name__ == "__main__":
    main()
