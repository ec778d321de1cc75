# SPDX-License-Identifier: MIT
"""What a replay assumes; every cost is here and is printed with the result."""

from __future__ import annotations

from typing import NamedTuple

from slurm_pal.moves.worth import MoveLimits
from slurm_pal.placement.patience import WAIT_SHARE


class ReplaySettings(NamedTuple):
    """Assumptions of real mode. Times in s."""

    locality_penalty: float = 1.7  # for applications without their own
    barred_slowdown: float = 1.05  # sensitive jobs are kept off GPUs believed slower
    limit_factor: float = 1.5  # a job without a time limit gets this many times its ideal run time across nodes
    wait_share: float = WAIT_SHARE  # a job waits for better GPUs for this share of what waiting can pay
    expected_run_share: float = 0.5  # expected run time as a share of the limit, all that Slurm knows
    backfill_interval_s: float = 30.0  # Slurm's bf_interval; 0: at every event
    backfill_depth: int = 500  # pending jobs that one pass looks at
    tick_s: float = 300.0  # how often moves are planned
    move_cost_s: float = 180.0  # checkpoint, Slurm's gap and restart, for jobs without their own
    warmup_s: float = 0.0  # after every start, the first included, without progress
    limits: MoveLimits = MoveLimits()
    steer: str = "start"  # "submit": only jobs that can start when they are submitted are placed by us
    best_first: bool = False  # within a node the best GPU for the class instead of the lowest index
    failures: Failures | None = None
    checkpoint_s: float = 3600.0  # movable jobs of the twin save their progress this often; of `failures` where given


class Failures(NamedTuple):
    """Nodes that fail and come back; jobs on them run again from their last checkpoint."""

    mtbf_s: float  # mean time between failures of one node
    repair_s: float
    checkpoint_s: float = 3600.0  # progress is saved this often
