# SPDX-License-Identifier: MIT
"""Moves planned by trying one job after the other: slow and plain, what `Prospects` must agree with."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_pal.moves.worth import CandidateMove, Movable, MoveLimits, Planner
from slurm_pal.placement.occupancy import Occupancy


def plan_moves(
    occupancy: Occupancy, policy: str, running: Sequence[Movable], limits: MoveLimits
) -> list[CandidateMove]:
    """The moves to make now, those with most GPU-time at stake first.

    With chained moves each is planned with the GPUs that earlier ones give up. The occupancy is left as it was.
    """
    moves: list[CandidateMove] = []
    planner = Planner(occupancy, policy, limits)
    ripe = [job for job in running if job.since_s >= limits.minimum_s and job.moves < limits.per_job]
    for job in sorted(ripe, key=lambda job: (-job.shape.total * job.remaining_s * job.factor, job.job_id)):
        if len(moves) >= limits.per_tick:
            break
        placed = planner.attempt(job)
        if placed is not None:
            planner.book(job, placed)
            moves.append(CandidateMove(job.job_id, placed, job.remaining_s * (job.factor - placed.product)))
    planner.undo()
    return moves
