# SPDX-License-Identifier: MIT
"""pal why-slow: one sentence for each kind of evidence, and whose jobs it shows."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slurm_pal.base.errors import Exit, PalError, UsageError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.cli import why_slow as command
from slurm_pal.cli.pal import pal
from slurm_pal.emulation.collectives import Behaving, Rank, files
from slurm_pal.journal import paths
from slurm_pal.online.culprit import Culprit, Found
from slurm_pal.online.word import SlowWord
from slurm_pal.report import actual, why_slow
from slurm_pal.report.why_slow import Case, Steps
from slurm_pal.slurm import parse
from slurm_pal.store import snapshot as snapshots
from slurm_pal.store.snapshot import GpuScore, Snapshot, _columns

NOW_S = 1_800_000_000.0
GPUS = {"n1": (0, 1), "n2": (0, 1)}
NAMED = Found(Culprit("n2", 1, 2, 3, 0.08, 0.95, False), (), 4, 2, 480, 60.0)
CLEAR = Found(None, (), 4, 2, 480, 60.0)


def job(state: str = "RUNNING", gpus: dict[str, tuple[int, ...]] | None = None) -> SlurmJob:
    made = parse.nobodys(7, {"JobState": state, "JobName": "train"})
    return made._replace(user="ada", gpus=GPUS if gpus is None else gpus, nodes=tuple(GPUS), start_s=NOW_S - 100.0)


def scores(slow: dict[tuple[str, int], float] | None = None, flags: tuple[str, ...] = ()) -> Snapshot:
    gpus = [
        GpuScore(node, k, f"{node}-{k}", "m", dict.fromkeys("ABC", (slow or {}).get((node, k), 1.0)),
                 dict.fromkeys("ABC", "v0"), NOW_S - 3600.0, 1.0, flags if (node, k) == ("n1", 1) else ())
        for node, held in GPUS.items() for k in held
    ]  # fmt: skip
    return Snapshot({}, *_columns(gpus))


def case(one: SlurmJob | None, snapshot: Snapshot | None = None, **more: Any) -> Case:  # noqa: ANN401 - fields of Case
    found = actual.actual(one, scores() if snapshot is None else snapshot, NOW_S)
    return Case("7", one, found, "A", **more)


@pytest.mark.parametrize(
    ("known", "verdict", "sentence"),
    [
        (case(job("PENDING", {})), "waiting", "Job 7 does not run yet: it waits in the queue (pal explain 7)."),
        (case(job(), found=NAMED), "gpu",
         "Job 7 is held up by GPU n2:1: its other ranks wait for that GPU, 8.0% of the time."),
        (case(job("COMPLETED"), found=NAMED), "gpu",
         "Job 7 was held up by GPU n2:1: its other ranks waited for that GPU, 8.0% of the time."),
        (case(job(), found=NAMED._replace(culprit=Culprit("n2", None, 2, None, 0.08, 1.0, False))), "node",
         "Job 7 is held up by node n2 as a whole: the ranks elsewhere wait for all of its ranks alike, 8.0% of the "
         "time."),
        (case(job(), found=NAMED._replace(culprit=Culprit("n2", 2, 3, 4, 0.08, 1.0, False))), "rank",
         "Job 7 is held up by rank 4 on node n2: the other ranks wait for it, 8.0% of the time."),
        (case(job(), found=NAMED._replace(culprit=Culprit("x9", 0, 2, 5, 0.08, 1.0, False))), "rank",
         "Job 7 is held up by rank 5 on x9: the other ranks wait for it, 8.0% of the time."),
        (case(job(), word=SlowWord("n2", 1, 1.087, 480, NOW_S)), "gpu",
         "Job 7 is held up by GPU n2:1: its other ranks wait for that GPU, 8.0% of the time."),
        (case(job(), scores(flags=("ecc",))), "fault", "Job 7 has a GPU that was seen to fail: n1:1."),
        (case(job(), scores({("n1", 0): 1.1})), "measured",
         "Job 7 is as slow as its slowest GPU, n1:0, which by its last measurement takes 1.10 x the time of the median "
         "of its others."),
        (case(job(), found=CLEAR), "nothing", "No GPU of job 7 holds it up, as far as is known."),
        (case(job(), Snapshot({}, *_columns([])), found=CLEAR), "nothing",
         "No GPU of job 7 holds it up, as far as is known."),
        (case(job(), Snapshot({}, *_columns([]))), "unknown", "Nothing is known about the speed of job 7."),
        (case(job(), Snapshot({}, *_columns([])), found=NAMED._replace(culprit=None, why_not="too few")), "unknown",
         "Nothing is known about the speed of job 7."),
    ],
)  # fmt: skip
def test_the_first_line_says_it(known: Case, verdict: str, sentence: str) -> None:
    who = why_slow.held(known)
    assert (who.verdict, why_slow.lines(known, who)[0]) == (verdict, sentence)
    body = why_slow.as_json(known, who)
    assert json.loads(json.dumps(body, allow_nan=False))["sentence"] == sentence


def test_the_evidence_is_below() -> None:
    known = case(job(), found=NAMED, folder="/d", steps=Steps(10, 100, 0.5, 1.09, 1.0), remarks=("x",))
    text = "\n".join(why_slow.lines(known, why_slow.held(known)))
    assert "collectives in /d: 480 of 4 ranks on 2 nodes compared, 60 s of the job" in text
    assert "steps: 10 of 100, 0.5 s each, 1.09 x as long as on median GPUs of one node (by measurements 1.00 x)" in text
    assert "n2:1: measured 1h ago, class A 1.000" in text and "pal-profile run -w n2" in text and "verdict" in text
    assert "not looked at: x" in text
    slow = case(job(), scores({("n2", 1): 1.1}), found=NAMED)
    assert "agrees with its last measurement" in "\n".join(why_slow.lines(slow, why_slow.held(slow)))


def test_without_any_evidence_it_says_where_it_comes_from() -> None:
    known = case(job(), Snapshot({}, *_columns([])))
    text = "\n".join(why_slow.lines(known, why_slow.held(known)))
    assert "pal progress" in text and "NCCL_INSPECTOR_ENABLE=1" in text


# -- the command --------------------------------------------------------------------------------


class Client:
    """Knows one job."""

    def __init__(self, one: SlurmJob | None) -> None:
        self.one = one

    def job(self, number: int) -> SlurmJob | None:
        return self.one if self.one is not None and self.one.job_id == number else None

    def jobs_of(self, numbers: list[int]) -> dict[int, SlurmJob]:
        return {number: one for number in numbers if (one := self.job(number)) is not None}

    def tasks(self, array: int, indexes: list[int]) -> dict[int, int]:
        return {index: 7 for index in indexes if (array, index) == (5, 2)}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pal.toml").write_text(f'[paths]\nstate_dir = "{tmp_path}/state"\n')
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("SLURM_PAL_CONFIG", str(tmp_path / "pal.toml"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(paths, "has_powers", lambda: False)
    monkeypatch.setattr(paths, "user_name", lambda: "ada")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "nccl-inspector-7"
    folder.mkdir()
    ranks = [Rank(node, k, 1.1 if (node, k) == ("n2", 1) else 1.0) for node, held in GPUS.items() for k in held]
    for name, text in files(ranks, Behaving(steps=60), random.Random(1), start_s=NOW_S - 90.0).items():
        (folder / name).write_text(text)
    gpus = [scores().gpu(row) for row in range(4)]
    snapshots.publish(str(tmp_path / "state" / "snapshot"), gpus, cluster="c", epoch=1, now_s=time.time())
    return tmp_path


def ask(monkeypatch: pytest.MonkeyPatch, one: SlurmJob | None, *words: str) -> Result:
    monkeypatch.setattr(command, "connect", lambda config: Client(one))
    done = CliRunner().invoke(pal, ["why-slow", *words])
    if isinstance(done.exception, PalError):
        raise done.exception
    return done


def test_a_job_of_ones_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = ask(monkeypatch, job()._replace(raw={"WorkDir": str(home)}, uid=os.geteuid()), "7", "--json")
    body = json.loads(done.stdout)
    assert (body["schema"], body["verdict"], done.exit_code) == ("pal.why_slow/1", "gpu", Exit.OK)
    assert (body["culprit"]["node"], body["culprit"]["indexes"], body["collectives"]["ranks"]) == ("n2", [1], 4)


def test_records_of_an_earlier_run_name_nobody(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was requeued, or moved, has the files of that run in the same folder."""
    again = job()._replace(start_s=NOW_S - 10.0, raw={"WorkDir": str(home)}, uid=os.geteuid())
    assert json.loads(ask(monkeypatch, again, "7", "--json").stdout)["verdict"] == "nothing"
    ranks = [Rank("n1", k, 1.1 if k == 0 else 1.0) for k in (0, 1)]
    for name, text in files(ranks, Behaving(steps=60), random.Random(1), start_s=NOW_S - 5.0).items():
        (home / "nccl-inspector-7" / f"again-{name}").write_text(text)
    body = json.loads(ask(monkeypatch, again, "7", "--json").stdout)
    assert (body["verdict"], body["culprit"]["indexes"], body["collectives"]["ranks"]) == ("gpu", [0], 2)


