# %% [markdown]
# # A model taken out
#
# A run keeps the models of its clients. You can take them out, for PyTorch alone.

# %%
from rayfl import Federation, Inline
from rayfl.data import EmbeddedDigits
from rayfl.methods import FedBN

federation = Federation(
    method=FedBN(),
    data=EmbeddedDigits(),
    rounds=4,
    clients=5,
    engine=Inline(),
    output="runs/fedbn",
    quiet=True,
)
result = federation.run()
result.models

# %% [markdown]
# Client 0 has handwritten digits. Its model is a plain PyTorch module.

# %%
result.models[0].module("personal")

# %% [markdown]
# `predict` takes images as the data set has them, and returns probabilities.

# %%
import matplotlib.pyplot as plt
import torch

divided = federation.federated_data()
some = divided.clients[0].test[::45]
images = torch.as_tensor(divided.dataset.inputs[some])
read = result.models[0].predict(images).argmax(1)

figure, axes = plt.subplots(1, 8, figsize=(8, 1.4))
for axis, image, digit in zip(axes, images, read):
    axis.imshow(image.permute(1, 2, 0).numpy())
    axis.set_title(f"read: {int(digit)}", fontsize=9)
    axis.axis("off")

# %% [markdown]
# ## Without rayfl
#
# `export` writes a file, here a program of `torch.export`, and a description. Another program needs PyTorch alone:

# %%
import json

from rayfl.commands.export import export

path = export("runs/fedbn", client=0, output="models", format="torch")
about = json.load(open(f"{path}.json"))
model = torch.export.load(path).module()

scale = about["preprocessing"]
mean, std = (torch.tensor(scale[name])[:, None, None] for name in ("mean", "std"))
scores = model((images / scale["divide_by"] - mean) / std)
print([about["classes"][k] for k in scores.argmax(1).tolist()])

# %% [markdown]
# More: [formats, and models on other clients' data](../howto/export.md).
