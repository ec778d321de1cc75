# SPDX-License-Identifier: MIT
"""The nouns of the cluster: nodes and their GPUs, as Slurm shows them.

These are imported by `palsub`, hence NamedTuples and no third-party import.
"""

from __future__ import annotations

from slurm_pal.base.light import NamedTuple

Gpu = tuple[str, int]
"""One physical GPU as Slurm addresses it: (node name, index in Slurm's list)."""


class Node(NamedTuple):
    """One node at one moment."""

    name: str
    states: frozenset[str]  # base state and flags, e.g. {"IDLE", "DRAIN"}; see slurm.states
    gpu_types: tuple[str, ...]  # one entry per GPU index, "" where the GRES has no type
    gpus_used: int
    cpus: int
    cpus_used: int
    memory_mib: int
    memory_used_mib: int
    features: frozenset[str]  # active ones
    partitions: tuple[str, ...]
    weight: int = 1
    available: tuple[str, ...] | None = None  # available features in Slurm's order; None: not known

    @property
    def n_gpus(self) -> int:
        return len(self.gpu_types)


class Partition(NamedTuple):
    """One partition, as far as placement needs it."""

    name: str
    default: bool
    up: bool
    nodes: tuple[str, ...]
    max_time_s: int | None = None  # None: unlimited
    default_time_s: int | None = None
