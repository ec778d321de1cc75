# SPDX-License-Identifier: MIT
"""The words of the two commands that show nodes, partitions and jobs, and what squeue shows of each job.

Every text is in a field of its own, whose end no user can forge:
`squeue --Format` can print any text after a field. Here it is a word drawn anew for each call,
so fields and records are separated without doubt, whatever a job's name or comment holds, line
ends included.
"""

from __future__ import annotations

import posix

from slurm_pal.base.numbers import digits

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SEAL = (
    "jobid", "userid", "nodelist", "name", "account", "wckey", "qos", "allocnodes", "feature", "prefer", "reservation",
)  # fmt: skip
"""What `slurm.sealed` needs to know which record in scontrol's answer is slurmctld's own."""

TEXTS = {
    "comment": "Comment", "admin_comment": "AdminComment", "tres-per-node": "TresPerNode", "tres-per-job": "TresPerJob",
    "tres-per-task": "TresPerTask", "tres-per-socket": "TresPerSocket", "cpus-per-tres": "CpusPerTres",
    "mem-per-tres": "MemPerTres", "burstbuffer": "BurstBuffer", "reqswitch": "Switches",
    "clusterfeature": "ClusterFeatures",
}  # fmt: skip
"""squeue's field -> scontrol's key, for what comes after users' texts in scontrol's record."""
WANTED = {"feature": "Features", "prefer": "Prefer", "reservation": "Reservation"}
"""The same, for the middle of the record, where slurmctld looks for names and accepts additional words."""

NOTHING = frozenset({"", "(null)", "N/A", "None", "Unknown", "n/a"})
"""Slurm's words for nothing."""

FEW = (*SEAL, "state", "tres-per-node")
ALL = (*SEAL, "state", *TEXTS)


_SHORT = 33
"""This many characters of a word end a field; the whole word ends a record, since a text may begin with anything."""


SCONTROL = ("scontrol", "-d", "-o")
"""An interactive one, which reads from stdin what it is to show."""
_FOREIGN = ("SQUEUE_", "SINFO_", "SBATCH_", "SCONTROL_", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS")
"""Variables that change what Slurm's commands print or do; our own calls never want them."""


def clean_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment (default: this process's) for our own Slurm calls, without the user's display settings."""
    if environ is None:
        import os

        environ = os.environ
    kept = {name: value for name, value in environ.items() if not name.startswith(_FOREIGN)}
    return kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


_OF_JOBS = ("LC_ALL", "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TZ", "KRB5CCNAME")


def job_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The same for sbatch and a job of ours: Slurm's own variables, who its user is, and where programs are."""
    clean = clean_environment(environ)
    return {name: value for name, value in clean.items() if name.startswith("SLURM_") or name in _OF_JOBS}


def kinds(reservations: bool) -> tuple[str, ...]:
    """What scontrol is to show; jobs last, since their users' texts are among them."""
    return ("node", "partition", "topology", *(["reservation"] if reservations else []), "job")


def shown(what: Sequence[str]) -> str:
    """The words for an interactive scontrol that shows all of this."""
    return "\n".join([*(f"show {kind}" for kind in what), "quit", ""])


def asking(kinds: Sequence[str], part: str) -> str:
    """The same, with the word `part` after each kind."""
    return shown([what for kind in kinds for what in (kind, f"hostnames {part}")])


def mark() -> str:
    """A word that nobody can guess (twice 128 bits).

    It does not begin with a digit, which squeue would take for a width, nor end with one: `scontrol show hostnames`
    reads digits at a name's end as a number, and prints a wrong one from 2^64 on (one word in 12,000).
    """
    return f"~{posix.urandom(32).hex()}x"


def argv(fields: Sequence[str], word: str, *filters: str) -> list[str]:
    """The command; `jobid` is the first of `fields`."""
    form = ",".join([*(f"{field}:{word[:_SHORT]}" for field in fields[:-1]), f"{fields[-1]}:{word}"])
    return ["squeue", "--local", "-h", "-a", "-t", "all", "-O", form, *filters]


def rows(stdout: str, fields: Sequence[str], word: str) -> dict[int, dict[str, str]]:
    """Job id -> field -> text. Raises SlurmError where squeue printed something else."""
    from slurm_pal.base.errors import SlurmError  # not needed to ask

    found: dict[int, dict[str, str]] = {}
    records = stdout.split(f"{word}\n")
    if records.pop().strip():
        raise SlurmError("squeue's answer is cut short, or not in the form that was asked for")
    for record in records:
        texts = record.split(word[:_SHORT])
        job_id = digits(texts[0].strip())
        if len(texts) != len(fields) or job_id is None:
            raise SlurmError("squeue did not print the fields that were asked for")
        found[job_id] = dict(zip(fields, texts, strict=True))
    return found
