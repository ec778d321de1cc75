# SPDX-License-Identifier: MIT
"""Jobs that make room for those of a higher tier, and partitions whose nodes change, as a real 22.05 does."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from slurm_pal.base.cluster import Partition
from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.simulate.hardware import hardware as hardware_of
from slurm_pal.simulate.jobs import ReplayJob
from slurm_pal.simulate.replay import ReplayPlan
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.slurm.parse import partition
from slurm_pal.twin.client import VirtualClient
from slurm_pal.twin.room import hardware
from slurm_pal.twin.run import Twin
from slurm_pal.twin.slurm_settings import PreemptSettings, SlurmSettings, slurm_settings
from slurm_pal.twin.slurm_side import SlurmSide
from slurm_pal.twin.virtual_slurm import VirtualSlurm
from slurm_pal.twin.work import Work

from .test_virtual_slurm import AT_ONCE, NOW_S, Cluster, Lengths

PREEMPTS = AT_ONCE._replace(
    preempt=PreemptSettings(True, "REQUEUE", again_s=12.0), requeue_delay_s=6.0, bf_interval_s=30.0,
    sched_interval_s=1.0,
)  # fmt: skip
BACKFILL_FIRST = PREEMPTS._replace(submit_pass_s=0.5, bf_interval_s=1.0)
ONE, ALL = "--gpus-per-node=1", "--gpus-per-node=4"


class Site(Cluster):
    """4 nodes of 4 GPUs: an owner's jobs of tier 10, guests of tier 1 (a partition each for REQUEUE, CANCEL and with a
    grace time), and `mid` between them."""

    def __init__(self, settings: SlurmSettings = PREEMPTS, nodes: int = 4, **more: Partition) -> None:
        names = tuple(f"n{k}" for k in range(nodes))
        whole = Partition("guest", True, True, names)
        parts: Mapping[str, Partition] = {
            "guest": whole, "owner": whole._replace(tier=10, preempt="OFF"), "mid": whole._replace(tier=5),
            "cancel": whole._replace(preempt="CANCEL"), "grace": whole._replace(grace_s=4), **more,
        }  # fmt: skip
        self.payload = Lengths()
        self.slurm = VirtualSlurm(
            hardware(names, [("",) * 4] * nodes, [16] * nodes, [64_000] * nodes),
            [part._replace(name=name, default=name == "guest") for name, part in parts.items()],
            self.payload, settings, NOW_S,
        )  # fmt: skip
        self.payload.slurm = self.slurm
        self.client = VirtualClient(self.slurm)

    def guests(self, count: int, *words: str, part: str = "guest") -> list[int]:
        found = [self.submit("-p", part, *words, lasts=1000, limit="30") for _ in range(count)]
        self.until(1)
        return found

    def owner(self, *words: str, lasts: int = 100, limit: str = "10") -> int:
        return self.submit("-p", "owner", *words, lasts=lasts, limit=limit)

    def stopped(self) -> dict[int, str]:
        return {n: job.state for n, job in self.slurm.jobs.items() if job.restarts or job.state == "PREEMPTED"}


def test_a_free_node_comes_before_any_victim_and_the_oldest_job_on_the_fewest_nodes_goes_first() -> None:
    site = Site()
    wide, first, second = *site.guests(1, "-N2", ALL), *site.guests(2, "-N1", "--gpus-per-node=2")
    on_free = site.owner("-N1", ALL)  # n3
    site.until(2)
    assert site.stopped() == {} and site.places()[on_free] == ("n3:(0, 1, 2, 3)",)
    small = site.owner("-N1", ONE)
    site.until(3)
    assert site.stopped() == {first: "PENDING"} and site.places()[small] == ("n2:(0,)",)
    large = site.owner("-N1", ALL)  # n2 is the owner's in part: only the wide guest makes room
    site.until(5)
    assert site.stopped().keys() == {first, wide} and site.places()[large] == ("n0:(0, 1, 2, 3)",)
    assert site.slurm.jobs[second].state == "RUNNING" and site.slurm.jobs[wide].reason == "BeginTime"


def test_those_taken_in_vain_stay() -> None:
    """Seen: `victims` takes away one after the other, then begins with the last, so n0's small guest stays."""
    site = Site(nodes=2)
    site.owner("-N1", "--gpus-per-node=2", "-w", "n0")
    small, whole = site.guests(1, "-N1", ONE, "-w", "n0")[0], site.guests(1, "-N1", ALL, "-w", "n1")[0]
    owner = site.owner("-N1", ALL)
    site.until(3)
    assert site.stopped() == {whole: "PENDING"} and site.places()[owner] == ("n1:(0, 1, 2, 3)",)
    assert site.slurm.jobs[small].state == "RUNNING"


