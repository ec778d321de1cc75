"""Jobs that may be moved while they run: what their users ask for, and the word on the job that says so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal import marks
from slurm_pal.jobs import UNKNOWN_CLASS
from slurm_pal.submit.argv import CommandLine, Option, read_options
from slurm_pal.submit.choice import Moving
from slurm_pal.submit.request import Conflict, merge
from slurm_pal.submit.script import Script

LONGEST_ORIGIN = 60


class Terms(NamedTuple):
    """What a submission says beside it."""

    comment: str = ""  # the user's own
    obstacle: str = ""  # why the job cannot be moved; "" when it can
    readable: bool = True  # False: the comment is not known


def terms(line: CommandLine, environment: Mapping[str, str], script: Script | None) -> Terms:
    """Read what bears on moving the job from command line, environment and script. Never raises."""
    try:
        if line.hetjob or (script and script.hetjob):
            raise Conflict("it is heterogeneous")
        if line.unsure or (script and script.doubt):
            raise Conflict(line.unsure or (script.doubt if script else ""))
        merged = merge(line, environment, script)
    except Conflict as reason:
        return Terms("", str(reason), False)
    obstacle = ""
    if "array" in merged:
        obstacle = "it is an array"
    elif _never_requeued(line, environment, script):
        obstacle = "of --no-requeue"
    return Terms(merged.get("comment", ""), obstacle)


def _never_requeued(line: CommandLine, environment: Mapping[str, str], script: Script | None) -> bool:
    """By the last word on it, in sbatch's order."""
    own: tuple[Option, ...] = ()
    if script and not line.has("wrap"):
        own = read_options(script.words).found
    variables = {"SBATCH_REQUEUE": "requeue", "SBATCH_NO_REQUEUE": "no-requeue"}
    given = [(name, "") for key, name in variables.items() if key in environment]
    said = [name for name, _ in (*own, *given, *line.options) if name in ("requeue", "no-requeue")]
    return said[-1:] == ["no-requeue"]


def job_word(sensitivity: str, origin: str, moving: Moving) -> dict[str, str]:
    """The values of the word `pal:job=`. `origin` is where the class comes from, in any words."""
    named = origin.removeprefix("$").replace(" ", ":").replace("=", ":") if sensitivity != UNKNOWN_CLASS else "default"
    pairs = {marks.JOB: sensitivity, "from": re.sub(r"[^A-Za-z0-9_.,:+@%#-]", "", named)[:LONGEST_ORIGIN]}
    if moving.movable:
        pairs["mov"] = "1"
    if moving.checkpoint:
        pairs["ck"] = "1"
    if moving.movable and moving.lost_s:
        pairs["lost"] = moving.lost_s
    return pairs


def comment(own: str, lease: str, job: dict[str, str] | None) -> str | None:
    """The job's comment: the user's own text, the mark of a lease, the word on the job; None when it is too long."""
    text = " ".join(filter(None, (own, lease)))
    return text if job is None else marks.put(text, job)
