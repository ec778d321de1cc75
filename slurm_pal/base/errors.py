# SPDX-License-Identifier: MIT
"""One exception tree and the one table of exit codes.

Every error that a user may see derives from `PalError`; its text is a single line
that states what is wrong, the value seen, what is allowed and what to do next.
`palsub` is the exception to the table: it returns sbatch's exit code.
"""

from __future__ import annotations

from slurm_pal.base.light import IntEnum
from slurm_pal.base.terminal import visible


class Exit(IntEnum):
    """Exit codes shared by all programs (documented in docs/exit-codes.md)."""

    OK = 0
    FAILED = 1  # the command ran, and part of the work failed
    USAGE = 2  # the command line is wrong (click's own code)
    PARTIAL = 3  # bench: some GPUs of the node were not measured
    INVALID = 4  # bench: another process was on the GPUs, nothing is usable
    HARDWARE = 5  # bench: a GPU reported a hardware fault
    SLURM = 6  # Slurm is not installed, not reachable or refused
    CONFIG = 7  # pal.toml or an environment setting is wrong
    DATA = 8  # database, snapshot or spool cannot be used
    BUSY = 9  # another writer or sweep is at work
    MISSING = 10  # a package that this command needs is not installed
    FINISHED = 11  # pal fork next: all steps are done
    INTERRUPTED = 130  # 128 + SIGINT


class PalError(Exception):
    """Base of all errors that are shown to a user as one line."""

    exit_code = Exit.FAILED


class UsageError(PalError):
    """The request makes no sense: wrong option, value or combination."""

    exit_code = Exit.USAGE


class SlurmError(PalError):
    """A Slurm command is missing, timed out or failed."""

    exit_code = Exit.SLURM


class NotNowError(SlurmError):
    """Slurm refuses at this moment what it may accept in the next: slurmctld is working on the job."""


class NotByRestError(SlurmError):
    """slurmrestd cannot do or show this, whatever the state of Slurm."""


class RefusedError(SlurmError):
    """Slurm has answered, and refused: nothing was done."""


class AnswerLostError(SlurmError):
    """What was asked of slurmrestd may have been done, or not: it must not be sent again blindly."""


class ConfigError(PalError):
    """A configuration file or variable holds something that is not allowed."""

    exit_code = Exit.CONFIG


class DataError(PalError):
    """Stored data is missing, truncated, from a newer schema or not ours to read."""

    exit_code = Exit.DATA


class BusyError(PalError):
    """Somebody else holds the lock that this work needs."""

    exit_code = Exit.BUSY


class MissingPackageError(PalError):
    """A Debian or Python package is not installed; the text names it."""

    exit_code = Exit.MISSING


def one_line(error: BaseException) -> str:
    """Flatten an error and its causes into one line, outermost first.

    Characters that a terminal would act on become escapes: the text may quote a user's file.
    """
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        text = " ".join(str(seen).split()) or type(seen).__name__
        if text not in parts:
            parts.append(text)
        seen = seen.__cause__
    return visible(": ".join(parts))
