# SPDX-License-Identifier: MIT
"""What the jobs of one user were measured to be, by job name and by script. Pure.

A label changes only when `RELABEL` jobs in a row were measured alike with a confidence of at
least `SURE` (specification, section 7), so that one odd run changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from slurm_pal.base.jobs import UNKNOWN_CLASS
from slurm_pal.sensitivity.cascade import HISTORY, Evidence

SURE = 0.8
RELABEL = 3
KEPT = 8
"""This many of the newest jobs are remembered one by one."""
HALF_LIFE_S = 180 * 86400.0
"""Programs change: the confidence in a label halves in this time without a new job."""


class Seen(NamedTuple):
    """One measured job."""

    job_id: int
    sensitivity: str  # A, B, C
    confidence: float
    at_s: float  # Unix s


class Label(NamedTuple):
    """What is known of the jobs of one key."""

    sensitivity: str = UNKNOWN_CLASS  # until a job was measured with enough confidence
    jobs: int = 0  # measured in all
    seen: tuple[Seen, ...] = ()  # the newest ones, oldest first


def learnt(before: Label, seen: Seen) -> Label:
    """The label after one more job; a second result of the same job replaces its first."""
    known = [one for one in before.seen if one.job_id != seen.job_id]
    jobs = before.jobs + (len(known) == len(before.seen))
    kept = tuple([*known, seen][-KEPT:])
    return Label(_labelled(before.sensitivity, kept), jobs, kept)


def _labelled(label: str, seen: tuple[Seen, ...]) -> str:
    newest = seen[-1]
    if label == UNKNOWN_CLASS:
        return newest.sensitivity if newest.confidence >= SURE else label
    last = seen[-RELABEL:]
    alike = all(one.sensitivity == newest.sensitivity and one.confidence >= SURE for one in last)
    return newest.sensitivity if alike and len(last) == RELABEL else label


def confidence(label: Label, now_s: float) -> float:
    """How far the label is to be believed: mean confidence of the jobs that agree, times their share, aged."""
    agreeing = [one.confidence for one in label.seen if one.sensitivity == label.sensitivity]
    if not agreeing:
        return 0.0
    age_s = max(0.0, now_s - label.seen[-1].at_s)
    share = len(agreeing) / len(label.seen)
    return float(sum(agreeing) / len(agreeing) * share * 2.0 ** -(age_s / HALF_LIFE_S))


def evidence(label: Label, what: str, now_s: float) -> Evidence:
    """What the label says; `what` names the key for people, like "jobs named train"."""
    agreeing = sum(one.sensitivity == label.sensitivity for one in label.seen)
    age_d = max(0.0, now_s - label.seen[-1].at_s) / 86400 if label.seen else 0.0
    why = f"{agreeing} of the last {len(label.seen)} {what} were measured {label.sensitivity}, newest {age_d:.0f} d ago"
    return Evidence(HISTORY, label.sensitivity, round(confidence(label, now_s), 3), why)
