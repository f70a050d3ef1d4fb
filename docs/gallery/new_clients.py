# %% [markdown]
# # Fine-tuning and new clients
#
# How good is FedAvg's model if each client trains it a little on its own data? And for clients that never took part?
#
# `finetune` trains a copy of the model for one epoch before each evaluation. `unseen_clients` keeps three of twelve
# clients out of training.

# %%
from rayfl import Federation, Finetune, Inline, Training
from rayfl.data import Dirichlet, EmbeddedDigits
from rayfl.methods import FedAvg

result = Federation(
    method=FedAvg(),
    data=EmbeddedDigits(partition=Dirichlet(alpha=0.3)),
    clients=12,
    unseen_clients=3,
    finetune=Finetune(epochs=1),
    rounds=5,
    training=Training(last_batch="drop"),
    engine=Inline(),
    output="runs/new_clients",
    quiet=True,
).run()

# %% [markdown]
# `global` is the server's model, `finetuned` the copy. New clients have scores at the point `unseen`.

# %%
test = result.clients.query("part == 'test' and view in ('global', 'finetuned')")
test.query("round == 4").pivot_table(index="point", columns="view", values="figure").round(2)

# %% [markdown]
# One number hides the clients. Each of them has a few of the ten digits, and fine-tuning learns which.

# %%
test.query("round == 4").pivot(index="client", columns="view", values="figure").round(2)

# %%
result.plot.clients(views=["global", "finetuned"])

# %% [markdown]
# More: [fine-tuning](../training.md#fine-tuning-before-an-evaluation),
# [new clients](../records.md#new-clients-of-any-partition).
