# SPDX-License-Identifier: MIT
"""The record of one decision: written at submission, shown again by `pal explain`."""

from __future__ import annotations

import os
import time

from slurm_pal.base import state
from slurm_pal.base.errors import DataError
from slurm_pal.base.faults import faulty_gpus
from slurm_pal.base.files import read_plain, remove_leftovers, write_atomic
from slurm_pal.base.jobs import UNKNOWN_CLASS
from slurm_pal.base.light import Any, json, suppress
from slurm_pal.base.numbers import digits

TYPE_CHECKING = False  # typing's own constant would cost the import of decide
if TYPE_CHECKING:
    from collections.abc import Mapping

    from slurm_pal.decide.case import Decision
    from slurm_pal.decide.offer import Offer
    from slurm_pal.sensitivity.cascade import Verdict

SCHEMA = "pal.decision/1"
KEEP = 1000
_SLACK = 100  # records over KEEP before the oldest are removed: pruning reads the whole folder

Record = dict[str, Any]


def record(
    decision: Decision,
    *,
    cluster: str,
    now_s: float,
    known: Verdict,
    policy: str,
    argv: list[str],
    snapshot: Record | None,
    warnings: list[str],
) -> Record:
    """Everything about one decision as JSON-ready data; `job_id` is filled in once it is known.

    Ages are in seconds at the time of the decision, null for a GPU that was never measured.
    """
    return {
        "schema": SCHEMA,
        "job_id": None,
        "cluster": cluster,
        "made_s": now_s,
        "action": decision.action,
        "reason": decision.reason,
        "sensitivity": {
            "class": known.sensitivity,
            "from": known.why,
            "stage": known.stage or "default",
            "confidence": known.confidence,
            "considered": [found._asdict() for found in known.considered],
            "measured": known.measured._asdict() if known.measured else None,
        },
        "policy": policy,
        "argv": argv,
        "added": list(decision.added),
        "chosen": _offer(decision.chosen, now_s),
        "alternatives": [_offer(offer, now_s) for offer in decision.alternatives],
        "plain_slurm": _offer(decision.plain, now_s),
        "slower_why": decision.slower_why,
        "unknown": list(decision.unknown),
        "lease": {"seconds": decision.lease_s, "until_s": now_s + decision.lease_s, "why": decision.lease_why}
        if decision.lease_s
        else None,
        "snapshot": snapshot,
        "warnings": warnings,
    }


def _offer(offer: Offer | None, now_s: float) -> Record | None:
    if offer is None:
        return None
    gpus = [
        {
            "node": gpu.node,
            "index": gpu.gpu,
            "slowdown": None if gpu.slowdown is None else round(gpu.slowdown, 4),
            "class": gpu.variability_class,
            "age_s": round(max(0.0, now_s - gpu.measured_s)) if gpu.measured_s else None,
            "flags": list(gpu.flags),
            "state": gpu.state,
        }
        for gpu in offer.gpus
    ]
    return {
        "gpus": gpus,
        "slowdown": round(offer.slowdown, 4),
        "locality": offer.locality,
        "product": round(offer.product, 4),
    }


def save(made: Record) -> None:
    """Keep the record of a submitted job, and the newest 1000 of a cluster.

    Raises OSError when the state folder cannot be written.
    """
    folder = state.folder("decisions", made["cluster"])
    write_atomic(os.path.join(folder, f"{int(made['job_id'])}.json"), json.dumps(made) + "\n", 0o600, durable=False)
    names = [name for name in os.listdir(folder) if name.endswith(".json")]
    if len(names) > KEEP + _SLACK:
        for name in _by_age(folder, names)[:-KEEP]:
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))
        remove_leftovers(folder, time.time())


def started(cluster: str, job_id: int, gpus: Mapping[str, tuple[int, ...]], at_s: float) -> None:
    """Keep the GPUs on which a job started, which Slurm forgets when the job has ended.

    Nothing is kept of a job without a record. Raises DataError or OSError when it cannot be read or written.
    """
    made = load(cluster, job_id)
    slots = [[node, index] for node, indexes in gpus.items() for index in indexes]
    if made is None or not slots or made.get("started") == {"at_s": at_s, "gpus": slots}:
        return
    path = os.path.join(_folder(cluster), f"{int(job_id)}.json")
    made_ns = os.stat(path).st_mtime_ns
    write_atomic(path, json.dumps(made | {"started": {"at_s": at_s, "gpus": slots}}) + "\n", 0o600)
    os.utime(path, ns=(made_ns, made_ns))  # the newest record is that of the last submission


def _by_age(folder: str, names: list[str]) -> list[str]:
    def age(name: str) -> tuple[float, int, str]:
        try:
            return os.stat(os.path.join(folder, name)).st_mtime, len(name), name
        except OSError:  # another palsub has removed it meanwhile
            return 0.0, 0, name

    return sorted(names, key=age)


