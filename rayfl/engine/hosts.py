"""Compare the software of a cluster's hosts, on which the numbers depend, before anything trains there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayfl.engine.by_value import by_value
from rayfl.errors import Conflict
from rayfl.record import folder
from rayfl.record.folder import processor, sources_in, version_of
from rayfl.system.text import warn

Software = Mapping[str, str | None]
"""What a host has: ``rayfl`` (a digest of its sources), versions of ``torch`` and ``numpy``, the kinds of its
``processor`` and its ``GPU``; None if it has none.
"""


def software_here() -> dict[str, str | None]:
    """Return the software of this host. The function is sent by value: a host may have another rayfl."""
    spec = find_spec("rayfl")
    places = [*(spec.submodule_search_locations or ())] if spec else []
    return {
        "rayfl": f"sources {sources_in(Path(places[0])) if places else 'missing'}",
        "torch": version_of("torch") or "missing",
        "numpy": version_of("numpy") or "missing",
        "processor": processor(),
    }


def compare_hosts(here: Software, hosts: Mapping[str, Software]) -> None:
    """Refuse hosts on which results would differ; warn of differences in the last bits.

    Args:
        here: the software of this process, which starts the run.
        hosts: the software of the hosts that train, by their names.

    Raises:
        Conflict: a host has another rayfl than this process, or another torch or NumPy than a host before.
    """
    everywhere = {"this process": here, **hosts}
    for name, having in (("rayfl", everywhere), ("torch", hosts), ("numpy", hosts)):
        for host, told in _differences(name, having):
            raise Conflict(host, f"{told}: install the same one on every host")
    for name, having in (("torch", everywhere), ("processor", hosts), ("GPU", hosts)):
        for host, told in _differences(name, having)[:1]:
            warn(f"{host} {told}: results may differ in their last bits")


def _differences(name: str, having: Mapping[str, Software]) -> list[tuple[str, str]]:
    """Return the places whose version of something differs from that of the first, with messages."""
    there = [(place, each[name]) for place, each in having.items() if each.get(name)]
    return [
        (place, f"has {name} {each}, and {there[0][0]} has {there[0][1]}")
        for place, each in there
        if each != there[0][1]
    ]


def ask_hosts(
    hosts: Mapping[str, Software], ids: Collection[str], get: Callable[[Sequence[Any]], list[Any]]
) -> Mapping[str, Software]:
    """Return the software of hosts by their names; ask and compare those that are not known yet.

    Args:
        hosts: the known ones.
        ids: Ray's ids of all hosts that train.
        get: waits for the results of Ray's references.

    Raises:
        Conflict: see :func:`compare_hosts`.
    """
    nodes = [node for node in ray.nodes() if node["NodeID"] in ids]
    names = {f"host {node['NodeManagerAddress']} ({node['NodeID'][:8]})": node for node in nodes}
    new = {name: node for name, node in names.items() if name not in hosts}
    with by_value([__name__, folder.__name__]):
        ask = ray.remote(num_cpus=0)(software_here)
        places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in new.values()]
        calls = [ask.options(scheduling_strategy=place).remote() for place in places]
    found = dict(zip(new, get(calls), strict=True))
    for name, node in new.items():  # Ray knows the kind of a GPU
        gpus = (kind for kind in node["Resources"] if kind.startswith("accelerator_type:"))
        found[name]["GPU"] = next(gpus, None)
    compare_hosts(software_here(), {**hosts, **found})
    return {**hosts, **found}
