# SPDX-License-Identifier: MIT
"""A trial: what is still to be run, how long that takes, running it, and what came of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from slurm_pal.base.errors import DataError
from slurm_pal.simulate.hardware import hardware
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.trace import Trace
from slurm_pal.tick import kept
from slurm_pal.tick.again import again
from slurm_pal.trial import compression, prediction
from slurm_pal.trial.arms import BASELINE, arm_of, arm_settings
from slurm_pal.trial.beside import Beside
from slurm_pal.trial.folder import TrialFolder, TrialPlan
from slurm_pal.trial.live import ArmPlan, ArmResult, Progress, Stopped, run_arm

AROUND_S = 12.0
"""Beside its jobs an arm takes about this long: lab, daemon, end."""
_SHUFFLE = 0x5C0E5

TrialTask = tuple[int, str]
"""Trace and arm."""


class Expected(NamedTuple):
    """How long what is left takes, s of the clock on the wall."""

    arms: int
    seconds: float
    longest_s: float  # one arm


class TicksAgain(NamedTuple):
    """The ticks of an arm, decided again from what they kept."""

    ticks: int
    identical: int
    trouble: str = ""  # why they could not be


class Trial:
    """A plan with its traces, simulated; and its folder."""

    def __init__(self, plan: TrialPlan, traces: tuple[Trace, ...], folder: TrialFolder) -> None:
        self.plan, self.traces, self.folder = plan, traces, folder
        self._machine = hardware(plan.true)
        order = np.random.default_rng([plan.seed, _SHUFFLE]).permutation(self._machine.n_gpus)
        self._shuffled = prediction.with_scores(self._machine, tuple(order.tolist()))
        self._lengths_s: dict[int, float] = {}
        self.progress: dict[TrialTask, Progress] = {}
        self.results: dict[TrialTask, ArmResult] = {}
        self.simulated: dict[TrialTask, Replay] = {}
        self.ticks: dict[TrialTask, TicksAgain] = {}

    def simulate(self, arms: Iterable[str]) -> None:
        """Have the twin run these arms."""
        wanted = [(number, arm) for number in range(len(self.traces)) for arm in arms]
        for number, arm in wanted:
            if (number, arm) not in self.simulated:
                self.simulated[number, arm] = prediction.simulated(
                    arm, self.traces[number], self._machine, self._shuffled, self._assumed(arm), self.plan.seed
                )

    def decide_again(self) -> None:
        """Decide the ticks of all finished arms again."""
        for number, arm in self.results:
            folder = self.folder.ticks(number, arm)
            if not arm_of(arm).tick or not os.path.isdir(folder):
                continue
            try:
                found = [again(one).identical for one in kept.ticks(folder, kept.numbers(folder))]
                self.ticks[number, arm] = TicksAgain(len(found), sum(found))
            except DataError as error:
                self.ticks[number, arm] = TicksAgain(0, 0, str(error))

    def check(self, processors: int) -> None:
        """Raises UsageError for a trace that the labs cannot hold."""
        for number, trace in enumerate(self.traces):
            compression.check_size(trace, self.plan.compress, self._lab_s(number), processors)

    def _lab_s(self, trace: int) -> float:
        """How long an arm lasts, s of the lab: as long as stock Slurm takes in the simulator."""
        if trace not in self._lengths_s:
            assumed = self._assumed(BASELINE)
            self._lengths_s[trace] = prediction.length_s(self.traces[trace], self._machine, assumed, self.plan.seed)
        return self._lengths_s[trace] / self.plan.compress

    def recall(self) -> None:
        """Take the arms that are finished from the folder. Raises DataError."""
        for number, trace in enumerate(self.traces):
            for arm in self.plan.arms:
                kept = self.folder.kept(number, arm, len(trace.jobs))
                if kept is not None:
                    self.results[number, arm] = kept

    def left(self) -> list[TrialTask]:
        """What is to be run, trace by trace."""
        every = [(number, arm) for number in range(len(self.traces)) for arm in self.plan.arms]
        return [task for task in every if task not in self.results]

    def expected(self, beside: int) -> Expected:
        """How long what is left takes, `beside` arms at once."""
        each_s = [self._lab_s(number) + AROUND_S for number, _ in self.left()]
        lanes = [0.0] * beside
        for seconds in each_s:
            lanes[lanes.index(min(lanes))] += seconds
        return Expected(len(each_s), max(lanes), max(each_s, default=0.0))

    def runner(self, beside: int) -> Beside[TrialTask]:
        """What runs the rest."""
        self.progress = {task: Progress(len(self.traces[task[0]].jobs)) for task in self.left()}
        return Beside(self.left(), self._run, beside)

    def _run(self, task: TrialTask, ending: threading.Event) -> None:
        try:
            result = run_arm(self.arm_plan(task), self.progress[task], ending)
        except Stopped:
            return
        self.folder.keep(task[0], result)
        self.results[task] = result

    def arm_plan(self, task: TrialTask) -> ArmPlan:
        number, arm = task
        plan, trace = self.plan, self.traces[number]
        seen = self._shuffled if arm_of(arm).shuffled else self._machine
        return ArmPlan(
            arm, arm_of(arm), compression.lab_jobs(trace, plan.compress, plan.locality_penalty, plan.move_cost_s),
            plan.nodes, plan.gpus, self._machine.true, seen.believed, seen.level, plan.seed, plan.edits,
            {**plan.settings, **arm_settings(arm)}, plan.compress, self._lab_s(number),
            self.folder.ticks(number, arm) if arm_of(arm).tick else "",
        )  # fmt: skip

    def _assumed(self, arm: str) -> prediction.Assumed:
        plan = self.plan
        return prediction.Assumed(
            plan.locality_penalty, plan.move_cost_s, plan.compress, {**plan.settings, **arm_settings(arm)}, plan.edits
        )

    def complete(self) -> dict[str, list[ArmResult]]:
        """Arm -> its results over all traces, for the arms that have them all."""
        found = {}
        for arm in self.plan.arms:
            results = [self.results.get((number, arm)) for number in range(len(self.traces))]
            whole = [result for result in results if result is not None]
            if len(whole) == len(results):
                found[arm] = whole
        return found
