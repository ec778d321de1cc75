# SPDX-License-Identifier: MIT
"""The three means of steering: a node list, an exclusion, a preference.

A node list and an exclusion are hard for Slurm, so both are leases: used only when
somebody will take them back, and for no longer than waiting can pay, which is
(slowdown elsewhere - slowdown here) x expected run time. A preference is soft.
"""

from __future__ import annotations

from slurm_pal.base.faults import OK
from slurm_pal.base.hostlist import fold
from slurm_pal.base.light import Sequence
from slurm_pal.base.numbers import faster
from slurm_pal.decide.candidates import could_hold
from slurm_pal.decide.case import Case, Decision
from slurm_pal.decide.offer import Offer, gpu_of
from slurm_pal.decide.request import OURS_SOFT
from slurm_pal.decide.scene import rows
from slurm_pal.placement.faulty import worst_wanted
from slurm_pal.placement.patience import MEDIAN_SLOWDOWN, WAIT_SHARE, hoped, others_come, patience_s
from slurm_pal.placement.plain import plain_pick
from slurm_pal.slurm.client import Overview
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
    data_s = saving_s(case, chosen, found.plain)
    # On which leaves that would be is not known: of several nodes it is taken to be as near together.
    apart = there is not None and min(there.locality, chosen.locality) > 1.0
    elsewhere = there.slowdown * (chosen.locality if apart else there.locality) if there else MEDIAN_SLOWDOWN
    lease_s, why = _lease(case, elsewhere, chosen.product, data_s=data_s)
    pinned = (*request.req_nodes, *(name for name in chosen.nodes if name not in request.req_nodes))
    # Nothing beside the list: a number of nodes could not be taken back, and sbatch would accept what it refuses.
    return found._replace(
        action="nodelist",
        reason=f"sent to {chosen.where()}: {_gain(chosen, found)}{_near(case, chosen, found.plain)}",
        added=(f"--nodelist={_host_list(pinned)}",),
        pinned=pinned,
        lease_s=lease_s,
        lease_why=f"{why}, taken back by the {case.clearer}",
    )


def keep_off(case: Case, found: Decision, chosen: Offer) -> Decision:
    """Only barred or faulty GPUs are free: exclude their nodes for as long as waiting for others can pay."""
    scene, bar = case.scene, worst_wanted(case.rule.sensitivity, case.rule.barred_slowdown)
    what = f"only GPUs slower than {bar:g} are free"
    if chosen.faulty:
        what = f"of the free GPUs it could only get some that were seen to fail, {chosen.faulty}"
    view, shape = scene.view, scene.shape
    most = shape.per_node or shape.total  # of one node
    slow = [
        name
        for name, row in zip(view.names, view.slowdown, strict=True)
        if len(row) >= (shape.per_node or 1) and max(row if shape.whole_nodes else row[:most]) > bar
    ]
    heaviest = max(view.weight[row] for row in case.placed.nodes)
    if any(weight > heaviest and name not in slow for name, weight in zip(view.names, view.weight, strict=True)):
        # Off the others Slurm would start it on these at once.
        return found._replace(reason=f"left to Slurm: {what} but on nodes that the site keeps for later (Weight)")
    if case.wakes():
        return found._replace(reason=f"left to Slurm: {what}, and off them it would wake nodes that are powered down")
    left = {name: count for name in scene.nodes if name not in slow and (count := _better(case, name))}
    if not slow or len(left) < (shape.nodes or 1) or sum(left.values()) < shape.total:
        return found._replace(reason=f"left to Slurm: {what}, and no better ones will become free for this job")
    if not case.may_lease:
        why = case.request.soft_only or "there is neither a daemon nor --pal-watch to take an exclusion back"
        return found._replace(reason=f"left to Slurm: {what}, but {why}")
    median = hoped(shape, chosen.locality, case.rule.locality_penalty)
    there = case.placed.slowdown * chosen.locality
    pays_s = patience_s(there, median, case.run_s)
    # On faulty ones it would fail.
    if not chosen.faulty and not others_come(pays_s, sum(case.ends().get(name, 0.0) for name in left)):
        return found._replace(reason=f"left to Slurm: {what}, and better ones become free too rarely to wait for them")
    lease_s, why = _lease(case, there, median, WAIT_SHARE)
    excluded = (*case.request.exc_nodes, *slow)
    return found._replace(
        action="exclude",
        reason=f"kept off {','.join(slow)} while waiting for others can pay: {what}",
        added=(f"--exclude={_host_list(excluded)}",),
        excluded=excluded,
        lease_s=lease_s,
        lease_why=f"{why}, taken back by the {case.clearer}",
    )


