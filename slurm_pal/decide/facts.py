# SPDX-License-Identifier: MIT
"""What is known of a job beyond Slurm's own fields: whether it is ours to steer, its class, whether it may be moved.

The facts are words on the job itself: palsub's `pal:job=` in the comment, the submit
filter's mark in the admin comment (in the comment where sbatch's client filter wrote it).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.base import marks
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, UNKNOWN_CLASS, SlurmJob
from slurm_pal.base.numbers import digits
from slurm_pal.sensitivity import observed
from slurm_pal.sensitivity.cascade import MEASURED, SCRIPT, TELEMETRY
from slurm_pal.sensitivity.history import SURE

_FILTER_KEYS = ("lease", "class")
"""The filter's mark begins with its lease, where it set one, or with the class."""
_OFF = "off"


class MoveSettings(NamedTuple):
    """The settings for moves ([rebalance])."""

    movable_qos: frozenset[str] = frozenset()
    movable_partitions: frozenset[str] = frozenset()
    lost_work_s: float = 600.0  # of a job that states none
    appends: bool = False  # jobs keep their output at a restart unless they say otherwise (JobFileAppend=1)
    may_empty_output: bool = False  # the site allows moves of jobs that do not keep it
    gather: bool = False  # jobs with a total of GPUs on an open number of nodes are steered, and brought together


REQUEUE_DELAY_S = 121.0
"""So long Slurm lets a requeued job wait by default."""
UNMARKED = "it is not marked movable, nor is its QOS or its partition"
EMPTIES = "a move would empty its output: #SBATCH --open-mode=append in its script, or palsub, keeps it"


class Facts(NamedTuple):
    """One job. `why_not` says why it may not be moved, "" where it may."""

    ours: bool
    sensitivity: str  # A, B, C or ?
    origin: str  # where the class comes from
    movable: bool
    why_not: str
    checkpoint: bool  # the batch shell makes a checkpoint on USR1 and acknowledges it
    lost_s: float  # the most work that a requeue without a checkpoint loses
    measured: bool = False  # the class was measured, on this job's GPUs or on those of earlier jobs


def requeue_delay_s(pairs: Mapping[str, str]) -> float:
    """How long Slurm lets a requeued job wait, by `scontrol show config`: from 25.11 on requeue_delay, else
    cred_expire, of which it takes no less than 5 s, and a second."""
    words = dict(part.partition("=")[::2] for part in pairs.get("SchedulerParameters", "").split(","))
    own = digits(words.get("requeue_delay", ""))
    if own is not None:
        return float(own)
    expire = re.search(r"cred_expire=([0-9]{1,6})", pairs.get("AuthInfo", ""))
    return int(expire[1]) + 1.0 if expire and int(expire[1]) >= 5 else REQUEUE_DELAY_S


def appends(pairs: Mapping[str, str]) -> bool:
    """Whether jobs keep their output at a restart unless they say otherwise, by `scontrol show config`."""
    return pairs.get("JobFileAppend") == "1"


def is_ours(job: SlurmJob) -> bool:
    """Whether palsub or the submit filter saw the job and its user did not opt out. Any other is never touched."""
    return _is_ours(marks.read(job.comment, marks.JOB), filter_marks(job))


def _is_ours(own: dict[str, str], seen: list[dict[str, str]]) -> bool:
    return bool(seen or own) and all(mark.get("why") != _OFF for mark in seen)


def facts_of(job: SlurmJob, terms: MoveSettings) -> Facts:
    """The facts of one job, running or pending. Pure; a word that cannot be read is ignored."""
    own, seen = marks.read(job.comment, marks.JOB), filter_marks(job)
    said = own | {"class": own[marks.JOB]} if own else next(iter(seen), {})
    sensitivity = said.get("class", "")
    origin = said.get("from", "")
    measured = origin in MEASURED or said.get("mea") == "1"
    own_gpus = None if measured else observed.read(job.comment)
    if own_gpus is not None and own_gpus.confidence >= SURE:
        if sensitivity not in SENSITIVITY_CLASSES or origin == SCRIPT:  # a guess gives way to telemetry
            sensitivity, origin = own_gpus.sensitivity, TELEMETRY
        measured = sensitivity == own_gpus.sensitivity
    known = sensitivity in SENSITIVITY_CLASSES
    marked = any(words.get("mov") == "1" for words in (own, *seen))
    mode = next((words["app"] for words in (own, *seen) if "app" in words), "")
    ours = _is_ours(own, seen)
    why_not = "" if ours else "neither palsub nor the submit filter saw it, or its user opted out"
    why_not = why_not or _unmovable(job, marked, mode, terms)
    lost = next((words["lost"] for words in (own, *seen) if "lost" in words), "")
    return Facts(
        ours=ours,
        sensitivity=sensitivity if known else UNKNOWN_CLASS,
        origin=origin,
        measured=known and measured,
        movable=not why_not,
        why_not=why_not,
        checkpoint=own.get("ck") == "1",
        lost_s=float(lost) if lost.isascii() and lost.isdigit() and len(lost) < 10 else terms.lost_work_s,
    )


def filter_marks(job: SlurmJob) -> list[dict[str, str]]:
    """The filter's marks; palsub's lease has no class, and is none."""
    texts = (job.admin_comment, job.comment)
    return [mark for text in texts for key in _FILTER_KEYS for mark in marks.words(text, key) if "class" in mark]


def _unmovable(job: SlurmJob, marked: bool, mode: str, terms: MoveSettings) -> str:
    """Why a job of ours may not be moved, one short sentence; "" where it may.

    `mode` is "1" for a job that appends to its output, "0" for one whose user wants it emptied at each start; Slurm
    itself shows neither. A move empties the output only of a job whose user marked it movable.
    """
    if not marked and job.qos not in terms.movable_qos and job.partition not in terms.movable_partitions:
        return UNMARKED
    kept = mode == "1" or (marked and mode == "0") or (terms.appends and mode != "0")
    for reason, holds in (
        ("only batch jobs can be requeued", not job.batch),
        ("it must not be requeued (--no-requeue)", not job.may_requeue),
        ("it is a part of a heterogeneous job", job.het),
        ("it is part of an array", job.array_job_id is not None),
        ("it is suspended", job.state in ("SUSPENDED", "STOPPED")),
        (EMPTIES, not (kept or terms.may_empty_output)),
    ):
        if holds:
            return reason
    return ""
