# SPDX-License-Identifier: MIT
"""Jobs that may be moved while they run: what their users ask for, and the mark on the job that says so."""

from __future__ import annotations

from slurm_pal.base import marks
from slurm_pal.base.jobs import UNKNOWN_CLASS
from slurm_pal.base.light import Mapping, NamedTuple
from slurm_pal.decide.request import Conflict, Request
from slurm_pal.sensitivity.cascade import MEASURED
from slurm_pal.submit.argv import CommandLine, Option
from slurm_pal.submit.choice import Moving
from slurm_pal.submit.options import merge
from slurm_pal.submit.script import Script

LONGEST_ORIGIN = 60
APPEND, TRUNCATE = "append", "truncate"
_OWN_FILE = "jJA"
"""Behind % and a width in the name of an output file: the job's own number, so that no other job writes to it."""
_DIGITS = "0123456789"


class MovableRequest(NamedTuple):
    """What else the submission says."""

    comment: str = ""  # the user's own
    obstacle: str = ""  # why the job cannot be moved; "" when it can
    readable: bool = True  # False: the comment is not known
    open_mode: str = ""  # the user's choice: APPEND, TRUNCATE, or "" for none
    shared_output: str = ""  # an output file that later jobs with the same words also write; "" for none


def terms(line: CommandLine, environment: Mapping[str, str], script: Script | None) -> MovableRequest:
    """Read everything that affects moving the job from command line, environment and script. Never raises."""
    try:
        if line.hetjob or (script and script.hetjob):
            raise Conflict("it is heterogeneous")
        if line.unsure or (script and script.doubt):
            raise Conflict(line.unsure or (script.doubt if script else ""))
        merged = merge(line, environment, script)
    except Conflict as reason:
        return MovableRequest("", str(reason), False)
    said = _in_order(line, environment, script)
    obstacle = ""
    if "array" in merged:
        obstacle = "it is an array"
    elif [name for name, _ in said if name in ("requeue", "no-requeue")][-1:] == ["no-requeue"]:
        obstacle = "of --no-requeue"
    named = dict(said)
    mode = named.get("open-mode", "")
    return MovableRequest(
        merged.get("comment", ""), obstacle,
        open_mode=mode and (APPEND if mode[0] in "aA" else TRUNCATE),  # sbatch looks at the first letter only
        shared_output=next((named[name] for name in ("output", "error") if _shared(named.get(name, ""))), ""),
    )  # fmt: skip


_VARIABLES = {
    "SBATCH_REQUEUE": "requeue", "SBATCH_NO_REQUEUE": "no-requeue", "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_OUTPUT": "output", "SBATCH_ERROR": "error",
}  # fmt: skip


def _in_order(line: CommandLine, environment: Mapping[str, str], script: Script | None) -> list[Option]:
    """sbatch's options that affect it, as sbatch reads them: of one name the last counts."""
    own = script.options.found if script and not line.has("wrap") else ()
    given = [(name, environment[key]) for key, name in _VARIABLES.items() if key in environment]
    return [*own, *given, *line.options]


def files(line: CommandLine, environment: Mapping[str, str], script: Script | None) -> tuple[str, str]:
    """The user's own names of the files for stdout and stderr, "" for none."""
    named = dict(_in_order(line, environment, script))
    return named.get("output", ""), named.get("error", "")


def _shared(name: str) -> bool:
    if not name or name.startswith("/dev/"):
        return False
    fields = [field.lstrip(_DIGITS) for part in name.split("%%") for field in part.split("%")[1:]]
    own = any(field[0] in _OWN_FILE for field in fields if field)
    return "\\" in name or not own  # after a backslash sbatch replaces nothing


def job_word(
    sensitivity: str, origin: str, moving: Moving, open_mode: str = "", measured: bool = False, nodes: str = ""
) -> dict[str, str]:
    """The values of the mark `pal:job=`. `origin` says where the class comes from, in any words; `open_mode`
    is the one that the job will have, if that is known; `measured` says that the class was measured, too; `nodes` is
    the user's own range, see `own_nodes`.
    """
    named = origin.removeprefix("$").replace(" ", ":").replace("=", ":") if sensitivity != UNKNOWN_CLASS else "default"
    pairs = {marks.JOB: sensitivity, "from": "".join(filter(_may_stand, named))[:LONGEST_ORIGIN]}
    if measured and sensitivity != UNKNOWN_CLASS and pairs["from"] not in MEASURED:
        pairs["mea"] = "1"
    if moving.movable:
        pairs["mov"] = "1"
    if moving.checkpoint:
        pairs["ck"] = "1"
    if moving.movable and moving.lost_s:
        pairs["lost"] = moving.lost_s
    if open_mode:
        pairs["app"] = "1" if open_mode == APPEND else "0"
    return pairs | {marks.NODES: nodes} if nodes else pairs


def _may_stand(letter: str) -> bool:
    """Whether a mark can hold it."""
    return letter.isascii() and (letter.isalnum() or letter in "_.,:+@%#-")


def own_nodes(request: Request) -> str:
    """The range of nodes that a job with a total of GPUs may have, for its mark: once it has started, Slurm shows only
    how many it has. "" where the request fixes the GPUs of each node, or is not understood."""
    shape = request.shape
    if shape is None or shape.per_node is not None or shape.total < 2 or request.tasks_per_node:
        return ""
    return marks.node_range(request.nodes_min, request.nodes_max)


def comment(own: str, lease: str, job: dict[str, str] | None) -> str | None:
    """The job's comment: the user's own text, the marks of lease and job; None if it is too long."""
    text = " ".join(filter(None, (own, lease)))
    return text if job is None else marks.put(text, job)
