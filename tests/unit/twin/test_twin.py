# SPDX-License-Identifier: MIT
"""The program over the virtual Slurm: what it brings, what it leaves alone, and what happens when orders fail."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_pal.base import hooks
from slurm_pal.base.config import KEYS, Config, Key
from slurm_pal.base.errors import MissingPackageError, NotNowError, SlurmError, UsageError
from slurm_pal.base.hostlist import fold
from slurm_pal.base.jobs import GpuShape
from slurm_pal.cli.simulate.command import simulate
from slurm_pal.cli.simulate.twin import default_policies, how_long
from slurm_pal.journal.journal import open_journal
from slurm_pal.report.simulation.assemble import assemble
from slurm_pal.report.simulation.study import Study, compare
from slurm_pal.simulate import levers
from slurm_pal.simulate.experiment import SHUFFLED, Experiment, ReplayTask, causes, tasks
from slurm_pal.simulate.hardware import hardware
from slurm_pal.simulate.inputs.generate import TraceSpec, generate
from slurm_pal.simulate.policies import POLICIES, STUDY
from slurm_pal.simulate.profiles import SlowShare
from slurm_pal.simulate.replay import ReplayPlan
from slurm_pal.simulate.replay import replay as study
from slurm_pal.simulate.result import JobOutcome, Replay
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.simulate.virtual import parse_cluster
from slurm_pal.tick.tick import Tick, TickResult
from slurm_pal.twin import lua_filter
from slurm_pal.twin import run as twin_run
from slurm_pal.twin.client import VirtualClient
from slurm_pal.twin.run import ARMS, Arm, Twin, replay
from slurm_pal.twin.virtual_slurm import Submission, VirtualSlurm

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


def waits(fast_ends_s: float, **settings: object) -> dict[str, JobOutcome]:
    """As `late_room`, without moves; a third job would take the slow node, too."""
    limit_s = 4800.0  # 2400 s are expected of the first job
    jobs = [job(1, 0.0, fast_ends_s, 4, limit_s=limit_s), late_room()[1], job(3, 400.0, 8 * HOUR_S, 4, sensitivity="C")]
    return by_id(run(jobs, twin=Twin(config(rebalance__moves=False, **settings))))


def test_a_job_at_the_head_waits_behind_a_fence_where_the_site_wants_that() -> None:
    without = waits(1200.0)
    assert without["j3"].nodes == ("n0",) and without["j3"].start_s < 450, "nothing is kept for the second job"
    found = waits(1200.0, rebalance__wait=True)
    assert (found["j2"].nodes, found["j3"].nodes) == (("n1",), ("n0",))
    assert found["j2"].start_s == pytest.approx(1200, abs=60)


def test_behind_a_fence_it_starts_when_its_patience_ends_and_nobody_before_it() -> None:
    found = waits(4700.0, rebalance__wait=True, rebalance__wait_max_s=3000.0)
    assert found["j2"].nodes == ("n0",) and found["j2"].start_s <= 60 + 3000 + 60
    assert found["j2"].start_s > 60 + 600 + 60  # longer than submit.lease_max_s
    assert found["j3"].nodes == ("n1",)
    refused = Twin(config(rebalance__moves=False, rebalance__wait=True), failing=no_fence)
    assert by_id(run([job(1, 0.0, 4700.0, 4, limit_s=4800.0), late_room()[1]], twin=refused))["j2"].start_s < 60 + 700


def no_fence(kind: str, job_id: int) -> SlurmError | None:
    return SlurmError("scontrol failed: Access/permission denied") if kind == "fence" else None


def spread_total() -> list[TraceJob]:
    """j4 asks for three GPUs on whatever nodes: two and one are free on two of them, and the third a little later."""
    others = [job(1, run_s=20 * HOUR_S, gpus=2), job(2, 1.0, 20 * HOUR_S, 3), job(3, 2.0, 1200.0, 4)]
    return [*others, job(4, 60.0, 8 * HOUR_S)._replace(shape=GpuShape(3), movable=True)]


def test_a_spread_job_is_brought_together_in_the_twin_as_on_slurm() -> None:
    rows = (FAST, FAST, FAST)  # scores have no part in it
    stock = by_id(run(spread_total(), "slurm-twin", rows=rows))["j4"]
    off = by_id(run(spread_total(), twin=Twin(config(rebalance__gather=False)), rows=rows))["j4"]
    on = by_id(run(spread_total(), rows=rows))["j4"]
    assert (stock.moves, off.moves, on.moves) == (0, 0, 1)
    assert on.nodes == ("n2",) and len(stock.nodes) == len(off.nodes) == 2
    assert stock.jct_s == pytest.approx(1.7 * 8 * HOUR_S, rel=0.01) and on.jct_s < 0.65 * stock.jct_s


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


@pytest.mark.long
def test_ticks_that_can_only_decide_the_same_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(300, 900, 2, 1, "A"), (60, 4000, 3, 1, "C"), (600, 2000, 1, 2, "?"), (9000, 3000, 4, 1, "A")] * 2
    ran: list[float] = []
    whole = twin_run.Tick.run
    monkeypatch.setattr(twin_run.Tick, "run", lambda tick, now_s: ran.append(now_s) or whole(tick, now_s))
    twin = Twin(config(rebalance__interval_s=60.0, rebalance__minimum_s=600.0))
    few = run(jobs_of(rows, movable=True), twin=twin)
    some = len(ran)
    moved = run([*late_room(), job(3, 9 * HOUR_S)], twin=twin)
    after = len(ran) - some
    monkeypatch.setattr(twin_run, "LONGEST_QUIET_S", 1e-3)
    assert run(jobs_of(rows, movable=True), twin=twin) == few
    every = len(ran) - some - after
    assert some < 0.8 * every
    assert run([*late_room(), job(3, 9 * HOUR_S)], twin=twin) == moved and moved.moves
    assert after < 0.2 * (len(ran) - some - after - every)  # a move that is over does not keep it from being left out


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


def test_no_program_of_the_site_is_told_of_a_move_that_is_only_played(tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/told\n")
    hook.chmod(0o755)
    sites = config()
    sites.set("hooks", "on_move", str(hook), "pal.toml")
    assert replay(plan(late_room()), Twin(sites), ARMS["tick"]).moves == 1
    hooks.wait()
    assert not (tmp_path / "told").exists()


def test_so_are_those_that_only_keep_a_job_off_slow_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they would have put off in the journal is as if they had been."""
    leases: dict[float, list[tuple[int, str, float]]] = {}
    whole = twin_run.Tick.run

    def looked(tick: Tick, now_s: float) -> TickResult:
        with open_journal(tick.journal_path, write=False) as journal:
            leases[now_s] = [(one.job_id, one.ours, one.until_s - now_s) for one in journal.every_lease()]
        return whole(tick, now_s)

    monkeypatch.setattr(twin_run.Tick, "run", looked)
    jobs = [job(number, 60.0 * number, 3 * HOUR_S, 4) for number in (0, 1, 2)] + [job(3, 2 * HOUR_S + 30)]
    found, few = run(jobs), dict(leases)
    leases.clear()
    monkeypatch.setattr(twin_run._Run, "_quiet", lambda *_: False)
    assert run(jobs) == found
    assert len(few) < 30 and len(leases) > 250
    assert few == {at_s: leases[at_s] for at_s in few}
    assert sum(bool(there) for there in few.values()) > 5


