# SPDX-License-Identifier: MIT
"""pal simulate --site on a fake Slurm: what it reads, what it prints, and how it fails."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_pal.base.errors import DataError, PalError, SlurmError, UsageError, one_line
from slurm_pal.cli.pal import pal
from slurm_pal.cli.simulate import site as simulate_site
from slurm_pal.cli.simulate import twin as simulate_twin
from slurm_pal.simulate import metrics
from slurm_pal.slurm import accounting
from slurm_pal.slurm.fake import FakeNode, write_shims
from slurm_pal.store import snapshot

from ...doubles.fake_commands import in_process

HEADER = "|".join(accounting.COLUMNS)
NODES = ("n0", "n1")

FEW, JOBS = 6, 34  # JOBS: seven of our short weeks, enough for a claim
WEEK_S = 40_000.0


@pytest.fixture(autouse=True)
def short_weeks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim needs six weeks, and what a replay costs grows with the hours and the jobs in them."""
    monkeypatch.setattr(metrics, "WEEK_S", WEEK_S)
    monkeypatch.setattr(metrics, "LEAST_JOBS", 4)


def row(number: int, gpus: int = 1, **changes: object) -> str:
    """One job of an hour; a job every 8000 s, so that none meets another, wherever seeds move them."""
    submit_s = 1_790_000_000 + 8000 * number
    values = dict(zip(accounting.COLUMNS, (
        number, f"u{number % 3}", "lab", "normal", "gpu", submit_s, submit_s, submit_s, submit_s + 3600, 3600, 120, 1,
        f"gres/gpu={gpus},node=1", f"gres/gpu={gpus},node=1", "COMPLETED", "train",
    ), strict=True)) | changes  # fmt: skip
    return "|".join(str(value) for value in values.values())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake Slurm on PATH with two nodes of two GPUs, n0:0 slow in class A; its sacct prints the file `rows`."""
    commands = tmp_path / "bin"
    commands.mkdir()
    write_shims(str(commands), str(tmp_path / "fake.json"), [FakeNode(name, gpus=2) for name in NODES])
    in_process(monkeypatch)
    (tmp_path / "pal.toml").write_text(f'[paths]\nstate_dir = "{tmp_path}"\n[apps]\ntrain = "A"\nlook = "C"\n')
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    sacct(tmp_path, f'echo "$@" > {tmp_path}/argv; cat {tmp_path}/rows')
    history(tmp_path, [row(number) for number in range(FEW)])
    publish(tmp_path)
    return tmp_path


def sacct(site: Path, body: str) -> None:
    (site / "bin/sacct").write_text(f"#!/bin/sh\n{body}\n")
    (site / "bin/sacct").chmod(stat.S_IRWXU)


def history(site: Path, rows: Sequence[str], name: str = "rows") -> str:
    (site / name).write_text("".join(f"{line}\n" for line in (HEADER, *rows)))
    return str(site / name)


def publish(site: Path, nodes: Sequence[str] = NODES, slow: float = 1.5) -> None:
    scores = [
        snapshot.GpuScore(
            name, k, f"{name}-{k}", "m", {"A": slow if (name, k) == ("n0", 0) else 1.0, "B": 1.0, "C": 1.0}, {}, 1.0,
            1.0, (),
        )
        for name in nodes
        for k in range(2)
    ]  # fmt: skip
    snapshot.publish(str(site / "snapshot"), scores, cluster="fake", epoch=1, now_s=1.0)


def invoke(*words: str) -> Result:
    """Without placebo runs, which cost time, unless they are asked for (--causes)."""
    return CliRunner().invoke(pal, ["simulate", "--site", "--jobs", "1", "--seeds", "1", "--no-causes", *words])


def failed(*words: str) -> PalError:
    result = invoke(*words)
    assert isinstance(result.exception, PalError), (result.exception, result.output)
    assert "\n" not in one_line(result.exception) and not result.stdout
    return result.exception


def test_five_lines_from_slurm_scores_and_sacct(site: Path) -> None:
    history(site, [row(number) for number in range(JOBS)])
    result = invoke()
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "Replayed", "Mean completion time", "Who gains (palsub+tick, completion time by class)", "Slow GPUs", "Charged",
    ]  # fmt: skip
    assert f"{JOBS} jobs, {JOBS} GPU-h" in lines[0] and "4 GPUs: 2 nodes x 2" in lines[0]
    assert "palsub+tick 60.0 min, ratio 0.67" in lines[1]
    assert "n0:0 1.50" in lines[3] and "100 % of the gain is due to them" in lines[3]
    assert "locality penalty x 1.7" in lines[4] and "scores (4 of 4 GPUs) are the GPUs' true slowdowns" in lines[4]
    assert "they are known exactly, and stay so" in lines[4]
    assert (site / "argv").read_text().split() == accounting.argv("now-60days")[1:]


def test_the_sites_own_settings_stand_unless_an_option_is_given(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PAL_PLACEMENT_BARRED_SLOWDOWN", "1.6")
    monkeypatch.setenv("SLURM_PAL_PLACEMENT_LOCALITY_PENALTY", "1.3")
    said = invoke("--move-cost", "99").stdout
    assert (
        "none is slower than 1.6" in said and "locality penalty x 1.3" in said and "move 99 s and Slurm's gap" in said
    )
    assert "1 slower than 1.2" in invoke("--bar", "1.2").stdout


def test_what_is_charged_is_what_the_tick_does_here(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PAL_REBALANCE_MOVES", "false")
    monkeypatch.setenv("SLURM_PAL_REBALANCE_ORDER", "fair")
    said = invoke("--tick", "77").stdout
    assert "move none: nothing moves" in said and "and every 77 s by the tick" in said
    assert "moves = false" in said and "order = fair" in said


def test_what_is_known_of_the_gpus_may_be_wrong(site: Path) -> None:
    """With no score at all n0:0 counts as fast as the others, and nothing is gained."""
    wrong = invoke("--scores", "missing=1")
    assert "what is known is off: missing 1" in wrong.stdout and "palsub 90.0 min, ratio 1.00" in wrong.stdout
    assert "palsub 60.0 min, ratio 0.67" in invoke("--scores", "exact").stdout
    assert "must be exact or one of noise=0..1" in str(failed("--scores", "perfect"))


def test_days_reach_sacct(site: Path) -> None:
    assert invoke("--days", "7").exit_code == 0
    assert "-S now-7days -E now" in (site / "argv").read_text()


def test_a_file_instead_of_sacct(site: Path) -> None:
    sacct(site, "exit 9")
    path = history(site, [row(0), row(1, Partition="old"), row(2, 9), row(3, State="RUNNING")], "own")
    result = invoke("--trace", path)
    assert result.exit_code == 0
    assert "2 jobs, 2 GPU-h" in result.stdout and "Left out: 1 jobs, 81.8 % of the history's GPU-h" in result.stdout
    assert "note: 1 jobs (1 GPU-h) changed: partition old does not exist: replayed on gpu." in result.stderr
    assert "note: 1 jobs (9 GPU-h) left out: wants more GPUs than partition gpu has for it (4)." in result.stderr
    assert "not replayed: 1 x still running" in result.stderr


def test_classes_of_unknown_jobs(site: Path) -> None:
    history(site, [row(k, JobName="train" if k % 2 else "x") for k in range(20)])
    as_a = invoke().stdout.splitlines()[2]
    assert "10 of 20 jobs are of unknown class and counted as A: an upper bound. All of them as C" in as_a
    mixed = invoke("--class-mix", "B=.5,C=.5").stdout
    assert "upper bound" not in mixed and "10 jobs of unknown class drawn (B 0.5, C 0.5)" in mixed
    assert "unknown" not in invoke("--app-pattern", "x=look").stdout
    assert isinstance(failed("--class-mix", "X=1"), UsageError)


def test_more_with_v_and_for_programs(site: Path) -> None:
    (header,) = [line.split() for line in invoke("-v").stdout.splitlines() if line.startswith("POLICY")]
    assert header[:2] == ["POLICY", "PAIRS"]
    rows = [line.split("|")[0] for line in invoke("-P", "--noheader").stdout.splitlines()]
    assert rows == ["slurm", "palsub", "palsub+tick"]
    history(site, [row(number) for number in range(JOBS)])
    answer = json.loads(invoke("--json").stdout)
    assert answer["schema"] == "pal.simulate/1" and answer["claim"]["verdict"] == "gain"
    assert list(answer["policies"]) == ["slurm", "palsub", "palsub+tick"]
    assert answer["site"]["slow_gpus"] == [{"node": "n0", "index": 0, "slowdown": 1.5}]
    assert len(answer["site"]["lines"]) == 5 and answer["worst_gpus"]["share"] == pytest.approx(1.0)


FACTORS = ["scores", "gathering", "rest"]
"""What a ratio is made of where pal.toml lets the tick do nothing to the queue."""


def test_what_the_ratio_is_made_of(site: Path) -> None:
    """Slurm's first choice is a slow GPU: true scores keep jobs off it, those of other GPUs do not."""
    history(site, [row(number) for number in range(JOBS)])
    answer = json.loads(
        invoke("--causes", "--json", "--seeds", "1", "--tick", "600", "--out", str(site / "report")).stdout
    )
    assert list(answer["causes"]) == FACTORS
    (whole,) = [row["ratio"]["mean_jct_s"] for row in answer["comparisons"] if row["policy"] == "palsub+tick"]
    assert all(
        cause.keys() == whole.keys() and cause["pieces"] == whole["pieces"] for cause in answer["causes"].values()
    )
    assert math.prod(cause["mean"] for cause in answer["causes"].values()) == pytest.approx(whole["mean"])
    scores, gathering = answer["causes"]["scores"], answer["causes"]["gathering"]
    assert scores["high"] < 1 and gathering["low"] == gathering["mean"] == 1.0
    assert "What the ratio is made of" in (site / "report/index.html").read_text()


