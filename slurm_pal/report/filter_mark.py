# SPDX-License-Identifier: MIT
"""What the submit filter decided about a job, from the mark that it left on the job itself."""

from __future__ import annotations

import re
from typing import Any

from slurm_pal.base import marks
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide import lease_marks, place_mark
from slurm_pal.filter.terms import ACTS, LEFT, REASONS

SERVER = "slurmctld"
_SAFE = re.compile(r"[A-Za-z0-9_.,:+@%?\[\]|#-]*")


def decision(job: SlurmJob) -> dict[str, Any] | None:
    """The fields of the mark (docs/filter.md), with `by` and `reason`; None if the filter never saw the job.

    `by` is where it was made: "slurmctld" (the admin comment) or "client" (the comment).
    """
    for by, text in ((SERVER, job.admin_comment), ("client", job.comment)):
        for word in text.split():
            found = dict(part.partition("=")[::2] for part in word.removeprefix("pal:").split(";"))
            if (
                word.startswith("pal:")
                and "class" in found
                and "act" in found
                and all(map(_SAFE.fullmatch, found.values()))
            ):
                why = found.get("why", "")
                return {"by": by, **found, "reason": REASONS.get(why, why), **(_place(job) if by == SERVER else {})}
    return None


def _place(job: SlurmJob) -> dict[str, Any]:
    """The partition that a goal chose, when the job was submitted or in a tick since."""
    mark = place_mark.read(job) if place_mark.by_filter(job) else None
    if mark is None:
        return {}
    return {"goal": mark.goal.kind, "partition": mark.chosen, "partitions": [place.name for place in mark.places]}


def left_to_palsub(found: dict[str, Any] | None, palsub: object) -> bool:
    """Whether the filter stood aside for what palsub is known to have decided, of which its mark knows less."""
    return found is not None and bool(palsub) and found.get("why") in ("palsub", "own")


def by_palsub(job: SlurmJob) -> list[str]:
    """What the palsub of a job's user did, by its words in the job's comment; [] where it left none."""
    lease, word = lease_marks.mark_in(job.comment), marks.read(job.comment, marks.JOB)
    text: list[str] = []
    if lease is not None and lease.action in ACTS:
        text.append(f"decision: {ACTS[lease.action]} {lease.ours}")
    if word:
        text.append(f"sensitivity class {word[marks.JOB]} ({word.get('from', 'default')})")
    return text + ([f"lease: {lease.lease_s:g} s"] if text and lease is not None else [])


def verdict(found: dict[str, Any]) -> str:
    """Like `sent to n1`, `left to Slurm`."""
    did = ACTS.get(found["act"])
    return f"{did} {found.get('set', '')}" if did else LEFT


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    text = [f"decision: {verdict(found)}: {found['reason']}", f"sensitivity class {found['class']} ({found['from']})"]
    if "goal" in found:
        text.insert(0, f"goal {found['goal']}: partition {found['partition']} of {','.join(found['partitions'])}")
    if "slow" in found:
        text.append(f"best GPUs free then: predicted at {found['slow']} of a median GPU's time")
    if "avoid" in found:
        bound, sign, why = found["avoid"].partition(":")
        kept = f"submitted as written, since {REASONS.get(why, why)}" if sign else "kept off nodes with such GPUs"
        text.append(f"GPUs slower than {bound} are to be avoided: {kept}")
    if "lease" in found:
        text.append(f"lease: {found['lease']} s, taken back by the daemon")
    return [*text, f"table: epoch {found.get('epoch', '-')}"]
