# SPDX-License-Identifier: MIT
"""Experiments: what is run, that it is the same on any number of processes, and what it comes to."""

from __future__ import annotations

import json
import math
from collections.abc import Generator
from contextlib import closing
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import PalError, UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.report.simulation.assemble import answer, assemble, body, job_table, job_tables
from slurm_pal.report.simulation.study import compare
from slurm_pal.simulate.aliases import POLICY_ALIASES, resolved
from slurm_pal.simulate.experiment import (
    IDENTICAL,
    LOADS,
    MOVE_COSTS_S,
    SHUFFLED,
    Experiment,
    ReplayTask,
    Results,
    causes,
    in_order,
    tasks,
)
from slurm_pal.simulate.fitting import fit, jittered
from slurm_pal.simulate.inputs.generate import TraceSpec, generate
from slurm_pal.simulate.policies import POLICIES
from slurm_pal.simulate.pool import Watch, run_all
from slurm_pal.simulate.profiles import SlowShare
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.scores import Scores
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.trace import BadRow, Trace, TraceJob
from slurm_pal.simulate.virtual import parse_cluster

CLUSTER = parse_cluster("4x4")
TRACE = generate(TraceSpec(jobs=40, cluster_gpus=16, cap_s=7200.0))
SMALL = Experiment((TRACE,), CLUSTER, policies=("packed", "pal-fit"), seeds=(1, 2), slow=SlowShare(0.1, 1.5))


def job(job_id: str, gpus: int = 1, partition: str = "", **changes: object) -> TraceJob:
    made = TraceJob(job_id, 0.0, GpuShape(gpus), 100.0, "A", partition=partition)
    return made._replace(**changes)  # type: ignore[arg-type]


def run(
    experiment: Experiment, workers: int, watch: Watch = lambda done: None
) -> Generator[tuple[ReplayTask, Replay], None, None]:
    return run_all(experiment, tasks(experiment), workers, watch)


def results(experiment: Experiment, workers: int = 1) -> Results:
    return in_order(experiment, dict(run(experiment, workers)))


# -- the trace on the cluster ---------------------------------------------------------------


def test_partitions_the_cluster_lacks_are_dropped_with_a_count() -> None:
    trace = Trace("t", (job("1", partition="gpu"), job("2", partition="old"), job("3", partition="old"), job("4")))
    fitted = fit(trace, parse_cluster("gpu=1x4,rest=1x4"))
    assert [j.partition for j in fitted.trace.jobs] == ["gpu", "", "", ""]
    assert fitted.remapped == {"old": 2}
    assert fitted.notes() == ("Partitions that the cluster lacks may use any node; jobs: old (2).",)


def test_partitions_can_be_kept_over_all_nodes() -> None:
    trace = Trace("t", (job("1", partition="gpu"), job("2", partition="old")))
    fitted = fit(trace, CLUSTER, keep_partitions=True)
    assert fitted.trace is not trace and fitted.trace.jobs == trace.jobs
    assert fitted.cluster.partitions == {"gpu": (0, 1, 2, 3), "old": (0, 1, 2, 3)}
    assert "own queue" in fitted.notes()[0]


def test_jobs_too_wide_are_left_out_and_listed() -> None:
    wide = [job(str(k), 17) for k in range(12)]
    shaped = job("s", 10, shape=GpuShape(10, nodes=2, per_node=5))
    narrow = job("p", 8, partition="small")
    fitted = fit(Trace("t", (*wide, job("ok", 16), shaped, narrow)), parse_cluster("small=1x4,rest=3x4"))
    assert [j.job_id for j in fitted.trace.jobs] == ["ok"]
    assert len(fitted.too_wide) == 14
    assert "14 jobs too wide" in fitted.notes()[0] and "and 4 more" in fitted.notes()[0]


def test_a_trace_that_fits_is_left_alone() -> None:
    fitted = fit(TRACE, CLUSTER)
    assert fitted.trace.jobs is TRACE.jobs
    assert fitted.notes() == ()


def test_nothing_left_to_replay() -> None:
    with pytest.raises(UsageError, match="no job to replay: 1 bad rows, 3 skipped, 1 jobs too wide"):
        fit(Trace("t", (job("1", 99),), (BadRow(2, "x"),), {"no GPU": 3}), CLUSTER)


@given(st.integers(0, 2**32), st.floats(0, 5000), st.sampled_from(LOADS))
def test_submissions_move_within_the_span(seed: int, span_s: float, load: float) -> None:
    moved = jittered(TRACE, span_s, load, seed)
    assert moved == jittered(TRACE, span_s, load, seed)
    times = {j.job_id: j.submit_s for j in moved.jobs}
    assert [j.submit_s for j in moved.jobs] == sorted(times.values())
    for before in TRACE.jobs:
        after_s = times[before.job_id]
        assert after_s >= 0 and after_s - before.submit_s / load <= span_s + 1e-6
        assert after_s == 0 or before.submit_s / load - after_s <= span_s + 1e-6
    assert sorted(j._replace(submit_s=0.0) for j in moved.jobs) == sorted(j._replace(submit_s=0.0) for j in TRACE.jobs)


