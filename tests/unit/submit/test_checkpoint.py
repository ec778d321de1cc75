# SPDX-License-Identifier: MIT
"""The checkpoint wrapper: sbatch reads the same options, the script runs as it would alone, checkpoints are told."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base import marks
from slurm_pal.submit.argv import no_site_options, parse
from slurm_pal.submit.checkpoint import CannotWrap, remove, render, signal_in, wrapped, write
from slurm_pal.submit.choice import NO_SAVING, Saving
from slurm_pal.submit.script import scan

from ...doubles.processes import in_session

PATIENCE_S = 30.0
SQUEUE = '#!/bin/sh\n[ "$*" = "-h -j 77 -o %k" ] || exit 9\n[ -z "$SQUEUE_FORMAT" ] || exit 8\ncat "$COMMENT"; echo\n'
SCONTROL = (
    '#!/bin/sh\n[ "$1 $2" = "update JobId=77" ] || exit 9\nprintf %s "${3#Comment=}" > "$COMMENT.new"\n'
    'mv "$COMMENT.new" "$COMMENT"\n'
)
OWN = 'it\'s "mine"  a=b $HOME\nsecond'


class Job:
    """A wrapped script as slurmstepd would start it, beside a Slurm that only knows a comment."""

    def __init__(
        self, root: Path, body: bytes, command: str, *arguments: str, restarts: int = 0,
        environment: dict[str, str] | None = None, slurm: tuple[str, str] = (SQUEUE, SCONTROL),
        saving: Saving = NO_SAVING, part: bytes = b"", note: tuple[str, ...] = (), **limits: int,
    ) -> None:  # fmt: skip
        self.root, self.comment = root, root / "comment"
        for name in ("bin", "tmp"):
            (root / name).mkdir(exist_ok=True)
        (root / "begun").unlink(missing_ok=True)
        for name, text in zip(("squeue", "scontrol"), slurm, strict=True):
            (root / "bin" / name).write_text(text)
            (root / "bin" / name).chmod(0o755)
        self.comment.write_text(OWN)
        text = render(body, command, saving=saving, part=part, note=note)
        for name, seconds in limits.items():
            text, count = re.subn(rb"\npal_%s=\d+" % name.encode(), b"\npal_%s=%d" % (name.encode(), seconds), text)
            assert count == 1
        (root / "slurm_script").write_bytes(text)
        env = {
            "PATH": f"{root}/bin:{os.environ['PATH']}", "TMPDIR": str(root / "tmp"), "SLURM_JOB_ID": "77",
            "COMMENT": str(self.comment), "SQUEUE_FORMAT": "%i",
        }  # fmt: skip
        env |= environment or {}
        if restarts:  # as Slurm has it: unset in the first run
            env["SLURM_RESTART_COUNT"] = str(restarts)
        self.process = subprocess.Popen(
            ["/bin/bash", "slurm_script", *arguments], cwd=root, env=env, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def until(self, name: str, text: str = "") -> str:
        """The content of a file of the job, once it is there and holds `text`."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            found = (self.root / name).read_text() if (self.root / name).exists() else None
            if found is not None and text in found:
                return found
            assert time.monotonic() < deadline_s, (name, text, found)
            time.sleep(0.02)

    def checkpoint(self, number: str) -> str:
        self.process.send_signal(signal.SIGUSR1)
        return self.until("comment", f"pal:ack={number}")

    def end(self) -> tuple[int, bytes, bytes]:
        out, err = self.process.communicate(timeout=60)
        assert os.listdir(self.root / "tmp") == []  # nothing of the wrapper is left
        return self.process.returncode, out, err

    def processes(self) -> list[int]:
        """All of them, the batch shell first."""
        return in_session(self.process.pid)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def begin(
        body: str, command: str, *arguments: str, environment: dict[str, str] | None = None, **limits: int
    ) -> Job:
        jobs.append(Job(tmp_path, body.encode(), command, *arguments, environment=environment, **limits))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()


