# SPDX-License-Identifier: MIT
"""Our own policy under the published rounds: the code that places jobs on a real Slurm, with free moves."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_pal.base.jobs import GpuShape
from slurm_pal.moves.order import response_ratio
from slurm_pal.moves.worth import slots
from slurm_pal.placement.class_fit import INSENSITIVE
from slurm_pal.placement.occupancy import Occupancy
from slurm_pal.placement.view import Placement, Rule
from slurm_pal.research.replica.active import ActiveJob, Gpus, RoundPolicy, RoundState
from slurm_pal.simulate.inputs.pal_profile import Profile

RULE = "class-fit"
BARRED_SLOWDOWN = 1.2
LIMIT_FACTOR = 1.5
"""The traces have no time limits: as in real mode, this many times the ideal run time across nodes."""


def ours(profile: Profile, by_response: bool = True) -> RoundPolicy:
    """A fresh round policy: the queue's head that fits, sensitive classes first; with backfill, whatever else fits.

    `by_response` tries the others by response ratio, otherwise in the queue's order. A
    sensitive job never takes outliers while enough other GPUs exist: it waits
    a round, which costs nothing here.
    """
    size = profile.gpus_per_node
    tables = {
        sensitivity: [list(values[first : first + size]) for first in range(0, len(values), size)]
        for sensitivity, values in profile.slowdown.items()
    }
    occupancy = Occupancy([str(node) for node in range(len(tables["A"]))], tables, tables, best_first=True)
    clean = {
        sensitivity: sum(slowdown <= BARRED_SLOWDOWN for row in table for slowdown in row)
        for sensitivity, table in tables.items()
    }

    def policy(moment: RoundState) -> Mapping[int, Gpus]:
        placed: dict[int, Placement] = {}
        for job in _in_turn(moment, occupancy.free_gpus, by_response):
            if job.size > occupancy.free_gpus:
                continue
            rule = Rule(job.sensitivity, moment.settings.locality_penalty, BARRED_SLOWDOWN, measured=True)
            found = occupancy.place(RULE, GpuShape(job.size), rule)
            if found is None or (_barred(job, found) and clean[job.sensitivity] >= job.size):
                continue
            occupancy.take(slots(found))
            placed[job.number] = found
        for found in placed.values():
            occupancy.give(slots(found))
        return {number: _ids(found, size) for number, found in placed.items()}

    return policy


def _in_turn(moment: RoundState, gpus: int, by_response: bool) -> list[ActiveJob]:
    """The head of the queue that fits by number, most sensitive first, and then the rest."""
    head = 0
    while head < len(moment.jobs) and moment.jobs[head].size <= gpus:
        gpus -= moment.jobs[head].size
        head += 1
    rest = list(moment.jobs[head:]) if moment.settings.backfill else []
    if by_response:
        limit = LIMIT_FACTOR * moment.settings.locality_penalty
        rest.sort(key=lambda job: -response_ratio(moment.now_s - job.submit_s, limit * job.row.ideal_s, job.size))
    return [*sorted(moment.jobs[:head], key=lambda job: job.sensitivity), *rest]


def _barred(job: ActiveJob, found: Placement) -> bool:
    return job.sensitivity not in INSENSITIVE and found.slowdown > BARRED_SLOWDOWN


def _ids(found: Placement, size: int) -> Gpus:
    return tuple(sorted(node * size + index for node, indexes in slots(found) for index in indexes))
