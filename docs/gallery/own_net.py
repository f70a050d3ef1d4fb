# %% [markdown]
# # Your own net
#
# A net is any PyTorch module that ends in a linear layer. This class builds one for the data at hand; `width` is an
# option.

# %%
from torch import nn

from rayfl import Federation, Inline, Plot
from rayfl.data import EmbeddedDigits
from rayfl.methods import FedPer
from rayfl.nets import Architecture


class Small(Architecture):
    """Two convolutions and a linear layer."""

    width: int = 16

    def build(self, shape, classes):
        """Return the module, with random weights."""
        return nn.Sequential(
            nn.Conv2d(shape[0], self.width, 5, stride=2),
            nn.ReLU(),
            nn.Conv2d(self.width, self.width, 5, stride=2),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(3),
            nn.Flatten(),
            nn.Linear(9 * self.width, classes),
        )


# %% [markdown]
# rayfl tries the net before the run. `FedPer` keeps the last layer with each client.

# %%
settings = {"data": EmbeddedDigits(), "method": FedPer(), "rounds": 10, "engine": Inline(), "quiet": True}
for name, net in {"small": Small(), "wide": Small(width=32)}.items():
    result = Federation(net=net, output=f"runs/{name}", **settings).run()
    weights = sum(p.numel() for p in result.models[0].module("personal").parameters())
    print(f"{name}: {weights:,} weights, accuracy {result.figure:.2f}")

# %%
Plot("runs").rounds(panels=["all"])

# %% [markdown]
# On the command line a module needs no class around it: `rayfl run --net torchvision.models.resnet18`, or
# [`--net my_nets.Small`](../howto/net.md).
