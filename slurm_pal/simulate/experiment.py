# SPDX-License-Identifier: MIT
"""An experiment: the same trace under several policies, seed by seed, and what it takes to explain the gain.

Every seed draws a profile, a background stream and moved submissions from random streams
of their own; all policies meet the same ones, so runs of one trace and seed are pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from slurm_pal.base.errors import UsageError
from slurm_pal.simulate.background import again_and_again
from slurm_pal.simulate.fitting import jittered
from slurm_pal.simulate.hardware import Hardware, capped_worst, hardware, identical, shuffled
from slurm_pal.simulate.policies import ORDER, STUDY, WAITING, levers, named
from slurm_pal.simulate.pool import Progress
from slurm_pal.simulate.profiles import Drawn, SlowShare, Source, slowed, tables
from slurm_pal.simulate.program import Program
from slurm_pal.simulate.queues import QUEUES
from slurm_pal.simulate.replay import ReplayPlan, replay
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.scores import Scores, believed
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.trace import Trace
from slurm_pal.simulate.virtual import VirtualCluster

LOADS = (0.6, 0.8, 1.0, 1.2, 1.4)
"""Of the load sweep, relative to the trace."""
MOVE_COSTS_S = (0.0, 60.0, 180.0, 600.0, 1800.0)
SWEEPS = ("load", "move-cost")
WORST_SHARE = 0.03
"""Besides the k worst GPUs asked for, this share of all GPUs is capped."""

_BACKGROUND_STREAM = 0xBAC6


TRUE, SHUFFLED, IDENTICAL = "true", "shuffled", "identical"
"""What is believed of the GPUs: `Experiment.scores`, those of other GPUs, or that all are alike, as they are there."""


def placebo(machine: Hardware, scores: str, seed: int) -> Hardware:
    """The cluster of a placebo run; with true scores, as it is."""
    if scores == TRUE:
        return machine
    return identical(machine) if scores == IDENTICAL else shuffled(machine, seed)


class Experiment(NamedTuple):
    """What is compared, and how. Only the traces (see fitting.py) and their cluster must be given."""

    traces: tuple[Trace, ...]
    cluster: VirtualCluster
    source: Source = Drawn()
    slow: SlowShare = SlowShare()
    scores: Scores = Scores()
    policies: tuple[str, ...] = ("slurm", "packed", "pal", "pal-fit")
    policy: str = "pal-fit"  # the one that the claim is about
    baseline: str = "packed"
    queue: str = "fifo"
    seeds: tuple[int, ...] = tuple(range(1, 9))
    settings: ReplaySettings = ReplaySettings()
    jitter_s: float = 600.0  # submissions move by up to this much, by seed
    background_per_h: float = 0.0  # jobs per hour after the last submission; 0: none
    worst: int = 1
    sweeps: tuple[str, ...] = ()
    anew: bool = False  # each seed has a trace of its own, as made-up ones have
    causes: bool = True  # whether the ratio of `policy` is split by placebo runs
    program: Program | None = None  # runs the policies that are no study

    @property
    def cases(self) -> tuple[tuple[int, int], ...]:
        """(number of the trace, seed) of each pair of runs."""
        if self.anew:
            return tuple(enumerate(self.seeds))
        return tuple((number, seed) for seed in self.seeds for number in range(len(self.traces)))

    def check(self) -> None:
        """Raises UsageError for a name that is not known, or a profile that the cluster cannot have."""
        for names, table, what in (
            ((self.queue,), QUEUES, "queue"),
            (self.sweeps, SWEEPS, "sweep"),
        ):
            for name in names:
                if name not in table:
                    raise UsageError(f"{what} {name!r} is not one of {', '.join(table)}")
        ours = [name for name in (*self.policies, self.policy, self.baseline) if named(name).runs != STUDY]
        if ours and self.program is None:
            raise UsageError(f"policy {ours[0]!r} is the program's, and nothing here runs it")
        if ours and self.program is not None:
            self.program.check(ours, self.queue, self.settings)
        if not 0 <= self.worst <= self.cluster.n_gpus:
            raise UsageError(f"worst {self.worst}: must be in 0..{self.cluster.n_gpus}, the GPUs of the cluster")
        self.source.draw(self.cluster, self.seeds[0])

    def run(self, task: ReplayTask, progress: Progress | None = None) -> Replay:
        """Carry out one task."""
        plan = self.plan(task)
        if self.program is not None and named(plan.policy).runs != STUDY:
            return self.program.run(plan, progress)
        return replay(plan, progress)

    def plan(self, task: ReplayTask) -> ReplayPlan:
        """The replay of one task: a pure function of the experiment and the task."""
        trace = jittered(self.traces[task.trace], self.jitter_s, task.load, task.seed)
        settings, background = self.settings, None
        if task.move_cost_s is not None:
            settings = settings._replace(move_cost_s=task.move_cost_s)
        if self.background_per_h:
            stream = int(np.random.SeedSequence([task.seed, _BACKGROUND_STREAM]).generate_state(1)[0])
            background = again_and_again(trace, self.background_per_h * task.load, stream)
        return ReplayPlan(
            trace, self.machine(task.seed, task.capped, task.scores), task.policy, self.queue, task.seed, settings,
            background, task.without, task.trace,
        )  # fmt: skip

    def machine(self, seed: int, capped: int = 0, scores: str = TRUE) -> Hardware:
        """The virtual cluster of one seed, with the `capped` worst GPUs replaced by median ones."""
        true = tables(slowed(self.source.draw(self.cluster, seed), self.slow, seed), self.cluster)
        made = hardware(true, believed(true, self.scores, seed), self.cluster.names, self.cluster.partitions)
        return capped_worst(made, capped) if capped else placebo(made, scores, seed)


class ReplayTask(NamedTuple):
    """One replay of an experiment."""

    policy: str
    seed: int
    capped: int = 0  # this many of the worst GPUs are replaced by median ones
    load: float = 1.0  # relative to the trace
    move_cost_s: float | None = None  # None: as in the settings
    trace: int = 0
    scores: str = TRUE
    without: frozenset[str] = frozenset()  # levers of the policy that are left out


Results = dict[ReplayTask, Replay]


def worst_counts(experiment: Experiment) -> tuple[int, ...]:
    """How many of the worst GPUs are capped: as asked for, and WORST_SHARE of all; none for 0 or a single policy."""
    if not experiment.worst or experiment.policy == experiment.baseline:
        return ()
    share = round(WORST_SHARE * experiment.cluster.n_gpus)
    return tuple(k for k in dict.fromkeys((experiment.worst, share)) if k)


def levers_of(policy: str, program: Program | None) -> frozenset[str]:
    """What a policy does to the queue, of `policies.LEVERS`."""
    row = named(policy)
    return levers(row) if program is None or row.runs == STUDY else program.levers(policy)


Side = tuple[str, str, frozenset[str]]
"""(policy, scores, levers that are left out)."""
SCORES, GATHERING, REST = "scores", "gathering", "rest"


Sides = tuple[tuple[Side, ...], tuple[Side, ...]]


def causes(experiment: Experiment) -> dict[str, Sides]:
    """What the ratio of the claim is made of. Nothing where one policy is compared with itself."""
    e = experiment
    if not e.causes or e.policy == e.baseline:
        return {}
    return split(e.policy, e.baseline, levers_of(e.policy, e.program))


def split(policy: str, baseline: str, has: frozenset[str]) -> dict[str, Sides]:
    """Cause -> the runs whose product is divided by that of the others; together they make the ratio of the claim.

    Scores: true over shuffled ones. Order, waiting: with over without, on shuffled scores. Gathering: what is left
    of the policy where all GPUs are identical, to the baseline there. Rest: what shuffled scores do to placement and
    moves, and what the parts do to each other. `has`: what the policy does to the queue.
    """
    none = frozenset[str]()
    found: dict[str, Sides] = {SCORES: (((policy, TRUE, none),), ((policy, SHUFFLED, none),))}
    left_out = none
    for lever in (ORDER, WAITING):
        if lever in has:
            with_it, left_out = left_out, left_out | {lever}
            found[lever] = (((policy, SHUFFLED, with_it),), ((policy, SHUFFLED, left_out),))
    alike = (policy, IDENTICAL, left_out), (baseline, IDENTICAL, none)
    found[GATHERING] = ((alike[0],), (alike[1],))
    found[REST] = ((policy, SHUFFLED, left_out), alike[1]), ((baseline, TRUE, none), alike[0])
    return found


def placebos(parted: Mapping[str, Sides]) -> list[Side]:
    """The runs that a split needs beside the comparison itself."""
    sides = dict.fromkeys(side for parts in parted.values() for part in parts for side in part)
    return [side for side in sides if side[1] != TRUE]


def tasks(experiment: Experiment) -> list[ReplayTask]:
    """All replays: the comparison seed by seed, so that pairs are complete early, then what explains it."""
    e = experiment
    names = dict.fromkeys((e.baseline, *e.policies, e.policy))
    two = tuple(dict.fromkeys((e.baseline, e.policy)))
    moving = tuple(name for name in two if named(name).moves != "none")
    found = [ReplayTask(name, seed, trace=k) for k, seed in e.cases for name in names]
    found += [
        ReplayTask(name, seed, trace=k, scores=scores, without=left_out)
        for k, seed in e.cases
        for name, scores, left_out in placebos(causes(e))
    ]
    found += [ReplayTask(name, seed, capped=c, trace=k) for c in worst_counts(e) for k, seed in e.cases for name in two]
    if "load" in e.sweeps:
        found += [
            ReplayTask(name, seed, load=x, trace=k) for x in LOADS if x != 1.0 for k, seed in e.cases for name in two
        ]
    if "move-cost" in e.sweeps:
        found += [
            ReplayTask(name, seed, move_cost_s=x, trace=k)
            for x in MOVE_COSTS_S
            for k, seed in e.cases
            for name in moving
        ]
    return found


def in_order(experiment: Experiment, results: Results) -> Results:
    """The results in the order of the tasks, whatever order they finished in."""
    return {task: results[task] for task in tasks(experiment) if task in results}
