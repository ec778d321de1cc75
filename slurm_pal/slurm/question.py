# SPDX-License-Identifier: MIT
"""The two commands that show nodes, partitions and jobs, started at the same time. Imports little: see palsub."""

from __future__ import annotations

from slurm_pal.base.light import Callable, NamedTuple, Sequence
from slurm_pal.slurm import told

NOT_IN_PATH = "apt-get install slurm-client, or load your site's Slurm"


class Completed(NamedTuple):
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


Runner = Callable[[Sequence[str], str], Completed]
"""Runs an argv list with a text on stdin. Raises SlurmError when it cannot be run or takes too long."""


class Question(NamedTuple):
    """Two running commands; words that nobody can guess separate what they print."""

    kinds: tuple[str, ...]
    fields: tuple[str, ...]
    word: str  # ends each field of squeue's
    part: str  # ends what scontrol shows of each kind
    squeue: Callable[[], Completed]
    scontrol: Callable[[], Completed]


def begin(run: Runner, kinds: Sequence[str], fields: Sequence[str]) -> Question:
    """Start both at once where the runner can start a command without waiting for it. Raises SlurmError."""
    word, part = told.mark(), told.mark()
    scontrol = started(run, [*told.SCONTROL], told.asking(kinds, part))  # first: it takes longer
    squeue = started(run, told.argv(fields, word), "")
    return Question(tuple(kinds), tuple(fields), word, part, squeue, scontrol)


def started(run: Runner, argv: Sequence[str], stdin: str) -> Callable[[], Completed]:
    """Start a command; the result waits for its answer. With a runner that cannot, it has already answered."""
    start: Callable[[Sequence[str], str], Callable[[], Completed]] | None = getattr(run, "start", None)
    if start is not None:
        return start(argv, stdin)
    done = run(argv, stdin)
    return lambda: done
