# SPDX-License-Identifier: MIT
"""The jobs that a tick may steer: those that palsub or the submit filter saw, sorted by what can be done with them.

Pure: what Slurm shows and what the journal remembers in, nouns of the planners out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.facts import Facts, MoveSettings, facts_of, is_ours
from slurm_pal.decide.job_request import request_of
from slurm_pal.decide.request import NO_GPU_WORDS, Request, for_class
from slurm_pal.decide.tick_lease import TickLease
from slurm_pal.journal.journal import Move
from slurm_pal.journal.move_states import REQUEUED, MoveOutcome
from slurm_pal.moves.learning import key_of
from slurm_pal.moves.planning import Passed, Running
from slurm_pal.moves.steps import no_checkpoint, requeued_otherwise
from slurm_pal.pending.retarget import Waiting
from slurm_pal.placement.penalties import Penalties
from slurm_pal.slurm.client import Overview

FELT_AT_LEAST = 0.3
"""Work that feels less than this share of what its class feels is not moved for faster GPUs."""


class Pace(NamedTuple):
    """How fast a job runs, by its own word (`pal progress`)."""

    step_s: float  # seconds per iteration here
    remaining_s: float | None  # at this pace; None where it does not state its length
    factor: float | None  # its time factor here by its own steps; None where there is nothing to compare with
    felt: float = 1.0  # exponent on believed slowdowns: how much of them this work feels
    locality: float = 1.0  # the part of its time factor that is due to the network


class Memory(NamedTuple):
    """What earlier ticks left."""

    leases: Mapping[int, TickLease]
    waited: Mapping[int, float]  # job -> seconds that it could have started and was kept off by us
    left_alone: frozenset[int]
    moves: Mapping[int, tuple[Move, ...]]  # job -> its moves, newest last
    moving: frozenset[int]  # jobs of moves under way
    paces: Mapping[int, Pace]
    penalties: Mapping[str, Penalties] = {}  # key of jobs that do the same work -> its locality penalties

    def locality(self, job: SlurmJob, gpus: int, sensitivity: str) -> Penalties:
        """The locality penalties of the job's work; () where nothing is known of it."""
        return self.penalties.get(key_of(job.user, job.name, gpus, sensitivity), ())


class Steered(NamedTuple):
    """Who is there."""

    waiting: tuple[Waiting, ...]  # by Slurm's priority, highest first
    running: tuple[Running, ...]
    staying: tuple[Passed, ...]  # ours and running, but not to be moved, and why
    foreign: int  # jobs that are not ours to steer
    behind: int = 0  # pending jobs that come after those of `waiting`


def steered(
    overview: Overview, memory: Memory, settings: MoveSettings, only_user: str = "", depth: int | None = None
) -> Steered:
    """Sort the jobs. With `only_user` the jobs of all others are foreign.

    Only the first `depth` pending jobs are looked at (None: all), since reading the requests of thousands would
    take most of a tick. Users take turns, each with their jobs by priority, so one user's thousands hide nobody else's.
    """
    pending: list[SlurmJob] = []
    running: list[Running] = []
    staying: list[Passed] = []
    foreign = 0
    for job in overview.jobs:
        if (only_user and job.user != only_user) or not is_ours(job):
            foreign += 1
        elif job.job_id in memory.left_alone or job.job_id in memory.moving:
            continue
        elif job.state == "PENDING":
            pending.append(job)
        elif job.state == "RUNNING":
            facts = facts_of(job, settings)
            why_not = facts.why_not or _no_gpu_words(job, facts, memory)
            if why_not:
                staying.append(Passed(job.job_id, why_not))
            else:
                running.append(_running(job, facts, memory, settings.gather))
    first = sorted(_in_turns(pending)[:depth], key=lambda job: job.rank)
    waiting = tuple(_waiting(job, facts_of(job, settings), memory, settings.gather) for job in first)
    return Steered(waiting, tuple(running), tuple(staying), foreign, len(pending) - len(waiting))


def _in_turns(pending: list[SlurmJob]) -> list[SlurmJob]:
    """The first job of each user by priority, then the second of each, and so on."""
    turns: Counter[str] = Counter()
    found: list[tuple[int, int, SlurmJob]] = []
    for place, job in enumerate(sorted(pending, key=lambda job: job.rank)):
        found.append((turns[job.user], place, job))
        turns[job.user] += 1
    return [job for _, _, job in sorted(found, key=lambda row: row[:2])]


def _request(job: SlurmJob, memory: Memory, gather: bool) -> Request:
    """What its user asks for: a list that a lease or an earlier move left on the job is none of their wishes."""
    lease = memory.leases.get(job.job_id)
    own = (None, None) if lease is None else (lease.own_req, lease.own_exc)
    return request_of(job, *own, gather)


def _for_class(job: SlurmJob, facts: Facts, memory: Memory, gather: bool = False) -> Request:
    return for_class(_request(job, memory, gather), facts.sensitivity, facts.origin)


def _no_gpu_words(job: SlurmJob, facts: Facts, memory: Memory) -> str:
    """Why better GPUs mean nothing to the job; "" where they may."""
    leave = _for_class(job, facts, memory).leave
    return leave if leave == NO_GPU_WORDS else ""


def _waiting(job: SlurmJob, facts: Facts, memory: Memory, gather: bool) -> Waiting:
    waited_s, request = memory.waited.get(job.job_id, 0.0), _for_class(job, facts, memory, gather)
    locality = memory.locality(job, request.shape.total if request.shape else 0, facts.sensitivity)
    return Waiting(job, request, facts.sensitivity, waited_s, facts.measured, locality)


def _running(job: SlurmJob, facts: Facts, memory: Memory, gather: bool) -> Running:
    moves = memory.moves.get(job.job_id, ())
    # Where Slurm spread it again, its stored request may be another than the mark says: once is enough.
    gather = gather and not any(move.outcome in (MoveOutcome.ELSEWHERE, MoveOutcome.WAITING) for move in moves)
    pace = memory.paces.get(job.job_id)
    sensitivity, remaining_s, factor = _by_its_pace(facts.sensitivity, pace)
    by_pace = pace is not None and pace.felt < FELT_AT_LEAST
    return Running(
        job=job,
        request=_request(job, memory, gather),
        sensitivity=sensitivity,
        measured=facts.measured or by_pace,
        checkpoint=facts.checkpoint,
        lost_s=facts.lost_s,
        moves=sum(move.outcome in REQUEUED or no_checkpoint(move) or requeued_otherwise(move) for move in moves),
        last_move_s=moves[-1].ended_s if moves else 0.0,
        remaining_s=remaining_s,
        factor=factor,
        stated_s=pace.remaining_s if pace is not None else None,
        locality=memory.locality(job, sum(map(len, job.gpus.values())), facts.sensitivity),
    )


def _by_its_pace(sensitivity: str, pace: Pace | None) -> tuple[str, float | None, float | None]:
    """Class, remaining time and time factor as the planner is to take them.

    The planner weighs believed slowdowns at their full size. Work that feels only a part of
    them (`felt`) gets its factor at full size and a remaining time scaled so that the gain is
    right; work that feels hardly anything counts as class C. What the network adds is felt in full.
    """
    if pace is None:
        return sensitivity, None, None
    if pace.felt < FELT_AT_LEAST:
        return "C", pace.remaining_s, None
    if pace.factor is None:
        return sensitivity, pace.remaining_s, None
    full = (pace.factor / pace.locality) ** (1.0 / pace.felt) * pace.locality
    remaining_s = None if pace.remaining_s is None else pace.remaining_s * pace.felt * full / pace.factor
    return sensitivity, remaining_s, full
