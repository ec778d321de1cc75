# SPDX-License-Identifier: MIT
"""Which nodes a sweep takes, in which order, and why it leaves the others alone. Pure."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.cluster import Node
from slurm_pal.base.errors import UsageError
from slurm_pal.profiling.node.benchmarks import Benchmark, node_device_s
from slurm_pal.profiling.sweep.urgency import CONFIRM, LATE, LEFT, Urgency
from slurm_pal.slurm.states import EXACTLY_IDLE

CONFIRM_AFTER_S = 12 * 3600.0
"""This long after a doubtful run `--since` no longer holds its node back; a run an hour later would repeat its heat."""


class SweepRequest(NamedTuple):
    """What the administrator asked for; None and "" mean no limit."""

    nodes: tuple[str, ...] | None = None
    sample: str = ""  # "8" or "10%"
    since_s: float | None = None
    max_nodes: int | None = None
    budget_gpu_h: float | None = None
    partition: str = ""
    reservation: str = ""
    seed: int = 0
    budget_gpu_h_per_day: float = 0.0  # 0: no limit


class ChosenNode(NamedTuple):
    """One node that will be measured."""

    node: str
    gpus: int
    measured_s: float  # Unix time of its newest measurement, 0.0: never
    seconds: float = 0.0  # expected time, s
    why: str = ""  # what brought it to the front
    partitions: tuple[str, ...] = ()
    gpu_types: tuple[str, ...] = ()  # each once, without ""


class SweepPlan(NamedTuple):
    """The nodes in the order they will be taken, and why others are not."""

    chosen: tuple[ChosenNode, ...]
    skipped: dict[str, str]
    node_s: float  # expected time of the largest node, s

    @property
    def gpus(self) -> int:
        return sum(c.gpus for c in self.chosen)

    @property
    def gpu_hours(self) -> float:
        """Expected GPU-hours of the whole sweep."""
        return sum(c.gpus * c.seconds for c in self.chosen) / 3600.0


def node_seconds(benchmarks: Sequence[Benchmark], wall_scale: float, gpus: int, solo: bool = False) -> float:
    """How long a node of this many GPUs is expected to be occupied, s."""
    return node_device_s(benchmarks, gpus, solo) * wall_scale + 1.0


def choose(
    nodes: Sequence[Node],
    newest: Mapping[str, float],
    reserved: Mapping[str, Sequence[str]],
    request: SweepRequest,
    now_s: float,
    seconds: Callable[[int], float],
    urgent: Mapping[str, Urgency] | None = None,
) -> SweepPlan:
    """Choose nodes: urgent ones, then those never measured, then stalest first.

    `newest`: node -> Unix time of its newest measurement; `reserved`: active
    reservation -> nodes; `seconds(n)`: expected seconds of a node of n GPUs;
    `urgent`: node -> why it should be measured before its turn.

    Raises UsageError for a node that Slurm does not know or a limit that cannot be read.
    """
    skipped: dict[str, str] = {}
    owner = {name: reservation for reservation, names in reserved.items() for name in names}
    candidates: list[ChosenNode] = []
    urgent = urgent or {}
    for node in _wanted(nodes, request.nodes):
        measured_s, cause = newest.get(node.name, 0.0), urgent.get(node.name)
        reason = _obstacle(node, owner.get(node.name, ""), measured_s, request, now_s, cause)
        if reason:
            skipped[node.name] = reason
            continue
        types = tuple(sorted(set(node.gpu_types) - {""}))
        why = cause.why if cause else ""
        candidates.append(
            ChosenNode(node.name, node.n_gpus, measured_s, seconds(node.n_gpus), why, node.partitions, types)
        )
    candidates = _sample(candidates, request, skipped)
    last = max((u.rank for u in urgent.values()), default=0) + 1
    # Stable: Slurm's order among equals. Those never measured have time 0.
    candidates.sort(key=lambda c: (urgent[c.node].rank if c.node in urgent else last, c.measured_s))
    chosen = within(candidates, request, skipped)
    return SweepPlan(tuple(chosen), skipped, max((c.seconds for c in chosen), default=seconds(0)))


def _wanted(nodes: Sequence[Node], names: tuple[str, ...] | None) -> list[Node]:
    if names is None:
        return list(nodes)
    known = {node.name: node for node in nodes}
    strange = [name for name in names if name not in known]
    if strange:
        raise UsageError(
            f"Slurm knows no node {', '.join(strange[:5])}{' ...' if len(strange) > 5 else ''}: see sinfo -N"
        )
    return [known[name] for name in dict.fromkeys(names)]


def _obstacle(
    node: Node, reservation: str, measured_s: float, request: SweepRequest, now_s: float, cause: Urgency | None
) -> str:
    """Why this node cannot or need not be measured now; "" when it can."""
    if node.n_gpus == 0:
        return "has no GPU"
    if request.partition and request.partition not in node.partitions:
        return f"not in partition {request.partition}"
    ours = bool(request.reservation) and reservation == request.reservation
    if reservation and not ours:
        return f"in reservation {reservation}"
    if request.reservation and not ours:
        return f"not in reservation {request.reservation}"
    states = node.states - {"RESERVED", "RES"} if ours else node.states
    if states != EXACTLY_IDLE:
        return f"not idle ({'+'.join(sorted(node.states))})"
    if node.gpus_used or node.cpus_used:
        return "in use"
    rank = cause.rank if cause else None
    due = rank == LEFT or (rank in (CONFIRM, LATE) and measured_s < now_s - CONFIRM_AFTER_S)
    if request.since_s is not None and measured_s and measured_s > now_s - request.since_s and not due:
        return f"measured less than {age(request.since_s)} ago"
    return ""


def _sample(candidates: list[ChosenNode], request: SweepRequest, skipped: dict[str, str]) -> list[ChosenNode]:
    if not request.sample:
        return candidates
    count = sample_size(request.sample, len(candidates))
    drawn = set(random.Random(request.seed).sample(sorted(c.node for c in candidates), count))
    for candidate in candidates:
        if candidate.node not in drawn:
            skipped[candidate.node] = "not in the sample"
    return [c for c in candidates if c.node in drawn]


def sample_size(text: str, total: int) -> int:
    """How many of `total` the sample "8" or "10%" means, at least 1 of any. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,12})|(\d{1,12}(?:\.\d{1,12})?)%", text.strip(), re.ASCII)
    percent = float(match[2]) if match and match[2] else 0.0
    if match is None or percent > 100 or not (int(match[1] or 0) or percent):
        raise UsageError(
            f"--sample {text[:40]!r} must be a number of nodes like 8 or a share like 10%, above 0 and up to 100%"
        )
    wanted = int(match[1]) if match[1] else math.ceil(total * percent / 100.0)
    return min(wanted, total)


