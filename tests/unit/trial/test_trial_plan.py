# SPDX-License-Identifier: MIT
"""A trace and a site's settings in compressed time, and what a lab refuses."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from slurm_pal.base.config import KEYS, Config
from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.lab.conf import LabSpec, config_files
from slurm_pal.lab.directory import LabDirectory
from slurm_pal.simulate.hardware import hardware
from slurm_pal.simulate.policies import STUDY, named
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.simulate.virtual import parse_cluster
from slurm_pal.trial import compression, prediction, scaling
from slurm_pal.trial.arms import ARMS, arm_of, arm_settings, parse_arms


def job(number: int = 1, gpus: int = 1, at_s: float = 0.0, limit_s: float | None = 7200.0, **more: object) -> TraceJob:
    base = TraceJob(str(number), at_s, GpuShape(gpus), 3000.0, "A", limit_s)
    return base._replace(**more)  # type: ignore[arg-type]


def trace(*jobs: TraceJob) -> Trace:
    return Trace("t", jobs)


def test_times_are_divided_and_limits_are_whole_minutes() -> None:
    given = trace(job(1, at_s=600.0), job(2, at_s=1200.0, limit_s=3601.0, sensitivity="?", move_cost_s=600.0))
    fitted = compression.fitted(given, parse_cluster("2x4"), 60.0, None, stated=False)
    first, second = compression.lab_jobs(fitted, 60.0, 1.7, 180.0)
    assert (first.at_s, first.work_s, first.limit_min, first.cost_s) == (0.0, 50.0, 2, 3.0)
    assert (second.at_s, second.limit_min, second.cost_s, second.sensitivity) == (10.0, 2, 10.0, "")
    assert (first.column, second.column) == (3, 3)  # a job of unknown class feels what class A feels
    assert fitted.jobs[1].limit_s == 7200.0  # the simulator knows the same limit as Slurm
    assert any("longer by more than 10 %" in note for note in compression.notes((first, second), given, 60.0))


@pytest.mark.parametrize(
    ("shape", "stated", "words"),
    [
        (GpuShape(3), False, ("--gpus=3",)),
        (GpuShape(3), True, ("-N1", "--gres=gpu:3")),
        (GpuShape(8), True, ("-N2", "--gres=gpu:4")),
        (GpuShape(7), True, ("-N2", "--gpus=7")),
        (GpuShape(4, 2, 2, "h100", True), False, ("-N2", "--gres=gpu:2", "--exclusive")),
    ],
)
def test_shapes_in_sbatchs_words(shape: GpuShape, stated: bool, words: tuple[str, ...]) -> None:
    given = trace(job()._replace(shape=shape))
    fitted = compression.fitted(given, parse_cluster("4x4"), 60.0, None, stated)
    assert compression.lab_jobs(fitted, 60.0, 1.7, 180.0)[0].words == words


@pytest.mark.parametrize(
    ("jobs", "cluster", "said"),
    [
        ([job(), job(2, limit_s=None)], "2x4", "1 of 2 jobs have no time limit (job 2 is the first)"),
        ([job(k) for k in range(15_001)], "2x4", "15001 jobs are more than a lab can hold"),
        ([job(), job(2, gpus=9)], "2x4", "too wide for a lab of 8 GPUs: 2 nodes x 4 (job 2 wants 9 GPUs)"),
        ([job()], "a=1x4,b=1x2", "nodes of one size and one partition"),
    ],
)
def test_what_a_lab_cannot_hold_is_refused(jobs: list[TraceJob], cluster: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        compression.fitted(trace(*jobs), parse_cluster(cluster), 60.0, None, stated=False)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_absent_limits_may_be_assumed() -> None:
    fitted = compression.fitted(trace(job(limit_s=None)), parse_cluster("2x4"), 60.0, 2.0, stated=False)
    assert fitted.jobs[0].limit_s == 7200.0  # 6000 s are 1.67 minutes of the lab


@pytest.mark.parametrize(
    ("count", "lab_s", "said"),
    [
        (10, 80 * 3600.0, "--compress 67 and more"),
        (1000, 100.0, "--compress 24 or less"),
    ],
)
def test_too_much_for_a_lab(count: int, lab_s: float, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        compression.check_size(trace(*map(job, range(count))), 60.0, lab_s, 2)


def conf_of(given: Mapping[str, str], compress: float = 60.0) -> tuple[dict[str, str], scaling.Scheduler]:
    """The lab's slurm.conf as pairs, and what was said."""
    found = scaling.scheduler(given, compress)
    spec = LabSpec(LabDirectory("/l"), 2, 4, 8, 8000, "me", 15000, (22, 5), False, conf_edits=found.edits)
    lines = [line.partition("=") for line in config_files(spec)["slurm.conf"].splitlines()]
    return {name: value for name, sign, value in lines if sign}, found