def test_without_jitter_the_trace_stays() -> None:
    assert jittered(TRACE, 0.0, 1.0, 5) is TRACE


# -- what is run ----------------------------------------------------------------------------


def test_pairs_come_first_and_seed_by_seed() -> None:
    first = tasks(SMALL)[:4]
    assert first == [
        ReplayTask("packed", 1),
        ReplayTask("pal-fit", 1),
        ReplayTask("packed", 2),
        ReplayTask("pal-fit", 2),
    ]


def test_several_traces_and_one_for_each_seed() -> None:
    two = SMALL._replace(traces=(TRACE, TRACE._replace(name="other")), worst=0, causes=False)
    assert [(t.trace, t.seed) for t in tasks(two) if t.policy == "packed"] == [(0, 1), (1, 1), (0, 2), (1, 2)]
    assert [(t.trace, t.seed) for t in tasks(two._replace(anew=True)) if t.policy == "packed"] == [(0, 1), (1, 2)]
    assert two.plan(ReplayTask("packed", 1, trace=1)).trace.name == "other"


def test_placebo_runs_differ_from_the_claims_by_one_thing() -> None:
    ours = SMALL.plan(ReplayTask("pal-fit", 1))
    mixed = SMALL.plan(ReplayTask("pal-fit", 1, scores=SHUFFLED))
    assert mixed.trace == ours.trace and mixed.hardware.true == ours.hardware.true
    believed, true = ([x for row in t["A"] for x in row] for t in (mixed.hardware.believed, mixed.hardware.true))
    assert believed != true and sorted(believed) == sorted(true)
    for sensitivity, table in mixed.hardware.believed.items():  # whole GPUs change places, not single scores
        there = [x for row in ours.hardware.true[sensitivity] for x in row]
        here = [x for row in table for x in row]
        assert all(there[true.index(a)] == c for a, c in zip(believed, here, strict=True) if true.count(a) == 1)
    alike = SMALL.plan(ReplayTask("packed", 1, scores=IDENTICAL)).hardware
    assert {x for t in (*alike.true.values(), *alike.believed.values()) for row in t for x in row} == {1.0}


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        ("pal-fit-order", ["scores", "order", "waiting", "gathering", "rest"]),
        ("pal-fit", ["scores", "waiting", "gathering", "rest"]),
        ("class-fit", ["scores", "gathering", "rest"]),
        ("packed", []),
    ],
)
def test_a_policy_has_the_causes_of_its_levers(policy: str, names: list[str]) -> None:
    assert list(causes(SMALL._replace(policy=policy))) == names
    assert causes(SMALL._replace(policy=policy, causes=False)) == {}


def test_causes_multiply_to_the_ratio() -> None:
    e = SMALL._replace(policy="pal-fit-order", policies=("pal-fit-order",), seeds=(1,), worst=0)
    study = assemble(e, results(e)).study
    assert set(study.causes) == {"scores", "order", "waiting", "gathering", "rest"}
    whole = compare(study).headline.ratio["mean_jct_s"]
    assert whole is not None
    assert math.prod(ratio.mean for ratio in study.causes.values()) == pytest.approx(whole.mean)


def test_a_policy_that_knows_no_scores_gains_nothing_by_them() -> None:
    e = SMALL._replace(policy="packed-wait", policies=("packed-wait",), baseline="slurm", worst=0)
    quiet = assemble(e._replace(policy="packed"), results(e._replace(policy="packed"))).study
    assert quiet.causes["scores"].mean == 1.0 and quiet.causes["rest"].mean == pytest.approx(1.0, abs=0.2)


def test_capped_runs_for_k_and_for_a_share() -> None:
    big = SMALL._replace(cluster=parse_cluster("25x4"))
    assert {task.capped for task in tasks(big)} == {0, 1, 3}
    assert {task.capped for task in tasks(big._replace(worst=0))} == {0}
    assert {task.capped for task in tasks(big._replace(policy="packed", policies=("packed",)))} == {0}


def test_sweeps_run_only_what_they_need() -> None:
    swept = tasks(SMALL._replace(worst=0, sweeps=("load", "move-cost"), seeds=(1,)))
    assert {task.load for task in swept} == set(LOADS)
    assert {task.move_cost_s for task in swept} == {None, *MOVE_COSTS_S}
    assert {task.policy for task in swept if task.move_cost_s is not None} == {"pal-fit"}, "packed never moves"
    assert len(swept) == len(set(swept))


