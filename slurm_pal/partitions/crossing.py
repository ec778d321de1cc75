# SPDX-License-Identifier: MIT
"""Running jobs that another of their user's partitions would suit better: which, and by how much. Pure.

While a job runs, Slurm shows the partition it runs in, but not its user's list. The list is known
only for jobs whose list the tick once made shorter, so only these are looked at. `planning` decides
whether a move pays, with these partitions beside the job's own. Here is decided which may be
considered: those where the job belongs by the allocation policy, where it is faster, as far as that
is sure, and where nobody waits in the queue.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from slurm_pal.decide.steering import sure
from slurm_pal.journal.journal import Move
from slurm_pal.journal.move_states import MoveOutcome
from slurm_pal.moves.planning import Elsewhere, Running
from slurm_pal.partitions.claimants import Known, PartitionNodes, open_partitions, speeds
from slurm_pal.partitions.sharing import LEAST_SHARE
from slurm_pal.slurm.client import Overview


class Crosser(NamedTuple):
    """A movable job that runs in one of its user's several partitions."""

    one: Running
    own: tuple[str, ...]  # its user's list, in their order
    speed: Mapping[str, float]  # partition -> throughput, in any unit of its own; those where it could run
    error: Mapping[str, float]  # partition -> standard deviation of its logarithm

    @property
    def slowest(self) -> float:
        """Its throughput in the slowest of these partitions over that where it runs."""
        return min(speed for speed in self.speed.values() if speed > 0) / self.speed[self.one.job.partition]


def crossers(
    overview: Overview, running: Iterable[Running], own: Mapping[int, tuple[str, ...]], known: Known
) -> list[Crosser]:
    """Those of the movable jobs that may run in several partitions.

    `own` has their users' lists, as far as they are known.
    """
    site, found = PartitionNodes(overview), []
    for one in running:
        mine = own.get(one.job.job_id, ())
        names = open_partitions(site, one, mine) if len(mine) > 1 else []
        if len(names) > 1:
            gpus = sum(map(len, one.job.gpus.values()))
            found.append(Crosser(one, mine, *speeds(one.job, gpus, names, known)))
    return [cross for cross in found if len(cross.speed) > 1 and cross.speed.get(cross.one.job.partition, 0.0) > 0]


def elsewhere(cross: Crosser, belongs: Mapping[str, float], closed: Collection[str]) -> tuple[Elsewhere, ...]:
    """The partitions in which this job would be faster, fastest first.

    `belongs` is its share of time in each partition, as an allocation policy has it.
    """
    here = cross.one.job.partition
    found = []
    for name in cross.speed:
        if name == here or name in closed or belongs.get(name, 0.0) <= LEAST_SHARE or cross.speed[name] <= 0:
            continue
        doubt = cross.error.get(here, 0.0) ** 2 + cross.error.get(name, 0.0) ** 2
        speed = math.exp(sure(math.log(cross.speed[name] / cross.speed[here]), doubt))
        if speed > 1.0:
            found.append(Elsewhere(name, speed))
    return tuple(sorted(found, key=lambda other: (-other.speed, other.partition)))


def failed(moves: Iterable[Move]) -> frozenset[tuple[int, str]]:
    """(job, partition) of moves that cost a job its run and did not bring it there: none is tried again."""
    missed = (MoveOutcome.ELSEWHERE, MoveOutcome.WAITING)
    return frozenset((m.job_id, m.partition) for m in moves if m.partition and m.outcome in missed)
