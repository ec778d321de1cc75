# SPDX-License-Identifier: MIT
"""The program over the virtual Slurm: what it brings, what it leaves alone, and what happens when orders fail."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_pal.base.config import Config
from slurm_pal.base.errors import MissingPackageError, NotNowError, SlurmError, UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.cli.simulate.command import simulate
from slurm_pal.simulate.experiment import Experiment
from slurm_pal.simulate.hardware import hardware
from slurm_pal.simulate.policies import POLICIES, STUDY
from slurm_pal.simulate.replay import ReplayPlan
from slurm_pal.simulate.replay import replay as study
from slurm_pal.simulate.result import JobOutcome, Replay
from slurm_pal.simulate.settings import Failures, ReplaySettings
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.simulate.virtual import parse_cluster
from slurm_pal.twin import lua_filter
from slurm_pal.twin import run as twin_run
from slurm_pal.twin.run import ARMS, Arm, Twin, replay

SLOW, FAST = [1.5] * 4, [1.0] * 4
HOUR_S = 3600.0
lua = pytest.mark.skipif(shutil.which("lua5.1") is None, reason="lua5.1 is not installed: apt-get install lua5.1")


def config(**values: object) -> Config:
    made = Config()
    made.set("rebalance", "minimum_s", 0.0, "test")
    made.set("rebalance", "interval_s", 60.0, "test")
    for name, value in values.items():
        section, _, key = name.partition("__")
        made.set(section, key, value, "test")
    return made


def job(
    number: int, submit_s: float = 0.0, run_s: float = HOUR_S, gpus: int = 1, nodes: int = 1, **more: object
) -> TraceJob:
    shape = GpuShape(gpus * nodes, nodes, gpus)
    made = TraceJob(f"j{number}", submit_s, shape, run_s, "A", limit_s=4 * run_s, user=f"u{number % 3}", movable=False)
    return made._replace(**more)  # type: ignore[arg-type]


def plan(jobs: Sequence[TraceJob], rows: Sequence[Sequence[float]] = (SLOW, FAST), policy: str = "tick") -> ReplayPlan:
    table = [list(row) for row in rows]
    machine = hardware({"A": table, "B": table, "C": [[1.0] * len(row) for row in table]})
    return ReplayPlan(Trace("test", tuple(jobs)), machine, policy)


def run(
    jobs: Sequence[TraceJob], policy: str = "tick", twin: Twin | None = None, **more: Sequence[Sequence[float]]
) -> Replay:
    return (twin or Twin(config())).run(plan(jobs, policy=policy, **more))


def by_id(found: Replay) -> dict[str, JobOutcome]:
    return {outcome.job_id: outcome for outcome in found.outcomes}


def test_stock_slurm_takes_the_first_node_and_palsub_the_fast_one() -> None:
    one = [job(1)]
    assert by_id(run(one, "slurm-twin"))["j1"].nodes == ("n0",)
    for policy in ("palsub", "tick"):
        found = by_id(run(one, policy))["j1"]
        assert found.nodes == ("n1",) and found.slowdown == 1.0 and found.jct_s == pytest.approx(HOUR_S, abs=5)


@lua
def test_the_filter_s_own_lua_sends_jobs_to_the_fast_node() -> None:
    found = run([job(1), job(2, 600.0, movable=True)], "filter")
    assert {outcome.nodes for outcome in found.outcomes} == {("n1",)}


def test_without_lua_the_filter_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lua_filter.shutil, "which", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"apt-get install lua5\.1"):
        run([job(1)], "filter")


def late_room() -> list[TraceJob]:
    """The fast node is full when the second job comes, and free a little later."""
    return [job(1, 0.0, 1200.0, 4), job(2, 60.0, 8 * HOUR_S, 4, movable=True)]


def test_a_movable_job_is_moved_to_faster_gpus_and_pays_for_it() -> None:
    found = run(late_room())
    moved = by_id(found)["j2"]
    assert moved.moves == found.moves == 1 and moved.nodes == ("n1",) and moved.end == "COMPLETED"
    # It waits 600 s for the fast node (submit.lease_max_s), runs 540 s at 1.5, which loses 180 s, and moves when
    # that node is free: 60 s for the checkpoint, Slurm's gap, 120 s for the restart.
    assert 8 * HOUR_S + 600 + 180 + 180 < moved.jct_s < 8 * HOUR_S + 600 + 180 + 180 + 90
    assert found.move_gpu_s == pytest.approx(4 * 180.0)
    stays = by_id(run([late_room()[0], late_room()[1]._replace(movable=False)]))["j2"]
    assert stays.moves == 0 and stays.jct_s > 11 * HOUR_S


@pytest.mark.parametrize(
    "setting", [{"rebalance__moves": False}, {"rebalance__moves_per_tick": 0}, {"rebalance__margin": 1e6}]
)
def test_the_site_s_settings_are_in_force(setting: dict[str, object]) -> None:
    assert run(late_room(), twin=Twin(config(**setting))).moves == 0


def test_the_tick_s_interval_is_the_site_s() -> None:
    jct_s = [
        by_id(run(late_room(), twin=Twin(config(rebalance__interval_s=interval_s, submit__lease_max_s=0.0))))[
            "j2"
        ].jct_s
        for interval_s in (60.0, 1800.0)
    ]
    assert jct_s[0] < jct_s[1] - 150  # the slow tick finds the free node later


def test_palsub_can_be_switched_off() -> None:
    assert by_id(run([job(1)], "palsub", Twin(config(submit__enabled=False))))["j1"].nodes == ("n0",)


def test_ticks_that_can_only_decide_the_same_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(300, 900, 2, 1, "A"), (60, 4000, 3, 1, "C"), (600, 2000, 1, 2, "?"), (9000, 3000, 4, 1, "A")] * 2
    ran: list[float] = []
    whole = twin_run.Tick.run
    monkeypatch.setattr(twin_run.Tick, "run", lambda tick, now_s: ran.append(now_s) or whole(tick, now_s))
    twin = Twin(config(rebalance__interval_s=60.0, rebalance__minimum_s=600.0))
    few = run(jobs_of(rows, movable=True), twin=twin)
    some = len(ran)
    monkeypatch.setattr(twin_run, "LONGEST_QUIET_S", 1e-3)
    assert run(jobs_of(rows, movable=True), twin=twin) == few
    assert some < 0.8 * (len(ran) - some)


def test_so_are_those_after_a_move_that_was_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one for which no checkpoint came has a say for an hour (deciding.FAILED_S)."""
    ran: list[float] = []
    whole = twin_run.Tick.run
    monkeypatch.setattr(twin_run.Tick, "run", lambda tick, now_s: ran.append(now_s) or whole(tick, now_s))
    found = run(late_room())
    assert found.moves == 1
    moved_s = 1200.0 + 300.0  # at the latest it runs again then
    after = [at_s for at_s in ran if moved_s < at_s - twin_run.START_S < moved_s + 3600.0]
    assert len(after) < 20, "of 60 ticks most can only decide the same"
    monkeypatch.setattr(twin_run._Run, "_quiet", lambda *_: False)
    assert run(late_room()) == found


