# SPDX-License-Identifier: MIT
"""What squeue shows of each job: every text in a field of its own, which no user can end.

A field of `squeue --Format` may be followed by any text. Here it is a word that is drawn anew for
each call, so whatever stands in a job's name or comment, line ends and all, the fields and the
records part without doubt.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.numbers import digits

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
"""squeue's field -> scontrol's key, of what stands behind texts of users in scontrol's record."""
WANTED = {"feature": "Features", "prefer": "Prefer", "reservation": "Reservation"}
"""The same, of what stands in the middle of the record: slurmctld looks for names there and takes more words."""

FEW = (*SEAL, "state", "tres-per-node")
ALL = (*SEAL, "state", *TEXTS)


_SHORT = 33
"""So much of a word ends a field; the whole of it ends a record, since a text may begin with anything else."""


def mark() -> str:
    """A word that nobody can guess (twice 128 bits).

    It begins with no digit, which squeue would take for a width, and ends with none: `scontrol show hostnames` counts
    the digits at a name's end as a number, and prints another one where that is 2^64 or more (one word in 12,000).
    """
    return f"~{os.urandom(32).hex()}x"


def argv(fields: Sequence[str], word: str, *filters: str) -> list[str]:
    """The command; `jobid` stands first in `fields`."""
    form = ",".join([*(f"{field}:{word[:_SHORT]}" for field in fields[:-1]), f"{fields[-1]}:{word}"])
    return ["squeue", "--local", "-h", "-a", "-t", "all", "-O", form, *filters]


def rows(stdout: str, fields: Sequence[str], word: str) -> dict[int, dict[str, str]]:
    """Job id -> field -> text. Raises SlurmError where squeue printed something else."""
    found: dict[int, dict[str, str]] = {}
    records = stdout.split(f"{word}\n")
    if records.pop().strip():
        raise SlurmError("squeue's answer is cut short, or has another form than was asked for")
    for record in records:
        texts = record.split(word[:_SHORT])
        job_id = digits(texts[0].strip())
        if len(texts) != len(fields) or job_id is None:
            raise SlurmError("squeue did not print the fields that were asked for")
        found[job_id] = dict(zip(fields, texts, strict=True))
    return found
