# SPDX-License-Identifier: MIT
"""Sweep jobs that leave their nodes for users' jobs: which, when, what is kept, and how often."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import Asks, SlurmJob
from slurm_pal.profiling.node.benchmarks import Benchmark, by_id, select
from slurm_pal.profiling.node.devices import DeviceInfo, Static
from slurm_pal.profiling.node.measurement import MeasurementSpan, RecordOrigin, record
from slurm_pal.profiling.node.runner import BenchRun, nothing
from slurm_pal.profiling.sweep import results, sweep_state
from slurm_pal.profiling.sweep.leaving import CALM_S, LONGEST_CALM_S, HeldNode, calm_s, leavers
from slurm_pal.profiling.sweep.sweep_state import DONE, PARTIAL, SKIPPED, SUBMITTED, TODO, NodeState
from slurm_pal.slurm.client import Completed
from slurm_pal.slurm.parse import job as parsed

from .test_profiling_sweep import START_S, World

SWEEP = "20270115-080000-00000"
UID = 7


def job(job_id: int, nodes: int = 1, gpus: int = 4, reason: str = "Resources", **changes: object) -> SlurmJob:
    """A user's job that waits."""
    line = (
        f"JobId={job_id} JobName=train UserId=u(1) GroupId=g(1) JobState=PENDING Reason={reason} Partition=gpu "
        f"ReqNodeList=(null) ExcNodeList=(null) NodeList=(null) NumNodes={nodes}-{nodes} NumCPUs=1 Features=(null) "
        f"Command=x WorkDir=/ TresPerNode=gres:gpu:{gpus}"
    )
    return parsed(line)._replace(**changes)


def ours(job_id: int, node: str, **changes: object) -> SlurmJob:
    found = job(job_id)._replace(name=f"pal-profile:{SWEEP}", uid=UID, state="RUNNING", nodes=(node,), reason="None")
    return found._replace(**changes)


def node(name: str, used: int = 4, states: tuple[str, ...] = ()) -> Node:
    found = frozenset(states or (("ALLOCATED",) if used else ("IDLE",)))
    return Node(name, found, ("",) * 4, used, 16, 4 * used, 64000, 0, frozenset(), ("gpu",))


NODES = [node("n0"), node("n1"), node("n2"), node("n3")]
OURS = [ours(1, "n0"), ours(2, "n1")]
HELD = [HeldNode("n0", 1, 100.0), HeldNode("n1", 2, 200.0)]


def leave(
    jobs: list[SlurmJob], nodes: list[Node] = NODES, held: list[HeldNode] = HELD, **left: object
) -> dict[str, int]:
    found = leavers([*OURS, *jobs], nodes, held, left.get("left", {}), SWEEP, UID)  # type: ignore[arg-type]
    return {name: user.job_id for name, user in found.items()}


@pytest.mark.parametrize(
    ("jobs", "found"),
    [
        ([], {}),
        ([job(7)], {"n1": 7}),  # the youngest, which loses least
        ([job(7, nodes=2)], {"n0": 7, "n1": 7}),
        ([job(7, nodes=3)], {}),  # it could not start even so
        ([job(7, gpus=1), job(8, gpus=3), job(9, gpus=1)], {"n1": 7, "n0": 9}),  # 7 and 8 share one node
        ([job(7), job(8), job(9)], {"n1": 7, "n0": 8}),
        ([job(7, priority=10), job(8, priority=20), job(9, priority=30)], {"n1": 9, "n0": 8}),
        ([job(7, reason="Dependency")], {}),
        ([job(7, partition="cpu")], {}),
        ([job(7, req_nodes=("n3",))], {}),
        ([job(7, req_nodes=("n0",))], {"n0": 7}),
        ([job(7, exc_nodes=("n0", "n1"))], {}),
        ([job(7, gpus=8)], {}),  # more than a node has
        ([job(7, gpus=0, asks=Asks(gpus=True, gpus_in_all=8))], {"n0": 7, "n1": 7}),  # --gpus=8
        ([job(7, asks=Asks(gpus=True, cpus=64))], {}),
        ([job(7, asks=Asks(gpus=True, node_memory_mib=128000.0))], {}),
        ([job(7, gpus=1, asks=Asks(gpus=True, whole_nodes=True)), job(8, gpus=1)], {"n1": 7, "n0": 8}),
    ],
)  # fmt: skip
def test_who_leaves(jobs: list[SlurmJob], found: dict[str, int]) -> None:
    assert leave(jobs) == found


