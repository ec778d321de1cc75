# SPDX-License-Identifier: MIT
"""Which nodes a sweep takes and why not the others; the argv and script of a job."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.cluster import Node
from slurm_pal.base.errors import UsageError
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.node.benchmarks import select
from slurm_pal.profiling.sweep import plan as planning
from slurm_pal.profiling.sweep.plan import SweepPlan, SweepRequest, choose, default_parallel, duration_s, sample_size
from slurm_pal.profiling.sweep.sweep_job import JobOptions, job_name, output_path, script, submit_argv
from slurm_pal.profiling.sweep.urgency import CHANGED, CONFIRM, LATE, LEFT, Urgency

NOW_S = 1_800_000_000.0
DAY_S = 86400.0


def node(name: str, states: str = "IDLE", gpus: int = 4, gpus_used: int = 0, cpus_used: int = 0) -> Node:
    return Node(
        name, frozenset(states.split("+")), ("",) * gpus, gpus_used, 16, cpus_used, 64000, 0, frozenset(), ("gpu",)
    )


def planned(nodes: list[Node], request: SweepRequest | None = None, newest: dict[str, float] | None = None,
            reserved: dict[str, tuple[str, ...]] | None = None, node_s: float = 900.0,
            urgent: dict[str, Urgency] | None = None) -> SweepPlan:  # fmt: skip
    return choose(nodes, newest or {}, reserved or {}, request or SweepRequest(), NOW_S, lambda gpus: node_s, urgent)


def names(plan: SweepPlan) -> list[str]:
    return [c.node for c in plan.chosen]


@pytest.mark.parametrize(
    "states",
    ["IDLE+DRAIN", "IDLE+MAINTENANCE", "IDLE+RESERVED", "IDLE+PLANNED", "IDLE+COMPLETING", "IDLE+POWERED_DOWN",
     "IDLE+POWERING_UP", "IDLE+NOT_RESPONDING", "IDLE+CLOUD", "MIXED", "ALLOCATED", "DOWN", "UNKNOWN", "IDLE+UNKNOWN"],
)  # fmt: skip
def test_only_exactly_idle_nodes_are_taken(states: str) -> None:
    plan = planned([node("n0"), node("n1", states)])
    assert names(plan) == ["n0"] and plan.skipped["n1"].startswith("not idle (")


@pytest.mark.parametrize("text", ["9" * 400 + "d", "1." + "9" * 400 + "d", "\N{ARABIC-INDIC DIGIT THREE}d"])
def test_numbers_that_nobody_means_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be a number with a unit"):
        duration_s(text)
    with pytest.raises(UsageError, match="must be a number of nodes") as refused:
        sample_size("9" * 5000, 8)
    assert len(str(refused.value)) < 200
    assert duration_s("999999999999w") > 0 and sample_size("12.5%", 8) == 1


def test_a_node_that_was_never_measured_is_due_whatever_its_age_would_be() -> None:
    assert names(planned([node("a")], SweepRequest(since_s=duration_s("9999w")))) == ["a"]


def test_reasons_of_nodes_left_alone() -> None:
    nodes = [node("a", gpus=0), node("b"), node("c"), node("d", cpus_used=1), node("e")]
    plan = planned(
        nodes, SweepRequest(since_s=30 * DAY_S), {"c": NOW_S - DAY_S, "e": NOW_S - 31 * DAY_S}, {"maint": ("b",)}
    )
    assert names(plan) == ["e"]
    assert plan.skipped == {
        "a": "has no GPU", "b": "in reservation maint", "c": "measured less than 30 d ago", "d": "in use",
    }  # fmt: skip


def test_our_own_reservation_is_used_and_only_it() -> None:
    nodes = [node("a", "IDLE+RESERVED"), node("b"), node("c", "IDLE+RESERVED+DRAIN")]
    plan = planned(nodes, SweepRequest(reservation="sweep"), reserved={"sweep": ("a", "c")})
    assert names(plan) == ["a"] and plan.skipped["b"] == "not in reservation sweep"


def test_a_partition_restricts_the_nodes() -> None:
    plan = planned([node("a"), node("b")._replace(partitions=("cpu",))], SweepRequest(partition="gpu"))
    assert names(plan) == ["a"] and plan.skipped == {"b": "not in partition gpu"}


def test_stalest_first_and_never_measured_before_all() -> None:
    plan = planned(
        [node("a"), node("b"), node("c"), node("d")], newest={"a": NOW_S - 5, "b": NOW_S - 500, "d": NOW_S - 50}
    )
    assert names(plan) == ["c", "b", "d", "a"]


def test_nodes_by_name_and_an_unknown_one_is_named() -> None:
    assert names(planned([node("a"), node("b")], SweepRequest(nodes=("b",)))) == ["b"]
    with pytest.raises(UsageError, match="no node zz, yy"):
        planned([node("a")], SweepRequest(nodes=("a", "zz", "yy")))


def test_limits_take_the_stalest_and_say_what_they_left() -> None:
    nodes = [node(f"n{i}") for i in range(4)]
    plan = planned(nodes, SweepRequest(max_nodes=3, budget_gpu_h=2.5))  # 900 s x 4 GPUs = 1 GPU-hour
    assert names(plan) == ["n0", "n1"] and plan.gpu_hours == pytest.approx(2.0)
    assert set(plan.skipped.values()) == {"over the budget of 2.5 GPU-hours"}
    plan = planned(nodes, SweepRequest(max_nodes=1))
    assert plan.skipped["n3"] == "over --max-nodes 1"


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.sampled_from(["IDLE", "MIXED", "IDLE+DRAIN"]), st.floats(0, NOW_S)), max_size=30
    ),
    st.floats(0, 20),
    st.integers(1, 30),
    st.sampled_from(["", "3", "40%"]),
)
def test_every_node_is_chosen_or_has_a_reason(
    rows: list[tuple[int, str, float]], budget: float, most: int, sample: str
) -> None:
    nodes = [node(f"n{i}", states, gpus) for i, (gpus, states, _) in enumerate(rows)]
    newest = {f"n{i}": measured for i, (_, _, measured) in enumerate(rows)}
    request = SweepRequest(budget_gpu_h=budget, max_nodes=most, sample=sample, seed=4)
    plan = planned(nodes, request, newest)
    assert {*names(plan), *plan.skipped} == {n.name for n in nodes} and not set(names(plan)) & set(plan.skipped)
    assert plan.gpu_hours <= budget + 1e-9 and len(plan.chosen) <= most
    ages = [c.measured_s for c in plan.chosen]
    assert ages == sorted(ages)
    assert plan == planned(nodes, request, newest)  # the same seed draws the same sample
    if sample == "3":
        assert len(plan.chosen) <= 3


def test_a_sample_depends_on_its_seed() -> None:
    nodes = [node(f"n{i}") for i in range(40)]
    drawn = {tuple(sorted(names(planned(nodes, SweepRequest(sample="25%", seed=seed))))) for seed in range(5)}
    assert len(drawn) == 5 and {len(d) for d in drawn} == {10}


@pytest.mark.parametrize(("text", "size"), [("3", 3), ("99", 50), ("10%", 5), ("1%", 1), ("0.5%", 1), ("100%", 50)])
def test_sample_sizes(text: str, size: int) -> None:
    assert sample_size(text, 50) == size


@pytest.mark.parametrize("text", ["0", "0%", "-1", "101%", "x", "5 %", "%", "1e2"])
def test_samples_that_mean_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="--sample"):
        sample_size(text, 50)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("45m", 2700), ("12h", 43200), ("1.5d", 1.5 * DAY_S), ("2w", 14 * DAY_S)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "d", "-5d", "5 days", "1d12h"])
def test_durations_that_mean_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="duration"):
        duration_s(text)


@pytest.mark.parametrize(("nodes", "parallel"), [(0, 1), (1, 1), (8, 1), (40, 2), (200, 10), (10_000, 16)])
def test_default_parallel(nodes: int, parallel: int) -> None:
    assert default_parallel(nodes) == parallel


def test_the_estimate_is_near_two_minutes_on_real_devices() -> None:
    assert 90.0 < planning.node_seconds(select(""), 1.0, 8) < 150.0
    assert planning.node_seconds(select(""), 1.0, 8, solo=True) > 4 * planning.node_seconds(select(""), 1.0, 8)


# -- the job ----------------------------------------------------------------------

OPTIONS = JobOptions("s1", "c", "/state/sweeps/s1", "/spool", "/usr/bin/python3", Setting("emu", "/lab/gpus.json", 7))


def test_the_argv_is_the_one_of_the_method() -> None:
    assert submit_argv(OPTIONS, "n3", 4) == [
        "-N1", "-w", "n3", "--exclusive", "--gres=gpu:4", "--mem=0", "-t", "00:10:00", "-J", "pal-profile:s1",
        "--no-requeue", "--nice=10000", "--comment=pal-profile", "--export=ALL", "--chdir=/",
        "-o", "/state/sweeps/s1/n3.out", "--signal=B:TERM@60",
    ]  # fmt: skip


def test_site_options_are_added_when_set() -> None:
    options = OPTIONS._replace(partition="low", account="ops", qos="scavenge", reservation="maint", nice=5)
    assert submit_argv(options, "n3", 8)[-5:] == [
        "--signal=B:TERM@60", "--partition=low", "--account=ops", "--qos=scavenge", "--reservation=maint",
    ]  # fmt: skip
    assert "--nice=5" in submit_argv(options, "n3", 8) and "--gres=gpu:8" in submit_argv(options, "n3", 8)


def test_a_short_job_is_not_warned_at_its_start() -> None:
    argv = submit_argv(OPTIONS._replace(time_limit_s=61), "n0", 1)
    assert argv[argv.index("-t") + 1] == "00:02:00" and not any(word.startswith("--signal") for word in argv)
    assert "01:40:00" in submit_argv(OPTIONS._replace(time_limit_s=6000), "n0", 1)


def test_percent_signs_in_the_output_path_are_not_replacements() -> None:
    argv = submit_argv(OPTIONS._replace(directory="/a%j b"), "n0", 1)
    assert argv[argv.index("-o") + 1] == "/a%%j b/n0.out" and output_path("/a%j b", "n0") == "/a%j b/n0.out"
    with pytest.raises(UsageError, match="backslash"):
        submit_argv(OPTIONS._replace(directory="/a\\b"), "n0", 1)


def test_the_script_replaces_its_shell_and_passes_every_setting() -> None:
    options = OPTIONS._replace(
        setting=Setting("emu", "/lab/gpus.json", 7, 0.05), benchmarks="gemm_bf16", quick=True, gpu_timeout_s=12.5
    )
    first, second, end = script(options, "n3", 4).split("\n")
    assert (first, end) == ("#!/bin/sh", "")
    assert shlex.split(second) == [
        "exec", "/usr/bin/python3", "-P", "-m", "slurm_pal.profiling.node.bench", "--sweep=s1", "--cluster=c",
        "--spool=/spool", "--expected=4", "--backend=emu", "--seed=7", "--registry=/lab/gpus.json",
        "--wall-scale=0.05", "--bench=gemm_bf16", "--quick", "--gpu-timeout-s=12.5",
    ]  # fmt: skip
    assert job_name("s1") == "pal-profile:s1"


@pytest.mark.parametrize("name", ["it's", 'a"b', "a b", "$(id)", "`id`", "a\nb", "a;b", "-n", "ü", "%j"])
def test_hostile_paths_reach_the_program_as_they_are(name: str, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done\n')
    program.chmod(0o755)
    options = OPTIONS._replace(python=str(program), spool=f"/spool/{name}", cluster=name)
    done = subprocess.run(["/bin/sh"], input=script(options, "n0", 4), capture_output=True, text=True, check=True)
    words = done.stdout.split("\0")
    assert f"--spool=/spool/{name}" in words and f"--cluster={name}" in words


# -- what goes first, and at scale ----------------------------------------------------


def test_urgent_nodes_come_before_the_stalest() -> None:
    newest = {"a": NOW_S - 30 * DAY_S, "b": NOW_S - DAY_S, "c": NOW_S - 2 * DAY_S}
    causes = {"b": Urgency(0, "GPU 1 unconfirmed"), "c": Urgency(2, "GPU 0 driver 550 is now 560")}
    plan = planned([node("a"), node("b"), node("c"), node("d")], newest=newest, urgent=causes)
    assert names(plan) == ["b", "c", "d", "a"] and plan.chosen[0].why == "GPU 1 unconfirmed"


def test_a_doubtful_run_is_repeated_in_spite_of_since_but_not_at_once() -> None:
    causes = {"a": Urgency(CONFIRM, "x"), "b": Urgency(CONFIRM, "x"), "c": Urgency(CHANGED, "step")}
    newest = {"a": NOW_S - 20 * 3600, "b": NOW_S - 3600, "c": NOW_S - 20 * 3600}
    plan = planned([node("a"), node("b"), node("c")], SweepRequest(since_s=14 * DAY_S), newest, urgent=causes)
    assert names(plan) == ["a"] and plan.skipped["c"] == "measured less than 14 d ago"


def test_a_node_that_jobs_wait_for_is_repeated_like_it_and_at_most_twice_a_day() -> None:
    newest = {"a": NOW_S - 20 * 3600, "b": NOW_S - 3600}
    causes = {name: Urgency(LATE, "GPU 2 late") for name in newest}
    plan = planned([node("a"), node("b")], SweepRequest(since_s=14 * DAY_S), newest, urgent=causes)
    assert names(plan) == ["a"] and plan.chosen[0].why == "GPU 2 late"


def test_a_node_that_was_left_for_a_users_job_is_first_in_spite_of_since() -> None:
    causes = {"a": Urgency(CONFIRM, "x"), "b": Urgency(LEFT, "left for job 7")}
    newest = {"a": NOW_S - 20 * 3600, "b": NOW_S - 60}
    plan = planned([node("a"), node("b")], SweepRequest(since_s=14 * DAY_S), newest, urgent=causes)
    assert names(plan) == ["b", "a"] and plan.chosen[0].why == "left for job 7"


def test_a_node_dearer_than_a_days_budget_is_left_out_and_said() -> None:
    plan = planned(
        [node("a", gpus=8), node("b")], SweepRequest(budget_gpu_h_per_day=1.0)
    )  # 900 s x 4 GPUs = 1 GPU-hour
    assert names(plan) == ["b"] and plan.skipped == {"a": "dearer than the 1 GPU-hours of a day"}


def test_solo_and_mig_reach_the_job() -> None:
    text = script(OPTIONS._replace(mode="solo", mig=True), "n3", 4)
    assert "--mode=solo" in text and "--mig" in text
    assert "--mode" not in script(OPTIONS, "n3", 4) and "--mig" not in script(OPTIONS, "n3", 4)


def test_five_thousand_nodes_are_planned_in_order_without_losing_one() -> None:
    nodes = [node(f"n{i:04d}", "IDLE" if i % 10 else "MIXED", 8) for i in range(5000)]
    newest = {f"n{i:04d}": NOW_S - (i * 7919 % 5000) * 3600.0 for i in range(5000)}
    causes = {f"n{i:04d}": Urgency(i % 3, "x") for i in range(1, 5000, 50)}
    plan = planned(nodes, SweepRequest(sample="50%", seed=1), newest, urgent=causes)
    assert len(plan.chosen) == 2250 and len(plan.chosen) + len(plan.skipped) == 5000
    order = [(causes[c.node].rank if c.node in causes else 3, c.measured_s) for c in plan.chosen]
    assert order == sorted(order)
