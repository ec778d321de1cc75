# SPDX-License-Identifier: MIT
"""What a job really got: the GPUs that Slurm names, and what is known about them."""

from __future__ import annotations

from typing import Any

from slurm_pal.base.faults import OK, fault_line, faulty_gpus
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, SlurmJob
from slurm_pal.base.numbers import faster
from slurm_pal.report.move_rows import stamp
from slurm_pal.report.table import age
from slurm_pal.store.snapshot import Snapshot


def actual(
    job: SlurmJob | None, snapshot: Snapshot | None, now_s: float, started: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """State, nodes and GPUs of a job; slowdowns and classes from the snapshot in force now.

    `slowdown` is that of the slowest GPU per sensitivity class, because a synchronous
    job runs at its pace; GPUs never measured are listed in `unknown`. `job` is None where Slurm
    no longer knows it. Of a job that has ended Slurm does not say which GPUs it had: then those of `started`
    are used, which was noted at its start (submit/decision.py). None where nothing is known.
    """
    slots = [(node, index) for node, indexes in job.gpus.items() for index in indexes] if job else []
    noted = started if started and not slots else None
    if job is None and noted is None:
        return None
    gpus: list[dict[str, Any]] = []
    unknown: list[str] = []
    for node, index in slots or [(str(node), int(index)) for node, index in (noted or {}).get("gpus", ())]:
        row = snapshot.row(node, index) if snapshot is not None else None
        entry: dict[str, Any] = {"node": node, "index": index}
        if snapshot is None or row is None:
            unknown.append(f"{node}:{index}")
        else:
            score = snapshot.gpu(row)
            entry |= {
                "uuid": score.uuid,
                "slowdown": {c: round(v, 5) for c, v in score.slowdown.items()},
                "class": score.variability_class,
                "age_s": round(max(0.0, now_s - score.measured_s), 1) if score.measured_s else None,
                "flags": list(score.flags),
                "state": score.state,
            }
        gpus.append(entry)
    worst = {
        c: max(g["slowdown"][c] for g in gpus if c in g.get("slowdown", {}))
        for c in SENSITIVITY_CLASSES
        if any(c in g.get("slowdown", {}) for g in gpus)
    }
    return {
        "state": job.state if job else None,
        "reason": job.reason if job else None,
        "nodes": list(job.nodes) if job else sorted({gpu["node"] for gpu in gpus}),
        "required_nodes": list(job.req_nodes) if job else [],
        "excluded_nodes": list(job.exc_nodes) if job else [],
        "noted_s": noted["at_s"] if noted else None,
        "gpus": gpus,
        "slowdown": worst,
        "unknown": unknown,
    }


def verdict(found: dict[str, Any], decision: dict[str, Any] | None) -> str:
    """What became of palsub's choice, in one sentence; "" if it chose no GPUs or they are not known."""
    got, chosen, plain = _slots(found), decision and decision["chosen"], decision and decision["plain_slurm"]
    if not got or not chosen:
        return ""
    if plain and got == _slots(plain):
        return "You got the GPUs that plain Slurm would have picked"
    if got != _slots(chosen):
        return "You got other GPUs than the best that were free when palsub decided"
    if plain is None:
        return "You got the GPUs that palsub chose; plain Slurm had no place for the job then"
    if not faulty_gpus(chosen) and (bad := faulty_gpus(plain)):
        return f"You were kept off GPUs that were seen to fail: plain Slurm would have picked {bad}"
    compared = faster(plain["product"], chosen["product"], "those plain Slurm would have picked")
    return f"You got GPUs predicted {compared}"


def _slots(offer: dict[str, Any]) -> set[tuple[str, int]]:
    return {(gpu["node"], gpu["index"]) for gpu in offer["gpus"]}


def lines(name: str, job: SlurmJob | None, found: dict[str, Any]) -> list[str]:
    """The same for people. `name` is the job's id as its user writes it."""
    if job is None:
        text = [f"Job {name}: Slurm no longer knows it"]
    else:
        text = [f"Job {name} ({job.name}): {found['state']}" + (f", {job.reason}" if job.reason != "None" else "")]
    if found["gpus"]:
        text.append("It was given:" if found["noted_s"] is None else f"It started at {stamp(found['noted_s'])} on:")
        text += [f"  {_gpu_text(gpu)}" for gpu in found["gpus"]]
        bad = [gpu for gpu in found["gpus"] if gpu.get("state", OK) != OK]
        text += [f"  seen to fail: {fault_line(gpu['flags'], gpu['node'], gpu['index'])}" for gpu in bad]
        worst = ", ".join(f"{c} {v:.3f}" for c, v in found["slowdown"].items())
        text.append(f"Slowest of them, by sensitivity class: {worst or 'unknown'}")
    elif found["nodes"]:
        text.append(f"It ran on {', '.join(found['nodes'])}; Slurm no longer knows which GPUs it used.")
    for key, name in (("required_nodes", "must use"), ("excluded_nodes", "must avoid")):
        if found[key] and found["state"] == "PENDING":
            text.append(f"While it waits, it {name} {', '.join(found[key])}")
    return text


def _gpu_text(gpu: dict[str, Any]) -> str:
    place = f"{gpu['node']} GPU {gpu['index']}"
    if "slowdown" not in gpu:
        return f"{place}: never measured (counts as a median GPU)"
    scores = ", ".join(f"{c} {v:.3f} ({gpu['class'][c]})" for c, v in gpu["slowdown"].items())
    flags = f", {','.join(gpu['flags'])}" if gpu["flags"] else ""
    return f"{place}: {scores}, measured {age(gpu['age_s'])} ago{flags}"
