"""Which GPU is in which slot: a GPU is its UUID, and lives where it was last seen."""

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

    A GPU that another one has replaced, and that was seen nowhere since, is in no slot;
    a slot whose GPU was seen elsewhere since is empty until something is seen there.
    """
    slots: dict[tuple[str, int], Sighting] = {}
    for sighting in known.values():
        slot = (sighting.node, sighting.slot)
        if slot not in slots or _when(sighting) > _when(slots[slot]):
            slots[slot] = sighting
    return slots


def _when(sighting: Sighting) -> tuple[float, str]:
    return (sighting.ts, sighting.run_id)
