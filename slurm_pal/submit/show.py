# SPDX-License-Identifier: MIT
"""How palsub shows a decision: as lines, as JSON, or as the command it would run."""

from __future__ import annotations

import os

from slurm_pal.base.errors import Exit
from slurm_pal.base.light import Sequence, json, suppress
from slurm_pal.base.terminal import visible
from slurm_pal.submit.decision import Record, render


def lines(made: Record) -> list[str]:
    """The record as text, control characters shown as "?": it may quote a file name."""
    return [visible(text) for text in render(made)]


def command(words: Sequence[str]) -> str:
    """An argv quoted for a shell."""
    import shlex

    return shlex.join(words)


def dry_run(words: Sequence[str], reasons: Sequence[str]) -> int:
    """The exact command on the first line (or lines: a word may hold line breaks), then the reasons."""
    return written("\n".join([command(words), *(f"# {reason}" for reason in reasons)]), 1)


def as_json(made: Record, descriptor: int) -> int:
    """The record as one line of JSON."""
    return written(json.dumps(made), descriptor)


def written(text: str, descriptor: int) -> int:
    """Write lines; the exit code, and one line on stderr where they cannot be written."""
    view = memoryview(os.fsencode(text) + b"\n")
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        with suppress(OSError):
            os.write(2, f"palsub: the answer cannot be written: {error.strerror}\n".encode())
        return Exit.FAILED
    return Exit.OK
