# SPDX-License-Identifier: MIT
"""Why a job is slow: the one sentence, and the evidence below it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from slurm_pal.base.faults import OK, cure_of
from slurm_pal.base.jobs import UNKNOWN_CLASS, SlurmJob
from slurm_pal.online import culprit
from slurm_pal.online.culprit import Culprit, Found
from slurm_pal.online.word import SlowWord
from slurm_pal.report.table import age
from slurm_pal.slurm.states import JOB_WAITING
from slurm_pal.store.snapshot import known_class

GPU, NODE, RANK, FAULT, MEASURED, NOTHING, UNKNOWN, WAITING = (
    "gpu", "node", "rank", "fault", "measured", "nothing", "unknown", "waiting"
)  # fmt: skip
"""Verdicts: what holds the job up. `rank`: one whose GPU is not known. `measured`: by the last measurement."""
CLEAR = 1.02
"""A GPU that is slower than the others by less holds nobody up."""
HOW = (
    "pal progress in the job's script reports the time of a step",
    "the inspector plug-in of NCCL or RCCL (NCCL_PROFILER_PLUGIN, NCCL_INSPECTOR_ENABLE=1, "
    "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=1000000) records who waits for whom",
)
"""Where evidence comes from."""


class Steps(NamedTuple):
    """What the job's own steps show."""

    done: int
    total: int | None
    step_s: float | None  # per iteration; None where nobody has looked twice
    factor: float | None = None  # over that on median GPUs of one node; None where there is nothing to compare with
    expected: float | None = None  # the same by measurements


class Case(NamedTuple):
    """All that is known of one job."""

    name: str  # as its user writes it
    job: SlurmJob | None
    actual: Mapping[str, Any] | None  # of report.actual
    sensitivity: str = UNKNOWN_CLASS
    steps: Steps | None = None
    found: Found | None = None  # in the records of its collectives
    folder: str = ""  # where they are
    word: SlowWord | None = None  # what its own processes reported
    remarks: tuple[str, ...] = ()  # what could not be looked at

    @property
    def gpus(self) -> dict[str, list[int]]:
        """Node -> Slurm's indexes."""
        held: dict[str, list[int]] = {}
        for gpu in self.actual["gpus"] if self.actual else ():
            held.setdefault(gpu["node"], []).append(gpu["index"])
        return held


class HoldUp(NamedTuple):
    """Who holds the job up."""

    verdict: str
    who: str  # for people
    node: str = ""
    indexes: tuple[int, ...] = ()
    factor: float | None = None  # how many times longer the job takes
    share: float | None = None
    sure: float | None = None
    by: str = ""  # "collectives", "report" or "measurement"


def held(case: Case) -> HoldUp:
    """The strongest evidence decides: who is waited for, then faults, then measured speeds."""
    if case.job is not None and case.job.state in JOB_WAITING:
        return HoldUp(WAITING, "")
    told = case.word is not None and case.word.node != ""
    if case.found is not None and case.found.culprit is not None and (case.gpus or not told):
        return _of_culprit(case, case.found.culprit)
    if case.word is not None and told and (case.found is None or case.found.culprit is not None or case.found.why_not):
        place = f"{case.word.node}:{case.word.index}" if case.word.index is not None else f"node {case.word.node}"
        share = 1.0 - 1.0 / case.word.factor
        indexes = (case.word.index,) if case.word.index is not None else tuple(case.gpus.get(case.word.node, ()))
        kind = NODE if case.word.index is None else GPU
        return HoldUp(kind, place, case.word.node, indexes, case.word.factor, share, None, "report")
    known = case.actual["gpus"] if case.actual else []
    faulty = [gpu for gpu in known if gpu.get("state", OK) != OK]
    if faulty:
        worst = faulty[0]
        return HoldUp(FAULT, f"{worst['node']}:{worst['index']}", worst["node"], (worst["index"],), by="measurement")
    return _by_measurement(case, known)


def _of_culprit(case: Case, one: Culprit) -> HoldUp:
    node, indexes = culprit.place(one, case.gpus)
    if not node:
        who = f"rank {one.rank} on {one.host}" if one.position is not None else f"the ranks on {one.host}"
        return HoldUp(RANK, who, "", (), one.factor, one.share, one.sure, "collectives")
    exact = one.position is not None and one.of == len(case.gpus[node])
    if exact:
        return HoldUp(GPU, f"{node}:{indexes[0]}", node, indexes, one.factor, one.share, one.sure, "collectives")
    who = f"node {node}" if one.position is None else f"rank {one.rank} on node {node}"
    kind = NODE if one.position is None else RANK
    return HoldUp(kind, who, node, indexes, one.factor, one.share, one.sure, "collectives")


