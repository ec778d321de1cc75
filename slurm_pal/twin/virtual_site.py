# SPDX-License-Identifier: MIT
"""The virtual Slurm of a replay: nodes and partitions of the simulator's cluster."""

from __future__ import annotations

import re

from slurm_pal.base.cluster import Counting, Partition
from slurm_pal.simulate import hardware as simulated
from slurm_pal.twin.room import Hardware, hardware

DEFAULT = "all"
"""The partition of all nodes, for jobs that name none."""
CPUS_PER_GPU, MEMORY_MIB_PER_GPU = 8, 64_000
"""What a node is assumed to have of each for its GPUs, where nothing is known of it."""


def named(machine: simulated.Hardware) -> simulated.Hardware:
    """The cluster with names that Slurm could have: `n0:a100`, the part of a node with GPUs of one type, has none."""
    names = tuple(re.sub(r"[^A-Za-z0-9_.-]", "-", name) for name in machine.names)
    fine = len(set(names)) == len(names) and all(name[:1].isalpha() for name in names)
    return machine._replace(names=names if fine else tuple(f"n{row}" for row in range(len(names))))


def room_of(machine: simulated.Hardware) -> Hardware:
    """The nodes."""
    counts = [len(row) for row in machine.true["A"]]
    return hardware(
        machine.names, [("",) * count for count in counts], [CPUS_PER_GPU * count for count in counts],
        [MEMORY_MIB_PER_GPU * count for count in counts],
    )  # fmt: skip


def partitions_of(machine: simulated.Hardware) -> tuple[Partition, ...]:
    """One of all nodes, and the cluster's own."""
    names = machine.names
    found = [Partition(DEFAULT, True, True, names, counting=Counting())]
    found += [
        Partition(name, False, True, tuple(names[row] for row in rows)) for name, rows in machine.partitions.items()
    ]
    return tuple(found)
