# SPDX-License-Identifier: MIT
"""How many GPUs of a node the site's jobs take, by the jobs that run now: what placement inside nodes can gain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import comb
from typing import NamedTuple

from slurm_pal.base.jobs import SlurmJob

OURS = "pal-profile:"  # jobs of a sweep take whole nodes, and are no work


class JobShapes(NamedTuple):
    """The jobs of one moment; each GPU in use counts once, so that long and wide jobs count as much as they use."""

    jobs: int
    gpus: int  # that they hold
    parts: Mapping[tuple[int, int], int]  # (GPUs of a job on one node, GPUs of that node) -> GPUs held so

    @property
    def filling(self) -> float:
        """Share of the GPUs in use that belong to a job that has all GPUs of the node."""
        return sum(n for (mine, of), n in self.parts.items() if mine >= of) / self.gpus


def job_shapes(jobs: Iterable[SlurmJob], gpus_of: Mapping[str, int]) -> JobShapes | None:
    """Of the jobs that hold GPUs of these nodes (node -> number of its GPUs); None if there are none."""
    parts: Counter[tuple[int, int]] = Counter()
    running = 0
    for job in jobs:
        held = {node: len(own) for node, own in job.gpus.items() if own and node in gpus_of}
        if held and not job.name.startswith(OURS):
            running += 1
            for node, mine in held.items():
                parts[mine, gpus_of[node]] += mine
    return JobShapes(running, parts.total(), dict(parts)) if parts else None


def lost(slowdowns: Sequence[float], taken: int) -> tuple[float, float]:
    """(by chance, at least): share of the time that GPUs of a node wait, if jobs take so many of them each.

    By chance a job has any of the GPUs; at least is lost if those of each job are neighbours in speed.
    """
    ranked, m = sorted(slowdowns), len(slowdowns)
    if not 1 < taken <= m or ranked[0] == ranked[-1]:
        return 0.0, 0.0
    busy, below = 0.0, 0.0
    for slower_than, slowest in enumerate(ranked):  # the slowest one of a job has this many faster ones beside it
        chance = comb(slower_than, taken - 1) / comb(m, taken)
        busy += chance * (1.0 + ((taken - 1) * below / slower_than / slowest if slower_than else 0.0))
        below += slowest
    whole = m - m % taken
    blocks = [ranked[i : i + taken] for i in range(0, whole, taken)]
    least = 1.0 - sum(s / block[-1] for block in blocks for s in block) / whole
    by_chance = 1.0 - busy / taken
    return by_chance, min(least, by_chance)