def test_all_policies_of_a_seed_meet_the_same() -> None:
    ours, theirs = (SMALL.plan(ReplayTask(name, 2)) for name in ("packed", "pal-fit"))
    assert ours._replace(policy="") == theirs._replace(policy="")
    other = SMALL.plan(ReplayTask("packed", 3))
    assert other.trace != ours.trace and other.hardware != ours.hardware


def test_a_task_changes_what_it_says() -> None:
    plain = SMALL.plan(ReplayTask("pal-fit", 1))
    slowest = max(x for row in plain.hardware.true["A"] for x in row)
    capped = SMALL.plan(ReplayTask("pal-fit", 1, capped=1)).hardware.true["A"]
    assert slowest > 1.4 and max(x for row in capped for x in row) < slowest
    assert SMALL.plan(ReplayTask("pal-fit", 1, move_cost_s=7.0)).settings.move_cost_s == 7.0
    dense = SMALL.plan(ReplayTask("pal-fit", 1, load=2.0)).trace
    assert dense.jobs[-1].submit_s < plain.trace.jobs[-1].submit_s
    assert plain.background is None


def test_background_differs_by_seed_and_goes_on_for_ever() -> None:
    busy = SMALL._replace(background_per_h=5.0)

    def first(seed: int, load: float = 1.0) -> list[float]:
        made = busy.plan(ReplayTask("packed", seed, load=load)).background
        assert made is not None
        stream = made()
        return [next(stream).submit_s for _ in range(len(TRACE.jobs) * 2)]

    assert first(1) == first(1)
    gaps = [[b - a for a, b in pairwise(times)] for times in (first(1), first(2))]
    assert gaps[0] != gaps[1]


