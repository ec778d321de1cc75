# SPDX-License-Identifier: MIT
"""Outcomes of replays: what became of each job under a policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.frames.columns import CATEGORY, COUNT, NUMBER, TEXT, Column, described, frame
from slurm_pal.simulate.result import JobOutcome, Replay

if TYPE_CHECKING:
    import pandas as pd

OUTCOMES = (
    Column("policy", CATEGORY, "placement policy"),
    Column("queue", CATEGORY, "order of the queue"),
    Column("seed", COUNT, "seed of the replay: equal seeds are pairs"),
    Column("job_id", TEXT, "id of the job in the trace"),
    Column("user", TEXT, "its user; NA: the trace does not say"),
    Column("account", TEXT, "its account; NA: the trace does not say"),
    Column("partition", TEXT, "its partition; NA: the trace does not say"),
    Column("sensitivity", CATEGORY, "sensitivity class; NA: unknown", SENSITIVITY_CLASSES),
    Column("gpus", COUNT, "GPUs it held"),
    Column("nodes", TEXT, "nodes where it ended, joined by commas"),
    Column("submit_s", NUMBER, "submission, from the start of the trace (s)"),
    Column("start_s", NUMBER, "first start (s)"),
    Column("finish_s", NUMBER, "end (s)"),
    Column("wait_s", NUMBER, "from submission to the first start (s)"),
    Column("jct_s", NUMBER, "job completion time: from submission to the end (s)"),
    Column("ideal_s", NUMBER, "run time on median GPUs of one node (s)"),
    Column("slowdown", NUMBER, "slowest GPU of its set, mean over the work done, locality apart (ratio)"),
    Column("locality", NUMBER, "cost of several nodes, mean over the work done; 1: one node (ratio)"),
    Column("moves", COUNT, "moves"),
    Column("restarts", COUNT, "restarts after a node failed"),
    Column(
        "end",
        CATEGORY,
        "how it ended; TIMEOUT: at its time limit; NODE_FAIL: with its node",
        ("COMPLETED", "TIMEOUT", "NODE_FAIL"),
    ),
)


@described(OUTCOMES)
def replay(result: Replay | Iterable[Replay]) -> pd.DataFrame:
    """One row for each job of a replay (slurm_pal.simulate), or of several one after the other, by their ends.

    Moments are s from the start of the trace.
    """
    found = [result] if isinstance(result, Replay) else result
    return frame(OUTCOMES, [_row(one, outcome) for one in found for outcome in one.outcomes])


def _row(one: Replay, job: JobOutcome) -> tuple[object, ...]:
    who = (job.job_id, job.user or None, job.account or None, job.partition or None, job.sensitivity.replace("?", ""))
    return (
        one.policy, one.queue, one.seed, *who, job.gpus, ",".join(job.nodes), job.submit_s, job.start_s, job.finish_s,
        job.wait_s, job.jct_s, job.ideal_s, job.slowdown, job.locality, job.moves, job.restarts, job.end,
    )  # fmt: skip
