# SPDX-License-Identifier: MIT
"""Flags and outliers: what records show about a GPU besides its slowdown.

Nothing here drains anything. A slow GPU is right for an insensitive job; a flag says
what is known, and placement and people draw their conclusions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from slurm_pal.variability.kmeans import Floats
from slurm_pal.variability.params import Params
from slurm_pal.variability.runs import Sighting
from slurm_pal.variability.track import Track

Mask = NDArray[np.bool_]

SMALL_SAMPLE = (3.5, 4.2, 2.0, 2.1, 1.5, 1.5, 1.25, 1.25, 1.1, 1.1)
"""Of 4, 5, ... GPUs: with 1.4826 MAD widened so much, 1 in 1,000 normal values lies beyond 5 sigmas (simulated)."""
WIDEST = 0.03
"""... but healthy GPUs of a model scatter by no more than this: few that do scatter more are not widened."""
BY_CHANCE = 0.05
"""So many healthy GPUs of a group may be called slow outliers, whatever its size."""


def robust_scale(slowdown: Floats, params: Params) -> float:
    """A sigma that outliers do not inflate: 1.4826 MAD, wider for few GPUs, at least the floor."""
    found = 1.4826 * float(np.median(np.abs(slowdown - np.median(slowdown))))
    place = len(slowdown) - params.small_group
    wider = found * SMALL_SAMPLE[place] if 0 <= place < len(SMALL_SAMPLE) else found
    return max(found, min(wider, WIDEST), params.mad_floor)


def beyond_chance(gpus: int, params: Params) -> float:
    """Sigmas beyond which hardly any of so many healthy GPUs lies: the slowest of 10,000 is at 3.7.

    More for few GPUs, whose sigma is not well known: 1 + 8 / n is what normal values need (simulated).
    """
    normal = max(params.slow_z, NormalDist().inv_cdf(1.0 - BY_CHANCE / max(1, gpus)))
    return min(params.outlier_z, normal * (1.0 + 8.0 / max(1, gpus)))


def slow_outliers(slowdown: Floats, scale: float, slow_z: float, params: Params) -> Mask:
    """Beyond `outlier_z` sigmas on the slow side, or slower than `slow` and beyond `slow_z`."""
    z = (slowdown - 1.0) / scale
    return (z > params.outlier_z) | ((slowdown > params.slow) & (z > slow_z))


def fast_outliers(slowdown: Floats, scale: float, params: Params) -> Mask:
    """Beyond `outlier_z` sigmas on the fast side."""
    return (slowdown - 1.0) / scale < -params.outlier_z


def suspect_hardware(
    uuids: Sequence[str],
    relative: Floats,
    z: Floats,
    slower_kind: Mask,
    tracks: Mapping[str, Track],
    below: bool,
    params: Params,
) -> frozenset[str]:
    """Class-A GPUs that are slow and draw clearly less power than their peers under load, each among its kind.

    A slow chip at its power cap is variability; a slow chip below it is held back by heat,
    a cable or the board. Needs power telemetry of at least `small_group` GPUs. In a group measured `below` its cap
    healthy GPUs draw different power at the same clock, and hardly differ in speed: only one slower than `slow`
    (1.05) is suspected there.
    """
    slow = (relative > (params.slow if below else 1.0)) & (z > params.slow_z)
    found: set[str] = set()
    for mine in (~slower_kind, slower_kind):
        powers = {i: p for i in np.flatnonzero(mine).tolist() if (p := tracks[uuids[i]].last.power_w) is not None}
        if len(powers) >= params.small_group:
            limit_w = params.fault_power_share * float(np.median(list(powers.values())))
            found.update(uuids[i] for i, power_w in powers.items() if slow[i] and power_w < limit_w)
    return frozenset(found)


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


def quarantined(relative: float, scale: float, slow_z: float, track: Track, params: Params) -> bool:
    """Whether a class-A GPU is slow for good, relative to its kind, by the k-of-n rule.

    At least k = 2 of its last n = 4 steady observations, each of another sweep, must be
    slow outliers against the group as it is now, and so must the held score, which must
    also be slower than `slow` (1.05): a GPU that is merely last in a tight group costs
    sensitive jobs less than being kept off it would. One slow run is never enough.
    """
    past = np.array([relative * np.exp(track.speed - x) for x in track.recent] or [1.0])
    slow = slow_outliers(past, scale, slow_z, params) & (past > params.slow)
    held = relative > params.slow and bool(slow_outliers(np.array([relative]), scale, slow_z, params)[0])
    return held and int(slow.sum()) >= params.quarantine_k
