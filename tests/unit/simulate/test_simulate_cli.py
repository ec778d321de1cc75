# SPDX-License-Identifier: MIT
"""pal simulate and pal trace as a user meets them: output, exit codes, JSON, files."""

from __future__ import annotations

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.cli.pal import main
from slurm_pal.cli.simulate import run as simulate_run
from slurm_pal.simulate.pool import Watch

from ...doubles.json_page import differences, read

SMALL = (
    "--generate",
    "jobs=25,cap_h=1",
    "--cluster",
    "2x4",
    "--seeds",
    "2",
    "--jobs",
    "1",
    "--policy",
    "packed,pal-fit",
)
SIA = "job_id,num_gpus,submit_time,duration,model\n"
SACCT = "JobID|User|Account|State|Submit|Start|End|ElapsedRaw|TimelimitRaw|NNodes|AllocTRES|JobName\n"


class Pal:
    """`run` is one command line of pal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def run(self, *argv: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)"""
        self._monkeypatch.setattr(sys, "argv", ["pal", *argv])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._capsys.readouterr()
        return int(ended.value.code or 0), out, err

    def ok(self, *argv: str) -> str:
        code, out, err = self.run(*argv)
        assert code == 0, err
        return out

    def refused(self, *argv: str) -> str:
        """The line of a usage error."""
        code, out, err = self.run(*argv)
        assert (code, out) == (Exit.USAGE, ""), err
        return err.splitlines()[-1]


@pytest.fixture
def pal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pal:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("SLURM_PAL_PATHS_STATE_DIR", str(tmp_path / "state"))
    return Pal(monkeypatch, capsys)


def sia(path: Path, rows: list[str]) -> str:
    path.write_text(SIA + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """A table of eight GPUs, one of them slow."""
    rows = ["1.4,1.1,1.0,1.0"] + ["1.0,1.0,1.0,1.0"] * 7
    path = tmp_path / "gpus.csv"
    path.write_text("\n".join([",".join(f"PerfVar_class{c}" for c in "ABCD"), *rows]), encoding="utf-8")
    return str(path)


@contextmanager
def interrupted_after(jobs: int) -> Iterator[Watch]:
    """In the place of the progress bar: Ctrl-C as soon as so many jobs are done."""

    def watch(done: int) -> None:
        if done >= jobs:
            raise KeyboardInterrupt

    yield watch


# -- results --------------------------------------------------------------------------------


def test_the_table_the_claim_the_share_and_the_costs(pal: Pal) -> None:
    out = pal.ok("simulate", *SMALL)
    lines = out.splitlines()
    named = "generated-poisson-25-seed1, generated-poisson-25-seed2: 50 jobs in 2 traces, "
    assert lines[0].startswith(named) and "8 GPUs: 2 nodes x 4; 2 seeds" in lines[0]
    assert lines[2].split()[:2] == ["POLICY", "PAIRS"]
    assert [line.split()[0] for line in lines[3:5]] == ["packed", "pal-fit"]
    assert "Completion time: cannot tell. pal-fit takes " in out
    assert [line.split()[0] for line in out.split("Made of ")[1].splitlines()[1:5]] == [
        "scores", "gathering", "waiting", "rest",
    ]  # fmt: skip
    assert "From the slowest GPU: " in out
    assert "  move              180 s" in out
    assert "2 independent traces or weeks only" in out
    assert "Made of" not in pal.ok("simulate", *SMALL, "--no-causes")


def test_traces_may_be_several(pal: Pal, tmp_path: Path) -> None:
    """Each is a piece of its own, and six are enough for a claim."""
    files = []
    for seed in range(1, 7):
        files += ["--trace", str(tmp_path / f"t{seed}.csv")]
        (tmp_path / f"t{seed}.csv").write_text(pal.ok("trace", "generate", f"jobs=12,gpus=8,seed={seed}"))
    words = ["simulate", *files, "--cluster", "2x4", "--seeds", "1", "--jobs", "1", "--policy", "slurm,packed"]
    told = json.loads(pal.ok(*words, "--json", "--jobs-out", str(tmp_path / "out")))
    (row,) = [row for row in told["comparisons"] if row["policy"] == "slurm"]
    assert (row["pairs"], row["ratio"]["mean_jct_s"]["pieces"]) == (6, 6) and row["verdict"] != "cannot tell"
    assert told["trace"]["jobs"] == 72 and told["trace"]["name"] == "generated-poisson-12-seed1 and 5 others"
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"slurm.csv", "slurm.trace6.csv"}


