# SPDX-License-Identifier: MIT
"""Plain Slurm, palsub, and palsub with the tick, on one site's history: the replays behind `pal simulate --site`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.jobs import UNKNOWN_CLASS
from slurm_pal.simulate.experiment import TRUE, Sides, levers_of, placebo, placebos, split
from slurm_pal.simulate.fitting import jittered
from slurm_pal.simulate.hardware import Hardware, capped_worst, hardware
from slurm_pal.simulate.pool import Progress
from slurm_pal.simulate.profiles import Source, tables
from slurm_pal.simulate.program import Program
from slurm_pal.simulate.replay import ReplayPlan
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.scores import Scores, believed
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.site_history import classed
from slurm_pal.simulate.trace import Trace
from slurm_pal.simulate.virtual import VirtualCluster

BASELINE, SUBMIT, TICK = "slurm", "palsub", "palsub+tick"


WAYS = {BASELINE: "slurm-twin", SUBMIT: "palsub", TICK: "tick"}
"""How jobs come to their GPUs -> the policy of policies.POLICIES that the program runs."""


class SiteTask(NamedTuple):
    """One replay."""

    way: str
    seed: int
    capped: bool = False  # GPUs slower than `ReplaySettings.barred_slowdown` are replaced by median ones
    unknown: str = ""  # the class of jobs of unknown class; "": by `SiteRuns.mix`
    scores: str = TRUE  # what is believed of the GPUs
    without: frozenset[str] = frozenset()  # levers of the way that are left out


class SiteRuns(NamedTuple):
    """What is compared: on GPUs that are as slow as the site's scores say."""

    trace: Trace
    cluster: VirtualCluster
    source: Source
    settings: ReplaySettings
    program: Program  # with the site's settings
    queue: str = "fifo"
    jitter_s: float = 600.0  # submissions move by up to this much, by seed
    mix: Mapping[str, float] = {}  # shares of classes among jobs of unknown class; empty: they count as A
    causes: bool = True  # whether the ratio of the fullest way is split by placebo runs
    scores: Scores = Scores()  # how far what is believed of the GPUs is from the truth

    def run(self, task: SiteTask, progress: Progress | None = None) -> Replay:
        """Carry out one task; the replay bears the name of the way."""
        return self.program.run(self.plan(task), progress)._replace(policy=task.way)

    def plan(self, task: SiteTask) -> ReplayPlan:
        """A pure function of the study and the task."""
        trace = jittered(self.trace, self.jitter_s, 1.0, task.seed)
        mix = {task.unknown: 1.0} if task.unknown else self.mix
        if mix:
            trace = classed(trace, mix, task.seed)
        machine = placebo(self.machine(task.seed), task.scores, task.seed)
        if task.capped:
            machine = capped_worst(machine, self.slow_gpus(task.seed))
        return ReplayPlan(trace, machine, WAYS[task.way], self.queue, task.seed, self.settings, without=task.without)

    def machine(self, seed: int) -> Hardware:
        """The virtual cluster of one seed."""
        true = tables(self.source.draw(self.cluster, seed), self.cluster)
        return hardware(true, believed(true, self.scores, seed), self.cluster.names, self.cluster.partitions)

    def slow_gpus(self, seed: int) -> int:
        """How many GPUs are slower in class A than sensitive jobs should have."""
        return sum(x > self.settings.barred_slowdown for x in self.source.draw(self.cluster, seed).slowdown["A"])

    @property
    def unknown(self) -> int:
        """How many jobs have no known class."""
        return sum(job.sensitivity == UNKNOWN_CLASS for job in self.trace.jobs)


def causes(study: SiteRuns) -> dict[str, Sides]:
    """What the ratio of the fullest way is made of, by ways, as `experiment.split` parts it."""
    return split(TICK, BASELINE, levers_of(WAYS[TICK], study.program)) if study.causes else {}


def main_tasks(study: SiteRuns, seeds: Sequence[int]) -> list[SiteTask]:
    """The comparison, seed by seed; where jobs of unknown class count as A, the same with them as C; placebo runs."""
    found = [SiteTask(way, seed) for seed in seeds for way in WAYS]
    if study.unknown and not study.mix:
        found += [SiteTask(way, seed, unknown="C") for seed in seeds for way in WAYS]
    return found + [
        SiteTask(way, seed, scores=scores, without=left_out)
        for seed in seeds
        for way, scores, left_out in placebos(causes(study))
    ]


def capped_tasks(study: SiteRuns, seeds: Sequence[int]) -> list[SiteTask]:
    """What shows how much of a gain is due to slow GPUs; nothing where there are none."""
    return [SiteTask(way, seed, capped=True) for seed in seeds if study.slow_gpus(seed) for way in (BASELINE, TICK)]
