# SPDX-License-Identifier: MIT
"""What a job would get now, as written and with other requests: Slurm says when and where, the policy code how fast.

Slurm is asked by `sbatch --test-only`, which submits nothing, with slurm-pal switched off for those calls. palsub
loads none of this.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.base.errors import UsageError
from slurm_pal.base.hostlist import expand
from slurm_pal.decide import steering
from slurm_pal.decide.case import Settings, expected_run_s, settings_of
from slurm_pal.decide.decide import decide
from slurm_pal.decide.request import Request
from slurm_pal.decide.waits import Waiting, rooms, starts_now
from slurm_pal.placement.patience import MEDIAN_SLOWDOWN
from slurm_pal.slurm.client import Completed, Overview
from slurm_pal.slurm.parse import unix_s
from slurm_pal.store.snapshot import Snapshot, known_class
from slurm_pal.submit.alternatives import queue_argv, waiting_in
from slurm_pal.submit.processes import runner

NOW_S = 60.0
"""What Slurm plans to start sooner counts as now."""
NIGHT = "22:00"
MOST_PARTITIONS = 4
ASK_S = 20.0
AS_WRITTEN, FEWER, PARTITION, SHORTER, LATER, WITHOUT = (
    "as written",
    "fewer",
    "partition",
    "shorter",
    "later",
    "without",
)
_PLAN = re.compile(r"to start at (\S+) .*?using \d+ processors on nodes (\S+) in partition (\S+)")
"""Slurm 26.05 puts ` a` before `using`."""
_COUNT = re.compile(r"(.*?)([0-9]{1,6})$")
_GPU_OPTIONS = ("gpus-per-node", "gres", "gpus", "gpus-per-task")


class Asker(NamedTuple):
    """How sbatch is asked for one job."""

    before: tuple[str, ...]  # its words before ours
    after: tuple[str, ...]  # the script and its arguments
    options: Mapping[str, str]  # those in force, long name -> value


class Variant(NamedTuple):
    """One way to submit the job."""

    kind: str
    text: str  # in words
    options: tuple[tuple[str, str], ...] = ()  # of sbatch, beside those of the job


class Outlook(NamedTuple):
    """What would come of it. Slowdowns are of the slowest GPU for the job's class; 1.0 is the median."""

    variant: Variant
    refused: str = ""  # why Slurm would not take it
    start_s: float = 0.0  # Unix s
    nodes: tuple[str, ...] = ()  # by Slurm's plan
    partition: str = ""
    gpus: str = ""  # that it would get now, like `n1:0,1`; "" where it does not start now
    best: float | None = None  # slowdown, as far as it is known; of a later start the best that these nodes can give
    worst: float | None = None  # and the worst
    end_s: float | None = None  # expected; None for another number of GPUs

    def shown(self, now_s: float) -> dict[str, Any]:
        """For --json."""
        return {
            "kind": self.variant.kind, "text": self.variant.text, "options": dict(self.variant.options),
            "refused": self.refused or None, "start_s": self.start_s or None,
            "wait_s": None if self.refused else round(max(0.0, self.start_s - now_s)),
            "nodes": list(self.nodes), "partition": self.partition or None, "gpus": self.gpus or None,
            "slowdown": self.best, "slowdown_at_most": self.worst, "end_s": self.end_s,
        }  # fmt: skip


class AskedJob(NamedTuple):
    """What is asked about."""

    asker: Asker
    request: Request
    sensitivity: str
    measured: bool
    planned_s: float = 0.0  # by Slurm, of a job that waits; 0.0: not known


