# SPDX-License-Identifier: MIT
"""The two commands that show nodes, partitions and jobs, started at the same time. Imports little: see palsub."""

from __future__ import annotations

import os

from slurm_pal.base.light import Callable, Mapping, NamedTuple, Sequence
from slurm_pal.slurm import told

NOT_IN_PATH = "apt-get install slurm-client, or load your site's Slurm"
_FOREIGN = ("SQUEUE_", "SINFO_", "SBATCH_", "SCONTROL_", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS")
"""Variables that change what Slurm's commands print or do; our own calls never want them."""


class Completed(NamedTuple):
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


Runner = Callable[[Sequence[str], str], Completed]
"""Runs an argv list with a text on stdin. Raises SlurmError when it cannot be run or takes too long."""


def clean_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment (default: this process's) for our own Slurm calls, without the user's display settings."""
    kept = {k: v for k, v in (os.environ if environ is None else environ).items() if not k.startswith(_FOREIGN)}
    return kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def kinds(reservations: bool) -> tuple[str, ...]:
    """What scontrol is to show; jobs last, since their users' texts are among them."""
    return ("node", "partition", "topology", *(["reservation"] if reservations else []), "job")


def shown(what: Sequence[str]) -> str:
    """The words for an interactive scontrol that shows all of this."""
    return "\n".join([*(f"show {kind}" for kind in what), "quit", ""])


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
    what = [line for kind in kinds for line in (kind, f"hostnames {part}")]
    scontrol = started(run, ["scontrol", "-d", "-o"], shown(what))  # first: it takes longer
    squeue = started(run, told.argv(fields, word), "")
    return Question(tuple(kinds), tuple(fields), word, part, squeue, scontrol)


def started(run: Runner, argv: Sequence[str], stdin: str) -> Callable[[], Completed]:
    """Start a command; the result waits for its answer. With a runner that cannot, it has already answered."""
    start: Callable[[Sequence[str], str], Callable[[], Completed]] | None = getattr(run, "start", None)
    if start is not None:
        return start(argv, stdin)
    done = run(argv, stdin)
    return lambda: done
