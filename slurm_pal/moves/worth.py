# SPDX-License-Identifier: MIT
"""Which running jobs are worth moving onto GPUs that are free now: pure planning.

A job's new place is chosen by the same rule as a start, so a move never breaks up nodes
that a start would have kept whole. The published scheduler moves jobs at every round for
free, which loses on a real Slurm (docs/placement.md): here a move must gain more than it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from slurm_pal.base.jobs import GpuShape, SlurmJob
from slurm_pal.moves.reach import Reach
from slurm_pal.placement.occupancy import Occupancy
from slurm_pal.placement.view import Placement, Rule

YEAR_S = 365 * 86400
Slots = tuple[tuple[int, tuple[int, ...]], ...]
"""GPUs as (position of the node, indexes there)."""


class Movable(NamedTuple):
    """A running job as the planner sees it."""

    job_id: str
    shape: GpuShape
    rule: Rule
    partition: str
    slots: Slots  # it holds
    factor: float  # believed slowdown x locality where it is
    remaining_s: float  # expected run time still to come, on median GPUs of one node
    since_s: float  # since its last start or move
    cost_s: float  # checkpoint, Slurm's gap and restart
    moves: int  # so far


class MoveLimits(NamedTuple):
    """When a move is worth its cost."""

    margin: float = 1.5  # gain over cost
    minimum_s: float = 600.0  # the least time a job has run where it is
    per_tick: int = 16
    per_job: int = 20
    chained: bool = True  # later moves may use the GPUs that earlier ones give up; a real Slurm would have to wait


class CandidateMove(NamedTuple):
    """One job to its new GPUs; `gain_s` is expected run time saved, cost not deducted."""

    job_id: str
    placement: Placement
    gain_s: float


class Planner:
    """Tries moves on an occupancy and books those that are taken; `undo` leaves it as it was."""

    def __init__(self, occupancy: Occupancy, policy: str, limits: MoveLimits) -> None:
        self._occupancy, self._policy, self._limits = occupancy, policy, limits
        self.reach = Reach(occupancy, policy)
        self._booked: dict[str, tuple[Movable, Placement]] = {}

    def attempt(
        self, job: Movable, barred: Collection[int] = (), nearer: Callable[[Placement], Placement] | None = None
    ) -> Placement | None:
        """Where the job would go, its own GPUs given back, if that pays. It may not use the nodes `barred`.

        `nearer` brings the rule's choice nearer together, by what is free on the occupancy then.
        """
        least = self.reach.least_product(job.shape, job.rule, job.partition, job.slots) if not barred else 0.0
        if not _pays(job, least, self._limits):
            return None
        self._occupancy.give(job.slots)
        closed = [node for node in barred if self._occupancy.free(node)]  # not those that are down anyway
        for node in closed:
            self._occupancy.set_down(node, True)
        placed = self._occupancy.place(self._policy, job.shape, job.rule, job.partition)
        placed = nearer(placed) if nearer is not None and placed is not None else placed
        for node in closed:
            self._occupancy.set_down(node, False)
        self._occupancy.take(job.slots)
        return placed if placed is not None and _pays(job, placed.product, self._limits) else None

    def pays(self, job: Movable, product: float) -> bool:
        """Whether a move to GPUs with this product does."""
        return _pays(job, product, self._limits)

    def book(self, job: Movable, placed: Placement) -> None:
        """The GPUs of the placement are in use from now on, and with chained moves those of the job are free."""
        if self._limits.chained:
            self._occupancy.give(job.slots)
        self._occupancy.take(self._taken(job, placed))
        self._booked[job.job_id] = job, placed
        self.reach.forget()

    def unbook(self, job_id: str) -> None:
        """As if this move had not been booked; with chained moves no other may rest on it."""
        job, placed = self._booked.pop(job_id)
        self._occupancy.give(self._taken(job, placed))
        if self._limits.chained:
            self._occupancy.take(job.slots)
        self.reach.forget()

    def undo(self) -> None:
        """As if nothing had been booked."""
        for job, placed in self._booked.values():
            self._occupancy.give(self._taken(job, placed))
        if self._limits.chained:
            for job, _ in self._booked.values():
                self._occupancy.take(job.slots)
        self._booked.clear()
        self.reach.forget()

    def _taken(self, job: Movable, placed: Placement) -> Slots:
        """What a booked move takes besides the GPUs that the job holds anyway."""
        if self._limits.chained:
            return slots(placed)
        held = dict(job.slots)
        return tuple((node, tuple(k for k in gpus if k not in held.get(node, ()))) for node, gpus in slots(placed))


def expected_left_s(limit_s: float, share: float, ran_s: float, left_to_limit_s: float, factor: float) -> float:
    """Expected run time still to come on median GPUs of one node; an estimate.

    A job is expected to run for a share of its time limit, and one that has outlived that,
    for the same share of the rest. `factor` is its time factor where it runs.
    """
    left_s = limit_s * share - ran_s
    if left_s <= 0:
        left_s = max(0.0, left_to_limit_s) * share
    return left_s / max(factor, 1.0)


def stated_limit_s(job: SlurmJob) -> float | None:
    """The time limit of a job, None without one.

    In a partition without a limit a job that backfill has started shows a year (seen on 22.05 and 26.05):
    half of that is no estimate.
    """
    return None if job.time_limit_s is None or job.time_limit_s >= YEAR_S else job.time_limit_s


def _pays(job: Movable, product: float, limits: MoveLimits) -> bool:
    """Whether a move to GPUs with this product saves more run time than it costs, with the margin."""
    return job.remaining_s * (job.factor - product) > limits.margin * job.cost_s


def slots(placed: Placement) -> Slots:
    """The GPUs of a placement as (node, indexes)."""
    return tuple(zip(placed.nodes, placed.gpus, strict=True))