def test_the_same_seed_gives_the_same_bytes(pal: Pal) -> None:
    first = pal.ok("simulate", *SMALL, "--json")
    assert pal.ok("simulate", *SMALL, "--json") == first
    assert pal.ok("simulate", *SMALL, "--seed", "2", "--json") != first


def test_the_number_of_processes_changes_nothing(pal: Pal) -> None:
    one, two = (json.loads(pal.ok("simulate", *SMALL, "--json", "--jobs", n)) for n in ("1", "2"))
    assert (one.pop("command"), two.pop("command")) != (None, None)
    assert one == two


def test_json_for_other_programs(pal: Pal) -> None:
    told = json.loads(pal.ok("simulate", *SMALL, "--policy", "packed-sticky", "--json"))
    assert told["schema"] == "pal.simulate/1" and differences(told, read()) == []
    assert list(told["policies"]) == ["packed", "pal-fit", "packed-sticky"]
    assert told["policies"]["packed-sticky"] == told["policies"]["packed"]
    assert told["policies"]["packed"]["ratio_to_first"] == 1.0
    assert told["worst_gpus_by_k"][0]["k"] == 1


def test_the_first_policy_is_the_baseline_where_packed_is_not_compared(pal: Pal) -> None:
    told = json.loads(pal.ok("simulate", *SMALL[:-2], "--policy", "random,pal", "--json"))
    assert (told["baseline"], told["policy"]) == ("random", "pal")
    told = json.loads(pal.ok("simulate", *SMALL[:-2], "--policy", "pal", "--baseline", "slurm", "--json"))
    assert (told["baseline"], list(told["policies"])) == ("slurm", ["pal"])


def test_parsable_and_without_header(pal: Pal) -> None:
    lines = pal.ok("simulate", *SMALL, "-P", "--noheader").splitlines()
    assert [line.split("|")[0] for line in lines] == ["packed", "pal-fit"]


def test_one_policy_alone_makes_no_claim(pal: Pal) -> None:
    out = pal.ok("simulate", *SMALL[:-2], "--policy", "packed")
    assert "one policy only" in out and "From the slowest" not in out


def test_a_cluster_of_one_gpu(pal: Pal) -> None:
    out = pal.ok("simulate", "--generate", "jobs=10,cap_h=1", "--cluster", "1x1", "--seeds", "2", "--jobs", "1")
    assert "on 1 GPU: 1 node x 1" in out
    assert "cannot tell" in out


def test_one_seed_replays_the_trace_as_it_stands(pal: Pal, tmp_path: Path) -> None:
    trace = sia(tmp_path / "t.csv", ["7,2,60,1000,BERT", "8,1,120,1000,resnet50"])
    pal.ok("simulate", "--trace", trace, "--nodes", "2", "--gpus-per-node", "4", "--policy", "packed", "--seeds", "1",
           "--jobs-out", str(tmp_path / "jobs"))  # fmt: skip
    with open(tmp_path / "jobs" / "packed.csv", newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["job_id"], row["submit_s"], row["gpus"]) for row in rows] == [("7", "60", "2"), ("8", "120", "1")]


