# SPDX-License-Identifier: MIT
"""The virtual cluster's layout: which nodes there are, how many GPUs each has, and partitions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

from slurm_pal.base.errors import UsageError
from slurm_pal.simulate.job_room import NodeSize

GPUS_MAX = 10_000_000
_PART = re.compile(
    r"(?:(?P<name>[\w.-]+)=)?(?P<nodes>\d{1,8})x(?P<gpus>\d{1,8})(?:/(?P<cpus>\d{1,6})/(?P<gib>\d{1,6}))?", re.ASCII
)

_Value = TypeVar("_Value")


class VirtualCluster(NamedTuple):
    """Nodes in Slurm's order. `partitions` gives the positions of the nodes of each partition."""

    names: tuple[str, ...]
    node_gpus: tuple[int, ...]
    partitions: Mapping[str, tuple[int, ...]] = {}
    gpu_model: str = ""
    sizes: tuple[NodeSize, ...] = ()  # of each node; none: CPUs and memory never run out

    @property
    def n_gpus(self) -> int:
        return sum(self.node_gpus)

    @property
    def per_node(self) -> int:
        """GPUs of each node where all have the same number, else 0."""
        return self.node_gpus[0] if len(set(self.node_gpus)) == 1 else 0

    def rows(self, values: Sequence[_Value]) -> list[Sequence[_Value]]:
        """One value for each GPU, cut into nodes."""
        found, start = [], 0
        for count in self.node_gpus:
            found.append(values[start : start + count])
            start += count
        return found

    def text(self) -> str:
        """`64 GPUs: 16 nodes x 4`."""
        groups = [(count, len(list(nodes))) for count, nodes in groupby(self.node_gpus)]
        sizes = ", ".join(f"{nodes} node{'s' * (nodes != 1)} x {count}" for count, nodes in groups[:4])
        more = ", ..." if len(groups) > 4 else ""
        model = f" {self.gpu_model}" if self.gpu_model else ""
        return f"{self.n_gpus} GPU{'s' * (self.n_gpus != 1)}: {sizes}{more}{model}"


def parse_cluster(text: str) -> VirtualCluster:
    """`NODESxGPUS`, or partitions of their own nodes as `NAME=NODESxGPUS,...`; where CPUs and memory of a node may run
    out, `NODESxGPUS/CPUS/GIB`.

    Raises UsageError for anything else, an empty cluster, or one beyond GPUS_MAX.
    """
    sizes: list[int] = []
    rest: list[NodeSize] = []
    partitions: dict[str, tuple[int, ...]] = {}
    parts = text.split(",")
    for part in parts:
        found = _PART.fullmatch(part.strip())
        if found is None or (len(parts) > 1 and not found["name"]) or found["name"] in partitions:
            raise UsageError(
                f"cluster {text!r} must be NODESxGPUS, like 16x4, or NAME=NODESxGPUS,... with own names; "
                "with CPUs and GiB of a node, NODESxGPUS/CPUS/GIB, like 16x4/64/512"
            )
        nodes, gpus = int(found["nodes"]), int(found["gpus"])
        if not (nodes and gpus) or nodes * gpus > GPUS_MAX:
            raise UsageError(f"cluster {text!r}: {nodes} nodes of {gpus} GPUs; allowed are 1 to {GPUS_MAX} GPUs")
        if found["name"]:
            partitions[found["name"]] = tuple(range(len(sizes), len(sizes) + nodes))
        if found["cpus"]:
            if not (int(found["cpus"]) and int(found["gib"])):
                raise UsageError(
                    f"cluster {text!r}: a node with {found['cpus']} CPUs and {found['gib']} GiB holds no job"
                )
            rest += [NodeSize(int(found["cpus"]), 1024 * int(found["gib"]))] * nodes
        sizes += [gpus] * nodes
    if rest and len(rest) != len(sizes):
        raise UsageError(f"cluster {text!r}: give CPUs and memory of all nodes (NODESxGPUS/CPUS/GIB), or of none")
    return VirtualCluster(tuple(f"n{k}" for k in range(len(sizes))), tuple(sizes), partitions, sizes=tuple(rest))
