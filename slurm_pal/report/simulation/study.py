# SPDX-License-Identifier: MIT
"""What a report covers: the runs, their parameters, and how the policies compare."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from slurm_pal.base.errors import UsageError
from slurm_pal.simulate.metrics import SIZE_GROUPS, ReplayMetrics, measure_all
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.statistics import Ratio, WorstGpus, WorstTenth, paired, pairs, worst_tenth
from slurm_pal.simulate.trace import Trace

COMPARED = (
    "mean_jct_s",
    "median_jct_s",
    "p99_jct_s",
    "mean_wait_s",
    "makespan_s",
    "gpu_hours",
    "bounded_slowdown",
)
"""Metrics whose ratio to the baseline is reported for all jobs together."""

GROUPS = ("class_jct_s", "size_jct_s", "slowdown")
"""Metrics whose ratio is reported for each member of a group."""

AVERAGED = (
    *COMPARED,
    "utilisation",
    "moves",
    "restarts",
    "timeouts",
    "move_gpu_hours",
    "spread_share",
    "spread_work_share",
)
"""Metrics whose mean over the runs is reported."""


class ParameterSweep(NamedTuple):
    """The same comparison at several settings: `lines` gives (x, ratio of mean JCT) per policy, by rising x."""

    label: str  # of x, with its unit
    lines: dict[str, list[tuple[float, Ratio]]]


class Study(NamedTuple):
    """Everything that a report needs. Only `runs`, `policy`, `baseline` and `trace` are required."""

    runs: Sequence[Replay]
    policy: str  # the headline's
    baseline: str  # what it is compared with
    trace: Trace
    queue: str = ""  # the one of headline and pictures; "": the first that was run
    cluster: str = ""  # e.g. "64 GPUs: 16 nodes x 4 V100"
    charged: tuple[tuple[str, str], ...] = ()  # what the replay charges: (name, value with its unit)
    caveats: tuple[str, ...] = ()  # sentences, in addition to those that follow from the runs
    command: str = ""  # the command line that made it
    load: ParameterSweep | None = None
    move_cost: ParameterSweep | None = None
    worst: WorstGpus | None = None
    causes: dict[str, Ratio] = {}  # what the headline's ratio of mean JCT is made of; see simulate.experiment.causes


class PolicyRow(NamedTuple):
    """One policy under one queue. Means are over its complete runs; ratios are to the baseline's pairs."""

    policy: str
    queue: str
    runs: int
    pairs: int
    mean: dict[str, float | None]  # of AVERAGED, and of the members of GROUPS
    ratio: dict[str, Ratio | None]  # of COMPARED and the members of GROUPS; empty for the baseline
    worst_users: WorstTenth | None
    worst_accounts: WorstTenth | None


class PolicyComparison(NamedTuple):
    """A study with its numbers. Policies: the baseline, then in the order of the runs and sweeps."""

    study: Study
    policies: tuple[str, ...]
    queues: tuple[str, ...]
    queue: str  # the headline's
    runs: tuple[ReplayMetrics, ...]
    rows: tuple[PolicyRow, ...]

    @property
    def headline(self) -> PolicyRow:
        return self.row(self.study.policy)

    @property
    def base(self) -> PolicyRow:
        return self.row(self.study.baseline)

    def row(self, policy: str) -> PolicyRow:
        """The policy's row under the headline's queue."""
        return next(r for r in self.rows if (r.policy, r.queue) == (policy, self.queue))

    def replays(self, policy: str) -> list[Replay]:
        """The policy's complete runs under the headline's queue."""
        return [r for r in self.study.runs if r.complete and r.outcomes and (r.policy, r.queue) == (policy, self.queue)]

    def members(self, group: str) -> tuple[str, ...]:
        """Names that occur in a group (`class_jct_s`, `size_jct_s`, `slowdown`) under the headline's queue."""
        return members(group, [r for r in self.runs if r.queue == self.queue])


def compare(study: Study) -> PolicyComparison:
    """Measure all runs and compare each policy with the baseline, queue by queue.

    Raises UsageError if the headline's policy or the baseline has no run that ended a job
    under the headline's queue, ValueError if a policy was run twice with one queue and seed.
    """
    runs = tuple(measure_all(study.runs))
    queues = tuple(dict.fromkeys(run.queue for run in runs))
    queue = study.queue or (queues[0] if queues else "")
    swept = [policy for sweep in (study.load, study.move_cost) if sweep for policy in sweep.lines]
    policies = tuple(dict.fromkeys((study.baseline, *(run.policy for run in runs), *swept)))
    present = dict.fromkeys((run.policy, run.queue) for run in runs)
    for name in (study.baseline, study.policy):
        if (name, queue) not in present:
            raise UsageError(f"nothing to report: no run of policy {name!r} under queue {queue!r} ended a job")
    rows = tuple(_row(study, runs, p, q) for q in queues for p in policies if (p, q) in present)
    return PolicyComparison(study, policies, queues, queue, runs, rows)


def members(group: str, runs: Sequence[ReplayMetrics]) -> tuple[str, ...]:
    """Names that occur in a group, sizes by size, the rest by name."""
    found = {name for run in runs for name in getattr(run.metrics, group)}
    sizes = [name for name, _ in SIZE_GROUPS]
    return tuple(sorted(found, key=lambda name: (sizes.index(name) if name in sizes else -1, name)))


def _row(study: Study, runs: Sequence[ReplayMetrics], policy: str, queue: str) -> PolicyRow:
    here = [run for run in runs if run.queue == queue]
    mine = [run for run in here if run.policy == policy and run.complete]
    grouped = [f"{group}.{name}" for group in GROUPS for name in members(group, here)]
    mean = {name: _mean(mine, name) for name in (*AVERAGED, *grouped)}
    # Without the baseline under this queue there is nothing to compare with.
    if policy == study.baseline or not any(run.policy == study.baseline for run in here):
        return PolicyRow(policy, queue, len(mine), 0, mean, {}, None, None)
    ratio = {name: paired(here, policy, study.baseline, name) for name in (*COMPARED, *grouped)}
    users, accounts = (worst_tenth(here, policy, study.baseline, f"{who}_jct_s") for who in ("user", "account"))
    return PolicyRow(policy, queue, len(mine), len(pairs(here, policy, study.baseline)), mean, ratio, users, accounts)


def _mean(runs: Sequence[ReplayMetrics], name: str) -> float | None:
    values = [value for run in runs if (value := run.metrics.value(name)) is not None]
    return fmean(values) if values else None
