# SPDX-License-Identifier: MIT
"""One's own site as a virtual cluster, its history on it, and what is said of the outcome."""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError, UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.report.simulation.site_gain import (
    Findings,
    as_insensitive,
    due_to_slow,
    five_lines,
    gpu_hours_text,
    studied,
)
from slurm_pal.report.simulation.study import Study, compare
from slurm_pal.simulate import metrics
from slurm_pal.simulate.profiles import Drawn, Fixed
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.site_history import MovableJobs, Tally, classed, fit, parse_mix
from slurm_pal.simulate.site_runs import BASELINE, SUBMIT, TICK, WAYS, SiteRuns, SiteTask, capped_tasks, main_tasks
from slurm_pal.simulate.statistics import paired, verdict
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.simulate.virtual_site import NodePart, VirtualSite, place_name, scored, site_of
from slurm_pal.slurm import accounting
from slurm_pal.slurm.client import Overview
from slurm_pal.twin.run import Twin

from ...doubles.trials import trials

PENALTY = 1.7


def node(name: str, *types: str, state: str = "IDLE") -> Node:
    """A node with one GPU per type ("" for an untyped one)."""
    return Node(name, frozenset(state.split("+")), types, 0, 16, 0, 64000, 0, frozenset(), ())


def partition(name: str, *nodes: str, default: bool = False, up: bool = True, **limits: int) -> Partition:
    return Partition(name, default, up, nodes, **limits)


def overview(nodes: Sequence[Node], *partitions: Partition) -> Overview:
    return Overview(tuple(nodes), (), partitions, {})


def job(gpus: int = 1, **changes: object) -> TraceJob:
    return TraceJob("1", 0.0, GpuShape(gpus), 3600.0, "A")._replace(**changes)  # type: ignore[arg-type]


def trace(*jobs: TraceJob) -> Trace:
    return Trace("history", tuple(one._replace(job_id=str(k)) for k, one in enumerate(jobs)))


@pytest.fixture
def mixed() -> VirtualSite:
    """Two types, a node with both, a CPU node, a down node, overlapping partitions."""
    return site_of(
        overview(
            [
                node("c0"),
                node("a0", "a100", "a100", "a100", "a100"),
                node("a1", "a100", "a100", "a100", "a100", state="DOWN+DRAIN"),
                node("v0", "v100", "v100"),
                node("m0", "a100", "v100", "a100"),
                node("f0", "a100", state="FUTURE"),
                node("o0", "a100"),
            ],
            partition("cpu", "c0"),
            partition("all", "c0", "a0", "a1", "v0", "m0", "f0", default=True, max_time_s=86400, default_time_s=7200),
            partition("big", "a0", "a1", up=False, max_time_s=1000),
        )
    )


# -- the cluster --------------------------------------------------------------------------


def test_a_node_of_two_types_is_two_nodes_and_indexes_stay_slurms(mixed: VirtualSite) -> None:
    assert mixed.cluster.names == ("a0", "a1", "v0", "m0:a100", "m0:v100")
    assert mixed.cluster.node_gpus == (4, 4, 2, 2, 1)
    assert mixed.parts[3:] == (NodePart("m0", "a100", (0, 2)), NodePart("m0", "v100", (1,)))
    assert mixed.gpus()[-3:] == [("m0", 0), ("m0", 2), ("m0", 1)]


def test_each_partition_and_type_has_its_nodes(mixed: VirtualSite) -> None:
    assert mixed.cluster.partitions == {
        "all": (0, 1, 2, 3, 4), "all:a100": (0, 1, 3), "all:v100": (2, 4), "big": (0, 1), "big:a100": (0, 1),
        ":a100": (0, 1, 3), ":v100": (2, 4),
    }  # fmt: skip
    assert mixed.sizes("all:v100") == [2, 1] and mixed.sizes("") == [4, 4, 2, 2, 1]


def test_cpus_and_memory_are_those_of_slurms_nodes_shared_by_gpus_where_there_are_types(mixed: VirtualSite) -> None:
    assert [(size.cpus, size.memory_mib) for size in mixed.cluster.sizes] == [
        (16, 64000), (16, 64000), (16, 64000), (10, 42666), (5, 21333),
    ]  # fmt: skip
    assert mixed.rules["all"].max_time_s == 86400


