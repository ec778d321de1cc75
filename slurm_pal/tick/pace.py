# SPDX-License-Identifier: MIT
"""How fast the running jobs are, from their own words (`pal progress`) at this tick and the ones before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from slurm_pal.base import marks
from slurm_pal.base.errors import BusyError, DataError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.numbers import digits
from slurm_pal.decide.facts import MoveSettings, facts_of
from slurm_pal.journal.journal import Journal, Observation, Sample
from slurm_pal.journal.move_states import CARRIED_OUT
from slurm_pal.moves import learning
from slurm_pal.moves.learning import Corrections
from slurm_pal.placement.penalties import Penalties, at
from slurm_pal.slurm.topology import Topology
from slurm_pal.store.snapshot import Snapshot
from slurm_pal.tick.steered import Pace

SINCE_S = 30 * 86400.0  # older steps say little about today's GPUs
NEWS = 0.02  # a change of what a move brought that is worth a write


def look(
    jobs: Iterable[SlurmJob],
    snapshot: Snapshot,
    journal: Journal,
    terms: MoveSettings,
    network: Topology,
    expected: Penalties,
    now_s: float,
    alone: bool = False,
) -> tuple[dict[int, Pace], Corrections]:
    """What each job says of its pace, and what that says of the GPUs; both journalled where that can be.

    A GPU is believed slower than measured once jobs of several users found it so lately; where a user steers
    `alone`, only their own jobs, one is enough. `expected` are the locality penalties of work of which nothing else is
    known.

    Raises DataError when the journal cannot be read.
    """
    before = journal.samples()
    steps: dict[int, tuple[dict[str, str], Observation]] = {}
    earlier = {(seen.job_id, seen.restarts): seen for seen in journal.observations(now_s - SINCE_S)}
    fresh: list[Observation] = []
    samples: list[Sample] = []
    for job in jobs:
        said = marks.read(job.comment, marks.PROGRESS)
        if job.state != "RUNNING" or not job.gpus or digits(said.get("it", "")) is None:
            continue
        step_s = learning.step_time(before.get(job.job_id), said, job)
        known = earlier.get((job.job_id, job.restarts))
        if step_s is not None:
            sensitivity = facts_of(job, terms).sensitivity
            level = network.span(job.nodes)
            step_s = learning.smoothed(known.step_s if known else None, step_s)
            known = _observation(job, sensitivity, snapshot, level, at(expected, level), step_s, now_s)
            earlier[job.job_id, job.restarts] = known
            fresh.append(known)
        sample = learning.sample(said, job)
        if sample is not None and sample != before.get(job.job_id):
            samples.append(sample)
        if known is not None:
            steps[job.job_id] = said, known
    _remember(journal, fresh, samples, _brought(journal, earlier, now_s))
    users, since_s = (1, 0.0) if alone else (learning.SLOW_USERS, now_s - learning.BELIEVED_S)
    found = learning.corrections(earlier.values(), snapshot, users, since_s, expected, snapshot.network)
    return {job_id: _pace(job_id, *seen, found, expected) for job_id, seen in steps.items()}, found


def _observation(
    job: SlurmJob, sensitivity: str, snapshot: Snapshot, level: int, locality: float, step_s: float, now_s: float
) -> Observation:
    gpus = tuple((node, index) for node, indexes in job.gpus.items() for index in indexes)
    key = learning.key_of(job.user, job.name, len(gpus), sensitivity)
    slowdown = learning.slowest(snapshot, sensitivity, job.gpus)
    return Observation(
        key, job.job_id, job.restarts, sensitivity, gpus, slowdown, step_s, now_s, level, locality
    )  # fmt: skip


def _remember(
    journal: Journal, fresh: Iterable[Observation], samples: Iterable[Sample], brought: Mapping[int, float]
) -> None:
    """For the next tick. Advice beside a daemon may only read, and a full disk must not keep us from deciding."""
    with contextlib.suppress(DataError, BusyError), journal.together():
        for seen in fresh:
            journal.observe(seen)
        for sample in samples:
            journal.add_sample(sample)
        for move_id, ratio in brought.items():
            journal.set_observed(move_id, ratio)


def _brought(journal: Journal, seen: Mapping[tuple[int, int], Observation], now_s: float) -> dict[int, float]:
    """What finished moves brought, where that is news: move -> step time before over that after."""
    found: dict[int, float] = {}
    for move in journal.moves(now_s - SINCE_S):
        before, after = (seen.get((move.job_id, restarts)) for restarts in (move.restarts, move.restarts + 1))
        if move.outcome in CARRIED_OUT and before is not None and after is not None:
            ratio = before.step_s / after.step_s
            if move.observed is None or abs(ratio - move.observed) > NEWS * move.observed:
                found[move.move_id] = ratio
    return found


def _pace(job_id: int, said: dict[str, str], seen: Observation, found: Corrections, expected: Penalties) -> Pace:
    remaining_s = learning.remaining_s(said, seen.step_s)
    locality = at(found.penalties.get(seen.key, expected), seen.level)
    return Pace(seen.step_s, remaining_s, found.jobs.get(job_id), found.sensitivity.get(seen.key, 1.0), locality)