def _by_measurement(case: Case, known: Sequence[Mapping[str, Any]]) -> HoldUp:
    c = known_class(case.sensitivity)
    scores = {(gpu["node"], gpu["index"]): gpu["slowdown"][c] for gpu in known if c in gpu.get("slowdown", {})}
    if not scores:
        return HoldUp(NOTHING if _cleared(case) else UNKNOWN, "")
    worst = max(scores, key=lambda gpu: (scores[gpu], gpu))
    others = [value for gpu, value in scores.items() if gpu != worst]
    ratio = scores[worst] / (median(others) if others else 1.0)
    if ratio < CLEAR:
        return HoldUp(NOTHING, "")
    return HoldUp(MEASURED, f"{worst[0]}:{worst[1]}", worst[0], (worst[1],), ratio, 1 - 1 / ratio, by="measurement")


def _cleared(case: Case) -> bool:
    if case.found is not None:
        return not case.found.why_not
    return case.word is not None and not case.word.node


def sentence(case: Case, who: HoldUp) -> str:
    """What holds the job up."""
    ended = case.job is None or case.job.state not in ("RUNNING", "SUSPENDED", "COMPLETING")
    name, was = f"Job {case.name}", "was" if ended else "is"
    waits = "waited" if ended else "wait"
    if who.verdict == WAITING:
        return f"{name} does not run yet: it waits in the queue (pal explain {case.name})."
    if who.verdict in (GPU, NODE, RANK):
        what = {
            GPU: f"GPU {who.who}: its other ranks {waits} for that GPU",
            NODE: f"{who.who} as a whole: the ranks elsewhere {waits} for all of its ranks alike",
            RANK: f"{who.who}: the other ranks {waits} for it",
        }[who.verdict]
        return f"{name} {was} held up by {what}, {who.share or 0.0:.1%} of the time."
    if who.verdict == FAULT:
        return f"{name} {'had' if ended else 'has'} a GPU that was seen to fail: {who.who}."
    if who.verdict == MEASURED:
        others = "the median of its others" if _several(case) else "the median GPU of its model"
        return (
            f"{name} {was} as slow as its slowest GPU, {who.who}, which by its last measurement takes {who.factor:.2f}"
            f" x the time of {others}."
        )
    if who.verdict == NOTHING:
        return f"No GPU of job {case.name} {'held' if ended else 'holds'} it up, as far as is known."
    return f"Nothing is known about the speed of job {case.name}."


def _several(case: Case) -> bool:
    return sum(map(len, case.gpus.values())) > 1


def lines(case: Case, who: HoldUp) -> list[str]:
    """The evidence, for people."""
    text = [sentence(case, who), ""]
    text += [f"  {line}" for line in (*_collectives(case), *_steps(case), *_gpus(case, who))]
    text += [f"  not looked at: {remark}" for remark in case.remarks]
    if who.verdict in (GPU, NODE, RANK):
        text += [f"  {line}" for line in _next(case, who)]
    if who.verdict == UNKNOWN or (who.verdict in (NOTHING, MEASURED) and case.found is None and case.steps is None):
        text += ["  More evidence:", *(f"    {how}" for how in HOW)]
    while text and not text[-1]:
        text.pop()
    return text


def _collectives(case: Case) -> list[str]:
    found = case.found
    if found is None:
        if case.word is None:
            return []
        whom = "nobody" if not case.word.node else "it" if case.word.index is not None else "that node"
        return [f"collectives: {case.word.collectives} compared by the job itself (pal progress): its ranks wait "
                f"for {whom}"]  # fmt: skip
    size = f"{found.collectives} of {found.ranks} ranks on {found.hosts} node{'s' * (found.hosts != 1)}"
    if found.why_not:
        return [f"collectives in {case.folder}: {found.why_not}"]
    told = [f"collectives in {case.folder}: {size} compared, {found.span_s:.0f} s of the job"]
    if found.culprit is None:
        return [*told, "  no rank is mostly the last one: nobody waits for the same rank all the time"]
    one = found.culprit
    told.append(
        f"  last in {one.sure:.0%} of the stretches; without that the job would take {1 / one.factor:.2f} x the time"
    )
    if one.alone:
        told.append("  it is the only GPU of the job on that node, so that the node itself may be slow")
    for other in found.also[:3]:
        told.append(f"  also late: {_of_culprit(case, other).who}, {other.share:.1%} of the time")
    return told


