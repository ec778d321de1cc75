# SPDX-License-Identifier: MIT
"""A job's payload for a lab: its run time depends on the GPUs that it really got.

run time = requested seconds x largest true slowdown of its GPUs for the sensitivity class
           x locality penalty, if the GPUs are on several nodes (PAL, SC'24: the
             slowest GPU paces a synchronous job, and the network slows every iteration):
             the lab's at the nearest switch that the nodes have in common

Started by the job itself on the node, so it imports little.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import NamedTuple, NoReturn

from slurm_pal.base.errors import DataError, SlurmError, UsageError
from slurm_pal.base.files import write_atomic
from slurm_pal.base.numbers import MOST_GPUS, digits
from slurm_pal.emulation.gpus import CLASSES, find_registry, load_registry
from slurm_pal.emulation.load import running
from slurm_pal.slurm.client import Runner

SCHEMA = "pal.work/1"
_HINT = "submit it to a lab, like sbatch --gres=gpu:1 --wrap 'pal lab work --class A --seconds 20'"

Gpus = dict[str, tuple[int, ...]]
"""node -> Slurm's GPU indexes there"""


class PayloadPlan(NamedTuple):
    """How long the work will take, and why."""

    job_id: int
    sensitivity: str
    gpus: Gpus
    slowdown: float  # of the slowest GPU
    locality: float  # 1.0 on one node, else the penalty
    seconds: float


def plan(
    environ: Mapping[str, str], sensitivity: str, seconds: float, penalty: float | None, runner: Runner
) -> PayloadPlan:
    """Look up the GPUs of the job that `environ` belongs to, and their slowdown; a `penalty` of None is the lab's.

    Raises UsageError outside a lab's job, without GPUs or for a value that is not
    allowed, SlurmError if Slurm does not name the GPUs, DataError for a broken lab.
    """
    if sensitivity not in CLASSES:
        raise UsageError(f"--class {sensitivity!r} is not one of {', '.join(CLASSES)}")
    if not 0 <= seconds < 1e7:
        raise UsageError(f"--seconds {seconds:g} must be at least 0")
    if penalty is not None and not 1 <= penalty < 1e3:
        raise UsageError(f"--locality-penalty {penalty:g} must be at least 1")
    job_id = digits(environ.get("SLURM_JOB_ID", ""))
    if job_id is None:
        raise UsageError(f"pal lab work is not inside a Slurm job: {_HINT}")
    path = find_registry(environ)
    if path is None:
        raise UsageError(f"job {job_id} does not run in a lab (no emulated GPUs beside $SLURM_CONF): {_HINT}")
    gpus = given_gpus(environ, job_id, runner)
    registry = load_registry(path)
    slowdown = max(registry.gpu(node, i).true_slowdown(sensitivity) for node, held in gpus.items() for i in held)
    locality = registry.across(gpus) if penalty is None or len(gpus) < 2 else penalty
    return PayloadPlan(job_id, sensitivity, gpus, slowdown, locality, seconds * slowdown * locality)