def test_a_job_is_killed_at_its_limit() -> None:
    found = by_id(run([job(1, limit_s=1800.0)], "slurm-twin"))["j1"]
    assert found.end == "TIMEOUT" and found.jct_s == pytest.approx(1800, abs=5)


Row = tuple[int, int, int, int, str]
traces = st.lists(
    st.tuples(
        st.integers(0, 900), st.integers(60, 4000), st.integers(1, 4), st.integers(1, 2), st.sampled_from("ABC?")
    ),
    min_size=1, max_size=12,
)  # fmt: skip


def jobs_of(rows: Sequence[Row], movable: bool = False) -> list[TraceJob]:
    at_s, found = 0.0, []
    for number, (after_s, run_s, gpus, nodes, sensitivity) in enumerate(rows):
        at_s += after_s
        found.append(job(number, at_s, float(run_s), gpus, nodes, sensitivity=sensitivity, movable=movable))
    return found


@settings(max_examples=12, deadline=None)
@given(traces, st.booleans())
def test_a_tick_beside_jobs_of_others_changes_nothing(rows: list[Row], movable: bool) -> None:
    """Jobs that neither palsub nor the filter saw are not ours: the replay is that of plain Slurm, job for job."""
    jobs = jobs_of(rows, movable)
    alone = run(jobs, "slurm-twin")
    beside = replay(plan(jobs, policy="slurm-twin"), Twin(config()), Arm("plain", ticks=True))
    assert beside.outcomes == alone.outcomes and beside.moves == 0


@settings(max_examples=6, deadline=None)
@given(traces)
def test_everybody_ends_whatever_the_program_does_and_again_the_same(
    rows: list[Row],
) -> None:
    jobs = jobs_of(rows, movable=True)
    first = run(jobs)
    assert {o.job_id for o in first.outcomes} == {one.job_id for one in jobs} and first.complete
    assert all(o.end == "COMPLETED" and o.start_s >= o.submit_s for o in first.outcomes)
    assert run(jobs) == first