def load(cluster: str, job_id: int) -> Record | None:
    """The decision about one job, None if palsub made none here.

    `cluster` is a ClusterName, or "" for the cluster in force. Raises DataError when the
    record cannot be read.
    """
    path = os.path.join(_folder(cluster), f"{int(job_id)}.json")
    try:
        made = json.loads(read_plain(path))
    except FileNotFoundError:
        return None
    except (OSError, DataError, ValueError, RecursionError) as error:
        raise DataError(f"decision record {path} cannot be read: {error}") from None
    if not isinstance(made, dict) or made.get("schema") != SCHEMA:
        raise DataError(f"decision record {path} is not {SCHEMA!r}: update slurm-pal")
    return made


def last(cluster: str) -> Record | None:
    """The newest decision on a cluster, or None. Raises DataError like `load`."""
    folder = _folder(cluster)
    try:
        names = [n for n in os.listdir(folder) if n.endswith(".json") and digits(n[:-5]) is not None]
    except OSError:
        return None
    return load(cluster, int(_by_age(folder, names)[-1][:-5])) if names else None


def _folder(cluster: str) -> str:
    """The records of a cluster; a ClusterName means the cluster in force if that has this name."""
    here, name = state.cluster_key(), cluster.lower()
    return os.path.join(state.home(), "decisions", here if here.startswith(name) else name)


def render(made: Record) -> list[str]:
    """The record as lines of text."""
    sensitivity = made["sensitivity"]
    lines = [] if made["job_id"] is None else [f"job {made['job_id']}"]
    lines.append(f"decision: {made['reason']}")
    lines.append(f"sensitivity class {sensitivity['class']} ({sensitivity['from']}), policy {made['policy']}")
    lines += _considered(sensitivity)
    if made.get("observed_s"):
        lines.append(f"observed in its first {made['observed_s']:g} s")
    if made.get("avoid_slow"):
        lines.append(_avoided(made["avoid_slow"]))
    if made.get("note"):
        lines.append("its output ends with a line about its GPUs")
    if made.get("locality"):
        penalties = ", ".join(f"{factor:.3g}" for factor in made["locality"]["penalties"])
        lines.append(f"locality penalty {penalties} by level of the network: the steps of its earlier jobs showed it")
    if made.get("steered"):
        own = ",".join(made["steered"]["of"])
        lines.append(
            f"partition {made['steered']['partition']} of {own}: it ends soonest there, and holds up others least"
        )
    if made.get("places"):
        lines += _places(made["places"])
    if made.get("inputs"):
        lines.append(_inputs(made["inputs"]))
    if made["added"]:
        lines.append(f"added to sbatch: {' '.join(made['added'])}")
    if made.get("movable"):
        lines.append(_movable(made["movable"]))
    if made.get("checkpoint"):
        lines.append(_saves(made["checkpoint"]))
    if made.get("saving"):
        lines.append(_saving(made["saving"]))
    if made.get("elastic"):
        lines += _elastic(made["elastic"])
    if made["lease"]:
        lines.append(f"lease: {made['lease']['why']}")
    if made["chosen"]:
        lines.append(f"best GPUs free then: {_summary(made['chosen'])}")
        lines += [f"  {_gpu_line(gpu)}" for gpu in made["chosen"]["gpus"]]
    for offer in made["alternatives"]:
        lines.append(f"next best: {_summary(offer)}")
    if made["plain_slurm"]:
        lines.append(f"plain Slurm would have picked: {_summary(made['plain_slurm'])}")
    if made.get("slower_why", "") not in made["reason"]:  # records of older releases have none
        lines.append(f"slower than that because {made['slower_why']}")
    lines += [f"unknown: {text}" for text in made["unknown"]]
    if made["snapshot"]:
        lines.append(f"scores: epoch {made['snapshot']['epoch']}, published {_age(made['snapshot']['age_s'])} before")
    lines += [f"warning: {text}" for text in made["warnings"]]
    return lines


def _considered(sensitivity: Record) -> list[str]:
    """The stage that decided, and what else was considered; records of older releases have neither."""
    stage = sensitivity.get("stage", "default")
    lines = [] if stage in ("default", "word") else [f"by stage {stage}, confidence {sensitivity['confidence']:.2f}"]
    for found in sensitivity.get("considered", []):
        if found["stage"] in (stage, "word"):
            continue
        if found["sensitivity"] == UNKNOWN_CLASS:
            lines.append(f"no class by {found['stage']}: {found['why']}; --pal-observe finds it")
            continue
        said = "also measured" if found["stage"] == "history" else f"not sure enough: {found['stage']}"
        lines.append(f"{said}: {found['sensitivity']}, confidence {found['confidence']:.2f} ({found['why']})")
    return [f"  {line}" for line in lines]


