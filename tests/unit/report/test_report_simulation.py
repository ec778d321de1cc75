# SPDX-License-Identifier: MIT
"""Tables, JSON and files of a simulation report."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import stat
from pathlib import Path

import pytest

from slurm_pal.base.errors import UsageError
from slurm_pal.report.simulation.files import SUMMARY, claim_folder, jobs_csv, save, summary_json
from slurm_pal.report.simulation.study import ParameterSweep, PolicyComparison, Study, compare
from slurm_pal.report.simulation.tables import (
    BAD_ROWS,
    causes,
    caveats,
    claim,
    not_the_scores,
    table,
    to_json,
    what_you_gain,
)
from slurm_pal.report.simulation.words import count, interval, unclear_because, unit_of
from slurm_pal.report.table import columns
from slurm_pal.simulate.result import JobOutcome, Replay
from slurm_pal.simulate.statistics import Ratio, WorstGpus, summary
from slurm_pal.simulate.trace import Trace

from ...doubles.replay_factory import drawn, outcome, replay, trace_of

OURS = {SUMMARY: '{"schema": "pal.simulation/1"}'}


def job(policy: str, seed: int, jct_s: float, **changes: object) -> Replay:
    """One run of one job, on a trace of its own for each seed."""
    return replay([outcome(finish_s=jct_s)], policy=policy, seed=seed, trace=seed, **changes)


def study_of(ours: list[float], **changes: object) -> Study:
    """A comparison of `pal` with `packed` whose pairs have these ratios."""
    runs = [job("packed", seed, 7200.0) for seed in range(len(ours))]
    runs += [job("pal", seed, 7200.0 * ratio) for seed, ratio in enumerate(ours)]
    return Study(runs, "pal", "packed", trace_of(runs[0]))._replace(**changes)  # type: ignore[arg-type]


def made_up() -> PolicyComparison:
    runs = [
        drawn(p, s, jobs=60, slowdown=f, moves=m) for p, f, m in (("packed", 1, 0), ("pal", 0.8, 9)) for s in (1, 2)
    ]
    return compare(Study(runs, "pal", "packed", trace_of(runs[0])))


def test_the_table_has_a_row_per_policy() -> None:
    header, rows = table(made_up())
    assert header == ["POLICY", "PAIRS", "JCT(h)", "RATIO", "95% INTERVAL", "P99(h)", "MAKESPAN(h)", "UTIL", "MOVES",
                      "SLOWDOWN A", "SPREAD"]  # fmt: skip
    assert [row[0] for row in rows] == ["packed", "pal"]
    assert rows[0][1:5:3] == ["-", "baseline"] and rows[1][1] == "2"
    assert [row[8] for row in rows] == ["0", "9"]
    assert all(len(row) == len(header) for row in rows)
    assert len(columns(header, rows)) == 3


def test_queues_are_compared_apart() -> None:
    runs = [job("packed", 1, 1000.0), job("pal", 1, 500.0)]
    runs += [
        job("packed", 1, 1000.0, queue="easy"),
        job("pal", 1, 900.0, queue="easy"),
        job("fit", 1, 1.0, queue="lone"),
    ]
    study = Study(runs, "pal", "packed", trace_of(runs[0]))
    header, rows = table(compare(study))
    assert header[1] == "QUEUE"
    assert [(row[0], row[1], row[4]) for row in rows] == [
        ("packed", "fifo", "1"),
        ("pal", "fifo", "0.50"),
        ("packed", "easy", "1"),
        ("pal", "easy", "0.90"),
        ("fit", "lone", "-"),  # nothing there to compare with
    ]
    assert "0.90" in claim(compare(study._replace(queue="easy")))
    with pytest.raises(UsageError, match="no run of policy 'packed' under queue 'lone'"):
        compare(study._replace(queue="lone"))


def test_a_clear_gain_is_told_with_its_interval() -> None:
    text = claim(compare(study_of([0.8, 0.82, 0.78, 0.8, 0.82, 0.78])))
    assert text.startswith(
        "pal takes 0.80 of packed's mean job completion time: 20 % shorter (95 % interval 0.78 to 0.82"
    )
    assert "6 pairs of 6 independent traces or weeks" in text and "no clear" not in text


def test_an_interval_with_one_in_it_is_no_gain() -> None:
    lines = what_you_gain(compare(study_of([0.7, 1.2, 0.8, 0.95, 0.9, 1.0])))
    assert len(lines) == 5
    assert lines[0].startswith("Completion time: no clear gain.")
    assert "includes 1.00" in lines[0]
    assert "shorter" not in lines[0]
    assert "no clear change" in lines[2]


def test_a_loss_is_called_one() -> None:
    text = claim(compare(study_of([1.2, 1.21, 1.19, 1.2, 1.2, 1.2])))
    assert text.startswith("a loss. ") and "20 % longer" in text


def test_one_pair_is_no_claim() -> None:
    comparison = compare(study_of([0.5] * 5))
    said = (
        "cannot tell. pal takes 0.50 of packed's mean job completion time in 5 pairs (5 independent traces or weeks, "
    )
    assert claim(comparison) == said + "at least 6 are needed)."
    assert "5 independent traces or weeks only" in " ".join(caveats(comparison))
    assert to_json(comparison)["claim"]["verdict"] == "cannot tell"


def test_what_a_gain_is_made_of() -> None:
    """Nothing is called faster GPUs that shuffled scores bring as well."""
    gain, nothing = [0.8, 0.82, 0.78, 0.8, 0.82, 0.78], [0.99, 1.01, 1.02, 0.98, 1.0, 1.0]
    parts = {"waiting": summary(gain), "scores": summary(nothing), "gathering": summary([1.0] * 6)}
    comparison = compare(study_of(gain, causes=parts))
    assert [(name, ratio[:4]) for name, ratio, _ in causes(comparison)] == [
        ("scores", "1.00"), ("gathering", "1.00"), ("waiting", "0.80"),
    ]  # fmt: skip
    assert causes(comparison)[0][1].endswith("no clear change")
    assert "not shown: shuffled scores do about as well" in not_the_scores(comparison)
    assert to_json(comparison)["causes"]["waiting"]["pieces"] == 6
    assert not_the_scores(compare(study_of(gain, causes={**parts, "scores": summary(gain)}))) == ""
    assert not_the_scores(compare(study_of(gain))) == "" and causes(compare(study_of(gain))) == []


def test_intervals_that_disagree() -> None:
    skewed = Ratio(1.3, 1.05, 1.9, 24, 1.0, 0.9, 1.1, 0.3)
    assert "geometric mean, 0.90 to 1.10" in unclear_because(skewed)


def test_policies_without_a_finished_pair() -> None:
    runs = [job("packed", 1, 1000.0, complete=False), job("pal", 1, 500.0, complete=False)]
    comparison = compare(Study(runs, "pal", "packed", trace_of(runs[0])))
    assert "nothing to compare" in claim(comparison)
    assert len(what_you_gain(comparison)) == 5
    assert any("2 of 2 runs were interrupted" in text for text in caveats(comparison))
    assert json.loads(summary_json(to_json(comparison)))["claim"]["verdict"] == "unclear"


def test_timeouts_are_a_caveat() -> None:
    runs = [job("packed", 1, 1000.0), replay([outcome(end="TIMEOUT")], policy="pal")]
    text = " ".join(caveats(compare(Study(runs, "pal", "packed", Trace("t", ()), caveats=("mine.",)))))
    assert "1 a run with pal, 0 with packed" in text and text.endswith("mine.")


def test_the_worst_off_group_is_named() -> None:
    def run(policy: str, wide: float) -> Replay:
        return replay([outcome("1"), outcome("2", gpus=8, finish_s=wide)], policy=policy)

    runs = [run("packed", 1000.0), run("pal", 1500.0)]
    assert "jobs of 5-8 GPUs, ratio 1.50" in what_you_gain(compare(Study(runs, "pal", "packed", Trace("t", ()))))[4]


def test_json_is_plain_and_complete() -> None:
    worst = WorstGpus(2, summary([0.8, 0.81] * 3), summary([0.9] * 6))
    load = ParameterSweep("load", {"pal": [(0.5, summary([0.9])._replace(mean=math.inf))]})
    study = made_up().study._replace(worst=worst, load=load, charged=(("move", "180 s"),), command="pal simulate x")
    study = study._replace(trace=trace_of(study.runs[0], bad=BAD_ROWS + 5, skipped={"no GPUs": 3}))
    body = json.loads(summary_json(to_json(compare(study))))
    assert body["schema"] == "pal.simulation/1"
    assert (body["trace"]["bad_rows"], len(body["trace"]["bad"])) == (BAD_ROWS + 5, BAD_ROWS)
    assert body["charged"] == {"move": "180 s"}
    assert body["worst_gpus"]["share"] == pytest.approx(0.51, abs=0.05)
    assert body["load"]["lines"]["pal"][0]["ratio"]["mean"] is None  # infinite: JSON has no word for it
    assert len(body["runs"]) == 4 and body["runs"][0]["metrics"]["jobs"] == 60
    base, pal = body["comparisons"]
    assert base["ratio"] == {} and base["verdict"] is None
    assert pal["ratio"]["mean_jct_s"]["pairs"] == 2 and "n" not in pal["ratio"]["mean_jct_s"]
    assert set(pal["ratio"]) >= {"p99_jct_s", "class_jct_s.A", "size_jct_s.1", "slowdown.A"}


@pytest.mark.parametrize(
    ("most_s", "unit"),
    [(0.0, "s"), (119.0, "s"), (120.0, "min"), (7199.0, "min"), (7200.0, "h"), (863999.0, "h"), (864000.0, "d")],
)
def test_units(most_s: float, unit: str) -> None:
    assert unit_of([0.0, most_s, None]).name == unit


def test_short_words() -> None:
    assert unit_of([]).text(None) == "-" and unit_of([7200.0]).text(5400.0) == "1.50"
    assert (count(None), count(0.0), count(2.5), count(12.4)) == ("-", "0", "2.5", "12")
    assert (interval(None), interval(summary([0.5]))) == ("-", "-")


# Files


def test_jobs_csv_has_every_field() -> None:
    run = replay([outcome("1", nodes=("n2", "n1"), start_s=0.12345, user='a,"b"\n')], policy="pal", seed=7)
    rows = list(csv.DictReader(io.StringIO(jobs_csv([run, run]))))
    assert len(rows) == 2
    assert list(rows[0]) == ["policy", "queue", "seed", *JobOutcome._fields, "jct_s", "wait_s"]
    assert rows[0]["nodes"] == "n[1-2]" and rows[0]["start_s"] == "0.123" and rows[0]["user"] == 'a,"b"\n'
    assert (rows[0]["policy"], rows[0]["seed"], rows[0]["jct_s"], rows[0]["wait_s"]) == ("pal", "7", "1000.0", "0.123")


def test_summary_refuses_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        summary_json({"x": math.nan})


def test_a_new_folder_is_readable_by_all(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "report"
    before = os.umask(0o077)
    try:
        paths = save(str(folder), {**OURS, "jobs.csv": "x\n", "p.png": b"\x89"})
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert [os.path.basename(path) for path in paths] == [SUMMARY, "jobs.csv", "p.png"]
    assert {stat.S_IMODE(os.stat(path).st_mode) for path in paths} == {0o644}
    assert (folder / "p.png").read_bytes() == b"\x89"


def test_a_report_of_ours_is_replaced_and_loses_its_old_pictures(tmp_path: Path) -> None:
    save(str(tmp_path), {**OURS, "old.png": b"1", "jobs.csv": "1"})
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    save(str(tmp_path), {**OURS, "jobs.csv": "2"}, replaced=["old.png", "never.png"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["jobs.csv", "notes.txt", SUMMARY]
    assert (tmp_path / "jobs.csv").read_text(encoding="utf-8") == "2"


@pytest.mark.parametrize(
    "content",
    [None, "", "not JSON", "[]", '{"schema": "other/1"}', '{"schema": 3}', "[" * 100_000, b"\xff\xfe"],
)
def test_a_folder_of_others_is_left_alone(tmp_path: Path, content: str | bytes | None) -> None:
    (tmp_path / "precious.txt").write_text("x", encoding="utf-8")
    if content is not None:
        (tmp_path / SUMMARY).write_bytes(content if isinstance(content, bytes) else content.encode())
    names = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(UsageError, match="not empty and holds no report") as caught:
        save(str(tmp_path), {**OURS, "jobs.csv": "x"})
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x", encoding="utf-8")
    with pytest.raises(UsageError, match="is a file"):
        save(str(path), OURS)
    with pytest.raises(UsageError, match="cannot write the report"):
        save(str(path / "below"), OURS)


def test_claiming_an_empty_folder(tmp_path: Path) -> None:
    claim_folder(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_first_write_leaves_a_folder_that_is_ours(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").mkdir()
    os.rename(tmp_path / "jobs.csv", tmp_path.parent / "aside")
    folder = tmp_path / "report"
    claim_folder(str(folder))
    save(str(folder), OURS)
    (folder / "jobs.csv").mkdir()  # os.replace fails: the write stops after the marker
    with pytest.raises(UsageError, match="cannot write"):
        save(str(folder), {**OURS, "jobs.csv": "x"})
    (folder / "jobs.csv").rmdir()
    save(str(folder), {**OURS, "jobs.csv": "x"})
    assert sorted(p.name for p in folder.iterdir()) == ["jobs.csv", SUMMARY]
