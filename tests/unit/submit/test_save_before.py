# SPDX-License-Identifier: MIT
"""Save before the end: the wrapper requeues its job after a checkpoint near the time limit, and only then."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from slurm_pal.base.errors import UsageError
from slurm_pal.submit import checkpoint
from slurm_pal.submit.argv import parse
from slurm_pal.submit.checkpoint import render
from slurm_pal.submit.choice import NO_SAVING, Moving, Saving, choice
from slurm_pal.submit.saving import saving
from slurm_pal.submit.script import scan

from .test_checkpoint import LOOP, ONCE, OWN, SCONTROL, Job

# `queue` holds what Slurm says of the job; a requeue that it takes is written down.
SQUEUE = """#!/bin/sh
[ "$2 $3" = "-j NAME" ] || exit 9
case $4 in -o) [ ! -e mute ] || exit 1; cat "$COMMENT"; echo ;; -O) cat queue ;; *) exit 9 ;; esac
"""
REQUEUE = """#!/bin/sh
if [ "$1" = requeue ]; then
  [ "$2" = NAME ] || exit 9
  [ ! -e refuses ] || { echo x >> refused; echo 'Requested operation is presently disabled for job 77' >&2; exit 1; }
  echo "COMPLETING 0:00 1" > queue; echo x >> requeued; exit 0
fi
"""
NEAR = "RUNNING             1:30                0                   \n"
THREE = Saving(60, 3)

Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    jobs: list[Job] = []

    def begin(
        body: str, command: str, queue: str = NEAR, saving: Saving = THREE, name: str = "77",
        environment: dict[str, str] | None = None, restarts: int = 0, **limits: int,
    ) -> Job:  # fmt: skip
        (tmp_path / "queue").write_text(queue)
        slurm = (SQUEUE.replace("NAME", name), (REQUEUE + SCONTROL.removeprefix("#!/bin/sh\n")).replace("NAME", name))
        slurm = (slurm[0], slurm[1].replace("JobId=77", f"JobId={name}"))
        limits = {"mover_s": 0} | limits
        jobs.append(
            Job(
                tmp_path, body.encode(), command, environment=environment, restarts=restarts, slurm=slurm,
                saving=saving, **limits,
            )
        )  # fmt: skip
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()


def notice(job: Job) -> None:
    """Slurm's, or that of whoever wants to move the job."""
    job.until("begun")
    job.process.send_signal(signal.SIGCONT)  # Slurm sends it before others
    job.process.send_signal(signal.SIGUSR1)


def requeues(job: Job) -> int:
    path = job.root / "requeued"
    return len(path.read_text().split()) if path.exists() else 0


def stopped(job: Job) -> tuple[int, bytes, bytes]:
    (job.root / "stop").touch()
    return job.end()


def test_a_job_near_its_limit_saves_is_counted_and_is_requeued_once(start: Start) -> None:
    job = start(LOOP, "touch made")
    notice(job)
    job.until("requeued")
    assert (job.root / "made").exists()
    assert job.until("comment") == f"{OWN} pal:ack=0.1 pal:cont=1;of=3"
    job.process.send_signal(signal.SIGTERM)  # as every requeue does
    status, _, err = job.end()
    assert status in (143, -15)
    assert b"saved 90 s before the time limit: requeued, to be continued (1 of at most 3" in err
    assert requeues(job) == 1


def test_a_checkpoint_for_other_reasons_is_no_requeue(start: Start) -> None:
    """Far from the limit it was a mover's, a user's, or Slurm's before a preemption: they requeue it themselves."""
    job = start(LOOP, "true", "RUNNING 2:06 0\n")
    notice(job)
    job.until("comment", "pal:ack=0.1")
    time.sleep(2.0)
    assert stopped(job) == (4, b"", b"") and requeues(job) == 0
    assert "pal:cont" not in job.comment.read_text()


