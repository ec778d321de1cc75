# SPDX-License-Identifier: MIT
"""What plain Slurm would pick, so that a decision can say what it changed.

Seen on select/cons_tres (22.05) and tested on a live slurmctld: the nodes that can hold
the request fall into runs of neighbours with equal weight; of the lowest weight the run
with the fewest free CPUs that suffices is taken, and filled from its first node. A
prediction: jobs that start in between differ, and sites with topology do.
"""

from __future__ import annotations

from slurm_pal.base.jobs import GpuShape
from slurm_pal.base.light import Sequence
from slurm_pal.placement import placement, whole
from slurm_pal.placement.candidates import Preference, Scan
from slurm_pal.placement.need import Need, Picks, choose, need_of
from slurm_pal.placement.view import Placement, Rule, View


def plain_pick(view: View, shape: GpuShape, rule: Rule) -> Placement | None:
    """The placement stock Slurm would choose now, or None when the job would wait."""
    picks = plain_picks(view, shape)
    if picks is None:
        return None
    return placement(view, whole(view, picks) if shape.whole_nodes else picks, rule)


def plain_picks(view: View, shape: GpuShape) -> Picks | None:
    """The same as nodes and how many GPUs of each; of the view only what is free and what nodes are counts."""
    need = need_of(shape, max(view.node_gpus, default=0))
    if need is None:
        return None
    return _equal_shares(view, need.counts) if need.counts else _total(view, need.total)


def _equal_shares(view: View, counts: Sequence[int]) -> Picks | None:
    """`counts` GPUs on as many nodes: the best run, from its first node."""
    runs = _runs(view, min(counts))
    best = _best([run for run in runs if len(run) >= len(counts)], view)
    order = best or [node for run in sorted(runs, key=lambda run: -len(run)) for node in run]
    ranks = {node: rank for rank, node in enumerate(order)}
    wanted = Preference(lambda node: len(view.free[node]), lambda node, _: (ranks.get(node, len(order)), node))
    return choose(Scan(len(view.free), wanted), Need(sum(counts), tuple(counts)))


def _total(view: View, total: int) -> Picks | None:
    """A number of GPUs anywhere (--gpus): one node of the best run, its busiest; else the run is filled."""
    runs = _runs(view, 1)
    best = _best([run for run in runs if sum(len(view.free[node]) for node in run) >= total], view)
    order = best or [node for run in sorted(runs, key=lambda run: -len(run)) for node in run]
    single = [node for node in order if len(view.free[node]) >= total]
    if single:
        cpus = view.cpus_free or [1] * len(view.free)
        return [(min(single, key=lambda node: (cpus[node], node)), total)]
    picks: Picks = []
    for node in order:
        count = min(total, len(view.free[node]))
        picks.append((node, count))
        total -= count
        if total == 0:
            return picks
    return None


def _best(runs: Sequence[list[int]], view: View) -> list[int]:
    """Of the runs that suffice the one of lowest weight, then with the fewest free CPUs; [] without any."""
    weights, cpus = view.weight or [1] * len(view.free), view.cpus_free or [1] * len(view.free)
    return min(runs, key=lambda run: (weights[run[0]], sum(cpus[node] for node in run), run[0]), default=[])


def _runs(view: View, count: int) -> list[list[int]]:
    """Nodes with `count` free GPUs, as runs of neighbours in Slurm's list with the same weight."""
    places, weights = view.position or range(len(view.free)), view.weight or [1] * len(view.free)
    runs: list[list[int]] = []
    for node in (node for node in range(len(view.free)) if len(view.free[node]) >= count):
        last = runs[-1][-1] if runs else None
        if last is not None and places[node] == places[last] + 1 and weights[node] == weights[last]:
            runs[-1].append(node)
        else:
            runs.append([node])
    return runs
