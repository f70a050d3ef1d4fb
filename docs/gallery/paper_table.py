# %% [markdown]
# # A paper's table
#
# Every table of four papers comes with rayfl as a file. This is a part of Table 3 of Fed-CO2: clients have unequal
# shares of the classes. The paper's data are a download. Here the embedded digits take their place, with a smaller net,
# fewer clients and three rounds:

# %%
# !rayfl table fedco2/t3 --rows SingleSet FedAvg FedPer Fed-CO2 --columns "CIFAR10 Dirichlet" --seeds 1 --rounds 3 --eval_every 1 --data EmbeddedDigits --clients 20 --participation 0.5 --net CNNB --training.last_batch drop --output runs/t3 > t3.log

# %% [markdown]
# With the paper's data you leave the changes out: `rayfl table fedco2/t3 --data.root DATA`. Stop it in any way, and
# start it again: it goes on.
#
# The folder has the table as a page (`report.html`), in Markdown, CSV, JSON and LaTeX, with the settings that differ.
# SingleSet trains all clients in each round, the others half of them.

# %%
import pandas as pd

pd.read_csv("runs/t3/table.csv")[["row", "column", "mean", "worst_decile", "seeds"]].round(1)

# %%
print(open("runs/t3/table.tex").read())

# %% [markdown]
# `rayfl report --against fedco2 t3 runs/t3` shows it beside the printed numbers.

# %%
from rayfl import Plot

Plot("runs/t3").rounds(panels=["all"])

# %% [markdown]
# More: [all tables, and one of your own](../experiments.md).
