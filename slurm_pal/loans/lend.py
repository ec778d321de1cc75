# SPDX-License-Identifier: MIT
"""Which nodes of owners are open to guests, and which guests leave for it: the loan part of one tick. Pure.

Whole nodes are lent. An order says every `interval_s` how many may be open (`allocation.demand`): opened are idle ones
that Slurm would give to owners last, closed are those that cost guests least (`allocation.reclaim`). Between two
orders nodes are only closed: those where an owner's job has started, and as many as owners' jobs wait for. Guests are
taken off closed nodes for what owners wait for and for the headroom, not for what they are expected to need.

Closed means: not in the node list of the guests' partition. Guests that run there run on until their node is to be
given back, and Slurm's own preemption reaches them at any time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from slurm_pal.allocation.demand import DemandSample, loan_order, predicted_nodes
from slurm_pal.allocation.reclaim import Guest, Reclaim, reclaim
from slurm_pal.base import marks
from slurm_pal.base.cluster import Node
from slurm_pal.base.hostlist import expand, fold
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.constraint import compile_constraint
from slurm_pal.decide.facts import MoveSettings, facts_of
from slurm_pal.decide.job_request import request_of
from slurm_pal.decide.lease import EXCLUDED, REQUIRED
from slurm_pal.decide.lease_marks import in_force
from slurm_pal.journal.journal import LoanList, LoanOrder
from slurm_pal.loans.terms import LoanTerms
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import HELD_BACK, JOB_ACTIVE, usable

ENDS_AFTER = 3.0
"""A list that no tick renews ends after so many intervals."""
DEAR = 1e12
"""GPU s of a guest that we do not stop: its node goes back last, since nothing becomes free by that."""
SLURMS_S = 30.0
"""A job of an owner that came later is Slurm's to start, by its own preemption if need be (KillWait)."""


class LoanMemory(NamedTuple):
    """What earlier ticks left."""

    listed: LoanList | None = None
    order_s: float = 0.0  # of the last order, Unix s; 0.0: never
    demand: Mapping[int, float] = {}  # hour (Unix time / 3600 s) -> the most nodes that owners needed in it
    leaving: frozenset[int] = frozenset()  # jobs that are being moved or requeued
    own_req: Mapping[int, str] = {}  # job -> the nodes that its user requires, where a lease of the tick names others


class Leaver(NamedTuple):
    """A guest that leaves."""

    job: SlurmJob
    checkpoint: bool  # it is asked for one first
    lost_s: float  # work of its own that it loses, without the restart
    cost: float  # with it, GPU-seconds
    ran_s: float = 0.0  # of the present run


class Lent(NamedTuple):
    """What one tick decided about the nodes of owners."""

    guest: str = ""
    own: tuple[str, ...] = ()  # nodes of the guests' partition as the site wrote them
    nodes: tuple[str, ...] = ()  # that it is to have
    opened: tuple[str, ...] = ()  # the owners' nodes among them
    present: tuple[str, ...] = ()  # that it has now
    order: LoanOrder | None = None  # where one is due, or nodes are closed
    leavers: tuple[Leaver, ...] = ()
    released: tuple[SlurmJob, ...] = ()  # flexible workers that leave: nobody is preempted by that
    needed: int = 0  # nodes that owners use and wait for
    total: int = 0  # usable nodes of owners
    used: int = 0  # by jobs of theirs
    predicted: float | None = None  # nodes that they will need until the next order; None: nothing is known
    staying: tuple[tuple[int, str], ...] = ()  # guests on nodes that go back which we do not stop: (job, why)
    unheld: tuple[int, ...] = ()  # jobs that Slurm holds since no node was left that they fit, and that some fit now
    trouble: tuple[str, ...] = ()

    @property
    def told(self) -> dict[str, object]:
        """All of it with jobs by their ids, as JSON can hold it."""
        leavers = [{**one._asdict(), "job": one.job.job_id} for one in self.leavers]
        return {**self._asdict(), "leavers": leavers, "released": [job.job_id for job in self.released]}

    @property
    def changed(self) -> bool:
        """Whether the partition has other nodes than it is to have."""
        return {*self.present} != {*self.nodes}


