# SPDX-License-Identifier: MIT
"""The loop of replica mode on traces small enough to follow by hand."""

from __future__ import annotations

import math
from itertools import islice
from random import Random

import pytest

from slurm_pal.base.errors import UsageError
from slurm_pal.research.replica.active import Gpus, RoundSettings, RoundState
from slurm_pal.research.replica.blox_pal import BloxStarvedError, replayed, run
from slurm_pal.simulate.inputs.pal_profile import CLASSES, Profile, given
from slurm_pal.simulate.inputs.pal_rows import PalRow

ALONE = RoundSettings(round_s=10.0, locality_penalty=2.0, replay=False)


def cluster(*slowdowns: float, size: int = 2) -> Profile:
    return given(dict.fromkeys(CLASSES, slowdowns), size)


def row(number: int, gpus: int, submit_s: float, iterations: float, sensitivity: str = "A") -> PalRow:
    return PalRow(str(number), gpus, submit_s, iterations, 1.0, sensitivity)


def fixed(*answers: dict[int, Gpus]) -> object:
    """A policy that gives these answers in turn, then the last for ever; what has finished is left out."""
    turns = iter(answers)
    last = [answers[0]]

    def policy(moment: RoundState) -> dict[int, Gpus]:
        last[0] = next(turns, last[0])
        return {job.number: last[0][job.number] for job in moment.jobs if job.number in last[0]}

    return policy


def test_a_job_starts_and_finishes_on_round_boundaries() -> None:
    found = run([row(0, 1, 3.0, 25.0)], "packed-ns", cluster(1.0, 1.0), ALONE)
    (job,) = found.replay.outcomes
    assert (job.submit_s, job.start_s, job.finish_s, job.jct_s) == (3.0, 10.0, 40.0, 37.0)
    assert found.figures.rounds == 4 and found.replay.end_s == 40.0
    # Three rounds of one of two GPUs in 40 s.
    assert found.replay.gpu_s == 30.0 and found.figures.utilisation == 30 / 80
    assert found.replay.timeline.time_s == (0.0, 10.0, 40.0)
    assert found.replay.timeline.busy_gpus == (0, 1, 0)


def test_the_slowest_gpu_and_the_nodes_count() -> None:
    found = run([row(0, 3, 0.0, 10.0)], "packed-ns", cluster(1.0, 1.5, 1.25, 9.0), ALONE)
    (job,) = found.replay.outcomes
    # 10 iterations x 1 s x 1.5 x 2.0 = 30 s, whatever the fourth GPU is.
    assert (job.finish_s, job.slowdown, job.locality, job.nodes) == (30.0, 1.5, 2.0, ("n0", "n1"))


def test_two_gpus_of_two_nodes_are_across() -> None:
    (job,) = run([row(0, 2, 0.0, 10.0)], "pm-first", cluster(1.0, 3.0, 1.0, 3.0), ALONE).replay.outcomes
    assert (job.slowdown, job.locality, job.finish_s) == (1.0, 2.0, 20.0)


def test_las_counts_wall_time_not_gpu_time() -> None:
    rows = [row(0, 2, 0.0, 20.0), row(1, 1, 5.0, 10.0), row(2, 1, 15.0, 10.0)]
    found = run(rows, "packed-ns", cluster(1.0, 1.0), ALONE._replace(queue="las"))
    # At 20 s jobs 0 and 1 have run for 10 s and 10 s, and 1 has ended; at 30 s 2 has.
    assert {job.job_id: job.finish_s for job in found.replay.outcomes} == {"1": 20.0, "2": 30.0, "0": 40.0}
    rows = [row(0, 2, 0.0, 30.0), row(1, 1, 5.0, 30.0)]
    found = run(rows, "packed-ns", cluster(1.0, 1.0), ALONE._replace(queue="las"))
    # In turns of one round, although job 0 holds twice the GPUs.
    assert {job.job_id: job.finish_s for job in found.replay.outcomes} == {"0": 50.0, "1": 60.0}