def test_a_job_is_killed_at_its_limit() -> None:
    found = by_id(run([job(1, limit_s=1800.0)], "slurm-twin"))["j1"]
    assert found.end == "TIMEOUT" and found.jct_s == pytest.approx(1800, abs=5)


class Orders:
    """What was asked of Slurm beyond the users' own words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[str] = []
        sbatch, submit = VirtualClient.sbatch, VirtualSlurm.submit

        def seen(client: VirtualClient, argv: Sequence[str], *who: str) -> int:
            self.given += [word for word in argv if word.startswith(("--nodelist", "--exclude", "--prefer"))]
            return sbatch(client, argv, *who)

        def filtered(slurm: VirtualSlurm, made: Submission) -> int:
            job_id = submit(slurm, made)
            job = slurm.jobs[job_id]
            self.given += [fold(job.req_nodes), fold(job.exc_nodes), job.prefer]
            return job_id

        monkeypatch.setattr(VirtualClient, "sbatch", seen)
        monkeypatch.setattr(VirtualSlurm, "submit", filtered)

    def failing(self, kind: str, job_id: int) -> None:
        self.given += [kind] if kind != "overview" else []


@pytest.mark.parametrize("policy", ["palsub", pytest.param("filter", marks=lua), "tick"])
def test_where_all_gpus_are_alike_nothing_is_ordered(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot gain does nothing: job for job it is stock Slurm."""
    made = generate(TraceSpec(jobs=40, cluster_gpus=16, cap_s=3600.0, load=0.95, seed=3))
    one_node = [one._replace(shape=GpuShape(min(4, one.shape.total), 1, min(4, one.shape.total))) for one in made.jobs]
    same = [[1.0] * 4] * 4
    stock = run(one_node, "slurm-twin", rows=same)
    orders = Orders(monkeypatch)
    twin = Twin(Config(), failing=orders.failing)
    assert run(one_node, policy, twin, rows=same).outcomes == stock.outcomes
    assert not list(filter(None, orders.given))
    run(one_node, policy, twin, rows=[[1.5] * 4, *same[1:]])
    assert list(filter(None, orders.given)), "with a slow node there is something to do"


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


