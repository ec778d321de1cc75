# SPDX-License-Identifier: MIT
"""pal progress and pal ack: one word in the job's own comment, seldom, and never a job's end."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_pal.base import marks
from slurm_pal.base.errors import UsageError
from slurm_pal.emulation.collectives import Behaving, Rank, files
from slurm_pal.submit import inside

PAL = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()"]
OWN = 'it\'s "mine"  a=b $HOME\nsecond'


class Job:
    """A job with a comment, as `pal` sees it from inside."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bin").mkdir()
        self.command("squeue", '[ "$*" = "-h -j 77 -o %k" ] || exit 9\ncat "$COMMENT"; echo')
        self.command("scontrol", 'echo x >> "$COMMENT.calls"; printf %s "${3#Comment=}" > "$COMMENT"')
        (root / "comment").write_text(OWN)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
        self.env = kept | {
            "PATH": f"{root}/bin:{os.environ['PATH']}", "TMPDIR": str(root), "SLURM_JOB_ID": "77",
            "COMMENT": str(root / "comment"),
        }  # fmt: skip

    def command(self, name: str, text: str) -> None:
        (self.root / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.root / "bin" / name).chmod(0o755)

    def pal(self, *words: str, **env: str) -> tuple[int, str]:
        done = subprocess.run(
            [*PAL, *words], env=self.env | env, cwd=self.root, capture_output=True, timeout=60, text=True, check=False
        )
        assert done.stdout == ""
        return done.returncode, done.stderr

    @property
    def comment(self) -> str:
        return (self.root / "comment").read_text()

    @property
    def updates(self) -> int:
        calls = self.root / "comment.calls"
        return len(calls.read_text().split()) if calls.exists() else 0


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_in_a_task_of_an_array_the_word_is_on_that_task_alone(job: Job) -> None:
    job.command("squeue", '[ "$*" = "-h -j 77_3 -o %k" ] || exit 9\ncat "$COMMENT"; echo')
    job.command("scontrol", '[ "$1 $2" = "update JobId=77_3" ] || exit 9\nprintf %s "${3#Comment=}" > "$COMMENT"')
    assert job.pal("progress", "12", SLURM_ARRAY_JOB_ID="77", SLURM_ARRAY_TASK_ID="3") == (0, "")
    assert "pal:it=12" in job.comment


def test_progress_is_put_beside_the_users_text_and_not_too_often(job: Job) -> None:
    assert job.pal("progress", "1200", "5000") == (0, "")
    word = marks.read(job.comment, marks.PROGRESS)
    assert job.comment.startswith(OWN + " pal:it=1200;of=5000;at=") and (word["r"], job.updates) == ("0", 1)
    assert job.pal("progress", "1201", "5000") == (0, "") and job.updates == 1
    assert job.pal("progress", "3", SLURM_RESTART_COUNT="1") == (0, "")  # another run of the job
    word = marks.read(job.comment, marks.PROGRESS)
    assert (word["it"], word["r"], "of" in word, job.updates) == ("3", "1", False, 2)
    (state,) = job.root.glob(f"slurm-pal-{os.geteuid()}-77-*")
    assert state.stat().st_mode & 0o777 == 0o600


def test_how_often_is_counted_from_the_last_word(tmp_path: Path) -> None:
    environment = {"TMPDIR": str(tmp_path)}
    said = [inside.due(7, 0, 60.0, 1000.0 + after_s, environment) for after_s in (0.7, 0.8, 59.0, 61.0, 61.5)]
    assert said == [True, False, False, True, False]
    assert inside.due(7, 0, 60.0, 500.0, environment)  # the clock was set back


def test_only_the_first_task_speaks(job: Job) -> None:
    assert job.pal("progress", "1", SLURM_PROCID="3") == (0, "") and job.pal("ack", SLURM_PROCID="3") == (0, "")
    assert job.updates == 0 and not list(job.root.glob("slurm-pal-*"))
    assert job.pal("progress", "1", SLURM_PROCID="0") == (0, "") and job.updates == 1


@pytest.mark.parametrize("words", [["progress", "1"], ["ack"]])
def test_a_failure_of_slurm_is_one_line_and_no_failure(words: list[str], job: Job) -> None:
    job.command("scontrol", "echo 'slurm_update error: Invalid job id specified' >&2; exit 1")
    code, said = job.pal(*words)
    assert code == 0 and said.count("\n") == 1 and "Invalid job id specified" in said
    (job.root / "bin" / "squeue").unlink()
    code, said = job.pal(*words, PATH=str(job.root / "bin"), TMPDIR=str(job.root / "bin"))
    assert code == 0 and said.count("\n") == 1 and "squeue" in said
    (job.root / "comment").write_text("x" * 1000)
    job.command("squeue", 'cat "$COMMENT"')
    code, said = job.pal(*words, SLURM_RESTART_COUNT="1")
    assert code == 0 and said.count("\n") == 1 and "no room" in said


