# SPDX-License-Identifier: MIT
"""Which sensitivity class a job gets: sources in the order of their cost, until one is sure enough.

word       what the user said (an option, a variable, a line of the script)
history    what earlier jobs of this user under this name, or with this script, were measured to be
script     what the script itself shows: programs, models, imports, launcher
telemetry  the first minutes of the job itself, seen by an observer on its node
probe      60 s of the script on one GPU, in a job of its own

The first three cost milliseconds and speak at submission. The last two cost a run, so what they
find speaks for the job while it runs, and for later ones through the history. Where none is sure
enough the class is unknown, which is placed like A. Pure: the caller brings the clock.
"""

from __future__ import annotations

from slurm_pal.base.jobs import SENSITIVITY_CLASSES, UNKNOWN_CLASS
from slurm_pal.base.light import Callable, Mapping, NamedTuple, Sequence

WORD, HISTORY, SCRIPT, TELEMETRY, PROBE = ("word", "history", "script", "telemetry", "probe")
"""In the order of their cost."""
MEASURED = frozenset({HISTORY, TELEMETRY, PROBE})
"""Stages that saw GPUs at work. Only a class C that one of them found sends a job to slow GPUs."""

DEFAULT_WHY = "not stated, treated as A"


class Evidence(NamedTuple):
    """What one stage says."""

    stage: str
    sensitivity: str  # A, B, C; "?" where it found something that decides nothing
    confidence: float  # 0..1
    why: str  # one line
    cost_s: float = 0.0  # time that it took


class Verdict(NamedTuple):
    """The class of a job and how it came about."""

    sensitivity: str  # A, B, C or ?
    stage: str  # "" where no stage was sure enough
    confidence: float
    why: str
    considered: tuple[Evidence, ...] = ()  # all that was looked at, in order
    measured: Evidence | None = None  # what earlier jobs were measured to be, sure or not
    is_measured: bool = False  # this class was surely measured, whoever else states it


UNKNOWN = Verdict(UNKNOWN_CLASS, "", 0.0, DEFAULT_WHY)

Look = Callable[[], Evidence | None]
"""One stage: its evidence, None where it has nothing to say."""


def decide(
    stated: Evidence | None,
    history: Look,
    others: Sequence[Look],
    sure: Mapping[str, float],
    trust: str = "user",
    clock: Callable[[], float] = lambda: 0.0,
) -> Verdict:
    """Ask stage after stage until one has the confidence that `sure` names for it (default: 1.0).

    The history is always asked: it is shown beside the user's word or, with a `trust` other than
    "user", weighed against it. Others follow in order, only where neither is sure. `clock` gives seconds.
    """
    measured = timed(history, clock)
    considered = () if measured is None else (measured,)
    is_sure = measured is not None and decides(measured, sure)
    if stated is not None:
        won = weighed(stated, measured, trust) if measured is not None and is_sure else stated
        agreed = is_sure and measured is not None and measured.sensitivity == won.sensitivity
        return Verdict(won.sensitivity, won.stage, won.confidence, won.why, (stated, *considered), measured, agreed)
    if measured is not None and is_sure:
        return _verdict(measured, considered, measured)
    for look in others:
        found = timed(look, clock)
        if found is not None:
            considered = (*considered, found)
            if decides(found, sure):
                return _verdict(found, considered, measured)
    return UNKNOWN._replace(considered=considered, measured=measured)


def timed(look: Look, clock: Callable[[], float]) -> Evidence | None:
    """What a stage says, with the time that it took where the stage does not show a cost of its own."""
    began_s = clock()
    found = look()
    return found if found is None or found.cost_s else found._replace(cost_s=clock() - began_s)


def decides(found: Evidence, sure: Mapping[str, float]) -> bool:
    """Whether a stage is sure enough to be the last one asked."""
    return found.sensitivity in SENSITIVITY_CLASSES and found.confidence >= sure.get(found.stage, 1.0)


def weighed(stated: Evidence, measured: Evidence, trust: str) -> Evidence:
    """The user's word against what was measured: whichever counts by the site's rule."""
    if trust == "user" or stated.sensitivity == measured.sensitivity:
        return stated
    if trust == "more-sensitive" and _rank(stated) <= _rank(measured):
        return stated
    return measured._replace(why=f"{measured.why}; the user said {stated.sensitivity} ({stated.why})")


def _rank(found: Evidence) -> int:
    return SENSITIVITY_CLASSES.index(found.sensitivity)


def _verdict(found: Evidence, considered: tuple[Evidence, ...], measured: Evidence | None) -> Verdict:
    seen = found.stage in MEASURED
    return Verdict(found.sensitivity, found.stage, found.confidence, found.why, considered, measured, seen)
