# SPDX-License-Identifier: MIT
"""What a replay gives: one outcome per job, and how full the cluster was."""

from __future__ import annotations

from typing import NamedTuple


class JobOutcome(NamedTuple):
    """What became of one job. Moments are s from the start of the trace."""

    job_id: str
    submit_s: float
    start_s: float  # first start
    finish_s: float
    gpus: int
    ideal_s: float
    sensitivity: str
    slowdown: float  # mean over the work done: slowest GPU of the set, locality apart
    locality: float  # mean over the work done: 1.0 on one node
    moves: int
    restarts: int  # after a node failed
    nodes: tuple[str, ...]  # where it ended
    end: str = "COMPLETED"  # or TIMEOUT: killed at its time limit; NODE_FAIL: with its node, and not requeued
    user: str = ""
    account: str = ""
    partition: str = ""

    @property
    def jct_s(self) -> float:
        """Job completion time: from submission to the end."""
        return self.finish_s - self.submit_s

    @property
    def wait_s(self) -> float:
        return self.start_s - self.submit_s


class Timeline(NamedTuple):
    """The state after each change; three columns of equal length."""

    time_s: tuple[float, ...]
    busy_gpus: tuple[int, ...]
    queued_jobs: tuple[int, ...]


class Replay(NamedTuple):
    """One trace under one policy, once."""

    policy: str
    queue: str
    seed: int
    n_gpus: int
    outcomes: tuple[JobOutcome, ...]  # by finish time
    timeline: Timeline
    gpu_s: float  # GPU-seconds held by jobs, moves included
    moves: int
    move_gpu_s: float  # of which spent on moves
    end_s: float  # when the last reported job ended, or, interrupted, when the replay stopped
    complete: bool = True  # False: interrupted; outcomes hold what had finished
    trace: int = 0  # which of the traces of an experiment
    lost_gpu_s: float = 0.0  # held by jobs that were stopped or moved without bringing them on; the twin counts it
