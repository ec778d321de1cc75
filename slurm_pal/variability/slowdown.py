# SPDX-License-Identifier: MIT
"""Slowdowns: each GPU against the median GPU of its group, and what age does to them.

slowdown = time on this GPU / median time over the group's GPUs; 1.0 is the median GPU,
larger is slower. Never a mean: one sick GPU would shift all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from slurm_pal.variability.flags import Mask, beyond_chance, robust_scale
from slurm_pal.variability.kinds import Kinds, two_kinds
from slurm_pal.variability.kmeans import Floats
from slurm_pal.variability.params import DAY_S, TIME_UNITS, Params
from slurm_pal.variability.runs import Group
from slurm_pal.variability.spread import slowdowns
from slurm_pal.variability.track import Track, repeat_sd, sigma

ENOUGH_REPEATS = 8
"""Repeatability is measured once this many GPUs have repeated runs, or half of a smaller group, ..."""
REPEAT_SHARE = 0.05
"""... and this share of the group, ..."""
REPEAT_NODES = 3
"""... on so many nodes, or on all that the group has: one node that scatters says nothing about the others."""


class GroupSlowdowns(NamedTuple):
    """The GPUs of one group at one moment; arrays are (n_gpus,), in order of UUID."""

    uuids: tuple[str, ...]
    slowdown: Floats  # relative to the median of the group
    z: Floats  # (slowdown - 1) over the robust sigma of all slowdowns
    relative: Floats  # slowdowns relative to each GPU's own kind: by them it is an outlier, or not
    scale: float  # sigma of these
    slow_z: float  # so many of them away, a GPU slower than `slow` is an outlier
    kinds: Kinds | None  # where there are two, as of two board makers
    slower_kind: Mask  # the GPUs of the slower one
    repeatability: float  # relative SD of one GPU's runs
    small: bool  # too few GPUs: no median worth the name


def standing(
    group: Group, tracks: Mapping[str, Track], node_of: Mapping[str, str], had_kinds: bool, params: Params
) -> GroupSlowdowns:
    """Slowdowns of the GPUs in `tracks`: those not too old, and what stands in for others (succession.py)."""
    uuids = tuple(sorted(tracks))
    is_time = group.unit in TIME_UNITS
    speeds = np.array([tracks[u].speed for u in uuids], dtype=np.float64)
    slow = slowdowns(np.exp(-speeds if is_time else speeds), is_time) if uuids else speeds
    scale = robust_scale(slow, params) if uuids else params.mad_floor
    kinds = two_kinds(slow, params.mad_floor, had_kinds) if group.sensitivity else None
    slower_kind = slow > (math.inf if kinds is None else kinds.edge)
    return GroupSlowdowns(
        uuids=uuids,
        slowdown=slow,
        z=(slow - 1.0) / scale,
        relative=slow if kinds is None else slow / np.where(slower_kind, kinds.centres[1], kinds.centres[0]),
        scale=scale if kinds is None else kinds.width,
        slow_z=beyond_chance(len(uuids), params),
        kinds=kinds,
        slower_kind=slower_kind,
        repeatability=repeatability(tracks, node_of, params),
        small=len(uuids) < params.small_group,
    )


def repeatability(tracks: Mapping[str, Track], node_of: Mapping[str, str], params: Params) -> float:
    """Relative SD of one GPU's runs: measured where enough of the group was repeated, else the default.

    Never less than what the runs themselves report by their confidence intervals.
    """
    measured = {u: sd for u, t in tracks.items() if (sd := repeat_sd(t)) is not None}
    base = params.repeatability
    enough = max(min(ENOUGH_REPEATS, len(tracks) / 2.0), REPEAT_SHARE * len(tracks))
    if measured and len(measured) >= enough and _on_nodes(measured, node_of) >= min(
        REPEAT_NODES, _on_nodes(tracks, node_of)
    ):  # fmt: skip
        base = max(params.repeatability_floor, float(np.median(list(measured.values()))))
    return max(base, float(np.median([t.last.noise for t in tracks.values()])) if tracks else 0.0)


def _on_nodes(uuids: Iterable[str], node_of: Mapping[str, str]) -> int:
    return len({node_of.get(uuid, "") for uuid in uuids})


def age_days(ts: float, now_s: float) -> int:
    """Age in calendar days (UTC): publishing twice on one day gives the same numbers."""
    return max(0, math.floor(now_s / DAY_S) - math.floor(ts / DAY_S))


def age_state(ts: float, now_s: float, params: Params) -> str:
    """`fresh`, `stale` or `unknown`."""
    age_d = age_days(ts, now_s)
    if age_d > params.unknown_after_d:
        return "unknown"
    return "stale" if age_d >= params.stale_after_d else "fresh"


def shrunk(slowdown: float, ts: float, now_s: float, params: Params) -> float:
    """A stale slowdown moved towards 1.0, exponentially with the days since it became stale."""
    over_d = age_days(ts, now_s) - params.stale_after_d
    scale_d = max(1.0, params.unknown_after_d - params.stale_after_d)
    return slowdown if over_d <= 0 else 1.0 + (slowdown - 1.0) * math.exp(-over_d / scale_d)


def confidence(track: Track, gpus: int, now_s: float, params: Params) -> float:
    """How far a score can be relied on, 0..1: 1 - sigma / (the change that counts as a jump).

    Half of it while a departing run waits for confirmation, and less among few GPUs, whose median is doubtful.
    """
    at_s = track.ts + age_days(track.ts, now_s) * DAY_S
    sure = min(1.0, max(0.0, 1.0 - sigma(track, at_s, params) / params.jump))
    return (sure / 2 if track.pending else sure) * min(1.0, gpus / params.few_peers)
