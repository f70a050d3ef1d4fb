"""The School data as a table: marks of 15,362 pupils of 139 London schools, and what is known of each pupil.

    python examples/school/school.py school.mat school.csv

It is the file of MALSAR (J. Zhou, J. Chen, J. Ye, 2011): cells X and Y, one matrix
for each school. Marks go from 1 to 70, and are brought to 0 to 1 here, as in the papers that compare with it.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.io
from torch import nn

from rayfl.nets import Shape


def read_school(path: str | Path) -> pd.DataFrame:
    """Return a row for each pupil: ``school``, ``mark``, and the inputs ``x0`` to ``x27``."""
    found = scipy.io.loadmat(path)
    tables = []
    for school, (x, y) in enumerate(zip(found["X"].ravel(), found["Y"].ravel(), strict=True)):
        inputs = pd.DataFrame(np.asarray(x, dtype=np.float64)).add_prefix("x")
        tables.append(inputs.assign(school=f"school {school:03d}", mark=(y.ravel() - 1.0) / 69.0))
    return pd.concat(tables, ignore_index=True)


def linear_from_zero(shape: Shape, classes: int) -> nn.Module:
    """Return a linear model whose weights begin at 0."""
    net = nn.Linear(shape[0], classes)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    return net


if __name__ == "__main__":
    read_school(sys.argv[1]).to_csv(sys.argv[2], index=False)