def _steps(case: Case) -> list[str]:
    steps = case.steps
    if steps is None:
        return []
    of = f" of {steps.total}" if steps.total else ""
    text = f"steps: {steps.done}{of}" + (f", {steps.step_s:.3g} s each" if steps.step_s else "")
    if steps.factor is not None:
        text += f", {steps.factor:.2f} x as long as on median GPUs of one node"
        text += f" (by measurements {steps.expected:.2f} x)" if steps.expected is not None else ""
    return [text]


def _gpus(case: Case, who: HoldUp) -> list[str]:
    known = case.actual["gpus"] if case.actual else []
    c = known_class(case.sensitivity)
    told = []
    for gpu in known if len(known) <= 8 else [g for g in known if (g["node"], g["index"]) in _of(who)]:
        place = f"{gpu['node']}:{gpu['index']}"
        if c not in gpu.get("slowdown", {}):
            told.append(f"{place}: never measured")
            continue
        flags = f", {','.join(gpu['flags'])}" if gpu["flags"] else ""
        told.append(f"{place}: measured {age(gpu['age_s'])} ago, class {c} {gpu['slowdown'][c]:.3f}{flags}")
        if gpu["state"] != OK:
            told.append(f"  {gpu['state']}: {cure_of(gpu['flags'], gpu['node'], gpu['index'])}")
    if len(known) > 8 and case.actual is not None and c in case.actual["slowdown"]:
        told.append(f"slowest of its {len(known)} GPUs by measurement: class {c} {case.actual['slowdown'][c]:.3f}")
    if len(case.gpus) > 1:
        told.append(f"it runs on {len(case.gpus)} nodes, so each step also crosses the network")
    return told


def _of(who: HoldUp) -> frozenset[tuple[str, int]]:
    return frozenset((who.node, index) for index in who.indexes)


def _next(case: Case, who: HoldUp) -> list[str]:
    known = {(gpu["node"], gpu["index"]): gpu for gpu in (case.actual["gpus"] if case.actual else [])}
    c = known_class(case.sensitivity)
    measured = [known[gpu]["slowdown"][c] for gpu in _of(who) if c in known.get(gpu, {}).get("slowdown", {})]
    if who.verdict == GPU and measured and who.factor is not None and measured[0] >= who.factor:
        return ["that agrees with its last measurement; a GPU may be slow and sound"]
    if who.node:
        known_so_far = "its last measurement does not show that" if measured else "it was never measured"
        return [
            f"{known_so_far}: node {who.node} is to be measured before its turn "
            f"(for admins: pal-profile run -w {who.node})",
            "a job's evidence is no verdict on a GPU: the rank may also have more work than the others",
        ]
    return []


def as_json(case: Case, who: HoldUp) -> dict[str, Any]:
    """The body of pal.why_slow/1."""
    found = case.found
    return {
        "job": case.name,
        "job_id": case.job.job_id if case.job else None,
        "state": case.job.state if case.job else None,
        "verdict": who.verdict,
        "sentence": sentence(case, who),
        "culprit": {
            "node": who.node or None, "indexes": list(who.indexes), "factor": _rounded(who.factor),
            "share": _rounded(who.share), "sure": _rounded(who.sure), "by": who.by,
        } if who.verdict in (GPU, NODE, RANK, FAULT, MEASURED) else None,
        "class": case.sensitivity,
        "gpus": list(case.actual["gpus"]) if case.actual else [],
        "steps": case.steps._asdict() if case.steps else None,
        "collectives": {
            "folder": case.folder, "compared": found.collectives, "ranks": found.ranks, "nodes": found.hosts,
            "span_s": round(found.span_s, 3), "why_not": found.why_not or None,
            "also": [_of_culprit(case, other)._asdict() for other in found.also],
        } if found else None,
        "reported": case.word._asdict() if case.word else None,
        "not_looked_at": list(case.remarks),
    }  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
