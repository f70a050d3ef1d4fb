# %% [markdown]
# # Your own method in ten lines
#
# Four hospitals measure the same eight numbers. Two of them use the numbers with the opposite sign.

# %%
import numpy as np

from rayfl import Federation, Inline, Plot
from rayfl.data import Arrays
from rayfl.methods import FedAvg, Local
from rayfl.nets import MLP

rng = np.random.default_rng(0)
x = rng.standard_normal((800, 8))
y = (x[:, 0] + 0.5 * x[:, 1] > 0).astype(int)
hospital = np.repeat(["north", "south", "east", "west"], 200)
x[(hospital == "east") | (hospital == "west")] *= -1

data = Arrays(x, y, users=hospital, names=["ill", "well"])
settings = {"data": data, "net": MLP(), "rounds": 6, "engine": Inline(), "quiet": True}
fedavg = Federation(method=FedAvg(), output="runs/FedAvg", **settings).run()
fedavg

# %% [markdown]
# FedAvg has one model for all, so it cannot serve both groups of hospitals.
#
# ## The method
#
# A method is a class. `local_update` says what a client does in a round. It returns what the client sends, and what it
# keeps. This method keeps a personal model and mixes it with the server's model before training. `share` is an option,
# with bounds.

# %%
from typing import Annotated

from rayfl.methods import Method
from rayfl.settings import at_least, at_most


class Mixed(Method):
    """Each client starts from a mix of its own model and the server's."""

    share: Annotated[float, at_least(0), at_most(1)] = 0.5
    """Part of the client's own model in the mix; 0 is FedAvg."""

    async def local_update(self, client, state, down):
        """Mix, train, send the model and keep it."""
        own = state.get("own", down["weights"])
        fitted = await client.fit(self.share * own + (1 - self.share) * down["weights"], client.loss)
        return {"weights": fitted.weights}, {"own": fitted.weights}

    async def scores(self, client, state, down, x):
        """Score the client's own model, and the server's."""
        own = state.get("own", down["weights"])
        return {"personal": await client.eval(own, x), "global": await client.eval(down["weights"], x)}


Mixed(share=0.9)

# %% [markdown]
# Even a small part of its own model lets each hospital learn its own sign. `Local` never sends anything.

# %%
mixed = Federation(method=Mixed(share=0.2), output="runs/Mixed", **settings).run()
local = Federation(method=Local(), output="runs/Local", **settings).run()
Plot("runs/FedAvg", "runs/Mixed", "runs/Local").rounds(panels=["all"])

# %% [markdown]
# ## A mistake
#
# rayfl checks options before anything runs, and says what is wrong.

# %%
from rayfl import UserError

try:
    Mixed(share=1.5)
except UserError as error:
    print(error)

# %% [markdown]
# For the command line, save the class in a file: `rayfl run --method mixed.Mixed --method.share 0.9`. The checks of
# [`rayfl.testing`](../testing.md) show whether a method does what every method must do. [All hooks](../howto/method.md).
