# SPDX-License-Identifier: MIT
"""The virtual Slurm of a replay: nodes and partitions of the simulator's cluster."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from slurm_pal.base.cluster import Counting, Partition
from slurm_pal.simulate import hardware as simulated
from slurm_pal.twin.room import Hardware, hardware
from slurm_pal.twin.slurm_side import NOTHING_KNOWN, SlurmSide
from slurm_pal.twin.virtual_slurm import VirtualNode

DEFAULT = "all"
"""The partition of all nodes, for jobs that name none."""
CPUS_PER_GPU, MEMORY_MIB_PER_GPU = 8, 64_000
"""What a node is assumed to have of each for its GPUs, where nothing is known of it."""


def named(machine: simulated.Hardware) -> simulated.Hardware:
    """The cluster with names that Slurm could have: `n0:a100`, the part of a node with GPUs of one type, has none."""
    names = tuple(re.sub(r"[^A-Za-z0-9_.-]", "-", name) for name in machine.names)
    fine = len(set(names)) == len(names) and all(name[:1].isalpha() for name in names)
    return machine._replace(names=names if fine else tuple(f"n{row}" for row in range(len(names))))


def room_of(machine: simulated.Hardware, side: SlurmSide = NOTHING_KNOWN) -> Hardware:
    """The nodes."""
    counts = [len(row) for row in machine.true["A"]]
    if side.sizes:
        columns = zip(*((size.cpus, size.memory_mib, size.threads) for size in side.sizes), strict=True)
        return hardware(machine.names, [("",) * count for count in counts], *columns)
    return hardware(
        machine.names, [("",) * count for count in counts], [CPUS_PER_GPU * count for count in counts],
        [MEMORY_MIB_PER_GPU * count for count in counts],
    )  # fmt: skip


def nodes_of(side: SlurmSide) -> list[VirtualNode]:
    """What is known of each node; none where nothing is."""
    return [VirtualNode(weight=size.weight) for size in side.sizes]


def partitions_of(
    machine: simulated.Hardware, side: SlurmSide = NOTHING_KNOWN, longest_s: Mapping[str, float] = {}
) -> tuple[Partition, ...]:
    """One of all nodes, and the cluster's own. `longest_s` are limits of jobs that ran there: MaxTime is not below."""
    names = machine.names
    found = [Partition(DEFAULT, True, True, names, counting=Counting())]
    for name, rows in machine.partitions.items():
        rule = side.rule(name) or Partition(name, False, True, ())
        most_s = rule.max_time_s
        if most_s is not None:
            most_s = max(most_s, math.ceil(longest_s.get(name, 0.0)))
        nodes = tuple(names[row] for row in rows)
        found.append(rule._replace(name=name, default=False, up=True, nodes=nodes, max_time_s=most_s))
    return tuple(found)
