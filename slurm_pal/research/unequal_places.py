# SPDX-License-Identifier: MIT
"""Which GPUs jobs hold on unequal columns of nodes, and by how much these slow them down."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_pal.base.jobs import GpuShape
from slurm_pal.placement.occupancy import Occupancy, Table, placed_as
from slurm_pal.placement.view import Placement, Rule
from slurm_pal.simulate.hardware import Hardware

Slots = tuple[tuple[int, tuple[int, ...]], ...]
"""GPUs of a job: (position of the node, indexes there)."""
BLIND = "packed"
"""The rule of policies that do not say which GPUs: fewest left over on a node, scores ignored."""


def slots_of(placed: Placement) -> Slots:
    return tuple(zip(placed.nodes, placed.gpus, strict=True))


class Places:
    """The GPUs of a cluster, the partitions of which are the columns in their order."""

    def __init__(self, machine: Hardware) -> None:
        self.machine = machine
        self.names = tuple(machine.partitions)
        self._occupancy = self._empty()
        self.slots: dict[int, Slots] = {}  # job -> GPUs

    def _empty(self) -> Occupancy:
        machine = self.machine
        return Occupancy(machine.names, machine.believed, machine.level, machine.partitions)

    def without(self, jobs: Iterable[int]) -> Occupancy:
        """The free GPUs as if these jobs had left, to try things out."""
        gone = set(jobs)
        found = self._empty()
        for job, slots in self.slots.items():
            if job not in gone:
                found.take(slots)
        return found

    def leave(self, job: int) -> None:
        """The job gives its GPUs back, if it has any."""
        self._occupancy.give(self.slots.pop(job, ()))

    def take(self, job: int, slots: Slots) -> None:
        """Raises KeyError where one of these GPUs is in use."""
        self._occupancy.take(slots)
        self.slots[job] = slots

    def packed(self, job: int, column: int, gpus: int) -> None:
        """Give the job GPUs of a column that has them, scores ignored."""
        found = self._occupancy.place(BLIND, GpuShape(gpus), Rule("A", 1.0, 1.0), self.names[column])
        if found is None:
            raise KeyError(f"{self.names[column]} has no {gpus} free GPUs")
        self.take(job, slots_of(found))

    def drag(self, job: int, sensitivity: str, penalty: float) -> float:
        """Its real slowdown x locality on the GPUs that it holds; 1.0 is a gang of median GPUs on one node."""
        return drag(self.machine.true[placed_as(sensitivity)], self.slots[job], penalty)


def drag(table: Table, slots: Slots, penalty: float) -> float:
    """Slowdown of the slowest of these GPUs by a table [node][index], x the penalty across nodes."""
    slowest = max(table[node][index] for node, indexes in slots for index in indexes)
    return float(slowest * (penalty if len(slots) > 1 else 1.0))
