# SPDX-License-Identifier: MIT
"""The order of the queue: which place each pending job should have, as points on top of the site's own priority.

Pure. The points say what the rule (`rebalance.order`) says, in coarse levels so that few of them change from tick to
tick; within a level the site's own order decides. What a job may lose by it is bounded: once it has been overtaken
for `bound_s` (pending/overtaking) it has its place in front back, and nobody but others like it comes before it.
Placement has no part in this: the order of the queue makes no GPU faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

NONE, SHORTEST, RESPONSE_RATIO, FAIR = "none", "shortest", "response-ratio", "fair"
LEVELS = 32
"""Between the last and the first place of a rule; those in front come above."""
SHORTEST_S = 60.0
"""Jobs that are expected to run for less are all alike: a level is half an octave from here on."""
NARROW_GPUS = 8
"""A job of more GPUs is in front sooner: each of them starts later when others hold some, so the bound is divided."""


class Queued(NamedTuple):
    """A pending job that may get another place."""

    job_id: int
    user: str
    gpus: int
    partitions: frozenset[str]
    base: int  # its priority without ours
    eligible_s: float  # Unix s
    expected_s: float
    expected_by: str  # what that is from
    overtaken_s: float  # time by which others overtook it


class OrderRule(NamedTuple):
    """What the settings say."""

    order: str
    bound_s: float
    points: int  # of a job in front


class Foreign(NamedTuple):
    """A pending job that gets no points, since it is not ours."""

    partitions: frozenset[str]
    base: int
    gpus: int
    overtaken_s: float


class QueuePlace(NamedTuple):
    """What one job should get."""

    job_id: int
    points: int
    in_front: bool
    why: str


def places(
    queue: Iterable[Queued], shares: Mapping[str, float], rule: OrderRule, now_s: float, foreign: Sequence[Foreign] = ()
) -> list[QueuePlace]:
    """The place of each job. `shares` are the users' parts of the GPU time used lately."""
    late = [one for one in foreign if one.overtaken_s >= bound_s(one.gpus, rule)]
    return [_behind(_place(job, shares, rule, now_s), job, late) for job in queue]


def bound_s(gpus: int, rule: OrderRule) -> float:
    """A job that was overtaken for so long is in front."""
    return rule.bound_s * min(1.0, NARROW_GPUS / max(1, gpus))


def _place(job: Queued, shares: Mapping[str, float], rule: OrderRule, now_s: float) -> QueuePlace:
    if job.overtaken_s >= bound_s(job.gpus, rule):
        why = f"others overtook it for {_duration(job.overtaken_s)}, which is the bound: it is in front"
        return QueuePlace(job.job_id, rule.points, True, why)
    if rule.order == RESPONSE_RATIO:
        ratio = (max(0.0, now_s - job.eligible_s) + job.expected_s) / max(job.expected_s, 1.0)
        level, why = 4 * math.log2(max(1.0, ratio)), f"it waits and runs for {_short(ratio)} x its run time"
    elif rule.order == FAIR:
        share = shares.get(job.user, 0.0)
        level = LEVELS * 2.0 ** (-share * max(1, len(shares)))
        why = f"{job.user} had {100 * share:.0f} % of the GPU time used lately"
    else:
        level = LEVELS - max(0.0, 2 * math.log2(max(job.expected_s, SHORTEST_S) / SHORTEST_S))
        why = f"it is expected to run for {_duration(job.expected_s)} by {job.expected_by}"
    level = min(LEVELS, max(0, math.floor(level + 1e-9)))
    return QueuePlace(job.job_id, level * (rule.points // (2 * LEVELS)), False, why)


def _behind(place: QueuePlace, job: Queued, late: Sequence[Foreign]) -> QueuePlace:
    """A place not before jobs of others that come first by the site's order and have been overtaken for too long."""
    if any(one.base > job.base and one.base <= job.base + place.points for one in late
           if not one.partitions.isdisjoint(job.partitions)):  # fmt: skip
        return QueuePlace(job.job_id, 0, False, "a job that is not ours was overtaken for too long")
    return place


def _short(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.1f} h"