def test_jobs_keep_what_they_had_of_cpus_unless_no_node_has_it_now(mixed: VirtualSite) -> None:
    had, none = (job(partition="all", cpus=cpus, memory_mib=1000) for cpus in (16, 17))
    fitted = fit(trace(had, none), mixed, PENALTY)
    assert [(one.cpus, one.memory_mib) for one in fitted.trace.jobs] == [(16, 1000), (0, 0)]
    assert [tally.jobs for why, tally in fitted.changed.items() if "CPUs or memory" in why] == [1]


def test_a_limit_above_max_time_is_cut_to_it_unless_the_job_ran_longer(mixed: VirtualSite) -> None:
    short = job(partition="big", limit_s=5000.0, ideal_s=900.0)
    longer = job(partition="big", limit_s=5000.0, ideal_s=1100.0)
    fitted = fit(trace(short, longer), mixed, PENALTY)
    assert [one.limit_s for one in fitted.trace.jobs] == [1000.0, 5000.0]


def test_gpus_that_were_seen_to_fail_are_left_out_for_everybody() -> None:
    there = overview([node("n0", "", "", ""), node("n1", "")], partition("gpu", "n0", "n1"))
    site = site_of(there, {("n0", 1), ("n1", 0), ("elsewhere", 0)})
    assert site.parts == (NodePart("n0", "", (0, 2)),) and site.cluster.node_gpus == (2,)
    assert site.notes[-1] == "Left out: 2 GPUs that were seen to fail (pal gpus -f)."
    with pytest.raises(UsageError, match="every GPU was seen to fail"):
        site_of(overview([node("n1", "")], partition("gpu", "n1")), {("n1", 0)})


def test_types_differ_by_more_than_case() -> None:
    site = site_of(overview([node("n0", "A100"), node("n1", "a100")], partition("gpu", "n0", "n1")))
    assert site.cluster.partitions[place_name("gpu", "a100")] == (0, 1)


def test_what_is_left_out_and_what_is_kept_is_said(mixed: VirtualSite) -> None:
    assert mixed.notes == (
        "Not simulated: 1 node without GPUs, 1 node in state FUTURE, 1 node in no partition.",
        "1 node with 4 GPUs (a1) start no job now (down, drained); they count as working.",
        "Partitions that are not up count as up: big.",
        "Each GPU type counts as a node of its own on 1 node (m0).",
    )


def test_nodes_that_slurm_switches_on_need_no_note() -> None:
    site = site_of(overview([node("n0", "", state="IDLE+CLOUD+POWERED_DOWN")], partition("gpu", "n0")))
    assert site.notes == () and site.cluster.n_gpus == 1


def test_untyped_gpus_have_no_places_of_their_own() -> None:
    site = site_of(overview([node("n0", "", "")], partition("gpu", "n0", "gone")))
    assert site.cluster.partitions == {"gpu": (0,)} and not site.typed and site.cluster.names == ("n0",)


@pytest.mark.parametrize(
    "found",
    [
        overview([node("c0")], partition("cpu", "c0", default=True)),
        overview([node("n0", "a100")], partition("cpu", default=True)),
        overview([node("n0", "a100", state="FUTURE")], partition("gpu", "n0")),
    ],
)
def test_a_site_without_usable_gpus_is_an_error(found: Overview) -> None:
    with pytest.raises(UsageError, match="nothing to simulate"):
        site_of(found)


@pytest.mark.parametrize(
    ("partitions", "default"),
    [
        ([partition("a", "n0", default=True), partition("b", "n0", "n1")], "a"),
        ([partition("cpu", "c0", default=True), partition("a", "n0"), partition("b", "n0", "n1")], "b"),
    ],
)
def test_the_default_partition_has_gpus(partitions: list[Partition], default: str) -> None:
    assert site_of(overview([node("c0"), node("n0", ""), node("n1", "")], *partitions)).default == default


def test_gpus_without_a_score_are_median_ones_and_counted(mixed: VirtualSite) -> None:
    known = {("A", "a0", 1): 1.3, ("B", "a0", 1): 1.1, ("C", "a0", 1): 1.0, ("A", "m0", 1): 1.4}
    found = scored(mixed, lambda c, name, index: known.get((c, name, index)))
    assert found.unscored == 12  # the GPU with a score of class A alone counts among them
    assert found.slowdown["A"][1] == 1.3 and found.slowdown["A"][-1] == 1.4
    assert sum(found.slowdown["A"]) == pytest.approx(13 + 0.3 + 0.4) and found.slowdown["B"][-1] == 1.0


