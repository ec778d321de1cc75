# SPDX-License-Identifier: MIT
"""The mark on a job with several places: `pal:alt=gpu;goal=time;at=1795791371;cpus=1;p0=gpu|fast|gpu:1|0||20;...`.

palsub leaves it in the comment of a job of its own making, the submit filter in the admin comment, so that a tick can
choose again while the job waits. All users can write such a mark on a job of their own, so nothing in it is believed
beyond that job.
"""

from __future__ import annotations

import re

from slurm_pal.base import marks
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.light import NamedTuple
from slurm_pal.base.numbers import digits
from slurm_pal.decide.alternatives import COST, DEADLINE, TIME, Goal

KEY = "alt"
NO_GPUS = "none"
_NAME = r"[A-Za-z0-9_.:+@-]+"


class MarkedPlace(NamedTuple):
    """One place, as far as a pending job can be changed to it."""

    name: str
    partition: str
    gres: str = ""  # for each node; "none": no GPUs; "": as submitted
    cpus: int = 0  # of each task; 0: as submitted
    time: str = ""  # the time limit; "": as submitted
    run_s: int = 0  # expected there, with bringing its data


class PlaceMark(NamedTuple):
    """What a job has to choose from."""

    chosen: str
    goal: Goal
    at_s: float  # when it was chosen, Unix s
    cpus: int  # of each task, as submitted
    places: tuple[MarkedPlace, ...]


def bears(job: SlurmJob) -> bool:
    """Whether a job has such a mark, readable or not."""
    return f"pal:{KEY}=" in job.comment or f"pal:{KEY}=" in job.admin_comment


def by_filter(job: SlurmJob) -> bool:
    """Whether the mark that `read` finds is the submit filter's, in the admin comment."""
    return bool(marks.read(job.admin_comment, KEY))


def put(job: SlurmJob, mark: PlaceMark) -> dict[str, str]:
    """The update by which this mark takes the place of the one that `read` finds; {} where there is no room for it."""
    field, text = ("AdminComment", job.admin_comment) if by_filter(job) else ("Comment", job.comment)
    whole = marks.put(text, pairs_of(mark))
    return {} if whole is None else {field: whole}


def pairs_of(mark: PlaceMark) -> dict[str, str]:
    """The values of the mark; {} where one holds a character that a mark cannot."""
    found = {KEY: mark.chosen, "goal": mark.goal.kind}
    if mark.goal.kind == DEADLINE:
        found["until"] = f"{mark.goal.until_s:.0f}"
    found |= {"at": f"{mark.at_s:.0f}", "cpus": str(mark.cpus)}
    for number, place in enumerate(mark.places):
        found[f"p{number}"] = "|".join(str(value) for value in place)
    fine = all(re.fullmatch(_NAME, place.partition) for place in mark.places)
    return found if fine and marks.read(marks.word(found), KEY) == found else {}


def read(job: SlurmJob) -> PlaceMark | None:
    """The mark on a job, None where there is none that palsub would write."""
    pairs = marks.read(job.admin_comment, KEY) or marks.read(job.comment, KEY)
    if not pairs:
        return None
    kind, at_s, cpus = pairs.get("goal", ""), digits(pairs.get("at", "")), digits(pairs.get("cpus", ""))
    until_s = digits(pairs.get("until", "0"))
    rows = [pairs[f"p{number}"].split("|") for number in range(marks.PLACES) if f"p{number}" in pairs]
    places = [place for row in rows if (place := _place(row)) is not None]
    names = [place.name for place in places]
    sound = len(places) == len(rows) >= 2 and len(set(names)) == len(names) and pairs[KEY] in names
    if not sound or kind not in (TIME, COST, DEADLINE) or at_s is None or not cpus or until_s is None:
        return None
    goal = Goal(kind, float(until_s)) if kind == DEADLINE else Goal(kind)
    return PlaceMark(pairs[KEY], goal, float(at_s), cpus, tuple(places))


def _place(row: list[str]) -> MarkedPlace | None:
    if len(row) != len(MarkedPlace._fields):
        return None
    name, partition, gres, cpus, limit, run = row
    count, run_s = digits(cpus), digits(run)
    fine = re.fullmatch(_NAME, name) and re.fullmatch(_NAME, partition) and re.fullmatch(r"[A-Za-z0-9_:,.-]*", gres)
    if not fine or count is None or run_s is None or not re.fullmatch(r"[0-9:-]*", limit):
        return None
    return MarkedPlace(name, partition, gres, count, limit, run_s)