class _Site(NamedTuple):
    """Nodes and jobs, sorted."""

    own: tuple[str, ...]  # nodes of the guests' partition as the site wrote them
    theirs: frozenset[str]  # nodes of owners
    owned: tuple[str, ...]  # the usable ones, in Slurm's order
    used: frozenset[str]  # those of them that run jobs of owners
    waiting: int  # nodes that more of their jobs wait for
    opened: tuple[str, ...]  # nodes of owners that are open and not used by them
    guests: tuple[SlurmJob, ...]  # that run
    queued: tuple[SlurmJob, ...]  # that wait for nodes, or that Slurm holds since none fits; guests that run by name
    sheltered: bool = False  # new guests that no listed node fits wait in another partition as well


def lend(overview: Overview, terms: LoanTerms, known: LoanMemory, moving: MoveSettings, now_s: float) -> Lent:
    """Decide. The partitions of `terms` must be there (`terms.refused`). Pure."""
    site = _site(overview, terms, known, now_s)
    present = next(p.nodes for p in overview.partitions if p.name == terms.guest)
    total, used = len(site.owned), len(site.used)
    until_s = now_s + terms.interval_s + terms.grace_s
    samples = [DemandSample(hour * terms.hour_s, nodes) for hour, nodes in known.demand.items()]
    predicted = predicted_nodes(samples, now_s, until_s, quantile=terms.quantile, hour_s=terms.hour_s)
    if predicted is None:  # nothing is known yet, so nothing is changed
        return Lent(
            terms.guest, site.own, present, site.opened, present, needed=used + site.waiting, total=total, used=used,
        )  # fmt: skip
    allowed = loan_order(total, used, site.waiting, predicted, terms.headroom)
    # slurmctld has read slurm.conf anew, somebody has set a list of their own, or a tick was killed before its order.
    undone = known.listed is not None and {*present} != {*expand(known.listed.ours)}
    due = undone or not 0 <= now_s - known.order_s < terms.interval_s
    opened, given, why = set(site.opened), None, ""
    guests = _guests(site, known, moving, terms, now_s)
    # A guest on a closed node keeps it from its owner as one on an open node does.
    taken = [name for name in _taken(site, guests) if name not in opened]
    excess = len(opened) + len(taken) - allowed
    if excess > 0 and (due or site.waiting):
        loaned = [name for name in site.owned if name in opened or name in taken]
        ones = [guest for guest, _ in guests.values()]
        stay = {name for name in loaned if not site.waiting or name in _fresh(site, terms, now_s)}
        closed = _given(site, overview.nodes, opened, loaned, ones, excess, stay).nodes
        opened -= {*closed}
        given = reclaim(closed, ones, _to_empty(site, ones, closed, total - loan_order(total, 0, 0, 0, terms.headroom)))
        why = f"owners wait for {site.waiting}" if site.waiting and not due else "owners need more"
    elif due and excess <= 0:
        more = _next(site, overview.nodes, opened, taken, -excess)
        opened |= {*more}
        why = "owners need less" if more else ""
    opened |= {*_listed_all_the_same(site, overview.nodes, opened)}
    nodes = tuple(name for name in site.own if name in opened or name not in site.theirs)
    ordered = due or given is not None
    order = LoanOrder(
        terms.guest, now_s, due, total, used, site.waiting, predicted, allowed, fold(_sorted(opened, site.owned)),
        why or "as before",
    )  # fmt: skip
    gone = {} if given is None else guests
    leavers = [gone[int(name)][1] for name in (given.preempted if given else ())]
    stopped = [one for one in leavers if not unstoppable(one.job)]
    return Lent(
        guest=terms.guest, own=site.own, nodes=nodes, opened=_sorted(opened, site.owned), present=present,
        order=order if ordered else None, leavers=tuple(stopped),
        released=tuple(gone[int(name)][1].job for name in (given.released if given else ())),
        needed=used + site.waiting, total=total, used=used, predicted=predicted,
        staying=tuple((one.job.job_id, unstoppable(one.job)) for one in leavers if unstoppable(one.job)),
        unheld=_unheld(site, overview.nodes, nodes) if known.listed is not None else (),
    )  # fmt: skip


def set_next(lent: Lent, listed: LoanList | None, now_s: float, until_s: float) -> LoanList:
    """What the journal must hold before the list is set.

    Where the present one is not the last that was journalled, a killed tick's order may yet come through.
    """
    before = [fold(list(lent.present))]
    if listed is not None and listed.stands(lent.present) and {*expand(listed.ours)} != {*lent.present}:
        before += [listed.ours, *listed.earlier]
    every = " ".join(dict.fromkeys(before))
    return LoanList(lent.guest, fold(list(lent.own)), fold(list(lent.nodes)), every, now_s, until_s)