def test_without_a_slurm_conf_slurms_defaults_are_compressed() -> None:
    conf, found = conf_of({})
    words = conf["SchedulerParameters"].split(",")
    assert {"bf_interval=1", "bf_resolution=1", "bf_window=24", "sched_interval=1", "batch_sched_delay=0"} <= set(words)
    assert found.notes == ("bf_interval is 1 (30 / 60 is less than Slurm takes)",)
    assert conf["PriorityType"] == "priority/basic"


def test_the_sites_scheduler_is_taken_over() -> None:
    conf, found = conf_of(
        {
            "schedulerparameters": "bf_interval=120,bf_continue,bf_max_job_test=1000,max_rpc_cnt=150",
            "schedulertype": "sched/builtin",
            "prioritytype": "priority/multifactor",
            "priorityweightage": "1000",
            "prioritymaxage": "7-0",
            "priorityweightfairshare": "5",
        }
    )
    words = conf["SchedulerParameters"].split(",")
    assert {"bf_interval=2", "bf_continue", "bf_max_job_test=1000"} <= set(words)
    assert conf["SchedulerType"] == "sched/builtin"
    assert (conf["PriorityType"], conf["PriorityWeightAge"]) == ("priority/multifactor", "1000")
    assert conf["PriorityMaxAge"] == "0-02:48:00"
    assert found.notes == ("not taken over: max_rpc_cnt", "PriorityWeightFairshare: need accounting, which a lab lacks")


@pytest.mark.parametrize(
    "wrong",
    [
        {"schedulerparameters": "bf_interval=soon"},
        {"schedulertype": "sched/wiki"},
        {"prioritytype": "priority/mine"},
        {"prioritytype": "priority/multifactor", "prioritymaxage": "long"},
    ],
)
def test_what_no_lab_runs_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        scaling.scheduler(wrong, 60.0)


@pytest.mark.parametrize(
    ("text", "clock"),
    [("7-0", "7-00:00:00"), ("90", "0-01:30:00"), ("1:30", "0-00:01:30"), ("2-12:30:05", "2-12:30:05")],
)
def test_times_of_slurm_conf(text: str, clock: str) -> None:
    conf, _ = conf_of({"prioritytype": "priority/multifactor", "prioritymaxage": text}, 1.0)
    assert conf["PriorityMaxAge"] == clock


def test_the_sites_pal_toml_is_compressed() -> None:
    site = Config()
    site.set("rebalance", "interval_s", 300.0, "pal.toml")
    site.set("rebalance", "metrics", "/site/metrics", "pal.toml")
    site.set("rebalance", "mode", "act", "pal.toml")
    site.set("placement", "barred_slowdown", 1.1, "pal.toml")
    found = scaling.pal_settings(site, 60.0, 600.0)
    assert found["rebalance.interval_s"] == "5"
    assert found["rebalance.move_cost_s"] == "10"
    assert found["rebalance.ack_limit_s"] == "5"
    assert found["placement.barred_slowdown"] == "1.1"
    assert found["rebalance.minimum_s"] == "10"
    assert not {"rebalance.metrics", "rebalance.mode", "rebalance.moves", "placement.policy"} & found.keys()
    assert scaling.variables({"rebalance.interval_s": "5"}) == {"SLURM_PAL_REBALANCE_INTERVAL_S": "5"}