# -- the history --------------------------------------------------------------------------

ANY = "wants a GPU type, but GPUs have no types here: replayed on any"
ACROSS = "needs several nodes: the locality penalty is taken off its run time, and charged by the replay"
RESHAPED = "wants nodes that do not exist now: replayed with as many GPUs on any nodes"
LIMITED = "has no time limit: its partition's DefaultTime, else MaxTime"


@pytest.mark.parametrize(
    ("wanted", "place", "reasons"),
    [
        (job(partition="big", limit_s=60.0), "big", []),
        (job(partition="gone", limit_s=60.0), "all", ["partition gone does not exist: replayed on all"]),
        (job(partition="cpu", limit_s=60.0), "all", ["partition cpu has no GPUs: replayed on all"]),
        (job(partition="all", limit_s=60.0, shape=GpuShape(1, gpu_type="V100")), "all:v100", []),
        (job(limit_s=60.0, shape=GpuShape(1, gpu_type="v100")), ":v100", []),
        (job(5, partition="big", limit_s=60.0), "big", [ACROSS]),
        (job(partition="big", limit_s=60.0, shape=GpuShape(4, 2, 2)), "big", [ACROSS]),
        (job(partition="big", limit_s=60.0, shape=GpuShape(8, 1, 8)), "big", [RESHAPED, ACROSS]),
        (job(partition="all"), "all", [LIMITED]),
        (job(partition="big"), "big", ["has no time limit and ran longer than its partition allows now: "
                                       "the replay's default limit"]),
        (job(), "", []),
    ],
)  # fmt: skip
def test_a_job_is_replayed_where_it_can_be(
    mixed: VirtualSite, wanted: TraceJob, place: str, reasons: list[str]
) -> None:
    fitted = fit(trace(wanted), mixed, PENALTY)
    assert [one.partition for one in fitted.trace.jobs] == [place]
    assert list(fitted.changed) == reasons and not fitted.left_out


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (job(9, partition="big"), "wants more GPUs than partition big has for it (8)"),
        (job(partition="big", shape=GpuShape(1, gpu_type="v100")),
         "wants GPUs of type v100, which partition big does not have"),
        (job(shape=GpuShape(1, gpu_type="h100")), "wants GPUs of type h100, which the cluster does not have"),
        (job(14), "wants more GPUs than the cluster has for it (13)"),
        (job(partition="all", shape=GpuShape(4, gpu_type="v100")), "wants more GPUs than partition all has for it (3)"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_be_replayed_is_left_out_with_its_reason(
    mixed: VirtualSite, wanted: TraceJob, reason: str
) -> None:
    fitted = fit(trace(wanted, job(partition="big", limit_s=60.0)), mixed, PENALTY)
    lost = Tally(1, wanted.shape.total * 1.0)
    assert fitted.left_out == {reason: lost} == {reason: fitted.lost}
    assert fitted.trace.skipped == {reason: 1} and len(fitted.trace.jobs) == 1
    assert fitted.total == Tally(2, lost.gpu_h + 1.0)


def test_a_type_is_ignored_where_there_are_none() -> None:
    site = site_of(overview([node("n0", "", "")], partition("gpu", "n0")))
    fitted = fit(trace(job(partition="gpu", limit_s=9.0, shape=GpuShape(2, 1, 2, "a100"))), site, PENALTY)
    assert fitted.trace.jobs[0].shape == GpuShape(2, 1, 2) and list(fitted.changed) == [ANY]


def test_limits_of_partitions(mixed: VirtualSite) -> None:
    fitted = fit(trace(job(partition="all"), job(partition="big", ideal_s=900.0), job(limit_s=5.0)), mixed, PENALTY)
    assert [one.limit_s for one in fitted.trace.jobs] == [7200, 1000, 5.0]


def test_a_job_across_nodes_runs_as_long_as_it_did() -> None:
    """Its penalty is in the history already, and must not be charged twice."""
    site = site_of(overview([node("n0", "", ""), node("n1", "", "")], partition("gpu", "n0", "n1")))
    history = trace(job(limit_s=4000.0, shape=GpuShape(4, 2, 2)), job(4, limit_s=4000.0, locality_penalty=2.0))
    for penalty, expected in ((PENALTY, ["COMPLETED", "COMPLETED"]), (None, ["TIMEOUT", "TIMEOUT"])):
        runs = runs_of(site, fit(history, site, penalty).trace, {})
        outcomes = runs.run(SiteTask(BASELINE, 1)).outcomes
        assert [o.end for o in outcomes] == expected
        if penalty:
            assert [o.finish_s - o.start_s for o in outcomes] == pytest.approx([3600.0, 3600.0], abs=1.0)


TYPES = st.sampled_from(["", "a", "b"])
NODES = st.lists(st.lists(TYPES, max_size=4), min_size=1, max_size=4)
SHAPES = st.one_of(
    st.builds(lambda n, kind: GpuShape(n, gpu_type=kind), st.integers(1, 9), TYPES),
    st.builds(lambda n, k, kind: GpuShape(n * k, n, k, kind), st.integers(1, 4), st.integers(1, 5), TYPES),
)


@trials(40)
@given(
    NODES,
    st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=3),
    st.lists(st.tuples(SHAPES, st.sampled_from(["", "p0", "p1", "p2", "gone"])), max_size=6),
    st.sampled_from(list(WAYS)),
)
def test_whatever_was_fitted_can_be_replayed(
    gpus: list[list[str]], members: list[set[int]], wanted: list[tuple[GpuShape, str]], way: str
) -> None:
    nodes = [node(f"n{k}", *types) for k, types in enumerate(gpus)]
    partitions = [partition(f"p{k}", *(f"n{m}" for m in sorted(own))) for k, own in enumerate(members)]
    try:
        site = site_of(overview(nodes, *partitions))
    except UsageError:
        assert not any(nodes[m].n_gpus for own in members for m in own if m < len(nodes))
        return
    history = trace(*(job(shape=shape, partition=name) for shape, name in wanted))
    fitted = fit(history, site, PENALTY)
    assert len(fitted.trace.jobs) + fitted.lost.jobs == len(wanted) == fitted.total.jobs
    outcomes = runs_of(site, fitted.trace, {}).run(SiteTask(way, 1)).outcomes
    assert sorted(o.job_id for o in outcomes) == sorted(one.job_id for one in fitted.trace.jobs)
    kinds = {name: part.gpu_type for name, part in zip(site.cluster.names, site.parts, strict=True)}
    by_id = {one.job_id: one for one in history.jobs}
    for outcome in outcomes:
        kind = by_id[outcome.job_id].shape.gpu_type
        assert not (kind and site.typed) or {kinds[name] for name in outcome.nodes} == {kind}


