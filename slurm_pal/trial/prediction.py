# SPDX-License-Identifier: MIT
"""What the simulator says of an arm: the twin runs the same programs over a virtual Slurm like the lab's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.base.config import KEYS, Config
from slurm_pal.simulate.hardware import Hardware, hardware
from slurm_pal.simulate.replay import ReplayPlan, replay
from slurm_pal.simulate.result import JobOutcome, Replay, Timeline
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.trace import Trace
from slurm_pal.trial.arms import arm_of
from slurm_pal.twin.run import Twin

PLAIN = "slurm"
"""The policy that says how long a trial lasts: it takes seconds where the twin takes minutes."""
LAB = {
    "AuthInfo": "cred_expire=5", "MinJobAge": "300", "AccountingStorageType": "accounting_storage/none",
    "KillWait": "2",
}  # fmt: skip
"""Of a lab's slurm.conf, beside what a site changes (lab/conf.py)."""


class Assumed(NamedTuple):
    """What the simulator needs beside jobs and GPUs."""

    locality_penalty: float
    move_cost_s: float  # of the trace
    compress: float
    settings: Mapping[str, str]  # of pal.toml in compressed time, as SECTION.KEY
    edits: tuple[tuple[str, str], ...]  # of the lab's slurm.conf


def length_s(trace: Trace, machine: Hardware, assumed: Assumed, seed: int) -> float:
    """How long the trace lasts on stock Slurm, from its first submission to its last end, s of the trace."""
    settings = ReplaySettings(locality_penalty=assumed.locality_penalty)
    found = replay(ReplayPlan(trace, machine, PLAIN, seed=seed, settings=settings))
    return found.end_s - trace.jobs[0].submit_s


def simulated(arm: str, trace: Trace, machine: Hardware, shuffled: Hardware, assumed: Assumed, seed: int) -> Replay:
    """Run the trace; `shuffled` has other GPUs' scores for the arms that go by them.

    The twin runs in the lab's time, with the lab's settings: what Slurm and our programs take themselves is not
    compressed, there as here. The result is in the trace's.
    """
    factor = assumed.compress
    settings = ReplaySettings(locality_penalty=assumed.locality_penalty, move_cost_s=assumed.move_cost_s / factor)
    seen = shuffled if arm_of(arm).shuffled else machine
    plan = ReplayPlan(in_lab_time(trace, factor), seen, arm_of(arm).policy, seed=seed, settings=settings)
    return in_trace_time(Twin(config_of(assumed.settings), pairs_of(assumed.edits)).run(plan), factor)


def config_of(settings: Mapping[str, str]) -> Config:
    """pal.toml as the arm has it: nothing of whoever runs the trial."""
    found = Config()
    for name, text in settings.items():
        section, _, key = name.partition(".")
        kind = type(KEYS[section][key].default)
        found.set(section, key, text == "true" if kind is bool else kind(text), "pal trial")
    return found


def pairs_of(edits: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """The lab's slurm.conf as `scontrol show config` would show it."""
    lines = [line.partition("=") for _, text in edits for line in text.splitlines()]
    return LAB | {key: value for key, sign, value in lines if sign}


def in_lab_time(trace: Trace, factor: float) -> Trace:
    """The trace with all its times divided."""
    return trace._replace(
        jobs=tuple(
            job._replace(
                submit_s=job.submit_s / factor,
                ideal_s=job.ideal_s / factor,
                limit_s=None if job.limit_s is None else job.limit_s / factor,
                move_cost_s=None if job.move_cost_s is None else job.move_cost_s / factor,
            )
            for job in trace.jobs
        )
    )


def in_trace_time(found: Replay, factor: float) -> Replay:
    """A replay in the lab's time with all its times multiplied."""

    def longer(outcome: JobOutcome) -> JobOutcome:
        return outcome._replace(
            submit_s=outcome.submit_s * factor, start_s=outcome.start_s * factor, finish_s=outcome.finish_s * factor,
            ideal_s=outcome.ideal_s * factor,
        )  # fmt: skip

    return found._replace(
        outcomes=tuple(map(longer, found.outcomes)), gpu_s=found.gpu_s * factor, end_s=found.end_s * factor,
        move_gpu_s=found.move_gpu_s * factor, lost_gpu_s=found.lost_gpu_s * factor,
        timeline=Timeline(tuple(at_s * factor for at_s in found.timeline.time_s), *found.timeline[1:]),
    )  # fmt: skip


def with_scores(machine: Hardware, order: tuple[int, ...]) -> Hardware:
    """The same GPUs, each believed to be as fast as another one: that at its place in `order`."""
    believed = {}
    for name, table in machine.believed.items():
        values = [value for row in table for value in row]
        shuffled = iter([values[place] for place in order])
        believed[name] = [[next(shuffled) for _ in row] for row in table]
    return hardware(machine.true, believed, machine.names, machine.partitions, machine.models)