Start = Callable[..., Job]
LOOP = "#!/bin/bash\ntouch begun\nuntil [ -e stop ]; do sleep 0.05; done\nexit 4\n"


@pytest.mark.parametrize(
    ("body", "status", "out"),
    [
        ("#!/bin/sh\nexit 0\n", 0, b""),
        ("#!/bin/sh\nexit 3", 3, b""),
        ("#!/bin/bash\nkill -9 $$\n", 137, b""),
        ('#!/bin/sh\nprintf "<%s>" "$#" "$@"', 0, b"<2><a  'b><>"),
        ("#!/bin/sh -e\nfalse\necho no\n", 1, b""),
        ("#!/usr/bin/env -S python3 -I\nimport sys\nprint(sys.argv, sys.flags.isolated)\n", 0, None),
        ("#!/bin/cat\n\x01\x7f ä '\"$x\n", 0, "#!/bin/cat\n\x01\x7f ä '\"$x\n".encode()),
        ("#!/bin/sh\ncat\n", 0, b"input"),
        ("#!/bin/sh\ngrep SigIgn /proc/self/status | tail -c 8\n", 0, b"0000000\n"),
    ],
)  # fmt: skip
def test_the_script_runs_as_it_would_alone(body: str, status: int, out: bytes | None, start: Start) -> None:
    arguments = [] if body.startswith("#!/bin/cat") else ["a  'b", ""]
    job = start(body, "true", *arguments)
    job.process.stdin.write(b"input")
    if out is None:
        assert job.end()[1].endswith(b"/slurm_script', \"a  'b\", ''] 1\n")
    else:
        assert job.end() == (status, out, b"")


@pytest.mark.parametrize(
    "environment",
    [
        {"PATH": "/nonexistent"},
        {"SHELLOPTS": "errexit:nounset:noglob:noclobber"},
        {"PATH": "", "IFS": "/", "CDPATH": "/", "PYTHONHOME": "/nonexistent", "PYTHONPATH": "/nonexistent"},
        {f"BASH_FUNC_{name}%%": "() { exit 1; }" for name in ("mktemp", "tail", "sleep", "rm", "timeout")},
    ],
    ids=["PATH", "SHELLOPTS", "several", "functions"],
)
def test_an_environment_that_the_script_can_stand_is_none_that_breaks_the_wrapper(
    environment: dict[str, str], start: Start, tmp_path: Path
) -> None:
    body = '#!/bin/bash\necho "$- $PATH ${CDPATH-} ${PYTHONHOME-}"; declare -F; PATH=/usr/bin:/bin; echo *x*\nexit 4\n'
    (tmp_path / "alone").write_text(body)
    plain = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)} | environment
    alone = subprocess.run(["/bin/bash", "alone"], env=plain, cwd=tmp_path, capture_output=True, check=False)
    job = start(body, "true", environment=plain | {"TMPDIR": str(tmp_path / "tmp")})
    assert job.end() == (alone.returncode, alone.stdout, alone.stderr) and alone.returncode == 4


def test_a_checkpoint_is_acknowledged_beside_the_users_comment(start: Start) -> None:
    job = start(LOOP, 'echo "$PAL_PAYLOAD_PID $PWD" >> made; echo hello')
    job.until("begun")
    assert job.checkpoint("0.1") == f"{OWN} pal:ack=0.1"
    pid, place = job.until("made").split()
    assert place == str(job.root) and Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/bin/bash\0")
    time.sleep(1.5)  # the first is looked at once more before a second is begun
    assert job.checkpoint("0.2") == f"{OWN} pal:ack=0.2"
    (job.root / "stop").touch()
    assert job.end() == (4, b"hello\nhello\n", b"")


def test_a_failed_checkpoint_is_told(start: Start) -> None:
    job = start(LOOP, "exit 5")
    job.until("begun")
    assert job.checkpoint("0.1") == f"{OWN} pal:ack=0.1;failed=1"
    (job.root / "stop").touch()
    assert job.end()[0] == 4


