"""`WriterDigits`: a small table with natural groups, scikit-learn's digits by the forms they come from."""

from typing import Annotated

import numpy as np

from rayfl.data.base import Data
from rayfl.data.dataset import TEST, TRAIN, Dataset
from rayfl.data.partitions.by_user import ByUser
from rayfl.settings import at_least, at_most

STARTS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)
"""Where the forms begin in the order of scikit-learn's samples."""


class WriterDigits(Data):
    """Scikit-learn's handwritten digits as a table of 64 features, by writer, without any download.

    A row is what UCI publishes of a digit: how many of the 16 pixels of each of 8x8 blocks are black, here
    divided by 16, as float32 [64]. People filled in forms that ask for the same 130 digits in the same order,
    of which some were dropped. Neither UCI nor scikit-learn says who wrote which digit, but the rows are in
    the order of the forms, so that the labels tell where one begins: 14 forms, which are the users. UCI names
    13 writers for them, so one wrote two. A client per user (or several) is the default partition.

    Of each form the first ``labelled`` digits are for training, the rest for testing. If they are
    few, collaboration helps; with many, a writer's own model is better than one for all.
    """

    _natural = ByUser

    labelled: Annotated[int, at_least(10), at_most(100)] = 10
    """Digits of each form to train on; the first ten are one of each class."""

    def load(self) -> Dataset:
        """Read the table that scikit-learn brings along."""
        from sklearn.datasets import load_digits

        table = load_digits()
        sizes = np.diff([*STARTS, len(table.target)])
        users = np.repeat(np.arange(len(STARTS)), sizes)
        place = np.arange(len(users)) - np.repeat(STARTS, sizes)
        return Dataset(
            inputs=(table.data / 16).astype(np.float32),
            labels=table.target.astype(np.int64),
            domains=np.zeros(len(users), np.int64),
            origin=np.where(place < self.labelled, TRAIN, TEST).astype(np.uint8),
            class_names=tuple(map(str, range(10))),
            domain_names=(type(self).__name__,),
            users=users.astype(np.int64),
            user_names=tuple(f"form{number}" for number in range(len(STARTS))),
        )