def test_beliefs_differ_from_the_truth_only_when_asked() -> None:
    exact = SMALL.machine(1)
    assert exact.believed is exact.true
    noisy = SMALL._replace(scores=Scores(noise_sd=0.05)).machine(1)
    assert noisy.true == exact.true and noisy.believed != exact.true


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policies": ("packed", "best")}, "policy 'best' is not one of slurm, packed"),
        ({"baseline": "worst"}, "policy 'worst'"),
        ({"queue": "lifo"}, "queue 'lifo' is not one of fifo"),
        ({"sweeps": ("seed",)}, "sweep 'seed' is not one of load, move-cost"),
        ({"worst": 17}, r"worst 17: must be in 0\.\.16"),
    ],
)
def test_what_cannot_be_run_is_told_before(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        SMALL._replace(**changes).check()  # type: ignore[arg-type]


def test_a_good_experiment_passes() -> None:
    SMALL.check()


# -- running --------------------------------------------------------------------------------


def test_the_number_of_processes_changes_nothing() -> None:
    one, two = results(SMALL), results(SMALL, 2)
    assert list(one) == list(two) == tasks(SMALL)
    assert one == two


def test_progress_reaches_the_total() -> None:
    for workers in (1, 2):
        seen: list[int] = []
        done = list(run(SMALL._replace(worst=0, causes=False), workers, seen.append))
        assert seen == sorted(seen) and seen[-1] <= len(done) * len(TRACE.jobs) == 160
        # Processes are looked at now and then, the last time perhaps before the last job.
        assert workers > 1 or seen[-1] == 160


def test_the_caller_may_stop_early() -> None:
    with closing(run(SMALL, 2)) as finished:
        task, replay = next(finished)
    assert replay.complete and replay.policy == task.policy


def test_an_error_in_a_process_is_one_line() -> None:
    trace = Trace("t", (job("1", 99), job("2")))
    with pytest.raises(PalError) as caught:
        list(run(SMALL._replace(traces=(trace,), worst=0), 2))
    assert "99" in str(caught.value)
    assert caught.value.__cause__ is None, "the worker's traceback is not for users"


# -- what it comes to -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def done() -> Results:
    return results(SMALL)


def test_the_study_has_the_main_runs_and_the_share_of_the_worst(done: Results) -> None:
    found = assemble(SMALL, done, ("Mind the gap.",), "pal simulate")
    assert [(run.policy, run.seed) for run in found.study.runs] == [(t.policy, t.seed) for t in tasks(SMALL)[:4]]
    assert [w.k for w in found.worst] == [1]
    assert found.study.worst == found.worst[0]
    assert found.worst[0].total.n == 2
    assert "Mind the gap." in found.study.caveats
    assert dict(found.study.charged)["move"].startswith("180 s")


def test_every_assumption_is_told() -> None:
    changed = SMALL._replace(
        background_per_h=3.0, settings=ReplaySettings(move_cost_s=77.0, warmup_s=5.0, backfill_depth=0)
    )
    told = dict(assemble(changed, {}).study.charged)
    assert told["move"].startswith("77 s") and told["warm-up"].startswith("5 s")
    assert told["backfill"] == "none" and told["background"].startswith("3 jobs")
    assert "10 % of the GPUs slower by 1.5" in told["profile"]


def test_sweeps_have_a_point_for_each_setting() -> None:
    swept = SMALL._replace(worst=0, sweeps=("load", "move-cost"), seeds=(1,))
    study = assemble(swept, results(swept)).study
    assert study.load is not None and study.move_cost is not None
    assert [x for x, _ in study.load.lines["pal-fit"]] == list(LOADS)
    assert [x for x, _ in study.move_cost.lines["pal-fit"]] == list(MOVE_COSTS_S)


def test_what_is_incomplete_is_left_out(done: Results) -> None:
    part = {
        task: replay for task, replay in done.items() if task in (ReplayTask("packed", 1), ReplayTask("pal-fit", 1))
    }
    found = assemble(SMALL, part)
    assert found.worst == ()
    told = body(found, {"packed": "packed", "default": "pal-fit"})
    assert told["policies"]["default"]["runs"] == 1


def test_the_answer_for_other_programs(done: Results) -> None:
    found = assemble(SMALL, done)
    told = answer(found.study.runs, {"packed-sticky": "packed", "default": "pal-fit"})
    assert list(told) == ["packed-sticky", "default"]
    assert set(told["default"]) == {
        "avg_jct_s", "p99_jct_s", "makespan_s", "utilisation", "queue_s", "moves", "ratio_to_first", "runs",
    }  # fmt: skip
    assert told["packed-sticky"]["ratio_to_first"] == 1.0
    runs = {(r.policy, r.seed): sum(o.jct_s for o in r.outcomes) / len(r.outcomes) for r in found.study.runs}
    ratio = sum(runs["pal-fit", seed] / runs["packed", seed] for seed in (1, 2)) / 2
    assert told["default"]["ratio_to_first"] == pytest.approx(ratio)
    assert told["default"]["avg_jct_s"] == pytest.approx((runs["pal-fit", 1] + runs["pal-fit", 2]) / 2)


def test_the_body_is_json_and_holds_every_bad_row(done: Results) -> None:
    bad = tuple(BadRow(k, "no number") for k in range(300))
    told = body(
        assemble(SMALL._replace(traces=(TRACE._replace(bad=bad),)), done), {"packed": "packed"}, (job("w", 99),)
    )
    assert told["schema"] == "pal.simulate/1"
    assert len(told["trace"]["bad"]) == 300
    assert told["trace"]["too_wide"] == [{"job_id": "w", "gpus": 99}]
    assert [w["k"] for w in told["worst_gpus_by_k"]] == [1]
    json.dumps(told, allow_nan=False)


def test_job_tables_of_several_traces(done: Results) -> None:
    run = done[ReplayTask("packed", 1)]
    made = job_tables([run, run._replace(trace=1), run._replace(trace=1, seed=2)], {"p": "packed"})
    assert set(made) == {"p.csv", "p.trace2.csv", "p.trace2.seed2.csv"}


def test_job_tables(done: Results) -> None:
    made = job_tables(list(assemble(SMALL, done).study.runs), {"packed-sticky": "packed", "default": "pal-fit"})
    assert set(made) == {"packed-sticky.csv", "packed-sticky.seed2.csv", "default.csv", "default.seed2.csv"}
    lines = made["default.csv"].splitlines()
    assert lines[0] == "job_id,submit_s,start_s,finish_s,gpus"
    assert len(lines) == 1 + len(TRACE.jobs)
    whole = done[ReplayTask("packed", 1)]
    exact = whole._replace(outcomes=(whole.outcomes[0]._replace(submit_s=38.0, start_s=360.0, finish_s=1000.12345),))
    assert job_table(exact).splitlines()[1].split(",")[1:4] == ["38", "360", "1000.123"]


# -- names ----------------------------------------------------------------------------------


def test_names_may_be_joined_by_commas_and_have_aliases() -> None:
    found = resolved(["packed-sticky,pal", "default"], POLICIES, POLICY_ALIASES)
    assert found == {"packed-sticky": "packed", "pal": "pal", "default": "tick"}


@pytest.mark.parametrize("name", ["", "Packed", "packed,", "best"])
def test_unknown_names_are_told_with_what_is_known(name: str) -> None:
    with pytest.raises(UsageError, match=r"is not one of slurm, .*default"):
        resolved([name], POLICIES, POLICY_ALIASES)


def test_every_alias_has_a_policy() -> None:
    assert set(POLICY_ALIASES.values()) <= set(POLICIES)
