# SPDX-License-Identifier: MIT
"""The replay when nodes fail: cases done by hand."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest

from slurm_pal.simulate.replay import ReplayPlan, replay
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.settings import Failures
from slurm_pal.simulate.trace import TraceJob

from ...doubles.replay_cases import AT_ONCE, WAITING, job, machine, trace, watched

# -- failures ------------------------------------------------------------------------------------


class Draws:
    """A generator whose exponential draws are given; after that nothing fails any more."""

    def __init__(self, *draws_s: float) -> None:
        self._draws_s = iter(draws_s)

    def exponential(self, mean_s: float) -> float:
        return next(self._draws_s, 1e12)


def failing(
    jobs: Sequence[TraceJob],
    rows: Sequence[Sequence[float]],
    failures: Failures,
    *draws_s: float,
    policy: str = "packed",
) -> Replay:
    given = AT_ONCE._replace(failures=failures, move_cost_s=40.0)
    with patch("slurm_pal.simulate.replay.np.random.default_rng", lambda seed: Draws(*draws_s)):
        return replay(ReplayPlan(trace(*jobs), machine(*rows), policy, settings=given))


def test_lost_work_goes_back_to_the_last_checkpoint() -> None:
    """Node 0 fails at 250: 125 s of work are done at factor 2, 100 are saved. It waits for the repair at 350, pays
    40 s for the restart, and runs the last 200 s of work."""
    jobs = [job("a", 0, 1, 300, limit_s=5000)]
    result = failing(jobs, [[2.0]], Failures(1e6, 100.0, checkpoint_s=50.0), 250.0)
    (outcome,) = result.outcomes
    assert (outcome.start_s, outcome.finish_s, outcome.restarts, outcome.moves) == (0, 350 + 40 + 400, 1, 0)
    assert outcome.slowdown == 2.0 and outcome.end == "COMPLETED"
    assert result.gpu_s == 250 + 440 and result.moves == 0 and result.move_gpu_s == 0
    rows = list(zip(*result.timeline, strict=True))
    assert rows == [(0, 1, 0), (250, 0, 1), (350, 1, 0), (790, 0, 0)]


def test_a_node_fails_again_after_its_repair() -> None:
    """At 100, and 300 s after the repair at 200: of 260 s worked since then 200 are saved."""
    result = failing(
        [job("a", 0, 1, 500, limit_s=5000)], [[1.0]], Failures(1e6, 100.0, checkpoint_s=100.0), 100.0, 300.0
    )
    (outcome,) = result.outcomes
    # 100 s saved by 100, 260 more by 500: 300 are saved; repaired at 600, and 200 s are left
    assert outcome.restarts == 2 and outcome.finish_s == 600 + 40 + 200


def test_a_job_goes_on_elsewhere_and_keeps_its_place_in_the_queue() -> None:
    """a loses node 0 at 100; it goes before c, which came later and waits for the same node, as soon as b ends."""
    jobs = [
        job("a", 0, 1, 300, limit_s=900), job("b", 0, 1, 200, limit_s=900), job("c", 10, 1, 10, limit_s=900),
    ]  # fmt: skip
    failures = Failures(1e6, 10000.0, checkpoint_s=1000.0)
    found = {o.job_id: o for o in failing(jobs, [[1.0], [1.0]], failures, 100.0).outcomes}
    assert found["a"].nodes == ("n1",) and found["a"].finish_s == 200 + 40 + 300
    assert found["c"].start_s == 540 and found["a"].start_s == 0


def test_only_jobs_on_the_node_fail() -> None:
    jobs = [job("wide", 0, 3, 500, limit_s=5000), job("narrow", 0, 1, 500, limit_s=5000)]
    found = {o.job_id: o for o in failing(jobs, [[1.0] * 2] * 2, Failures(1e6, 100.0), 1e9, 100.0).outcomes}
    assert found["wide"].restarts == 1, "it had a GPU on node 1, too"
    assert found["narrow"].restarts == 1
    found = {o.job_id: o for o in failing(jobs[1:], [[1.0] * 2] * 2, Failures(1e6, 100.0), 1e9, 100.0).outcomes}
    assert found["narrow"].restarts == 0


def test_after_a_failure_a_job_waits_for_good_gpus_afresh() -> None:
    """Its patience of long ago is over; the wait that begins now is another."""
    jobs = [job("x", 0, 1, 90000, limit_s=90000, sensitivity="B"), job("a", 1, 1, 800, limit_s=2000)]
    rows = [[1.0], [1.6], [1.6]]
    wait_s = WAITING.wait_share * 600
    begun_s = 1 + wait_s
    with watched() as stays:
        failing(jobs, rows, Failures(1e6, 1e5), 1e9, begun_s + 10, policy="class-fit-wait")
    starts = [stay.start_s for stay in stays if stay.job.trace.job_id == "a"]
    assert starts == pytest.approx([begun_s, begun_s + 10 + wait_s])
