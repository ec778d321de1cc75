# SPDX-License-Identifier: MIT
"""Throughputs of past runs, from what their jobs reported of their steps (`pal progress`). Pure.

What a job reports is its user's word. So each user's job name is an application of its own, unless
it is a known one: in the catalogue, in [apps] of pal.toml or in the site's table. For a known one the
median over its users counts, and for jobs of others only where there are several users (`heard`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log, sqrt
from statistics import median
from typing import NamedTuple

from slurm_pal.allocation.throughputs import ANY, HALF_LIFE_S, PROGRESS, Entry, ThroughputKey
from slurm_pal.base.cluster import Node
from slurm_pal.journal.journal import Observation
from slurm_pal.moves.learning import ABSURD, work_of

RUN_SPREAD, SPREAD_RUNS = 0.15, 2.0
"""Scatter of the runs of one application (of the logarithm) before some are known; weighs as much as this many runs."""

LEAST_USERS = 3
"""With fewer, one user could put the median anywhere."""

UNKNOWN_NODE, SEVERAL_TYPES, NO_STEP = "node of no known type", "GPUs of several types", "step time out of range"


class History(NamedTuple):
    """Past runs as a table."""

    entries: dict[ThroughputKey, Entry]
    unused: dict[str, int]  # why observations say nothing -> how many


class _Run(NamedTuple):
    user: str
    log_rate: float  # of steps/s on median GPUs of the type
    age_s: float
    weight: float


def types_of(nodes: Iterable[Node]) -> dict[str, str]:
    """Node -> GRES type of its GPUs; where that has no name, its first partition. Without nodes of several types."""
    found = {}
    for node in nodes:
        types = set(node.gpu_types)
        if len(types) == 1 and (name := types.pop() or next(iter(node.partitions), "")):
            found[node.name] = name
    return found


def spellings(applications: Iterable[str]) -> dict[str, str]:
    """Lower case -> name, as `application` takes its known ones; the first spelling stays.

    `*` and names with a `/` are left out: nobody's job name is to speak for all jobs, or for another user's.
    """
    found: dict[str, str] = {}
    for name in applications:
        if name != ANY and "/" not in name:
            found.setdefault(name.strip().lower(), name)
    return found


def application(user: str, job_name: str, known: Mapping[str, str]) -> str:
    """The application of a job: a known one of that name (case aside), else USER/NAME."""
    return known.get(job_name.strip().lower()) or f"{user}/{job_name}"


def history(
    observations: Iterable[Observation],
    types: Mapping[str, str],
    known: Mapping[str, str],
    now_s: float,
    half_life_s: float = HALF_LIFE_S,
) -> History:
    """Entries of past runs. `types`: node -> type; `known`: see `spellings`; newer runs count more by `half_life_s`.

    A rate is what the run would have had on median GPUs of its type: its own rate times the
    time factor that was believed of its GPUs.
    """
    runs, unused = _runs(observations, types, known, now_s, half_life_s)
    return History({key: _entry(seen) for key, seen in sorted(runs.items())}, dict(unused))


def heard(
    observations: Iterable[Observation], types: Mapping[str, str], known: Mapping[str, str], now_s: float,
    half_life_s: float = HALF_LIFE_S,
) -> tuple[dict[ThroughputKey, Entry], dict[str, dict[ThroughputKey, Entry]]]:  # fmt: skip
    """The same as (what enough users reported, for all jobs; user -> what their jobs reported, for theirs alone)."""
    runs, _ = _runs(observations, types, known, now_s, half_life_s)
    all_, own = {}, defaultdict[str, dict[ThroughputKey, Entry]](dict)
    for key, seen in sorted(runs.items()):
        users = sorted({run.user for run in seen})
        if len(users) >= LEAST_USERS:
            all_[key] = _entry(seen)
        for user in users:
            own[user][key] = _entry([run for run in seen if run.user == user])
    return all_, dict(own)


def _runs(
    observations: Iterable[Observation], types: Mapping[str, str], known: Mapping[str, str], now_s: float,
    half_life_s: float,
) -> tuple[dict[ThroughputKey, list[_Run]], Counter[str]]:  # fmt: skip
    """Past runs by application, number of GPUs and type; and why others say nothing."""
    runs: dict[ThroughputKey, list[_Run]] = defaultdict(list)
    unused: Counter[str] = Counter()
    for one in observations:
        user, name, _ = work_of(one.key)
        kinds = {types.get(node, "") for node, _ in one.gpus}
        if not (1 / ABSURD < one.step_s < ABSURD and 1 / ABSURD < one.predicted < ABSURD):
            unused[NO_STEP] += 1
        elif not kinds or "" in kinds:
            unused[UNKNOWN_NODE] += 1
        elif len(kinds) > 1:
            unused[SEVERAL_TYPES] += 1
        else:
            age_s = max(0.0, now_s - one.at_s)
            run = _Run(user, log(one.predicted / one.step_s), age_s, 2.0 ** -min(age_s / half_life_s, 100.0))
            runs[ThroughputKey(application(user, name, known), len(one.gpus), kinds.pop())].append(run)
    return runs, unused


def _entry(runs: Sequence[_Run]) -> Entry:
    by_user: dict[str, list[_Run]] = defaultdict(list)
    for run in runs:
        by_user[run.user].append(run)
    centre = median(_mean(own) for own in by_user.values())
    total = sum(run.weight for run in runs)
    effective = total**2 / sum(run.weight**2 for run in runs)  # runs of the newest one's weight
    scatter = sum(run.weight * (run.log_rate - centre) ** 2 for run in runs) / total
    spread = sqrt((effective * scatter + SPREAD_RUNS * RUN_SPREAD**2) / (effective + SPREAD_RUNS))
    age_s = sum(run.weight * run.age_s for run in runs) / total
    return Entry(exp(centre), spread / sqrt(effective), len(runs), age_s, PROGRESS)


def _mean(runs: Sequence[_Run]) -> float:
    return sum(run.weight * run.log_rate for run in runs) / sum(run.weight for run in runs)