@pytest.mark.parametrize("kind", ["symlink", "fifo", "folder", "hard link", "somebody else's"])
def test_what_others_made_beforehand_is_no_obstacle_and_not_touched(kind: str, tmp_path: Path) -> None:
    """Names in /tmp belong to whoever comes first, and any user knows uid and job id."""
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    victim.write_text("mine")
    for name in (f"slurm-pal-{os.geteuid()}-7", f"slurm-pal-{os.geteuid()}-7-", f"slurm-pal-{os.geteuid()}-7-0000"):
        path = shared / name
        if kind == "symlink":
            path.symlink_to(victim)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "hard link":
            path.hardlink_to(victim)
        elif os.geteuid() == 0:
            path.write_text("9999999999 0")  # a moment to come
            os.chown(path, 65534, 65534)
    environment = {"TMPDIR": str(shared)}
    said = [inside.due(7, 0, 60.0, 1000.0 + after_s, environment) for after_s in (0.0, 1.0, 61.0)]
    assert said == [True, False, True] and victim.read_text() == "mine"


def test_the_files_of_ended_jobs_go_with_the_first_mark_of_another(tmp_path: Path) -> None:
    environment = {"TMPDIR": str(tmp_path)}
    for job, at_s in ((5, 1000.0), (6, 80000.0)):
        assert inside.due(job, 0, 60.0, at_s, environment)
        (made,) = tmp_path.glob(f"slurm-pal-{os.geteuid()}-{job}-*")
        os.utime(made, (at_s, at_s))
    for name in ("slurm-pal.log", f"slurm-pal-{os.geteuid() + 1}-5-00"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000.0, 1000.0))
    (tmp_path / "theirs").touch()
    (tmp_path / f"slurm-pal-{os.geteuid()}-5-link").symlink_to(tmp_path / "theirs")
    before = {path.name for path in tmp_path.iterdir()}
    assert inside.due(7, 0, 60.0, 1000.0 + inside.OLD_S + 1, environment)
    after = {path.name for path in tmp_path.iterdir()}
    (gone,) = before - after
    assert gone.startswith(f"slurm-pal-{os.geteuid()}-5-") and not gone.endswith("link")
    (new,) = after - before
    assert new.startswith(f"slurm-pal-{os.geteuid()}-7-")


def test_under_the_wrapper_its_private_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    environment = {"TMPDIR": str(tmp_path / "none"), "SLURM_PAL_ACK": str(tmp_path / "private" / "ack")}
    assert inside.due(7, 0, 60.0, 1000.0, environment) and not inside.due(7, 0, 60.0, 1001.0, environment)
    assert len(list((tmp_path / "private").iterdir())) == 1


@pytest.mark.parametrize(
    ("run", "count", "restarts"),
    [("", "", 0), ("", "2", 2), ("77.2.3", "5", 2), ("77.0.1", "1", 0), ("76.0.1", "1", 1), ("77", "1", 0)],
)
def test_words_bear_slurms_own_number_of_the_run(run: str, count: str, restarts: int) -> None:
    """Slurm knows nothing of a run that the wrapper has started, and a job knows nothing of its parent's."""
    environment = {"SLURM_JOB_ID": "77", "SLURM_PAL_RUN": run, "SLURM_RESTART_COUNT": count}
    assert inside.restarts(environment) == restarts


@pytest.mark.parametrize(
    "words",
    [["progress", "x"], ["progress", "-1"], ["progress", "1", "0"], ["progress"], ["progress", "1", "--every", "9"]],
)
def test_a_wrong_number_is_refused(words: list[str], job: Job) -> None:
    assert job.pal(*words)[0] == 2 and job.updates == 0


def test_more_than_the_total_is_told_without_it(job: Job) -> None:
    code, said = job.pal("progress", "6", "5")
    assert code == 0 and said.count("\n") == 1 and "of" not in marks.read(job.comment, marks.PROGRESS)


@pytest.mark.parametrize("words", [["progress", "1"], ["ack"]])
def test_outside_a_job_is_one_line(words: list[str], job: Job) -> None:
    code, said = job.pal(*words, SLURM_JOB_ID="")
    assert code == 2 and said.count("\n") == 1 and "not inside a Slurm job" in said


def test_acknowledgements_are_counted_in_each_run(job: Job) -> None:
    seen = []
    for words, run in ((["ack"], "0"), (["ack"], "0"), (["ack", "--failed"], "0"), (["ack"], "1")):
        assert job.pal(*words, SLURM_RESTART_COUNT=run) == (0, "")
        seen.append(job.comment.removeprefix(OWN + " "))
    assert seen == ["pal:ack=0.1", "pal:ack=0.2", "pal:ack=0.3;failed=1", "pal:ack=1.1"]