def test_a_task_of_an_array(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = ask(monkeypatch, job(), "5_2")
    assert done.output.startswith("Job 5_2 is held up by GPU n2:1")


def test_jobs_of_others_are_refused_politely(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="job 7 belongs to another user: you can ask about your own jobs"):
        ask(monkeypatch, job()._replace(user="bob"), "7")
    with pytest.raises(UsageError, match="belongs to another user"):
        ask(monkeypatch, job()._replace(user=""), "7")  # its record is unclear
    monkeypatch.setattr(paths, "has_powers", lambda: True)
    assert ask(monkeypatch, job()._replace(user="bob", uid=os.geteuid()), "7").exit_code == Exit.OK


def test_admins_read_files_of_the_jobs_user_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "has_powers", lambda: True)
    done = ask(monkeypatch, job()._replace(user="bob", uid=os.geteuid() + 1, raw={"WorkDir": str(home)}), "7")
    assert "does not belong to the job's user" in done.output and "held up" not in done.output


def test_a_job_that_slurm_has_forgotten(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, None, "7").output.startswith("Job 7 was held up by rank 3 on n2")
    assert "rank 3" in ask(monkeypatch, None, "8", "--records", "nccl-inspector-7").output
    with pytest.raises(UsageError, match="job 8 is unknown"):
        ask(monkeypatch, None, "8")
    with pytest.raises(PalError, match="no records of collectives"):
        ask(monkeypatch, job(), "7", "--records", "none")


@pytest.mark.parametrize("word", ["", "x", "7_", "0", "-7", "7.0"])
def test_what_is_no_job(home: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    done = CliRunner().invoke(pal, ["why-slow", "--", word])
    assert isinstance(done.exception, UsageError)
