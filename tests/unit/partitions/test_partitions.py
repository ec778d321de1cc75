# SPDX-License-Identifier: MIT
"""Partitions shared out end to end, on made-up states of Slurm: what is wished, and what becomes of other lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.allocation.steady import STEADY
from slurm_pal.base.config import Config
from slurm_pal.base.errors import ConfigError, DataError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.job_request import request_of
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease
from slurm_pal.journal.journal import REFUSED, Journal, open_journal
from slurm_pal.partitions.plan import RETRY_S, Jobs, Partitions
from slurm_pal.partitions.sharing import NOT_TAKEN, Shared
from slurm_pal.pending.retarget import Waiting, Wish
from slurm_pal.slurm.client import Overview

from ...doubles import running_factory
from ...doubles.partition_site import NOW_S, OWN, job, node, overview, part, running, scores, waiting

INTERVAL_S = 15.0
TABLE = "application,gpus,type,relative_speed\napp,1,slow,1\napp,1,fast,4\neven,1,slow,1\neven,1,fast,1\n"
FULL = (running(1, "slow", {"s0": (0, 1), "s1": (0, 1)}), running(2, "fast", {"f0": (0, 1), "f1": (0, 1)}))
SLOW_FREE, FAST_FREE = FULL[1:], FULL[:1]
OURS = TickLease(7, LeaseKind.PARTITION, "fast", OWN, NOW_S - 30, NOW_S + 900, 0, "why")


class Site:
    """A journal, scores and a configuration in a folder."""

    def __init__(self, folder: Path, journal: Journal, **settings: object) -> None:
        table = folder / "t.csv"
        table.write_text(TABLE)
        self.journal, self.scores = journal, scores(folder)
        config = Config()
        for name, value in {"allocation": "gavel:max-sum", "throughputs": str(table), **settings}.items():
            config.set("rebalance", name, value, "test")
        self.config = config
        config.prices |= {"slow": {"gres/gpu": 1.0}, "fast": {"gres/gpu": 2.0}}
        self.partitions = Partitions(config, journal)

    def share(
        self, where: Overview, waited_s: float = 0.0, now_s: float = NOW_S, moving: tuple[int, ...] = ()
    ) -> Shared:
        pending = [waiting(one, waited_s) for one in where.jobs if one.state == "PENDING" and one.job_id not in moving]
        return self.partitions.share(where, self.scores, Jobs(pending, (), moving, ()), now_s, INTERVAL_S).shared

    def wishes(self, *jobs: SlurmJob, waited_s: float = 0.0, now_s: float = NOW_S, **given: object) -> dict[int, Wish]:
        where = overview(*jobs, **given)  # type: ignore[arg-type]
        return {wish.job_id: wish for wish in self.share(where, waited_s, now_s).wishes}


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(str(tmp_path / "journal.db")) as found:
        yield found


@pytest.fixture
def site(tmp_path: Path, journal: Journal) -> Site:
    return Site(tmp_path, journal)


@pytest.mark.parametrize("policy", STEADY)
def test_a_job_waits_where_it_belongs(tmp_path: Path, journal: Journal, policy: str) -> None:
    site = Site(tmp_path, journal, allocation=policy)
    found = site.wishes(*FULL, job())
    assert set(found) == {7} and (found[7].action, found[7].fields) == ("partition", {"Partition": "fast"})


@pytest.mark.parametrize(("price", "where"), [(3.9, "fast"), (4.1, "slow")])
def test_the_cost_program_follows_live_prices(tmp_path: Path, journal: Journal, price: float, where: str) -> None:
    """The fast partition does four times as much."""
    site = Site(tmp_path, journal, allocation="gavel:cost")
    live = tmp_path / "prices"
    live.write_text(f"fast,{price},{NOW_S:.0f}\n")
    site.config.set("submit", "prices", str(live), "test")
    (named,) = site.wishes(job()).values()
    assert named.fields == {"Partition": where}
    (free,) = site.wishes(*SLOW_FREE, job()).values()  # what costs less and is slower is worth no wait
    assert free.fields == {"Partition": where}
    (dear,) = site.wishes(*FAST_FREE, job()).values()
    assert dear.fields == ({} if where == "slow" else {"Partition": "fast"})


def test_the_cost_program_needs_prices(tmp_path: Path, journal: Journal) -> None:
    site = Site(tmp_path, journal, allocation="gavel:cost")
    del site.config.prices["slow"]
    with pytest.raises(DataError, match="gavel:cost needs a price above 0 of a GPU hour of slow"):
        site.wishes(job())


def test_with_room_in_both_and_without(site: Site) -> None:
    (named,) = site.wishes(job()).values()
    assert named.fields == {"Partition": "fast"} and named.lease is not None and named.lease.until_s == NOW_S + 15
    (waits,) = site.wishes(*SLOW_FREE, job()).values()
    assert waits.fields == {"Partition": "fast"} and waits.could_start
    (tired,) = site.wishes(*SLOW_FREE, job(), waited_s=3600.0).values()
    assert (tired.action, tired.fields) == ("none", {})


def test_what_makes_no_difference_is_left_to_slurm(site: Site) -> None:
    (found,) = site.wishes(*FULL, job(name="even")).values()
    assert (found.action, found.lease) == ("none", None)


def test_higher_priority_has_the_fast_gpus(site: Site) -> None:
    one_free = [FULL[0], running(2, "fast", {"f0": (0, 1), "f1": (1,)})]
    found = site.wishes(*one_free, job(5), job(6))
    untils = {k: wish.lease.until_s - NOW_S for k, wish in found.items() if wish.lease}
    assert untils[5] == INTERVAL_S and untils[6] > 60


def test_jobs_with_one_partition_take_part(site: Site) -> None:
    """Eight jobs that can go nowhere else want the fast partition more than one that can."""
    crowd = [job(100 + k, "fast") for k in range(8)]
    found = site.wishes(*SLOW_FREE, *crowd, job(7))
    assert set(found) == {7} and found[7].fields == {"Partition": "slow"}  # no wish about those without a choice
    assert site.wishes(*SLOW_FREE, job(7))[7].fields == {"Partition": "fast"}


def test_jobs_that_run_elsewhere_and_jobs_that_are_not_ours_have_no_wish(site: Site) -> None:
    where = overview(*FULL, job(7), job(8, comment=""), job(9, "slow"))
    pending = [waiting(one) for one in where.jobs if one.job_id in (7, 9)]
    shared = site.partitions.share(where, site.scores, Jobs(pending, (), (), ()), NOW_S, INTERVAL_S).shared
    assert [wish.job_id for wish in shared.wishes] == [7]


@pytest.mark.parametrize(
    ("one", "action", "fields"),
    [
        (job(partition="fast", reason="Dependency"), "partition-clear", {"Partition": OWN}),
        (job(partition="fast", reason="JobHeldUser", Priority="0"), "partition-clear", {"Partition": OWN}),
        (job(partition="fast", reason="BadConstraints", Priority="0"), "partition-clear", {"Partition": OWN}),
        (job(partition="fast", req_nodes=("f0",)), "partition-clear", {"Partition": OWN}),  # its user's nodes
        (job(partition="slow", reason="Dependency"), "none", {}),  # somebody else's doing
        (job(reason="Dependency"), "partition-clear", {}),
        (job(partition="fast", reason="QOSGrpGRES"), "partition-clear", {"Partition": OWN}),
        (job(partition="fast"), "keep", {}),
    ],
)
def test_lists_of_ours_that_were(site: Site, one: SlurmJob, action: str, fields: dict[str, str]) -> None:
    site.journal.lease(OURS)
    found = site.wishes(*FULL, one)
    assert (found[7].action, found[7].fields) == (action, fields)
    assert found[7].reason.startswith(NOT_TAKEN) == (one.reason in ("BadConstraints", "QOSGrpGRES"))


def test_jobs_that_run_or_move_or_are_gone_keep_their_leases(site: Site) -> None:
    for number in (7, 8, 9):
        site.journal.lease(OURS._replace(job_id=number))
    where = overview(running(7, "fast", {"f0": (0,)}), job(8, "fast", reason="BeginTime"))
    assert site.share(where, moving=(8,)).wishes == ()
    (back,) = site.share(where).wishes
    assert (back.job_id, back.fields) == (8, {"Partition": OWN})


@pytest.mark.parametrize("why", [f"{REFUSED}Invalid account", f"{NOT_TAKEN} (QOSGrpGRES)"])
def test_what_slurm_did_not_take_is_not_tried_again_for_a_time(site: Site, why: str) -> None:
    site.journal.lease(OURS)
    site.journal.end_lease(7, why, NOW_S, Sort.PARTITIONS)
    assert site.wishes(*FULL, job(), now_s=NOW_S + RETRY_S) == {}
    assert site.wishes(*FULL, job(), now_s=NOW_S + RETRY_S + 1)[7].action == "partition"
    site.journal.lease(OURS._replace(job_id=8))
    site.journal.end_lease(8, "waiting for a faster partition no longer pays", NOW_S, Sort.PARTITIONS)
    assert site.wishes(*FULL, job(8))[8].action == "partition"


def test_nodes_may_be_named_at_once_in_the_partition_chosen(site: Site) -> None:
    shared = site.share(overview(job()))
    (one,) = shared.waiting
    assert one.job.partition == "fast" and one.request.partitions == ("fast",) and not one.request.leave
    assert [j.partition for j in shared.overview.jobs] == ["fast"]


def test_no_nodes_are_named_for_a_job_whose_partitions_come_back(site: Site) -> None:
    site.journal.lease(OURS)
    shared = site.share(overview(*SLOW_FREE, job(partition="fast")), waited_s=3600.0)
    (one,) = shared.waiting
    assert one.job.partition == OWN and "which of them the job will run in is open" in one.request.leave


def test_a_list_of_ours_on_nodes_does_not_become_the_users(site: Site) -> None:
    """The partition changes while nodes of the old one are excluded by us."""
    site.journal.lease(OURS._replace(ours="slow"))
    site.journal.lease(TickLease(7, LeaseKind.EXCLUDE, "n9,s0", "n9", NOW_S - 30, NOW_S, 0, "why"))
    pinned = job(partition="slow", exc_nodes=("n9", "s0"))
    where = overview(*FAST_FREE, pinned)
    steered = Waiting(pinned, request_of(pinned, own_exc="n9"), "A", 0.0)
    shared = site.partitions.share(where, site.scores, Jobs([steered], (), (), ()), NOW_S, INTERVAL_S).shared
    assert shared.wishes[0].fields == {"Partition": "fast"}
    assert shared.waiting[0].request.exc_nodes == ("n9",)


def test_its_own_named_nodes_are_room_for_it(site: Site) -> None:
    """It has been sent there, and has not started yet."""
    site.journal.lease(OURS)
    site.journal.lease(TickLease(7, LeaseKind.NODELIST, "f0", "", NOW_S - 5, NOW_S + 10, 0, "why"))
    pinned = job(partition="fast", req_nodes=("f0",))
    where = overview(FULL[0], running(2, "fast", {"f0": (0,), "f1": (0, 1)}), pinned)
    steered = Waiting(pinned, request_of(pinned, own_req=""), "A", 0.0)
    shared = site.partitions.share(where, site.scores, Jobs([steered], (), (), ()), NOW_S, INTERVAL_S).shared
    assert shared.wishes[0].lease is not None and shared.wishes[0].lease.until_s == NOW_S + INTERVAL_S


def test_gpus_that_others_are_about_to_take_are_no_room(site: Site) -> None:
    pinned = [job(k, "fast", req_nodes=(name,), gpus=2, comment="") for k, name in ((20, "f0"), (21, "f1"))]
    where = overview(FULL[0], *pinned, job())
    shared = site.partitions.share(where, site.scores, Jobs([waiting(job())], (), (), ()), NOW_S, INTERVAL_S).shared
    assert shared.wishes[0].lease is not None and shared.wishes[0].lease.until_s > NOW_S + 60


def test_a_node_that_holds_more_than_it_has_hides_no_room(site: Site) -> None:
    """Claims may exceed what is free."""
    pinned = [job(20 + k, "fast", req_nodes=("f1",), gpus=2, comment="") for k in range(3)]
    two = job(TresPerNode="(null)", TresPerJob="gres:gpu:2", NumNodes="1-2")
    where = overview(FULL[0], *pinned, two)
    shared = site.partitions.share(where, site.scores, Jobs([waiting(two)], (), (), ()), NOW_S, INTERVAL_S).shared
    assert shared.wishes[0].lease is not None and shared.wishes[0].lease.until_s == NOW_S + INTERVAL_S


def test_whole_nodes_need_empty_ones(site: Site) -> None:
    whole = job(OverSubscribe="NO")
    half = [running(k, "fast", {name: (0,)}) for k, name in ((2, "f0"), (3, "f1"))]
    (found,) = site.wishes(FULL[0], *half, whole).values()
    assert found.lease is not None and found.lease.until_s > NOW_S + 60
    (found,) = site.wishes(FULL[0], half[0], whole).values()
    assert found.lease is not None and found.lease.until_s == NOW_S + INTERVAL_S


def test_without_partitions_that_are_up_or_jobs_nothing_is_wished(site: Site) -> None:
    assert site.wishes() == site.wishes(job(partition="slow")) == {}
    assert site.wishes(job(), parts=[part("slow", "s0", up=False), part("fast", "f0", up=False)]) == {}
    assert site.wishes(job(), nodes=[node(name, gpus=0) for name in ("s0", "s1", "f0", "f1")]) == {}


def test_the_journal_is_asked_once_for_all_running_jobs(site: Site) -> None:
    runs = [running(k, "slow", {name: (g,)}) for k, (name, g) in enumerate([("s0", 0), ("s0", 1), ("s1", 0)], 20)]
    asked: list[str] = []

    def share(count: int) -> list[tuple[str, ...]]:
        mine = [running_factory.running(one) for one in runs[:count]]
        found = site.partitions.share(overview(*runs), site.scores, Jobs((), mine, (), ()), NOW_S, INTERVAL_S)
        return [one.own_partitions for one in found.running]

    share(1)  # throughputs are kept from now on
    for number in (20, 21):
        site.journal.lease(OURS._replace(job_id=number))
        site.journal.end_lease(number, "waiting no longer pays", NOW_S, Sort.PARTITIONS)
    site.journal._connection.set_trace_callback(asked.append)
    assert share(1) == [("slow", "fast")]
    for_one = len(asked)
    assert share(3) == [("slow", "fast"), ("slow", "fast"), ()]
    assert len(asked) == 2 * for_one


def test_a_running_job_whose_nodes_have_left_its_partition(site: Site) -> None:
    """It holds nothing that is shared, so nobody takes part."""
    site.journal.lease(OURS)
    one = running(7, "slow", {"s0": (0,)})
    where = overview(one, parts=[part("slow", "s1"), part("fast", "f0", "f1")])
    mine = running_factory.running(one)
    found = site.partitions.share(where, site.scores, Jobs((), [mine], (), ()), NOW_S, INTERVAL_S)
    assert found.shared.wishes == () and found.running[0].elsewhere == ()


def test_a_policy_that_is_not_known(tmp_path: Path, journal: Journal) -> None:
    with pytest.raises(ConfigError, match=r"'magic'.*nonpreemptive-makespan"):
        Site(tmp_path, journal, allocation="magic")


def test_a_table_that_cannot_be_read(tmp_path: Path, journal: Journal) -> None:
    site = Site(tmp_path, journal)
    (tmp_path / "t.csv").unlink()
    with pytest.raises(DataError, match=r"t\.csv"):
        site.share(overview(*FULL, job()))


# -- new jobs -------------------------------------------------------------------------------

PARTED = "pal:job=A;from=x pal:part=40;own=slow,fast;set=fast"


def test_new_jobs_find_prices_and_loads_even_if_nobody_waits(tmp_path: Path, journal: Journal) -> None:
    site = Site(tmp_path, journal, allocation="nonpreemptive-completion")
    site.share(overview())
    empty = site.partitions.market
    assert empty is not None and set(empty.gpus) == {"slow", "fast"}
    assert {(one.price, one.load_s) for some in empty.gpus.values() for one in some} == {(0.0, 0.0)}
    assert empty.speeds["app"][1]["fast"][0] == pytest.approx(4 * empty.speeds["app"][1]["slow"][0], rel=1e-3)
    assert "even" in empty.speeds and (empty.at_s, empty.every_s) == (NOW_S, INTERVAL_S)
    site.share(overview(*FULL))
    busy = site.partitions.market
    assert busy is not None and busy.gpus["fast"][0].load_s > 0 and busy.gpus["slow"][0].load_s > 0
    site.share(overview(*FULL, job()))
    more = site.partitions.market
    assert more is not None and more.gpus["fast"][0].load_s > busy.gpus["fast"][0].load_s
    for other in ("gavel:max-sum", "pal-sia"):
        site = Site(tmp_path, journal, allocation=other)
        site.share(overview(*FULL, job()))
        assert site.partitions.market is None


def test_a_list_that_palsub_made_shorter_is_the_ticks_from_now_on(site: Site) -> None:
    marked = job(partition="fast", comment=PARTED)
    found = site.wishes(*FULL, marked)[7]
    assert found.lease is not None and (found.lease.ours, found.lease.own) == ("fast", OWN)
    even = site.wishes(*FULL, marked._replace(name="even"))[7]
    assert (even.action, even.fields) == ("partition-clear", {"Partition": OWN})
    named = marked._replace(
        name="even", req_nodes=("f0",), comment=f"pal:lease=60;req=;exc=;act=nodelist;set=f0 {PARTED}"
    )
    assert site.wishes(*FULL, named)[7].fields == {"Partition": OWN, "ReqNodeList": ""}  # none of slow is among them
    down = [part("slow", "s0", "s1", up=False), part("fast", "f0", "f1")]
    kept = site.wishes(*FULL, marked._replace(name="even"), parts=down)
    assert all("Partition" not in wish.fields for wish in kept.values())  # Slurm would drop the one that is down


def test_the_time_that_palsub_kept_it_off_counts_as_waiting(site: Site) -> None:
    marked = job(partition="fast", comment=PARTED)
    (waits,) = site.wishes(*SLOW_FREE, marked).values()
    assert waits.action == "partition"
    (tired,) = site.wishes(*SLOW_FREE, marked._replace(submit_s=NOW_S - 3600.0)).values()
    assert (tired.action, tired.fields) == ("partition-clear", {"Partition": OWN})
