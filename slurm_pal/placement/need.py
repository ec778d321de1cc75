"""What a job's shape needs of a view: fixed counts per node, or a total to be spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from slurm_pal.jobs import GpuShape
from slurm_pal.placement.view import View

Picks = list[tuple[int, int]]
"""Chosen nodes (positions in the view) and how many GPUs of each."""


class Need(NamedTuple):
    """`counts` GPUs on as many nodes, most first; or, when `counts` is empty, `total` as Slurm likes."""

    total: int
    counts: tuple[int, ...]


def need_of(shape: GpuShape, view: View) -> Need | None:
    """The need of a shape on these nodes; None when no choice of them can ever hold it."""
    largest = max(view.node_gpus, default=0)
    if shape.total < 1 or not largest:
        return None
    if shape.nodes is None:
        return Need(shape.total, ())
    if shape.per_node is not None:
        return Need(shape.nodes * shape.per_node, (shape.per_node,) * shape.nodes)
    # --gpus with a node count: Slurm fills the first nodes and leaves one for each other.
    counts: list[int] = []
    for others in range(shape.nodes - 1, -1, -1):
        counts.append(min(largest, shape.total - sum(counts) - others))
    return Need(shape.total, tuple(counts)) if min(counts) > 0 and sum(counts) == shape.total else None


def pick_counts(view: View, counts: Iterable[int], key: Callable[[int, int], tuple[float, ...]]) -> Picks | None:
    """For each count the unused node with enough free GPUs and the least `key(node, count)`."""
    picks: Picks = []
    used: set[int] = set()
    wanted = list(counts)
    if len(set(wanted)) == 1 and len(wanted) > 1:  # equal counts: one sort instead of a scan for each
        count = wanted[0]
        fitting = [i for i in range(len(view.free)) if len(view.free[i]) >= count]
        fitting.sort(key=lambda i: key(i, count))
        return [(i, count) for i in fitting[: len(wanted)]] if len(fitting) >= len(wanted) else None
    for count in wanted:
        fitting = [i for i in range(len(view.free)) if i not in used and len(view.free[i]) >= count]
        if not fitting:
            return None
        best = min(fitting, key=lambda i: key(i, count))
        used.add(best)
        picks.append((best, count))
    return picks


def pick_spread(view: View, total: int, key: Callable[[int, int], tuple[float, ...]]) -> Picks | None:
    """`total` GPUs on as few nodes as can be: the fullest takes first, `key` among equals.

    The last node is the one that `key` likes best for what remains.
    """
    remaining = total
    unused = set(range(len(view.free)))
    picks: Picks = []
    while remaining > 0 and unused:
        fitting = [i for i in unused if len(view.free[i]) >= remaining]
        if fitting:
            best = min(fitting, key=lambda i: key(i, remaining))
            count = remaining
        else:
            most = max(len(view.free[i]) for i in unused)
            best = min((i for i in unused if len(view.free[i]) == most), key=lambda i: key(i, most))
            count = most
        picks.append((best, count))
        unused.discard(best)
        remaining -= count
    return picks if remaining == 0 else None
