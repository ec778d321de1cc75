# SPDX-License-Identifier: MIT
"""Jobs: what was decided for them, what they were given, and what the ticks did with them since."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from slurm_pal.base import config as settings
from slurm_pal.base import state as states_of_user
from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, SlurmError, one_line
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, SlurmJob
from slurm_pal.base.numbers import digits
from slurm_pal.frames.columns import CATEGORY, COUNT, NUMBER, TEXT, TIME, Column, described, frame
from slurm_pal.frames.missing import warn
from slurm_pal.journal import paths
from slurm_pal.journal.journal import Move, Observation, open_journal
from slurm_pal.journal.move_states import CARRIED_OUT, MoveOutcome
from slurm_pal.report import filter_mark
from slurm_pal.sensitivity import observed
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.states import JOB_ACTIVE, JOB_ENDED, JOB_UNKNOWN, JOB_WAITING
from slurm_pal.store import snapshot as snapshots
from slurm_pal.submit import decision as decisions

if TYPE_CHECKING:
    import pandas as pd

ASK_TIMEOUT_S = 60.0
SAME_JOB_S = 3600.0
"""A decision is made when its job is submitted; one further from it is about another job of the same id."""

JOBS = (
    Column("job_id", COUNT, "Slurm's job id"),
    Column("array_job_id", COUNT, "id of the array it is a task of; NA: of none"),
    Column("user", TEXT, "its user"),
    Column("name", TEXT, "its name"),
    Column("partition", TEXT, "its partition, or several joined by commas while it waits"),
    Column(
        "state", CATEGORY, "Slurm's state; NA: Slurm has forgotten it",
        tuple(sorted({*JOB_WAITING, *JOB_ACTIVE, *JOB_ENDED, JOB_UNKNOWN})),
    ),
    Column("state_reason", TEXT, "Slurm's reason for the state, such as why it waits; NA: none"),
    Column("sensitivity", CATEGORY, "sensitivity class it was placed by; NA: unknown, or not placed by us",
           SENSITIVITY_CLASSES),
    Column("sensitivity_source", TEXT, "where that comes from: word (its user's), history, telemetry, probe, ..."),
    Column("sensitivity_confidence", NUMBER, "how sure it is (0 to 1); NA: the filter does not say"),
    Column("measured_sensitivity", CATEGORY, "class that an observer measured beside it", SENSITIVITY_CLASSES),
    Column("decided_by", CATEGORY, "who decided: palsub, or the submit filter in slurmctld or in the client",
           ("palsub", "slurmctld", "client")),
    Column("action", CATEGORY, "how it was steered; none: left to Slurm", ("nodelist", "exclude", "prefer", "none")),
    Column("why", TEXT, "reason of the decision"),
    Column("policy", TEXT, "placement rule, by palsub's record"),
    Column("expected_factor", NUMBER, "slowdown x locality on the best GPUs free then (ratio)"),
    Column("plain_factor", NUMBER, "the same on those that plain Slurm would have picked (ratio)"),
    Column("lease_s", NUMBER, "longest time for which its list was to stand (s); NA: no list"),
    Column("nodes", TEXT, "nodes it was given, joined by commas"),
    Column("gpus", TEXT, "GPUs it was given, node:index,index; of an ended job only what the journal saw"),
    Column("n_gpus", COUNT, "number of GPUs that it was given; NA: none yet, or no longer known"),
    Column("gpu_slowdowns", TEXT, "slowdown of each for its class, by the snapshot of today; ?: never measured"),
    Column("slowdown", NUMBER, "slowdown of the slowest, which sets the pace of a synchronous job (ratio)"),
    Column("step_s", NUMBER, "time of one iteration, by the journal and pal progress (s)"),
    Column("moves", COUNT, "moves that were carried out, by the journal; NA: no journal to read"),
    Column("reclaims", COUNT, "how often it left nodes that owners wanted back, by the journal; NA: as for moves"),
    Column("restarts", COUNT, "restarts, moves and reclaims among them; NA: Slurm has forgotten it"),
    Column("decided_time", TIME, "when palsub decided"),
    Column("submit_time", TIME, "when it was submitted, or put back into the queue"),
    Column("start_time", TIME, "when it started; NaT: it has not"),
    Column("end_time", TIME, "when it ended; NaT: it has not, or Slurm has forgotten it"),
    Column("time_limit_s", NUMBER, "its time limit (s); NA: none"),
)  # fmt: skip


class _Sources(NamedTuple):
    """What is known besides Slurm's jobs."""

    decisions: Mapping[int, dict[str, Any]]
    seen: Mapping[int, Observation]  # the newest of each job
    moves: Mapping[int, int] | None  # carried out, by job; None: no journal to read
    reclaims: Mapping[int, int] | None  # the same of jobs that left for owners
    users: Mapping[int, str]  # of jobs in the journal
    snapshot: snapshots.Snapshot | None