def test_factors_are_means_over_the_work() -> None:
    policy = fixed({0: (0,)}, {0: (1,)})
    (job,) = run([row(0, 1, 0.0, 15.0)], policy, cluster(1.0, 2.0), ALONE).replay.outcomes  # type: ignore[arg-type]
    assert (job.finish_s, job.moves) == (20.0, 1)
    assert job.slowdown == pytest.approx((10 * 1.0 + 5 * 2.0) / 15)


def test_moves_are_changes_and_resumptions() -> None:
    policy = fixed({0: (0,)}, {0: (0,)}, {}, {0: (0,)}, {0: (1,)})
    found = run([row(0, 1, 0.0, 45.0)], policy, cluster(1.0, 1.0), ALONE)  # type: ignore[arg-type]
    assert found.replay.outcomes[0].moves == found.figures.migrations == 2
    assert found.replay.outcomes[0].finish_s == 60.0


def test_starts_and_moves_cost_what_is_charged() -> None:
    policy = fixed({0: (0, 1)}, {0: (0, 1)}, {0: (0, 2)})
    settings = ALONE._replace(start_cost_s=4.0)
    found = run([row(0, 2, 0.0, 19.0)], policy, cluster(1.0, 1.0, 1.0, 1.0), settings)  # type: ignore[arg-type]
    # 6 + 10 + 6/2 iterations
    assert found.replay.outcomes[0].finish_s == 30.0
    assert found.replay.move_gpu_s == 2 * 4.0


@pytest.mark.parametrize(
    ("queue", "finish_s"),
    [
        ("fifo", {"0": 30.0, "1": 40.0}),
        # Ties fall to the first; then served in turns.
        ("las", {"0": 40.0, "1": 20.0}),
        ("srtf", {"0": 40.0, "1": 10.0}),
    ],
)
def test_queues(queue: str, finish_s: dict[str, float]) -> None:
    rows = [row(0, 1, 0.0, 30.0), row(1, 1, 0.0, 10.0)]
    found = run(rows, "packed-ns", cluster(1.0, size=1), ALONE._replace(queue=queue))
    assert {job.job_id: job.finish_s for job in found.replay.outcomes} == finish_s


def test_replayed_jobs_load_the_cluster_and_are_not_reported() -> None:
    rows = [row(i, 1, 0.0, 20000.0) for i in range(3)]
    settings = ALONE._replace(replay=True)
    with_replay = run(rows, "packed-ns", cluster(1.0, 1.0), settings)
    without = run(rows, "packed-ns", cluster(1.0, 1.0), ALONE)
    assert [job.job_id for job in with_replay.replay.outcomes] == ["0", "1", "2"]
    assert with_replay.replay.gpu_s > without.replay.gpu_s


def test_replayed_arrivals_are_a_poisson_stream_in_whole_seconds() -> None:
    rows = [row(i, i + 1, 0.0, 1.0) for i in range(3)]
    jobs = list(islice(replayed(rows, 3, 100.0, 1), 2000))
    draw = Random(1)
    first = 100.0 + math.ceil(-math.log(1.0 - draw.random()) * 1800)
    assert (jobs[0].number, jobs[0].submit_s, jobs[0].size) == (3, first, 1)
    assert [job.size for job in jobs[:4]] == [1, 2, 3, 1]
    assert all(job.submit_s == int(job.submit_s) for job in jobs)
    assert (jobs[-1].submit_s - 100.0) / len(jobs) == pytest.approx(1800, rel=0.1)


def test_jobs_are_admitted_by_round_then_by_line() -> None:
    rows = [row(0, 1, 25.0, 10.0), row(1, 1, 8.0, 10.0), row(2, 1, 5.0, 10.0)]
    seen: list[list[int]] = []

    def policy(moment: RoundState) -> dict[int, Gpus]:
        seen.append([job.number for job in moment.jobs])
        return {moment.jobs[0].number: (0,)} if moment.jobs else {}

    # Both of the round at 10 s, the queue being by time of submission.
    run(rows, policy, cluster(1.0, size=1), ALONE)
    assert seen == [[], [2, 1], [1], [0]]