def test_a_history_too_short_for_a_claim_is_none_for_its_causes_either(site: Path) -> None:
    lines = invoke("--causes", "-v").stdout.splitlines()
    assert lines[5].startswith("Made of (ratios of palsub+tick by placebo runs")
    assert [line.split()[0] for line in lines[6:9]] == FACTORS
    assert all("(no interval), cannot tell" in line for line in lines[6:9])
    assert lines[10].startswith("POLICY")
    assert "Made of" not in invoke("--no-causes").stdout
    assert json.loads(invoke("--json").stdout)["causes"] == {}


@pytest.mark.long
def test_what_the_order_of_the_queue_gains_is_never_called_scores(site: Path) -> None:
    """GPUs are all alike, and each week begins with long jobs before short ones: the order is all there is to gain."""
    settings = (site / "pal.toml").read_text()
    (site / "pal.toml").write_text(f'{settings}[rebalance]\norder = "shortest"\ninterval_s = 600.0\n')
    publish(site, slow=1.0)
    long, short = {"ElapsedRaw": 4 * 3600, "TimelimitRaw": 320}, {"ElapsedRaw": 1800, "TimelimitRaw": 60}
    jobs = []
    for number in range(6 * 10):
        week, k = divmod(number, 10)
        submit_s = 1_790_000_000 + int(WEEK_S) * week + 60 * k
        what = long if k < 4 else short
        moments = dict.fromkeys(("Submit", "Eligible", "Start"), submit_s) | {"End": submit_s + what["ElapsedRaw"]}
        jobs.append(row(number, 2, **moments, **what))
    history(site, jobs)
    words = ("--causes", "--seeds", "1", "--bf-interval", "600", "--tick", "600", "--out", str(site / "report"))
    said = invoke(*words).stdout
    assert re.search("^  order      0.* what the queue does, not the GPUs$", said, re.MULTILINE)
    assert "That faster GPUs have a share in the gain is not shown" in said
    answer = json.loads((site / "report/summary.json").read_text())
    assert list(answer["causes"]) == ["scores", "order", "gathering", "rest"]
    assert answer["claim"]["verdict"] == "gain" and answer["causes"]["order"]["high"] < 0.9
    assert answer["causes"]["scores"]["mean"] == 1.0