@described(JOBS)
def jobs() -> pd.DataFrame:
    """One row for each job that Slurm, palsub's records of this user or the journal know, by id.

    Slurm knows jobs for `MinJobAge` (300 s) after their end; palsub's records and the journal (of root and SlurmUser
    the site's, else that of pal-rebalance --mine) know more of a job for longer. Other users' jobs are those that
    Slurm shows. Warns of what cannot be read. Raises SlurmError where Slurm does not answer and no job is known
    otherwise, DataError when the journal cannot be read, BusyError, ConfigError.
    """
    config = settings.load()
    sources = _read(config)
    try:
        known = {job.job_id: job for job in connect(config, timeout_s=ASK_TIMEOUT_S).jobs()}
    except SlurmError as error:
        if not (sources.decisions or sources.users):
            raise
        warn(f"without Slurm's view of the jobs: {one_line(error)}")
        known = {}
    rows = []
    for number in sorted({*known, *sources.decisions, *sources.users}):
        job, made = known.get(number), sources.decisions.get(number)
        if job is not None and made is not None and not _same(job, made):
            rows.append(_row(number, None, made, sources))
            made = None
        rows.append(_row(number, job, made, sources))
    return frame(JOBS, rows)


def _same(job: SlurmJob, made: Mapping[str, Any]) -> bool:
    """Whether a decision is about this job: ids start again when a cluster does."""
    return job.restarts > 0 or abs(job.submit_s - float(made["made_s"])) < SAME_JOB_S


# -- reading ----------------------------------------------------------------------------


def _read(config: Config) -> _Sources:
    seen: dict[int, Observation] = {}
    moves: list[Move] | None = None
    reclaims: list[Move] = []
    path = paths.readable_journal(config)
    if path is not None:
        with open_journal(path, write=False) as journal:
            moves, reclaims = journal.moves(), journal.reclaims()
            seen = {one.job_id: one for one in journal.observations(0.0)}
    users = {number: one.key.partition(" ")[0] for number, one in seen.items()}
    users |= {move.job_id: move.user for move in (*(moves or ()), *reclaims)}
    known = moves is not None
    moved, left = (_carried_out(moves or ()), _carried_out(reclaims)) if known else (None, None)
    return _Sources(_decisions(), seen, moved, left, users, _snapshot(config))


_DONE = CARRIED_OUT | {MoveOutcome.RECLAIMED}


def _carried_out(moves: Sequence[Move]) -> dict[int, int]:
    found: dict[int, int] = {}
    for move in moves:
        found[move.job_id] = found.get(move.job_id, 0) + (move.outcome in _DONE)
    return found


def _decisions() -> dict[int, dict[str, Any]]:
    """palsub's records of this user on the cluster in force, by job id."""
    folder = os.path.join(states_of_user.home(), "decisions", states_of_user.cluster_key())
    found = {}
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        number = digits(name.removesuffix(".json"))
        if number is None or not name.endswith(".json"):
            continue
        try:
            made = decisions.load("", number)
            if made is not None and _decided(None, made) and float(made["made_s"]):
                found[number] = made
        except DataError as error:
            warn(one_line(error))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            warn(f"decision record {os.path.join(folder, name)} is damaged ({one_line(error)}): remove it")
    return found


def _snapshot(config: Config) -> snapshots.Snapshot | None:
    try:
        return snapshots.read(config.snapshot_path)
    except DataError as error:
        warn(f"without slowdowns: {one_line(error)}")
        return None


# -- one row ------------------------------------------------------------------------------