PROGRAM = """
import os, pathlib, signal, sys, time
def save(*_):
    pathlib.Path("saved").write_text("x")
    pathlib.Path(os.environ["SLURM_PAL_ACK"]).touch()
signal.signal(signal.SIGUSR2, save)
pathlib.Path("begun").touch()
while not os.path.exists("stop"):
    time.sleep(0.02)
sys.exit(4)
"""


@pytest.mark.parametrize(
    "body",
    [
        "#!/usr/bin/env python3\n" + PROGRAM,
        "#!/bin/bash\npython3 program\n",
        "#!/bin/bash\ntrap 'touch cleaned' EXIT\npython3 program\n",
        "#!/bin/bash\ntrap 'touch $SLURM_PAL_ACK saved' USR2\n(sleep 100) & child=$!\ntouch begun\n"
        "until [ -e stop ]; do sleep 0.05; done\nkill $child\nexit 4\n",
    ],
    ids=["program", "below-a-shell", "below-a-shell-with-exit-trap", "shell-trap"],
)
def test_a_signal_reaches_the_process_that_takes_it_and_no_other(body: str, start: Start, tmp_path: Path) -> None:
    (tmp_path / "program").write_text(PROGRAM)
    job = start(body, "SIGUSR2")
    job.until("begun")
    assert job.checkpoint("0.1") == f"{OWN} pal:ack=0.1"
    job.until("saved")
    (job.root / "stop").touch()
    assert job.end() == (4, b"", b"")


def test_a_signal_that_nobody_takes_is_not_sent(start: Start) -> None:
    job = start(LOOP, "USR2")
    job.until("begun")
    assert job.checkpoint("0.1") == f"{OWN} pal:ack=0.1;failed=1"
    (job.root / "stop").touch()
    status, _, err = job.end()
    assert status == 4 and err.count(b"\n") == 1 and b"SIGUSR2" in err


@pytest.mark.parametrize("whole", [False, True], ids=["batch-shell-only", "all-processes"])
@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR2"])
def test_other_signals_reach_the_script_once(name: str, whole: bool, start: Start) -> None:
    body = f"#!/bin/bash\ntrap 'echo x >> got' {name}\ntouch begun\nuntil [ -e stop ]; do sleep 0.05; done\n"
    job = start(body, "true")
    job.until("begun")
    for count in (1, 2):
        number = signal.Signals[f"SIG{name}"]
        os.killpg(job.process.pid, number) if whole else job.process.send_signal(number)
        job.until("got", "x\n" * count)
        time.sleep(0.5)  # a second one would come within 0.1 s
        assert job.until("got") == "x\n" * count
    (job.root / "stop").touch()
    assert job.end()[0] == 0


def test_a_signal_just_before_the_wait_is_not_kept_until_the_next(start: Start, tmp_path: Path) -> None:
    """Sent by the batch shell to itself, in the very moment before it waits for the script."""
    (tmp_path / "debug").write_text(
        """[ "$0" = slurm_script ] && set -T && trap 'case $BASH_COMMAND in "wait "*)
        until [ -e begun ]; do sleep 0.02; done; [ -e sent ] || { : > sent; kill -USR2 $$; } ;; esac' DEBUG\n"""
    )
    body = "#!/bin/bash\ntrap 'echo x >> got; touch stop' USR2\n" + LOOP.partition("\n")[2]
    job = start(body, "true", environment={"BASH_ENV": str(tmp_path / "debug")})
    job.until("got")
    assert job.end() == (4, b"", b"")
    assert (tmp_path / "sent").exists()


def test_a_requeue_that_reaches_all_processes_at_once_ends_quietly(start: Start) -> None:
    """The script and its witness die in the very moment of the signal: bash may miss that."""
    for _ in range(8):
        job = start(LOOP, "true")
        job.until("begun")
        for pid in reversed(job.processes()):
            with contextlib.suppress(ProcessLookupError):  # a sleep of the script that has just ended
                os.kill(pid, signal.SIGTERM)
        status, _, err = job.end()
        assert status in (143, -15) and re.sub(rb"Terminated.*\n", b"", err) == b""


