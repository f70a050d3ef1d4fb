# %% [markdown]
# # First federation
#
# Train a federation, and look at its results. You need `pip install 'rayfl[notebook]'`, no download and no GPU.
#
# ## Describe the experiment
#
# A `Federation` has all settings of an experiment. Type its name to see them. `Inline` runs all clients in this process.
# Without it, rayfl starts Ray and uses all processors. With `last_batch="drop"` clients leave out a last batch that is
# too small for BatchNorm.

# %%
from rayfl import Federation, Inline, Training
from rayfl.data import Dirichlet, EmbeddedDigits
from rayfl.methods import FedAvg, FedRep

settings = {
    "data": EmbeddedDigits(partition=Dirichlet(alpha=0.3)),
    "clients": 10,
    "rounds": 3,
    "training": Training(last_batch="drop"),
    "engine": Inline(),
    "quiet": True,  # without it you see the progress
}
federation = Federation(method=FedRep(), output="runs/fedrep", **settings)
federation

# %% [markdown]
# ## Look at the data
#
# Each client has images of digits. `Dirichlet` gives every client other shares of the ten digits. The smaller `alpha`
# is, the more they differ. The table shows how many images of each digit a client trains on.

# %%
divided = federation.federated_data()
print(divided.table())

# %% [markdown]
# ## Run it
#
# All records are in `runs/fedrep`, with [a page](../howto/report_page.md), `report.html`.

# %%
result = federation.run()
result

# %% [markdown]
# ## Look at the results
#
# `result.clients` has a row for each client and evaluation. Rounds count from 0. The mean hides much, so look at each
# client.

# %%
last = result.clients.query("round == 2 and part == 'test' and view == 'personal'")
last[["client", "samples", "figure"]]

# %% [markdown]
# ## Compare with another method
#
# FedRep leaves the last layer with the clients: each has to tell only its own digits apart. The layers before it are
# learned together. FedAvg averages the whole net. Its one model serves nobody well, because every client pulls it
# towards its own digits. Everything else is the same: the same data, the same first weights.

# %%
fedavg = Federation(method=FedAvg(), output="runs/fedavg", **settings).run()
print(f"FedRep {result.figure:.2f}, FedAvg {fedavg.figure:.2f}")

# %% [markdown]
# ## Go on with a run
#
# Three rounds are few. `resumed` opens a run folder again. The result has the same bytes as a run that never stopped.

# %%
from rayfl import resumed

longer = resumed("runs/fedrep", {"rounds": 4, "quiet": True}).run()
longer

# %% [markdown]
# ## Draw it

# %%
from rayfl import Plot

Plot("runs/fedrep", "runs/fedavg").rounds()

# %% [markdown]
# Next: [a run taken apart in pandas](records.ipynb), [a model taken out](export.ipynb), [more pictures](../howto/pictures.md).