def test_idle_nodes_count_but_do_not_do_alone_for_a_job_that_slurm_looked_at() -> None:
    some = [node("n0"), node("n1"), node("n2", used=0), node("n3", used=0)]
    assert leave([job(7, nodes=3)], some) == {"n1": 7}
    assert leave([job(7, reason="Priority")], some) == {}  # behind others: backfill starts it there
    assert leave([job(7)], some) == {"n1": 7}  # something that we do not see keeps it from n2 and n3


def test_a_node_that_is_being_left_counts_and_no_second_one_leaves() -> None:
    leaving = [HeldNode("n0", 1, 100.0, leaves_for=7), HELD[1]]
    assert leave([job(7)], held=leaving) == {}
    assert leave([job(7), job(8)], held=leaving) == {"n1": 8}


def test_a_node_whose_job_has_ended_is_not_being_left_any_more() -> None:
    """Its result may still be waited for, while another user's job runs there."""
    held = [HeldNode("n0", 1, 100.0, leaves_for=7), HELD[1]]
    jobs = [ours(1, "n0", state="CANCELLED"), OURS[1], job(8)]
    assert {n: j.job_id for n, j in leavers(jobs, NODES, held, {}, SWEEP, UID).items()} == {"n1": 8}
    jobs[0] = ours(1, "n0", state="COMPLETING")
    assert leavers(jobs, NODES, held, {}, SWEEP, UID) == {}


def test_for_a_job_that_does_not_start_on_the_nodes_left_for_it_nothing_more_is_left() -> None:
    some = [node("n0", used=0), *NODES[1:]]
    assert leave([job(7)], some, HELD[1:], left={7: frozenset({"n0"})}) == {}
    assert leave([job(7)], NODES, HELD[1:], left={7: frozenset({"n0"})}) == {"n1": 7}  # another job was faster


@pytest.mark.parametrize(
    "found",
    [ours(1, "n0", uid=8), ours(1, "n0", name="pal-profile:20270116-080000-00000"), ours(1, "n3"), ours(5, "n0")],
    ids=["another user's", "another sweep's", "elsewhere", "gone"],
)
def test_nothing_is_touched_that_slurm_does_not_show_as_ours(found: SlurmJob) -> None:
    assert leavers([found, job(7)], NODES, HELD[:1], {}, SWEEP, UID) == {}


def test_a_node_on_which_nothing_could_start_is_not_left() -> None:
    assert leave([job(7)], [node("n0", states=("ALLOCATED", "DRAIN"))], HELD[:1]) == {}


def test_the_more_often_the_longer_it_must_have_been_calm() -> None:
    assert [calm_s(n) for n in (0, 1, 2, 3)] == [0.0, 2 * CALM_S, 4 * CALM_S, 8 * CALM_S]
    assert calm_s(8) == calm_s(10_000) == LONGEST_CALM_S


# -- the loop -------------------------------------------------------------------------


class Busy(World):
    """A sweep whose jobs leave; what a job had measured when it was cancelled is written then."""

    def __init__(self, tmp_path: Path, **terms: object) -> None:
        super().__init__(tmp_path, **{"yield_to_users": True, "max_leavings": 5, "node_s": 100.0, **terms})  # type: ignore[arg-type]
        self.ran: dict[int, list[str]] = {}  # job -> the benchmarks it was asked for
        self.written: set[int] = set()
        self.partly = ("gemm_bf16",)

    def write(self, job_id: int, specs: list[Benchmark], gpus: int = 4) -> None:
        name = self.slurm.jobs[job_id].req
        place = RecordOrigin(SWEEP, "fake", name, job_id, 0, "emu")
        span = MeasurementSpan(START_S, START_S)
        lines = [
            record(place, DeviceInfo(f"GPU-{name}-{i}", "emu", "m", i), Static("1"), spec,
                   BenchRun(replace(nothing(spec, "ci"), value=1.0), (), ()), span).to_json()
            for spec in specs for i in range(gpus)
        ]  # fmt: skip
        first, second = (self.spool / n for n in results.file_names(SWEEP, name, job_id))
        (second if first.exists() else first).write_text("\n".join(lines) + "\n")

    def asked(self, job_id: int) -> list[Benchmark]:
        words = self.slurm.jobs[job_id].script.split()
        return list(select(next((w.removeprefix("--bench=") for w in words if w.startswith("--bench=")), "")))

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        for found in self.own("CANCELLED"):
            if found not in self.written and self.slurm.jobs[found].placed and self.partly:
                self.written.add(found)
                self.write(found, [b for b in self.asked(found) if b.id in self.partly])

    def own(self, state: str) -> list[int]:
        return [n for n, j in self.slurm.jobs.items() if j.name.startswith("pal-profile:") and j.state == state]

    def finish_all(self, valid: int = 4) -> None:
        for number in self.own("RUNNING"):
            self.write(number, self.asked(number), valid)
            self.slurm.finish(number)

    def runs(self, number: int) -> bool:
        return self.slurm.jobs[number].state == "RUNNING"