def test_only_jobs_that_the_site_lets_move_are_moved(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sacct does not show who would mark a job: what nobody may move is not counted as a gain."""
    history(site, [row(k, QOS="low" if k % 3 else "normal") for k in range(FEW)])
    assert f"0 of {FEW} jobs may be moved, by QOS or partition (--all-movable: every one)" in invoke().stdout
    assert "every job may be moved" in invoke("--all-movable").stdout
    monkeypatch.setenv("SLURM_PAL_REBALANCE_MOVABLE_QOS", "low, gone")
    assert f"0 of {FEW} jobs" in invoke().stdout, "Slurm would empty their output (JobFileAppend)"
    monkeypatch.setenv("SLURM_PAL_REBALANCE_MAY_EMPTY_OUTPUT", "true")
    assert f"4 of {FEW} jobs may be moved" in invoke().stdout


def test_what_takes_long_says_so_before_it_begins(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate_twin, "LONG_S", 0.5)
    assert "note: 12 replays of up to 6 jobs" in (result := invoke("--causes", "--seeds", "2")).stderr
    assert "sooner: fewer --seeds, --no-causes, fewer --days" in result.stderr
    monkeypatch.setattr(simulate_twin, "LONG_S", 600.0)
    assert "replays" not in invoke("--causes").stderr


def test_a_report_is_written(site: Path) -> None:
    assert invoke("--out", str(site / "report"), "--jobs-out", str(site / "jobs")).exit_code == 0
    assert (site / "report/index.html").exists() and (site / "jobs/palsub+tick.csv").exists()


def test_without_accounting_the_export_is_named(site: Path) -> None:
    sacct(site, "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    error = failed()
    assert isinstance(error, SlurmError)
    assert str(error) == (
        "sacct failed: Slurm accounting storage is disabled; or export the history where sacct works, and replay it "
        f"with --trace trace.txt: {accounting.export_command('now-60days')}"
    )


def test_a_slow_sacct_is_given_up(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sacct(site, "exec sleep 600")
    monkeypatch.setattr(simulate_site, "SACCT_TIMEOUT_S", 0.2)
    assert "sacct had not ended after 0.2 s: ask for fewer days" in str(failed())


def test_a_history_without_gpus(site: Path) -> None:
    history(site, [row(0, ReqTRES="cpu=1,node=1", AllocTRES="cpu=1,node=1")])
    assert "no job to replay (0 bad rows; not replayed: 1 x no GPUs)" in str(failed())


def test_without_scores_the_sweep_is_named(site: Path) -> None:
    publish(site, ["gone"])
    assert "has no score of any of the 4 GPUs here: run pal-profile run; or --profile drawn" in str(failed())
    (site / "snapshot").unlink()
    error = failed()
    assert isinstance(error, DataError) and "run pal-profile run; or --profile drawn" in str(error)


def test_a_typical_spread_can_be_assumed(site: Path) -> None:
    (site / "snapshot").unlink()
    result = invoke("--profile", "drawn")
    assert result.exit_code == 0 and "not measured here" in result.stderr and "not measured here" in result.stdout
    assert "n0:0" not in result.stdout


def test_missing_scores_are_counted(site: Path) -> None:
    publish(site, ["n0"])
    result = invoke()
    assert "note: 2 of 4 GPUs have no score and count as median ones" in result.stderr
    assert "scores (2 of 4 GPUs)" in result.stdout


@pytest.mark.parametrize(("uid", "users", "told"), [(4711, 1, True), (4711, 3, False), (0, 1, False)])
def test_a_user_who_sees_only_own_jobs_is_told(
    site: Path, monkeypatch: pytest.MonkeyPatch, uid: int, users: int, told: bool
) -> None:
    history(site, [row(k, User=f"u{k % users}") for k in range(10)])
    monkeypatch.setattr(simulate_site.os, "geteuid", lambda: uid)
    monkeypatch.setattr(simulate_site.snapshots, "read_trusted", lambda path: Path(path).read_bytes())
    assert ("All jobs are of user u0" in invoke().stderr) == told


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--trace", "x", "--days", "3"], "--days is for the history that sacct gives"),
        (["--profile", "medians"], "with --site the profile is the published snapshot, or drawn, not 'medians'"),
        (["--cluster", "2x2"], "--cluster means nothing with --site"),
        (["--policy", "pal"], "--policy means nothing with --site"),
        (["--trace", "no-such-file"], "no-such-file"),
        (["--queue", "no-such-queue"], "queue 'no-such-queue' is not one of"),
        (["--queue", "fifo,multifactor"], "queue 'fifo,multifactor': a site has only one"),
    ],
)
def test_options_that_cannot_be(site: Path, words: list[str], text: str) -> None:
    error = failed(*words)
    assert isinstance(error, UsageError) and text in str(error)


def test_site_options_need_site() -> None:
    result = CliRunner().invoke(pal, ["simulate", "--generate", "", "--days", "3"])
    assert isinstance(result.exception, UsageError) and "--days means nothing without --site" in str(result.exception)


def test_an_interruption_reports_complete_pairs(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_short(work: object, todo: Sequence[object], jobs: int, workers: int) -> tuple[dict[object, object], bool]:
        return {task: work.run(task) for task in todo[:keep]}, True  # type: ignore[attr-defined]

    monkeypatch.setattr(simulate_site, "carry_out", cut_short)
    keep = 2
    assert (result := invoke("--seeds", "2")).exit_code == 130 and not result.stdout
    keep = 3
    assert (result := invoke("--seeds", "2")).exit_code == 130 and len(result.stdout.splitlines()) == 5
    assert "Interrupted: 3 of 6 replays are complete" in result.stderr
