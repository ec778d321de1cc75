# SPDX-License-Identifier: MIT
"""How long waiting for better GPUs can pay."""

from __future__ import annotations

from slurm_pal.base.jobs import GpuShape

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