# -- classes ------------------------------------------------------------------------------


def test_a_mix_is_drawn_for_unknown_jobs_only() -> None:
    history = trace(*([job()] * 50), *([job(sensitivity="?")] * 1000))
    mix = parse_mix("A=.5, B=.3,C=.2")
    first, again, other = (classed(history, mix, seed).jobs for seed in (1, 1, 2))
    assert first == again != other
    assert {one.sensitivity for one in first[:50]} == {"A"}
    counts = {c: sum(one.sensitivity == c for one in first[50:]) for c in "ABC?"}
    assert counts["?"] == 0 and all(abs(counts[c] / 1000 - share) < 0.06 for c, share in mix.items())


@pytest.mark.parametrize("text", ["", "A", "A=1,A=0", "D=1", "A=.5,B=.4", "A=2,B=-1", "A=nan", "A=.5;B=.5"])
def test_a_mix_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match="class mix"):
        parse_mix(text)


# -- the runs -----------------------------------------------------------------------------


def test_a_placebo_run_differs_by_one_thing(plain: VirtualSite) -> None:
    config = Config()
    config.set("rebalance", "order", "shortest", "test")
    runs = runs_of(plain, quiet(3), {("n0", 0): 1.5}, program=Twin(config), jitter_s=600.0, causes=True)
    assert [task.without for task in main_tasks(runs, (1,)) if task.without] == [frozenset({"order"})] * 2
    true, mixed, alike = (runs.plan(SiteTask(TICK, 1, scores=scores)) for scores in ("true", "shuffled", "identical"))
    assert true.hardware.believed == true.hardware.true == mixed.hardware.true != mixed.hardware.believed
    assert mixed._replace(hardware=true.hardware) == true == alike._replace(hardware=true.hardware)
    assert {x for line in alike.hardware.true["A"] for x in line} == {1.0}
    assert runs.plan(SiteTask(TICK, 1, without=frozenset({"order"}))).without == {"order"}


