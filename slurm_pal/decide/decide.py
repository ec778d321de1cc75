# SPDX-License-Identifier: MIT
"""Decide where a submission should go: a pure function of the request and what is known."""

from __future__ import annotations

import math

from slurm_pal.base.faults import OK
from slurm_pal.base.jobs import GpuShape
from slurm_pal.base.light import Callable, Mapping
from slurm_pal.decide import means
from slurm_pal.decide.candidates import Candidates, candidates, several_models, sleeping
from slurm_pal.decide.case import Case, Decision, Settings, ends_per_s
from slurm_pal.decide.near import Near, nearer
from slurm_pal.decide.network import leaves, on_network, refusal, together, unshared
from slurm_pal.decide.offer import Offer, doubts, gpu_of, offer_of
from slurm_pal.decide.request import Request
from slurm_pal.decide.scene import Scene, rows, scenes
from slurm_pal.placement import BLIND, CLASS_FIT, place
from slurm_pal.placement.class_fit import INSENSITIVE
from slurm_pal.placement.faulty import is_faulty, worst_wanted
from slurm_pal.placement.patience import hoped
from slurm_pal.placement.plain import plain_pick
from slurm_pal.placement.view import Placement, Rule, View, alike
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.topology import BLOCK, Topology
from slurm_pal.store.snapshot import Snapshot

QUEUES = "left to Slurm: no suitable GPUs are free now, and a node list could only delay a job that queues"
NETWORK = "left to Slurm: how near together it can be on this network is Slurm's to find out"
EQUAL = "left to Slurm: the free GPUs are equally fast for it"
ALTERNATIVES = 3


def decide(
    request: Request,
    overview: Overview,
    snapshot: Snapshot,
    sensitivity: str,
    settings: Settings,
    clearer: str,
    now_s: float,
    alternatives: int = ALTERNATIVES,
    measured: bool = False,
    ends: Callable[[], Mapping[str, float]] | None = None,
    data: Near | None = None,
) -> Decision:
    """Choose for one request. `measured` says that the class was measured, not stated or guessed.

    `data` says which nodes have the job's input: of placements that are alike, the nearest one is taken.
    `ends` gives `ends_per_s` of the cluster's jobs, where one in the overview stands for what several hold.

    `clearer` says who will take leases back ("daemon", "watcher", "" for nobody). Up to
    `alternatives` more offers are reported; they have no part in the choice.
    Raises UsageError for an unknown policy.
    """
    if request.leave:
        return Decision("none", f"left to Slurm: {request.leave}")
    if request.shape is None:
        return Decision("none", "left to Slurm: the job asks for no GPU")
    found = candidates(request, overview)
    if isinstance(found, str):
        return Decision("none", f"left to Slurm: {found}")
    if not request.asks_gpus and not all(node.n_gpus for group in found for node in group.nodes):
        return Decision("none", "left to Slurm: the job asks for no GPU")
    if why := refusal(request, overview.network):
        return Decision("none", f"left to Slurm: {why}")
    if overview.network.kind == BLOCK:
        found = [_unshared(request, group, overview) for group in found]
    if kinds := several_models(found, snapshot, request.shape.gpu_type):
        return Decision(
            "none", f"left to Slurm: the job may get several kinds of GPUs ({kinds}), which scores do not compare"
        )
    rule = Rule(
        sensitivity, settings.locality_penalty, settings.barred_slowdown, int(now_s), measured, settings.farther
    )  # fmt: skip
    best: tuple[float, Scene, Placement] | None = None
    for group in found:
        for scene in scenes(overview, snapshot, sensitivity, group):
            placed = in_order(settings.policy, scene.view, scene.shape, rule)
            if placed is not None:
                if best is None or placed.product < best[0]:
                    best = (placed.product, scene, placed)
                if not is_faulty(placed.slowdown):
                    break
    if best is None:
        return Decision("none", QUEUES)
    if request.nodes_max is None and 1 < request.tasks < len(best[2].nodes):
        return Decision("none", "left to Slurm: the GPUs that suit it now are on more nodes than it has tasks")
    ends = ends or (lambda: ends_per_s(overview.jobs, settings))
    scene, placed = best[1:]
    if len(placed.nodes) > 1 and not on_network(overview.network, scene.candidates.partitions):
        return Decision("none", f"{NETWORK}: its partition has a network of its own")
    named = overview.network if not scene.fixed else Topology()
    near = together(
        scene.view, placed, scene.shape, named, rule, lambda view: in_order(settings.policy, view, scene.shape, rule),
        request.segment,
    )  # fmt: skip
    if near is None:
        return Decision("none", NETWORK)
    placed = near
    count = leaves(named, [scene.view.names[i] for i in placed.nodes])
    if request.switches and count > request.switches:
        why = f"left to Slurm: what is free now is on {count} switches, and --switches is {request.switches}"
        return Decision("none", why)
    if data is not None and (len(placed.nodes) == 1 or not overview.network.switches):
        placed = nearer(
            scene.view, placed, data, rule, lambda view: in_order(settings.policy, view, scene.shape, rule)
        )  # fmt: skip

    def wakes() -> bool:
        return sleeping(overview, [partition.name for partition in scene.candidates.partitions])

    return _judge(Case(request, snapshot, settings, rule, clearer, scene, placed, ends, data, wakes), alternatives)


