# %% [markdown]
# # A cluster by `ray up`
#
# This example has no outputs: it needs three machines. The commands are those of [the guide](../clusters.md).
#
# ![A round: the server actor sends the shared weights, clients train on a few actors, each actor sends one sum back](../images/round.svg)
#
# ## The file
#
# Each host has Linux, the same Python and an SSH server. Fill in the top of [`cluster.yaml`](../../cluster.yaml):
#
# ```yaml
# provider:
#   type: local
#   head_ip: 10.0.5.10
#   worker_ips: [10.0.5.11, 10.0.5.12]
#
# auth:
#   ssh_user: ada
#   ssh_private_key: ~/.ssh/rayfl_cluster
# ```
#
# ## The commands
#
# `ray up` copies rayfl to all hosts, makes an environment on each and starts Ray.
#
# ```
# ray up cluster.yaml
# ray exec cluster.yaml 'ray status'
# ray exec cluster.yaml 'cd rayfl && python -m rayfl.run --config examples/quickstart.yaml --engine.address auto --output /shared/runs/first'
# ray rsync-down cluster.yaml /shared/runs/ runs/
# ray down cluster.yaml
# ```
#
# `--engine.address auto` uses the whole cluster. `/shared` is a folder that all hosts share.
#
# ## From Python
#
# `ray submit cluster.yaml my_experiment.py` runs a script on the head. In it, only the engine is another:
#
# ```python
# from rayfl import Federation, Ray
#
# federation = Federation(clients=100, engine=Ray(address="auto"), output="/shared/runs/second")
# ```
#
# The results have the same bytes as on one machine, if all processors are of one kind.