def test_every_setting_is_taken(pal: Pal) -> None:
    out = pal.ok(
        "simulate", *SMALL, "--locality", "2", "--move-cost", "60", "--warm-up", "9", "--margin", "4", "--round", "100",
        "--bar", "1.3", "--limit-factor", "3", "--no-backfill", "--steer", "submit", "--best-first", "--mtbf", "500",
        "--slow", "0.2:1.5", "--scores", "noise=0.02", "--jitter", "30", "--background", "1", "--queue", "slurm",
    )  # fmt: skip
    for words in (
        "x 2 on more", "60 s, if the gain is above 4 x that; planned every 100 s", "9 s after each", "slower than 1.3",
        "else 3 x", "backfill          none", "only of jobs that can start", "best for the class",
        "each node every 500 h", "20 % of the GPUs slower by 1.5", "noise 0.02", "moved by up to 30 s",
        "1 jobs per hour", "multifactor",
    ):  # fmt: skip
        assert words in out


def test_the_report_folder(pal: Pal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "report"
    code, _, err = pal.run("simulate", *SMALL, "--out", str(folder), "--sweep", "move-cost")
    assert code == 0 and "index.html" in err
    assert {"index.html", "summary.json", "jobs.csv", "gain-move-cost.svg"} <= {path.name for path in folder.iterdir()}
    monkeypatch.setattr("slurm_pal.report.simulation.page.pictures", lambda comparison: [])  # drawing takes seconds
    assert pal.run("simulate", *SMALL, "--out", str(folder))[0] == 0, "a report of ours is replaced"


def test_the_lists(pal: Pal) -> None:
    rows = [line.split("|")[:2] for line in pal.ok("simulate", "--list", "-P", "--noheader").splitlines()]
    for row in (["--policy", "pal-fit"], ["--queue", "slurm"], ["--format", "swf"], ["--profile", "joint"],
                ["--scores", "stale"], ["--replica", "packed-s"]):  # fmt: skip
        assert row in rows


# -- interrupted ----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_reports_what_is_complete(pal: Pal, monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    monkeypatch.setattr(simulate_run, "bar", lambda total: interrupted_after(25 * 5))
    code, out, _ = pal.run("simulate", *SMALL, "--jobs", workers)
    assert code == Exit.INTERRUPTED
    assert "of 16 replays are complete" in out
    assert out.splitlines()[2].startswith("POLICY")


def test_ctrl_c_before_anything_is_complete(pal: Pal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(simulate_run, "bar", lambda total: interrupted_after(1))
    code, out, err = pal.run("simulate", *SMALL, "--jobs-out", str(tmp_path / "jobs"))
    assert (code, out) == (Exit.INTERRUPTED, "")
    assert "0 of 16 replays" in err and "Nothing to compare" in err


# -- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--policy", "best"), "policy 'best' is not one of"),
        (("--baseline", "best"), "policy 'best' is not one of"),
        (("--queue", "lifo"), "queue 'lifo' is not one of"),
        (("--profile", "nothing"), "profile 'nothing'"),
        (("--scores", "good"), "scores 'good'"),
        (("--slow", "much"), "slow GPUs 'much'"),
        (("--sweep", "seeds"), "sweep 'seeds'"),
        (("--cluster", "many"), "cluster 'many'"),
        (("--cluster", "2x4/16"), "NODESxGPUS/CPUS/GIB"),
        (("--cluster", "2x4/16/64"), "study, which does not know them; give --policy slurm-twin"),
        (("--failures", "f.csv"), "study, which does not know them; give --policy slurm-twin"),
        (("--nodes", "3"), "not both"),
        (("--worst", "9"), "worst 9"),
        (("--trace", "x.csv"), "--trace FILE, or --generate"),
        (("--replica", "sia"), "replica 'sia' is not one of blox-pal, gavel"),
        (("--no-replay",), "means nothing without --replica"),
        (("--move-cost", "nan"), "must be a number at least 0"),
        (("--locality", "0.5"), "must be a number at least 1"),
        (("--tick", "0"), "must be a number above 0"),
        (("--generate", "colour=red"), "KEY=VALUE"),
        (("--generate", "jobs=many"), "KEY=VALUE"),
        (("--generate", "load=nan"), "not a number"),
        (("--generate", "jobs=0"), "jobs 0 must be"),
    ],
)
def test_bad_values_are_told_in_one_line(pal: Pal, argv: tuple[str, ...], words: str) -> None:
    assert words in pal.refused("simulate", *SMALL, *argv)