def test_only_named_jobs_may_be_moved(mixed: VirtualSite) -> None:
    jobs = (job(partition="big", qos="low"), job(partition="gone"), job())

    def found(movable: MovableJobs) -> list[bool]:
        return [one.movable for one in fit(trace(*jobs), mixed, PENALTY, movable).trace.jobs]

    assert found(MovableJobs()) == [False] * 3 and found(MovableJobs(True)) == [True] * 3
    assert found(MovableJobs(qos=frozenset({"low"}))) == [True, False, False]
    assert found(MovableJobs(partitions=frozenset({mixed.default}))) == [mixed.default == "big", True, True]


def runs_of(site: VirtualSite, history: Trace, slow: dict[tuple[str, int], float], **changes: object) -> SiteRuns:
    slowdown = scored(site, lambda c, name, index: slow.get((name, index), 1.0) if c == "A" else 1.0).slowdown
    config = Config()
    config.set("rebalance", "interval_s", 300.0, "test")
    made = SiteRuns(
        history, site.cluster, Fixed(slowdown, "test"), ReplaySettings(), Twin(config), jitter_s=0.0, causes=False
    )
    return made._replace(**changes)  # type: ignore[arg-type]


@pytest.fixture
def plain() -> VirtualSite:
    nodes = [node(f"n{k}", "", "", "", "") for k in range(4)]
    return site_of(overview(nodes, partition("gpu", *(n.name for n in nodes), default=True)))


