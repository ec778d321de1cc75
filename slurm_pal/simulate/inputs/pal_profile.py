# SPDX-License-Identifier: MIT
"""How fast the GPUs of the simulated cluster are: profiles drawn from measured runs (pal.md 2.1 and 6).

A slowdown is `perf / median(perf over all rows of the file)`, `perf` being a time: 1.0
is the median run and more is slower. The published simulator gives each GPU one random
single run per class, the classes independent of each other; that is kind `raw`.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.simulate.inputs.pal_rows import number, read_csv

CLASSES = ("A", "B", "C", "D")
CAP = 1.2
SEED = 42


class ProfileRun(NamedTuple):
    """One measured run: which GPU, its slowdown, and the node where the file names it."""

    uuid: str
    slowdown: float
    node: tuple[str, ...] = ()  # (cabinet, node)


class Profile(NamedTuple):
    """The simulated cluster. `slowdown[c][g]` is the relative iteration time of GPU g for class c.

    GPU ids count through the nodes: node = g // gpus_per_node. `generator` is the state
    of CPython's generator after the draws, from which the Random baselines go on.
    """

    name: str
    gpus_per_node: int
    slowdown: dict[str, tuple[float, ...]]
    seed: int
    generator: tuple[Any, ...]

    @property
    def n_gpus(self) -> int:
        return len(next(iter(self.slowdown.values())))


class DrawKind(NamedTuple):
    """What a GPU may be given: the values one class draws from, and the largest value a draw may have."""

    values: Callable[[Sequence[ProfileRun]], list[float]]
    cap: float
    summary: str


def read_runs(path: str, with_node: bool = False) -> list[ProfileRun]:
    """The runs of a profile CSV (columns uuid, perf; with_node: also cabinet, node) in file order.

    Rows without a positive `perf` say nothing and are left out. Raises DataError for a
    file without a usable row, a missing column, or an empty uuid.
    """
    found = []
    for line, fields in read_csv(path, ("uuid", "perf", *(("cabinet", "node") if with_node else ()))):
        where = f"{path} line {line}"
        if not fields["uuid"]:
            raise DataError(f"{where}: uuid is empty")
        try:
            perf = number(fields, "perf", where)
        except DataError:
            continue
        if perf > 0:
            found.append((fields["uuid"], perf, (fields["cabinet"], fields["node"]) if with_node else ()))
    if not found:
        raise DataError(f"{path} holds no run with a positive perf")
    middle = statistics.median([perf for _, perf, _ in found])
    return [ProfileRun(uuid, perf / middle, node) for uuid, perf, node in found]


def gpu_medians(runs: Sequence[ProfileRun]) -> dict[str, float]:
    """The median slowdown of each GPU, by ascending UUID."""
    of: dict[str, list[float]] = {}
    for run in runs:
        of.setdefault(run.uuid, []).append(run.slowdown)
    return {uuid: statistics.median(of[uuid]) for uuid in sorted(of)}


def _raw(runs: Sequence[ProfileRun]) -> list[float]:
    return [run.slowdown for run in runs]


def _medians(runs: Sequence[ProfileRun]) -> list[float]:
    return list(gpu_medians(runs).values())


KINDS = {
    "raw": DrawKind(_raw, float("inf"), "one random single run per GPU and class, as published"),
    "medians": DrawKind(_medians, float("inf"), "one random GPU's median per GPU and class"),
    "capped": DrawKind(_raw, CAP, f"as raw, but nothing slower than {CAP}"),
}


def draw(
    runs: Mapping[str, Sequence[ProfileRun]],
    nodes: int = 16,
    gpus_per_node: int = 4,
    kind: str = "raw",
    seed: int = SEED,
) -> Profile:
    """A cluster whose GPUs are drawn per class from `runs[class]`, GPU by GPU, class by class.

    Raises UsageError for an unknown kind, a class that is missing or empty, or an empty cluster.
    """
    if kind not in KINDS:
        raise UsageError(f"profile kind {kind!r} is not one of {', '.join(KINDS)}")
    _check(runs, nodes, gpus_per_node)
    values = {c: KINDS[kind].values(runs[c]) for c in CLASSES}
    generator = random.Random(seed)
    slowdown: dict[str, list[float]] = {c: [] for c in CLASSES}
    for _ in range(nodes * gpus_per_node):
        for c in CLASSES:
            slowdown[c].append(min(generator.choice(values[c]), KINDS[kind].cap))
    final = {c: tuple(column) for c, column in slowdown.items()}
    return Profile(f"{kind} seed {seed}", gpus_per_node, final, seed, generator.getstate())


def joint(runs: Mapping[str, Sequence[ProfileRun]], nodes: int = 16, gpus_per_node: int = 4, seed: int = 1) -> Profile:
    """A cluster of real nodes: per-GPU medians of all classes joined by UUID, nodes as class A's file has them.

    The nodes with exactly `gpus_per_node` GPUs known to every class, in ascending
    (cabinet, node) order, are sampled without repetition; GPUs keep ascending UUIDs.
    Raises UsageError when there are fewer such nodes than asked for, and as `draw`.
    """
    _check(runs, nodes, gpus_per_node)
    medians = {c: gpu_medians(runs[c]) for c in CLASSES}
    node_of = {run.uuid: run.node for run in runs["A"]}
    members: dict[tuple[str, ...], list[str]] = {}
    for uuid in medians["A"]:
        if all(uuid in medians[c] for c in CLASSES):
            members.setdefault(node_of[uuid], []).append(uuid)
    whole = [members[node] for node in sorted(members, key=_natural) if len(members[node]) == gpus_per_node]
    if len(whole) < nodes:
        raise UsageError(f"{nodes} nodes of {gpus_per_node} GPUs asked for, but the files join to {len(whole)}")
    generator = random.Random(seed)
    uuids = [uuid for k in generator.sample(range(len(whole)), nodes) for uuid in whole[k]]
    slowdown = {c: tuple(medians[c][uuid] for uuid in uuids) for c in CLASSES}
    return Profile(f"joint seed {seed}", gpus_per_node, slowdown, seed, generator.getstate())


def given(slowdown: Mapping[str, Sequence[float]], gpus_per_node: int, seed: int = SEED) -> Profile:
    """A cluster with known slowdowns per class and GPU; the Random baselines start from `seed`.

    Raises UsageError for columns of unequal length, part of a node, or a value that is not positive.
    """
    columns = {c: tuple(map(float, values)) for c, values in slowdown.items()}
    lengths = sorted({len(values) for values in columns.values()})
    if len(lengths) != 1 or gpus_per_node < 1 or not lengths[0] or lengths[0] % gpus_per_node:
        raise UsageError(f"classes of {lengths} GPUs do not make a cluster of whole nodes of {gpus_per_node} GPUs")
    wrong = [value for values in columns.values() for value in values if not 0 < value < float("inf")]
    if wrong:
        raise UsageError(f"slowdown {wrong[0]} is not a positive number")
    return Profile("given", gpus_per_node, columns, seed, random.Random(seed).getstate())


def _check(runs: Mapping[str, Sequence[ProfileRun]], nodes: int, gpus_per_node: int) -> None:
    if nodes < 1 or gpus_per_node < 1:
        raise UsageError(f"a cluster of {nodes} nodes of {gpus_per_node} GPUs is empty; both must be at least 1")
    lacking = [c for c in CLASSES if not runs.get(c)]
    if lacking:
        raise UsageError(f"no measured runs for class {', '.join(lacking)}; needed are {', '.join(CLASSES)}")


def _natural(node: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    """Numbers by value (node 9 before 10), anything else as text."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in node)
