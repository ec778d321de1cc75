# SPDX-License-Identifier: MIT
"""Which nodes of owners are open to guests, and which guests leave for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.hostlist import expand
from slurm_pal.base.jobs import Asks, SlurmJob
from slurm_pal.decide.facts import MoveSettings
from slurm_pal.journal.journal import LoanList
from slurm_pal.loans.lend import Lent, LoanMemory, as_lent, held_back, lend, own_list, set_next
from slurm_pal.loans.terms import LoanTerms
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import usable

from ...doubles.trials import trials

NOW_S = 1_700_000_100.0
HOUR = int(NOW_S // 3600)
OWN, THEIRS = ("n0", "n1"), ("n2", "n3", "n4", "n5")
ALL = (*OWN, *THEIRS)
TERMS = LoanTerms(("owner",), "guest", headroom=0.0)
MOVING = MoveSettings()
MOVABLE = "pal:job=A;mov=1;app=1;lost=100"
WITH_CHECKPOINT = "pal:job=A;mov=1;app=1;ck=1"


def node(name: str, *, cpus: int = 16, gpus: int = 4, kind: str = "", states: tuple[str, ...] = ("IDLE",)) -> Node:
    return Node(name, frozenset(states), (kind,) * gpus, 0, cpus, 0, 64000, 0, frozenset(), ())


def job(number: int, partition: str, *nodes: str, **more: object) -> SlurmJob:
    """One that runs on these nodes since 1,000 s; without nodes it waits since then."""
    made = SlurmJob(
        number, "RUNNING" if nodes else "PENDING", "None" if nodes else "Resources", "ann", "x", partition,
        dict.fromkeys(nodes, (0, 1, 2, 3)), nodes, (), (), NOW_S - 2000, NOW_S - 1000 if nodes else 0.0, 0.0, None, 0,
        "", 4, batch=True, may_requeue=True, asks=Asks(gpus=True, cpus=1),
    )  # fmt: skip
    return made._replace(**more)  # type: ignore[arg-type]


@dataclass
class Site:
    """Six nodes, four of them an owner's; the guests' partition has all of them. An order is due."""

    nodes: dict[str, Node] = field(default_factory=lambda: {name: node(name) for name in ALL})
    owner: tuple[str, ...] = THEIRS
    own: tuple[str, ...] = ALL  # of the guests' partition, by the site
    ours: tuple[str, ...] | None = None  # that we gave it; None: nothing
    present: tuple[str, ...] | None = None
    expected: float | None = 0.0  # that owners have needed in the hour before
    order_s: float = 0.0
    leaving: frozenset[int] = frozenset()
    terms: LoanTerms = TERMS
    jobs: list[SlurmJob] = field(default_factory=list)

    def overview(self) -> Overview:
        ours = self.own if self.ours is None else self.ours
        shown = ours if self.present is None else self.present
        parts = Partition("guest", True, True, shown), Partition("owner", False, True, self.owner)
        return Overview(tuple(self.nodes.values()), tuple(self.jobs), parts, {})

    def known(self) -> LoanMemory:
        listed = None
        if self.ours is not None:
            ours, own = ",".join(self.ours), ",".join(self.own)
            listed = LoanList("guest", own, ours, ours, NOW_S - 300, NOW_S + 600)
        demand = {} if self.expected is None else {HOUR - 1: self.expected}
        return LoanMemory(listed, self.order_s, demand, self.leaving)

    def lend(self, now_s: float = NOW_S) -> Lent:
        return lend(self.overview(), self.terms, self.known(), MOVING, now_s)

    def keep(self, nodes: int) -> None:
        """So many nodes are to be free of guests, whatever owners are expected to need."""
        self.expected, self.terms = 0.0, self.terms._replace(headroom=nodes / len(self.owner))

    def use(self, name: str, share: float = 1.0) -> None:
        """A job of the owner runs there."""
        used = round(4 * share)
        self.nodes[name] = self.nodes[name]._replace(
            gpus_used=used, cpus_used=used, states=frozenset({"ALLOCATED" if used == 4 else "MIXED"})
        )
        self.jobs.append(job(900 + int(name[1:]), "owner", name))


@pytest.fixture
def site() -> Site:
    return Site()


# -- orders ------------------------------------------------------------------------------------


def test_with_nothing_known_nothing_is_changed(site: Site) -> None:
    site.expected, site.ours = None, ("n0", "n1", "n2")
    site.jobs = [job(1, "owner")]
    lent = site.lend()
    assert not lent.changed and lent.order is None and lent.leavers == () and lent.nodes == site.ours
    assert (lent.own, lent.needed) == (ALL, 1)


def test_what_owners_need_stays_closed_and_slurm_would_give_it_to_them_first(site: Site) -> None:
    site.expected, site.ours = 1.0, OWN
    assert site.lend().opened == ("n3", "n4", "n5")
    site.nodes["n5"] = site.nodes["n5"]._replace(weight=0)  # the lowest weight comes first
    site.nodes["n3"] = site.nodes["n3"]._replace(weight=7)
    site.expected = 2.0
    lent = site.lend()
    assert lent.opened == ("n3", "n4") and lent.nodes == (*OWN, "n3", "n4")
    assert lent.order is not None and lent.order.due and lent.order.why == "owners need less"
    assert (lent.order.total, lent.order.allowed, lent.order.open) == (4, 2, "n[3-4]")


@pytest.mark.parametrize(("ago_s", "due"), [(299.0, False), (300.0, True), (-10.0, True), (1e6, True)])
def test_an_order_is_due_after_an_interval_and_with_a_clock_that_was_set_back(
    site: Site, ago_s: float, due: bool
) -> None:
    site.order_s, site.ours = NOW_S - ago_s, OWN
    lent = site.lend()
    assert (lent.order is not None) is due and lent.changed is due


def test_between_orders_only_nodes_that_owners_use_or_wait_for_are_closed(site: Site) -> None:
    site.order_s, site.ours, site.expected = NOW_S - 10, ALL, 3.0
    assert not site.lend().changed  # more is open than an order would allow
    site.use("n4")
    lent = site.lend()
    assert lent.nodes == ("n0", "n1", "n2", "n3", "n5") and lent.order is None and lent.leavers == ()
    site.jobs.append(job(2, "owner"))
    lent = site.lend()
    assert lent.opened == ("n5",) and lent.order is not None and not lent.order.due
    assert lent.order.why == "owners wait for 1"


def test_jobs_of_owners_that_have_just_come_are_slurms_to_start(site: Site) -> None:
    site.order_s, site.ours = NOW_S - 10, ALL
    site.jobs = [job(2, "owner", submit_s=NOW_S - 20)]
    assert not site.lend().changed
    site.jobs = [job(2, "owner", submit_s=NOW_S - 40)]
    assert len(site.lend().opened) == 3
    site.jobs = [job(2, "owner", submit_s=NOW_S + 40)]  # the clock was set back
    assert len(site.lend().opened) == 3


@pytest.mark.parametrize("reason", ["Dependency", "BeginTime", "QOSMaxJobsPerUserLimit", "JobHeldUser", "Licenses"])
def test_jobs_of_owners_that_wait_for_something_else_close_nothing(site: Site, reason: str) -> None:
    site.order_s, site.ours = NOW_S - 10, ALL
    site.jobs = [job(2, "owner", reason=reason)]
    assert not site.lend().changed


def test_what_owners_wait_for_counts_in_nodes(site: Site) -> None:
    site.ours = ALL
    site.jobs = [job(k, "owner", gpus_per_node=2) for k in range(3)]
    assert site.lend().needed == 2  # 1.5 nodes
    site.jobs = [job(1, "owner", gpus_per_node=4, asks=Asks(True, nodes_min=2, cpus=2))]
    assert site.lend().needed == 2
    site.jobs = [job(1, "owner,guest")]  # it may run elsewhere
    assert site.lend().needed == 0
    site.use("n2", share=0.5)
    site.jobs += [job(1, "owner", gpus_per_node=2)]
    assert site.lend().needed == 1  # there is room beside the one that runs


# -- what goes back -----------------------------------------------------------------------------


def test_unused_nodes_go_back_first_then_flexible_workers_then_what_loses_least(site: Site) -> None:
    site.ours = ALL
    site.jobs = [
        job(1, "guest", "n2", comment=MOVABLE), job(2, "guest", "n3"),
        job(3, "guest", "n4", comment="pal:companion=1"), job(4, "guest", "n0"),
    ]  # fmt: skip
    site.keep(1)
    lent = site.lend()
    assert lent.opened == ("n2", "n3", "n4") and lent.leavers == () and lent.released == ()
    site.keep(2)
    lent = site.lend()
    assert lent.opened == ("n2", "n3") and lent.leavers == () and [one.job_id for one in lent.released] == [3]
    site.keep(3)
    lent = site.lend()
    assert lent.opened == ("n3",) and [(one.job.job_id, one.lost_s) for one in lent.leavers] == [(1, 100.0)]
    assert lent.leavers[0].cost == (60 + 100) * 4
    site.keep(4)
    assert {one.job.job_id: one.lost_s for one in site.lend().leavers} == {1: 100.0, 2: 1000.0}


def test_a_checkpoint_costs_the_restart_only(site: Site) -> None:
    site.ours = ALL
    site.keep(3)
    site.jobs = [job(k, "guest", f"n{k + 2}", comment=WITH_CHECKPOINT if k == 2 else "") for k in range(4)]
    site.keep(1)
    (leaver,) = site.lend().leavers
    assert (leaver.job.job_id, leaver.checkpoint, leaver.lost_s, leaver.cost) == (2, True, 0.0, 240.0)


def test_guests_that_cannot_be_stopped_stay_and_are_reported_and_others_go_first(site: Site) -> None:
    site.ours = ALL
    site.keep(2)
    site.jobs = [
        job(1, "guest", "n2", batch=False, start_s=NOW_S - 1), job(2, "guest", "n3", may_requeue=False),
        job(3, "guest", "n4", start_s=NOW_S - 99_999), job(4, "guest", "n5", het=True, start_s=NOW_S - 1),
    ]  # fmt: skip
    site.keep(1)
    lent = site.lend()
    assert [one.job.job_id for one in lent.leavers] == [3] and lent.staying == ()
    site.keep(4)
    lent = site.lend()
    assert [one.job.job_id for one in lent.leavers] == [3] and lent.opened == ()
    assert [number for number, _ in lent.staying] == [1, 2, 4] and "--no-requeue" in lent.staying[1][1]
    # On a closed node they hold it all the same, so no other one is opened in its place.
    site.ours = (*OWN,)
    site.keep(2)
    site.jobs = site.jobs[:2]
    assert site.lend().opened == ("n2", "n3")


def test_guests_that_leave_already_count_as_gone(site: Site) -> None:
    site.ours = (*OWN, "n3", "n4")
    site.keep(2)
    site.jobs = [job(1, "guest", "n2"), job(2, "guest", "n5"), job(3, "guest", "n3"), job(4, "guest", "n4")]
    site.leaving = frozenset({1, 2})
    lent = site.lend()
    assert lent.leavers == () and not lent.changed
    site.leaving = frozenset()
    assert len(site.lend().leavers) == 2


def test_a_guest_on_several_nodes_leaves_them_all(site: Site) -> None:
    site.ours = ALL
    site.keep(1)
    site.jobs = [job(1, "guest", "n0", "n2", "n3"), job(2, "guest", "n4"), job(3, "guest", "n5", start_s=NOW_S - 5e4)]
    assert [one.job.job_id for one in site.lend().leavers] == [2]


def test_what_is_only_expected_closes_nodes_and_stops_nobody(site: Site) -> None:
    site.ours, site.expected = ALL, 2.0
    site.jobs = [job(k, "guest", f"n{k + 2}") for k in range(4)]
    lent = site.lend()
    assert len(lent.opened) == 2 and lent.leavers == () and lent.order is not None and lent.order.allowed == 2
    site.keep(1)  # the headroom is for what comes at once
    assert len(site.lend().leavers) == 1


# -- lists -------------------------------------------------------------------------------------


def test_the_guests_own_nodes_are_listed_whatever_happens_to_them(site: Site) -> None:
    site.expected = 4.0
    site.nodes["n1"] = node("n1", states=("DOWN",))
    assert site.lend().nodes == OWN


def test_nodes_that_are_down_are_not_lent(site: Site) -> None:
    site.nodes["n3"] = node("n3", states=("DOWN",))
    site.nodes["n4"] = node("n4", states=("IDLE", "DRAIN"))
    site.jobs = [job(1, "guest", "n4")]  # it runs on, while the node drains
    lent = site.lend()
    assert lent.opened == ("n2", "n5") and lent.order is not None and lent.order.total == 2 and lent.leavers == ()


def test_nodes_of_owners_that_guests_never_had_are_not_lent(site: Site) -> None:
    site.own, site.expected = ("n0", "n1", "n4"), 1.0
    lent = site.lend()
    assert lent.nodes == ("n0", "n1", "n4") and lent.order is not None and lent.order.allowed == 3


def test_what_slurmctld_has_forgotten_is_set_again_at_once(site: Site) -> None:
    site.ours, site.present, site.expected, site.order_s = (*OWN, "n5"), ALL, 3.0, NOW_S - 1
    lent = site.lend()
    assert lent.order is not None and lent.order.due and lent.nodes == (*OWN, "n5") and lent.own == ALL


def test_what_somebody_has_changed_is_theirs_from_then_on(site: Site) -> None:
    site.ours, site.present, site.expected = (*OWN, "n5"), ("n0", "n4", "n5"), 3.0
    lent = site.lend()
    assert lent.own == ("n0", "n4", "n5") and lent.nodes == ("n0", "n5")


def test_one_node_of_each_kind_stays_listed_and_its_guests_stay(site: Site) -> None:
    site.nodes |= {name: node(name, kind="b") for name in ("n4", "n5")}
    site.expected = 4.0
    assert site.lend().opened == ("n4",)
    site.use("n5")
    assert site.lend().opened == ("n5",)  # where the owner is already
    site.nodes["n5"], site.jobs = node("n5", kind="b"), [job(1, "guest", "n4")]
    site.ours = ALL
    lent = site.lend()
    assert lent.opened == ("n4",) and lent.leavers == ()  # it would come back to that node
    site.jobs.append(job(2, "owner", asks=Asks(True, nodes_min=4, cpus=4)))
    assert [one.job.job_id for one in site.lend().leavers] == [1]  # the owner is first there
    site.jobs[0] = site.jobs[0]._replace(start_s=NOW_S - 100)
    assert site.lend().leavers == ()  # it was not
    site.jobs.pop()
    site.own, site.nodes = THEIRS, {name: node(name) for name in THEIRS}
    assert site.lend().nodes == ()  # with no node at all Slurm lets jobs wait


def queued(number: int, **more: object) -> SlurmJob:
    return job(number, "guest")._replace(**more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("waits", "stays"),
    [
        (queued(1), ()),
        (queued(1, req_nodes=("n4",)), ("n4",)),
        (queued(1, req_nodes=("n0", "n3")), ("n3",)),
        (queued(1, exc_nodes=("n0", "n1")), ("n2",)),
        (queued(1, gpus_per_node=0, asks=Asks(True, gpus_in_all=12, cpus=1)), ("n2",)),
        (queued(1, asks=Asks(True, nodes_min=3, cpus=3)), ()),  # it just waits
        (queued(1, gpus_per_node=8), ()),  # it fits nowhere
        (queued(1, req_nodes=("n4",), reason="JobHeldUser", priority=0), ()),
        (queued(1, req_nodes=("n4",), reason="BadConstraints", priority=0), ("n4",)),
        (queued(1, partition="other", req_nodes=("n4",)), ()),
        (queued(1, partition="other,guest", req_nodes=("n4",)), ("n4",)),
    ],
)
def test_nodes_without_which_slurm_would_hold_a_job_stay_listed(
    site: Site, waits: SlurmJob, stays: tuple[str, ...]
) -> None:
    site.expected, site.ours = 4.0, ALL
    site.jobs = [waits]
    assert site.lend().opened == stays


def test_jobs_that_slurm_holds_wait_again_once_they_fit(site: Site) -> None:
    held = {"reason": "BadConstraints", "priority": 0}
    site.jobs = [queued(1, req_nodes=("n4",), **held), queued(2, gpus_per_node=8, **held)]
    assert site.lend().unheld == ()  # no list of ours has done that
    site.ours = OWN
    assert site.lend().unheld == (1,)


def test_where_a_job_fits() -> None:
    nodes = [node("n0"), node("n1", kind="b"), node("n2", gpus=0)]
    assert not held_back(queued(1), nodes) and not held_back(queued(1), [])
    assert held_back(queued(1, asks=Asks(True, gpu_types=frozenset({"c"}))), nodes)
    assert held_back(queued(1, asks=Asks(True, nodes_min=3, cpus=3)), nodes)  # two of them have GPUs
    assert held_back(queued(1, asks=Asks(True, node_memory_mib=64001.0)), nodes)


def test_who_places_jobs_sees_the_list_as_it_will_be(site: Site) -> None:
    site.expected = 4.0
    overview, lent = site.overview(), site.lend()
    after = {part.name: part.nodes for part in as_lent(overview, lent).partitions}
    assert after == {"guest": OWN, "owner": THEIRS} and as_lent(overview, None) is overview
    assert as_lent(overview, lent._replace(present=lent.nodes)) is overview


# -- what is remembered -------------------------------------------------------------------------


def listed(ours: str, before: str) -> LoanList:
    return LoanList("guest", "n[0-5]", ours, before, 0.0, 0.0)


def after(present: str, wanted: str, known: LoanList | None) -> LoanList:
    lent = Lent("guest", ALL, expand(wanted), present=expand(present))
    return set_next(lent, known, 1.0, 2.0)


def test_the_first_list_remembers_the_sites_own() -> None:
    assert after("n[0-5]", "n0", None) == LoanList("guest", "n[0-5]", "n0", "n[0-5]", 1.0, 2.0)


@pytest.mark.parametrize("stands", ["n[0-2]", "", "n[0-3]"])
def test_whichever_order_came_through_before_a_tick_was_killed_the_list_is_known_as_ours(stands: str) -> None:
    """Twice killed between the journal and the order: three lists may stand, an empty one among them."""
    first = listed("", "n[0-2]")
    assert first.stands(()) and first.stands(expand("n[0-2]")) and not first.stands(ALL)
    second = after("n[0-2]", "n[0-3]", first)
    third = after("n[0-2]", "n[0-4]", second)
    assert third.stands(expand(stands)) and third.stands(expand("n[0-4]")) and not third.stands(expand("n[0-5]"))
    assert own_list(expand(stands), third) == ALL
    assert after("n[0-4]", "n0", third).before == "n[0-4]"  # that is certain again


def test_a_list_of_the_site_is_no_list_of_ours() -> None:
    assert after("n1", "", listed("n0", "n[0-1]")).before == "n1"
    assert own_list(("n1",), listed("n0", "n[0-1]")) == ("n1",)


# -- whatever happens ----------------------------------------------------------------------------


@st.composite
def sites(draw: st.DrawFn) -> Site:
    site = Site()
    for name in ALL:
        states = draw(st.sampled_from([("IDLE",), ("IDLE",), ("IDLE",), ("DOWN",), ("IDLE", "DRAIN")]))
        weight = draw(st.integers(1, 3))
        site.nodes[name] = node(name, kind=draw(st.sampled_from("aab")), states=states)._replace(weight=weight)
    free = {name: 4 for name in ALL}
    for number in range(draw(st.integers(0, 8))):
        where = draw(st.sampled_from(["guest", "guest", "owner"]))
        room = [name for name in (THEIRS if where == "owner" else ALL) if free[name] >= 2]
        nodes = draw(st.lists(st.sampled_from(room), max_size=3, unique=True)) if room else []
        for name in nodes:
            free[name] -= 2
        more = {
            "batch": draw(st.booleans()) or draw(st.booleans()), "may_requeue": draw(st.booleans()),
            "comment": draw(st.sampled_from(["", MOVABLE, WITH_CHECKPOINT, "pal:companion=1"])),
            "start_s": NOW_S - draw(st.floats(0, 1e6)) if nodes else 0.0,
            "req_nodes": () if nodes else draw(st.sampled_from([(), (), ("n3",), ("n0", "n5")])),
        }  # fmt: skip
        site.jobs.append(job(number, where, *nodes, **more))
    site.own = draw(st.sampled_from([ALL, THEIRS, ("n0", "n2", "n3"), OWN]))
    site.ours = draw(st.none() | st.lists(st.sampled_from(site.own), unique=True).map(tuple))
    site.present = draw(st.none() | st.just(site.own) | st.just(("n1", "n4")))
    site.expected = draw(st.none() | st.integers(0, 5).map(float))
    site.order_s = NOW_S - draw(st.sampled_from([1e6, 400.0, 100.0, -100.0]))
    site.leaving = frozenset(draw(st.lists(st.integers(0, 7), max_size=2)))
    site.terms = TERMS._replace(headroom=draw(st.sampled_from([0.0, 0.02, 0.5])))
    return site


@trials(1000)
@given(sites())
def test_whatever_is_seen_the_list_and_who_leaves_for_it_agree(site: Site) -> None:
    lent = site.lend()
    theirs = {*THEIRS}
    assert lent == site.lend()
    if site.expected is None:
        assert not lent.changed and not lent.leavers and lent.nodes == lent.present
        return
    assert {*lent.own} - theirs <= {*lent.nodes} <= {*lent.own}
    assert {*lent.opened} == {name for name in {*lent.nodes} & theirs if usable(site.nodes[name].states)}
    used = {name for one in site.jobs if one.partition == "owner" for name in one.nodes}
    kinds = {site.nodes[name].gpu_types for name in lent.own}
    wanted = {name for one in site.jobs if one.state == "PENDING" for name in one.req_nodes}
    assert len({*lent.opened} & used) <= len(kinds) + len(wanted)
    if lent.order is not None:
        beside = len(kinds) + len(wanted)  # listed all the same
        assert lent.order.allowed <= lent.order.total
        assert not lent.order.due or len(lent.opened) <= lent.order.allowed + beside + len(held(site))
    back = theirs - {*lent.opened}
    for one in (*(leaver.job for leaver in lent.leavers), *lent.released):
        first_there = any(job.partition == "owner" and not job.nodes for job in site.jobs)
        long = first_there and NOW_S - one.start_s >= TERMS.interval_s  # where owners wait, also from what stays listed
        assert one.job_id not in site.leaving and one.partition == "guest" and (back & {*one.nodes} or long)
    assert all(one.job.batch and one.job.may_requeue for one in lent.leavers)
    assert not {number for number, _ in lent.staying} & {one.job.job_id for one in lent.leavers}
    left = [node for node in site.nodes.values() if node.name in {*lent.nodes}]
    own = [node for node in site.nodes.values() if node.name in {*lent.own}]
    for one in site.jobs:
        if one.state == "PENDING" and one.partition == "guest":
            assert not held_back(one, left) or held_back(one, own)


def held(site: Site) -> set[str]:
    """Nodes with guests count as lent, open or not."""
    return {name for one in site.jobs if one.partition == "guest" for name in one.nodes}


# -- a partition to wait in ----------------------------------------------------------------------


def test_guests_that_may_wait_elsewhere_keep_no_node_open(site: Site) -> None:
    site.nodes = {name: node(name, gpus=4 if name in OWN else 8) for name in ALL}
    site.keep(4)
    site.jobs = [job(1, "guest", req_nodes=("n3",)), job(2, "guest,waits", req_nodes=("n4",), reason="PartitionDown")]
    assert site.lend().opened == ("n2", "n3", "n4"), "n2 for its kind, the others for the jobs"
    site.terms = site.terms._replace(waits="waits")
    assert site.lend().opened == ("n3",), "for job 1, whose user named one partition only"
    site.jobs = site.jobs[1:]
    assert site.lend().opened == ()
    assert site.jobs[0].waits_for_nodes and not job(3, "guest", reason="PartitionDown").waits_for_nodes
