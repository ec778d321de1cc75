# SPDX-License-Identifier: MIT
"""What a running job writes into its own comment: how far it is, and that a checkpoint exists.

Whoever submitted a job may change its comment while it runs (scontrol(1), update). Each
change costs the controller two requests and a state save, hence the limit on how often.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from slurm_pal.base import marks
from slurm_pal.base.errors import DataError, SlurmError, UsageError
from slurm_pal.base.light import suppress
from slurm_pal.base.numbers import digits
from slurm_pal.slurm.client import Completed, Runner

OLD_S = 86400.0
"""A moment remembered so long ago is forgotten: of a job that runs on, it only brings one mark forward."""


def job_id(environment: Mapping[str, str]) -> int:
    """The job that this process belongs to. Raises UsageError outside of one."""
    number = digits(environment.get("SLURM_JOB_ID", ""))
    if number is None:
        raise UsageError("not inside a Slurm job (no SLURM_JOB_ID): call it from the job's script or program")
    return number


def named(environment: Mapping[str, str]) -> str:
    """How Slurm's commands name this job only. Raises UsageError outside of one.

    The last task of an array to start has the array's own id, which means all of its tasks.
    """
    job = job_id(environment)
    array, task = environment.get("SLURM_ARRAY_JOB_ID", ""), environment.get("SLURM_ARRAY_TASK_ID", "")
    return str(job) if digits(array) is None or digits(task) is None else f"{array}_{task}"


def speaks(environment: Mapping[str, str]) -> bool:
    """Whether this process speaks for the job: in a step only the first task does."""
    return environment.get("SLURM_PROCID", "0") == "0"


def restarts(environment: Mapping[str, str]) -> int:
    """How often Slurm has requeued the job; it sets the variable from the first time on.

    The checkpoint wrapper also counts the runs that it starts itself there, and keeps Slurm's own number beside it.
    """
    job, requeues, _ = (*environment.get("SLURM_PAL_RUN", "").split("."), "", "")[:3]
    text = requeues if job == environment.get("SLURM_JOB_ID") else environment.get("SLURM_RESTART_COUNT", "")
    return digits(text) or 0


def progress_word(iteration: int, total: int | None, now_s: float, restart: int) -> dict[str, str]:
    """The values of the mark `pal:it=`."""
    of = {} if total is None else {"of": str(total)}
    return {marks.PROGRESS: str(iteration), **of, "at": f"{now_s:.0f}", "r": str(restart)}


def ack_word(comment: str, restart: int, failed: bool) -> dict[str, str]:
    """The values of the next mark `pal:ack=`: numbers count from 1 in each run of the job."""
    run, _, number = marks.read(comment, marks.ACK).get(marks.ACK, "").partition(".")
    last = (digits(number) or 0) if run == str(restart) else 0
    return {marks.ACK: f"{restart}.{last + 1}"} | ({"failed": "1"} if failed else {})


def comment_of(run: Runner, job: str) -> str:
    """A job's (`named`) comment as it is, blanks and line ends included. Raises SlurmError.

    Only squeue prints it with nothing around it.
    """
    text = _checked(run, ["squeue", "-h", "-j", job, "-o", "%k"]).stdout.removesuffix("\n")
    return "" if text == "(null)" else text


def put(run: Runner, job: str, comment: str, pairs: dict[str, str], beside: Mapping[str, str] | None = None) -> None:
    """Put a mark into a job's comment, and keep all else. Raises SlurmError, or DataError if it becomes too long.

    `beside`: another mark, put there as well where there is room.
    """
    text = marks.put(comment, pairs)
    if text is None:
        raise DataError(f"the comment of job {job} has no room for {marks.word(pairs)}: shorten --comment")
    text = (marks.put(text, dict(beside)) if beside else None) or text
    _checked(run, ["scontrol", "update", f"JobId={job}", f"Comment={text}"])


def _checked(run: Runner, argv: list[str]) -> Completed:
    done = run(argv, "")
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise SlurmError(f"{argv[0]} failed: {said[0].strip() if said else f'exit code {done.returncode}'}")
    return done


def due(job: int, restart: int, every_s: float, now_s: float, environment: Mapping[str, str]) -> bool:
    """Whether this many seconds have passed since the last mark; if so, remember this moment.

    The moment is kept in a small file of the user's beside the job: in the checkpoint wrapper's directory, else in
    $TMPDIR or /tmp. Raises OSError if it cannot be kept: then nothing is written, so as not to write too often.
    """
    with open(_memory(job, now_s, environment), "r+b") as stream:
        text, _, run = stream.read(64).decode("ascii", "replace").partition(" ")
        last_s = digits(text)
        if last_s is not None and run == str(restart) and 0 <= now_s - last_s < every_s:
            return False
        stream.seek(0)
        stream.truncate()
        stream.write(f"{int(now_s)} {restart}".encode())  # never rounded up: that would be in the future
    return True


def _memory(job: int, now_s: float, environment: Mapping[str, str]) -> int:
    """The open file, made if there is none yet; then the files of the user's ended jobs go. Raises OSError.

    Its name has an end that nobody can guess: any user may make files in /tmp, and a predictable one before us. A file
    that is not the user's own is skipped, and so is one with a second name: it may be another file of theirs.
    """
    folder = os.path.dirname(environment.get("SLURM_PAL_ACK", ""))
    if not os.path.isdir(folder):  # another node of the job
        folder = environment.get("TMPDIR") or "/tmp"
    user = f"slurm-pal-{os.geteuid()}-"
    head = f"{user}{job}-"
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.scandir(folder) as entries:
        changed_s = {entry.path: _changed_s(entry) for entry in entries if entry.name.startswith(user)}
    ours = sorted(path for path, at_s in changed_s.items() if at_s and os.path.basename(path).startswith(head))
    if ours:
        return os.open(ours[0], flags)
    for path, at_s in changed_s.items():
        if 0 < at_s < now_s - OLD_S:
            with suppress(OSError):
                os.unlink(path)
    return os.open(os.path.join(folder, head + os.urandom(8).hex()), flags | os.O_CREAT | os.O_EXCL, 0o600)


def _changed_s(entry: os.DirEntry[str]) -> float:
    """When a file was last written; 0 where it is not the user's own, has a second name, or is gone."""
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError:
        return 0.0
    ours = stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and info.st_nlink == 1
    return info.st_mtime if ours else 0.0


def touch_ack(environment: Mapping[str, str]) -> bool:
    """Answer the checkpoint wrapper on this node by its file; False if there is none."""
    path = environment.get("SLURM_PAL_ACK", "")
    if not path:
        return False
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError:  # another node of the job, or its wrapper has ended
        return False
    return True
