# %% [markdown]
# # A run taken apart in pandas
#
# A result has two tables, and both are pandas frames. Take a federation of twelve clients, of which half train in a
# round.

# %%
from rayfl import Federation, Inline, Training
from rayfl.data import Dirichlet, EmbeddedDigits
from rayfl.methods import Ditto

result = Federation(
    method=Ditto(),
    data=EmbeddedDigits(partition=Dirichlet(alpha=0.3)),
    clients=12,
    participation=0.5,
    rounds=5,
    training=Training(last_batch="drop"),
    engine=Inline(),
    output="runs/ditto",
    quiet=True,
).run()
result.rounds.round(3).T

# %% [markdown]
# `rounds` has a row for each round: loss, bytes and means. `clients` has one for each client and evaluation:

# %%
result.clients.head()

# %% [markdown]
# Who gains by personalisation?

# %%
last = result.clients.query("round == 4 and part == 'test'")
wide = last.pivot(index="client", columns="view", values="figure")
wide["gain"] = wide["personal"] - wide["global"]
wide.sort_values("gain").round(2)

# %% [markdown]
# Do large clients do better? The correlation with the number of samples:

# %%
size = last.query("view == 'personal'").set_index("client")["samples"]
print(wide.assign(samples=size).corr()["samples"].round(2))

# %% [markdown]
# The accuracy of the worst fourth of clients, over rounds:

# %%
test = result.clients.query("part == 'test'")
worst = test.groupby(["round", "view"])["figure"].quantile(0.25).unstack()
worst.round(2)

# %% [markdown]
# pandas draws, too:

# %%
wide[["global", "personal"]].plot.bar(figsize=(6, 3), ylabel="accuracy", rot=0)

# %% [markdown]
# `Result.load("runs/ditto")` reads a run that is over. The same tables are in the folder as files:
# [records](../records.md).
