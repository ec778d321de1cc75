# SPDX-License-Identifier: MIT
"""What a round policy sees and returns: the contract for the published policies and for any other.

A round policy is a callable `policy(moment: RoundState) -> Mapping[int, Gpus]`. It is called once
per round, after completions and arrivals, and says who runs until the next round:

* `moment.jobs` holds every unfinished job that has arrived, running ones included, in
  queue order (settings.queue). All may be placed again: a job that keeps its GPUs must be
  in the answer with them (`job.gpus`), one that is left out is suspended and keeps its progress.
* The answer maps `job.number` to GPU ids in ascending order, exactly `job.size` of them, no GPU
  twice. Anything else is an error of the policy (UsageError). The order of its items says nothing.
* Moves are free unless settings.start_cost_s charges them: then a start, a resume or a
  change of GPUs takes that many seconds off the next round.
* settings.backfill and settings.barred steer the published procedures; another policy reads them
  from `moment.settings` and does as it likes.
* Nothing may be changed. The policy may keep a memory of its own between rounds; a new run needs
  a new callable then. It must place a job sooner or later: see `StarvedError` in blox_pal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.errors import UsageError
from slurm_pal.simulate.inputs.pal_profile import Profile
from slurm_pal.simulate.inputs.pal_rows import PalRow

Gpus = tuple[int, ...]
"""GPU ids, ascending; node = id // profile.gpus_per_node."""


class RoundSettings(NamedTuple):
    """One scenario; the defaults are the published Sia-Philly setting."""

    round_s: float = 360.0
    locality_penalty: float = 1.7  # factor on the iteration time of a job on more than one node
    queue: str = "fifo"
    replay: bool = True  # keep the cluster loaded with copies of the trace until its own jobs have ended
    replay_seed: int = 1
    backfill: bool = False  # skip jobs that do not fit, without reservations
    barred: Mapping[str, float] = {}  # class -> jobs of it get no GPU with a larger slowdown
    start_cost_s: float = 0.0  # taken off the next round at every start, resume and change of GPUs

    def check(self) -> None:
        """Raises UsageError for a value that means nothing."""
        if not 0 < self.round_s < math.inf:
            raise UsageError(f"round of {self.round_s} s: must be a positive number")
        if not 1 <= self.locality_penalty < math.inf:
            raise UsageError(f"locality penalty {self.locality_penalty}: must be at least 1")
        if self.queue not in QUEUES:
            raise UsageError(f"queue {self.queue!r} is not one of {', '.join(QUEUES)}")
        if not 0 <= self.start_cost_s < self.round_s:
            raise UsageError(
                f"start cost {self.start_cost_s} s: must be at least 0 and below {self.round_s} s, a round"
            )
        for sensitivity, limit in self.barred.items():
            if not limit > 0:
                raise UsageError(f"class {sensitivity} barred beyond slowdown {limit}: must be above 0")


class ActiveJob:
    """A job that has arrived and not finished. Round policies read it and change nothing.

    `number` is the job's place in the trace, replayed copies counting on. `executed` and
    `row.iterations` are in iterations; `attained_s` is wall time in running rounds.
    `gpus` is what the job held in the round that ended, () if it did not run.
    """

    __slots__ = (
        "attained_s",
        "executed",
        "gpus",
        "locality",
        "locality_work",
        "moves",
        "number",
        "row",
        "sensitivity",
        "size",
        "slowdown",
        "slowdown_work",
        "start_s",
        "step",
        "submit_s",
    )

    def __init__(self, number: int, row: PalRow, submit_s: float) -> None:
        self.number = number
        self.row = row
        self.size = row.gpus
        self.sensitivity = row.sensitivity
        self.submit_s = submit_s
        self.start_s = -1.0  # first start; -1: has never run
        self.gpus: Gpus = ()
        self.executed = 0.0
        self.attained_s = 0.0
        self.moves = 0
        # For the loop: iterations per round, and the factors of the GPUs held ...
        self.step = 0.0
        self.slowdown = 1.0
        self.locality = 1.0
        # ... and these factors summed over the iterations done.
        self.slowdown_work = 0.0
        self.locality_work = 0.0

    @property
    def remaining_iterations(self) -> float:
        return self.row.iterations - self.executed


class RoundState(NamedTuple):
    """One moment of decision."""

    now_s: float
    jobs: Sequence[ActiveJob]  # in queue order
    profile: Profile
    settings: RoundSettings


RoundPolicy = Callable[[RoundState], Mapping[int, Gpus]]


def _submitted(job: ActiveJob) -> float:
    return job.submit_s


def _least_served(job: ActiveJob) -> float:
    return job.attained_s


def _shortest_left(job: ActiveJob) -> float:
    # As published: slowdowns and locality are ignored, so a slow job's value can go below 0.
    return job.row.ideal_s - job.attained_s


QUEUES: dict[str, Callable[[ActiveJob], float]] = {
    "fifo": _submitted,
    "las": _least_served,
    "srtf": _shortest_left,
}
"""Sort keys, ascending; ties fall to the job that arrived first (pal.md 4)."""