@pytest.fixture(autouse=True)
def short_weeks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim needs six weeks, and what a replay costs grows with the hours and the jobs in them."""
    monkeypatch.setattr(metrics, "WEEK_S", 40_000.0)
    monkeypatch.setattr(metrics, "LEAST_JOBS", 4)


def quiet(jobs: int = 34, sensitivity: str = "A") -> Trace:
    """A job at a time: where it starts is all that matters. Seven of our short weeks of them."""
    return trace(*(job(submit_s=8000.0 * k, sensitivity=sensitivity, user=f"u{k}") for k in range(jobs)))


def test_the_ways_are_the_program_s_policies(plain: VirtualSite) -> None:
    runs = runs_of(plain, quiet(), {})
    plans = {way: runs.plan(SiteTask(way, 3)) for way in WAYS}
    assert {way: p.policy for way, p in plans.items()} == {BASELINE: "slurm-twin", SUBMIT: "palsub", TICK: "tick"}
    assert {p.seed for p in plans.values()} == {3}
    assert runs.run(SiteTask(SUBMIT, 3)).policy == SUBMIT


def test_all_ways_of_one_seed_meet_the_same_submissions(plain: VirtualSite) -> None:
    runs = runs_of(plain, quiet(), {}, jitter_s=600.0, mix={"A": 0.5, "C": 0.5})
    first, second, other = (runs.plan(SiteTask(way, seed)).trace for way, seed in ((BASELINE, 1), (TICK, 1), (TICK, 2)))
    assert first == second != other


def test_slow_gpus_are_capped_and_unknown_jobs_become_c(plain: VirtualSite) -> None:
    runs = runs_of(plain, quiet(sensitivity="?"), {("n0", 0): 1.5, ("n2", 3): 1.3, ("n2", 2): 1.05})
    assert runs.slow_gpus(1) == 2 and runs.unknown == 34
    capped = runs.plan(SiteTask(TICK, 1, capped=True)).hardware.true["A"]
    assert capped[0][0] == capped[2][3] == 1.0 and capped[2][2] == 1.05
    assert {one.sensitivity for one in runs.plan(SiteTask(TICK, 1, unknown="C")).trace.jobs} == {"C"}
    assert {one.sensitivity for one in runs.plan(SiteTask(TICK, 1)).trace.jobs} == {"?"}


def test_tasks_only_ask_what_can_matter(plain: VirtualSite) -> None:
    known = runs_of(plain, quiet(), {("n0", 0): 1.5})
    unknown = runs_of(plain, quiet(sensitivity="?"), {})
    compared = [SiteTask(way, seed) for seed in (1, 2) for way in WAYS]
    assert main_tasks(known, (1, 2)) == compared
    tasks = main_tasks(known._replace(causes=True), (1, 2))
    assert tasks[:6] == compared, "pairs are complete first"
    assert [task[:2] + task[4:5] for task in tasks[6:9]] == [
        (TICK, 1, "shuffled"), (TICK, 1, "identical"), (BASELINE, 1, "identical"),
    ]  # fmt: skip
    assert {task.unknown for task in main_tasks(unknown, (1,))} == {"", "C"}
    assert {task.unknown for task in main_tasks(unknown._replace(mix={"A": 1.0}), (1,))} == {""}
    assert capped_tasks(unknown, (1, 2)) == [] and len(capped_tasks(known, (1, 2))) == 4


# -- the five lines -----------------------------------------------------------------------


def found_of(site: VirtualSite, runs: SiteRuns, seeds: Sequence[int] = (1,), **changes: object) -> Findings:
    results = {task: runs.run(task) for task in main_tasks(runs, seeds)}
    base = Study((), "", "", runs.trace, cluster=site.cluster.text(), charged=(("moves", "180 s each"),))
    study = studied(runs, results, base)
    total = compare(study).headline.ratio["mean_jct_s"]
    assert total is not None
    if verdict(total) == "gain":
        capped = {task: runs.run(task) for task in capped_tasks(runs, seeds)}
        study = study._replace(worst=due_to_slow(runs.slow_gpus(1), total, capped))
    slowdown = runs.source.draw(runs.cluster, 1).slowdown["A"]
    slow = sorted(((gpu, x) for gpu, x in zip(site.gpus(), slowdown, strict=True) if x > 1.2), key=lambda p: -p[1])
    made = Findings(
        compare(study), Tally(40, 4000.0), Tally(10, 1000.0), runs.unknown, as_insensitive(results), slow, True, 1.2,
        ("scores are exact",),
    )  # fmt: skip
    return made._replace(**changes)  # type: ignore[arg-type]


def test_a_gain_that_is_all_due_to_one_slow_gpu(plain: VirtualSite) -> None:
    """Plain Slurm gives every job n0:0, the first free GPU; with another one each is faster by 1.5."""
    found = found_of(plain, runs_of(plain, quiet(), {("n0", 0): 1.5}))
    replayed, ratios, who, slow, assumed = five_lines(found)
    assert replayed == (
        "Replayed: 34 jobs, 3000 GPU-h, submitted in 73.3 h, on 16 GPUs: 4 nodes x 4. "
        "Left out: 10 jobs, 25.0 % of the history's GPU-h."
    )
    assert ratios == (
        "Mean completion time: slurm 90.0 min; palsub 60.0 min, ratio 0.67 (0.67 to 0.67); "
        "palsub+tick 60.0 min, ratio 0.67 (0.67 to 0.67). "
        "GPU time: slurm 51 GPU-h; palsub ratio 0.67 (0.67 to 0.67); palsub+tick ratio 0.67 (0.67 to 0.67)."
    )
    assert who == "Who gains (palsub+tick, completion time by class): A 0.67 (0.67 to 0.67)."
    assert slow == (
        "Slow GPUs: 1 slower than 1.2 in class A (n0:0 1.50). With median GPUs in their place the ratio would be "
        "1.00 (1.00 to 1.00), no clear gain: 100 % of the gain is due to them."
    )
    assert assumed == "Charged: moves 180 s each. Assumed: scores are exact."


def test_no_gain_is_called_no_clear_gain(plain: VirtualSite) -> None:
    _, ratios, who, slow, _ = five_lines(found_of(plain, runs_of(plain, quiet(), {})))
    assert ratios.count("no clear gain") == 4 and "no clear gain" in who
    assert slow == "Slow GPUs: none is slower than 1.2 in class A."


def test_jobs_of_unknown_class_are_shown_as_a_and_as_c(plain: VirtualSite) -> None:
    found = found_of(plain, runs_of(plain, quiet(sensitivity="?"), {("n0", 0): 1.5}))
    who = five_lines(found)[2]
    assert "unknown (as A) 0.67" in who
    assert "34 of 34 jobs are of unknown class and counted as A: an upper bound. All of them as C: palsub 1.00" in who


def test_assumed_slow_gpus_have_no_names_and_many_are_not_all_named(plain: VirtualSite) -> None:
    slow = {(f"n{n}", k): 1.3 for n in (1, 2) for k in range(4)}
    found = found_of(plain, runs_of(plain, quiet(), slow))
    assert "n1:0 1.30" in five_lines(found)[3] and "and 2 more). There is no clear gain" in five_lines(found)[3]
    assert "8 slower than 1.2 in class A (assumed)." in five_lines(found._replace(named=False))[3]


def test_a_drawn_profile_differs_by_seed(plain: VirtualSite) -> None:
    runs = runs_of(plain, quiet(), {}, source=Drawn())
    assert runs.machine(1).true != runs.machine(2).true and runs.machine(1).true == runs.machine(1).true


def test_capped_runs_without_a_pair_say_nothing(plain: VirtualSite) -> None:
    runs = runs_of(plain, quiet(), {("n0", 0): 1.5})
    results = {task: runs.run(task) for task in main_tasks(runs, (1, 2))}
    total = paired(results.values(), TICK, BASELINE, "mean_jct_s")
    assert total is not None and due_to_slow(1, total, results) is None


@pytest.mark.parametrize(("gpu_h", "text"), [(0.0123, "0.0123 GPU-h"), (45.04, "45 GPU-h"), (12345.6, "12346 GPU-h")])
def test_gpu_hours(gpu_h: float, text: str) -> None:
    assert gpu_hours_text(gpu_h) == text


# -- sacct --------------------------------------------------------------------------------


def script(folder: Path, body: str) -> list[str]:
    path = folder / "sacct"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(stat.S_IRWXU)
    return [str(path)]


def test_the_command_is_the_documented_one() -> None:
    text = Path(__file__, "../../../../docs/traces.md").resolve().read_text(encoding="utf-8")
    documented = re.search(r"^SLURM_TIME_FORMAT=%s sacct .*$", text, re.MULTILINE)
    assert documented is not None and documented.group() == accounting.export_command("2026-01-01")
    assert shlex.split(accounting.export_command("now-7days"))[1:-2] == accounting.argv("now-7days")


def test_rows_come_while_sacct_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script waits for what the reader does with its first row; the user's own formats do not reach it."""
    monkeypatch.setenv("SACCT_FORMAT", "JobID")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    go = tmp_path / "go"
    os.mkfifo(go)
    command = script(tmp_path, f'echo "$SLURM_TIME_FORMAT$SACCT_FORMAT"; cat {go}')
    with accounting.history(command) as rows:
        assert rows.readline() == b"%s\n"
        go.write_text("second")
        assert rows.read() == b"second"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("echo 'sacct: error: no connection' >&2; echo 'sacct: error: Problem talking to the database' >&2; exit 1",
         "sacct failed: Problem talking to the database"),
        ("exit 3", "sacct failed: exit code 3"),
        ("kill -9 $$", "sacct was ended by signal 9"),
    ],
)  # fmt: skip
def test_a_sacct_that_fails(tmp_path: Path, body: str, error: str) -> None:
    with pytest.raises(SlurmError, match=f"{error}$"), accounting.history(script(tmp_path, body)) as rows:
        if not rows.read() and "kill" not in body:
            raise UsageError("no header")  # a mere consequence


