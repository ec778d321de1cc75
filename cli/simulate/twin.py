# SPDX-License-Identifier: MIT
"""The program's policies on the command line: which are compared by default, and how long that takes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_pal.base import config
from slurm_pal.cli import common
from slurm_pal.simulate.experiment import Experiment, tasks
from slurm_pal.simulate.job_room import NodeSize
from slurm_pal.simulate.policies import PALSUB, SLURM, STUDY, TICK, named
from slurm_pal.simulate.program import Program
from slurm_pal.twin import outages
from slurm_pal.twin.lua_filter import INTERPRETERS
from slurm_pal.twin.run import Twin
from slurm_pal.twin.settings import with_options
from slurm_pal.twin.slurm_side import SlurmSide

DEFAULT = ("slurm-twin", "palsub", "filter", "tick")
GENERATED = "jobs=200"
"""Of --generate where the program runs and the number of jobs is not given."""
SECONDS_A_JOB: Mapping[str, float] = {SLURM: 0.003, PALSUB: 0.008, TICK: 0.1, STUDY: 0.002}
"""Processor time of a replay, roughly; on long queues it is more."""
LONG_S = 600.0
"""A comparison that takes longer says so before it begins."""
SOONER = (
    "sooner: fewer --seeds, --no-causes, a shorter trace, or studies (--policy slurm,packed,class-fit), which take "
    "hundreds of jobs a second"
)
SITE_SOONER = "sooner: fewer --seeds, --no-causes, fewer --days"


def default_policies() -> tuple[str, ...]:
    """What runs: stock Slurm and the program's ways, with a note where the filter cannot run here."""
    if any(map(shutil.which, INTERPRETERS)):
        return DEFAULT
    common.say("note: policy filter is left out: it runs the submit filter's own Lua: apt-get install lua5.1", err=True)
    return tuple(name for name in DEFAULT if name != "filter")


def runs_the_program(policies: Sequence[str]) -> bool:
    """Whether any of them is no study."""
    return any(named(name).runs != STUDY for name in policies)


def program_of(options: Mapping[str, Any], slurm: Mapping[str, str], sizes: tuple[NodeSize, ...]) -> Program:
    """The twin with the settings of pal.toml and slurm.conf, and with what its nodes have and when they fail."""
    failures = options["failures"]
    side = SlurmSide(sizes, outages=outages.read(failures) if failures else ())
    return Twin(with_options(config.load(), options), slurm, side=side)


def how_long(experiment: Experiment, workers: int) -> str:
    """A line on how long it takes; "" where that is not long."""
    if experiment.program is None:
        return ""
    return takes([(task.policy, len(experiment.traces[task.trace].jobs)) for task in tasks(experiment)], workers)


def takes(replays: Sequence[tuple[str, int]], workers: int, sooner: str = SOONER) -> str:
    """A line on how long replays take, each a policy and its number of jobs; "" where that is not long."""
    seconds = sum(SECONDS_A_JOB[named(policy).runs] * jobs for policy, jobs in replays)
    seconds /= max(1, min(workers, len(replays)))
    if seconds < LONG_S:
        return ""
    hours = f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{seconds / 60:.0f} min"
    jobs = max(jobs for _, jobs in replays)
    return f"note: {len(replays)} replays of up to {jobs} jobs, most by the program itself: about {hours}; {sooner}"