def test_the_figures_are_order_statistics_of_the_artefact() -> None:
    rows = [row(i, 1, 0.0, 10.0 * (i + 1)) for i in range(200)]
    found = run(rows, "packed-ns", cluster(*[1.0] * 200, size=4), ALONE).figures
    assert (found.p99_jct_s, found.median_jct_s, found.makespan_s) == (1990.0, 1010.0, 2000.0)
    assert found.avg_jct_s == 1005.0


def test_long_idle_spans_are_skipped() -> None:
    calls = []

    def policy(moment: RoundState) -> dict[int, Gpus]:
        calls.append(moment.now_s)
        return {job.number: (0,) for job in moment.jobs}

    found = run([row(0, 1, 0.0, 5.0), row(1, 1, 1e6 + 1, 5.0)], policy, cluster(1.0, size=1), ALONE)
    assert calls == [0.0, 10.0, 1e6 + 10]
    assert found.figures.rounds == 100002


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({0: (0,)}, "wants 2"),
        ({0: (1, 0)}, "rising"),
        ({0: [0, 1]}, "tuple"),
        ({0: (0, 0)}, "rising"),
        ({0: (0, 1), 1: (1,)}, "one GPU to two jobs"),
        ({0: (0, 4)}, "there are 0 to 3"),
        ({0: (-1, 0)}, "there are 0 to 3"),
        ({0: (0, 1), 7: (2,)}, "job 7, which is not active"),
    ],
)
def test_wrong_answers_of_a_policy(answer: dict[int, Gpus], reason: str) -> None:
    rows = [row(0, 2, 0.0, 5.0), row(1, 1, 0.0, 5.0)]
    with pytest.raises(UsageError, match=reason):
        run(rows, lambda moment: answer, cluster(1.0, 1.0, 1.0, 1.0), ALONE)


def test_a_policy_that_never_places_a_job_is_found_out() -> None:
    with pytest.raises(BloxStarvedError, match=r"1 of 2 jobs, first 1, have not finished after \d+ s"):
        run([row(0, 1, 0.0, 5.0), row(1, 1, 0.0, 5.0)], lambda moment: {0: (0,)} if moment.jobs[0].number == 0 else {},
            cluster(1.0, 1.0), ALONE)  # fmt: skip


def test_endless_replay_under_las_is_found_out() -> None:
    rows = [row(0, 1, 0.0, 1e5), *[row(i, 1, 0.0, 1e4) for i in range(1, 5)]]
    with pytest.raises(BloxStarvedError, match="without replay"):
        run(rows, "packed-ns", cluster(1.0, size=1), ALONE._replace(round_s=360.0, queue="las", replay=True))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (RoundSettings(round_s=0.0), "round of 0.0 s"),
        (RoundSettings(round_s=math.nan), "round of nan s"),
        (RoundSettings(locality_penalty=0.5), "locality penalty 0.5: must be at least 1"),
        (RoundSettings(queue="sjf"), "queue 'sjf' is not one of fifo, las, srtf"),
        (RoundSettings(start_cost_s=360.0), "start cost 360.0 s: must be at least 0 and below 360.0 s"),
        (RoundSettings(barred={"A": 0.0}), "class A barred beyond slowdown 0.0: must be above 0"),
        (RoundSettings(barred={"A": 1.5}), "job 0 wants 2 GPUs; class A may use 1"),
    ],
)
def test_settings_that_mean_nothing(settings: RoundSettings, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        run([row(0, 2, 0.0, 5.0)], "pal", cluster(1.0, 2.0), settings)


def test_traces_that_cannot_be_simulated() -> None:
    with pytest.raises(UsageError, match="job 0 wants 3 GPUs; class A may use 2"):
        run([row(0, 3, 0.0, 5.0)], "pal", cluster(1.0, 1.0), ALONE)
    with pytest.raises(UsageError, match=r"class '\?' is not one of A, B, C, D"):
        run([row(0, 1, 0.0, 5.0, "?")], "pal", cluster(1.0, 1.0), ALONE)
    with pytest.raises(UsageError, match="without jobs"):
        run([], "pal", cluster(1.0, 1.0), ALONE)