def test_lower_tiers_leave_first_and_the_own_one_never() -> None:
    site = Site()
    mid, low = site.guests(8, ONE, part="mid"), site.guests(8, ONE)
    site.owner("-N1", "--gpus-per-node=2")
    site.until(3)
    assert [*site.stopped()] == low[:2]
    blocked = site.guests(1, "-N4", ALL, part="mid")[0]  # of its own tier there are too many
    site.until(40)
    assert [*site.stopped()] == low[:2] and site.reason(blocked) == "Resources" and mid[0] not in site.stopped()


def test_nobody_leaves_where_that_would_not_suffice() -> None:
    site = Site(nodes=2)
    site.owner("-N1", ONE, "-w", "n0", lasts=1000)
    site.guests(1, "-N1", ALL)
    waits = site.owner("-N2", ALL)
    site.until(60)
    assert site.stopped() == {} and site.reason(waits) == "Resources"


@pytest.mark.parametrize(("part", "words", "state"), [
    ("guest", (), "PENDING"), ("guest", ("--no-requeue",), "PREEMPTED"), ("cancel", (), "PREEMPTED"),
])  # fmt: skip
def test_the_partition_says_what_becomes_of_them(part: str, words: tuple[str, ...], state: str) -> None:
    site = Site(nodes=1)
    guest = site.guests(1, ALL, *words, part=part)[0]
    site.owner(ALL, lasts=30)
    site.until(2)
    assert site.stopped() == {guest: state}
    assert site.payload.ended[guest] == ("REQUEUED" if state == "PENDING" else "PREEMPTED")
    site.until(60)
    again = [at_s for number, at_s, _ in site.payload.starts if number == guest]
    assert again == ([0.0, 31.0] if state == "PENDING" else [0.0])


def test_off_protects() -> None:
    site = Site(PREEMPTS._replace(preempt=PREEMPTS.preempt._replace(mode="OFF")), nodes=1)
    site.guests(1, ALL)
    site.owner(ALL)
    site.until(100)
    assert site.stopped() == {}
    plain = Site(AT_ONCE, nodes=1)  # no PreemptType
    plain.guests(1, ALL)
    plain.owner(ALL)
    plain.until(100)
    assert plain.stopped() == {}


@pytest.mark.parametrize(("again_s", "leaves_s"), [(12.0, 13.0), (50.0, 30.0)])
def test_a_grace_time_ends_with_the_next_attempt_or_the_next_sweep(again_s: float, leaves_s: float) -> None:
    """Measured: 12.2 s with KillWait=2 and MessageTimeout=10; with KillWait=40 at the sweep, which comes every 30 s."""
    site = Site(PREEMPTS._replace(preempt=PREEMPTS.preempt._replace(again_s=again_s)), nodes=2)
    first, second = site.guests(2, ALL, part="grace")
    owner = site.owner(ALL)
    site.until(29)
    assert site.slurm.jobs[second].state == "RUNNING"  # one victim, however long it stays
    site.until(60)
    assert site.starts()[owner] == pytest.approx(leaves_s, abs=1.1) and [*site.stopped()] == [first]


def test_a_job_that_has_preempted_does_so_again_only_after_a_while() -> None:
    """Measured with backfill: guests behind it take the free node that it counted on, and it waits for 12 s."""
    site = Site(BACKFILL_FIRST, nodes=3)
    first, second = site.guests(2, "-N1", ALL)
    site.until(1.5)
    owner, late = site.owner("-N2", ALL), site.submit("-p", "guest", ONE, lasts=1000, limit="30")
    site.until(10)
    assert [*site.stopped()] == [first] and late in site.starts() and owner not in site.starts()
    site.until(20)
    assert [*site.stopped()] == [first, second] and site.starts()[owner] == pytest.approx(14.0, abs=1.1)