def test_under_the_wrapper_its_file_is_enough(job: Job) -> None:
    assert job.pal("ack", SLURM_PAL_ACK=str(job.root / "ack")) == (0, "")
    assert (job.root / "ack").exists() and job.updates == 0
    assert job.pal("ack", SLURM_PAL_ACK=str(job.root / "other-node" / "ack")) == (0, "") and job.updates == 1


def test_only_what_is_needed_is_imported(job: Job) -> None:
    """A job may call this in its loop: the rest of `pal` would cost three times as much."""
    heavy = ["slurm_pal.cli.pal", "slurm_pal.base.config", "slurm_pal.lab", "numpy", "subprocess", "sqlite3"]
    code = (
        "import atexit, sys; from slurm_pal.cli.start import main\n"
        f"atexit.register(lambda: print([n for n in {heavy} if n in sys.modules]))\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "progress", "1"], env=job.env, capture_output=True, check=True, text=True
    )
    assert done.stdout == "[]\n" and job.updates == 1


def test_the_rest_of_pal_is_there_too(job: Job) -> None:
    done = subprocess.run([*PAL, "--help"], env=job.env, capture_output=True, check=True, text=True)
    assert all(name in done.stdout for name in ("progress", "ack", "gpus"))


def test_a_moment_is_remembered_until_it_is_due(tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path)}
    seen = [
        inside.due(7, run, 60.0, at, env) for at, run in ((100.0, 0), (159.0, 0), (159.0, 1), (160.0, 1), (50.0, 1))
    ]
    assert seen == [True, False, True, False, True]  # the last: the clock was set back
    with pytest.raises(OSError):
        inside.due(7, 0, 60.0, 1.0, {"TMPDIR": str(tmp_path / "none")})
    with pytest.raises(UsageError):
        inside.job_id({})


def records(root: Path, slow: int, start_s: float = 1.7e9) -> None:
    """As the inspector plug-in leaves them in the job's folder."""
    folder = root / "nccl-inspector-77"
    folder.mkdir(exist_ok=True)
    ranks = [Rank("n1", k, 1.15 if k == slow else 1.0) for k in range(4)]
    for name, text in files(ranks, Behaving(steps=60), random.Random(1), start_s=start_s).items():
        (folder / name).write_text(text)


def held(job: Job, start: str = "Unknown") -> None:
    """The job as scontrol shows it."""
    line = (
        f"JobId=77 JobName=x UserId=ada(1000) JobState=RUNNING Restarts=0 StartTime={start} NodeList=n1 "
        "Nodes=n1 CPU_IDs=0-3 Mem=0 GRES=gpu:4(IDX:2-5) MinCPUsNode=1 Command=x WorkDir=/"
    )
    job.command(
        "scontrol",
        f"""if [ "$1" = update ]; then
echo x >> "$COMMENT.calls"; printf %s "${{3#Comment=}}" > "$COMMENT"
else
read -r show; echo "{line}"; read -r word; echo "${{word#show hostnames }}"
fi""",
    )


def test_progress_says_which_gpu_the_others_wait_for_and_takes_it_back(job: Job) -> None:
    held(job)
    records(job.root, slow=1)
    assert job.pal("progress", "10") == (0, "")
    word = marks.read(job.comment, marks.SLOW)
    assert (word["slow"], word["r"], job.updates) == ("n1:3", "0", 1) and 1.05 < float(word["x"]) < 1.15
    assert marks.read(job.comment, marks.PROGRESS)["it"] == "10" and job.comment.startswith(OWN)
    records(job.root, slow=9)
    assert job.pal("progress", "11", SLURM_RESTART_COUNT="1") == (0, "")
    assert marks.read(job.comment, marks.SLOW)["slow"] == "-"


def test_what_an_earlier_run_of_the_job_recorded_says_nothing(job: Job) -> None:
    held(job, start="2024-01-01T00:00:00")
    records(job.root, slow=1)
    assert job.pal("progress", "10") == (0, "") and "pal:slow" not in job.comment
    records(job.root, slow=1, start_s=1.71e9)
    assert job.pal("progress", "11", SLURM_RESTART_COUNT="1") == (0, "")
    assert marks.read(job.comment, marks.SLOW)["slow"] == "n1:3"


def test_where_nobody_is_late_there_is_no_word_and_hostile_records_do_not_matter(job: Job) -> None:
    held(job)
    records(job.root, slow=9)
    assert job.pal("progress", "10") == (0, "") and "pal:slow" not in job.comment
    for path in (job.root / "nccl-inspector-77").iterdir():
        path.write_bytes(b'{"coll_perf": ' + b"[" * 100_000 + b"\n\xff")
    assert job.pal("progress", "10", SLURM_RESTART_COUNT="1") == (0, "") and "pal:it=10" in job.comment
    (job.root / "nccl-inspector-77").chmod(0)
    code, said = job.pal("progress", "10", SLURM_RESTART_COUNT="2")
    assert code == 0 and ("records of collectives not read" in said or os.geteuid() == 0)
    (job.root / "nccl-inspector-77").chmod(0o755)