@pytest.mark.parametrize("refused", ["update", "requeue", "signal"])
@pytest.mark.parametrize("error", [SlurmError, NotNowError])
def test_orders_that_fail_cost_nobody_their_job(refused: str, error: type[SlurmError]) -> None:
    """Every second order of a kind fails; jobs still end, and no list of ours stays for good."""
    count = iter(range(10**6))

    def failing(kind: str, job_id: int) -> SlurmError | None:
        return error("slurmctld says no") if kind == refused and next(count) % 2 == 0 else None

    jobs = [*late_room(), *(job(k, 300.0 * k, 900.0, 2) for k in range(3, 9))]
    found = run(jobs, twin=Twin(config(), failing=failing))
    assert len(found.outcomes) == len(jobs) and all(o.end == "COMPLETED" for o in found.outcomes)


def test_a_slurmctld_that_never_answers_leaves_plain_slurm() -> None:
    twin = Twin(config(), failing=lambda kind, job_id: SlurmError("no answer") if kind == "overview" else None)
    jobs = jobs_of([(60, 900, 2, 1, "A")] * 6)
    assert run(jobs, twin=twin).outcomes == run(jobs, "slurm-twin").outcomes


def test_the_caller_s_environment_is_neither_read_nor_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_EXCLUSIVE", "1")
    monkeypatch.setenv("SLURM_PAL_OFF", "1")
    before = dict(os.environ)
    assert by_id(run([job(1), job(2)], "palsub"))["j2"].nodes == ("n1",)
    assert dict(os.environ) == before


def test_progress_can_stop_it() -> None:
    found = Twin(config()).run(plan(jobs_of([(90, 60, 1, 1, "A")] * 4)), lambda done, of: done < 2)
    assert not found.complete and len(found.outcomes) < 4


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"queue": "las"}, "Slurm has fifo and multifactor"),
    ({"settings": ReplaySettings(failures=Failures(1e6, 1e3))}, "--mtbf"),
    ({"settings": ReplaySettings(best_first=True)}, "--best-first"),
    ({"settings": ReplaySettings(steer="submit")}, "--steer"),
    ({"program": None}, "nothing here runs it"),
]


@pytest.mark.parametrize(("changes", "why"), REFUSED)
def test_what_slurm_does_not_have_is_refused_before_anything_runs(changes: dict[str, object], why: str) -> None:
    made = Experiment((Trace("t", (job(1),)),), parse_cluster("2x4"), policies=("slurm-twin", "tick"), policy="tick",
                      baseline="slurm-twin", program=Twin(config()))  # fmt: skip
    made.check()
    with pytest.raises(UsageError, match=why):
        made._replace(**changes).check()  # type: ignore[arg-type]


def test_the_simulator_s_own_replay_refuses_the_program() -> None:
    ours = [name for name, row in POLICIES.items() if row.runs != STUDY]
    assert set(ours) == set(ARMS)
    for name in ours:
        with pytest.raises(UsageError, match="runs in the twin"):
            study(plan([job(1)], policy=name))


def test_a_twin_travels_to_worker_processes() -> None:
    twin = Twin(config(rebalance__interval_s=30.0), {"PriorityType": "priority/multifactor"})
    assert pickle.loads(pickle.dumps(twin)).config.number("rebalance", "interval_s") == 30.0


# -- the command line -------------------------------------------------------------------------


@pytest.fixture
def no_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    (tmp_path / "pal.toml").write_text("")
    monkeypatch.setenv("SLURM_PAL_CONFIG", str(tmp_path / "pal.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    yield


def test_the_command_runs_the_program(no_site: None) -> None:
    words = ["--generate", "jobs=12,load=0.9,seed=2", "--cluster", "2x4", "--policy", "slurm-twin,palsub,tick",
             "--seeds", "1", "--jobs", "1", "--worst", "0", "--tick", "600", "--json"]  # fmt: skip
    done = CliRunner().invoke(simulate, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found["policies"]) == ["slurm-twin", "palsub", "tick"]
    assert all(row["runs"] == 1 for row in found["policies"].values())


def test_the_list_says_what_runs_each_policy() -> None:
    shown = json.loads(CliRunner().invoke(simulate, ["--list", "--json"]).stdout)
    runs = {row["name"]: row["runs"] for row in shown["policies"]}
    wanted = {
        "tick": "tick", "palsub": "palsub", "filter": "palsub", "slurm-twin": "slurm", "pal-fit": "study",
        "default": "study", "pal-share": "study",
    }  # fmt: skip
    assert {name: runs[name] for name in wanted} == wanted
    lines = CliRunner().invoke(simulate, ["--list"]).stdout.splitlines()
    policies = [line for line in lines if line.startswith("--policy") and "the same as" not in line]
    assert sum("study: " not in line for line in policies) == len(ARMS)
    assert not any("ours" in line for line in policies if "study: " in line)