def variants(job: AskedJob, overview: Overview, at: str, excluded: Sequence[str]) -> list[Variant]:
    """The questions, as written first. `at` is another start in sbatch's words ("": the next night), `excluded` nodes
    of a class to be avoided."""
    found = [Variant(AS_WRITTEN, "as written")]
    if excluded:
        own = ",".join((*job.request.exc_nodes, *excluded))
        found.append(Variant(WITHOUT, "without the avoided nodes", (("exclude", own),)))
    if changed := _halved(job.asker.options):
        name, value = changed
        found.append(Variant(FEWER, f"with --{name}={value}", (changed,)))
    own_partitions = job.request.partitions or tuple(one.name for one in overview.partitions if one.default)
    shape = job.request.shape
    others = [
        one.name for one in overview.partitions
        if one.up and one.name not in own_partitions and shape is not None and _has(overview, one.nodes, shape.gpu_type)
    ]  # fmt: skip
    found += [Variant(PARTITION, f"in partition {name}", (("partition", name),)) for name in others[:MOST_PARTITIONS]]
    defaults = (one.default_time_s for one in overview.partitions if one.name in own_partitions and one.default_time_s)
    limit_s = job.request.time_limit_s or next(defaults, None)
    if limit_s and limit_s >= 120:
        minutes = str(max(1, int(limit_s // 120)))
        found.append(Variant(SHORTER, f"with a time limit of {minutes} min", (("time", minutes),)))
    return [*found, Variant(LATER, f"from {at or NIGHT} on", (("begin", at or NIGHT),))]


def _has(overview: Overview, names: Sequence[str], gpu_type: str) -> bool:
    inside = set(names)
    return any(
        node.name in inside and any(gpu_type in ("", kind) for kind in node.gpu_types) for node in overview.nodes
    )


def _halved(options: Mapping[str, str]) -> tuple[str, str] | None:
    """The option with half the GPUs, else with half the nodes; None where it asks for one."""
    for name in _GPU_OPTIONS:
        match = _COUNT.fullmatch(options.get(name, ""))
        if match and "," not in match[1] and (name != "gres" or "gpu" in match[1]) and int(match[2]) > 1:
            return name, f"{match[1]}{int(match[2]) // 2}"
    nodes = options.get("nodes", "")
    return ("nodes", str(int(nodes) // 2)) if nodes.isascii() and nodes.isdigit() and int(nodes) > 1 else None


class Plans:
    """All questions to Slurm at once."""

    def __init__(self, job: AskedJob, asked: Sequence[Variant], partitions: Sequence[str]) -> None:
        """Raises SlurmError where sbatch or squeue cannot be started."""
        self._run = runner(ASK_S)
        self._queue = self._run.start(queue_argv(partitions), "")
        environment = {**os.environ, "SLURM_PAL_OFF": "1"}  # a filter is not to think that the GPUs are taken
        self._answers = [
            self._run.start(
                ["sbatch", "--test-only", *job.asker.before, *(_word(*pair) for pair in one.options), *job.asker.after],
                "", environment,
            )
            for one in asked
        ]  # fmt: skip

    def read(self) -> tuple[list[Completed], dict[str, list[Waiting]]]:
        """The answers, in order, and what waits in each partition. Raises SlurmError."""
        try:
            return [answer() for answer in self._answers], waiting_in(self._queue().stdout)
        finally:
            self._run.end()


def _word(name: str, value: str) -> str:
    return f"--{name}={value}" if value else f"--{name}"


def read_plan(done: Completed) -> tuple[str, float, tuple[str, ...], str]:
    """(why it is refused, start, nodes, partition) by what `sbatch --test-only` said."""
    match = _PLAN.search(done.stderr)
    start_s = unix_s(match[1]) if match else 0.0
    if done.returncode or match is None or not start_s:
        said = [text.strip() for text in done.stderr.splitlines() if text.strip()]
        text = said[-1].removeprefix("allocation failure: ") if said else "sbatch said nothing"
        return text.removeprefix("sbatch: ").removeprefix("error: "), 0.0, (), ""
    try:
        nodes = tuple(expand(match[2]))
    except UsageError:
        nodes = ()
    return "", start_s, nodes, match[3]


def answers(
    job: AskedJob, asked: Sequence[Variant], plans: Sequence[Completed], requests: Sequence[Request],
    overview: Overview, scores: Snapshot, config: Config, now_s: float, queued: Mapping[str, Sequence[Waiting]] = {},
) -> list[Outlook]:  # fmt: skip
    """What would come of each variant; `requests` are theirs, read as palsub would, `queued` what waits. Pure.

    Slurm's plan for a new job is behind all that wait; where backfill has room for it, it starts now.
    """
    settings = settings_of(config)
    found: list[Outlook] = []
    for variant, done, request in zip(asked, plans, requests, strict=True):
        refused, start_s, nodes, partition = read_plan(done)
        if variant.kind == AS_WRITTEN and job.planned_s and not refused:
            start_s = job.planned_s
        elif not refused and variant.kind != LATER and start_s - now_s >= NOW_S:
            start_s = now_s if _backfilled(request, partition, overview, queued, now_s) else start_s
        if refused:
            found.append(Outlook(variant, refused))
            continue
        gpus, best, worst = _speed(request, nodes, start_s - now_s < NOW_S, overview, scores, job, settings, now_s)
        run_s = expected_run_s(request.time_limit_s, settings)
        if variant.kind == SHORTER:  # a shorter limit makes no job shorter
            run_s = expected_run_s(requests[0].time_limit_s, settings)
        end_s = None if variant.kind == FEWER else start_s + run_s * (worst or MEDIAN_SLOWDOWN)
        found.append(Outlook(variant, "", start_s, nodes, partition, gpus, best, worst, end_s))
    return found


def _backfilled(
    request: Request, partition: str, overview: Overview, queued: Mapping[str, Sequence[Waiting]], now_s: float
) -> bool:
    shape = request.shape
    if shape is None or request.leave:
        return False
    nodes = max(1, shape.nodes or request.nodes_min)
    room, ahead = rooms(overview, partition, now_s), queued.get(partition, ())
    there = request._replace(partitions=(partition,))
    return starts_now(shape.total, nodes, room, ahead) and steering.places(overview, there).get(partition, False)


def _speed(
    request: Request, nodes: Sequence[str], now: bool, overview: Overview, scores: Snapshot, job: AskedJob,
    settings: Settings, now_s: float,
) -> tuple[str, float | None, float | None]:  # fmt: skip
    """The GPUs of a start now, and the best and worst slowdown to expect."""
    if now and not request.leave:
        made = decide(
            request, overview, scores, job.sensitivity, settings, "daemon", now_s, 0, measured=job.measured
        )  # fmt: skip
        offer = made.chosen if made.action in ("nodelist", "prefer") else made.plain or made.chosen
        if offer is not None:
            return offer.where(), round(offer.slowdown, 4), round(offer.slowdown, 4)
    c, shape = known_class(job.sensitivity), request.shape
    best, worst = 0.0, 0.0
    for name in nodes:
        rows = scores.rows.get(name, range(0))
        slow = sorted(scores.gpu(row).slowdown.get(c, MEDIAN_SLOWDOWN) for row in rows)
        count = (shape.per_node or -(-shape.total // len(nodes))) if shape is not None else 1
        if slow:
            best, worst = max(best, slow[min(count, len(slow)) - 1]), max(worst, slow[-1])
    return ("", round(best, 4), round(worst, 4)) if worst else ("", None, None)


class Capacity(NamedTuple):
    """What avoiding a class of GPUs costs of those that a job, or any job, may get."""

    nodes: tuple[str, ...]  # that have such GPUs
    gpus: int  # on these nodes, slow or not
    of_gpus: int
    slow_gpus: int


def classes_of(text: str, bound: float) -> tuple[float, frozenset[str]]:
    """What `--exclude` means: (bound, classes) of `slow`, `slow=1.2` or `v4,v5`. Raises UsageError."""
    from slurm_pal.submit.choice import is_bound

    word, sign, value = text.partition("=")
    if word == "slow" and (not sign or is_bound(value)):
        return float(value) if sign else bound, frozenset()
    names = frozenset(text.split(","))
    if not all(re.fullmatch(r"v[0-9]{1,2}", name) for name in names):
        raise UsageError(
            f"--exclude {text!r} is neither slow, nor slow=X with X between 1.0 and 10, nor variability classes such "
            "as v4,v5 (pal gpus shows them)"
        )
    return 0.0, names


def capacity(
    overview: Overview, scores: Snapshot, sensitivity: str, bound: float, classes: frozenset[str],
    allowed: Sequence[str],
) -> Capacity:  # fmt: skip
    """Count the GPUs that avoiding costs; `allowed` are the nodes that count."""
    inside, c = frozenset(allowed), known_class(sensitivity)
    hit: list[str] = []
    lost = total = slow = 0
    for node in overview.nodes:
        if node.name not in inside or not node.n_gpus:
            continue
        total += node.n_gpus
        known = [scores.gpu(row) for row in scores.rows.get(node.name, range(0))]
        bad = [
            gpu for gpu in known
            if (gpu.variability_class.get(c) in classes if classes else
                round(gpu.slowdown.get(c, MEDIAN_SLOWDOWN), 4) > bound or gpu.state != "ok")
        ]  # fmt: skip
        if bad:
            hit.append(node.name)
            lost, slow = lost + node.n_gpus, slow + len(bad)
    return Capacity(tuple(hit), lost, total, slow)
