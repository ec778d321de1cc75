# SPDX-License-Identifier: MIT
"""How long waiting for better GPUs can pay."""

from __future__ import annotations

import math

from slurm_pal.base.jobs import GpuShape
from slurm_pal.base.light import Iterable, Sequence

WAIT_SHARE = 0.5
"""A job waits for better GPUs for half of what waiting can pay: if none come, it has lost no more than half of
what the slow ones would have cost; if they come, it may still win the other half (docs/placement.md)."""


MEDIAN_SLOWDOWN = 1.0


def hoped(shape: GpuShape, locality: float, locality_penalty: float) -> float:
    """The time factor that a wait may bring a job that would now run at this locality: that of median GPUs.

    A job on an open number of nodes may start across nodes as soon as so many GPUs are free, since Slurm
    waits for a node of its own only where the job states so.
    """
    return MEDIAN_SLOWDOWN * (locality_penalty if shape.nodes is None and shape.total > 1 else locality)


def others_come(pays_s: float, ends_per_s: float) -> bool:
    """Whether better GPUs can be expected while a wait can pay, which is `pays_s`.

    `ends_per_s` is how many of the jobs that hold better GPUs end in a second. Each second of waiting costs one, and
    saves `pays_s` with at most that probability.
    """
    return pays_s * ends_per_s > 1.0


def patience_s(there: float, here: float, expected_run_s: float) -> float:
    """Seconds that a wait for time factor `here` may last before `there`, which is free now, would have been better.

    A job that runs `expected_run_s` on a median GPU of one node loses
    (there - here) x expected_run_s by starting on the slower GPUs; a longer wait cannot
    pay. Never negative.
    """
    return max(0.0, there - here) * expected_run_s


Holder = tuple[float, int]
"""A running job as one that waits for its GPUs sees it: expected run time in seconds, GPUs that it would give back."""


def expected_wait_s(count: int, nodes: int, there: Iterable[tuple[int, Sequence[Holder]]]) -> float:
    """Seconds until `nodes` of these nodes are expected to have `count` free GPUs each; infinity for never.

    Each node is (free now, who holds the others). Jobs are taken to end at any moment alike, whatever their age; of
    those on one node the largest are waited for.
    """
    rates: list[float] = []
    for free, holders in there:
        left, took_s = sorted(holders, key=lambda holder: holder[1]), 0.0
        while free < count and left:
            took_s += 1.0 / sum(1.0 / max(1.0, run_s) for run_s, _ in left)
            free += left.pop()[1]
        if free >= count:
            rates.append(1.0 / max(took_s, 1e-9))
    rates.sort()
    if len(rates) < nodes:
        return math.inf
    found_s = 0.0
    for _ in range(nodes):  # the fastest of all, then the fastest of the rest, ...
        found_s += 1.0 / sum(rates)
        rates.pop()
    return found_s