def test_arms_come_in_the_order_of_the_table_with_sbatch_first() -> None:
    assert parse_arms("placebo, palsub") == ("sbatch", "palsub", "placebo")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nothing", "is not one of sbatch, palsub, filter, tick, tick\\+moves, .*, placebo, tick\\+LEVER"),
        ("palsub,palsub", "given twice"),
        ("", "--arms is empty"),
        ("tick+magic", "after tick come levers: \\+NAME or -NAME of retarget, fit"),
    ],
)
def test_wrong_arms(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_arms(text)


def test_levers_are_arms() -> None:
    assert [*ARMS][3:] == ["tick", "tick+moves", "tick+gather", "tick+wait", "tick+order", "placebo"]
    assert parse_arms("tick-fit,tick+order") == ("sbatch", "tick+order", "tick-fit")


def test_an_arm_switches_its_own_levers_and_no_other_that_is_seen_apart() -> None:
    still = {"rebalance.moves": "false", "rebalance.gather": "false", "rebalance.wait": "false",
             "rebalance.order": "none"}  # fmt: skip
    assert arm_settings("tick") == still
    assert arm_settings("tick+order") == {**still, "rebalance.order": "shortest"}
    assert arm_settings("tick+gather") == {**still, "rebalance.gather": "true", "rebalance.moves": "true"}
    assert arm_settings("tick+order=fair") == {**still, "rebalance.order": "fair"}
    assert arm_settings("tick-fit") == {**still, "rebalance.fit": "false"}
    both = arm_settings("tick+gather+wait")
    assert (both["rebalance.gather"], both["rebalance.wait"], both["rebalance.moves"]) == ("true", "true", "false")
    assert arm_settings("placebo") == arm_settings("tick+moves")
    assert arm_settings("sbatch") == {}


def test_every_setting_and_every_policy_of_an_arm_exists() -> None:
    for name in ARMS:
        settings = arm_settings(name)
        assert all(key.partition(".")[2] in KEYS[key.partition(".")[0]] for key in settings)
        prediction.config_of(settings)
        assert named(ARMS[name].policy).runs != STUDY
    assert arm_of("tick-retarget").tick


def test_the_twin_has_the_labs_slurm_conf_and_the_arms_settings() -> None:
    _, found = conf_of({"schedulerparameters": "bf_interval=120", "prioritytype": "priority/multifactor"})
    pairs = prediction.pairs_of(found.edits)
    assert "bf_interval=2" in pairs["SchedulerParameters"].split(",")
    assert (pairs["PriorityType"], pairs["PriorityMaxAge"]) == ("priority/multifactor", "0-02:48:00")
    assert pairs["AuthInfo"] == "cred_expire=5"
    config = prediction.config_of({"rebalance.moves": "false", "rebalance.interval_s": "2", "rebalance.depth": "7"})
    assert config.flag("rebalance", "moves") is False
    assert (config.number("rebalance", "interval_s"), config["rebalance", "depth"]) == (2.0, 7)


def test_what_the_twin_says_in_the_labs_time_comes_back_in_the_traces() -> None:
    """A job of 50 minutes is one of 50 s there; Slurm's own second is a minute here."""
    given = compression.fitted(trace(job(1, at_s=600.0), job(2, at_s=660.0)), parse_cluster("2x4"), 60.0, None, True)
    machine = hardware({name: [[1.0] * 4] * 2 for name in "ABCD"})
    _, found = conf_of({})
    assumed = prediction.Assumed(1.7, 180.0, 60.0, scaling.pal_settings(Config(), 60.0, 180.0), found.edits)
    told = prediction.simulated("sbatch", given, machine, machine, assumed, 1)
    first, _ = sorted(told.outcomes, key=lambda outcome: outcome.job_id)
    assert first.submit_s == 600.0 and first.ideal_s == 3000.0
    assert 600.0 < first.start_s <= 600.0 + 4 * 60  # a few seconds of the lab
    assert 3000.0 < first.finish_s - first.start_s < 3000.0 + 2 * 60
    assert prediction.length_s(given, machine, assumed, 1) == pytest.approx(3060.0, abs=120.0)
