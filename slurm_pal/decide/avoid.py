# SPDX-License-Identifier: MIT
"""Keep a job off slow GPUs because its user wants that (`--pal-avoid-slow`), for no longer than a slow one would cost.

Slurm can only exclude nodes, so a node with one such GPU is kept free of the job. Pure.
"""

from __future__ import annotations

from slurm_pal.base.cluster import Node
from slurm_pal.base.faults import OK
from slurm_pal.base.hostlist import fold
from slurm_pal.base.light import NamedTuple
from slurm_pal.decide.candidates import Candidates, candidates, could_hold, several_models
from slurm_pal.decide.case import Decision, Settings, expected_run_s
from slurm_pal.decide.means import FOLD_ABOVE, NOBODY
from slurm_pal.decide.request import Request
from slurm_pal.placement.patience import MEDIAN_SLOWDOWN, patience_s
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import usable
from slurm_pal.store.snapshot import Snapshot, known_class

NO_NODE = "no node would be left that could run it"


class Avoided(NamedTuple):
    """The nodes to keep a job off. `refused` says why it is not kept off them; "" where it may be."""

    bound: float  # GPUs slower than this are avoided, and those that were seen to fail
    nodes: tuple[str, ...] = ()  # none: no GPU that it may get is so slow
    slowest: float = MEDIAN_SLOWDOWN  # of the GPUs avoided, as far as measured
    failing: bool = False  # some of them were seen to fail
    lease_s: float = 0.0
    refused: str = ""


def avoided(
    request: Request, overview: Overview, snapshot: Snapshot, sensitivity: str, settings: Settings, bound: float,
    clearer: str,
) -> Avoided:  # fmt: skip
    """What to keep a job off. `clearer` says who takes the list back, "" for nobody. Raises nothing: doubts end in
    `refused`."""
    if request.leave or request.shape is None:
        return Avoided(bound, refused=request.leave or "it asks for no GPU")
    found = candidates(request, overview)
    if isinstance(found, str):
        return Avoided(bound, refused=found)
    if kinds := several_models(found, snapshot, request.shape.gpu_type):
        return Avoided(bound, refused=f"it may get several kinds of GPUs ({kinds}), which scores do not compare")
    slow: dict[str, float] = {}
    failing = False
    for node in (node for group in found for node in group.nodes if node.name not in request.req_nodes):
        worst, fails = _worst(node, snapshot, known_class(sensitivity), request.shape.gpu_type)
        if fails or worst > bound:
            slow[node.name] = worst
            failing |= fails
    if not slow:
        return Avoided(bound)
    slowest = max(slow.values())
    nodes = tuple(node.name for node in overview.nodes if node.name in slow)
    if not any(_enough(group, slow) for group in found):
        return Avoided(bound, nodes, slowest, failing, refused=NO_NODE)
    if request.soft_only or not clearer:
        return Avoided(bound, nodes, slowest, failing, refused=request.soft_only or NOBODY)
    defaults = (p.default_time_s for group in found for p in group.partitions if p.default_time_s)
    run_s = expected_run_s(request.time_limit_s or next(defaults, None), settings)
    pays_s = settings.lease_max_s if failing else patience_s(slowest, MEDIAN_SLOWDOWN, run_s)
    lease_s = max(settings.lease_pass_s, min(pays_s, settings.lease_max_s))
    return Avoided(bound, nodes, slowest, failing, lease_s)


def _worst(node: Node, snapshot: Snapshot, c: str, gpu_type: str) -> tuple[float, bool]:
    """The slowest GPU of a type on a node, and whether one of them was seen to fail; unmeasured ones are median."""
    worst, fails = 0.0, False
    for index, kind in enumerate(node.gpu_types):
        row = snapshot.row(node.name, index) if gpu_type in ("", kind) else None
        if row is not None:
            score = snapshot.gpu(row)
            worst = max(worst, round(score.slowdown.get(c, MEDIAN_SLOWDOWN), 4))
            fails |= score.state != OK
    return worst, fails


def _enough(group: Candidates, slow: dict[str, float]) -> bool:
    """Whether Slurm could give the job the other nodes of a group, once nothing runs there; else it would refuse it."""
    request = group.request
    shape = request.shape
    if shape is None:
        return False
    left = total = 0
    for node in group.nodes:
        mine = sum(shape.whole_nodes or shape.gpu_type in ("", kind) for kind in node.gpu_types)
        count = shape.per_node or min(mine, shape.total)
        if node.name in slow or not usable(node.states) or not count or mine < count:
            continue
        tasks = request.tasks_per_node or -(-request.tasks // (shape.nodes or -(-shape.total // count)))
        if could_hold([node], request, tasks, count):
            left, total = left + 1, total + count
    return left >= max(1, shape.nodes or request.nodes_min) and total >= shape.total


def without(request: Request, found: Avoided) -> Request:
    """The request as it is with the nodes excluded."""
    kept = tuple(name for name in found.nodes if name not in request.exc_nodes)
    return request._replace(exc_nodes=(*request.exc_nodes, *kept)) if not found.refused else request


def joined(decided: Decision, found: Avoided, request: Request) -> Decision:
    """The decision about the request `without` these nodes, as one about the user's own `request`.

    Beside a node list the exclusion stays for its own time (`avoid_s`); beside nothing, or another exclusion, it is
    what is done.
    """
    if found.refused or not found.nodes:
        return decided
    excluded = tuple(dict.fromkeys((*without(request, found).exc_nodes, *decided.excluded)))
    added = tuple(word for word in decided.added if not word.startswith("--exclude="))
    text = ",".join(excluded) if len(excluded) <= FOLD_ABOVE else fold(list(excluded))
    added = (*added, f"--exclude={text}")
    if decided.action == "nodelist":
        return decided._replace(added=added, excluded=excluded, avoid_s=found.lease_s)
    reason = f"kept off {fold(list(found.nodes))}, as its user wants: {said(found)}; {decided.reason}"
    return decided._replace(
        action="exclude",
        reason=reason,
        added=tuple(word for word in added if not word.startswith("--prefer=")),
        excluded=excluded,
        lease_s=max(decided.lease_s, found.lease_s),
        lease_why=f"{max(decided.lease_s, found.lease_s):.0f} s, which waiting can pay off",
    )


def said(found: Avoided) -> str:
    """What is avoided, in words."""
    text = f"GPUs there are slower than {found.bound:g} (the slowest {found.slowest:.3g})"
    return f"{text}, or were seen to fail" if found.failing else text
