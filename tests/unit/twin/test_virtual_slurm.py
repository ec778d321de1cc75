# SPDX-License-Identifier: MIT
"""The virtual slurmctld keeps the rules that slurm-pal depends on: what starts, when and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.cluster import Partition
from slurm_pal.base.errors import NotNowError, SlurmError
from slurm_pal.decide.job_request import request_of
from slurm_pal.decide.request import read
from slurm_pal.twin.client import VirtualClient
from slurm_pal.twin.room import hardware
from slurm_pal.twin.slurm_settings import SlurmSettings, slurm_settings
from slurm_pal.twin.virtual_job import VirtualJob
from slurm_pal.twin.virtual_slurm import VirtualNode, VirtualSlurm

NOW_S = 1_700_000_000.0
AT_ONCE = SlurmSettings(
    submit_pass_s=0.0, batch_sched_delay_s=0.0, launch_s=0.0, complete_s=0.0, stop_s=0.0, leave_s=0.0
)


class Lengths:
    """Jobs that run for as long as their names say, s."""

    def __init__(self) -> None:
        self.starts: list[tuple[int, float, tuple[str, ...]]] = []
        self.ended: dict[int, str] = {}
        self.slurm: VirtualSlurm | None = None

    def started(self, job: VirtualJob, now_s: float) -> tuple[float, str]:
        assert self.slurm is not None
        names = tuple(f"{self.slurm.hardware.names[take.node]}:{take.indexes}" for take in job.takes)
        self.starts.append((job.job_id, now_s - NOW_S, names))
        return now_s + float(job.options["job-name"]), "COMPLETED"

    def stopped(self, job: VirtualJob, now_s: float, state: str) -> None:
        self.ended[job.job_id] = state

    def signalled(self, job: VirtualJob, name: str, now_s: float) -> None:
        """Nothing."""


class Cluster:
    """Nodes of 4 GPUs and 16 CPUs."""

    def __init__(
        self, nodes: int = 2, settings: SlurmSettings = AT_ONCE, parts: Mapping[str, Sequence[int]] = {},
        made: Sequence[VirtualNode] = (), types: Sequence[str] = ("",) * 4,
    ) -> None:  # fmt: skip
        names = [f"n{k}" for k in range(nodes)]
        self.payload = Lengths()
        partitions = [Partition(name, False, True, tuple(names[k] for k in rows)) for name, rows in parts.items()]
        self.slurm = VirtualSlurm(
            hardware(names, [tuple(types)] * nodes, [16] * nodes, [64_000] * nodes),
            [Partition("all", True, True, tuple(names)), *partitions], self.payload, settings, NOW_S, made,
        )  # fmt: skip
        self.payload.slurm = self.slurm
        self.client = VirtualClient(self.slurm)

    def submit(self, *words: str, lasts: int = 100, limit: str = "") -> int:
        time = [f"--time={limit}"] if limit else []
        return self.client.submit([*words, *time, f"--job-name={lasts}"], "")

    def until(self, at_s: float) -> None:
        self.slurm.advance(NOW_S + at_s)

    def starts(self) -> dict[int, float]:
        return {number: at_s for number, at_s, _ in self.payload.starts}

    def places(self) -> dict[int, tuple[str, ...]]:
        return {number: names for number, _, names in self.payload.starts}

    def reason(self, number: int) -> str:
        return self.slurm.jobs[number].reason


def test_the_lowest_free_index_of_the_smallest_run_is_handed_out() -> None:
    made = Cluster(3)
    made.submit("--gpus-per-node=4", "-w", "n1")
    made.submit("--gpus-per-node=1")  # the runs n0 and n2 are equal: the first
    made.submit("--gpus-per-node=2")
    made.submit("--gpus-per-node=2")
    made.until(10)
    assert made.places() == {1: ("n1:(0, 1, 2, 3)",), 2: ("n0:(0,)",), 3: ("n0:(1, 2)",), 4: ("n2:(0, 1)",)}


def test_a_blocked_job_blocks_its_partition_and_a_pinned_one_only_its_nodes() -> None:
    made = Cluster(2, AT_ONCE._replace(backfill=False), {"other": [1]})
    made.submit("--gpus-per-node=3", "-w", "n0")
    pinned = made.submit("--gpus-per-node=2", "-w", "n0")
    small = made.submit("--gpus-per-node=1")
    made.until(1)
    assert made.reason(pinned) == "Resources" and made.places()[small] == ("n1:(0,)",)
    wide = made.submit("--gpus-per-node=4", "-N2")
    behind = made.submit("--gpus-per-node=1")
    elsewhere = made.submit("--gpus-per-node=1", "-p", "other")
    made.until(2)
    assert made.reason(wide) == "Resources" and made.reason(behind) == "Priority"
    assert elsewhere not in made.starts() and made.reason(elsewhere) == "Resources"  # its node is kept for the head


def test_backfill_keeps_whole_nodes_for_planned_jobs_until_they_start() -> None:
    made = Cluster(2, AT_ONCE)
    made.submit("--gpus-per-node=2", "-w", "n0", lasts=600, limit="10")
    wide = made.submit("--gpus-per-node=3", "-w", "n0", limit="10")  # planned in 10 min
    short = made.submit("--gpus-per-node=1", "-w", "n0", lasts=60, limit="5")
    long = made.submit("--gpus-per-node=1", "-w", "n0", lasts=60, limit="30")
    made.until(31)
    assert short in made.starts() and long not in made.starts()
    assert made.slurm.jobs[wide].start_s > NOW_S + 590 and "PLANNED" not in made.slurm.node(0).states
    made.until(700)
    assert made.starts()[wide] == 600 and long in made.starts()


def test_an_idle_node_that_is_kept_shows_it() -> None:
    made = Cluster(2)
    made.submit("--gpus-per-node=4", "-w", "n0", lasts=600, limit="10")
    made.submit("--gpus-per-node=4", "-N2", limit="10")
    made.until(31)
    assert made.slurm.node(1).states == {"IDLE", "PLANNED"} and made.slurm.node(0).states == {"MIXED"}


@pytest.mark.parametrize(("settings", "planned"), [
    (AT_ONCE, True), (AT_ONCE._replace(bf_window_s=300.0), False), (AT_ONCE._replace(bf_max_job_test=0), False),
])  # fmt: skip
def test_jobs_beyond_window_and_depth_keep_nothing(settings: SlurmSettings, planned: bool) -> None:
    made = Cluster(1, settings)
    made.submit("--gpus-per-node=2", lasts=600, limit="10")
    wide = made.submit("--gpus-per-node=4", limit="10")
    made.until(31)
    assert (made.slurm.jobs[wide].start_s > 0) is planned


def test_before_a_reservation_of_nobody_only_what_ends_in_time_starts() -> None:
    """As measured on 22.05: short jobs fill the time before, and when it ends the first of the queue starts."""
    cluster = Cluster(2)
    cluster.submit("--gres=gpu:4", "--nodelist=n1", limit="10:00", lasts=600)
    cluster.client.fence("pal_wait_7_1", ["n0"], 120.0, 60.0, "slurm")
    waits = cluster.submit("--gres=gpu:4", limit="5:00")
    short = cluster.submit("--gres=gpu:1", limit="1:00", lasts=30)
    late = cluster.submit("--gres=gpu:1", limit="3:00")
    cluster.until(100)
    assert cluster.starts().keys() >= {short} and cluster.places()[short] == ("n0:(0,)",)
    assert (cluster.reason(waits), cluster.reason(late)) == ("Resources", "Priority")
    with pytest.raises(SlurmError, match="busy"):
        cluster.client.fence("pal_wait_8_1", ["n0", "n1"], 50.0, 60.0, "slurm")
    cluster.client.release("pal_wait_8_1")  # is not there
    cluster.until(179)
    assert not {waits, late} & cluster.starts().keys()
    cluster.until(185)
    assert cluster.starts()[waits] == pytest.approx(180, abs=1)


def test_a_reservation_that_is_released_lets_the_queue_start() -> None:
    cluster = Cluster(1)
    cluster.client.fence("pal_wait_7_1", ["n0"], 120.0, 60.0, "slurm")
    waits = cluster.submit("--gres=gpu:4", limit="5:00")
    cluster.until(50)
    cluster.client.release("pal_wait_7_1")
    cluster.until(60)
    assert cluster.starts()[waits] == pytest.approx(50, abs=1)


@pytest.mark.parametrize(("resolution_s", "fits"), [(60.0, True), (3600.0, False)])
def test_nodes_are_kept_from_a_start_that_is_rounded_down(resolution_s: float, fits: bool) -> None:
    made = Cluster(1, AT_ONCE._replace(bf_resolution_s=resolution_s))
    made.submit("--gpus-per-node=2", lasts=6000, limit="100")  # NOW_S is 13 min 20 s after the hour
    wide = made.submit("--gpus-per-node=4")
    short = made.submit("--gpus-per-node=2", limit="60")
    made.until(30)
    assert made.slurm.jobs[wide].start_s == NOW_S + 6000 and (short in made.starts()) is fits


@pytest.mark.parametrize(("after_s", "planned_s"), [(20, 620), (40, 600)])
def test_jobs_that_end_within_half_a_minute_are_planned_to_end_together(after_s: int, planned_s: int) -> None:
    """As 22.05 does (tests/slurm/test_twin_preemption.py)."""
    made = Cluster(1)
    made.submit("--gpus-per-node=2", lasts=600, limit="10")
    made.until(after_s)
    made.submit("--gpus-per-node=2", lasts=600, limit="10")
    waits = made.submit("--gpus-per-node=2", limit="10")
    made.until(100)
    assert made.slurm.jobs[waits].start_s == NOW_S + planned_s


def test_passes_for_submissions_come_at_most_so_often() -> None:
    made = Cluster(1, AT_ONCE._replace(submit_pass_s=0.5, batch_sched_delay_s=3.0))
    first = made.submit("--gpus-per-node=1")
    made.until(1)
    second = made.submit("--gpus-per-node=1")
    made.until(10)
    assert made.starts() == {first: 0.5, second: 3.5}


def test_cpus_and_memory_run_out_too() -> None:
    made = Cluster(1)
    made.submit("--gpus-per-node=1", "--cpus-per-task=15")
    blocked = made.submit("--gpus-per-node=1", "--cpus-per-task=2")
    made.until(1)
    assert made.reason(blocked) == "Resources"
    other = Cluster(1)
    other.submit("--gpus-per-node=1", "--mem=60G")
    blocked = other.submit("--gpus-per-node=1", "--mem=8G")
    other.until(1)
    assert other.reason(blocked) == "Resources"
    with pytest.raises(SlurmError, match="not available"):
        other.submit("--gpus-per-node=1", "--mem=80G")


def test_preferences_are_soft_features_and_types_hard_and_weights_order() -> None:
    nodes = [VirtualNode(), VirtualNode(["fast"]), VirtualNode(weight=5)]
    made = Cluster(3, made=nodes)
    liked, soft = (made.submit("--gpus-per-node=4", "--prefer=fast") for _ in range(2))
    hard = made.submit("--gpus-per-node=1", "-C", "fast")
    made.until(1)
    assert made.places()[liked][0].startswith("n1") and made.places()[soft][0].startswith("n0")
    assert made.reason(hard) == "Resources"
    typed = Cluster(1, types=("a", "b", "b", "b"))
    number = typed.submit("--gpus-per-node=b:2")
    typed.until(1)
    assert typed.places()[number] == ("n0:(1, 2)",)
    with pytest.raises(SlurmError, match="not available"):
        typed.submit("--gpus-per-node=a:2")


def test_whole_nodes_and_spread_totals() -> None:
    made = Cluster(3)
    made.submit("--gpus-per-node=1", "-w", "n0")
    whole, spread = made.submit("--gpus-per-node=1", "--exclusive"), made.submit("--gpus=6")
    made.until(1)
    assert made.places()[whole] == ("n1:(0, 1, 2, 3)",)
    assert made.places()[spread] == ("n0:(1, 2, 3)", "n2:(0, 1, 2)")


def test_a_requeued_job_completes_waits_and_starts_when_told() -> None:
    made = Cluster(1, AT_ONCE._replace(stop_s=1.0, requeue_delay_s=121.0))
    number = made.submit("--gpus-per-node=1", lasts=1000)
    made.until(10)
    made.client.requeue(number)
    made.client.requeue(number)  # it does not run any more
    shown = made.client.jobs_of([number])[number]
    assert (shown.state, shown.restarts, shown.nodes) == ("COMPLETING", 1, ("n0",))
    made.until(12)
    shown = made.client.jobs_of([number])[number]
    assert (shown.state, shown.reason, shown.eligible_s) == ("PENDING", "BeginTime", NOW_S + 11 + 121)
    made.client.update_job(number, StartTime="now+2")
    made.until(20)
    assert [at_s for job, at_s, _ in made.payload.starts if job == number] == [0.0, 14.0]
    assert made.payload.ended == {number: "PENDING"}


def test_updates_are_taken_whole_or_not_at_all() -> None:
    made = Cluster(2)
    running, waiting = made.submit("--gpus-per-node=4", "-N2"), made.submit("--gpus-per-node=1")
    made.until(1)
    for number, fields, why in (
        (running, {"ReqNodeList": "n0"}, "no longer pending"),
        (waiting, {"ReqNodeList": "n9", "Comment": "x"}, "node name"),
        (waiting, {"Partition": "none"}, "partition"), (99, {"Comment": "x"}, "Invalid job id"),
        (waiting, {"Gres": "gpu:2"}, "not supported"), (waiting, {"Comment": "x" * 1025}, "too long"),
        (waiting, {"Nice": "much"}, "numeric"),
    ):  # fmt: skip
        with pytest.raises(SlurmError, match=why):
            made.client.update_job(number, **fields)
    assert made.slurm.jobs[waiting].comment == ""
    made.client.update_job(running, AdminComment="a", Comment="c")
    made.client.update_job(waiting, ReqNodeList="n1", ExcNodeList="")
    made.until(101)
    assert made.places()[waiting] == ("n1:(0,)",) and made.client.jobs()[0].admin_comment == "a"


def test_priorities_follow_arrival_nice_and_the_weights_of_slurm_conf() -> None:
    basic = Cluster(1)
    basic.submit("--gpus-per-node=4")
    first, nice, last = (basic.submit("--gpus-per-node=4", *words) for words in ([], ["--nice=100"], []))
    basic.until(1000)
    assert sorted((first, nice, last), key=basic.starts().__getitem__) == [first, last, nice]
    words = {
        "PriorityType": "priority/multifactor", "PriorityWeightJobSize": "1000", "PriorityFavorSmall": "No",
        "PriorityWeightAge": "10", "PriorityMaxAge": "0-01:00:00", "PriorityCalcPeriod": "00:01:00",
    }  # fmt: skip
    found = slurm_settings(words).priority
    assert (found.multifactor, found.size, found.age, found.max_age_s, found.calc_period_s) == (
        True,
        1000,
        10,
        3600,
        60,
    )
    made = Cluster(2, AT_ONCE._replace(priority=found))
    made.submit("--gpus-per-node=4", "-N2")
    small, wide = made.submit("--gpus-per-node=4"), made.submit("--gpus-per-node=4", "-N2")
    made.until(101)
    assert wide in made.starts() and small not in made.starts()
    lifted = made.submit("--gpus-per-node=4")
    made.client.update_job(lifted, SiteFactor="5000")
    assert made.client.jobs_of([lifted])[lifted].priority == 5265  # half for nodes, half for CPUs
    made.until(202)
    assert lifted in made.starts()


def test_nice_and_site_factor_count_as_in_slurm() -> None:
    """Measured on 22.05: Nice of a running job may be changed and counts after a requeue; SiteFactor needs factors."""
    made = Cluster(1)
    first = made.submit("--gpus-per-node=4")
    made.until(1)
    second, third = made.submit("--gpus-per-node=4"), made.submit("--gpus-per-node=4")
    before = made.slurm.jobs[third].priority
    made.client.update_jobs([third], SiteFactor="70")
    assert made.slurm.jobs[third].priority == before
    made.client.update_jobs([first, second, third], Nice="-5")
    shown = made.client.jobs_of([first, third])
    assert shown[first].nice == -5 == shown[third].nice and shown[third].priority == before + 5
    with pytest.raises(SlurmError, match="not running a supported priority plugin"):
        made.client.site_factors()
    with pytest.raises(SlurmError, match="Invalid job id"):
        made.client.update_jobs([99, second], Nice="3")
    assert made.slurm.jobs[second].nice == 3  # one that is refused keeps no other from it


def test_what_slurm_conf_says_of_scheduling() -> None:
    words = "bf_interval=10,bf_window=60,bf_resolution=300,bf_max_job_test=7,batch_sched_delay=0"
    found = slurm_settings({"SchedulerParameters": words, "AuthInfo": "socket=x,cred_expire=5"})
    assert (found.bf_interval_s, found.bf_window_s, found.bf_resolution_s, found.bf_max_job_test) == (10, 3600, 300, 7)
    assert found.batch_sched_delay_s == 0 and found.requeue_delay_s == 6 and found.backfill
    assert slurm_settings({}) == SlurmSettings()
    assert not slurm_settings({"SchedulerType": "sched/builtin"}).backfill
    assert (
        slurm_settings({"SchedulerParameters": "bf_interval=soon", "AuthInfo": "cred_expire=2"}).requeue_delay_s == 121
    )


def test_without_slurmdbd_nothing_ages_and_nobody_has_a_share() -> None:
    words = {"PriorityType": "priority/multifactor", "PriorityWeightAge": "10", "PriorityWeightFairShare": "20",
             "PriorityWeightQOS": "30", "PriorityWeightPartition": "40"}  # fmt: skip
    for kind, weights in (("slurmdbd", (10, 20, 30, 40)), ("none", (0, 0, 0, 40))):
        found = slurm_settings(words | {"AccountingStorageType": f"accounting_storage/{kind}"}).priority
        assert (found.age, found.fair_share, found.qos, found.partition) == weights


def test_failures_are_given_in_place_of_orders() -> None:
    made = Cluster(1)
    number = made.submit("--gpus-per-node=1")
    client = VirtualClient(made.slurm, failing=lambda kind, job_id: NotNowError(kind) if kind == "update" else None)
    with pytest.raises(NotNowError, match="update"):
        client.update_job(number, Comment="x")
    assert made.slurm.jobs[number].comment == "" and client.refused == 1 and client.overview().nodes


def test_the_overview_shows_what_the_command_line_backend_would() -> None:
    made = Cluster(1)
    made.submit("--gpus-per-node=4", lasts=10)
    plain, pinned = made.submit("--gpus-per-node=1"), made.submit("--gpus-per-node=1", "-w", "n0")
    marked = made.submit("--gpus-per-node=1", "--comment=my pal:job=A;from=x")
    word = made.submit("--gpus-per-node=1", "--comment=nopal:job=A")
    made.until(1)
    assert [job.job_id for job in made.client.overview().jobs] == [1, pinned]
    seen = made.client.overview(marked=True)
    assert [job.job_id for job in seen.jobs] == [1, pinned, marked]
    assert seen.queued == {("all", "Priority"), ("all", "Resources")}
    assert {plain, word} <= {job.job_id for job in made.client.jobs()}
    made.until(300)
    assert made.client.overview(marked=True).jobs == () and made.client.jobs() != ()
    made.until(1000)
    assert made.client.jobs() == ()  # MinJobAge


@pytest.mark.parametrize("words", [
    ["--gpus-per-node=2", "--nodes=2-2"], ["--gpus-per-node=1"], ["--gpus-per-node=4", "--exclusive", "--nodes=1-1"],
    ["--gpus-per-node=2", "--nodes=1-1", "--cpus-per-task=4", "--mem=1000"], ["--gpus=1"],
    ["--gpus-per-node=b:1", "--constraint=fast"], ["--gpus-per-node=2", "--nodes=1-1", "--cpus-per-gpu=2"],
])  # fmt: skip
def test_a_waiting_job_asks_for_what_it_was_submitted_with(words: list[str]) -> None:
    """The tick reads a job's request from what Slurm shows of it."""
    made = Cluster(2, types=("b",) * 4, made=[VirtualNode(["fast"]), VirtualNode(["fast"])])
    made.submit("--gpus-per-node=4", "-N2")
    made.until(1)
    number = made.submit(*words)
    options = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    wanted = read(options, submitted=True)
    found = request_of(made.client.jobs_of([number])[number])
    keys = ("leave", "shape", "nodes_min", "tasks", "cpus_per_task", "cpus_per_gpu", "mem_per_node_mib", "constraint")
    assert {key: getattr(found, key) for key in keys} == {key: getattr(wanted, key) for key in keys}


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4), st.integers(1, 3), st.integers(1, 900), st.integers(0, 300),
            st.sampled_from(["", "-w n1", "-x n0", "--exclusive"]),
        ),
        min_size=1, max_size=25,
    ),
    st.booleans(),
)  # fmt: skip
def test_every_job_starts_once_on_free_gpus_and_ends(
    jobs: list[tuple[int, int, int, int, str]], backfill: bool
) -> None:
    """The room raises KeyError where anything were taken twice."""
    made = Cluster(3, AT_ONCE._replace(backfill=backfill))
    now_s, numbers = 0.0, []
    for gpus, nodes, lasts, after_s, more in jobs:
        now_s += after_s
        made.until(now_s)
        if more == "-x n0":
            nodes = min(nodes, 2)
        numbers.append(made.submit(f"--gpus-per-node={gpus}", f"-N{nodes}", *more.split(), lasts=lasts, limit="15"))
    made.until(now_s + 1000 * len(jobs))
    assert [number for number, _, _ in sorted(made.payload.starts)] == numbers
    assert set(made.payload.ended.values()) == {"COMPLETED"} and len(made.payload.ended) == len(jobs)
    assert made.slurm.room.gpus == [15, 15, 15] and made.slurm.room.cpus == [16] * 3
    if not backfill and all(not more or more == "--exclusive" for *_, more in jobs):
        starts = [made.starts()[number] for number in numbers]
        assert starts == sorted(starts)