def as_lent(overview: Overview, lent: Lent | None) -> Overview:
    """The cluster as it will be when the list is set: no job is sent to nodes that are about to be closed."""
    if lent is None or not lent.changed:
        return overview
    partitions = tuple(p._replace(nodes=lent.nodes) if p.name == lent.guest else p for p in overview.partitions)
    return overview._replace(partitions=partitions)


def own_list(present: Sequence[str], listed: LoanList | None) -> tuple[str, ...]:
    """The nodes that the site gave the guests' partition: what we remember while it bears one of our lists."""
    return expand(listed.own) if listed is not None and listed.stands(present) else tuple(present)


# -- the site ----------------------------------------------------------------------------------


def _site(overview: Overview, terms: LoanTerms, known: LoanMemory, now_s: float) -> _Site:
    parts = {partition.name: partition for partition in overview.partitions}
    present = parts[terms.guest].nodes
    own = own_list(present, known.listed)
    theirs = {name for owner in terms.owners for name in parts[owner].nodes}
    owned = tuple(node.name for node in overview.nodes if node.name in theirs and usable(node.states))
    running = [job for job in overview.jobs if job.state in JOB_ACTIVE and job.nodes]
    used = {name for job in running if job.partition in terms.owners for name in job.nodes}
    opened = tuple(name for name in owned if name in present and name in own and name not in used)
    guests = tuple(job for job in running if job.partition == terms.guest)
    queued = tuple(
        job
        for job in overview.jobs
        if job.state == "PENDING" and terms.guest in (named := job.partition.split(","))
        and (not job.held or job.reason == HELD_BACK) and terms.waits not in named
    )  # fmt: skip
    # A guest whose user names or excludes nodes may come back to the one that it has left: it would be stopped in vain.
    # With a partition to wait in it waits there.
    choosy = (_with_own_lists(job, known.own_req) for job in guests if not terms.waits)
    queued += tuple(job for job in choosy if job.req_nodes or job.exc_nodes)
    waiting = _nodes_waited_for(overview, terms, theirs, {name for name in owned if name in used}, now_s)
    return _Site(
        own, frozenset(theirs), owned, frozenset(used & {*owned}), waiting, opened, guests, queued, bool(terms.waits)
    )  # fmt: skip


def _nodes_waited_for(overview: Overview, terms: LoanTerms, theirs: set[str], used: set[str], now_s: float) -> int:
    """Nodes that pending jobs of owners need beyond what is free on those where owners' jobs run.

    Jobs that wait for something else need none, and those that have just come are Slurm's to start. A share of a node
    is the larger one of its GPUs and its CPUs.
    """
    nodes = {node.name: node for node in overview.nodes}
    gpus = max((nodes[name].n_gpus for name in theirs if name in nodes), default=0)
    cpus = max((nodes[name].cpus for name in theirs if name in nodes), default=0)
    whole, shares = 0, 0.0
    for job in overview.jobs:
        named = {*job.partition.split(",")}
        if job.state != "PENDING" or not named <= {*terms.owners} or not job.waits_for_nodes:
            continue
        if 0 <= now_s - max(job.submit_s, job.eligible_s) < SLURMS_S:
            continue
        asked = max(job.asks.gpus_in_all, job.gpus_per_node * job.asks.nodes_min)
        share = max(asked / gpus if gpus else 0.0, job.asks.cpus / cpus if cpus else 0.0)
        if job.asks.nodes_min > 1 or job.asks.whole_nodes:
            whole += max(job.asks.nodes_min, math.ceil(share - 1e-9))
        else:
            shares += share
    free = sum(_free_share(nodes[name]) for name in used if name in nodes)
    return whole + max(0, math.ceil(shares - free - 1e-9))


def _free_share(node: Node) -> float:
    if node.n_gpus:
        return max(0, node.n_gpus - node.gpus_used) / node.n_gpus
    return max(0, node.cpus - node.cpus_used) / node.cpus if node.cpus else 0.0


def _sorted(names: Iterable[str], order: Sequence[str]) -> tuple[str, ...]:
    wanted = {*names}
    return tuple(name for name in order if name in wanted)