def _unshared(request: Request, group: Candidates, overview: Overview) -> Candidates:
    """Without the nodes of blocks where others run, for a job that shares none."""
    if not (request.own_blocks or any(partition.own_blocks for partition in group.partitions)):
        return group
    alone = unshared(overview.nodes, overview.network) if on_network(overview.network, group.partitions) else ()
    return group._replace(nodes=tuple(node for node in group.nodes if node.name in alone))


def in_order(policy: str, view: View, shape: GpuShape, rule: Rule) -> Placement | None:
    """The rule's choice in the site's order: nodes of a higher weight only where the others cannot take the job, or
    where plain Slurm would go to them, too, and the others would be slower."""
    weights = sorted(set(view.weight))
    if len(weights) < 2:
        return place(policy, view, shape, rule)
    plain = plain_pick(view, shape, rule) if policy == CLASS_FIT else None
    bound = max(plain.product, rule.barred_slowdown * plain.locality) if plain is not None else math.inf
    placed = None
    for most in weights:
        kept = [row for row, weight in enumerate(view.weight) if weight <= most]
        found = place(policy, rows(view, kept), shape, rule)
        if found is not None:
            placed = found._replace(nodes=tuple(kept[row] for row in found.nodes))
            if placed.product <= bound:
                break
    return placed


def _judge(case: Case, alternatives: int) -> Decision:
    """The means, if any, that brings the job to the GPUs chosen for it."""
    scene, rule = case.scene, case.rule
    chosen = offer_of(scene, case.snapshot, rule, case.placed)
    plain_placed = plain_pick(scene.view, scene.shape, rule)
    plain = offer_of(scene, case.snapshot, rule, plain_placed) if plain_placed else None
    if plain is not None and 1.0 < chosen.locality < plain.locality:
        plain = plain._replace(locality=chosen.locality)  # Slurm goes by the network, too, and plain_pick does not
    others = _others(case, alternatives)
    unknown, why = doubts(scene, chosen), _slower_why(case, chosen, plain)
    stage_in_s = case.data.seconds(chosen.nodes) if case.data else 0.0
    found = Decision(
        "none", "", chosen=chosen, plain=plain, alternatives=others, unknown=unknown, slower_why=why,
        stage_in_s=stage_in_s,
    )  # fmt: skip
    by_data = case.data is not None and means.saving_s(case, chosen, plain) > 0
    if not _scored(case) and not by_data:
        return found._replace(reason="left to Slurm: no GPU that is free now has a score")
    # Once a list is taken back, Slurm picks: rather start on a slow GPU than wait and then get a faulty one.
    spared = plain is not None and bool(plain.faulty) and not chosen.faulty and case.may_name
    unwanted = case.placed.slowdown > worst_wanted(rule.sensitivity, rule.barred_slowdown)
    median = hoped(scene.shape, chosen.locality, rule.locality_penalty)
    if unwanted and case.placed.slowdown * chosen.locality > median and not spared:
        return means.keep_off(case, found, chosen)
    if len(scene.view.names) == len(case.placed.nodes):
        return found._replace(reason="left to Slurm: no other free GPUs suit the job's request")
    if (
        plain is not None
        and chosen.locality >= plain.locality
        and no_choice(case.settings.policy, scene.view)
        and (not by_data)
    ):
        return found._replace(reason=EQUAL)
    if case.may_name:
        return means.pin(case, found, chosen)
    if case.request.req_nodes:
        return found._replace(reason="left to Slurm: the user's own --nodelist names some of the nodes")
    if plain is not None and plain.slots == chosen.slots:
        return found._replace(reason="left to Slurm: it would probably pick the same GPUs")
    return means.prefer(case, found, chosen)


def no_choice(policy: str, view: View) -> bool:
    """Whether a rule that goes by scores has nothing to choose by among these GPUs. What it would name all the same
    could only keep Slurm from starting the job elsewhere."""
    return policy not in BLIND and alike(view)


def _slower_why(case: Case, chosen: Offer, plain: Offer | None) -> str:
    """Why the choice is slower than plain Slurm's, "" where it is not."""
    rule, policy = case.rule, case.settings.policy
    if plain is None or chosen.product <= plain.product:
        return ""
    if plain.faulty and not chosen.faulty:
        return f"some of those were seen to fail, {plain.faulty}"
    if policy != CLASS_FIT:
        return f"the placement rule {policy} prefers them"
    for_whom = "faster ones stay free for" if rule.sensitivity in INSENSITIVE else "other nodes stay whole for"
    return f"GPUs up to {rule.barred_slowdown:g} count as alike, and {for_whom} jobs that need them"


def _scored(case: Case) -> bool:
    """Whether anything is known of any GPU that is free now: a score, or a fault."""
    view = case.scene.view
    known = (
        gpu_of(case.snapshot, case.rule, name, index)
        for name, free in zip(view.names, view.free, strict=True)
        for index in free
    )
    return any(gpu.slowdown is not None or gpu.state != OK for gpu in known)


def _others(case: Case, count: int) -> tuple[Offer, ...]:
    """The next best: what the policy takes when the nodes chosen before are not there."""
    offers: list[Offer] = []
    gone = set(case.placed.nodes)
    while len(offers) < count:
        kept = [i for i in range(len(case.scene.view.names)) if i not in gone]
        scene = case.scene._replace(view=rows(case.scene.view, kept))
        again = in_order(case.settings.policy, scene.view, scene.shape, case.rule)
        if again is None:
            break
        offers.append(offer_of(scene, case.snapshot, case.rule, again))
        gone |= {kept[i] for i in again.nodes}
    return tuple(offers)