def test_a_requeued_total_shows_the_nodes_it_had_and_its_least_number() -> None:
    made = Cluster(3)
    full = [made.submit("--gpus-per-node=2", "-w", name, lasts=1000) for name in ("n0", "n1")]
    made.submit("--gpus-per-node=4", "-w", "n2", lasts=50)
    spread = made.submit("--gpus=4", "--nodes=1-3", "--comment=pal:job=A;from=x;n=1-3", lasts=1000)
    made.until(10)
    job = made.client.job(spread)
    assert job is not None and job.nodes == ("n0", "n1") and request_of(job).leave
    asked = request_of(job, gather=True)
    assert (asked.leave, asked.nodes_min, asked.nodes_max) == ("", 1, 3)
    made.client.requeue(spread)
    made.until(11)
    job = made.client.job(spread)
    assert job is not None and job.state == "PENDING" and job.raw["NumNodes"] == "2"
    asked = request_of(job._replace(reason="Resources"), gather=True)
    assert (asked.leave, asked.nodes_min, asked.nodes_max) == ("", 1, 3)
    made.until(60)
    made.client.update_job(spread, ReqNodeList="n2", Partition="all,all", StartTime="now")  # its partition twice: once
    assert made.slurm.jobs[spread].partitions == ("all",)
    made.until(61)
    assert made.places()[spread] == ("n2:(0, 1, 2, 3)",) and len(full) == 2
    with pytest.raises(SlurmError, match="no longer pending"):
        made.client.update_job(spread, ReqNodeList="n2", Partition="all,all")
