# SPDX-License-Identifier: MIT
"""Jobs of submitit that can be moved: `executor = movable(submitit.AutoExecutor(folder))`, and all else as before.

submitit saves and requeues its job itself on the signal of a time limit or a preemption (SIGUSR2). That stays as it
is. The mover asks by another signal: then submitit's checkpoint is written and acknowledged, and it is the mover that
requeues.

`python -m slurm_pal.frameworks.submitit FOLDER` is what runs in the job, in the place of submitit's own program.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TypeVar

from submitit import AutoExecutor, Executor, SlurmExecutor
from submitit.core import job_environment
from submitit.core.submission import submitit_main

from slurm_pal.frameworks.saver import acknowledge
from slurm_pal.submit import inside

REQUEUE_S = 15.0
"""How long a requeue is waited for after a checkpoint, as palsub's wrapper does; then the function goes on."""

OTHERS = job_environment.JobEnvironment.USR_SIG
OURS = "USR2" if OTHERS == "USR1" else "USR1"

_E = TypeVar("_E", bound=Executor)


class MovableExecutor(SlurmExecutor):
    """Submits by palsub. Arrays are submitted by sbatch, as submitit does: no task of an array can be moved."""

    @classmethod
    def name(cls) -> str:
        return "slurm"

    @property
    def _submitit_command_str(self) -> str:
        return f"{self.python} -u -m slurm_pal.frameworks.submitit {shlex.quote(str(self.folder))}"

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        palsub = shutil.which("palsub")
        return [*([palsub, f"--pal-checkpoint={OURS}"] if palsub else ["sbatch"]), str(submission_file_path)]


def movable(executor: _E) -> _E:
    """The same executor; what it submits to Slurm can be moved."""
    inner = executor._executor if isinstance(executor, AutoExecutor) else executor
    if type(inner) is SlurmExecutor:
        inner.__class__ = MovableExecutor
    return executor


def main() -> None:
    """Run submitit's program with a handler of our own beside submitit's."""
    process = os.getpid()

    def asked(*_: object) -> None:
        # A child that was forked has this handler, too.
        if os.getpid() == process and inside.speaks(os.environ):
            _answer()

    signal.signal(signal.Signals[f"SIG{OURS}"], asked)
    submitit_main()


def _answer() -> None:
    theirs = getattr(signal.getsignal(signal.Signals[f"SIG{OTHERS}"]), "__self__", None)
    why = "the function is not loaded yet"
    if isinstance(theirs, job_environment.SignalHandler):
        why = _saved(theirs)
    if why:
        print(f"slurm-pal: no checkpoint: {why}", file=sys.stderr, flush=True)
        return acknowledge(failed=True)
    before = signal.signal(signal.SIGTERM, _leave)
    acknowledge()
    until_s = time.monotonic() + REQUEUE_S
    while time.monotonic() < until_s:  # what is done now would be done again
        time.sleep(0.1)
    signal.signal(signal.SIGTERM, before)


def _saved(theirs: job_environment.SignalHandler) -> str:
    """Write submitit's checkpoint; why there is none, else "". A move is not a timeout, so none is counted."""
    submission = theirs._delayed
    if not hasattr(submission.function, "checkpoint"):
        return "the function has no method checkpoint"
    try:
        return str(
            job_environment._checkpoint(submission, theirs._job_paths.submitted_pickle, submission._timeout_countdown)
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _leave(*_: object) -> None:
    """The requeue has come. submitit ignores SIGTERM, and the node would wait KillWait seconds for this process."""
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
