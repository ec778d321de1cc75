# SPDX-License-Identifier: MIT
"""What the submit filter decided about a job, from the mark that it left on the job itself."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from slurm_pal.base.jobs import SlurmJob

_SAFE = re.compile(r"[A-Za-z0-9_.,:+@%?\[\]|#-]*")
_WORDS = re.compile(r'^  (?:\["([\w-]+)"\]|(\w+)) = "(.*)",$', re.MULTILINE)
_DID = {"nodelist": "sent to", "exclude": "kept off", "prefer": "asked softly for"}


def decision(job: SlurmJob) -> dict[str, Any] | None:
    """The fields of the mark (docs/filter.md), with `by` and `reason`; None when the filter never saw the job.

    `by` is where it was taken: "slurmctld" (the admin comment) or "client" (the comment).
    """
    for by, text in (("slurmctld", job.admin_comment), ("client", job.comment)):
        for word in text.split():
            found = dict(part.partition("=")[::2] for part in word.removeprefix("pal:").split(";"))
            if (
                word.startswith("pal:")
                and "class" in found
                and "act" in found
                and all(map(_SAFE.fullmatch, found.values()))
            ):
                return {"by": by, **found, "reason": reasons().get(found.get("why", ""), found.get("why", ""))}
    return None


def reasons() -> dict[str, str]:
    """Code in a mark -> its meaning, as the filter itself words it."""
    text = (files("slurm_pal") / "etc" / "pal.lua").read_text(encoding="utf-8")
    table = text.partition("local WHY = {\n")[2].partition("\n}\n")[0]
    return {quoted or plain: words for quoted, plain, words in _WORDS.findall(table + "\n")}


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    did = _DID.get(found["act"])
    what = f"{did} {found.get('set', '')}" if did else "left to Slurm"
    text = [f"decision: {what}: {found['reason']}", f"sensitivity class {found['class']} ({found['from']})"]
    if "slow" in found:
        text.append(f"best GPUs free then: predicted at {found['slow']} of a median GPU's time")
    if "lease" in found:
        text.append(f"lease: {found['lease']} s, taken back by the daemon")
    return [*text, f"table: epoch {found.get('epoch', '-')}"]