def _next(site: _Site, nodes: Sequence[Node], opened: set[str], taken: Sequence[str], count: int) -> list[str]:
    """The nodes to open next: those that guests have already, then idle ones that Slurm gives to owners last."""
    weights = {node.name: (node.weight, place) for place, node in enumerate(nodes)}
    closed = [name for name in site.owned if name in site.own and name not in opened and name not in site.used]
    ranked = sorted(closed, key=lambda name: (name not in taken, tuple(-k for k in weights[name])))
    return ranked[: count + sum(name in taken for name in ranked)]  # what guests have counts as lent already


def _to_empty(site: _Site, guests: Sequence[Guest], closed: Sequence[str], reserve: int) -> int:
    """How many of the nodes that close must be without guests: what owners wait for, and a reserve beyond that.

    What they are only expected to need stops nobody: guests that run there may end before it is needed (they lost 16 %
    less work on twelve made-up days, docs/benchmarks.md).
    """
    holding = {name for guest in guests for name in guest.nodes}
    free = sum(name not in holding and name not in site.used for name in site.owned)
    return sum(name not in holding for name in closed) + max(0, site.waiting + reserve - free)


def _given(
    site: _Site, nodes: Sequence[Node], opened: set[str], loaned: Sequence[str], guests: Sequence[Guest], count: int,
    may_stay: Set[str],
) -> Reclaim:  # fmt: skip
    """What goes back. A node that stays in the list all the same keeps its guests: they would come back to it."""
    stay: set[str] = set()
    while True:
        given = reclaim([name for name in loaned if name not in stay], guests, count)
        again = _listed_all_the_same(site, nodes, opened - {*given.nodes}) & {*given.nodes} & may_stay
        if not again:
            return given
        stay |= again


def _fresh(site: _Site, terms: LoanTerms, now_s: float) -> set[str]:
    """Nodes with guests that have not run for an interval: where owners wait, others leave nodes that stay listed."""
    fresh = [job for job in site.guests if 0 <= now_s - job.start_s < terms.interval_s]
    return {name for job in fresh for name in job.nodes}


def _listed_all_the_same(site: _Site, nodes: Sequence[Node], opened: set[str]) -> set[str]:
    """Nodes that are listed beyond those that are open, so that no job is refused or held."""
    found = set() if site.sheltered else {*_representatives(site, nodes, opened)}
    return found | _for_queued(site, nodes, opened | found)


def _for_queued(site: _Site, nodes: Sequence[Node], opened: set[str]) -> set[str]:
    """Nodes without which Slurm would hold a job that waits: nodes that owners use first, as nobody starts there."""
    by_name = {node.name: node for node in nodes}
    own = [by_name[name] for name in site.own if name in by_name]
    left = [node for node in own if node.name in opened or node.name not in site.theirs]
    there = {node.name for node in left}
    closed = sorted((node for node in own if node.name not in there), key=lambda node: node.name not in site.used)
    added: list[Node] = []
    for job in {_asked(job): job for job in site.queued}.values():  # of thousands most ask for the same few things
        if held_back(job, [*left, *added]) and not held_back(job, own):
            named = [node for node in closed if node.name in job.req_nodes]
            for node in dict.fromkeys([*(node.name for node in named), *(node.name for node in closed)]):
                if not held_back(job, [*left, *added]):
                    break
                if by_name[node] not in added:
                    added.append(by_name[node])
    return {node.name for node in added}


def _asked(job: SlurmJob) -> tuple[object, ...]:
    """What `held_back` looks at."""
    return job.req_nodes, job.exc_nodes, job.gpus_per_node, job.asks, request_of(job).constraint


def held_back(job: SlurmJob, listed: Sequence[Node]) -> bool:
    """Whether Slurm holds a pending job with this list: it is long enough, but not of nodes that the job can use.

    A job that asks for more nodes or CPUs than there are in all just waits (seen on 22.05).
    """
    asks = job.asks
    if len(listed) < asks.nodes_min or sum(node.cpus for node in listed) < asks.cpus:
        return False
    if not {*job.req_nodes} <= {node.name for node in listed}:
        return True
    constraint = request_of(job).constraint
    suits = compile_constraint(constraint) if constraint else None
    fitting = [
        node
        for node in listed
        if node.name not in job.exc_nodes
        and (suits is None or suits(node.features))
        and node.n_gpus >= job.gpus_per_node
        and asks.gpu_types <= {*node.gpu_types}
        and node.memory_mib >= asks.node_memory_mib
    ]
    gpus = sum(node.n_gpus for node in fitting)
    return len(fitting) < asks.nodes_min or gpus < asks.gpus_in_all