ONCE = """#!/bin/bash
trap 'touch $SLURM_PAL_ACK; exit @' USR1
echo "run ${SLURM_RESTART_COUNT:-none} $SLURM_PAL_RUN"
[ ! -e state ] || exit 6
echo 1 > state; touch begun
until [ -e stop ]; do sleep 0.05; done
"""


@pytest.mark.parametrize("status", [0, 1, 3])
def test_a_script_that_ends_after_its_checkpoint_has_ended(status: int, start: Start) -> None:
    """No requeue is waited for, and nothing runs twice: here a wait would never end."""
    job = start(ONCE.replace("@", str(status)), "USR1", requeue_s=10**6)
    job.until("begun")
    job.process.send_signal(signal.SIGUSR1)
    assert job.end() == (status, b"run none 77.0.0\n", b"")


@pytest.mark.parametrize("requeue_s", [0, 1])
@pytest.mark.parametrize("trap", ["touch $SLURM_PAL_ACK; exit 85", "exit 85"])
def test_a_script_to_be_continued_goes_on_when_no_requeue_comes_and_knows_it(
    trap: str, requeue_s: int, start: Start
) -> None:
    """The status says that the checkpoint is there, so nothing else has to. However soon, it is acknowledged first."""
    job = start(ONCE.replace("touch $SLURM_PAL_ACK; exit @", trap), "USR1", requeue_s=requeue_s)
    job.until("begun")
    assert job.checkpoint("0.1") == f"{OWN} pal:ack=0.1"
    status, out, err = job.end()
    assert (status, out) == (6, b"run none 77.0.0\nrun 1 77.0.1\n") and b"no requeue" in err


def test_runs_are_counted_on_from_slurms_own(start: Start) -> None:
    job = start(ONCE.replace("exit @", "exit 85").replace("exit 6", ":"), "USR1", requeue_s=1, restarts=2)
    for number in range(3):
        job.until("begun")
        (job.root / "begun").unlink()
        job.checkpoint(f"2.{number + 1}")
    job.until("begun")
    (job.root / "stop").touch()
    runs = b"run 2 77.2.0\nrun 3 77.2.1\nrun 4 77.2.2\nrun 5 77.2.3\n"
    assert job.end()[:2] == (0, runs)


def test_a_command_that_failed_since_the_script_has_left_its_checkpoint_has_not_failed(start: Start) -> None:
    command = "kill -USR1 $PAL_PAYLOAD_PID; while kill -0 $PAL_PAYLOAD_PID; do sleep 0.1; done; sleep 0.5; exit 1"
    job = start(ONCE.replace("exit @", "exit 85"), command, requeue_s=1)
    job.until("begun")
    assert job.checkpoint("0.1") == f"{OWN} pal:ack=0.1"
    assert job.end()[:2] == (6, b"run none 77.0.0\nrun 1 77.0.1\n")


def test_the_status_alone_means_nothing(start: Start) -> None:
    """Nobody asked for a checkpoint, so nobody will requeue the job."""
    job = start("#!/bin/sh\necho run\nexit 85\n", "USR1", requeue_s=10**6)
    assert job.end() == (85, b"run\n", b"")


def test_the_end_of_the_job_is_not_waited_for_when_a_requeue_comes(start: Start) -> None:
    job = start(ONCE.replace("exit @", "exit 85"), "USR1", requeue_s=10**6)
    job.until("begun")
    job.checkpoint("0.1")
    time.sleep(0.5)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == (143, b"run none 77.0.0\n", b"")