def test_a_job_leaves_within_seconds_keeps_what_it_has_and_the_next_one_does_the_rest(tmp_path: Path) -> None:
    world = Busy(tmp_path, nodes=1)
    user: list[int] = []
    started: list[float] = []

    def step() -> None:
        if not user and world.now_s > START_S + 20:
            user.append(world.occupy("n0"))
        if user and world.runs(user[0]):
            started.append(world.now_s)
            if world.now_s > started[0] + 60:
                world.slurm.finish(user[0])
        if started and world.own("RUNNING") and world.now_s > started[-1] + 50:
            world.finish_all()

    world.on_sleep = step
    assert world.sweep().run()
    assert started[0] - START_S < 25
    assert ("n0", TODO) in world.events and world.states() == {"n0": DONE}
    found = world.again().nodes["n0"]
    assert (found.leavings, found.leaves_for, found.rest, found.gpus, found.attempts) == (1, 0, "", 4, 2)
    first, second = sorted(world.spool.iterdir(), key=lambda path: len(path.name))
    assert first.read_text().count("gemm_bf16") >= 4  # kept beside the second
    assert [b.id for b in world.asked(3)] == [b.id for b in select("") if b.id != "gemm_bf16"]
    assert '"gemm_bf16"' not in second.read_text()
    assert len(sweep_state.expenses(world.state_dir, 0.0)) == 2  # both have run


def test_a_node_is_left_so_often_and_then_the_sweep_says_so_and_the_next_one_takes_it_first(tmp_path: Path) -> None:
    world = Busy(tmp_path, nodes=1, max_leavings=3)

    def step() -> None:
        waiting = [j for j in world.slurm.jobs.values() if j.name == "user" and j.state in ("PENDING", "RUNNING")]
        if world.own("RUNNING") and not waiting:
            world.occupy("n0")
        for one in waiting:
            if world.runs(one.job_id):
                world.slurm.finish(one.job_id)

    world.on_sleep = step
    assert world.sweep().run()
    found = world.again().nodes["n0"]
    assert (found.state, found.leavings, found.gpus) == (PARTIAL, 3, 4)
    assert found.reason == "left for job 6, 3 times in all; the next sweep takes it first"
    assert sweep_state.left_nodes(world.state_dir) == {"n0": found.reason}
    assert world.now_s - START_S > calm_s(1) + calm_s(2)  # each time it waited longer for a calm
    world.on_sleep = world.finish_all
    assert world.sweep(world.again()).run() and world.states() == {"n0": DONE}  # --resume does the rest
    assert sweep_state.left_nodes(world.state_dir) == {}


@pytest.mark.parametrize("terms", [{"yield_to_users": False}, {"max_leavings": 0}])
def test_nothing_leaves_where_the_site_does_not_want_it(tmp_path: Path, terms: dict[str, object]) -> None:
    world = Busy(tmp_path, nodes=1, **terms)
    user: list[int] = []

    def step() -> None:
        if not user and world.own("RUNNING"):
            user.append(world.occupy("n0"))
        if world.now_s > START_S + 100:
            world.finish_all()

    world.on_sleep = step
    assert world.sweep().run() and world.states() == {"n0": DONE}
    assert world.again().nodes["n0"].attempts == 1 and world.own("CANCELLED") == []


def test_a_job_without_a_result_yet_is_just_repeated(tmp_path: Path) -> None:
    world = Busy(tmp_path, nodes=1)
    world.partly = ()
    user: list[int] = []

    def step() -> None:
        if not user and world.own("RUNNING"):
            user.append(world.occupy("n0"))
        if user and world.runs(user[0]):
            world.slurm.finish(user[0])
        if len(world.slurm.jobs) == 3:
            world.finish_all()

    world.on_sleep = step
    assert world.sweep().run()
    assert world.states() == {"n0": DONE} and len(world.asked(3)) == len(select(""))


def test_a_resume_after_the_order_knows_that_the_result_is_only_a_part(tmp_path: Path) -> None:
    world = Busy(tmp_path, nodes=1)
    user: list[int] = []
    finish = world.slurm._scancel

    def step() -> None:
        if not user and world.own("RUNNING"):
            user.append(world.occupy("n0"))
        if world.own("CANCELLED"):
            world.stop.set()

    world.on_sleep = step
    world.slurm._scancel = lambda argv, stdin: (world.stop.set(), finish(argv, stdin))[1]  # type: ignore[method-assign]
    world.partly = ()
    assert not world.sweep().run()
    assert world.again().nodes["n0"].state == SUBMITTED and world.again().nodes["n0"].leaves_for == user[0]
    world.slurm._scancel = finish  # type: ignore[method-assign]
    world.write(1, [by_id("gemm_bf16")])
    world.slurm.finish(user[0])
    world.stop.clear()
    world.on_sleep = world.finish_all
    assert world.sweep(world.again()).run() and world.states() == {"n0": DONE}
    assert world.again().nodes["n0"].attempts == 2 and "gemm_bf16" not in [b.id for b in world.asked(3)]