def given_gpus(environ: Mapping[str, str], job_id: int, runner: Runner) -> Gpus:
    """The GPUs of a job: for one node from its environment, else from one scontrol call.

    The environment of a job on several nodes names only the first node's GPUs. A step
    has its own list, which may be shorter than the job's. Raises UsageError without GPUs.
    """
    if environ.get("SLURM_JOB_NUM_NODES", "1") == "1":
        node = environ.get("SLURMD_NODENAME", "")
        indexes = gpu_indexes(environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS", ""))
        gpus = {node: indexes} if node and indexes else {}
    else:
        gpus = _gpus_by_slurm(job_id, runner)
    if not gpus:
        raise UsageError(f"job {job_id} holds no GPUs: ask for some, like --gres=gpu:1 or --gpus=2")
    return gpus


def _gpus_by_slurm(job_id: int, runner: Runner) -> Gpus:
    from slurm_pal.slurm import parse  # only wide jobs need it

    done = runner(["scontrol", "show", "job", "-d", "-o", str(job_id)], "")
    if done.returncode != 0:
        raise SlurmError(f"scontrol show job {job_id} failed: {done.stderr.strip() or done.returncode}")
    # The id of an array's last task is also the id of the array: all tasks are shown.
    jobs = [parse.job(line) for line in done.stdout.splitlines() if line.startswith("JobId=")]
    return next(({node: held for node, held in job.gpus.items() if held} for job in jobs if job.job_id == job_id), {})


def gpu_indexes(text: str) -> tuple[int, ...]:
    """ "0,2-3" -> (0, 2, 3); () for anything that is not a list of indexes."""
    indexes: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        low, high = digits(first), digits(last or first)
        if low is None or high is None or high >= MOST_GPUS:
            return ()
        indexes += range(low, high + 1)
    return tuple(indexes)


class Terminated(SystemExit):
    """SIGTERM arrived; the exit code is a shell's for that."""


class Saving(NamedTuple):
    """How the work can be interrupted: where its checkpoint is, and what receives its steps."""

    path: str = ""  # "": it begins anew each time
    steps: int = 0  # iterations that it consists of
    tell: Callable[[int, int], None] | None = None  # iteration and total, every TELL_S
    acknowledge: str = ""  # file that acknowledges a checkpoint ($SLURM_PAL_ACK)


TELL_S = 10.0
_ANEW = Saving()


def work(planned: PayloadPlan, saving: Saving = _ANEW) -> dict[str, object]:
    """Take as long as planned, less the part that a checkpoint records as done; return the record.

    At SIGUSR1 a checkpoint is written if one is wanted. Raises Terminated (exit code 143)
    at SIGTERM, DataError for a checkpoint that cannot be read.
    """
    asked: list[int] = []
    handlers: dict[int, Callable[[int, FrameType | None], None]] = {signal.SIGTERM: _terminate}
    if saving.path:
        handlers[signal.SIGUSR1] = lambda number, frame: asked.append(number)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        share = _saved(saving.path)
        started_s = time.time()
        _spend(planned.seconds, share, saving, asked)
        ended_s = time.time()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return {
        "schema": SCHEMA,
        "job_id": planned.job_id,
        "class": planned.sensitivity,
        "gpus": {node: list(held) for node, held in planned.gpus.items()},
        "slowdown": round(planned.slowdown, 6),
        "locality": planned.locality,
        "seconds": round(planned.seconds, 6),
        "resumed": round(share, 6),
        "started_s": round(started_s, 3),
        "ended_s": round(ended_s, 3),
    }


def _spend(seconds: float, share: float, saving: Saving, asked: list[int]) -> None:
    """Sleep for the rest of the work, writing checkpoints and reporting steps on the way."""
    began = time.monotonic() - share * seconds
    told_s = -math.inf
    # Against the clock, not by one long sleep: a stopped and continued job (SIGSTOP,
    # suspend) must not sleep its full time again, and time.sleep may end a little early.
    while (left_s := began + seconds - time.monotonic()) > 0:
        if asked:
            asked.clear()
            _save(saving, 1.0 - left_s / seconds)
        if saving.tell is not None and time.monotonic() >= told_s + TELL_S:
            told_s = time.monotonic()
            saving.tell(int(saving.steps * (1.0 - left_s / seconds)), saving.steps)
        time.sleep(min(left_s, TELL_S if saving.tell else 60.0, 0.1 if saving.path else 60.0))


def _saved(path: str) -> float:
    """The share of the work that a checkpoint records as done; 0.0 without one."""
    if not path:
        return 0.0
    try:
        with open(path, encoding="utf-8") as stream:
            return min(1.0, max(0.0, float(stream.read())))
    except FileNotFoundError:
        return 0.0
    except (OSError, ValueError) as error:
        raise DataError(f"checkpoint {path} cannot be read: {error}") from None


def _save(saving: Saving, share: float) -> None:
    write_atomic(saving.path, f"{share:.9f}\n", 0o644)
    if saving.acknowledge:
        with open(saving.acknowledge, "w", encoding="utf-8"):
            pass


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(128 + number)


def run(
    sensitivity: str, seconds: float, penalty: float | None = None, checkpoint: str = "", steps: int = 0,
    collectives: bool = False,
) -> dict[str, object]:  # fmt: skip
    """`plan` and `work` for this process's own job; `steps` are reported by `pal progress`.

    With `collectives` it leaves records of its collectives, as the inspector plug-in of NCCL would.
    """
    from slurm_pal.slurm.cli import subprocess_runner

    saving = Saving(checkpoint, steps, _progress if steps else None, os.environ.get("SLURM_PAL_ACK", ""))
    planned = plan(os.environ, sensitivity, seconds, penalty, subprocess_runner())
    if collectives:
        _record(planned, find_registry(os.environ) or "")
    with running(find_registry(os.environ) or "", planned.gpus, sensitivity):
        return work(planned, saving)


def _record(planned: PayloadPlan, registry_path: str) -> None:
    """Records of some steps of this job, one rank for each GPU, where the plug-in writes them."""
    import random

    from slurm_pal.emulation.collectives import Behaving, Rank, files
    from slurm_pal.online.word import folder_of

    registry = load_registry(registry_path)
    ranks = [
        Rank(node, place, registry.gpu(node, index).true_slowdown(planned.sensitivity))
        for node, held in sorted(planned.gpus.items()) for place, index in enumerate(sorted(held))
    ]  # fmt: skip
    folder = folder_of(os.environ, os.getcwd())
    os.makedirs(folder, exist_ok=True)
    for name, text in files(ranks, Behaving(), random.Random(planned.job_id), start_s=time.time()).items():
        write_atomic(os.path.join(folder, name), text)


def _progress(iteration: int, total: int) -> None:
    """As a user's own program would report it."""
    import subprocess
    import sys

    program = os.path.join(os.path.dirname(sys.executable), "pal")
    with contextlib.suppress(OSError):
        subprocess.run([program, "progress", f"--every={TELL_S:g}", str(iteration), str(total)], check=False)


def describe(record: Mapping[str, object]) -> str:
    """A record in one line, for people."""
    gpus = record["gpus"]
    held = gpus.items() if isinstance(gpus, dict) else ()
    places = " ".join(f"{node}:{_joined(indexes)}" for node, indexes in held)
    return (
        f"job {record['job_id']} class {record['class']} on {places}: "
        f"slowdown {record['slowdown']} x locality {record['locality']} = {record['seconds']} s"
    )


def _joined(indexes: Sequence[int]) -> str:
    return ",".join(str(index) for index in indexes)