def test_no_trace_at_all(pal: Pal) -> None:
    assert "--generate ''" in pal.refused("simulate")


@pytest.mark.parametrize(
    ("text", "words"), [("", "no line of text"), (SIA, "no job to replay"), ("colours\n", "no known")]
)
def test_empty_traces(pal: Pal, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    assert words in pal.refused("simulate", "--trace", str(path))


def test_a_trace_of_bad_rows(pal: Pal, tmp_path: Path) -> None:
    trace = sia(tmp_path / "t.csv", [f"{k},x,1,1,BERT" for k in range(15)])
    code, out, err = pal.run("simulate", "--trace", trace)
    assert (code, out) == (Exit.USAGE, "")
    lines = err.splitlines()
    assert lines[0].startswith("line 2: num_gpus") and lines[9].startswith("line 11: ")
    assert "5 more bad rows" in lines[10]
    assert "15 bad rows" in lines[11] and len(lines) == 12


def test_bad_rows_beside_good_ones_are_counted(pal: Pal, tmp_path: Path) -> None:
    trace = sia(tmp_path / "t.csv", ["1,1,0,1000,BERT", "2,x,1,1,BERT", "3,99,1,1,BERT"])
    code, out, err = pal.run("simulate", "--trace", trace, "--cluster", "1x4", "--seeds", "1", "--jobs", "1", "--json")
    assert code == 0 and "line 3: " in err
    told = json.loads(out)["trace"]
    assert (told["jobs"], [row["line"] for row in told["bad"]]) == (1, [3])
    assert told["too_wide"] == [{"job_id": "3", "gpus": 99}]


def test_folders_are_refused_before_anything_runs(pal: Pal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate_run, "run_all", lambda *args: pytest.fail("it ran"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    assert "holds no report" in pal.refused("simulate", *SMALL, "--out", str(tmp_path / "mine"))
    (tmp_path / "file").touch()
    assert "another folder" in pal.refused("simulate", *SMALL, "--jobs-out", str(tmp_path / "file"))


# -- the published simulator ----------------------------------------------------------------


@pytest.fixture
def workload(tmp_path: Path) -> str:
    return sia(
        tmp_path / "w.csv",
        [f"{k},{1 + k % 4},{k * 300},{40000 + k},{'resnet50' if k % 2 else 'BERT'}" for k in range(12)],
    )


def test_replica_prints_the_six_policies(pal: Pal, workload: str, profile: str, tmp_path: Path) -> None:
    argv = ("simulate", "--replica", "blox-pal", "--trace", workload, "--profile", profile, "--cluster", "2x4")
    lines = pal.ok(*argv, "--jobs", "1", "--jobs-out", str(tmp_path / "jobs")).splitlines()
    assert [line.split()[0] for line in lines[1:7]] == [
        "packed-s",
        "packed-ns",
        "random-s",
        "random-ns",
        "pm-first",
        "pal",
    ]
    assert lines[1].split()[-1] == "1.000"
    assert "rounds 360 s" in lines[-1]
    with open(tmp_path / "jobs" / "pal.csv", newline="", encoding="utf-8") as stream:
        assert all(float(row["finish_s"]) % 360 == 0 for row in csv.DictReader(stream))


def test_replica_as_other_programs_call_it(pal: Pal, workload: str, profile: str, tmp_path: Path) -> None:
    argv = (
        "simulate", "--trace", workload, "--format", "sia", "--profile", profile, "--nodes", "2",
        "--gpus-per-node", "4", "--queue", "las", "--policy",
        "packed-sticky,packed,random-sticky,random,pm-first,pal", "--replica", "blox-pal",
        "--move-cost", "30", "--backfill", "--locality", "1.5", "--round", "300", "--no-replay", "--seeds", "2",
        "--json", "--out", str(tmp_path / "report"),
    )  # fmt: skip
    told = json.loads(pal.ok(*argv))
    assert differences(told, read()) == []
    assert list(told["policies"]) == ["packed-sticky", "packed", "random-sticky", "random", "pm-first", "pal"]
    assert told["policies"]["pal"]["runs"] == 2 and told["queue"] == "las"
    assert told["charged"]["rounds"].startswith("300 s") and told["charged"]["start or move"] == "30 s"
    assert (tmp_path / "report" / "index.html").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "needs a Sia-Philly trace"),
        (("--steer", "submit"), "--steer means nothing with --replica"),
        (("--sweep", "load"), "--sweep means nothing with --replica"),
        (("--generate", ""), "--generate means nothing with --replica"),
    ],
)
def test_what_replica_mode_refuses(pal: Pal, argv: tuple[str, ...], words: str) -> None:
    assert words in pal.refused("simulate", "--replica", "blox-pal", *argv)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--queue", "multifactor"), "queue 'multifactor' is not one of fifo, las, srtf"),
        (("--policy", "slurm"), "policy 'slurm' is not one of packed-s"),
        (("--format", "swf"), "is not sia"),
        (("--cluster", "a=1x4,b=1x2"), "nodes of one size"),
        (("--cluster", "1x4"), "describes 8 GPUs"),
        (("--move-cost", "400"), "below 360"),
    ],
)
def test_bad_values_in_replica_mode(pal: Pal, workload: str, profile: str, argv: tuple[str, ...], words: str) -> None:
    base = ("--replica", "blox-pal", "--trace", workload, "--profile", profile, "--cluster", "2x4")
    assert words in pal.refused("simulate", *base, *argv)