def test_a_sacct_that_is_not_there() -> None:
    with pytest.raises(SlurmError, match=r"no-such-sacct is not in PATH"), accounting.history(["no-such-sacct"]):
        pass


def test_a_sacct_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    command = script(tmp_path, f"echo $$ > {tmp_path}/pid; echo header; exec sleep 600")
    late = r"had not ended after 0.3 s: ask for fewer days"
    with pytest.raises(SlurmError, match=late), accounting.history(command, timeout_s=0.3) as rows:
        assert rows.read() == b"header\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_readers_error_stands_when_sacct_is_well(tmp_path: Path) -> None:
    command = script(tmp_path, "trap '' PIPE; echo other header; sleep 0.1; echo row 2>/dev/null; exit 0")
    with pytest.raises(UsageError, match="not an export"), accounting.history(command) as rows:
        rows.readline()
        raise UsageError("not an export")


def test_an_interruption_ends_sacct(tmp_path: Path) -> None:
    command = script(tmp_path, f"echo $$ > {tmp_path}/pid; echo header; exec sleep 600")
    with pytest.raises(KeyboardInterrupt), accounting.history(command) as rows:
        rows.readline()
        raise KeyboardInterrupt
    deadline_s = time.monotonic() + 10
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline_s:
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGCONT)
