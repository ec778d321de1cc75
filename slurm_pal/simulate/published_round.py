# SPDX-License-Identifier: MIT
"""The published round: every running job is placed again, as if moves were free."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_pal.moves.worth import slots
from slurm_pal.placement.occupancy import Occupancy
from slurm_pal.placement.view import Placement, Rule
from slurm_pal.simulate.jobs import ReplayJob


def everybody_anew(
    occupancy: Occupancy, policy: str, running: Sequence[ReplayJob], rule: Callable[[ReplayJob], Rule]
) -> dict[int, Placement]:
    """Job number -> new placement, for those whose GPUs change; sensitive classes choose first, as published.

    A job that finds no place this way keeps its own, and so do all of that round (nothing
    is moved), since a running job must not be stopped. The occupancy is left as it was.
    """
    order = sorted(running, key=lambda job: (job.trace.sensitivity, job.submit_s, job.number))
    for job in order:
        occupancy.give(job.held)
    found: list[tuple[ReplayJob, Placement]] = []
    for job in order:
        placed = occupancy.place(policy, job.trace.shape, rule(job), job.trace.partition)
        if placed is None:
            break
        occupancy.take(slots(placed))
        found.append((job, placed))
    for _, placed in found:
        occupancy.give(slots(placed))
    for job in order:
        occupancy.take(job.held)
    if len(found) < len(order):
        return {}
    return {job.number: placed for job, placed in found if _gpus(slots(placed)) != _gpus(job.held)}


def _gpus(held: Sequence[tuple[int, Sequence[int]]]) -> set[tuple[int, int]]:
    return {(node, index) for node, indexes in held for index in indexes}
