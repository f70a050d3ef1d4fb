# %% [markdown]
# # Your own CSV file or arrays
#
# ## A table
#
# Here five hospitals have a CSV file of patients, with gaps.

# %%
import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
n = 600
patients = pd.DataFrame(
    {
        "hospital": rng.choice(["north", "south", "east", "west", "centre"], n),
        "age": rng.integers(20, 90, n),
        "sex": rng.choice(["f", "m"], n),
        "dose": rng.normal(1, 0.4, n).round(3),
    }
)
risk = (patients["age"] - 55) / 20 + (patients["sex"] == "m") - (patients["dose"] - 1) / 0.4
patients["outcome"] = np.where(risk + rng.normal(0, 0.5, n) > 0.5, "ill", "well")
patients.loc[[3, 7], "dose"] = np.nan
patients.to_csv("patients.csv", index=False)
patients.head()

# %% [markdown]
# `y` is the column to learn. Each hospital (`users`) becomes a client.

# %%
from rayfl import Federation, Inline, Plot
from rayfl.data import Table
from rayfl.methods import FedAvg, Local
from rayfl.nets import MLP

settings = {"net": MLP(), "engine": Inline(), "rounds": 10, "quiet": True}
table = Table(train="patients.csv", y="outcome", users="hospital", missing="mean")
federation = Federation(method=FedAvg(), data=table, output="runs/FedAvg", **settings)
print(federation.federated_data().table())

# %% [markdown]
# Do the hospitals gain by learning together?

# %%
federation.run()
Federation(method=Local(), data=table, output="runs/Local", **settings).run()
Plot("runs/FedAvg", "runs/Local").rounds(panels=["all"])

# %% [markdown]
# ## Arrays
#
# `Arrays` takes inputs and targets. These are small grey images of four users. Classes are whole numbers or texts.

# %%
from rayfl.data import Arrays

y = rng.integers(0, 2, 400)
x = rng.integers(0, 200, (400, 1, 8, 8), dtype=np.uint8)
x[y == 1, :, 2:6, 2:6] += 50  # the second class has a light square
user = np.repeat(["ada", "ben", "cem", "dora"], 100)

result = Federation(method=FedAvg(), data=Arrays(x, y, users=user), output="runs/arrays", **settings).run()
result.clients.query("round == 9 and part == 'test' and view == 'global'")[["client", "samples", "figure"]]

# %% [markdown]
# More: [files, images, texts and other data sets](../howto/data.md).