def test_replica_interrupted(pal: Pal, workload: str, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate_run, "bar", lambda total: interrupted_after(3 * 12))
    argv = ("simulate", "--replica", "blox-pal", "--trace", workload, "--profile", profile, "--cluster", "2x4")
    code, out, err = pal.run(*argv, "--jobs", "1")
    assert code == Exit.INTERRUPTED
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["packed-s", "packed-ns"]
    assert "2 of 6 replays" in err


# -- pal trace ------------------------------------------------------------------------------


def test_generate_describe_and_convert(pal: Pal, tmp_path: Path) -> None:
    path = tmp_path / "made.csv"
    assert pal.ok("trace", "generate", "jobs=30,seed=4", "-o", str(path)) == ""
    assert pal.ok("trace", "generate", "jobs=30,seed=4").encode() == path.read_bytes()
    packed = tmp_path / "made.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert pal.ok("trace", "convert", str(packed)).encode() == path.read_bytes()
    assert "jobs                        30" in pal.ok("trace", "describe", str(path))
    told = json.loads(pal.ok("trace", "describe", str(path), "--json"))
    assert (told["schema"], told["jobs"], told["bad_rows"]) == ("pal.trace-figures/1", 30, [])


def test_convert_tells_bad_rows_and_writes_nothing_without_jobs(pal: Pal, tmp_path: Path) -> None:
    trace = sia(tmp_path / "t.csv", ["1,x,1,1,BERT"])
    code, _, err = pal.run("trace", "convert", trace, "-o", str(tmp_path / "new.csv"))
    assert code == Exit.USAGE and "line 2: " in err and "nothing is written" in err
    assert not (tmp_path / "new.csv").exists()
    assert "cannot write" in pal.refused("trace", "generate", "-o", str(tmp_path / "absent" / "new.csv"))


