# SPDX-License-Identifier: MIT
"""What a job's shape needs: fixed counts per node, or a total to be spread; and how it is met."""

from __future__ import annotations

from slurm_pal.base.jobs import GpuShape
from slurm_pal.base.light import Callable, NamedTuple, Sequence
from slurm_pal.placement.candidates import Candidates

Picks = list[tuple[int, int]]
"""Chosen nodes (positions in the view) and how many GPUs of each."""


class Need(NamedTuple):
    """`counts` GPUs on as many nodes, most first; or, when `counts` is empty, `total` as Slurm likes."""

    total: int
    counts: tuple[int, ...]


def need_of(shape: GpuShape, largest_node: int) -> Need | None:
    """The need of a shape on nodes of up to `largest_node` GPUs; None when no choice of nodes can ever hold it."""
    if shape.total < 1 or not largest_node:
        return None
    if shape.nodes is None:
        return Need(shape.total, ())
    if shape.per_node is not None:
        return Need(shape.nodes * shape.per_node, (shape.per_node,) * shape.nodes)
    # --gpus with a node count: Slurm fills the first nodes and leaves one for each other.
    counts: list[int] = []
    for others in range(shape.nodes - 1, -1, -1):
        counts.append(min(largest_node, shape.total - sum(counts) - others))
    return Need(shape.total, tuple(counts)) if min(counts) > 0 and sum(counts) == shape.total else None


def choose(candidates: Candidates, need: Need) -> Picks | None:
    """The nodes liked best that meet a need together, or None."""
    return _shares(candidates, need.counts) if need.counts else _spread(candidates, need.total)


def least(limits: Sequence[float], among: Callable[[float], Picks | None]) -> Picks | None:
    """The picks at the least of some ascending limits that leaves enough GPUs, None where none does."""
    low, high, found = 0, len(limits), None
    while low < high:
        middle = (low + high) // 2
        picks = among(limits[middle])
        if picks is None:
            low = middle + 1
        else:
            found, high = picks, middle
    return found


def _shares(candidates: Candidates, counts: Sequence[int]) -> Picks | None:
    """For each count the unused node liked best."""
    picks: Picks = []
    used: set[int] = set()
    for count in counts:
        node = candidates.best(count, used)
        if node is None:
            return None
        used.add(node)
        picks.append((node, count))
    return picks


def _spread(candidates: Candidates, total: int) -> Picks | None:
    """`total` GPUs on as few nodes as can be: the fullest takes first, and the last takes what remains."""
    picks: Picks = []
    used: set[int] = set()
    while total > 0:
        last = candidates.best(total, used)
        if last is not None:
            return [*picks, (last, total)]
        found = candidates.fullest(used)
        if found is None:
            return None
        node, count = found
        used.add(node)
        picks.append((node, count))
        total -= count
    return picks
