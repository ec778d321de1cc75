# SPDX-License-Identifier: MIT
"""How palsub shows a decision: as lines, as JSON, or as the command it would run."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence

from slurm_pal.base.errors import Exit
from slurm_pal.base.terminal import visible
from slurm_pal.submit.decision import Record, render


def lines(made: Record) -> list[str]:
    """The record as text, control characters shown as "?": it may quote a file name."""
    return [visible(text) for text in render(made)]


def command(words: Sequence[str]) -> str:
    """An argv quoted for a shell."""
    return shlex.join(words)


def dry_run(words: Sequence[str], reasons: Sequence[str]) -> int:
    """The exact command on the first line (or lines: a word may hold line breaks), then the reasons."""
    text = "\n".join([command(words), *(f"# {reason}" for reason in reasons)])
    os.write(1, os.fsencode(text) + b"\n")
    return Exit.OK


def as_json(made: Record, descriptor: int) -> int:
    """The record as one line of JSON."""
    os.write(descriptor, json.dumps(made).encode() + b"\n")
    return Exit.OK
