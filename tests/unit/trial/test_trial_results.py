# SPDX-License-Identifier: MIT
"""What comes of a trial: jobs read back, arms compared, the folder, arms beside each other, the table."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from slurm_pal.base.errors import BusyError, DataError, SlurmError, UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.report import trial as report
from slurm_pal.simulate.metrics import LEAST_JOBS, WEEK_S
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.trial import judgement, strain
from slurm_pal.trial.beside import Beside
from slurm_pal.trial.folder import TrialFolder, TrialPlan
from slurm_pal.trial.live import ArmResult
from slurm_pal.trial.ran import RanJob, ran
from slurm_pal.trial.strain import Strain
from slurm_pal.trial.trial import Trial

from ..tick import test_kept_ticks, test_tick

CALM = Strain(0.01, 0.02, 0.5)
HOUR = 3600.0


def done(number: int, submit_s: float, jct_s: float, moves: int = 0, end: str = "COMPLETED") -> RanJob:
    return RanJob(number, submit_s, submit_s + 10, submit_s + jct_s, "n0:0", 1.0, moves, end)


# -- what a job wrote


def test_a_job_is_read_back() -> None:
    lines = ["start 10000 1.120000 n1:0,2", "stop 11000", "start 11300 1.500000 n0:0-3+n2:1", "end 14000"]
    found = ran(3, lines, submit_s=20.0, boot_s=75.0, compress=60.0)
    assert found == RanJob(3, 1200.0, 1500.0, 3900.0, "n0:0-3+n2:1", 1.5, 1, "COMPLETED", 2220.0)


@pytest.mark.parametrize(("last", "end"), [("timeout 14000", "TIMEOUT"), ("stop 14000", "LOST"), ("", "LOST")])
def test_how_it_ended(last: str, end: str) -> None:
    assert ran(3, ["start 10000 1.1 n1:0", last], 20.0, 75.0, 60.0).end == end


@pytest.mark.parametrize("lines", [[], ["lost 1000"], ["start x 1.1 n1:0"]])
def test_a_job_without_times_is_an_error(lines: list[str]) -> None:
    with pytest.raises(DataError, match="job 3 left no times"):
        ran(3, lines, 20.0, 75.0, 60.0)


# -- comparison


def weeks(factors: list[float]) -> list[list[RanJob]]:
    """One trace of as many weeks, twenty jobs in each, all of which take `factor` hours."""
    jobs = [(k * WEEK_S + n * HOUR, factor) for k, factor in enumerate(factors) for n in range(LEAST_JOBS)]
    return [[done(number, at_s, factor * HOUR) for number, (at_s, factor) in enumerate(jobs)]]


def test_one_trace_of_a_day_cannot_tell() -> None:
    found = judgement.judged([[done(0, 0, 50)]], [[done(0, 0, 100)]])
    assert (found.ratio, found.pieces, found.interval, found.verdict) == (0.5, 1, None, "cannot tell")


def test_five_weeks_cannot_tell_and_six_can() -> None:
    ratios = [0.8, 0.82, 0.81, 0.79, 0.8, 0.83]
    assert judgement.judged(weeks(ratios[:5]), weeks([1.0] * 5)).verdict == "cannot tell"
    found = judgement.judged(weeks(ratios), weeks([1.0] * 6))
    assert (found.pieces, found.verdict) == (6, "gain")
    assert found.interval is not None and found.interval.high is not None and found.interval.high < 1.0
    assert judgement.judged(weeks([0.5, 1.4, 0.9, 1.2, 0.8, 1.1]), weeks([1.0] * 6)).verdict == "unclear"


def test_a_week_of_each_trace_is_a_piece() -> None:
    ours, theirs = weeks([0.9, 0.8]) + weeks([0.7]), weeks([1.0, 1.0]) + weeks([1.0])
    assert judgement.pieces(ours, theirs) == pytest.approx([0.9, 0.8, 0.7])


def test_six_traces_are_pieces_as_wholes() -> None:
    ours, theirs = weeks([0.9, 0.7]) * 6, weeks([1.0, 1.0]) * 6
    assert judgement.pieces(ours, theirs) == pytest.approx([0.8] * 6)


def test_the_cause_of_a_gain_is_what_shuffled_scores_lack() -> None:
    arms = {"sbatch": [[done(0, 0, 100)]], "tick+moves": [[done(0, 0, 80)]], "placebo": [[done(0, 0, 100)]]}
    found = judgement.causes(arms)
    assert found["scores"] is not None and found["scores"].ratio == 0.8
    assert [found[name] for name in ("gathering", "waiting", "order")] == [None, None, None]


@pytest.mark.parametrize(
    ("cause", "arm", "than"),
    [("gathering", "tick+gather", "tick+moves"), ("waiting", "tick+wait", "tick"), ("order", "tick+order", "tick")],
)
def test_the_cause_of_a_lever_is_its_arm_to_that_without(cause: str, arm: str, than: str) -> None:
    found = judgement.causes({than: [[done(0, 0, 90)]], arm: [[done(0, 0, 45)]]})
    assert {name: one and one.ratio for name, one in found.items() if one} == {cause: 0.5}


def test_figures_of_several_traces() -> None:
    found = judgement.figures([[done(0, 0, 100), done(1, 50, 200, 2, "TIMEOUT")], [done(0, 0, 300, 0, "LOST")]])
    assert (found.jobs, found.mean_jct_s, found.p99_jct_s, found.makespan_s) == (3, 200.0, 300.0, 300.0)
    assert (found.moves, found.timeouts, found.lost, found.mean_wait_s) == (2, 1, 1, 10.0)


# -- strain


def test_strain_knows_when_it_was_late(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(strain.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(strain.time, "sleep", lambda s: clock.__setitem__(0, clock[0] + s + 0.5))
    meter = strain.StrainMeter()
    for _ in range(20):
        meter.nap(0.1)
        meter.submitted(-0.01)
    found = meter.strain()
    assert found.loop_late_p95_s == 0.5 and found.submitted_late_p95_s == 0.0
    assert found.distorts and not CALM.distorts
    assert Strain(0.0, 1.5, 0.1).distorts


def test_p95_is_the_value_that_a_twentieth_exceeds() -> None:
    assert strain.p95([float(k) for k in range(1, 101)]) == 95.0
    assert strain.p95([]) == 0.0


# -- beside each other


def finish(beside: Beside[int]) -> None:
    deadline_s = time.monotonic() + 10
    while not beside.over():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_no_more_than_wanted_run_at_once() -> None:
    lock, now, most, seen = threading.Lock(), [0], [0], []

    def work(task: int, ending: threading.Event) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
            seen.append(task)
        time.sleep(0.05)
        with lock:
            now[0] -= 1

    finish(Beside([1, 2, 3, 4, 5], work, 2))
    assert most[0] == 2 and sorted(seen) == [1, 2, 3, 4, 5]


def test_one_failure_ends_the_others_and_is_raised() -> None:
    ended = []

    def work(task: int, ending: threading.Event) -> None:
        if task == 1:
            raise SlurmError("no slurmctld")
        assert ending.wait(10)
        ended.append(task)

    with pytest.raises(SlurmError, match="no slurmctld"):
        finish(Beside([0, 1, 2], work, 2))
    assert ended == [0]  # 2 never began


def test_end_waits_for_what_runs() -> None:
    gone = []

    def work(task: int, ending: threading.Event) -> None:
        ending.wait(10)
        time.sleep(0.05)
        gone.append(task)

    beside = Beside([0, 1], work, 1)
    assert not beside.over()
    beside.end()
    assert gone == [0]


# -- the folder and the table


def jobs_of_a_trace(count: int = 4) -> tuple[TraceJob, ...]:
    return tuple(
        TraceJob(f"j{k}", 100.0 + 60 * k, GpuShape(1, 1, 1), 1200.0, "A", 3600.0, app="=1+1") for k in range(count)
    )


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    true = {name: [[1.0, 1.2], [1.1, 1.3]] for name in "ABCD"}
    plan = TrialPlan(
        ("t",), 2, 2, 60.0, ("sbatch", "tick+moves", "placebo"), 1, true, "given", (("a", "b"),),
        {"rebalance.interval_s": "1"}, 1.7, 180.0, ("Scheduler: a note.",),
    )  # fmt: skip
    traces = (Trace("t", jobs_of_a_trace()),)
    folder = TrialFolder(str(tmp_path / "kept"))
    made = Trial(plan, traces, folder)
    made.simulate(plan.arms)
    folder.make(plan, traces)
    return made


def as_simulated(trial: Trial, arm: str, later_s: float = 0.0) -> ArmResult:
    """A live result that is what the simulator said, but for `later_s`."""
    jobs = report.simulated_jobs(trial.simulated[0, arm], trial.traces[0])
    return ArmResult(arm, tuple(job._replace(end_s=job.end_s + later_s) for job in jobs), CALM, 30.0)


def test_finished_arms_are_kept_and_not_run_again(trial: Trial) -> None:
    trial.folder.keep(0, as_simulated(trial, "sbatch"))
    plan, traces = TrialFolder(trial.folder.path).load()
    again = Trial(plan, traces, trial.folder)
    again.simulate(["sbatch"])
    again.recall()
    assert plan == trial.plan._replace(true={k: [list(r) for r in v] for k, v in trial.plan.true.items()})
    assert traces[0].jobs == trial.traces[0].jobs
    assert again.results[0, "sbatch"] == as_simulated(trial, "sbatch")
    assert again.left() == [(0, "tick+moves"), (0, "placebo")]
    assert again.expected(1).seconds == pytest.approx(2 * again.expected(2).seconds)
    assert again.expected(1).arms == 2


def test_the_placebo_publishes_the_scores_of_other_gpus(trial: Trial) -> None:
    true, shuffled = trial.arm_plan((0, "tick+moves")), trial.arm_plan((0, "placebo"))
    assert true.scores == true.true == shuffled.true
    assert shuffled.scores != shuffled.true
    flat = [sorted(value for row in table for value in row) for table in (shuffled.scores["A"], shuffled.true["A"])]
    assert flat[0] == flat[1]
    assert true.settings["rebalance.moves"] == "true" and true.settings["rebalance.interval_s"] == "1"
    assert trial.arm_plan((0, "sbatch")).jobs[0].words == ("-N1", "--gres=gpu:1")


def test_one_trial_at_a_time(trial: Trial) -> None:
    with trial.folder.claimed(), pytest.raises(BusyError), trial.folder.claimed():
        pass


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": "pal.trial-arm/2"}', '{"schema": "pal.trial-arm/1", "jobs": [{}]}']
)
def test_a_broken_arm_is_an_error(trial: Trial, text: str) -> None:
    (Path(trial.folder.path) / "arm-0-sbatch.json").write_text(text)
    with pytest.raises(DataError):
        trial.recall()


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path, trial: Trial) -> None:
    with pytest.raises(UsageError, match="is not empty"):
        trial.folder.make(trial.plan, trial.traces)
    with pytest.raises(UsageError, match="there is no trial"):
        TrialFolder(str(tmp_path)).load()


def test_live_beside_simulated(trial: Trial) -> None:
    for arm, later_s in (("sbatch", 0.0), ("tick+moves", 120.0), ("placebo", 0.0)):
        trial.results[0, arm] = as_simulated(trial, arm, later_s)
    sbatch, moves, placebo = report.rows(trial)
    assert (sbatch.differs, placebo.differs) == (0.0, 0.0)
    assert moves.differs == pytest.approx(120.0 / (moves.live.mean_jct_s - 120.0))
    assert sbatch.over is None and moves.over is not None and moves.over.verdict == "cannot tell"
    text = "\n".join(report.lines(trial))
    assert "Cannot tell a gain or a loss: 1 independent piece " in text
    assert "Live differs from simulated by more than 5 %: tick+moves." in text
    assert "Due to scores:" in text and "Scheduler: a note." in text and "distorts" not in text
    assert [len(line.split("|")) for line in report.lines(trial, parsable=True)] == [11] * 4


def test_a_disturbed_arm_is_named(trial: Trial) -> None:
    trial.results[0, "sbatch"] = as_simulated(trial, "sbatch")._replace(strain=Strain(0.4, 0.1, 0.9))
    assert any(line.startswith("sbatch: this machine distorts (loop delay 0.40 s") for line in report.lines(trial))


def test_json_and_rows_of_jobs(trial: Trial) -> None:
    trial.results[0, "sbatch"] = as_simulated(trial, "sbatch")
    body = json.loads(json.dumps(report.as_json(trial), allow_nan=False))
    assert body["unfinished"] == ["tick+moves", "placebo"]
    assert body["causes"] == {"gathering": None, "waiting": None, "scores": None, "order": None}
    assert body["arms"][0]["live_over_simulated"] == 1.0
    assert len(body["jobs"]) == 4 and set(body["jobs"][0]) == set(report.JOB_COLUMNS)
    row = body["jobs"][0]
    assert (row["job_id"], row["submit_s"], row["start_s"]) == ("j0", 0.0, row["simulated_start_s"])


def test_nothing_finished_is_said(trial: Trial) -> None:
    assert report.lines(trial) == ["No arm is finished."]


def test_the_ticks_of_an_arm_are_decided_again(trial: Trial, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    kept = test_kept_ticks.Kept(
        test_tick.Site(tmp_path / "site", fast=3), Path(trial.folder.ticks(0, "tick+moves")), 256
    )
    test_kept_ticks.work(kept, 3)
    kept.keeper.close()
    kept.site.journal.close()
    kept.site.log.close()
    for arm in ("sbatch", "tick+moves", "placebo"):
        trial.results[0, arm] = as_simulated(trial, arm)
    trial.decide_again()
    assert "tick+moves: its ticks decided again: identical, 3 of 3." in report.lines(trial)
    rows = {row["arm"]: row["ticks_again"] for row in report.as_json(trial)["arms"]}
    assert rows == {
        "sbatch": [],
        "tick+moves": [{"ticks": 3, "identical": 3, "trouble": ""}],
        "placebo": [],
    }
    path = test_kept_ticks.first(kept)
    head, body = test_kept_ticks.head_of(path)
    test_kept_ticks.rewritten(path, head, body | {"decided": {}})
    trial.decide_again()
    assert "its ticks decided again: 2 of 3; pal ticks " in "\n".join(report.lines(trial))
    path.write_bytes(b"")
    trial.decide_again()
    assert "its ticks cannot be decided again: " in "\n".join(report.lines(trial))