def within(candidates: Sequence[ChosenNode], request: SweepRequest, skipped: dict[str, str]) -> list[ChosenNode]:
    """Those that fit into the limits; why others do not goes to `skipped`."""
    chosen: list[ChosenNode] = []
    spent_h = 0.0
    for candidate in candidates:
        cost_h = candidate.gpus * candidate.seconds / 3600.0
        if request.max_nodes is not None and len(chosen) >= request.max_nodes:
            skipped[candidate.node] = f"over --max-nodes {request.max_nodes}"
        elif request.budget_gpu_h is not None and spent_h + cost_h > request.budget_gpu_h:
            skipped[candidate.node] = f"over the budget of {request.budget_gpu_h:g} GPU-hours"
        elif 0 < request.budget_gpu_h_per_day < cost_h:
            skipped[candidate.node] = f"dearer than the {request.budget_gpu_h_per_day:g} GPU-hours of a day"
        else:
            chosen.append(candidate)
            spent_h += cost_h
    return chosen


def default_parallel(total_nodes: int) -> int:
    """How many nodes at once: 5 % of the cluster, 1 to 16 (nodes at full power together)."""
    return max(1, min(int(total_nodes * 0.05), 16))


_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def duration_s(text: str) -> float:
    """Seconds of "90s", "45m", "12h", "30d" or "2w". Raises UsageError."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)([smhdw])", text.strip(), re.ASCII)
    if match is None:
        raise UsageError(f"duration {text[:40]!r} must be a number with a unit: 90s, 45m, 12h, 30d or 2w")
    return float(match[1]) * _UNITS_S[match[2]]


def age(seconds: float) -> str:
    """A short age, e.g. "3 d"."""
    for unit in ("d", "h", "m"):
        if seconds >= _UNITS_S[unit]:
            return f"{int(seconds / _UNITS_S[unit])} {unit}"
    return f"{max(0, int(seconds))} s"
