# SPDX-License-Identifier: MIT
"""The three means of steering: a node list, an exclusion, a preference.

A node list and an exclusion are hard for Slurm, so both are leases: used only when
somebody will take them back, and for no longer than waiting can pay, which is
(slowdown elsewhere - slowdown here) x expected run time. A preference is soft.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_pal.base.hostlist import fold
from slurm_pal.base.numbers import faster
from slurm_pal.decide.candidates import could_hold
from slurm_pal.decide.case import Case, Decision
from slurm_pal.decide.offer import Offer, gpu_of
from slurm_pal.decide.scene import rows
from slurm_pal.placement.patience import MEDIAN_SLOWDOWN, WAIT_SHARE, hoped, patience_s
from slurm_pal.placement.plain import plain_pick
from slurm_pal.slurm.states import usable
from slurm_pal.store.snapshot import known_class

FOLD_ABOVE = 64
NOBODY = "there is neither a daemon nor --pal-watch to take a node list back"


def pin(case: Case, found: Decision, chosen: Offer) -> Decision:
    """Name the chosen nodes, also where plain Slurm would probably pick them: that is only a prediction."""
    request, scene = case.request, case.scene
    assert request.shape is not None
    # If others take these GPUs, plain Slurm would find the job a place elsewhere.
    others = rows(scene.view, [i for i in range(len(scene.view.names)) if i not in case.placed.nodes])
    there = plain_pick(others, scene.shape, case.rule)
    lease_s, why = _lease(case, there.product if there else MEDIAN_SLOWDOWN, chosen.product)
    pinned = (*request.req_nodes, *(name for name in chosen.nodes if name not in request.req_nodes))
    added = [f"--nodelist={_host_list(pinned)}"]
    if not request.nodes_stated:
        most = request.tasks if request.shape.per_node is not None else request.shape.total
        if request.nodes_max is None and most > 1:
            # Slurm may still spread the job when the list is taken back, as it could have without us.
            added += [f"--nodes=1-{most}", "--use-min-nodes"]
        else:
            added.append(f"--nodes={len(pinned)}")
    return found._replace(
        action="nodelist",
        reason=f"sent to {chosen.where()}: {_gain(chosen, found)}",
        added=tuple(added),
        pinned=pinned,
        lease_s=lease_s,
        lease_why=f"{why}, taken back by the {case.clearer}",
    )


def keep_off(case: Case, found: Decision, chosen: Offer) -> Decision:
    """Only barred GPUs are free: exclude their nodes for as long as waiting for others can pay."""
    bar, scene = case.rule.barred_slowdown, case.scene
    what = f"only GPUs slower than {bar:g} are free"
    view, count = scene.view, scene.shape.per_node or 1
    most = scene.shape.per_node or scene.shape.total  # GPUs that the job may be given on one node
    slow = [
        name
        for name, row in zip(view.names, view.slowdown, strict=True)
        if len(row) >= count and max(row if scene.shape.whole_nodes else row[:most]) > bar
    ]
    left = _holding(case, [name for name in scene.nodes if name not in slow and _may_do_better(case, name, count)])
    if len(left) < (scene.shape.nodes or 1):
        return found._replace(reason=f"left to Slurm: {what}, and no better ones will become free for this job")
    if not case.may_lease:
        why = case.request.soft_only or "there is neither a daemon nor --pal-watch to take an exclusion back"
        return found._replace(reason=f"left to Slurm: {what}, but {why}")
    median = hoped(scene.shape, chosen.locality, case.rule.locality_penalty)
    lease_s, why = _lease(case, chosen.product, median, WAIT_SHARE)
    excluded = (*case.request.exc_nodes, *slow)
    return found._replace(
        action="exclude",
        reason=f"kept off {','.join(slow)} while waiting for others can pay: {what}",
        added=(f"--exclude={_host_list(excluded)}",),
        excluded=excluded,
        lease_s=lease_s,
        lease_why=f"{why}, taken back by the {case.clearer}",
    )


def prefer(case: Case, found: Decision, chosen: Offer) -> Decision:
    """Where nobody takes a node list back: a preference for the class features that the site publishes."""
    why = case.request.soft_only or NOBODY
    if case.request.constraint:
        return found._replace(reason=f"left to Slurm: {why}, and --prefer does not combine with --constraint")
    prefix = f"pal_{known_class(case.rule.sensitivity)}_v"
    wanted: list[str] = []
    for name in chosen.nodes:
        features = sorted(f for f in case.scene.nodes[name].features if f.startswith(prefix))
        if not features:
            return found._replace(reason=f"left to Slurm: {why}, and {name} has no feature {prefix}<k> to prefer")
        wanted += features
    text = "|".join(dict.fromkeys(wanted))
    return found._replace(
        action="prefer", reason=f"preference for {chosen.where()}: {why}", added=(f"--prefer={text}",)
    )


def _lease(case: Case, elsewhere: float, here: float, share: float = 1.0) -> tuple[float, str]:
    """This share of the seconds that waiting can pay, and the sum in words; always at least one pass."""
    settings, limit_s = case.settings, case.limit_s
    run_s = limit_s * settings.expected_run_share if limit_s else settings.expected_run_s
    pays_s = share * patience_s(elsewhere, here, run_s)
    lease_s = max(settings.lease_pass_s, min(pays_s, settings.lease_max_s))
    part = "" if share == 1.0 else f"{share:g} x "
    words = f"{lease_s:.0f} s: {part}({elsewhere:.3f} - {here:.3f}) x {run_s:.0f} s expected run time"
    if lease_s != pays_s:
        words += ", at most submit.lease_max_s" if pays_s > lease_s else ", at least one scheduling pass"
    return lease_s, words


def _may_do_better(case: Case, name: str, count: int) -> bool:
    """Whether a node, once free, has `count` GPUs that are not barred."""
    node, shape, bar = case.scene.nodes[name], case.scene.shape, case.rule.barred_slowdown
    mine = [k for k, kind in enumerate(node.gpu_types) if shape.whole_nodes or shape.gpu_type in ("", kind)]
    fast = [k for k in mine if (gpu_of(case.snapshot, case.rule, name, k).slowdown or 1.0) <= bar]
    return usable(node.states) and len(fast) >= max(count, len(mine) if shape.whole_nodes else 0)


def _holding(case: Case, names: Sequence[str]) -> list[str]:
    """Those of the nodes with CPUs and memory for the job, once they are free: where none is left, Slurm refuses it."""
    request, shape = case.request, case.scene.shape
    tasks = request.tasks_per_node or -(-request.tasks // (shape.nodes or 1))
    nodes = [case.scene.nodes[name] for name in names]
    return [node.name for node in could_hold(nodes, request, tasks, shape.per_node or 1)]


def _host_list(names: Sequence[str]) -> str:
    """A host list for sbatch; folded only where it is long, since that costs an import."""
    return ",".join(names) if len(names) <= FOLD_ABOVE else fold(list(names))


def _gain(chosen: Offer, found: Decision) -> str:
    plain = found.plain
    here = f"predicted at {chosen.product:.3f} of a median GPU's time"
    if plain is None:
        return f"{here}; plain Slurm has no place for it now"
    if plain.slots == chosen.slots:
        return f"{here}; plain Slurm would probably pick the same GPUs"
    there = f"where plain Slurm would send it, {plain.where()} ({chosen.product:.3f} against {plain.product:.3f})"
    gain = f"predicted {faster(plain.product, chosen.product, there)}"
    return f"{gain}: {found.slower_why}" if found.slower_why else gain