def _elastic(wanted: Record) -> list[str]:
    import shlex

    number = wanted["most"] - wanted["least"]
    if not number:
        return [f"elastic on {wanted['least']} nodes: no companions"]
    companions = "1 companion of one node" if number == 1 else f"{number} companions of one node each"
    lines = [f"elastic on {wanted['least']} to {wanted['most']} nodes: {companions}"]
    if wanted["companions"]:
        lines.append(f"  submitted: {' '.join(map(str, wanted['companions']))}")
    else:
        lines.append(f"  the first by: {shlex.join(wanted['companion_argv'])}")
        lines += [f"  each other one may start {wanted['spacing_s']:g} s later"] if number > 1 else []
    return lines


def _avoided(shown: Record) -> str:
    """What its user wants the job to be kept off, and whether it was."""
    bound = f"GPUs slower than {shown['bound']:g} are to be avoided ({shown['from']})"
    if shown["refused"]:
        return f"{bound}: submitted as written, since {shown['refused']}"
    if not shown["nodes"]:
        return f"{bound}: it can get none"
    kept = f"kept off {shown['nodes']} for {shown['seconds']:.0f} s at most"
    return f"{bound}: {kept}, the slowest there {shown['slowest']:.3g}"


def _inputs(shown: Record) -> str:
    """What is known of the job's input."""
    named = ", ".join(shown["paths"])
    how = "" if shown["stated"] else " (guessed from the script)"
    if not shown["bytes"]:
        return f"input{how}: {named}: no node is known to be nearer to it than others"
    rest = f"its nodes have it in {_age(shown['stage_in_s'])}" if shown["stage_in_s"] else "its nodes have it"
    return f"input{how}: {named}, {shown['bytes'] / (1 << 30):.3g} GiB: {rest}"


def _places(shown: Record) -> list[str]:
    """The places that a job had to choose from, as a table."""
    until = ""
    if shown["until_s"]:
        until = f" {time.strftime('%Y-%m-%dT%H:%M', time.localtime(shown['until_s']))}"
    lines = [f"goal {shown['goal']}{until}: {shown['chosen']}, since {shown['why']}"]
    for row in shown["of"]:
        where = row["name"] if row["name"] == row["partition"] else f"{row['name']} ({row['partition']})"
        if row["refused"]:
            lines.append(f"  {where}: not there: {row['refused']}")
            continue
        input_s = f"gets its input in {_age(row['stage_in_s'])}, " if row["stage_in_s"] else ""
        money = "price unknown" if row["cost"] is None else f"cost {row['cost']:g}"
        lines.append(
            f"  {where}: waits {_age(row['wait_s'])} ({row['wait_from']}), {input_s}"
            f"runs {_age(row['run_s'])} ({row['run_from']}), {money}"
        )
    return lines


def _movable(moving: Record) -> str:
    lost = f", at most {moving['lost_s']} s of work lost" if moving["lost_s"] else ""
    how = f"after a checkpoint by {moving['checkpoint']!r}" if moving["checkpoint"] else "by a requeue"
    mode = moving.get("open_mode", "")  # records of older releases have none
    output = {"append": ", its output is kept (--open-mode=append)", "truncate": ", which empties its output"}
    return f"movable while it runs: {how}{lost}{output.get(mode, '')}"


def _saving(saving: Record) -> str:
    each = "each task saves" if saving["array"] else "saves"
    return (
        f"{each} {saving['before_s']} s before its time limit by {saving['checkpoint']!r}, and is requeued to go on: "
        f"at most {saving['times']} times"
    )


def _saves(means: Record) -> str:
    """By which means a job saves, where its user left that to palsub."""
    how = {
        "command": "by its own command",
        "transparent": "transparent, by CRIU",
        "requeue": "none, a move begins it anew",
        "none": "none, so it stays",
    }
    return f"checkpoint: {how.get(means['by'], means['by'])}: {means['why']}"


def _summary(offer: Record) -> str:
    nodes: dict[str, list[str]] = {}
    for gpu in offer["gpus"]:
        nodes.setdefault(gpu["node"], []).append(str(gpu["index"]))
    where = " ".join(f"{node}:{','.join(indexes)}" for node, indexes in nodes.items())
    text = f"{where} at {offer['product']:.3f}"
    if offer["locality"] != 1.0:
        text += f" (slowest GPU {offer['slowdown']:.3f} x locality {offer['locality']:g})"
    bad = faulty_gpus(offer)
    return f"{text}, seen to fail: {bad}" if bad else text


def _gpu_line(gpu: Record) -> str:
    if gpu["slowdown"] is None:
        return f"{gpu['node']} GPU {gpu['index']}: never measured, counted as a median GPU"
    flags = f", {','.join(gpu['flags'])}" if gpu["flags"] else ""
    return (
        f"{gpu['node']} GPU {gpu['index']}: slowdown {gpu['slowdown']:.3f}, class {gpu['class']}, "
        f"measured {_age(gpu['age_s'])} before{flags}"
    )


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