def _row(number: int, job: SlurmJob | None, made: dict[str, Any] | None, sources: _Sources) -> tuple[object, ...]:
    seen = sources.seen.get(number)
    decided = _decided(job, made)
    sensitivity = str(decided[0] or (seen.sensitivity if seen else ""))
    gpus = _gpus(job, seen)
    slowdowns = [sources.snapshot.slowdown(sensitivity, *gpu) if sources.snapshot else None for gpu in gpus]
    measured = observed.read(job.comment) if job else None
    return (
        number, *_who(job, made, seen, sources.users.get(number)), sensitivity.replace("?", ""), *decided[1:3],
        measured.sensitivity if measured else None, *decided[3:],
        ",".join(job.nodes if job and job.nodes else dict.fromkeys(node for node, _ in gpus)) or None,
        _written(gpus) or None, _n_gpus(job, gpus),
        ",".join("?" if x is None else f"{x:.4f}" for x in slowdowns) or None,
        max((x for x in slowdowns if x is not None), default=None), seen.step_s if seen else None,
        None if sources.moves is None else sources.moves.get(number, 0),
        None if sources.reclaims is None else sources.reclaims.get(number, 0), job.restarts if job else None,
        made["made_s"] if made else None, *_times(job),
    )  # fmt: skip


def _who(
    job: SlurmJob | None, made: dict[str, Any] | None, seen: Observation | None, user: str | None
) -> tuple[object, ...]:
    """array_job_id, user, name, partition, state, state_reason."""
    if job is not None:
        reason = None if job.reason in ("", "None") else job.reason
        return job.array_job_id, job.user, job.name, job.partition, job.state, reason
    name = " ".join(seen.key.split(" ")[1:-2]) if seen else None
    return None, user or (paths.user_name() if made else None), name, None, None, None


def _decided(job: SlurmJob | None, made: dict[str, Any] | None) -> tuple[object, ...]:
    """sensitivity, its source and confidence, then decided_by to lease_s; None where nobody decided."""
    if made is not None:
        known, lease = made["sensitivity"], made.get("lease") or {}
        factors = [(made.get(key) or {}).get("product") for key in ("chosen", "plain_slurm")]
        source = known.get("stage", "default"), known.get("confidence")
        return (known["class"], *source, "palsub", made["action"], made["reason"], made["policy"], *factors,
                lease.get("seconds"))  # fmt: skip
    mark = filter_mark.decision(job) if job else None
    if mark is None:
        return (None,) * 10
    factor, lease_s = (_number(mark.get(key, "")) for key in ("slow", "lease"))
    return (mark["class"], mark.get("from"), None, mark["by"], mark["act"], mark["reason"], None, factor, None,
            lease_s)  # fmt: skip


def _number(text: str) -> float | None:
    """A number in the filter's mark, or in what somebody else wrote in its place."""
    try:
        return float(text) if math.isfinite(float(text)) else None
    except ValueError:
        return None


def _gpus(job: SlurmJob | None, seen: Observation | None) -> list[tuple[str, int]]:
    """What it holds; once that is over, where the journal last saw it."""
    if job is not None and job.gpus:
        return [(node, index) for node, indexes in job.gpus.items() for index in indexes]
    return list(seen.gpus) if seen is not None else []


def _n_gpus(job: SlurmJob | None, gpus: Sequence[tuple[str, int]]) -> int | None:
    """At a job's end Slurm forgets which GPUs these were, but not how many."""
    return len(gpus) or (job.gpus_given if job is not None else 0) or None


def _written(gpus: Sequence[tuple[str, int]]) -> str:
    nodes: dict[str, list[str]] = {}
    for node, index in gpus:
        nodes.setdefault(node, []).append(str(index))
    return " ".join(f"{node}:{','.join(indexes)}" for node, indexes in nodes.items())


def _times(job: SlurmJob | None) -> tuple[object, ...]:
    """submit_time, start_time, end_time, time_limit_s. Times that Slurm only expects are left out."""
    if job is None:
        return (None,) * 4
    started = job.start_s if job.state not in JOB_WAITING else None
    ended = job.end_s if job.state in JOB_ENDED else None
    return job.submit_s, started, ended, job.time_limit_s
