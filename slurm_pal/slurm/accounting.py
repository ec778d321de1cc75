# SPDX-License-Identifier: MIT
"""The history of a cluster from its accounting database, row by row as sacct prints it."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, BinaryIO, cast

from slurm_pal.base.errors import PalError, SlurmError
from slurm_pal.base.hostlist import expand
from slurm_pal.base.numbers import digits
from slurm_pal.slurm.question import NOT_IN_PATH, Runner
from slurm_pal.slurm.told import clean_environment

COLUMNS = (
    "JobIDRaw", "User", "Account", "QOS", "Partition", "Submit", "Eligible", "Start", "End", "ElapsedRaw",
    "TimelimitRaw", "NNodes", "ReqTRES", "AllocTRES", "State", "JobName",
)  # fmt: skip
"""22.05 knows them all. JobName comes last: sacct does not escape a `|` in it."""

HOUR_S = 3600.0
ANSWER_S = 30.0
"""A tick waits no longer for what owners needed."""
TIME_FORMAT = {"SLURM_TIME_FORMAT": "%s"}
"""Unix seconds: local times repeat an hour each autumn."""


def argv(since: str) -> list[str]:
    """The command for all jobs since a moment as sacct reads it (`2026-01-31`, `now-30days`)."""
    return ["sacct", "-a", "-X", "-P", "-S", since, "-E", "now", "-o", ",".join(COLUMNS)]


def export_command(since: str) -> str:
    """The same as typed in a shell, into a file."""
    variables = " ".join(f"{name}={value}" for name, value in TIME_FORMAT.items())
    return f"{variables} {shlex.join(argv(since))} > trace.txt"


def environment() -> Mapping[str, str]:
    """Our environment, without the user's display settings for sacct."""
    return {k: v for k, v in clean_environment().items() if not k.startswith("SACCT_")} | TIME_FORMAT


def demand_history(partitions: Sequence[str], since_s: float, hour_s: float = HOUR_S) -> dict[int, float]:
    """Hour (Unix time / `hour_s`) -> the number of nodes on which jobs of these partitions ran in it.

    From `since_s` (Unix s) to now. Raises SlurmError as `history` does.
    """
    now_s = time.time()
    columns = ("Start", "End", "NodeList")
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since_s))
    command = ["sacct", "-a", "-X", "-n", "-P", "-r", ",".join(partitions), "-S", since, "-E", "now", "-o",
               ",".join(columns)]  # fmt: skip
    used: dict[int, set[str]] = defaultdict(set)
    with history(command, ANSWER_S) as stream:
        for line in stream:
            words = line.decode(errors="replace").rstrip("\n").split("|")
            start_s = digits(words[0]) if len(words) == len(columns) else None
            if start_s is None or words[2] in ("", "None assigned"):
                continue
            end_s = digits(words[1])
            last_s = min(now_s, now_s if end_s is None else float(end_s))
            nodes = expand(words[2])
            for hour in range(int(max(start_s, since_s) // hour_s), int(last_s // hour_s) + 1):
                used[hour].update(nodes)
    first = int(since_s // hour_s) + 1
    if not used:
        return {}
    return {hour: float(len(used.get(hour, ()))) for hour in range(max(first, min(used)), int(now_s // hour_s) + 1)}


def preempted_qos(run: Runner) -> frozenset[str] | None:
    """The QOS that jobs of some other QOS may preempt (sacctmgr(1)); None where the database does not answer."""
    try:
        done = run(["sacctmgr", "-n", "-P", "show", "qos", "format=Preempt"], "")
    except SlurmError:
        return None
    if done.returncode != 0:
        return None
    return frozenset(name for line in done.stdout.split() for name in line.split(",") if name)


@contextlib.contextmanager
def history(command: Sequence[str], timeout_s: float = 600.0) -> Iterator[BinaryIO]:
    """What sacct prints, to be read while it runs: months of a busy site need not fit into memory.

    Raises SlurmError when sacct is missing, fails, or has not ended after `timeout_s`. A
    PalError of the block is then a mere consequence, and gives way. sacct never outlives the block.
    """
    late = threading.Event()
    trouble: PalError | None = None
    with tempfile.TemporaryFile() as complaints:
        process = _start(command, complaints)

        def give_up() -> None:
            late.set()
            process.kill()

        watchdog = threading.Timer(timeout_s, give_up)
        watchdog.start()
        try:
            try:
                with cast(BinaryIO, process.stdout) as stream:
                    yield stream
            except PalError as error:
                trouble = error
            process.wait()
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()
        if process.returncode == -signal.SIGKILL and late.is_set():
            raise SlurmError(f"{command[0]} had not ended after {timeout_s:g} s: ask for fewer days") from None
        if process.returncode > 0:
            raise SlurmError(f"{command[0]} failed: {_complaint(complaints, process.returncode)}") from None
        if trouble is not None:
            raise trouble
        if process.returncode:
            raise SlurmError(f"{command[0]} was ended by signal {-process.returncode}")


def _start(command: Sequence[str], complaints: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, env=environment()
        )
    except FileNotFoundError:
        raise SlurmError(f"{command[0]} is not in PATH: {NOT_IN_PATH}") from None
    except OSError as error:
        raise SlurmError(f"{command[0]} cannot be started: {error.strerror}") from None


def _complaint(complaints: IO[bytes], returncode: int) -> str:
    """The last line on stderr, which says how it ended; else the exit code."""
    complaints.seek(0)
    lines = [line.strip() for line in complaints.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("sacct: error: ") if lines else f"exit code {returncode}"