def test_while_those_that_leave_complete_their_nodes_are_kept() -> None:
    """Measured with guests that ignore SIGTERM: from the next cycle on nobody else gets what the owner counts on."""
    site = Site(BACKFILL_FIRST._replace(leave_s=9.0))
    first, *_ = site.guests(3, "-N1", ALL)
    site.until(1.5)
    wide = site.owner("-N2", ALL)  # n0 and the free n3
    site.until(4.5)
    late = site.submit("-p", "guest", ONE, lasts=9, limit="30")
    site.until(10)
    assert [*site.stopped()] == [first] and not {late, wide} & site.starts().keys()
    site.until(60)
    assert site.starts()[wide] == pytest.approx(11.0, abs=0.1) and [*site.stopped()] == [first]


def test_each_job_in_one_cycle_of_backfill_takes_victims_of_its_own() -> None:
    site = Site(BACKFILL_FIRST, nodes=2)
    guests = site.guests(2, "-N1", ALL)
    site.until(1.5)
    owners = [site.owner("-N1", ONE) for _ in range(2)]  # one node would do for both
    site.until(4)
    assert [*site.stopped()] == guests
    assert [site.places()[number] for number in owners] == [("n0:(0,)",), ("n0:(1,)",)]


def test_a_partition_gets_other_nodes_at_once_and_running_jobs_stay() -> None:
    site = Site()
    site.guests(4, "-N1", ALL)
    wide, named, plain = site.guests(1, "-N3", ONE)[0], *site.guests(1, ONE, "-w", "n3"), *site.guests(1, ONE)
    site.client.update_partition("guest", Nodes="n[0-1]")
    site.until(10)
    assert [part.nodes for part in site.client.overview().partitions if part.name == "guest"] == [("n0", "n1")]
    assert {job.state for job in site.client.jobs()[:4]} == {"RUNNING"}
    assert site.client.nodes()[3].partitions == ("owner", "mid", "cancel", "grace")
    assert site.reason(wide) == "PartitionNodeLimit"
    # Measured: a job that the partition could never start is held for good, nodes that come back do not release it.
    assert (site.reason(named), site.slurm.show(site.slurm.jobs[named]).priority) == ("BadConstraints", 0)
    assert site.reason(plain) == "Resources"
    site.client.update_partition("guest", Nodes="ALL")
    site.until(2000)
    assert wide in site.starts() and plain in site.starts() and site.reason(named) == "BadConstraints"


def test_an_empty_or_closed_partition_takes_jobs_and_starts_none() -> None:
    site = Site()
    for fields, why in (({"Nodes": ""}, "PartitionConfig"), ({"Nodes": "n0", "State": "DOWN"}, "PartitionDown")):
        site.client.update_partition("guest", **fields)
        number = site.submit(ONE, lasts=5)
        site.until(site.slurm.now_s - NOW_S + 5)
        assert site.reason(number) == why
    site.client.update_partition("guest", State="UP")
    site.until(site.slurm.now_s - NOW_S + 60)
    assert {1, 2} <= site.starts().keys()


def test_updates_of_partitions_are_refused_whole() -> None:
    site = Site()
    for name, fields, why in (
        ("none", {"Nodes": "n0"}, "partition name"), ("guest", {"Nodes": "n9", "State": "DOWN"}, "node name"),
        ("guest", {"Foo": "1"}, "not supported"),
    ):  # fmt: skip
        with pytest.raises(SlurmError, match=why):
            site.client.update_partition(name, **fields)
    assert all(part.up and len(part.nodes) == 4 for part in site.client.overview().partitions)


def test_settings_follow_scontrol() -> None:
    shown = {
        "PreemptType": "preempt/partition_prio", "PreemptMode": "GANG,REQUEUE", "KillWait": "2 sec",
        "MessageTimeout": "10 sec", "SchedulerParameters": "preempt_reorder_count=3,sched_interval=1",
    }  # fmt: skip
    found = slurm_settings(shown)
    assert found.preempt == PreemptSettings(True, "REQUEUE", 3, 12.0) and found.sched_interval_s == 1.0
    assert slurm_settings({}).preempt == PreemptSettings()
    line = "PartitionName=guest Nodes=n[0-1] GraceTime=30 PriorityTier=1 PreemptMode=REQUEUE State=UP"
    assert (partition(line).preempt, partition(line).grace_s) == ("REQUEUE", 30)


