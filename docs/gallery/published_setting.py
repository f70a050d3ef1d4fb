# %% [markdown]
# # A published setting
#
# Many papers compare methods in the setting of PFLlib's scripts. The table `published/feddbe` has it, as FedDBE's script
# uses it. The data are a download. Here the embedded digits take their place, with few rounds and a larger
# learning rate. In brackets are printed numbers, of CIFAR-10:

# %%
# !rayfl table published/feddbe --columns CIFAR-10 --rows Local FedAvg FedPer --rounds 3 --data EmbeddedDigits --data.test_from published --training.lr 0.05 --output runs/feddbe > feddbe.log

# %%
print(open("runs/feddbe/table.md").read().partition("\n\n- ")[0])

# %% [markdown]
# The folder has a copy of the table's file. It compares the setting with the script, line by line:

# %%
lines = open("runs/feddbe/table.yaml").read().splitlines()
print(*[line for line in lines if line.startswith("# |")][:16], sep="\n")

# %% [markdown]
# The script prints the best round by test data, and so does this table. The last round is a fairer choice:

# %%
from rayfl import Plot

Plot("runs/feddbe", choose="last").rounds(panels=["all"])

# %% [markdown]
# More: [how public code tests](../protocols.md#in-public-code), [our results in this setting](../results/published_feddbe.md).