def _unheld(site: _Site, nodes: Sequence[Node], listed: Sequence[str]) -> tuple[int, ...]:
    """The jobs that Slurm holds, and that this list fits."""
    there = [node for node in nodes if node.name in {*listed}]
    held = [job for job in site.queued if job.held and job.reason == HELD_BACK]
    return tuple(job.job_id for job in held if there and not held_back(job, there))


def _representatives(site: _Site, nodes: Sequence[Node], opened: set[str]) -> list[str]:
    """One node of each kind of which guests would else have none: slurmctld refuses a job that no listed node fits.

    A node that the owner uses, where there is one. With no node left at all Slurm takes the jobs and lets them wait.
    """
    left = [name for name in site.own if name in opened or name not in site.theirs]
    if not left:
        return []
    kinds = {node.name: (node.gpu_types, node.cpus, node.memory_mib, node.features) for node in nodes}
    there = {kinds[name] for name in left if name in kinds}
    found: dict[object, str] = {}
    for name in sorted(site.own, key=lambda name: name not in site.used):
        if name in kinds and kinds[name] not in there:
            found.setdefault(kinds[name], name)
    return list(found.values())


# -- guests ------------------------------------------------------------------------------------


def _guests(
    site: _Site, known: LoanMemory, moving: MoveSettings, terms: LoanTerms, now_s: float
) -> dict[int, tuple[Guest, Leaver]]:
    """Job -> the guest as the reclaim rule sees it, and what leaving means for it. Jobs that leave already are gone."""
    found: dict[int, tuple[Guest, Leaver]] = {}
    for job in site.guests:
        if job.job_id in known.leaving or {*site.owned}.isdisjoint(job.nodes):
            continue
        leaver = leaver_of(job, moving, terms, now_s)
        flexible = bool(marks.read(job.comment, marks.COMPANION))
        cost = leaver.cost + DEAR if unstoppable(job) else leaver.cost
        found[job.job_id] = Guest(str(job.job_id), job.nodes, cost, flexible), leaver
    return found


def required_by_user(job: SlurmJob, own_req: Mapping[int, str]) -> str:
    """The nodes that a job's user requires, a hostlist: what lists of ours on it, by mark or by lease, stand in for."""
    return own_req.get(job.job_id, in_force(job).get(REQUIRED, fold(list(job.req_nodes))))


def _with_own_lists(job: SlurmJob, own_req: Mapping[int, str]) -> SlurmJob:
    excluded = in_force(job).get(EXCLUDED)
    required = expand(required_by_user(job, own_req))
    return job._replace(req_nodes=required, exc_nodes=job.exc_nodes if excluded is None else expand(excluded))


def leaver_of(job: SlurmJob, moving: MoveSettings, terms: LoanTerms, now_s: float) -> Leaver:
    """What a running job would lose if it had to leave now."""
    facts = facts_of(job, moving)
    ran_s = max(0.0, now_s - job.start_s) if job.start_s else 0.0
    lost_s = 0.0 if facts.checkpoint else min(ran_s, facts.lost_s) if facts.movable else ran_s
    gpus = sum(map(len, job.gpus.values())) or max(job.gpus_given, 1)
    return Leaver(job, facts.checkpoint, lost_s, (terms.restart_s + lost_s) * gpus, ran_s)


def _taken(site: _Site, guests: Mapping[int, tuple[Guest, Leaver]]) -> list[str]:
    """Nodes of owners where guests run that do not leave yet, and no job of an owner."""
    on = {name for guest, _ in guests.values() for name in guest.nodes}
    return [name for name in site.owned if name in on and name not in site.used]


def unstoppable(job: SlurmJob) -> str:
    """Why we do not stop a guest: it would be lost. Slurm's own preemption does where its owner needs the node."""
    if not job.batch:
        return "only batch jobs can be requeued"
    if job.het:
        return "it is a part of a heterogeneous job"
    if job.state in ("SUSPENDED", "STOPPED"):
        return "it is suspended"
    return "" if job.may_requeue else "it must not be requeued (--no-requeue)"
