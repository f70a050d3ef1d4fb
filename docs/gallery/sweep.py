# %% [markdown]
# # A sweep
#
# A tune space says what to search. This one tries six points of Ditto. The best is chosen on validation data.

# %%
from pathlib import Path

Path("ditto.yaml").write_text("""
sweep: ditto
base:
  method: Ditto
  data: Synthetic
  data.train: 600
  data.test: 200
  data.noise: 2.0
  data.val_fraction: 0.2
  data.partition: Dirichlet
  net: LeNet
  clients: 5
  rounds: 5
  training.last_batch: drop
  engine: Inline
search:
  training.lr: [0.01, 0.1, 0.3]
  method.mu: [0.01, 1.0]
""")

# %%
# !rayfl tune ditto.yaml > ditto.log

# %%
import pandas as pd

points = pd.read_csv("runs/ditto/points.csv")
points[["training.lr", "method.mu", "validation", "test", "best"]].round(3)

# %% [markdown]
# A picture of all trials. With one seed, small differences may be chance.

# %%
from rayfl import Plot

Plot("runs/ditto").sweep("training.lr")

# %% [markdown]
# `runs/ditto/best.yaml` has the best point: `rayfl table runs/ditto/best.yaml --seeds 5` repeats it with five seeds.
# More: [random draws, ASHA, Optuna, clusters](../sweeps.md).