def published(overview: Overview) -> bool:
    """Whether the site publishes class features, so that a job can be steered by a preference."""
    return any(name.startswith(OURS_SOFT) for node in overview.nodes for name in node.features)


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


def saving_s(case: Case, chosen: Offer, plain: Offer | None) -> float:
    """By how much sooner the job's input is on the chosen nodes than where plain Slurm would send the job, s."""
    if case.data is None or plain is None:
        return 0.0
    return max(0.0, case.data.seconds(plain.nodes) - case.data.seconds(chosen.nodes))


def _near(case: Case, chosen: Offer, plain: Offer | None) -> str:
    """What is to be said of the job's input there; "" for nothing."""
    saved_s = saving_s(case, chosen, plain)
    return f"; its input is there {saved_s:.0f} s sooner" if saved_s >= 1.0 else ""


def _lease(
    case: Case, elsewhere: float, here: float, share: float = 1.0, data_s: float = 0.0
) -> tuple[float, str]:  # fmt: skip
    """This share of the seconds that waiting can pay, and the sum in words; always at least one pass."""
    settings, run_s = case.settings, case.run_s
    pays_s = share * patience_s(elsewhere, here, run_s) + data_s
    lease_s = max(settings.lease_pass_s, min(pays_s, settings.lease_max_s))
    part = "" if share == 1.0 else f"{share:g} x "
    words = f"{lease_s:.0f} s: {part}({elsewhere:.3f} - {here:.3f}) x {run_s:.0f} s expected run time"
    words += f" and {data_s:.0f} s for its input" if data_s else ""
    if lease_s != pays_s:
        words += ", at most submit.lease_max_s" if pays_s > lease_s else ", at least one scheduling pass"
    return lease_s, words


def _better(case: Case, name: str) -> int:
    """How many GPUs, neither barred nor faulty, a node, once free, can give to the job, with CPUs and memory."""
    node, shape = case.scene.nodes[name], case.scene.shape
    bar = worst_wanted(case.rule.sensitivity, case.rule.barred_slowdown)
    mine = [k for k, kind in enumerate(node.gpu_types) if shape.whole_nodes or shape.gpu_type in ("", kind)]
    known = {k: gpu_of(case.snapshot, case.rule, name, k) for k in mine}
    fast = [k for k, gpu in known.items() if gpu.state == OK and (gpu.slowdown or 1.0) <= bar]
    count = shape.per_node or min(len(fast), shape.total)
    if not usable(node.states) or not count or len(fast) < max(count, len(mine) if shape.whole_nodes else 0):
        return 0
    request = case.scene.candidates.request
    nodes = shape.nodes or -(-shape.total // count)
    tasks = request.tasks_per_node or -(-request.tasks // nodes)
    return count if could_hold([node], request, tasks, count) else 0


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
    if plain.faulty and not chosen.faulty:
        return f"{here}; plain Slurm would probably pick some that were seen to fail, {plain.faulty}"
    there = f"where plain Slurm would send it, {plain.where()} ({chosen.product:.3f} against {plain.product:.3f})"
    gain = f"predicted {faster(plain.product, chosen.product, there)}"
    return f"{gain}: {found.slower_why}" if found.slower_why else gain
