# SPDX-License-Identifier: MIT
"""Which GPU is in which slot: a GPU is its UUID, and lives where it was last seen.

A partition of a GPU (MIG, key "PARENT/PROFILE") is in no slot. Its record has the index of the whole
GPU by PCI order; Slurm gives partitions indexes of their own, which cannot be derived from it. And no
job can be given a GPU that was last seen in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurm_pal.variability.runs import Sighting


def newest(known: Mapping[str, Sighting], seen: Iterable[Sighting]) -> dict[str, Sighting]:
    """The newest sighting of each UUID."""
    result = dict(known)
    for sighting in seen:
        old = result.get(sighting.uuid)
        if old is None or _when(sighting) >= _when(old):
            result[sighting.uuid] = sighting
    return result


def residents(known: Mapping[str, Sighting]) -> dict[tuple[str, int], Sighting]:
    """The GPU in each slot (node, Slurm index), by the newest sighting.

    A GPU that was replaced by another, and seen nowhere since, is in no slot. A slot whose GPU was
    since seen elsewhere, or in parts, is empty until something is seen there.
    """
    slots: dict[tuple[str, int], Sighting] = {}
    divided: dict[str, tuple[float, str]] = {}
    for sighting in known.values():
        if parent := parent_of(sighting):
            divided[parent] = max(divided.get(parent, _when(sighting)), _when(sighting))
    for sighting in known.values():
        if parent_of(sighting) or _when(sighting) < divided.get(sighting.uuid, _when(sighting)):
            continue
        slot = (sighting.node, sighting.slot)
        if slot not in slots or _when(sighting) > _when(slots[slot]):
            slots[slot] = sighting
    return slots


def parent_of(sighting: Sighting) -> str:
    """The UUID of the whole GPU when this is a partition of one, else ""."""
    parent, slash, profile = sighting.uuid.rpartition("/")
    return parent if slash and profile == sighting.environment.mig_mode else ""


def _when(sighting: Sighting) -> tuple[float, str]:
    return (sighting.ts, sighting.run_id)
