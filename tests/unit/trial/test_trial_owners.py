# SPDX-License-Identifier: MIT
"""What owners waited and guests lost, from records that are made up."""

from __future__ import annotations

import pytest

from slurm_pal.base.jobs import GpuShape
from slurm_pal.simulate.result import JobOutcome, Replay, Timeline
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.trial import owners
from slurm_pal.trial.prediction import pairs_of
from slurm_pal.trial.ran import RanJob, ran
from slurm_pal.twin.slurm_settings import slurm_settings

NAMES = ("n0", "n1", "n2", "n3")


def job(partition: str, submit_s: float, gpus: int, work_s: float) -> TraceJob:
    return TraceJob(f"{partition}{submit_s:g}", submit_s, GpuShape(gpus), work_s, "A", partition=partition)


TRACE = Trace("made", (
    job("owner", 0.0, 1, 100.0), job("guest", 0.0, 2, 300.0), job("guest", 10.0, 4, 200.0), job("owner", 50.0, 4, 50.0),
))  # fmt: skip
LINES = (
    ["start 10100 1.0 n2:0", "end 20100"],
    # 100 s, of which a checkpoint kept 60; then 20 s of restart and the 240 s that were left
    ["start 10000 1.0 n2:0-1", "stop 20000", "start 30000 1.0 n0:0-1", "end 56000"],
    ["start 11000 1.0 n0:0-3", "end 31000"],
    ["start 20500 1.0 n2:0-3", "end 25500"],
)


def test_lost_is_what_stopped_guests_held_beyond_their_work() -> None:
    jobs = [
        ran(number, lines, one.submit_s, 100.0, 1.0)
        for number, (lines, one) in enumerate(zip(LINES, TRACE.jobs, strict=True))
    ]
    assert [one.ran_s for one in jobs] == [100.0, 360.0, 200.0, 50.0]
    seen = owners.live(TRACE, jobs)
    lost = owners.lost_gpu_s([one for one in seen if one.partition == owners.GUEST])
    assert lost == (360 - 300) * 2  # 40 s of work and 20 s of restart, on two GPUs
    found = owners.shared(seen, 16, lost)
    assert (found.owner_p50_s, found.owner_most_s) == (55.0, 55.0) and found.restarts == 1
    assert found.span_s == 460.0 and found.guest_jct_s == pytest.approx((460 + 200) / 2)
    assert found.usage == pytest.approx((100 + 600 + 800 + 200) / (16 * 460.0))


def test_a_guest_that_never_ended_is_counted_apart() -> None:
    gone = RanJob(1, 0.0, 0.0, 90.0, "n0:0", 1.0, 2, "LOST", 90.0)
    seen = owners.live(Trace("one", TRACE.jobs[1:2]), [gone])
    assert owners.lost_gpu_s(seen) == 0.0
    both = [*seen, *owners.live(Trace("one", TRACE.jobs[:1]), [gone._replace(moves=0, end="COMPLETED")])]
    assert owners.shared(both, 4, 0.0).unfinished == 1


def test_the_twin_gives_the_same_figures() -> None:
    outcomes = tuple(
        JobOutcome(one.job_id, one.submit_s, one.submit_s + 2, one.submit_s + 2 + one.ideal_s, one.shape.total,
                   one.ideal_s, "A", 1.0, 1.0, 0, place == 1, ("n0",), partition=one.partition)
        for place, one in enumerate(TRACE.jobs)
    )  # fmt: skip
    found = Replay("x", "fifo", 1, 16, outcomes, Timeline((), (), ()), 0.0, 0, 0.0, 302.0, lost_gpu_s=77.0)
    seen = owners.predicted(TRACE, found)
    figures = owners.shared(seen, found.n_gpus, found.lost_gpu_s)
    assert figures.owner_most_s == 2.0 and figures.lost_gpu_s == 77.0 and figures.restarts == 1
    assert owners.ratios(figures, figures) == {name: 1.0 for name in figures._fields if name != "unfinished"}


def test_owners_are_compared_job_by_job() -> None:
    seen = [owners.Seen("owner", 1, 9.0, at_s, at_s + wait_s, at_s + 99.0, 9.0, 0, True)
            for at_s, wait_s in ((0.0, 1.0), (5.0, 7.0), (9.0, 2.0))]  # fmt: skip
    guest = seen[0]._replace(partition="guest")
    alone = [job._replace(start_s=job.submit_s + 1.0) for job in seen]
    assert owners.beyond([*seen, guest], [*alone, guest._replace(start_s=0.0)]) == (1.0, 6.0, 6.0)


@pytest.mark.parametrize(("arm", "nodes"), [(owners.NO_LOAN, "n[0-1]"), (owners.PREEMPT, "n[0-3]")])
def test_the_site_of_an_arm(arm: str, nodes: str) -> None:
    made = owners.partitions(arm, NAMES, 2)
    piece, text = owners.conf_edit(made)
    assert piece == "PartitionName=gpu" and text.endswith("\nPartitionName=gpu")
    assert f"PartitionName=guest Nodes={nodes} MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE" in text
    assert "PartitionName=owner Nodes=n[2-3] MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF" in text
    read = slurm_settings(pairs_of(((piece, text),))).preempt
    assert (read.by_tier, read.mode, read.again_s) == (True, "REQUEUE", 12.0)
