"""All that rayfl takes from private parts of Ray, and why. Another version of Ray may have changed any of it.

So pyproject.toml allows the minor version that was tested, and ``.ci/ray`` tries the next.

* ``services.find_bootstrap_address``: the cluster of the last ``ray start``. ``ray.init("auto")`` also takes
  one that another run has started for itself.
* ``services.ConsolePopen``: Ray's processes get sessions of their own, so that a signal to the process group
  of a run does not end them.
* ``services.get_node``: a busy machine may take longer to start a node than the 30 s that Ray waits.
* ``ray_constants.ENABLE_RAY_CLUSTER``: a local Ray listens on loopback alone.
* ``SyncAuthenticationMetadataClientInterceptor``: a cluster that refuses the token is told from one that is
  away.
* ``ray.init(_temp_dir=...)``: the folder of a local Ray is one that no other user can enter.
* ``ray.util.client.ray``: whether this process has joined a cluster by way of Ray's client server.
* ``state.get_draining_nodes``: a host that is about to go is left with a checkpoint, as Ray Train does.
* ``JobConfig._runtime_env_has_working_dir``: the folder of a command comes last where modules are looked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray._private import ray_constants, services
from ray._private.state import state
from ray.util.client import ray as ray_client

if TYPE_CHECKING:
    from grpc import Channel

__all__ = ["draining_nodes", "ray_client", "ray_constants", "services", "with_token"]
draining_nodes = state.get_draining_nodes


def with_token(channel: Channel) -> Channel:
    """Return a channel whose calls carry the token that this process has for Ray, if it has one."""
    import grpc  # which takes long
    from ray._private.authentication.grpc_authentication_client_interceptor import (
        SyncAuthenticationMetadataClientInterceptor,
    )

    return grpc.intercept_channel(channel, SyncAuthenticationMetadataClientInterceptor())
