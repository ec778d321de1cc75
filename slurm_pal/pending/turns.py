# SPDX-License-Identifier: MIT
"""Whose turn it would have been: which of the jobs that we keep off nodes Slurm would have started there. Pure.

Slurm starts jobs by priority. So GPUs that are free on such nodes, or that a job from further behind has got there
meanwhile, would have been those of the first kept-off job that fits, and only it waits because of us; the jobs behind
it would have waited all the same. Where the numbers leave it open, a job counts as waiting because of us.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import GpuShape, SlurmJob


class _Started:
    """What a running job holds on one node, as far as nobody has been counted for it."""

    __slots__ = ("gpus", "rank", "start_s")

    def __init__(self, gpus: int, start_s: float, rank: tuple[int, int]) -> None:
        self.gpus, self.start_s, self.rank = gpus, start_s, rank


class Turns:
    """One tick; to be asked job by job, by priority."""

    def __init__(self, nodes: Iterable[Node], jobs: Iterable[SlurmJob]) -> None:
        self._free = {node.name: node.n_gpus - node.gpus_used for node in nodes}
        self._size = {node.name: node.n_gpus for node in nodes}
        self._started: dict[str, list[_Started]] = {}
        for job in jobs:
            if job.state == "RUNNING" and job.start_s > 0:
                for name, indexes in job.gpus.items():
                    self._started.setdefault(name, []).append(_Started(len(indexes), job.start_s, job.rank))

    def take(self, counts: Mapping[str, int]) -> None:
        """A job ahead of those that are asked for next takes free GPUs: node -> how many."""
        for name, count in counts.items():
            self._free[name] = self._free.get(name, 0) - count

    def had(
        self, job: SlurmJob, shape: GpuShape, kept_off: Sequence[str], since_s: float,
        open_to: Iterable[str] | None = None,
    ) -> bool:  # fmt: skip
        """Whether the job would have started on some of these nodes, off which it has been kept since then.

        If so these GPUs are its own for the jobs that are asked for later. `open_to`: it starts on as many nodes as
        Slurm likes, these among them, and takes what it lacks from what is free there. What jobs from behind have got
        there does not count: Slurm let them start only where they did not keep the job waiting.
        """
        since_s = math.floor(since_s)  # Slurm shows whole seconds of a start
        spreads = open_to is not None
        largest = max((self._size.get(name, 0) for name in kept_off), default=0)
        each, pieces = (1, shape.total) if spreads else _pieces(shape, largest)
        place, found = job.rank, 0
        used: list[tuple[str, int]] = []
        for name in kept_off:
            room = self._free.get(name, 0) + sum(
                one.gpus for one in self._started.get(name, ()) if one.start_s >= since_s and one.rank > place
            )
            here = min(room // each, pieces - found)
            if here > 0:
                used.append((name, here * each))
                found += here
        if not found:
            return False
        free: list[tuple[str, int]] = []
        for name in sorted(set(open_to or ()).difference(kept_off)):
            here = min(self._free.get(name, 0), pieces - found)
            if here > 0:
                free.append((name, here))
                found += here
        # The rest of a job on a known number of nodes may have room elsewhere.
        if found < pieces and (spreads or shape.nodes in (None, 1)):
            return False
        for name, count in used:
            self._give(name, count, since_s, place)
        for name, count in free:
            self._free[name] -= count
        return True

    def _give(self, name: str, count: int, since_s: float, place: tuple[int, int]) -> None:
        for one in self._started.get(name, ()):
            if one.start_s >= since_s and one.rank > place:
                part = min(one.gpus, count)
                one.gpus -= part
                count -= part
        self._free[name] = self._free.get(name, 0) - count


def _pieces(shape: GpuShape, whole: int) -> tuple[int, int]:
    """(GPUs, how many times on one node) that the job needs."""
    if shape.whole_nodes:
        return max(1, whole), shape.nodes or 1
    if shape.per_node is not None:
        return shape.per_node, shape.nodes or -(-shape.total // shape.per_node)
    return (shape.total, 1) if shape.nodes == 1 else (1, shape.total)
