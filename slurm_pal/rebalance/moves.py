"""Which running jobs are worth moving onto GPUs that are free now: pure planning.

A job's new place is chosen by the same rule as a start, so a move never breaks up nodes
that a start would have kept whole. Free moves of the published round scheduler are what
makes it lose on a real one (docs/placement.md): here a move must gain more than it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.jobs import GpuShape
from slurm_pal.placement.occupancy import Occupancy
from slurm_pal.placement.view import Placement, Rule
from slurm_pal.rebalance.reach import Reach


class Movable(NamedTuple):
    """A running job as the planner sees it."""

    job_id: str
    shape: GpuShape
    rule: Rule
    partition: str
    slots: tuple[tuple[int, tuple[int, ...]], ...]  # (node, GPU indexes) it holds
    factor: float  # believed slowdown x locality where it is
    remaining_s: float  # expected run time still to come, on median GPUs of one node
    since_s: float  # since its last start or move
    cost_s: float  # checkpoint, Slurm's gap and restart
    moves: int  # so far


class Limits(NamedTuple):
    """When a move is worth its trouble."""

    margin: float = 1.5  # gain over cost
    minimum_s: float = 600.0  # not before a job has run so long where it is
    per_tick: int = 16
    per_job: int = 20


class Move(NamedTuple):
    """One job to its new GPUs; `gain_s` is expected run time saved, cost not deducted."""

    job_id: str
    placement: Placement
    gain_s: float


def plan_moves(occupancy: Occupancy, policy: str, running: Sequence[Movable], limits: Limits) -> list[Move]:
    """The moves to make now, those with most GPU-time at stake first.

    Each is planned with the GPUs that earlier ones give up. The occupancy is left as it was.
    """
    moves: list[Move] = []
    undo: list[tuple[Movable, Placement]] = []
    reach = Reach(occupancy, policy)
    ripe = [job for job in running if job.since_s >= limits.minimum_s and job.moves < limits.per_job]
    for job in sorted(ripe, key=lambda job: (-job.shape.total * job.remaining_s * job.factor, job.job_id)):
        if len(moves) >= limits.per_tick:
            break
        if not _pays(job, reach.least_product(job.shape, job.rule, job.partition, job.slots), limits):
            continue
        occupancy.give(job.slots)
        placed = occupancy.place(policy, job.shape, job.rule, job.partition)
        if placed is not None and _pays(job, placed.product, limits):
            occupancy.take(slots(placed))
            reach.forget()
            undo.append((job, placed))
            moves.append(Move(job.job_id, placed, job.remaining_s * (job.factor - placed.product)))
        else:
            occupancy.take(job.slots)
    for _, placed in undo:
        occupancy.give(slots(placed))
    for job, _ in undo:
        occupancy.take(job.slots)
    return moves


def _pays(job: Movable, product: float, limits: Limits) -> bool:
    """Whether a move to GPUs with this product saves more run time than it costs, with the margin."""
    return job.remaining_s * (job.factor - product) > limits.margin * job.cost_s


def slots(placed: Placement) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The GPUs of a placement as (node, indexes)."""
    return tuple(zip(placed.nodes, placed.gpus, strict=True))