def test_models_and_classes_can_be_told(pal: Pal, tmp_path: Path) -> None:
    table = tmp_path / "apps.toml"
    table.write_text('["*"]\niteration_s = 0.5\nclass = "B"\n', encoding="utf-8")
    trace = sia(tmp_path / "t.csv", ["1,2,0,7200,mystery"])
    told = json.loads(pal.ok("trace", "describe", trace, "--app-table", str(table), "--json"))
    assert (told["gpu_hours"], told["classes"]) == (2.0, {"B": 1.0})


def sacct_row(number: int, user: str, name: str) -> str:
    times = "2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T01:00:00|3600|120"
    return f"{number}|{user}|lab|COMPLETED|{times}|1|gres/gpu=1|{name}\n"


def test_hash_takes_the_names_out(pal: Pal, tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(SACCT + sacct_row(1, "alice", "secret") + sacct_row(2, "alice", "resnet50"), encoding="utf-8")
    key = tmp_path / "key"
    key.write_bytes(b"k" * 16)
    first = pal.ok("trace", "hash", str(path), "--key-file", str(key))
    assert first == pal.ok("trace", "hash", str(path), "--key-file", str(key))
    assert first != pal.ok("trace", "hash", str(path)), "another key each time"
    assert "alice" not in first and "secret" not in first and "resnet50" in first
    (tmp_path / "shared.txt").write_text(first, encoding="utf-8")
    told = json.loads(pal.ok("trace", "describe", str(tmp_path / "shared.txt"), "--json"))
    assert (told["jobs"], told["users"]) == (2, 1)
    key.write_bytes(b"short")
    assert "16 to 64" in pal.refused("trace", "hash", str(path), "--key-file", str(key))
    assert "absent" in pal.refused("trace", "hash", str(path), "--key-file", str(tmp_path / "absent"))


def test_patterns_classify_a_sites_jobs(pal: Pal, tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(SACCT + sacct_row(1, "alice", "train-1") + sacct_row(2, "bob", "other"), encoding="utf-8")
    told: dict[str, Any] = json.loads(pal.ok("trace", "describe", str(path), "--app-pattern", "train-*=A", "--json"))
    assert told["classes"] == {"?": 0.5, "A": 0.5}


def test_workers_import_nothing_from_the_working_directory(tmp_path: Path) -> None:
    script, elsewhere = tmp_path / "bin" / "pal.py", tmp_path / "elsewhere"
    for package in (script.parent, elsewhere / "slurm_pal"):
        package.mkdir(parents=True)
    script.write_text('from slurm_pal.cli.pal import main\n\nif __name__ == "__main__":\n    main()\n')
    (elsewhere / "slurm_pal" / "__init__.py").write_text('raise RuntimeError("a stranger\'s module")\n')
    (elsewhere / "signal.py").write_text('raise RuntimeError("a stranger\'s module")\n')
    words = ["simulate", "--generate", "jobs=5", "--cluster", "2x4", "--seeds", "2", "--jobs", "2", "-P"]
    done = subprocess.run([sys.executable, str(script), *words], cwd=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "stranger" not in done.stderr and done.stdout.startswith("POLICY|")


def test_an_impatient_second_interrupt_hangs_nothing(tmp_path: Path) -> None:
    script = tmp_path / "pal.py"
    script.write_text('from slurm_pal.cli.pal import main\n\nif __name__ == "__main__":\n    main()\n')
    words = ["simulate", "--generate", "jobs=5000", "--seeds", "4", "--jobs", "2", "--policy", "packed,pal-fit"]
    with subprocess.Popen(
        [sys.executable, str(script), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        time.sleep(2.5)
        for _ in range(3):
            process.send_signal(signal.SIGINT)
        try:
            _, complaints = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == Exit.INTERRUPTED, complaints
    assert "Traceback" not in complaints
