# SPDX-License-Identifier: MIT
"""One choice, one sum: which of the places that would do a job should take. Pure, standard library only.

Each place has an expected wait, a time to bring the job's data there, a run time on the GPUs that it would get, and a
price. Its user's goal says what counts: the end, the money, or the money as long as a deadline holds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from slurm_pal.base.errors import UsageError
from slurm_pal.base.light import NamedTuple
from slurm_pal.base.numbers import digits
from slurm_pal.base.prices import Usage
from slurm_pal.decide.request import Request
from slurm_pal.slurm.parse import unix_s

TIME, COST, DEADLINE = "time", "cost", "deadline"
GOALS = f"{TIME}, {COST} or {DEADLINE}=WHEN"
CHANGE_SHARE, CHANGE_S = 0.1, 120.0
"""A pending job changes its place for a gain of more than this share, and by time also more than these seconds."""
MOVE_FACTOR, MOVE_LEFT_S = 2.0, 86400.0
"""A running job moves to a cheaper place for a saving of more than so many times what the move costs, at most once in
so long a time, and only if more than that is left (Narayanan et al., DISPA 2020)."""
_UNITS = {"": 1, "s": 1, "second": 1, "minute": 60, "m": 60, "hour": 3600, "h": 3600, "day": 86400, "d": 86400}
_UNITS |= {"week": 604800}


class Goal(NamedTuple):
    """What a job's user wants."""

    kind: str = TIME
    until_s: float = math.inf  # Unix s; of a deadline


class Alternative(NamedTuple):
    """One place that would do."""

    name: str
    partition: str
    wait_s: float
    run_s: float
    per_hour: float | None  # money for an hour there; None: no price is known
    stage_in_s: float = 0.0
    boot_s: float = 0.0  # the end of the wait: its nodes boot, and cost already

    @property
    def end_s(self) -> float:
        """Seconds from now until the job has ended."""
        return self.wait_s + self.stage_in_s + self.run_s

    @property
    def cost(self) -> float:
        """Money; infinite where no price is known."""
        if self.per_hour is None:
            return math.inf
        return self.per_hour * (self.boot_s + self.stage_in_s + self.run_s) / 3600.0


class Chosen(NamedTuple):
    """The best place, by its position, and why."""

    at: int
    why: str


def usage(request: Request) -> Usage:
    """What the job would hold, as far as its request says."""
    shape, tasks = request.shape, max(1, request.tasks)
    gpus = shape.total if shape else 0
    cpus = max(tasks * max(1, request.cpus_per_task), gpus * request.cpus_per_gpu)
    nodes = (shape.nodes if shape and shape.nodes else request.nodes_min) or 1
    memory_mib = max(
        (request.mem_per_node_mib or 0) * nodes, request.mem_per_cpu_mib * cpus, request.mem_per_gpu_mib * gpus
    )
    return Usage(gpus, cpus, memory_mib / 1024.0, nodes, shape.gpu_type if shape else "")


def best(places: Sequence[Alternative], goal: Goal, now_s: float) -> Chosen:
    """The place by the goal; of equal ones the one that is better by the other measure, then the first.

    Raises ValueError without places.
    """

    def by_end(index: int) -> tuple[float, float, int]:
        return places[index].end_s, places[index].cost, index

    def by_cost(index: int) -> tuple[float, float, int]:
        return places[index].cost, places[index].end_s, index

    everyone = range(len(places))
    if goal.kind == COST:
        if all(place.per_hour is None for place in places):
            return Chosen(min(everyone, key=by_end), "no price is known: it ends soonest there")
        return Chosen(min(everyone, key=by_cost), "it costs least there")
    if goal.kind == DEADLINE:
        in_time = [index for index in everyone if now_s + places[index].end_s <= goal.until_s]
        if not in_time:
            return Chosen(min(everyone, key=by_end), "no place is expected to hold the deadline: it ends soonest there")
        if all(places[index].per_hour is None for index in in_time):
            return Chosen(min(in_time, key=by_end), "it holds the deadline there; no price is known")
        return Chosen(min(in_time, key=by_cost), "it costs least there of the places that hold the deadline")
    return Chosen(min(everyone, key=by_end), "it ends soonest there")