def test_a_cancel_that_did_not_arrive_is_repeated(tmp_path: Path) -> None:
    world = Busy(tmp_path, nodes=1)
    user: list[int] = []
    cancels: list[float] = []
    original = world.slurm._scancel

    def lost(argv: list[str], stdin: str) -> Completed:
        cancels.append(world.now_s)
        return original(argv, stdin) if len(cancels) > 1 else original(["999"], stdin)

    def step() -> None:
        if not user and world.own("RUNNING"):
            user.append(world.occupy("n0"))
        if user and world.runs(user[0]):
            world.slurm.finish(user[0])
        if len(world.slurm.jobs) == 3:
            world.finish_all()

    world.on_sleep = step
    world.slurm._scancel = lost  # type: ignore[method-assign]
    assert world.sweep().run() and world.states() == {"n0": DONE}
    assert len(cancels) == 2 and 5.0 < cancels[1] - cancels[0] < 8.0


def test_a_job_that_has_come_to_bear_the_id_of_ours_is_not_cancelled(tmp_path: Path) -> None:
    """slurmctld lost its state and counts from 1 again, between two orders."""
    world = Busy(tmp_path, nodes=1)
    world.partly = ()
    user: list[int] = []
    cancels: list[list[str]] = []

    def lost(argv: list[str], stdin: str) -> Completed:
        cancels.append(argv)
        world.slurm.jobs[1].name = "theirs"
        return Completed(0, "", "")

    def step() -> None:
        if not user and world.own("RUNNING"):
            user.append(world.occupy("n0"))
        if world.now_s > START_S + 100 and world.runs(1):
            world.slurm.finish(1)
        if user and world.runs(user[0]):
            world.slurm.finish(user[0])
        if len(world.slurm.jobs) == 3:
            world.finish_all()

    world.on_sleep = step
    world.slurm._scancel = lost  # type: ignore[method-assign]
    assert world.sweep().run() and world.states() == {"n0": DONE}
    assert len(cancels) == 1 and world.slurm.jobs[1].state == "COMPLETED"


def test_preemption_by_slurm_is_a_leaving_too(tmp_path: Path) -> None:
    world = Busy(tmp_path, nodes=1)

    def step() -> None:
        running = world.own("RUNNING")
        if running == [1]:
            world.write(1, [by_id("gemm_bf16")])
            world.slurm.finish(1, "PREEMPTED")
        elif running:
            world.finish_all()

    world.on_sleep = step
    assert world.sweep().run() and world.states() == {"n0": DONE}
    found = world.again().nodes["n0"]
    assert (found.leavings, found.attempts) == (1, 2) and "gemm_bf16" not in [b.id for b in world.asked(2)]


def test_one_gpu_without_a_run_is_not_left_out_of_the_rest(tmp_path: Path) -> None:
    world = Busy(tmp_path, nodes=1)

    def step() -> None:
        running = world.own("RUNNING")
        if running == [1]:
            world.write(1, [by_id("gemm_bf16")], gpus=3)  # it was stopped before the fourth had sent its record
            world.slurm.finish(1, "PREEMPTED")
        elif running:
            world.finish_all()

    world.on_sleep = step
    assert world.sweep().run() and len(world.asked(2)) == len(select(""))


def test_nodes_that_the_last_sweep_left_are_found_until_one_measures_them(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.directory.set("n0", NodeState(SKIPPED, 1, START_S, "left for job 9", leavings=5))
    world.directory.set("n1", NodeState(DONE, 2, START_S, leavings=2))
    world.directory.set("n2", NodeState(PARTIAL, 2, START_S, "GPU 2: no answer"))
    assert sweep_state.left_nodes(world.state_dir) == {"n0": "left for job 9"}
    later = "20270116-080000-00000"
    terms = world.directory.terms
    newer = sweep_state.create(world.state_dir, terms._replace(job=terms.job._replace(sweep_id=later)))
    assert sweep_state.left_nodes(world.state_dir) == {"n0": "left for job 9"}  # planned there, and not touched yet
    newer.set("n0", NodeState(DONE, 5, START_S))
    assert sweep_state.left_nodes(world.state_dir) == {} and os.path.isdir(newer.path)
