# %% [markdown]
# # Several domains
#
# The embedded digits have five domains: the same ten digits, drawn in other styles. Here each of five clients has one.

# %%
from rayfl import Federation, Inline, Plot
from rayfl.data import EmbeddedDigits
from rayfl.methods import FedAvg, FedBN, FedCO2

settings = {"data": EmbeddedDigits(), "clients": 5, "rounds": 5, "engine": Inline(), "quiet": True}
for method in (FedAvg(), FedBN(), FedCO2()):
    result = Federation(method=method, output=f"runs/{type(method).__name__}", **settings).run()
    print(f"{method}: {result.figure:.2f}")

# %% [markdown]
# FedAvg has one model for all. FedBN leaves BatchNorm's layers with the clients. Fed-CO2 has a personal model besides,
# and transfers knowledge between the two.

# %%
Plot("runs").bars(start=40)

# %% [markdown]
# The same over rounds, a panel for each domain. After twenty rounds FedBN is ahead of FedAvg, too
# ([results](../results/embedded_methods.md)).

# %%
Plot("runs").rounds()

# %% [markdown]
# How good is FedBN in a domain that it has never seen? `unseen` keeps it out of training.

# %%
unseen = Federation(method=FedBN(), unseen="photo", output="unseen", **settings).run()
unseen.clients.query("round == 4 and domain == 'photo'")[["point", "domain", "samples", "figure"]]

# %% [markdown]
# More: [partitions](../data.md#partitions), [unseen domains](../records.md#unseen-domains).