@pytest.mark.parametrize(
    "comment", ["", "a", " a  b ", "pal:ack=0.7", "x pal:ack=0.1;failed=1  y=z pal:it=3;r=0", "-n"]
)
def test_the_word_is_put_as_elsewhere(comment: str, tmp_path: Path) -> None:
    functions = render(b"#!/bin/sh\n", "true").rpartition(b'pal_main "$@"')[0]
    (tmp_path / "functions").write_bytes(functions + b'pal_put "$1" pal:ack=0.8\n')
    done = subprocess.run(["/bin/bash", tmp_path / "functions", comment], capture_output=True, check=True, text=True)
    assert done.stdout == marks.put(comment, {"ack": "0.8"}) and not done.stderr


_line = st.sampled_from(
    [
        "#SBATCH -N2",
        '#SBATCH --comment="a b"',
        "#PAL class=A",
        "#PAL checkpoint=a b",
        "",
        "  # c",
        "# @FIRST@",
        "\t#",
        "\f",
    ]
)


@given(st.lists(_line, max_size=6), st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"])))
def test_sbatch_reads_the_same_directives_and_the_script_is_kept(lines: list[str], rest: str) -> None:
    body = "\n".join(["#!/bin/sh", *lines, rest]).encode()
    text = render(body, "echo 'x' @FIRST@\nsecond")
    ours, own = scan(text), scan(body)
    if own.doubt or "\f" in lines or rest.lstrip().startswith("#") or not rest.strip():
        return
    assert (ours.words, ours.pal) == (own.words, own.pal)
    assert text.endswith(body)
    first = int(text.partition(b"\npal_first=")[2].split(None, 1)[0])
    assert b"\n".join(text.split(b"\n")[first - 1 :]) == body


@pytest.mark.parametrize("body", [b"", b"true\n", b"#!/bin/sh\r\ntrue\r\n", b"#!/bin/sh\ntrue\0\n", b"#!\ntrue\n"])
def test_what_sbatch_refuses_is_left_to_it(body: bytes) -> None:
    with pytest.raises(CannotWrap):
        render(body, "true")


def test_signal_names() -> None:
    assert [signal_in(text) for text in ("USR1", "SIGTERM", " HUP ", "KILL", "usr1", "USR1 x", "")] == [
        "USR1", "TERM", "HUP", "", "", "", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "name", "before", "after"),
    [
        (["-N1", "dir/a b.sh", "x", "--wrap"], "a b.sh", ("-N1",), ("PATH", "x", "--wrap")),
        (["--", "-x.sh", "y"], "-x.sh", (), ("--", "PATH", "y")),
        (["-N1", "--wrap", "true", "-J", "--wrap"], "wrap", ("-N1", "-J", "--wrap"), ("PATH",)),
        (["--wra=true", "-Hn", "2"], "wrap", ("-Hn", "2"), ("PATH",)),
        (["-N1"], "sbatch", ("-N1",), ("PATH",)),
    ],
)
def test_the_file_bears_the_name_of_the_job(
    words: list[str], name: str, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    script = scan(b"#!/bin/sh\n")._replace(body=b"#!/bin/sh\n")
    path, text, line = wrapped(parse(words), script, "true", no_site_options)
    assert os.path.basename(path) == name and not os.path.exists(os.path.dirname(path))
    assert line.before == before and line.after == tuple(path if word == "PATH" else word for word in after)
    assert text.endswith(b"#!/bin/sh\n" if name != "wrap" else b"\n\ntrue\n")


def test_directives_in_the_words_of_wrap_do_not_count() -> None:
    _, text, _ = wrapped(parse(["--wrap", "#SBATCH -N9\ntrue"]), None, "true", no_site_options)
    assert scan(text).words == ()


def test_the_file_is_private_and_goes_with_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "new" / "job.sh"
    write(str(path), b"x")
    assert path.parent.stat().st_mode & 0o777 == 0o700 and path.read_bytes() == b"x"
    with pytest.raises(OSError):
        write(str(path), b"y")
    remove(str(path))
    remove(str(path))
    assert not path.parent.exists()
