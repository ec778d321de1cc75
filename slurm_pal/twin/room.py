# SPDX-License-Identifier: MIT
"""What is free on the nodes of the virtual Slurm, now or at a planned moment, and what a job takes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

ANY_TYPE = ""


class Hardware(NamedTuple):
    """The nodes in Slurm's order, as slurm.conf has them."""

    names: tuple[str, ...]
    gpu_types: tuple[tuple[str, ...], ...]  # of each GPU index
    cpus: tuple[int, ...]
    memory_mib: tuple[int, ...]
    threads: tuple[int, ...]
    masks: tuple[Mapping[str, int], ...]  # GPU type (ANY_TYPE: all) -> bits of its indexes

    @property
    def n_gpus(self) -> int:
        return sum(map(len, self.gpu_types))


def hardware(
    names: Sequence[str], gpu_types: Sequence[Sequence[str]], cpus: Sequence[int], memory_mib: Sequence[int],
    threads: Sequence[int] = (),
) -> Hardware:  # fmt: skip
    masks = []
    for types in gpu_types:
        found = {ANY_TYPE: (1 << len(types)) - 1}
        for index, kind in enumerate(types):
            if kind:
                found[kind] = found.get(kind, 0) | 1 << index
        masks.append(found)
    return Hardware(
        tuple(names), tuple(map(tuple, gpu_types)), tuple(cpus), tuple(memory_mib),
        tuple(threads) or (1,) * len(names), tuple(masks),
    )  # fmt: skip


class Take(NamedTuple):
    """What a job has on one node."""

    node: int
    gpus: int  # bits of its GPU indexes
    cpus: int
    memory_mib: int

    @property
    def indexes(self) -> tuple[int, ...]:
        return tuple(k for k in range(self.gpus.bit_length()) if self.gpus >> k & 1)


class Room:
    """What is free: GPUs as bits, CPUs, memory, of each node."""

    __slots__ = ("cpus", "gpus", "memory_mib")

    def __init__(self, gpus: list[int], cpus: list[int], memory_mib: list[int]) -> None:
        self.gpus, self.cpus, self.memory_mib = gpus, cpus, memory_mib

    def copy(self) -> Room:
        return Room(self.gpus[:], self.cpus[:], self.memory_mib[:])

    def give(self, takes: Sequence[Take]) -> None:
        """These are free again."""
        for node, gpus, cpus, memory_mib in takes:
            self.gpus[node] |= gpus
            self.cpus[node] += cpus
            self.memory_mib[node] += memory_mib

    def take(self, takes: Sequence[Take]) -> None:
        """These are in use. Raises KeyError where they were not free."""
        for node, gpus, cpus, memory_mib in takes:
            if gpus & ~self.gpus[node] or cpus > self.cpus[node] or memory_mib > self.memory_mib[node]:
                raise KeyError(f"node {node}: not all of it is free")
            self.gpus[node] -= gpus
            self.cpus[node] -= cpus
            self.memory_mib[node] -= memory_mib


def empty(made: Hardware) -> Room:
    """All nodes without a job."""
    return Room([masks[ANY_TYPE] for masks in made.masks], [*made.cpus], [*made.memory_mib])


def lowest(bits: int, count: int) -> int:
    """The lowest `count` of these bits: Slurm hands out the lowest free index."""
    found = 0
    for _ in range(count):
        bit = bits & -bits
        found |= bit
        bits ^= bit
    return found