@pytest.mark.parametrize(
    ("queue", "near_s"),
    [
        (NEAR, "90"), ("RUNNING 2:05 0\n", "125"), ("RUNNING 0:08 0\n", "8"), ("RUNNING 2:06 0\n", ""),
        ("RUNNING INVALID 0\n", "0"), ("RUNNING 1:00:01 0\n", ""), ("RUNNING 1-00:00:01 0\n", ""),
        ("RUNNING UNLIMITED 0\n", ""), ("RUNNING NOT_SET 0\n", ""), ("RUNNING 1:30 1\n", ""),
        ("COMPLETING 1:30 0\n", ""), ("", ""),
    ],
)  # fmt: skip
def test_near_is_what_slurm_may_give_notice_of(queue: str, near_s: str, tmp_path: Path) -> None:
    """Up to a minute early; a site's OverTimeLimit lets a job run on beyond its limit (INVALID)."""
    (tmp_path / "queue").write_text(queue)
    text = render(b"#!/bin/sh\n", "true", saving=THREE).decode().rpartition('pal_main "$@"')[0]
    text += "pal_job=77 pal_requeues=0\nsqueue() { cat queue; }\npal_near_s || true\n"
    done = subprocess.run(["/bin/bash", "-c", text], cwd=tmp_path, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == near_s and not done.stderr


def test_after_a_failed_checkpoint_the_job_runs_on(start: Start) -> None:
    job = start(LOOP, "exit 5")
    notice(job)
    job.until("comment", "pal:ack=0.1;failed=1")
    time.sleep(2.0)
    status, _, err = stopped(job)
    assert status == 4 and requeues(job) == 0 and err.count(b"\n") == 1
    assert b"no checkpoint before the time limit: the job is not continued after it" in err


@pytest.mark.parametrize(("before", "requeued"), [("2;of=3", 1), ("3;of=3", 0), ("x", 1)])
def test_the_number_of_times_is_honoured(before: str, requeued: int, start: Start) -> None:
    job = start(LOOP, "true")
    job.until("begun")
    job.comment.write_text(f"{OWN} pal:cont={before} more")
    notice(job)
    job.until("comment", "pal:ack=0.1")
    if requeued:
        job.until("requeued")
    else:
        time.sleep(2.0)
    status, _, err = stopped(job)
    assert status == 4 and requeues(job) == requeued and err.count(b"\n") == 1
    assert requeued or b"not continued after the time limit" in err
    count = int(before[0]) + 1 if before[0].isdigit() else 1
    assert job.comment.read_text().endswith(f"pal:cont={count};of=3" if requeued else "more pal:ack=0.1")


def test_whoever_asked_for_the_checkpoint_to_move_the_job_comes_first(start: Start) -> None:
    job = start(LOOP, "true", mover_s=2)
    notice(job)
    job.until("comment", "pal:ack=0.1")
    (job.root / "queue").write_text("COMPLETING 1:20 1\n")  # the mover's requeue
    time.sleep(2.5)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() in ((143, b"", b""), (-15, b"", b"")) and requeues(job) == 0
    assert job.comment.read_text() == f"{OWN} pal:ack=0.1"


def test_a_run_of_another_number_is_left_alone(start: Start) -> None:
    """A process that outlived its run on a lost node."""
    job = start(LOOP, "true", "RUNNING 1:00 3\n", restarts=2)
    notice(job)
    job.until("comment", "pal:ack=2.1")
    time.sleep(2.0)
    assert stopped(job) == (4, b"", b"") and requeues(job) == 0


@pytest.mark.parametrize("status", [0, 3])
def test_a_script_that_has_ended_is_not_requeued(status: int, start: Start) -> None:
    job = start(ONCE.replace("@", str(status)), "USR1")
    notice(job)
    assert job.end()[0] == status
    time.sleep(2.0)
    assert requeues(job) == 0


def test_one_that_ends_to_be_continued_is(start: Start) -> None:
    job = start(ONCE.replace("touch $SLURM_PAL_ACK; exit @", "exit 85"), "USR1")
    notice(job)
    job.until("requeued")
    job.process.send_signal(signal.SIGTERM)
    assert job.end()[:2] == (143, b"run none 77.0.0\n")


def test_one_that_may_not_be_continued_any_more_runs_again_to_its_limit(start: Start) -> None:
    job = start(ONCE.replace("touch $SLURM_PAL_ACK; exit @", "exit 85"), "USR1", requeue_s=1)
    job.until("begun")
    job.comment.write_text("pal:cont=3;of=3")
    notice(job)
    status, out, _ = job.end()
    assert (status, out) == (6, b"run none 77.0.0\nrun 1 77.0.1\n") and requeues(job) == 0


def test_a_refused_requeue_costs_nothing_and_is_said(start: Start) -> None:
    job = start(LOOP, "true")
    (job.root / "refuses").touch()
    notice(job)
    job.until("refused", "x\n" * 5)
    job.until("comment", "pal:cont=0;of=3")
    time.sleep(2.5)
    status, _, err = stopped(job)
    assert status == 4 and b"not continued after the time limit: Requested operation is presently disabled" in err


def test_a_job_that_cannot_be_counted_is_not_requeued(start: Start) -> None:
    job = start(LOOP, "touch made", limit_s=5)
    (job.root / "mute").touch()
    notice(job)
    job.until("made")
    time.sleep(5.5)
    status, _, err = stopped(job)
    assert status == 4 and requeues(job) == 0 and b"its comment cannot be read or written" in err


def test_before_its_limit_a_job_has_as_long_for_its_checkpoint_as_it_asked_for(start: Start) -> None:
    job = start(LOOP, "sleep 2", limit_s=1)
    notice(job)
    job.until("requeued")
    assert "failed" not in job.comment.read_text()


def test_a_task_is_called_by_its_number_in_the_array(start: Start) -> None:
    """Its own may be that of the array, which means all tasks."""
    names = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "4"}
    job = start(LOOP, "true", saving=Saving(60, 3, True), name="77_4", environment=names)
    notice(job)
    job.until("requeued")
    assert job.until("comment").endswith(" pal:ack=0.1 pal:cont=1;of=3")