def worth_changing(here: Alternative, there: Alternative, goal: Goal, now_s: float) -> bool:
    """Whether a pending job should change its place: nobody is sure of a wait, so small gains do not count."""
    sooner_s = here.end_s - there.end_s
    by_time = sooner_s > CHANGE_S and sooner_s > CHANGE_SHARE * here.end_s
    if goal.kind == TIME:
        return by_time
    late_here, late_there = (now_s + place.end_s > goal.until_s for place in (here, there))
    if goal.kind == DEADLINE and late_here:
        return by_time or not late_there
    if goal.kind == DEADLINE and late_there:
        return False
    if here.per_hour is None and there.per_hour is None:
        return by_time
    return there.cost < (1.0 - CHANGE_SHARE) * here.cost


def worth_moving(here_per_hour: float, there_per_hour: float, left_s: float, restart_s: float, egress: float) -> bool:
    """Whether a running job should go on at a cheaper place; `left_s` is what it has to do there, at its speed there.

    `here_per_hour` is the price of the same work here for an hour there.
    """
    saving = (here_per_hour - there_per_hour) * left_s / 3600.0
    return left_s > MOVE_LEFT_S and saving > MOVE_FACTOR * (restart_s / 3600.0 * there_per_hour + egress)


def goal_of(text: str, now_s: float) -> Goal:
    """The goal in a user's words; `now_s` is what now+... counts from. Raises UsageError."""
    kind, sign, when = text.strip().partition("=")
    if kind in (TIME, COST) and not sign:
        return Goal(kind)
    if kind == DEADLINE and sign:
        until_s = moment_s(when, now_s)
        if until_s is None:
            forms = "2026-12-01T18:00, 18:00 or now+8hours"
            raise UsageError(f"{text!r}: {when!r} is not a time like {forms}")
        if until_s <= now_s:
            raise UsageError(f"{text!r}: that time has passed")
        return Goal(DEADLINE, until_s)
    raise UsageError(f"{text!r} is not {GOALS}")


def moment_s(text: str, now_s: float) -> float | None:
    """Unix seconds of a time as sbatch(1) has it for --begin: a date, a time of day, or now+COUNT[UNIT]."""
    words = text.strip()
    if words.startswith("now+"):
        seconds = duration_s(words[4:])
        return None if seconds is None else now_s + seconds
    if "-" in words:
        day, _, clock = words.partition("T")
        found = unix_s(f"{day}T{_clock(clock or '00:00')}")
        real = found and time.localtime(found).tm_mday == digits(day.rpartition("-")[2])  # not 30 February
        return found if real else None
    clock = _clock(words)
    if not clock:
        return None
    today = time.localtime(now_s)
    found = unix_s(f"{today.tm_year:04d}-{today.tm_mon:02d}-{today.tm_mday:02d}T{clock}")
    if not found:
        return None
    return found if found > now_s else found + 86400.0


def _clock(text: str) -> str:
    parts = text.split(":")
    numbers = [digits(part) for part in parts]
    if not 2 <= len(parts) <= 3 or any(number is None or number > 59 for number in numbers) or (numbers[0] or 0) > 23:
        return ""
    return ":".join(f"{number:02d}" for number in (*numbers, 0)[:3] if number is not None)


def duration_s(text: str) -> float | None:
    """Seconds of 90, 20m, 2hours and the like; None for anything else."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :]
    count, factor = digits(number), _UNITS.get(unit, _UNITS.get(unit.removesuffix("s")))
    return None if count is None or factor is None or len(number) > 9 else float(count * factor)
