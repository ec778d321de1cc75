# SPDX-License-Identifier: MIT
"""The sentence with which `pal explain` begins: a job against the median GPU and against plain Slurm. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slurm_pal.base.faults import OK, faulty_gpus
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide import gpu_note
from slurm_pal.decide.gpu_note import counted
from slurm_pal.placement.faulty import is_faulty
from slurm_pal.report.move_rows import stamp
from slurm_pal.slurm.states import JOB_WAITING
from slurm_pal.store.snapshot import known_class

MEDIAN = "the median GPU here"


class Headline(NamedTuple):
    """The numbers of the sentence. Slowdowns are those of the slowest GPU for the job's class; 1.0 is the median."""

    gpus: int  # that it has or had; 0: none, or not known
    sensitivity: str  # A, B or C: by which scores
    slowest: float | None  # None: none of them was ever measured
    failing: str  # those that were seen to fail, "" for none
    slurm_alone: float | None  # of the GPUs that plain Slurm would have given; None: not known
    same: bool  # those are the ones that it got
    text: str  # the sentence

    @property
    def shown(self) -> dict[str, Any]:
        """For --json."""
        return self._asdict()

    @property
    def note(self) -> str:
        """A line for the job's output, "" where nothing is known."""
        if not self.gpus or self.slowest is None or self.failing:
            return ""
        return gpu_note.line(self.gpus, self.slowest, self.slurm_alone, self.same)


def headline(
    whose: str, job: SlurmJob | None, found: Mapping[str, Any] | None, sensitivity: str,
    decision: Mapping[str, Any] | None,
) -> Headline:  # fmt: skip
    """`whose` begins the sentence ("Your job", "Job 4711 of ada"); `found` is of report.actual, `decision` palsub's."""
    gpus = list(found["gpus"]) if found else []
    c = known_class(sensitivity)
    slowest = found["slowdown"].get(c) if found else None
    bad = ", ".join(f"{gpu['node']}:{gpu['index']} ({gpu['state']})" for gpu in gpus if gpu.get("state", OK) != OK)
    alone, same, failing_there = _alone(job, gpus, decision)
    if not gpus:
        return Headline(0, c, None, "", alone, False, _without(whose, job))
    text = f"{whose} got {counted(len(gpus))}; {_got(len(gpus), len(found['unknown']) if found else 0, slowest)}"
    if bad:
        text = f"{whose} got {counted(len(gpus))}, and some were seen to fail: {bad}"
    return Headline(len(gpus), c, slowest, bad, alone, same, text + _against(alone, same, failing_there, decision, job))


def of_several(rows: Sequence[Mapping[str, Any]]) -> str:
    """The same for several jobs: `rows` are what `Headline.shown` has of each, with its name as `job`."""
    text = f"{len(rows)} jobs with {counted(sum(row['gpus'] for row in rows))}"
    known = [row for row in rows if row["slowest"] is not None]
    if not known:
        return f"{text}; of none of these GPUs the speed is known."
    worst = max(known, key=lambda row: float(row["slowest"]))
    text = f"{text}; the slowest, of job {worst['job']}, is {compared(worst['slowest'])} {MEDIAN}"
    alone = [row for row in rows if row["slurm_alone"] is not None]
    if not alone:
        return f"{text}."
    there = max(alone, key=lambda row: float(row["slurm_alone"]))
    what = (
        "one that was seen to fail"
        if is_faulty(there["slurm_alone"])
        else f"one {compared(there['slurm_alone'])} the median"
    )
    return f"{text}. Slurm alone would have given job {there['job']} {what}."


def compared(slowdown: float) -> str:
    """Like `2 % slower than`, `as fast as`: a slowdown against the median."""
    percent = round(100.0 * (slowdown - 1.0))
    if not percent:
        return "as fast as"
    return f"{abs(percent)} % {'slower' if percent > 0 else 'faster'} than"


def _got(number: int, unknown: int, slowest: float | None) -> str:
    if slowest is None:
        return "it was never measured" if number == 1 else "none of them was ever measured"
    who = "it is" if number == 1 else "the slowest is"
    rest = f" ({unknown} of them never measured)" if unknown else ""
    return f"{who} {compared(slowest)} {MEDIAN}{rest}"


def _alone(
    job: SlurmJob | None, gpus: list[dict[str, Any]], decision: Mapping[str, Any] | None
) -> tuple[float | None, bool, str]:
    """The slowdown where plain Slurm would have put the job; whether that is where it runs; what fails there.

    By palsub's record, else by the mark that palsub or the submit filter has left on the job. Nothing where Slurm chose
    by itself, and of a later run than the first nobody knows.
    """
    if (job is not None and job.restarts) or _left_to_slurm(decision):
        return None, False, ""
    plain = decision.get("plain_slurm") if decision else None
    if plain:
        same = bool(gpus) and {(g["node"], g["index"]) for g in gpus} == {
            (g["node"], g["index"]) for g in plain["gpus"]
        }
        return float(plain["slowdown"]), same, faulty_gpus(plain)
    said = gpu_note.alone(job) if job is not None else None
    return said, False, "some" if said is not None and is_faulty(said) else ""


def _against(
    alone: float | None, same: bool, failing: str, decision: Mapping[str, Any] | None, job: SlurmJob | None
) -> str:
    if same:
        return ". Slurm alone would have given it the same"
    if failing:
        named = "" if failing == "some" else f": {failing}"
        return f". Slurm alone would have given it some that were seen to fail{named}"
    if alone is not None:
        return f". Slurm alone would have given it one {compared(alone)} the median"
    first = (job is None or not job.restarts) and not _left_to_slurm(decision)
    return ". Slurm alone had no GPUs for it then" if first and decision and decision.get("chosen") else ""


def _left_to_slurm(decision: Mapping[str, Any] | None) -> bool:
    return decision is not None and decision.get("action") == "none"


def _without(whose: str, job: SlurmJob | None) -> str:
    if job is None:
        return f"{whose} is no longer known to Slurm, and nobody has noted its GPUs"
    if job.state not in JOB_WAITING:
        return f"{whose} is {job.state}, and nobody has noted its GPUs"
    why = f" ({job.reason})" if job.reason not in ("", "None") else ""
    planned = f"; Slurm plans to start it at {stamp(job.start_s)}" if job.start_s else ""
    return f"{whose} waits and has no GPUs yet{why}{planned}"
