# SPDX-License-Identifier: MIT
"""Flags and outliers: what records show about a GPU besides its slowdown.

Nothing here drains anything. A slow GPU is right for an insensitive job; a flag says
what is known, and placement and people draw their conclusions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_pal.variability.kmeans import Floats
from slurm_pal.variability.params import Params
from slurm_pal.variability.runs import Sighting
from slurm_pal.variability.track import Track

Mask = NDArray[np.bool_]


def robust_scale(slowdown: Floats, params: Params) -> float:
    """A sigma that outliers do not inflate: 1.4826 MAD, at least the floor."""
    return max(1.4826 * float(np.median(np.abs(slowdown - np.median(slowdown)))), params.mad_floor)


def slow_outliers(slowdown: Floats, scale: float, params: Params) -> Mask:
    """Beyond `outlier_z` sigmas on the slow side, or slower than `slow` and beyond `slow_z`."""
    z = (slowdown - 1.0) / scale
    return (z > params.outlier_z) | ((slowdown > params.slow) & (z > params.slow_z))


def fast_outliers(slowdown: Floats, scale: float, params: Params) -> Mask:
    """Beyond `outlier_z` sigmas on the fast side."""
    return (slowdown - 1.0) / scale < -params.outlier_z


def suspect_hardware(
    uuids: Sequence[str], slowdown: Floats, z: Floats, tracks: Mapping[str, Track], below: bool, params: Params
) -> frozenset[str]:
    """Class-A GPUs that are slow and draw clearly less power than their peers under load.

    A slow chip at its power cap is variability; a slow chip below it is held back by heat,
    a cable or the board. Needs power telemetry of at least `small_group` GPUs. In a group measured `below` its cap
    healthy GPUs draw different power at the same clock, and hardly differ in speed: only one slower than `slow`
    (1.05) is suspected there.
    """
    powers = {u: p for u in uuids if (p := tracks[u].last.power_w) is not None}
    if len(powers) < params.small_group:
        return frozenset()
    limit_w = params.fault_power_share * float(np.median(list(powers.values())))
    slow = (slowdown > (params.slow if below else 1.0)) & (z > params.slow_z)
    return frozenset(u for i, u in enumerate(uuids) if slow[i] and u in powers and powers[u] < limit_w)


def node_coupled(
    node_of: Mapping[str, str], z: Mapping[str, float], z_a: Mapping[str, float], params: Params
) -> frozenset[str]:
    """GPUs of nodes that are slow as a whole in a host-bound benchmark but not in class A.

    `z` and `z_a` are robust z by UUID. Such a shift belongs to the node (host, cooling,
    PCIe), not to its GPUs. Nodes with fewer than two GPUs cannot show it.
    """
    members: dict[str, list[str]] = {}
    for uuid in z:
        if uuid in node_of:
            members.setdefault(node_of[uuid], []).append(uuid)
    found: set[str] = set()
    for uuids in members.values():
        if len(uuids) < 2 or not all(u in z_a for u in uuids):
            continue
        if all(z[u] > params.slow_z for u in uuids) and float(np.median([z_a[u] for u in uuids])) <= params.slow_z:
            found.update(uuids)
    return frozenset(found)


def config_differs(sightings: Iterable[Sighting], params: Params) -> frozenset[str]:
    """GPUs whose power limit, clocks or ECC differ from most others of their model.

    What a GPU does not report ("") differs from nothing: the second die of a card has no limit of its own.
    """
    by_model: dict[tuple[str, str], list[Sighting]] = {}
    for seen in sightings:
        by_model.setdefault((seen.vendor, seen.model), []).append(seen)
    found: set[str] = set()
    for peers in by_model.values():
        if len(peers) < params.small_group:
            continue
        counts = Counter(p.settings for p in peers)
        usual = min(counts, key=lambda s: (-counts[s], s[0] != "default", s))
        found.update(p.uuid for p in peers if any(a and b and a != b for a, b in zip(p.settings, usual, strict=True)))
    return frozenset(found)


def quarantined(slowdown: float, scale: float, track: Track, params: Params) -> bool:
    """Whether a class-A GPU is slow for good, by the k-of-n rule.

    At least k = 2 of its last n = 4 steady observations, each of another sweep, must be
    slow outliers against the group as it is now, and so must the held score, which must
    also be slower than `slow` (1.05): a GPU that is merely last in a tight group costs
    sensitive jobs less than being kept off it would. One slow run is never enough.
    """
    past = np.array([slowdown * np.exp(track.speed - x) for x in track.recent] or [1.0])
    slow = slow_outliers(past, scale, params) & (past > params.slow)
    held = slowdown > params.slow and bool(slow_outliers(np.array([slowdown]), scale, params)[0])
    return held and int(slow.sum()) >= params.quarantine_k