# -- causes -----------------------------------------------------------------------------------


SHORTEST = Key("none", "", choices=("none", "shortest"))


def shared(**changes: object) -> Experiment:
    """Ten jobs on two nodes, one of them slow, under the tick."""
    jobs = jobs_of([(300, 3000, 2, 1, "A"), (60, 1000, 1, 1, "A"), (100, 6000, 4, 1, "A")] * 3, movable=True)
    made = Experiment(
        (Trace("t", tuple(jobs)),), parse_cluster("2x4"), slow=SlowShare(0.5, 1.5), policies=("tick",), policy="tick",
        baseline="slurm-twin", seeds=(1,), worst=0, program=Twin(config()),
    )  # fmt: skip
    return made._replace(**changes)  # type: ignore[arg-type]


def done(made: Experiment) -> Study:
    return assemble(made, {task: made.run(task) for task in tasks(made)}).study


def test_what_the_program_s_ratio_is_made_of_multiplies_to_it() -> None:
    study = done(shared())
    assert list(study.causes) == ["scores", "gathering", "rest"]
    whole = compare(study).headline.ratio["mean_jct_s"]
    assert whole is not None and whole.mean != 1.0
    assert math.prod(ratio.mean for ratio in study.causes.values()) == pytest.approx(whole.mean)
    assert study.causes["gathering"].mean == 1.0, "jobs on one node, all GPUs alike: nothing to do"
    assert {ratio.low for ratio in study.causes.values()} == {None}, "one trace cannot tell"


@pytest.mark.parametrize("policy", ["palsub", "tick"])
def test_the_placebo_publishes_the_scores_of_other_gpus(policy: str) -> None:
    made = shared(traces=(Trace("t", (job(1),)),), slow=SlowShare())
    fast, slow = [[1.0, 1.0], [1.2, 1.2]], [[1.2, 1.2], [1.0, 1.0]]
    machine = hardware({c: fast for c in "ABC"}, {c: slow for c in "ABC"})
    assert made.program is not None
    found = made.program.run(ReplayPlan(made.traces[0], machine, policy))
    assert found.outcomes[0].nodes == ("n1",) and found.outcomes[0].slowdown == 1.2, "it went by what was published"
    mixed = made.plan(ReplayTask(policy, 1, scores=SHUFFLED)).hardware
    assert mixed.believed != mixed.true and mixed.true == made.plan(ReplayTask(policy, 1)).hardware.true


def test_a_lever_that_is_left_out_is_its_setting_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[object, object]] = []
    monkeypatch.setitem(KEYS["rebalance"], "order", SHORTEST)
    monkeypatch.setattr(
        twin_run, "replay",
        lambda plan, twin, arm, progress: seen.append((twin.config["rebalance", "order"], plan.hardware.believed)),
    )  # fmt: skip
    on = Twin(config(rebalance__order="shortest"))
    made = shared(program=on)
    assert list(causes(made)) == ["scores", "order", "gathering", "rest"]
    assert list(causes(shared(policy="tick-order", program=on))) == ["scores", "gathering", "rest"]
    assert list(causes(shared(policy="palsub", program=on))) == ["scores", "gathering", "rest"]
    assert list(causes(shared(policy="tick+order=shortest"))) == ["scores", "order", "gathering", "rest"]
    (with_it,), (without,) = causes(made)["order"]
    for policy, scores, left_out in (with_it, without):
        made.run(ReplayTask(policy, 1, scores=scores, without=left_out))
    assert [order for order, _ in seen] == ["shortest", "none"] and seen[0][1] == seen[1][1]
    seen.clear()
    made.run(ReplayTask("tick-order", 1))
    shared().run(ReplayTask("tick+order", 1))
    assert [order for order, _ in seen] == ["none", "shortest"]
    assert on.config["rebalance", "order"] == "shortest", "the site's own stay as they are"


