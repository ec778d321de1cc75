"""Decide where a submission should go: a pure function of the request and what is known.

A node list and an exclusion are hard for Slurm, so both are leases: used only when
somebody will take them back, and for no longer than waiting can pay, which is
(slowdown elsewhere - slowdown here) x expected run time. Without a clearer only
`--prefer` remains, and only where the site publishes class features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.hostlist import fold
from slurm_pal.placement import place
from slurm_pal.placement.class_fit import INSENSITIVE
from slurm_pal.placement.plain import plain_pick
from slurm_pal.placement.view import Placement, Rule
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import usable
from slurm_pal.store.snapshot import Snapshot, known_class
from slurm_pal.submit.candidates import fields
from slurm_pal.submit.request import Request
from slurm_pal.submit.scene import Scene, rows, scenes

MEDIAN_SLOWDOWN = 1.0
FOLD_ABOVE = 64
QUEUES = "left to Slurm: the GPUs are not free now, so the job queues, and a node list could only delay it"


class Settings(NamedTuple):
    """The part of the configuration that decides (docs/settings.md)."""

    policy: str = "class-fit"
    locality_penalty: float = 1.7
    barred_slowdown: float = 1.1
    lease_max_s: float = 600.0
    lease_pass_s: float = 3.0
    expected_run_share: float = 0.5
    expected_run_s: float = 3600.0


class Gpu(NamedTuple):
    """One GPU of an offer. `slowdown` is None and `variability_class` "?" where it was never measured."""

    node: str
    gpu: int  # Slurm's index
    slowdown: float | None
    variability_class: str
    measured_s: float  # Unix seconds, 0.0: never
    flags: tuple[str, ...]


class Offer(NamedTuple):
    """GPUs a job could be given now, and the predicted time factors."""

    gpus: tuple[Gpu, ...]
    slowdown: float
    locality: float

    @property
    def product(self) -> float:
        return self.slowdown * self.locality

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(gpu.node for gpu in self.gpus))


class Decision(NamedTuple):
    """What palsub adds to the command line, and everything `pal explain` tells about it."""

    action: str  # nodelist | exclude | prefer | none
    reason: str  # one sentence
    added: tuple[str, ...] = ()  # words for sbatch
    pinned: tuple[str, ...] = ()  # the whole --nodelist, the user's names included
    excluded: tuple[str, ...] = ()  # the whole --exclude, the user's names included
    chosen: Offer | None = None
    alternatives: tuple[Offer, ...] = ()
    plain: Offer | None = None
    unknown: tuple[str, ...] = ()
    lease_s: float = 0.0
    lease_why: str = ""


def decide(
    request: Request,
    overview: Overview,
    snapshot: Snapshot,
    sensitivity: str,
    settings: Settings,
    clearer: str,
    now_s: float,
    alternatives: int = 3,
) -> Decision:
    """Choose for one request.

    `clearer` says who will take leases back ("daemon", "watcher", "" for nobody).
    Raises UsageError for an unknown policy.
    """
    if request.leave:
        return Decision("none", f"left to Slurm: {request.leave}")
    if request.shape is None:
        return Decision("none", "left to Slurm: the job asks for no GPU")
    found = fields(request, overview)
    if isinstance(found, str):
        return Decision("none", f"left to Slurm: {found}")
    if not request.asks_gpus and not all(node.n_gpus for field in found for node in field.nodes):
        return Decision("none", "left to Slurm: the job asks for no GPU")
    rule = Rule(sensitivity, settings.locality_penalty, settings.barred_slowdown, int(now_s))
    best: tuple[float, Scene, Placement] | None = None
    for field in found:
        for scene in scenes(request, overview, snapshot, sensitivity, field):
            placed = place(settings.policy, scene.view, scene.shape, rule)
            if placed is not None:
                if best is None or placed.product < best[0]:
                    best = (placed.product, scene, placed)
                break
    if best is None:
        return Decision("none", QUEUES)
    _, scene, placed = best
    return _judge(request, snapshot, settings, rule, clearer, scene, placed, alternatives)


def _judge(
    request: Request,
    snapshot: Snapshot,
    settings: Settings,
    rule: Rule,
    clearer: str,
    scene: Scene,
    placed: Placement,
    alternatives: int,
) -> Decision:
    chosen = _offer(scene, snapshot, rule, placed)
    plain_placed = plain_pick(scene.view, scene.shape, rule)
    plain = _offer(scene, snapshot, rule, plain_placed) if plain_placed else None
    told = Decision(
        "none",
        "",
        chosen=chosen,
        plain=plain,
        alternatives=_others(scene, snapshot, settings, rule, placed, alternatives),
        unknown=_unknown(scene, chosen),
    )
    if not _scored(scene, snapshot, rule):
        return told._replace(reason="left to Slurm: no GPU that is free now has a score")
    barred = rule.sensitivity not in INSENSITIVE and chosen.slowdown > rule.barred_slowdown
    if barred:
        return _keep_off(request, snapshot, settings, rule, clearer, scene, told)
    if len(scene.view.names) == len(placed.nodes):
        return told._replace(reason="as it is: no other GPUs that are free suit the job's request")
    if clearer and not request.soft_only:
        return _pin(request, settings, rule, clearer, scene, placed, told)
    if _same_gpus(plain, chosen):
        return told._replace(reason="as it is: plain Slurm would probably pick the same GPUs")
    return _prefer(request, rule, clearer, scene, told)


def _same_gpus(one: Offer | None, other: Offer) -> bool:
    return one is not None and [gpu[:2] for gpu in one.gpus] == [gpu[:2] for gpu in other.gpus]


def _pin(
    request: Request, settings: Settings, rule: Rule, clearer: str, scene: Scene, placed: Placement, told: Decision
) -> Decision:
    """Name the chosen nodes, also where plain Slurm would probably pick them: that is only a prediction."""
    assert told.chosen is not None and request.shape is not None
    # Should somebody else take these GPUs, plain Slurm would find the job a place among the others.
    others = rows(scene.view, [i for i in range(len(scene.view.names)) if i not in placed.nodes])
    there = plain_pick(others, scene.shape, rule)
    elsewhere = there.product if there else MEDIAN_SLOWDOWN
    lease_s, why = _lease(request, settings, scene, elsewhere, told.chosen.product)
    pinned = (*request.req_nodes, *(name for name in told.chosen.nodes if name not in request.req_nodes))
    added = [f"--nodelist={_list(pinned)}"]
    if not request.nodes_stated:
        most = request.tasks if request.shape.per_node is not None else request.shape.total
        if request.nodes_max is None and most > 1:
            # Slurm may still spread the job when the list is taken back, as it might have without us.
            added += [f"--nodes=1-{most}", "--use-min-nodes"]
        else:
            added.append(f"--nodes={len(pinned)}")
    return told._replace(
        action="nodelist",
        reason=f"{_where(told.chosen)} {_gain(told)}",
        added=tuple(added),
        pinned=pinned,
        lease_s=lease_s,
        lease_why=f"{why}, taken back by the {clearer}",
    )


def _keep_off(
    request: Request,
    snapshot: Snapshot,
    settings: Settings,
    rule: Rule,
    clearer: str,
    scene: Scene,
    told: Decision,
) -> Decision:
    """Only barred GPUs are free: exclude their nodes for as long as waiting for others can pay."""
    assert told.chosen is not None
    what = f"only GPUs slower than {rule.barred_slowdown:g} are free"
    view, count = scene.view, scene.shape.per_node or 1
    slow = [
        name
        for name, row in zip(view.names, view.slowdown, strict=True)
        if len(row) >= count and max(row if scene.shape.whole_nodes else row[:count]) > rule.barred_slowdown
    ]
    left = [n for n in scene.nodes if n not in slow and _may_do_better(scene, snapshot, rule, n, count)]
    if len(left) < (scene.shape.nodes or 1):
        return told._replace(reason=f"as it is: {what}, and no better ones will become free for this job")
    if not clearer or request.soft_only:
        why = request.soft_only or "nobody would take an exclusion back"
        return told._replace(reason=f"as it is: {what}, but {why}")
    lease_s, why = _lease(request, settings, scene, told.chosen.product, MEDIAN_SLOWDOWN * told.chosen.locality)
    excluded = (*request.exc_nodes, *slow)
    return told._replace(
        action="exclude",
        reason=f"{what}: kept off {','.join(slow)} while waiting for others can pay",
        added=(f"--exclude={_list(excluded)}",),
        excluded=excluded,
        lease_s=lease_s,
        lease_why=f"{why}, taken back by the {clearer}",
    )


def _prefer(request: Request, rule: Rule, clearer: str, scene: Scene, told: Decision) -> Decision:
    """Nobody takes a node list back: ask softly, by the class features that the site publishes."""
    assert told.chosen is not None
    why = request.soft_only or "nobody would take a node list back (no daemon, no --pal-watch)"
    if request.constraint:
        return told._replace(reason=f"as it is: {why}, and --prefer does not combine with --constraint")
    prefix = f"pal_{known_class(rule.sensitivity)}_v"
    wanted: list[str] = []
    for name in told.chosen.nodes:
        features = sorted(f for f in scene.nodes[name].features if f.startswith(prefix))
        if not features:
            return told._replace(reason=f"as it is: {why}, and {name} has no feature {prefix}<k> to prefer")
        wanted += features
    text = "|".join(dict.fromkeys(wanted))
    return told._replace(
        action="prefer", reason=f"{_where(told.chosen)} preferred softly: {why}", added=(f"--prefer={text}",)
    )


def _lease(request: Request, settings: Settings, scene: Scene, elsewhere: float, here: float) -> tuple[float, str]:
    """Seconds that waiting can pay, and the sum in words. One scheduling pass is always granted."""
    limit = request.time_limit_s or next((p.default_time_s for p in scene.field.partitions if p.default_time_s), None)
    run_s = limit * settings.expected_run_share if limit else settings.expected_run_s
    pays_s = max(0.0, elsewhere - here) * run_s
    lease_s = max(settings.lease_pass_s, min(pays_s, settings.lease_max_s))
    words = f"{lease_s:.0f} s: ({elsewhere:.3f} - {here:.3f}) x {run_s:.0f} s expected run time"
    if lease_s != pays_s:
        words += ", at most submit.lease_max_s" if pays_s > lease_s else ", at least one scheduling pass"
    return lease_s, words


def _offer(scene: Scene, snapshot: Snapshot, rule: Rule, placed: Placement) -> Offer:
    gpus: list[Gpu] = []
    for node, indexes in zip(placed.nodes, placed.gpus, strict=True):
        gpus += [_gpu(snapshot, rule, scene.view.names[node], index) for index in indexes]
    several = len(placed.nodes) + len(scene.fixed) > 1
    return Offer(tuple(gpus), placed.slowdown, rule.locality_penalty if several else 1.0)


def _gpu(snapshot: Snapshot, rule: Rule, node: str, index: int) -> Gpu:
    row = snapshot.row(node, index)
    if row is None:
        return Gpu(node, index, None, "?", 0.0, ("unknown",))
    score, known = snapshot.gpu(row), known_class(rule.sensitivity)
    return Gpu(node, index, score.slowdown.get(known), score.variability_class[known], score.measured_s, score.flags)


def _scored(scene: Scene, snapshot: Snapshot, rule: Rule) -> bool:
    """Whether any GPU that is free now has a score."""
    return any(
        _gpu(snapshot, rule, name, index).slowdown is not None
        for name, free in zip(scene.view.names, scene.view.free, strict=True)
        for index in free
    )


def _may_do_better(scene: Scene, snapshot: Snapshot, rule: Rule, name: str, count: int) -> bool:
    """Whether a node, once free, could hold `count` GPUs that are not barred."""
    node = scene.nodes[name]
    fast = [k for k in range(node.n_gpus) if (_gpu(snapshot, rule, name, k).slowdown or 1.0) <= rule.barred_slowdown]
    return usable(node.states) and len(fast) >= (node.n_gpus if scene.shape.whole_nodes else count)


def _others(
    scene: Scene, snapshot: Snapshot, settings: Settings, rule: Rule, placed: Placement, count: int
) -> tuple[Offer, ...]:
    """The next best: what the policy takes when the nodes chosen before are not there."""
    offers: list[Offer] = []
    gone = set(placed.nodes)
    names = list(range(len(scene.view.names)))
    while len(offers) < count:
        kept = [i for i in names if i not in gone]
        view = rows(scene.view, kept)
        again = place(settings.policy, view, scene.shape, rule)
        if again is None:
            break
        offers.append(_offer(scene._replace(view=view), snapshot, rule, again))
        gone |= {kept[i] for i in again.nodes}
    return tuple(offers)


def _unknown(scene: Scene, chosen: Offer) -> tuple[str, ...]:
    said: list[str] = []
    never = [f"{gpu.node}:{gpu.gpu}" for gpu in chosen.gpus if gpu.slowdown is None]
    if never:
        said.append(f"never measured, counted as median: {','.join(never)}")
    stale = [f"{gpu.node}:{gpu.gpu}" for gpu in chosen.gpus if "stale" in gpu.flags]
    if stale:
        said.append(f"measured long ago, shrunk towards the median: {','.join(stale)}")
    if scene.fixed:
        said.append(f"the user's own nodes {','.join(scene.fixed)} were taken as they are")
    return tuple(said)


def _list(names: Sequence[str]) -> str:
    """A host list for sbatch; folded only where it is long, since that costs an import."""
    return ",".join(names) if len(names) <= FOLD_ABOVE else fold(list(names))


def _where(offer: Offer) -> str:
    return " ".join(f"{node}:{','.join(str(g.gpu) for g in offer.gpus if g.node == node)}" for node in offer.nodes)


def _gain(told: Decision) -> str:
    assert told.chosen is not None
    here = f"predicted at {told.chosen.product:.3f} of a median GPU's time"
    if told.plain is None:
        return f"{here}; plain Slurm has no place for it now"
    if _same_gpus(told.plain, told.chosen):
        return f"{here}, as plain Slurm would probably pick too"
    there = f"{here}; plain Slurm would pick {_where(told.plain)} at {told.plain.product:.3f}"
    if told.chosen.product > told.plain.product:
        return f"{there}, and this choice keeps nodes whole or fast GPUs for jobs that need them"
    return there
