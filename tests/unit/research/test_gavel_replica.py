# SPDX-License-Identifier: MIT
"""The loop of Gavel's simulator on traces of a few jobs, worked out by hand, and its command line."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from slurm_pal.allocation.problem import Allocation
from slurm_pal.base.errors import DataError, Exit, UsageError
from slurm_pal.cli.pal import main
from slurm_pal.research.allocation_policies import POLICIES, names, policy
from slurm_pal.research.replica.gavel_comparison import GavelComparison
from slurm_pal.research.replica.gavel_jobs import GavelWorkload, parse_types, workload
from slurm_pal.research.replica.gavel_published import PROGRAMS, rules_of
from slurm_pal.research.replica.gavel_simulator import (
    Decide,
    GavelFigures,
    GavelMoment,
    GavelResult,
    GavelRules,
    GavelSettings,
    StoppedError,
    StuckError,
    run,
)
from slurm_pal.simulate.inputs.gavel import GavelRow
from slurm_pal.simulate.throughput_file import Throughputs

from ...doubles.json_page import differences, read

MODEL = ("M", 1)
TABLE = Throughputs(
    ("slow", "fast"),
    {MODEL: (1.0, 2.0), ("M", 2): (1.5, 3.0), ("only-fast", 1): (0.0, 1.0), ("only-slow", 1): (1.0, 0.0)},
    {(MODEL, MODEL): (0.8, 1.6), (("M", 2), ("M", 2)): (1.4, 2.8)},
)


def row(steps: int, arrival_s: float = 0.0, gpus: int = 1, model: str = "M", slo: float = -1.0) -> GavelRow:
    return GavelRow(model, "", "", "-n", False, steps, gpus, 1.0, slo, arrival_s)


def work(*rows: GavelRow, cluster: str = "fast:1,slow:1") -> GavelWorkload:
    return workload(rows, parse_types(cluster), TABLE)


def to(*columns: int) -> Decide:
    """Every job all of its time in these columns (0 = fast, 1 = slow), by number."""

    def decide(moment: GavelMoment) -> Allocation:
        shares = np.zeros((len(moment.numbers), 2))
        for place, number in enumerate(moment.numbers):
            shares[place, columns[number]] = 1.0
        return Allocation(shares)

    return decide


def simulated(jobs: GavelWorkload, rules: GavelRules | Decide | str, **given: object) -> GavelResult:
    if rules in PROGRAMS:
        pytest.importorskip("ecos")
    settings = GavelSettings(**given)  # type: ignore[arg-type]
    chosen = rules_of(rules, jobs, 0) if isinstance(rules, str) else rules
    return run(jobs, "it", chosen if isinstance(chosen, GavelRules) else GavelRules(chosen), settings)


def finishes(found: GavelResult) -> list[float]:
    return [outcome.finish_s for outcome in found.outcomes]


def test_a_job_runs_round_by_round_at_its_rate() -> None:
    found = simulated(work(row(1000)), to(0))
    assert finishes(found) == [500.0]  # 720 steps in the first round, 280 in the second
    assert found.figures.rounds == 2
    assert found.figures.utilisation == pytest.approx(500 / (500 * 2))
    assert (found.figures.extended, found.figures.preemptions) == (1.0, 0)


def test_a_round_lasts_until_the_last_of_its_jobs() -> None:
    found = simulated(work(row(100), row(1000), row(100)), to(0, 1, 0))
    # Job 2 waits for the end of the round, 360 s, although the fast GPU is free from 50 s on.
    assert finishes(found)[0] == 50.0
    assert found.outcomes[2].start_s >= 360.0


def test_who_comes_between_resets_waits_and_its_gpu_idles() -> None:
    jobs = work(row(9000), row(100, arrival_s=10.0), row(100, arrival_s=400.0))
    found = simulated(jobs, to(1, 0, 0))
    # Shares are computed at 0 s, at 360 s (no wait after a reset at 0) and then not before 2280 s.
    assert [outcome.start_s for outcome in found.outcomes] == [0.0, 360.0, 2520.0]
    prompt = simulated(jobs, to(1, 0, 0), reset_s=0.0)
    assert [outcome.start_s for outcome in prompt.outcomes] == [0.0, 360.0, 720.0]


def test_a_gang_with_fewer_steps_than_gpus_is_dropped() -> None:
    found = simulated(work(row(1081, gpus=2), cluster="fast:2"), lambda moment: Allocation(np.ones((1, 1))))
    assert [outcome.dropped for outcome in found.outcomes] == [True]  # 1080 steps in a round, one is left
    assert found.figures.dropped == 1 and np.isnan(found.figures.avg_jct_s)


def test_a_gap_without_jobs_is_skipped() -> None:
    found = simulated(work(row(100), row(100, arrival_s=5000.0)), to(0, 0))
    assert finishes(found) == [50.0, 5050.0]
    assert found.figures.avg_jct_s == 50.0
    # As published, the time before the arrival counts as busy.
    assert found.figures.utilisation == pytest.approx(5050 / (5050 * 2))


def test_the_last_job_does_not_wait_for_a_reset_that_nothing_brings() -> None:
    jobs = work(row(100), row(100, arrival_s=10.0), row(100, arrival_s=60.0))
    for window in (None, (0, 3)):
        # Shares at 0 and 50 s; the third job comes in the second round, which ends at 100 s.
        assert finishes(simulated(jobs, to(0, 0, 0), window=window)) == [50.0, 100.0, 150.0]


def test_the_window_says_who_counts_and_when_to_stop() -> None:
    jobs = work(row(100), row(200), row(100000))
    found = simulated(jobs, to(0, 0, 1), window=(1, 2))
    assert [outcome.number for outcome in found.outcomes] == [1]
    assert found.figures.makespan_s == 720.0  # the end of the round in which job 1 ended


def test_a_pair_shares_its_gpu_and_ends_together() -> None:
    jobs = work(row(360), row(720), cluster="fast:1")
    found = simulated(jobs, "gavel:max-min+packing")
    first, second = found.outcomes
    assert first.start_s == second.start_s == 0.0
    assert first.finish_s == 360.0  # 576 steps per round at 1.6 steps/s; the first needs 225 s, its pair 360 s
    assert second.finish_s == pytest.approx(360.0 + 144 / 2.0)


def test_nobody_runs_for_ever() -> None:
    nothing = GavelRules(lambda moment: Allocation(np.zeros((1, 2))), entitled_only=True)
    with pytest.raises(StuckError, match="1 jobs are left and none makes progress"):
        simulated(work(row(10)), nothing)


def test_a_pair_of_gangs_with_fewer_steps_than_gpus_is_not_tried_for_ever() -> None:
    jobs = work(row(2801, gpus=2), row(2801, gpus=2), cluster="fast:2")  # after two rounds of 1400 steps one is left
    with pytest.raises(StuckError, match=r"2 jobs are left and none makes progress: .* leave that policy out"):
        simulated(jobs, "gavel:max-min+packing", round_s=500.001)


@pytest.mark.parametrize("name", ["gavel:ftf-agnostic", "gavel:makespan-agnostic"])
def test_a_job_that_cannot_run_on_the_reference_type(name: str) -> None:
    found = simulated(work(row(9000, model="only-slow"), row(9000), row(900, arrival_s=3000.0)), name)
    first, second, third = finishes(found)
    assert first >= 9000 and second >= 4500 and third >= 3450
    assert found.figures.makespan_s < 2 * 9000


def test_a_run_can_be_stopped() -> None:
    told: list[tuple[int, int]] = []
    compared = GavelComparison(work(row(1000), row(10), row(10, arrival_s=5000.0)), ("gavel:isolated",))
    compared.run("gavel:isolated", lambda done, of: told.append((done, of)) or True)
    assert told[0] == (0, 3) and told[-1] == (3, 3) and told == sorted(told)
    with pytest.raises(StoppedError, match="stopped"):
        compared.run("gavel:isolated", lambda done, of: False)


@pytest.mark.parametrize("name", names())
def test_every_policy_ends_every_job(name: str) -> None:
    jobs = work(row(3000), row(900, slo=2.0), row(5000), row(100, arrival_s=400.0), cluster="fast:1,slow:2")
    if policy(name).priced:
        with pytest.raises(UsageError, match="'fast' has no published price"):
            rules_of(name, jobs, 0)
        return
    found = simulated(jobs, name)
    assert len(found.outcomes) == 4 and found.figures.dropped == 0
    best_s = [3000 / 2, 900 / 2, 5000 / 2, 100 / 2]
    assert all(o.jct_s >= best - 1e-6 for o, best in zip(found.outcomes, best_s, strict=True))


def test_the_same_seed_is_the_same_run() -> None:
    jobs = work(*(row(2000 + 100 * k) for k in range(6)), cluster="fast:2,slow:2")
    figures: list[GavelFigures] = [simulated(jobs, "gavel:isolated", seed=seed).figures for seed in (3, 3, 4)]
    assert figures[0] == figures[1] != figures[2]


def test_priority_of_policies_and_suffixes() -> None:
    assert policy("gavel:max-min+packing").pairs and not policy("gavel:max-min").pairs
    with pytest.raises(UsageError, match=r"gavel:allox has no \+packing; those that have are gavel:fifo-perf"):
        policy("gavel:allox+packing")
    with pytest.raises(UsageError, match="policy 'gavel:best' is not one of"):
        policy("gavel:best")
    assert all(row.summary for row in POLICIES.values())


@pytest.mark.parametrize("text", ["fast", "fast:0", "fast:1,", "fast:1,fast:2", "4x4", ""])
def test_bad_clusters(text: str) -> None:
    with pytest.raises(UsageError, match="must be TYPE:GPUS"):
        parse_types(text)


def test_jobs_that_cannot_be_simulated() -> None:
    with pytest.raises(UsageError, match="'M' on 2 GPUs runs on no type of fast:1,slow:1"):
        work(row(10, gpus=2))
    with pytest.raises(UsageError, match="'only-fast' on 1 GPUs runs on no type of slow:4"):
        work(row(10, model="only-fast"), cluster="slow:4")
    with pytest.raises(DataError, match="no 'N' on 1 GPUs"):
        work(row(10, model="N"))
    with pytest.raises(UsageError, match="gavel:allox is for jobs of 1 GPU; job 0 has 2"):
        rules_of("gavel:allox", work(row(10, gpus=2), cluster="fast:2"), 0)
    with pytest.raises(UsageError, match="window 1:3 must be FIRST:END of job numbers within 0:2"):
        simulated(work(row(10), row(10)), to(0, 0), window=(1, 3))


# -- command line -------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    trace, table = tmp_path / "t.trace", tmp_path / "t.csv"
    lines = [f"M\tc\td\t-n\t0\t{steps}\t1\t1\t-1\t0" for steps in (1000, 3000, 500)]
    trace.write_text("\n".join(lines) + "\n", encoding="utf-8")
    table.write_text("model,scale_factor,slow,fast\nM,1,1,2\n", encoding="utf-8")
    return ["--trace", str(trace), "--throughputs", str(table), "--cluster", "fast:1,slow:1"]


def pal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, *argv: str
) -> tuple[int, str, str]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["pal", "simulate", "--jobs", "1", *argv])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_table_json_and_jobs(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ["--replica", "gavel", *files, "--policy", "gavel:isolated,gavel:fifo-perf"]
    code, out, _ = pal(monkeypatch, capsys, tmp_path, *argv, "--jobs-out", str(tmp_path / "jobs"))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["POLICY", "gavel:isolated", "gavel:fifo-perf"]
    with open(tmp_path / "jobs" / "gavel-fifo-perf.csv", newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [(r["job_id"], r["finish_s"]) for r in rows[:1]] == [("0", "500.000")]
    _, text, _ = pal(monkeypatch, capsys, tmp_path, *argv, "--json", "--window", "0:2")
    body = json.loads(text)
    assert differences(body, read()) == []
    assert (body["schema"], body["replica"], body["window"]) == ("pal.simulate-gavel/1", "gavel", [0, 2])
    jct_s = [(float(r["finish_s"]) - float(r["submit_s"])) for r in rows[:2]]
    assert body["policies"]["gavel:fifo-perf"]["avg_jct_s"] == pytest.approx(sum(jct_s) / 2, abs=1e-3)
    _, lines, _ = pal(monkeypatch, capsys, tmp_path, *argv, "-P", "--noheader")
    assert [len(line.split("|")) for line in lines.splitlines()] == [10, 10]


def test_a_sites_own_table_and_figures_that_do_not_exist(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "site.csv"
    table.write_text("application,gpus,type,steps_per_s\nM,1,slow,1\nM,1,fast,2\n", encoding="utf-8")
    argv = ["--replica", "gavel", *files, "--policy", "gavel:isolated", "-P", "--noheader"]
    first = pal(monkeypatch, capsys, tmp_path, *argv)
    assert pal(monkeypatch, capsys, tmp_path, *argv, "--throughputs", str(table)) == first
    one = tmp_path / "one.trace"
    one.write_text("M\tc\td\t-n\t0\t100\t1\t1\t-1\t0\n", encoding="utf-8")
    argv[argv.index("--trace") + 1] = str(one)
    _, line, _ = pal(monkeypatch, capsys, tmp_path, *argv)
    assert line.split("|")[5] == "-", "no lease has come to its end"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--window", "5"), "window '5' must be FIRST:END"),
        (("--window", "0:9"), "window 0:9 must be FIRST:END of job numbers within 0:3"),
        (("--policy", "pal"), "policy 'pal' is not one of gavel:fifo"),
        (("--format", "sia"), "format 'sia' is not gavel"),
        (("--queue", "fifo"), "--queue means nothing with --replica gavel"),
        (("--out", "x"), "--out means nothing with --replica gavel"),
        (("--cluster", "v100:4/2,p100:4/2"), "--replica gavel knows no nodes: give --cluster v100:4,p100:4"),
        (("--cluster", "2x4"), "must be TYPE:GPUS"),
        (("--trace", "another"), "--trace is given 2 times; here one trace is replayed"),
    ],
)
def test_what_is_refused(
    files: list[str],
    argv: tuple[str, ...],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    code, out, err = pal(monkeypatch, capsys, tmp_path, "--replica", "gavel", *files, *argv)
    assert (code, out) == (Exit.USAGE, "") and words in err


def test_without_ecos_one_line_names_the_package(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ecos", None)
    argv = ["--replica", "gavel", *files, "--policy", "gavel:fifo-perf,gavel:max-min"]
    code, out, err = pal(monkeypatch, capsys, tmp_path, *argv)
    assert (code, out, err.count("\n")) == (Exit.MISSING, "", 1)
    assert "gavel:max-min is solved by ECOS" in err and "pip install ecos" in err


def test_such_a_trace_in_the_replay_of_slurm(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = [*files[:4], "--format", "gavel", "--cluster", "1x2", "--seeds", "1", "--policy", "packed", "--json"]
    code, out, err = pal(monkeypatch, capsys, tmp_path, *argv)
    assert code == 0, err
    assert "packed" in json.loads(out)["policies"]
    code, _, err = pal(monkeypatch, capsys, tmp_path, *files[:2], "--format", "gavel")
    assert code == Exit.USAGE and "--throughputs FILE" in err