def test_a_job_that_an_array_submitted_is_no_task_of_it(start: Start) -> None:
    job = start(LOOP, "true", environment={"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "4"})
    notice(job)
    job.until("requeued")


def test_a_requeue_by_others_during_the_checkpoint_ends_it(start: Start) -> None:
    job = start(LOOP, "touch made; sleep 5")
    notice(job)
    job.until("made")
    job.process.send_signal(signal.SIGTERM)
    assert job.end()[0] in (143, -15) and requeues(job) == 0


def test_a_killed_wrapper_requeues_nothing(start: Start) -> None:
    job = start(LOOP, "true", mover_s=2)
    notice(job)
    job.until("comment", "pal:ack=0.1")
    job.kill()
    time.sleep(3)
    assert requeues(job) == 0


# -- what is asked for ------------------------------------------------------------------------


def asked(
    words: list[str], env: Mapping[str, str] | None = None, line: str = "", checkpoint: str = "USR1", most: int = 100
) -> tuple[Saving, list[str]]:
    warnings: list[str] = []
    given = parse(words)
    script = scan(f"#!/bin/sh\n{line}\ntrue\n".encode())
    found = saving(choice(given), env or {}, given, script, Moving(True, checkpoint), most, warnings)
    return found, warnings


@pytest.mark.parametrize(
    ("words", "env", "line", "found"),
    [
        (["--pal-save-before=300"], {}, "", Saving(300, 10)),
        (["--pal-save-before", "5m", "--pal-save-times=2"], {}, "", Saving(300, 2)),
        (["--pal-save-before=5:00"], {}, "", Saving(300, 10)),
        (["--pal-save-before=1:00:00"], {"SLURM_PAL_SAVE_BEFORE": "60"}, "#PAL save-before=20", Saving(3600, 10)),
        ([], {"SLURM_PAL_SAVE_BEFORE": "60"}, "#PAL save-before=20 save-times=4", Saving(60, 4)),
        ([], {}, "#PAL save-before=20 save-times=4", Saving(20, 4)),
        (["--pal-save-before=0"], {}, "#PAL save-before=20", NO_SAVING),
        ([], {"SLURM_PAL_SAVE_BEFORE": "0"}, "#PAL save-before=20", NO_SAVING),
        ([], {"SLURM_PAL_SAVE_BEFORE": "20", "SLURM_PAL_JOB_SAVE_BEFORE": "20"}, "", NO_SAVING),
        (["-a1-3", "--pal-save-before=20"], {}, "", Saving(20, 10, True)),
        (["-t5", "--pal-save-before=239"], {}, "", Saving(239, 10)),
    ],
)  # fmt: skip
def test_what_is_asked_for(words: list[str], env: dict[str, str], line: str, found: Saving) -> None:
    assert asked(words, env, line) == (found, [])


WRONG = [
    ("soon", "", "is not a time from 10 to 65535 s"),
    ("9", "", "is not a time"),
    ("65536", "", "is not a time"),
    ("", "", "is not a time"),
    ("300 save-times=0", "", "whole number from 1"),
    ("300 save-times=x", "", "whole number from 1"),
    ("300", "#SBATCH --signal=USR2@60", "--signal=USR2@60"),
    ("240", "#SBATCH -t 5", "leaves no time: the limit is 5, and notice comes up to 60 s early"),
    ("300", "#SBATCH --time=3:00", "leaves no time: the limit is 3:00"),
]


@pytest.mark.parametrize(("value", "line", "said"), WRONG)
def test_what_cannot_be_is_refused_on_the_command_line_and_ignored_elsewhere(value: str, line: str, said: str) -> None:
    before, _, times = value.partition(" save-times=")
    words = [f"--pal-save-before={before}", *([f"--pal-save-times={times}"] if times else [])]
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        asked(words, {}, line)
    assert str(refused.value).startswith("--pal-save-") and "\n" not in str(refused.value)
    found, warnings = asked([], {}, f"{line}\n#PAL save-before={value}")
    assert found == NO_SAVING and len(warnings) == 1 and said in warnings[0] and warnings[0].endswith("; ignored")


def test_without_a_checkpoint_there_is_nothing_to_continue_from() -> None:
    with pytest.raises(UsageError, match="needs --pal-checkpoint"):
        asked(["--pal-save-before=300"], checkpoint="")
    assert asked([], {"SLURM_PAL_SAVE_BEFORE": "300"}, checkpoint="")[0] == NO_SAVING


def test_a_notice_of_the_users_own_may_come_from_the_environment() -> None:
    with pytest.raises(UsageError, match="--signal=B:USR1@9"):
        asked(["--pal-save-before=300"], {"SBATCH_SIGNAL": "B:USR1@9"})


def test_a_number_alone_means_nothing() -> None:
    with pytest.raises(UsageError, match="is for jobs with --pal-save-before"):
        asked(["--pal-save-times=3"])
    found, warnings = asked([], line="#PAL save-times=3")
    assert found == NO_SAVING and len(warnings) == 1


def test_the_site_has_the_last_word_on_how_often() -> None:
    words = ["--pal-save-before=300", "--pal-save-times=50"]
    found, warnings = asked(words, most=20)
    assert found.times == 20 and "at most 20 times: submit.save_times_max" in warnings[0]
    assert asked(words[:1], most=5) == (Saving(300, 5), [])
    assert asked(words[:1], most=0)[0] == NO_SAVING


def test_a_job_that_does_not_ask_is_as_ever() -> None:
    text = render(b"#!/bin/sh\n", "true").decode()
    assert "\npal_before_s=0 " in text
    functions = text.rpartition('pal_main "$@"')[0] + 'pal_job=1; squeue() { echo asked; }; pal_near_s; echo "$?"\n'
    done = subprocess.run(["/bin/bash", "-c", functions], capture_output=True, check=True, text=True)
    assert done.stdout == "1\n"


def test_no_function_of_the_wrapper_is_one_of_elastic_jobs() -> None:
    """Both are one script; four are there to be replaced."""
    names = [
        name
        for part in ("wrapper.sh", "elastic.sh")
        for name in re.findall(r"^(pal_\w+)\(\)", (Path(checkpoint.__file__).parent / part).read_text(), re.MULTILINE)
    ]
    twice = {name for name in names if names.count(name) > 1}
    assert twice == {"pal_join", "pal_ends_perhaps", "pal_needs_room", "pal_part"}


def test_a_notice_in_the_first_moment_does_not_kill_the_job(tmp_path: Path) -> None:
    """With a short limit it comes at once: here before the wrapper's first command after its head."""
    text = render(b"#!/bin/sh\nexit 3\n", "true", saving=THREE).decode()
    text = text.replace("\npal_say()", "\nkill -USR1 $$\npal_say()", 1)
    (tmp_path / "slurm_script").write_text(text)
    env = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "SLURM_JOB_ID": "77"}
    done = subprocess.run(["/bin/bash", "slurm_script"], cwd=tmp_path, env=env, capture_output=True, check=False)
    assert done.returncode == 3
