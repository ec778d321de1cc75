# SPDX-License-Identifier: MIT
"""Jobs of any trace on unequal GPUs, the queue, the rounds, and what holds for every policy."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from slurm_pal.allocation.problem import Allocation, Problem
from slurm_pal.allocation.steady import STEADY
from slurm_pal.allocation.throughputs import Entry, ThroughputKey
from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.research.allocation_policies import AllocationPolicy
from slurm_pal.research.replica.gavel_jobs import parse_types
from slurm_pal.research.unequal import GangJob, Policy, StarvedError, UnequalResult, simulate
from slurm_pal.research.unequal_comparison import StoppedError, UnequalComparison, UnequalFigures, UnequalTask
from slurm_pal.research.unequal_jobs import UnequalWorkload, configurations, of_rows, of_trace
from slurm_pal.research.unequal_policies import ELASTIC, NO_MOVES, OURS, POLICIES, SLURM, check
from slurm_pal.research.unequal_queue import Belonging, Listed
from slurm_pal.research.unequal_rounds import Rounds
from slurm_pal.simulate.inputs.gavel import GavelRow
from slurm_pal.simulate.known_throughputs import as_gavels, read_known
from slurm_pal.simulate.trace import Trace, TraceJob

KNOWN = {
    ThroughputKey("M", 1, "v100"): Entry(2.0, 0.1),
    ThroughputKey("M", 1, "k80"): Entry(1.0, 0.1),
    ThroughputKey("M", 2, "v100"): Entry(3.0, 0.1),
    ThroughputKey("M", 2, "k80"): Entry(2.0, 0.1),
    ThroughputKey("flat", 1, "v100"): Entry(1.0, 0.1),
    ThroughputKey("flat", 1, "k80"): Entry(1.0, 0.1),
    ThroughputKey("fast-only", 1, "v100"): Entry(4.0, 0.1),
    ThroughputKey("fast-only", 1, "k80"): Entry(0.0, 0.1),
    ThroughputKey("ratio", 1, "v100"): Entry(3.0, 0.1, relative=True),
    ThroughputKey("ratio", 1, "k80"): Entry(1.0, 0.1, relative=True),
}
CLUSTER = "v100:2,k80:2"


def row(steps: int, arrival_s: float = 0.0, gpus: int = 1, model: str = "M", **given: float) -> GavelRow:
    facts = {"priority_weight": 1.0, "slo": -1.0, **given}
    return GavelRow(model, "", "", "-n", False, steps, gpus, arrival_s=arrival_s, **facts)


def gavels(*rows: GavelRow, cluster: str = CLUSTER) -> UnequalWorkload:
    return of_rows("t", rows, parse_types(cluster), KNOWN, 1.5)


def ran(work: UnequalWorkload, name: str, move_cost_s: float = 0.0, review_s: float | None = None) -> UnequalResult:
    arrival_s = np.array([job.arrival_s for job in work.jobs])
    made = POLICIES[name]
    policy = made.make(work, arrival_s, 1)
    return simulate(work.jobs, work.cluster.gpus, policy, move_cost_s=move_cost_s, review_s=review_s or made.review_s)


# -- jobs -----------------------------------------------------------------------------------


def test_a_gavel_trace_counts_steps() -> None:
    work = gavels(row(100, 5.0, slo=2.0, priority_weight=5.0), row(60, 7.0, gpus=2))
    sizes = ((2, (3.0, 2.0)),)  # those of the table
    assert work.jobs[0] == GangJob("0", 5.0, 100.0, 1, (2.0, 1.0), work.jobs[0].believed_steps, "?", 1.0, sizes)
    assert work.jobs[1][2:5] == (60.0, 2, (3.0, 2.0))
    assert work.weight.tolist() == [5.0, 1.0]
    assert work.deadline_s.tolist() == [100.0, np.inf]  # 2 x 100 steps at 2 a second
    assert work.limit_s.tolist() == [150.0, 45.0]  # 1.5 x the slowest type
    assert (work.guessed, work.from_run_times) == (0, False)


def trace(*jobs: TraceJob) -> Trace:
    return Trace("t", jobs)


def job(job_id: str, ideal_s: float, gpus: int = 1, app: str = "m", **given: object) -> TraceJob:
    facts = {"submit_s": 0.0, "sensitivity": "?", **given}
    gpu_type = str(facts.pop("gpu_type", ""))
    return TraceJob(job_id, shape=GpuShape(gpus, gpu_type=gpu_type), ideal_s=ideal_s, app=app, **facts)  # type: ignore[arg-type]


def test_run_times_become_steps_on_the_reference_type() -> None:
    jobs = (
        job("first type", 100.0),
        job("asked for k80", 100.0, gpu_type="k80"),
        job("partition k80", 100.0, partition="k80"),
        job("cannot run there", 100.0, app="fast-only", gpu_type="k80"),
        job("relative", 100.0, app="ratio"),
        job("other type", 100.0, gpu_type="h100", limit_s=200.0),
    )
    work = of_trace(trace(*jobs), parse_types(CLUSTER), KNOWN, 1.5)
    assert [made.steps for made in work.jobs] == [200.0, 100.0, 100.0, 400.0, 300.0, 200.0]
    assert work.limit_s[-1] == 400.0  # twice the run time, as the user said, on the slowest type
    assert work.from_run_times


def test_accounts_are_entities_and_unknown_applications_are_estimated() -> None:
    jobs = (job("a", 10.0, account="x"), job("b", 10.0, app="?", account="y"), job("c", 10.0, account="x"))
    work = of_trace(trace(*jobs), parse_types(CLUSTER), KNOWN, 1.5)
    assert work.entity.tolist() == [0, 1, 0]
    assert work.guessed == 1
    assert work.jobs[1].throughput[0] > work.jobs[1].throughput[1] > 0


def test_the_table_must_know_types_and_steps() -> None:
    with pytest.raises(UsageError, match="'h100' of --cluster is not in the throughput table, which has k80, v100"):
        gavels(row(1), cluster="v100:1,h100:1")
    for model in ("ratio", "nobody knows"):
        with pytest.raises(DataError, match=f"no steps/s of '{model}'"):
            gavels(row(1, model=model))


def test_jobs_that_fit_nowhere_are_named() -> None:
    with pytest.raises(UsageError, match=r"no type of v100:1,k80:1 .* job 1 \(2 GPUs\); give more"):
        gavels(row(1), row(1, gpus=2), cluster="v100:1,k80:1")
    with pytest.raises(UsageError, match=r"job 0 \(1 GPUs\)"):
        gavels(row(1, model="fast-only"), cluster="k80:4")
    with pytest.raises(UsageError, match="and 2 more"):
        gavels(*[row(1, gpus=2)] * 7, cluster="v100:1")
    with pytest.raises(UsageError, match="no job to replay"):
        of_trace(trace(), parse_types(CLUSTER), KNOWN, 1.5)


def test_other_numbers_of_gpus_are_those_of_sia_and_scale_as_the_table_shows() -> None:
    assert configurations([8, 8, 8]) == {1, 2, 4, 8, 16, 24} and configurations([4, 4, 4]) == {1, 2, 4, 8, 12}
    assert configurations([6]) == {1, 2, 4} and configurations([]) == frozenset()
    cluster = parse_types("v100:6/2,k80:2/2")
    jobs = job("steps/s", 9.0), job("ratios", 9.0, app="ratio"), job("no k80", 9.0, app="fast-only")
    absolute, relative, barred = of_trace(trace(*jobs), cluster, KNOWN, 1.5).jobs
    assert absolute.sizes[0] == (2, (3.0, 2.0))
    assert [count for count, _ in absolute.sizes] == [2, 4, 6]
    assert 3.0 < absolute.sizes[1][1][0] < 6.0 and absolute.sizes[1][1][1] == 0.0  # there are two k80
    exponent = np.log2(relative.sizes[0][1][0] / 3.0)
    assert 0.5 < exponent < 1 and relative.sizes[1][1][0] == pytest.approx(3.0 * 4**exponent)
    assert all(speeds[1] == 0 for _, speeds in barred.sizes)


@pytest.mark.parametrize("name", ["sia", "pal-sia"])
def test_elastic_jobs_take_more_gpus_while_nobody_else_wants_them(name: str) -> None:
    work = gavels(row(36000), row(3600, arrival_s=7200.0, gpus=2))
    rigid, elastic = ran(work, name), ran(work, name + ELASTIC)
    assert rigid.finish_s[0] == pytest.approx(18000.0) and elastic.finish_s[0] < 13000.0
    assert elastic.finish_s[1] <= rigid.finish_s[1] + 60.0  # one round
    assert elastic.moves.sum() >= 1


def test_a_table_in_the_form_of_gavels_reader() -> None:
    table = as_gavels(KNOWN)
    assert table.types == ("v100", "k80")
    assert table.packed["M", 2] == (3.0, 2.0) and table.packed["fast-only", 1] == (4.0, 0.0)
    assert ("ratio", 1) not in table.packed


def test_a_json_without_a_known_top_is_told_as_gavels(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"v100": 3}', encoding="utf-8")
    with pytest.raises(DataError, match="v100: 3 must be an object"):
        read_known(str(path), 0.0)
    path.write_text('{"schema": "x"}', encoding="utf-8")
    with pytest.raises(DataError, match="a table of throughputs is"):
        read_known(str(path), 0.0)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="cannot be read as JSON"):
        read_known(str(path), 0.0)


# -- the queue ------------------------------------------------------------------------------


def queued(jobs: list[tuple[float, float, int]], gpus: list[int], limit: float = 1.0) -> list[float]:
    """Ends of jobs (arrival, seconds, GPUs) that run alike in all columns."""
    made = [GangJob(str(k), at, run, size, (1.0,) * len(gpus)) for k, (at, run, size) in enumerate(jobs)]
    policy: Policy = Listed(np.array([limit * run for _, run, _ in jobs]))
    return simulate(made, gpus, policy, move_cost_s=0).finish_s.tolist()


def test_short_jobs_pass_a_gang_that_waits_and_long_ones_do_not() -> None:
    jobs = [(0.0, 100.0, 1), (1.0, 10.0, 2), (2.0, 50.0, 1), (3.0, 200.0, 1)]
    assert queued(jobs, [2]) == [100.0, 110.0, 52.0, 310.0]


def test_backfill_goes_by_time_limits() -> None:
    jobs = [(0.0, 100.0, 1), (1.0, 10.0, 2), (2.0, 60.0, 1)]
    assert queued(jobs, [2], limit=1.0)[2] == 62.0
    assert queued(jobs, [2], limit=3.0)[2] == 62.0  # the gang is expected at 300 s then
    made = [GangJob(str(k), at, run, size, (1.0,)) for k, (at, run, size) in enumerate(jobs)]
    found = simulate(made, [2], Listed(np.array([100.0, 10.0, 100.0])), move_cost_s=0)
    assert found.finish_s.tolist() == [100.0, 110.0, 170.0]


def test_a_long_job_may_take_what_a_reservation_leaves() -> None:
    jobs = [(0.0, 100.0, 3), (1.0, 10.0, 4), (2.0, 500.0, 1), (2.0, 500.0, 1)]
    # At 100 s there are 5 GPUs for the gang of 4: one is left over, and only one.
    assert queued(jobs, [5]) == [100.0, 110.0, 502.0, 610.0]


def test_each_column_has_its_own_reservation() -> None:
    jobs = [GangJob("a", 0.0, 100.0, 1, (1.0, 0.0)), GangJob("b", 0.0, 300.0, 1, (0.0, 1.0)),
            GangJob("left", 1.0, 10.0, 2, (1.0, 0.0)), GangJob("right", 1.0, 10.0, 2, (0.0, 1.0)),
            GangJob("long", 2.0, 150.0, 1, (1.0, 1.0))]  # fmt: skip
    limit_s = np.array([made.steps for made in jobs])
    found = simulate(jobs, [2, 2], Listed(limit_s), move_cost_s=0)
    # The long job would delay the gang on the left, not the one on the right.
    assert found.finish_s.tolist() == [100.0, 300.0, 110.0, 310.0, 152.0]


def only_first(problem: Problem) -> Allocation:
    shares = np.zeros_like(problem.throughput)
    shares[:, 0] = 1.0
    return Allocation(shares)


def test_a_job_waits_for_its_column_half_of_what_it_gains_there() -> None:
    jobs = [GangJob("a", 0.0, 5000.0, 1, (1.0, 0.0)), GangJob("b", 0.0, 1000.0, 1, (2.0, 1.0))]
    limit_s = np.array([5000.0, 1000.0])
    found = simulate(jobs, [1, 1], Belonging(limit_s, only_first), move_cost_s=0, review_s=10)
    assert found.finish_s.tolist() == [5000.0, 1250.0]  # gains 500 s there, so it waits 250


def test_time_without_free_gpus_is_not_time_kept_waiting() -> None:
    jobs = [GangJob("a", 0.0, 5000.0, 1, (1.0, 0.0)), GangJob("c", 0.0, 300.0, 1, (0.0, 1.0)),
            GangJob("b", 0.0, 1000.0, 1, (2.0, 1.0))]  # fmt: skip
    limit_s = np.array([5000.0, 300.0, 1000.0])
    found = simulate(jobs, [1, 1], Belonging(limit_s, only_first), move_cost_s=0, review_s=10)
    assert found.finish_s.tolist() == [5000.0, 300.0, 1550.0]


def test_time_behind_a_reservation_is_not_time_kept_waiting() -> None:
    jobs = [GangJob("a", 0.0, 100.0, 1, (1.0, 0.0)), GangJob("c", 0.0, 100.0, 1, (0.0, 1.0)),
            GangJob("gang", 0.0, 5000.0, 2, (1.0, 0.0)), GangJob("b", 0.0, 1000.0, 1, (2.0, 1.0))]  # fmt: skip
    limit_s = np.array([100.0, 100.0, 5000.0, 1000.0])
    found = simulate(jobs, [2, 1], Belonging(limit_s, only_first), move_cost_s=0, review_s=10)
    assert found.finish_s.tolist() == [100.0, 100.0, 5100.0, 1350.0]


def test_a_job_without_a_share_starts_anywhere() -> None:
    jobs = [GangJob("a", 0.0, 100.0, 1, (2.0, 1.0)), GangJob("b", 0.0, 100.0, 1, (2.0, 1.0))]
    none = Belonging(np.full(2, 100.0), lambda problem: Allocation(np.zeros_like(problem.throughput)))
    found = simulate(jobs, [1, 1], none, move_cost_s=0)
    assert found.finish_s.tolist() == [50.0, 100.0]


# -- the rounds -----------------------------------------------------------------------------


def test_two_equal_jobs_take_turns_and_each_return_costs() -> None:
    work = gavels(row(720, model="flat"), row(720, model="flat"), cluster="v100:1")
    free = ran(work, "gavel:max-min")
    assert free.finish_s.tolist() == [1080.0, 1440.0] and free.moves.tolist() == [1, 1]
    charged = ran(work, "gavel:max-min", move_cost_s=60.0)
    assert charged.lost_gpu_h * 3600 == 60.0 * charged.moves.sum() > 0
    assert charged.makespan_s > free.makespan_s


def test_weights_count() -> None:
    work = gavels(row(36000, model="flat", priority_weight=3.0), row(36000, model="flat"), cluster="v100:1")
    found = ran(work, "gavel:max-min")
    assert found.finish_s[0] == pytest.approx(48000, abs=720)  # three quarters of the time until then
    assert found.finish_s[1] == pytest.approx(72000, abs=1)


def test_deadlines_count() -> None:
    work = gavels(row(6000, model="flat"), row(6000, model="flat", slo=1.2), cluster="v100:1")
    assert ran(work, "gavel:cost-slo").finish_s[1] <= 1.2 * 6000
    assert ran(work, "gavel:cost").finish_s[1] > 1.2 * 6000


def test_entities_share_before_their_jobs_do() -> None:
    jobs = [job(str(k), 3600.0, app="flat", account="x" if k else "y") for k in range(4)]
    work = of_trace(trace(*jobs), parse_types("v100:1"), KNOWN, 1.5)
    assert ran(work, "gavel:hierarchical").finish_s[0] < 2.5 * 3600 < ran(work, "gavel:max-min").finish_s[0]


def test_weights_and_accounts_reach_policies_without_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Problem] = []
    monkeypatch.setitem(STEADY, "gavel:max-min", lambda problem: seen.append(problem) or only_first(problem))
    jobs = (job("a", 10.0, app="flat", account="x"), job("b", 10.0, app="flat", account="y"))
    work = of_trace(trace(*jobs), parse_types(CLUSTER), KNOWN, 1.5)._replace(weight=np.array([1.0, 5.0]))
    ran(work, "gavel:max-min+nonpreemptive")
    assert (seen[0].weight.tolist(), seen[0].entity.tolist(), seen[0].entity_weight.size) == ([1, 5], [0, 1], 2)


def test_who_comes_within_a_round_waits_for_the_next_and_gpus_idle() -> None:
    work = gavels(row(100, model="flat"), row(100, 10.0, model="flat"), cluster="v100:2")
    assert ran(work, "gavel:sjf").finish_s.tolist() == [100.0, pytest.approx(460.0, abs=60)]


def test_the_shortest_rest_goes_first_each_job_on_its_fastest_type() -> None:
    work = gavels(row(20000), row(400, 100.0), row(10, 100.0), cluster="v100:1,k80:1")
    found = ran(work, "srpt")
    # At 100 s only the k80 is free, and the shortest has it first; the first look after 360 s gives the next the v100.
    assert found.finish_s[1:].tolist() == pytest.approx([410 + (400 - 300) / 2, 110])
    assert found.moves[:2].tolist() == [2, 1]  # the first gives way, and comes back


def test_who_has_had_least_goes_first() -> None:
    work = gavels(row(20000, model="flat"), row(3000, 4000.0, model="flat"), cluster="v100:1")
    found = ran(work, "las")
    assert found.finish_s[1] == pytest.approx(4000 + 3000, abs=361)  # the first is in the second queue by then
    first = ran(gavels(row(3400, model="flat"), row(100, 1000.0, model="flat"), cluster="v100:1"), "las")
    assert first.finish_s.tolist() == [3400.0, 3500.0]  # in the same queue who came first stays
    wide = gavels(row(20000, model="M", gpus=2), row(3000, 2000.0, gpus=2), cluster="v100:2")
    assert ran(wide, "las").finish_s[1] < ran(wide, "gavel:fifo-perf").finish_s[1]  # GPU time counts, not time


@pytest.mark.parametrize("name", ["gavel:fifo", "gavel:fifo-perf", "gavel:sjf", "gavel:max-min"])
def test_jobs_far_shorter_than_a_round_are_not_taken_to_starve(name: str) -> None:
    found = ran(gavels(row(10, model="flat"), row(10, 10.0, model="flat")), name)
    assert found.finish_s[0] == 10.0 and 360.0 <= found.finish_s[1] <= 2400.0


def test_a_job_that_cannot_run_on_the_reference_type_counts_as_on_its_best() -> None:
    seen: list[Problem] = []

    def allocate(problem: Problem, draws: Random) -> Allocation:
        seen.append(problem)
        return Allocation(np.full(problem.throughput.shape, 0.5))

    work = gavels(row(20000, model="fast-only"), row(9000), row(9000, 2000.0), cluster="k80:1,v100:1")
    agnostic = AllocationPolicy(allocate, "agnostic", flat="reference")
    rounds = Rounds(agnostic, np.ones(3), np.full(3, np.inf), np.zeros(3, np.int64), np.ones(2), 1)
    simulate(work.jobs, [1, 1], rounds, move_cost_s=0.0, review_s=60.0)
    assert seen[1].throughput.tolist() == [[0.0, 4.0], [1.0, 1.0], [1.0, 1.0]]
    assert np.isfinite(seen[1].earned_s).all() and seen[1].earned_s[0] > 0


def test_a_policy_is_told_the_isolated_time_that_jobs_have_earned() -> None:
    seen: list[Problem] = []

    def allocate(problem: Problem, draws: Random) -> Allocation:
        seen.append(problem)
        return Allocation(np.full(problem.throughput.shape, 0.5))

    work = gavels(*[row(5000, at_s, model="flat") for at_s in (0.0, 0.0, 2000.0)], cluster="v100:1")
    rounds = Rounds(
        AllocationPolicy(allocate, "half each"), np.ones(3), np.full(3, np.inf), np.zeros(3, np.int64), np.ones(1), 1
    )
    simulate(work.jobs, [1], rounds, move_cost_s=0.0, review_s=60.0)
    assert seen[0].earned_s.tolist() == [0, 0]
    # Alone each of the two would have had half of the GPU, so half a step a second.
    assert seen[1].earned_s.tolist() == ((5000 - seen[1].remaining) / 0.5).tolist()
    assert seen[1].earned_s[2] == 0 < seen[1].earned_s[0]


def test_who_only_fills_free_gpus_is_not_told_as_holding_them() -> None:
    seen: list[Problem] = []

    def allocate(problem: Problem, draws: Random) -> Allocation:
        seen.append(problem)
        shares = np.zeros(problem.throughput.shape)
        shares[0, 0] = 1.0
        return Allocation(shares)

    work = gavels(*[row(5000, at_s, model="flat") for at_s in (0.0, 0.0, 2000.0)], cluster="v100:1,k80:1")
    rounds = Rounds(AllocationPolicy(allocate, "first"), np.ones(3), np.full(3, np.inf), np.zeros(3, np.int64),
                    np.ones(2), 1)  # fmt: skip
    simulate(work.jobs, [1, 1], rounds, move_cost_s=0.0, review_s=60.0)
    assert seen[1].remaining[1] < 5000, "it ran"
    assert seen[1].held.tolist() == [0, -1, -1]


def test_a_policy_that_keeps_stops_nobody_it_chose() -> None:
    rows = [row(4000 + 500 * k, 100.0 * k) for k in range(6)]
    assert ran(gavels(*rows), "gavel:fifo").moves.sum() == 0


# -- every policy ---------------------------------------------------------------------------


def made_up(gangs: bool) -> UnequalWorkload:
    draws = np.random.default_rng(7)
    rows = [
        row(int(draws.uniform(200, 20000)), 150.0 * k, int(draws.choice([1, 2])) if gangs else 1, slo=1.5 + k % 3)
        for k in range(16)
    ]
    return gavels(*rows)


@pytest.mark.parametrize("name", POLICIES)
def test_all_jobs_end_and_no_bound_is_broken(name: str) -> None:
    work = made_up(gangs=not POLICIES[name].one_gpu)
    compared = UnequalComparison(work, (name,), move_cost_s=30.0)
    compared.check()
    told: list[tuple[int, int]] = []
    found: UnequalFigures = compared.run(UnequalTask(name, 1), lambda done, of: told.append((done, of)) or True).figures
    if ELASTIC not in name:  # the bound is for jobs with the numbers of GPUs that they ask for
        assert found.makespan_s >= compared.bound_s(1) * (1 - 1e-9)
    assert found.p50_jct_s <= found.p99_jct_s and found.utilisation <= 1
    assert found.lost_gpu_h * 3600 <= 30.0 * 2 * found.moves + 1e-6
    assert [done for done, _ in told] == sorted(done for done, _ in told) and told[-1][1] == 16
    if name == SLURM or name.endswith(NO_MOVES):
        assert (found.moves, found.lost_gpu_h) == (0, 0)


def test_ours_is_not_behind_stock_slurm_here() -> None:
    compared = UnequalComparison(made_up(gangs=True), (OURS, SLURM), move_cost_s=30.0)
    ours, slurm = (compared.run(UnequalTask(name, 1), lambda done, of: True).figures for name in (OURS, SLURM))
    assert ours.avg_jct_s < slurm.avg_jct_s and ours.makespan_s <= 1.03 * slurm.makespan_s


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("best", "policy 'best' is not one of slurm, pal-share"),
        ("gavel:max-min+packing", "share GPUs, which is simulated with --replica gavel only"),
        ("gavel:gandiva", "share GPUs, which is simulated with --replica gavel only"),
        ("pal-share+packing", "is not one of"),
        ("gavel:sjf+packing", "is not one of"),
        ("gavel:allox", r"for jobs of 1 GPU; job 1 has 2"),
        ("gavel:cost", "no price of GPU type 'h100'"),
    ],
)
def test_policies_that_cannot_be_run(name: str, words: str) -> None:
    known = {**KNOWN, ThroughputKey("M", 1, "h100"): Entry(9.0, 0.1)}
    work = of_rows("t", [row(1), row(1, gpus=2)], parse_types("v100:2,h100:2"), known, 1.5)
    with pytest.raises(UsageError, match=words):
        check(name, work)


def test_seeds_move_arrivals_alike_for_all_policies() -> None:
    compared = UnequalComparison(made_up(gangs=False), (SLURM,), move_cost_s=0.0, jitter_s=60.0)
    given = np.array([made.arrival_s for made in compared.work.jobs])
    one, again, other = (compared.arrival_s(seed) for seed in (1, 1, 2))
    assert (one == again).all() and (one != other).any()
    assert (one >= 0).all() and np.abs(one - given).max() <= 60.0
    assert (compared._replace(jitter_s=0.0).arrival_s(1) == given).all()


def test_a_starving_policy_is_named_and_a_run_can_be_stopped() -> None:
    work = gavels(row(5000, model="flat"), row(5000, model="flat"), cluster="v100:1")
    compared = UnequalComparison(work, ("gavel:max-min",), move_cost_s=400.0)
    with pytest.raises(StarvedError, match=r"gavel:max-min: .* leave that policy out"):
        compared.run(UnequalTask("gavel:max-min", 1), lambda done, of: True)
    with pytest.raises(StoppedError, match="stopped"):
        compared.run(UnequalTask("gavel:max-min", 1), lambda done, of: False)