@pytest.mark.parametrize(("movable", "kept_s"), [(True, 200.0), (False, 0.0)])
def test_a_guest_that_was_stopped_loses_what_no_checkpoint_has(movable: bool, kept_s: float) -> None:
    later: list[object] = []
    work = Work(
        {"A": [[1.0, 1.0]]}, ("n0",), NOW_S, 0.0, 0.0, lambda at_s, what: later.append(at_s), checkpoint_s=100.0
    )
    names, part = ("n0",), Partition("guest", True, True, ("n0",))
    slurm = work.slurm = VirtualSlurm(
        hardware(names, [("",) * 2], [16], [64_000]), [part, part._replace(name="owner", default=False, tier=2)],
        work, PREEMPTS, NOW_S,
    )  # fmt: skip
    client = VirtualClient(slurm)
    trace = TraceJob("g", 0.0, GpuShape(2, 1, 2), 1000.0, "A", limit_s=5000.0, move_cost_s=30.0, movable=movable)
    own = ReplayJob(trace, 0, ReplaySettings(), True)
    work.jobs[1] = own
    client.submit(["--gpus-per-node=2", "-t", "100", "-p", "guest"], "")
    slurm.advance(NOW_S + 250)
    work.jobs[2] = ReplayJob(trace._replace(job_id="o", ideal_s=10.0), 1, ReplaySettings(), True)
    client.submit(["--gpus-per-node=2", "-t", "100", "-p", "owner"], "")
    slurm.advance(NOW_S + 251)
    assert own.done_s == kept_s and own.restarts == 1 and own.moves == 0
    assert work.lost == {1: pytest.approx((250 - kept_s) * 2)}
    slurm.advance(NOW_S + 3000)
    ended = {outcome.job_id: outcome.finish_s for outcome in work.outcomes}
    assert ended["g"] == pytest.approx(260 + 1000 - kept_s + 20, abs=2.0)  # two thirds of a move are its restart


@pytest.mark.parametrize(("policy", "loan"), [("slurm-twin", False), ("tick", True)])
def test_a_replay_has_owners_and_guests(policy: str, loan: bool) -> None:
    """Without loans Slurm requeues the oldest guest, which loses what it did since its checkpoint."""
    names = ("n0", "n1")
    parts = (
        Partition("owner", False, True, names, tier=10, preempt="OFF"), Partition("guest", False, True, names),
    )  # fmt: skip
    table = [[1.0] * 4] * 2
    machine = hardware_of({c: table for c in "ABC"}, None, names, {part.name: (0, 1) for part in parts})
    shape = GpuShape(4, 1, 4)
    jobs = [TraceJob(f"g{k}", 0.0, shape, 7000.0, "A", limit_s=14_000.0, partition="guest") for k in range(2)]
    jobs.append(TraceJob("o", 5000.0, shape, 600.0, "A", limit_s=1200.0, partition="owner"))
    config = Config()
    if loan:
        config.set("loan", "owners", "owner", "test")
        config.set("loan", "guest", "guest", "test")
    pairs = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
    twin = Twin(config, pairs, side=SlurmSide(rules={part.name: part for part in parts}))
    found = twin.run(ReplayPlan(Trace("two", tuple(jobs)), machine, policy))
    outcomes = {outcome.job_id: outcome for outcome in found.outcomes}
    assert {outcome.end for outcome in found.outcomes} == {"COMPLETED"}
    owner, guests = outcomes["o"], [outcomes["g0"], outcomes["g1"]]
    assert owner.start_s - 5000.0 < 60.0
    if policy == "slurm-twin":
        assert [one.restarts for one in guests] == [1, 0]
        restart_s = 120.0  # of a move of 180 s
        assert found.lost_gpu_s == pytest.approx(4 * (5000.0 - 3600.0 + restart_s), rel=0.01)
    else:
        assert sum(one.restarts + one.moves for one in guests) >= 1 and found.lost_gpu_s > 0.0
