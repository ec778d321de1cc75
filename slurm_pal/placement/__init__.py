"""Place one job: pure functions from a view of the free GPUs to a placement.

Adding a rule is one module with a function `pick(view, need, rule)` and one row here.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from slurm_pal.errors import UsageError
from slurm_pal.jobs import GpuShape
from slurm_pal.placement.need import Picks, need_of
from slurm_pal.placement.view import Placement, Rule, View


class Policy(NamedTuple):
    """One row of the table of placement rules."""

    module: str
    summary: str


POLICIES = {
    "class-fit": Policy("class_fit", "pack first; among equally packed nodes the best fit of job class and GPU"),
    "pal": Policy("pal", "the published L x V walk: best GPU class first, one node before several (PAL, SC'24)"),
    "pm-first": Policy("pm_first", "best GPUs first, wherever they are (PAL, SC'24, section on PM-First)"),
    "packed": Policy("packed", "fewest GPUs left over, scores ignored"),
    "random": Policy("shuffled", "any node that fits, by seed"),
}


def place(policy: str, view: View, shape: GpuShape, rule: Rule) -> Placement | None:
    """The GPUs that `policy` would take for a job of `shape`, or None when it does not fit now.

    A sensitive job may be given a GPU beyond `rule.barred_slowdown` when nothing else is
    free: whether to wait instead is the caller's decision, who knows what waiting costs.
    Raises UsageError for an unknown policy.
    """
    if policy not in POLICIES:
        raise UsageError(f"placement policy {policy!r} is not one of {', '.join(POLICIES)}")
    need = need_of(shape, view)
    if need is None:
        return None
    pick = import_module(f"slurm_pal.placement.{POLICIES[policy].module}").pick
    picks: Picks | None = pick(_as_whole_nodes(view) if shape.whole_nodes else view, need, rule)
    return None if picks is None else placement(view, whole(view, picks) if shape.whole_nodes else picks, rule)


def whole(view: View, picks: Picks) -> Picks:
    """The same nodes with all their GPUs: what a job with --exclusive is given."""
    return [(node, len(view.free[node])) for node, _ in picks]


def _as_whole_nodes(view: View) -> View:
    """Each GPU stands for the slowest of its node, because the job will run on all of them."""

    def slowest(table: Sequence[Sequence[float]]) -> list[list[float]]:
        return [[max(row)] * len(row) for row in table]

    return view._replace(
        slowdown=slowest(view.slowdown), level=slowest(view.level), slowdown_a=slowest(view.slowdown_a)
    )


def placement(view: View, picks: Picks, rule: Rule) -> Placement:
    """Turn picks (node, how many) into the GPUs that Slurm will hand out there."""
    picks = sorted(picks)
    return Placement(
        nodes=tuple(node for node, _ in picks),
        gpus=tuple(tuple(view.free[node][:count]) for node, count in picks),
        slowdown=max(max(view.slowdown[node][:count]) for node, count in picks),
        locality=rule.locality_penalty if len(picks) > 1 else 1.0,
    )