def test_what_is_charged_follows_the_lever() -> None:
    charged = dict(assemble(shared(), {}).study.charged)
    assert charged["move"].startswith("180 s and Slurm's gap") and "moves = true" in charged["levers"]
    assert charged["steering"] == "at submission, by palsub, and every 60 s by the tick"
    still = Twin(config()).charged("tick-moves", ReplaySettings())
    assert still["move"] == "none: nothing moves" and "moves = false" in still["levers"]
    assert Twin(config()).charged("slurm-twin", ReplaySettings())["steering"] == "none"


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"queue": "las"}, "Slurm has fifo and multifactor"),
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
    words = ["--generate", "jobs=12,load=0.9,seed=2,cap_h=1", "--cluster", "2x4", "--policy", "slurm-twin,palsub,tick",
             "--seeds", "1", "--jobs", "1", "--worst", "0", "--tick", "600", "--json"]  # fmt: skip
    done = CliRunner().invoke(simulate, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found["policies"]) == ["slurm-twin", "palsub", "tick"]
    assert all(row["runs"] == 1 for row in found["policies"].values())


def test_without_policies_what_runs_is_compared(no_site: None, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--generate", "jobs=8,load=0.9,cap_h=1", "--cluster", "2x4", "--seeds", "1", "--jobs", "1", "--json"]
    monkeypatch.setattr(lua_filter.shutil, "which", lambda name: None)
    ran = CliRunner().invoke(simulate, words)
    assert ran.exit_code == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert (found["baseline"], found["policy"]) == ("slurm-twin", "tick")
    assert list(found["policies"]) == ["slurm-twin", "palsub", "tick"] and "apt-get install lua5.1" in ran.stderr
    assert set(found["causes"]) == {"scores", "gathering", "rest"} and not found["worst_gpus_by_k"]
    assert "moves = true" in found["charged"]["levers"]


@lua
def test_the_filter_is_compared_where_it_can_run() -> None:
    assert default_policies() == ("slurm-twin", "palsub", "filter", "tick")


def test_what_takes_long_says_so_and_how_to_be_sooner() -> None:
    assert how_long(shared(), 2) == ""
    long = shared(traces=(Trace("t", shared().traces[0].jobs * 2000),))
    assert re.fullmatch(
        r"note: 5 replays of up to 18000 jobs, .* about 1\.[0-9] h; sooner: fewer --seeds, .*", how_long(long, 1)
    )
    assert how_long(long._replace(program=None, policy="packed", policies=("packed",), baseline="packed"), 1) == ""


@pytest.mark.parametrize(
    ("name", "why"), [("tick+magic", "after tick come levers"), ("tick+moves=2", "is not one of +moves, -moves")]
)
def test_levers_that_do_not_exist_are_refused(no_site: None, name: str, why: str) -> None:
    ran = CliRunner().invoke(simulate, ["--generate", "jobs=8", "--policy", f"slurm-twin,{name}"])
    assert isinstance(ran.exception, UsageError) and why in str(ran.exception)


def test_the_list_says_what_runs_each_policy() -> None:
    shown = json.loads(CliRunner().invoke(simulate, ["--list", "--json"]).stdout)
    runs = {row["name"]: row["runs"] for row in shown["policies"]}
    wanted = {
        "tick": "tick", "palsub": "palsub", "filter": "palsub", "slurm-twin": "slurm", "pal-fit": "study",
        "default": "tick", "pal-share": "study", "tick-moves": "tick", "tick+retarget": "tick",
    }  # fmt: skip
    assert {name: runs[name] for name in wanted} == wanted
    lines = CliRunner().invoke(simulate, ["--list"]).stdout.splitlines()
    policies = [line for line in lines if line.startswith("--policy") and "the same as" not in line]
    assert sum("study: " not in line for line in policies) == len(ARMS) + len(levers.names())
    assert not any("ours" in line for line in policies if "study: " in line)
