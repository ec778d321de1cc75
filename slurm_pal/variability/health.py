# SPDX-License-Identifier: MIT
"""Faults of GPUs: kept from the sweep that shows them until a clean measurement, and by nothing else forgotten.

A fault that a run shows belongs to the GPU and goes where it goes. That the driver does not list a GPU is
known of its slot only, since what is not there has no UUID.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from slurm_pal.base.faults import FAULTS
from slurm_pal.variability.runs import Sighting

MISSING, SUSPECT = "missing", "suspect_hw"
SHOWN_BY_RUNS = frozenset(FAULTS) - {MISSING, SUSPECT}
Slot = tuple[str, int]
"""Node and Slurm's index."""


class Health:
    """The faults known after some sweeps."""

    def __init__(self) -> None:
        self._of_gpu: dict[str, tuple[float, frozenset[str]]] = {}  # UUID -> (Unix s, flags)
        self._of_slot: dict[Slot, Sighting] = {}  # what stands in for the GPU that was not listed there

    def take(self, sightings: Iterable[Sighting], suspects: Iterable[str]) -> None:
        """Take in one sweep; `suspects` are the UUIDs that look faulty beside their peers after it."""
        for seen in sightings:
            slot = (seen.node, seen.slot)
            if MISSING in seen.flags:
                self._of_slot[slot] = seen
            elif shown := seen.flags & SHOWN_BY_RUNS:
                since_s, before = self._of_gpu.get(seen.uuid, (seen.ts, frozenset()))
                self._of_gpu[seen.uuid] = max(since_s, seen.ts), before | shown
            elif seen.clean:  # sweeps overlap: only what was measured after the fault proves anything
                if seen.uuid in self._of_gpu and self._of_gpu[seen.uuid][0] <= seen.ts:
                    del self._of_gpu[seen.uuid]
                if slot in self._of_slot and self._of_slot[slot].ts <= seen.ts:
                    del self._of_slot[slot]
        for uuid in suspects:
            since_s, before = self._of_gpu.get(uuid, (0.0, frozenset()))
            self._of_gpu[uuid] = since_s, before | {SUSPECT}

    def faults(self, seen: Sighting) -> frozenset[str]:
        """The faults of a GPU where it was last seen."""
        found = self._of_gpu.get(seen.uuid, (0.0, frozenset()))[1]
        return found | {MISSING} if (seen.node, seen.slot) in self._of_slot else found

    def stand_ins(self, present: Sequence[Sighting]) -> list[Sighting]:
        """What stands for the GPUs that are missing from slots where none was ever seen.

        They count as the model of most GPUs of their node, or else of all: what a node has is mostly alike.
        """
        taken = {(seen.node, seen.slot) for seen in present}
        lacking = [seen for slot, seen in sorted(self._of_slot.items()) if slot not in taken]
        usual = {seen.node: _most([p for p in present if p.node == seen.node] or present) for seen in lacking}
        return [seen._replace(vendor=usual[seen.node][0], model=usual[seen.node][1]) for seen in lacking]


def _most(seen: Sequence[Sighting]) -> tuple[str, str]:
    counts = Counter((one.vendor, one.model) for one in seen)
    return min(counts, key=lambda kind: (-counts[kind], kind), default=("", ""))
