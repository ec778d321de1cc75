# SPDX-License-Identifier: MIT
"""The sweep's loop against a fake Slurm, with a clock of its own."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from slurm_pal.base.config import Config
from slurm_pal.base.errors import BusyError, DataError, SlurmError, UsageError
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.node.benchmarks import BENCHMARKS
from slurm_pal.profiling.node.devices import DeviceInfo, Static
from slurm_pal.profiling.node.measurement import MeasurementSpan, RecordOrigin, record
from slurm_pal.profiling.node.runner import BenchRun, nothing
from slurm_pal.profiling.sweep import collect, results, sweep_state
from slurm_pal.profiling.sweep.lock import at_work, only_sweep
from slurm_pal.profiling.sweep.plan import ChosenNode
from slurm_pal.profiling.sweep.sweep import Sweep, SweepListeners, last_line
from slurm_pal.profiling.sweep.sweep_job import JobOptions
from slurm_pal.profiling.sweep.sweep_state import (
    DONE,
    FAILED,
    PARTIAL,
    SKIPPED,
    SUBMITTED,
    TODO,
    NodeState,
    SweepDirectory,
    SweepTerms,
)
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Completed
from slurm_pal.slurm.fake import FakeNode, FakeSlurm
from slurm_pal.store.database import open_database

from ...doubles import records_factory

START_S = 1_800_000_000.0


class World:
    """A fake Slurm with four nodes, a sweep over them, and time that passes only in sleeps."""

    def __init__(self, tmp_path: Path, nodes: int = 4, **terms: object) -> None:
        self.now_s = START_S
        self.clock_error_s = 0.0
        self.slurm = FakeSlurm([FakeNode(f"n{i}") for i in range(nodes)])
        self.spool = tmp_path / "spool" / "incoming"
        self.spool.mkdir(parents=True)
        self.state_dir = str(tmp_path / "state")
        self.events: list[tuple[str, str]] = []
        self.pauses: list[str] = []
        self.published: list[float] = []
        self.stop = threading.Event()
        self.on_sleep: Callable[[], None] = self.finish_all
        self.refuse: Callable[[Sequence[str]], str] = lambda argv: ""
        self.sleeps = 0
        job = JobOptions("20270115-080000-00000", "fake", f"{self.state_dir}/sweeps/20270115-080000-00000",
                         str(tmp_path / "spool"), "/bin/false", Setting("emu"))  # fmt: skip
        base = SweepTerms(job, START_S, 2, 60.0, tuple(ChosenNode(f"n{i}", 4, 0.0) for i in range(nodes)), {}, 10.0)
        self.directory = sweep_state.create(self.state_dir, base._replace(**terms))  # type: ignore[arg-type]

    def __call__(self, argv: Sequence[str], stdin: str) -> Completed:
        complaint = self.refuse(argv)
        return Completed(1, "", complaint) if complaint else self.slurm(argv, stdin)

    def sleep(self, seconds: float) -> None:
        self.now_s += max(seconds, 0.001)
        self.sleeps += 1
        assert self.sleeps < 20_000, "the sweep does not come to an end"
        self.on_sleep()

    def write_result(self, node: str, job_id: int, valid: int = 4, reason: str = "no answer") -> None:
        place = RecordOrigin("20270115-080000-00000", "fake", node, job_id, 0, "emu")
        lines = []
        for i in range(4):
            result = replace(nothing(BENCHMARKS[0], "ci"), value=1.0 if i < valid else 0.0)
            run = BenchRun(result, (), (), "" if i < valid else reason)
            device = DeviceInfo(f"GPU-{node}-{i}", "emu", "m", i)
            lines.append(
                record(place, device, Static("1"), BENCHMARKS[0], run, MeasurementSpan(START_S, START_S)).to_json()
            )
        (self.spool / f"{place.sweep_id}.{node}.jsonl").write_text("\n".join(lines) + "\n")

    def finish_all(self, valid: int = 4) -> None:
        """Every running job of ours ends and leaves its result."""
        for job in list(self.slurm.jobs.values()):
            if job.state == "RUNNING" and job.name.startswith("pal-profile:"):
                self.write_result(next(iter(job.placed)), job.job_id, valid)
                self.slurm.finish(job.job_id)

    def sweep(self, directory: SweepDirectory | None = None) -> Sweep:
        return Sweep(
            CliClient(self),
            directory or self.directory,
            [str(self.spool)],
            SweepListeners(
                lambda node, state: self.events.append((node, state.state)),
                lambda pause: self.pauses.append(pause.why if pause else ""),
                lambda: self.published.append(self.now_s),
            ),
            self.stop,
            lambda: self.now_s + self.clock_error_s,
            lambda: self.now_s,
            self.sleep,
        )

    def again(self) -> SweepDirectory:
        """The sweep as another process would find it."""
        return sweep_state.load(self.state_dir)

    def states(self) -> dict[str, str]:
        return {name: state.state for name, state in self.again().nodes.items()}

    def occupy(self, node: str) -> int:
        return CliClient(self.slurm).submit(
            ["-N1", "-w", node, "--exclusive", "--gres=gpu:4", "-J", "user"], "#!/bin/sh\n"
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_all_nodes_are_measured_never_more_at_once_than_allowed(world: World) -> None:
    running: list[int] = []

    def count() -> None:
        own = [j for j in world.slurm.jobs.values() if j.state in ("RUNNING", "PENDING")]
        running.append(len(own))
        if world.sleeps % 4 == 0:
            world.finish_all()

    world.on_sleep = count
    assert world.sweep().run()
    assert world.states() == {f"n{i}": DONE for i in range(4)} and max(running) == 2
    submissions = [c for c in world.slurm.calls if c[0] == "sbatch"]
    assert [c[c.index("-w") + 1] for c in submissions] == ["n0", "n1", "n2", "n3"]
    assert world.again().nodes["n2"].gpus == 4


def test_watching_is_cheap(world: World) -> None:
    world.on_sleep = lambda: world.finish_all() if world.now_s > START_S + 600 else None
    assert world.sweep().run()
    polls = [c for c in world.slurm.calls if c[0] == "squeue"]
    assert len(polls) < 1000  # ten minutes with 2 jobs: about one call a second for nodes of 10 s
    assert not [c for c in world.slurm.calls if c[:3] == ["scontrol", "show", "job"]]


def test_partial_and_unusable_results_are_told_apart(world: World) -> None:
    worth = {"n0": 4, "n1": 3, "n2": 0, "n3": 4}

    def finish() -> None:
        for job in list(world.slurm.jobs.values()):
            if job.state == "RUNNING":
                node = next(iter(job.placed))
                world.write_result(node, job.job_id, worth[node])
                world.slurm.finish(job.job_id)

    world.on_sleep = finish
    assert world.sweep().run()
    nodes = world.again().nodes
    assert [nodes[f"n{i}"].state for i in range(4)] == [DONE, PARTIAL, FAILED, DONE]
    assert nodes["n1"].reason == "GPU 3: no answer" and nodes["n2"].reason == "GPU 0: no answer (and 3 more)"


def test_a_node_that_is_taken_meanwhile_is_withdrawn_and_skipped(world: World) -> None:
    user = world.occupy("n1")
    assert world.sweep().run()
    nodes = world.again().nodes
    assert nodes["n1"].state == SKIPPED and "busy: pending (Resources) for 60 s" in nodes["n1"].reason
    assert {n: s.state for n, s in nodes.items() if n != "n1"} == {"n0": DONE, "n2": DONE, "n3": DONE}
    assert [j.state for j in world.slurm.jobs.values() if j.req == "n1"] == ["RUNNING", "CANCELLED"]
    world.slurm.finish(user)
    assert world.sweep(world.again()).run() and world.states()["n1"] == DONE


def test_a_job_that_starts_while_it_is_withdrawn_is_measured(world: World) -> None:
    user = world.occupy("n1")
    original = world.slurm._scancel

    def too_late(argv: list[str], stdin: str) -> Completed:
        world.slurm.finish(user)
        world.slurm.schedule()
        return original(argv, stdin)

    world.slurm._scancel = too_late  # type: ignore[method-assign]
    assert world.sweep().run() and world.states()["n1"] == DONE


def test_a_clock_set_back_delays_nothing(world: World) -> None:
    world.occupy("n1")

    def set_back() -> None:
        world.clock_error_s = -86400.0
        world.finish_all()

    world.on_sleep = set_back
    assert world.sweep().run() and world.now_s < START_S + 120
    assert world.states() == {"n0": DONE, "n1": SKIPPED, "n2": DONE, "n3": DONE}


def test_a_job_without_a_result_fails_with_its_last_words(world: World) -> None:
    def finish() -> None:
        for job in list(world.slurm.jobs.values()):
            if job.state == "RUNNING" and job.req == "n2":
                Path(job.options["output"]).write_text("starting\nn2: results not written: No space left on device\n")
                world.slurm.finish(job.job_id, "FAILED")
        world.finish_all()

    world.on_sleep = finish
    assert world.sweep().run()
    node = world.again().nodes["n2"]
    assert node.state == FAILED and node.reason == "job 3 FAILED: n2: results not written: No space left on device"


@pytest.mark.parametrize(
    ("times", "node_state", "state", "jobs"),
    [(1, "IDLE", DONE, 2), (2, "IDLE", FAILED, 2), (1, "DOWN", FAILED, 1)],
    ids=["once", "twice", "with its node"],
)
def test_a_job_that_slurm_lost_is_tried_once_more_where_its_node_is_well(
    world: World, times: int, node_state: str, state: str, jobs: int
) -> None:
    lost: list[int] = []

    def finish() -> None:
        for job in list(world.slurm.jobs.values()):
            if job.state == "RUNNING" and job.req == "n2" and len(lost) < times:
                lost.append(job.job_id)
                world.slurm.finish(job.job_id, "NODE_FAIL")
                world.slurm.nodes["n2"].state = node_state
        world.finish_all()

    world.on_sleep = finish
    assert world.sweep().run()
    node = world.again().nodes["n2"]
    assert (node.state, node.attempts) == (state, jobs)
    assert state == DONE or node.reason == f"job {lost[-1]} NODE_FAIL, without a result"
    assert sum(1 for job in world.slurm.jobs.values() if job.req == "n2") == jobs


def test_a_lost_node_is_given_up_and_its_job_cancelled(world: World) -> None:
    def lose() -> None:
        world.slurm.nodes["n0"].state = "DOWN"
        for job in list(world.slurm.jobs.values()):
            if job.state == "RUNNING" and job.req != "n0":
                world.write_result(job.req, job.job_id)
                world.slurm.finish(job.job_id)

    world.on_sleep = lose
    assert world.sweep().run()
    node = world.again().nodes["n0"]
    assert node.state == FAILED and "node is DOWN" in node.reason and world.now_s < START_S + 120
    assert world.slurm.jobs[1].state == "CANCELLED"


def test_a_node_that_leaves_slurm_is_named_so_and_looking_costs_little_of_slurms_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, nodes=1)
    line = world.slurm._node_line
    looks: list[float] = []

    def slow(argv: Sequence[str]) -> str:
        if list(argv[:3]) == ["scontrol", "show", "node"]:
            looks.append(world.now_s)
            world.now_s += 5.0  # 5,000 nodes, a busy slurmctld
        return ""

    def leave() -> None:
        if world.now_s > START_S + 400:
            monkeypatch.setattr(world.slurm, "_node_line", lambda node: line(node).replace("=n0 ", "=other "))

    world.refuse, world.on_sleep = slow, leave
    assert world.sweep().run()
    assert world.again().nodes["n0"].reason == "job 1: node is unknown to Slurm" and len(looks) <= 6


def test_a_job_that_outlives_its_limit_is_given_up(world: World) -> None:
    world.on_sleep = lambda: None
    assert world.sweep().run()
    assert set(world.states().values()) == {FAILED} and "time limit" in world.again().nodes["n0"].reason
    assert all(job.state == "CANCELLED" for job in world.slurm.jobs.values())


def test_an_unreadable_result_file_is_a_failure_not_a_crash(world: World) -> None:
    def finish() -> None:
        for job in list(world.slurm.jobs.values()):
            if job.state == "RUNNING":
                (world.spool / f"20270115-080000-00000.{job.req}.jsonl").write_bytes(b"\xff{")
                world.slurm.finish(job.job_id)

    world.on_sleep = finish
    assert world.sweep().run() and set(world.states().values()) == {FAILED}


def test_an_interrupt_withdraws_what_is_pending_and_a_resume_ends_the_sweep(world: World) -> None:
    world.occupy("n1")

    def interrupt() -> None:
        if len(world.slurm.jobs) == 3:
            world.stop.set()

    world.on_sleep = interrupt
    assert not world.sweep().run()
    assert world.states() == {"n0": SUBMITTED, "n1": TODO, "n2": TODO, "n3": TODO}
    assert [j.state for j in world.slurm.jobs.values()] == ["RUNNING", "RUNNING", "CANCELLED"]
    world.stop.clear()
    world.on_sleep = world.finish_all
    world.slurm.finish(1)
    assert world.sweep(world.again()).run()
    assert set(world.states().values()) == {DONE}
    assert sum(1 for c in world.slurm.calls if c[0] == "sbatch") == 1 + 5  # n0 was not submitted again


def test_a_job_whose_submission_was_not_noted_is_found_again(world: World) -> None:
    world.on_sleep = lambda: world.stop.set() if len(world.slurm.jobs) == 1 else None
    world.sweep().run()
    (Path(world.directory.path) / "journal.jsonl").unlink()
    world.stop.clear()
    world.on_sleep = world.finish_all
    assert world.sweep(world.again()).run()
    assert [j.req for j in world.slurm.jobs.values()] == ["n0", "n1", "n2", "n3"]


def test_ctrl_c_that_ends_our_squeue_and_sbatch_too_is_no_fault_of_slurms(world: World) -> None:
    world.on_sleep = lambda: None

    def killed(argv: Sequence[str]) -> str:
        if argv[0] == "squeue" and "--me" in argv:
            world.stop.set()
            return "squeue: killed"
        if argv[0] == "sbatch" and "n1" in argv:
            world.slurm(argv, "#!/bin/sh\n")  # accepted, and killed before it could say so
            world.stop.set()
            return "sbatch: killed"
        return ""

    world.refuse = killed
    assert not world.sweep().run()
    assert world.states() == {"n0": SUBMITTED, "n1": SUBMITTED, "n2": TODO, "n3": TODO}
    assert world.again().nodes["n1"].job_id == 2
    world.stop.clear()
    world.refuse = lambda argv: "squeue: killed" if "--me" in argv and not world.stop.set() else ""
    assert not world.sweep(world.again()).run()


def test_a_stop_while_slurm_is_away_says_what_stays(world: World) -> None:
    world.stop.set()
    world.refuse = lambda argv: "Unable to contact slurm controller"
    with pytest.raises(SlurmError, match=r"Unable .*; pending jobs stay in the queue, resume with .*--resume 2027"):
        world.sweep().run()


def test_jobs_of_others_that_bear_our_name_are_neither_believed_nor_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.on_sleep = lambda: world.stop.set() if len(world.slurm.jobs) == 2 else None
    assert not world.sweep().run()
    job_line = world.slurm._job_line
    argv = ["-N1", "-w", "n0", "--exclusive", "--gres=gpu:4", "-J", "pal-profile:20270115-080000-00000"]
    theirs = [CliClient(world.slurm).submit([*argv[:2], node, *argv[3:]], "#!/bin/sh\n") for node in ("n0", "n3")]
    monkeypatch.setattr(
        world.slurm, "_job_line",
        lambda job: job_line(job).replace(f"({os.getuid()})", "(4711)") if job.job_id in theirs else job_line(job),
    )  # fmt: skip
    again = world.sweep(world.again())
    world.stop.set()
    assert not again.run()
    assert [world.slurm.jobs[number].state for number in theirs] == ["PENDING", "RUNNING"]
    assert world.again().nodes["n3"].job_id == 0


def test_nodes_that_have_left_slurm_or_changed_do_not_keep_a_sweep_from_being_resumed(tmp_path: Path) -> None:
    world = World(tmp_path, nodes=6)
    world.stop.set()
    assert not world.sweep().run()
    world.directory.set("n5", NodeState())  # somebody has worked on it
    world.stop.clear()
    for name in ("n0", "n1", "n2"):
        del world.slurm.nodes[name]
    world.slurm.nodes["n3"].gpus, world.slurm.nodes["n4"].gpus = 0, 2
    assert world.sweep(world.again()).run()
    nodes = world.again().nodes
    assert [nodes[f"n{i}"].state for i in range(6)] == [SKIPPED] * 4 + [DONE] * 2
    assert (nodes["n0"].reason, nodes["n3"].reason) == ("Slurm knows it no more", "has no GPU any more")
    (submitted,) = [c for c in world.slurm.calls if c[0] == "sbatch" and "n4" in c]
    assert "--gres=gpu:2" in submitted


def test_a_job_that_was_requeued_and_held_does_not_keep_a_sweep_for_ever(world: World) -> None:
    original = world.slurm._scancel

    def hold() -> None:
        world.slurm.jobs[1].state = "REQUEUE_HOLD" if world.slurm.jobs[1].state == "RUNNING" else "CANCELLED"
        world.on_sleep = world.finish_all

    def scancel(argv: list[str], stdin: str) -> Completed:
        if "--state=PENDING" not in argv and "1" in argv:
            world.slurm.jobs[1].state = "CANCELLED"
        return original(argv, stdin)

    world.slurm._scancel = scancel  # type: ignore[method-assign]
    world.on_sleep = hold
    assert world.sweep().run()
    assert world.states() == {"n0": SKIPPED, "n1": DONE, "n2": DONE, "n3": DONE} and world.now_s < START_S + 300


def test_resuming_a_finished_sweep_changes_nothing(world: World) -> None:
    assert world.sweep().run()
    before = world.again().nodes
    assert world.sweep(world.again()).run() and world.again().nodes == before


def test_a_journal_cut_off_by_a_crash_loses_one_line(world: World) -> None:
    assert world.sweep().run()
    journal = Path(world.directory.path) / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    cut = world.again()
    assert sorted(s.state for s in cut.nodes.values()) == [DONE, DONE, DONE, SUBMITTED]
    assert world.sweep(cut).run() and set(world.states().values()) == {DONE}


def test_a_result_of_an_earlier_attempt_does_not_count(world: World) -> None:
    world.write_result("n0", job_id=99)
    assert results.read([str(world.spool)], "20270115-080000-00000", "n0", 1) is None
    assert results.read([str(world.spool)], "20270115-080000-00000", "n0", 99)[:2] == (4, "")


def test_a_result_that_was_ingested_meanwhile_is_found(world: World, tmp_path: Path) -> None:
    ingested = tmp_path / "ingested"
    ingested.mkdir()
    world.write_result("n0", job_id=1)
    os.rename(world.spool / "20270115-080000-00000.n0.jsonl", ingested / "20270115-080000-00000.n0.jsonl")
    world.write_result("n0", job_id=2, valid=3)
    os.rename(world.spool / "20270115-080000-00000.n0.jsonl", ingested / "20270115-080000-00000.n0.jsonl.1")
    where = [str(world.spool), str(ingested)]
    assert results.read(where, "20270115-080000-00000", "n0", 1)[:2] == (4, "")
    assert results.read(where, "20270115-080000-00000", "n0", 2)[:2] == (3, "GPU 3: no answer")


def test_a_bad_file_of_an_earlier_attempt_is_not_the_present_ones_result(world: World, tmp_path: Path) -> None:
    rejected, name = tmp_path / "rejected", "20270115-080000-00000.n0.jsonl"
    rejected.mkdir()
    (rejected / name).write_bytes(b"\xff{")
    where = [str(world.spool), str(rejected)]
    assert results.read(where, "20270115-080000-00000", "n0", 1) is None
    world.write_result("n0", job_id=1)
    (world.spool / name).write_bytes((world.spool / name).read_bytes()[:-40])  # the disk was full
    found = results.read(where, "20270115-080000-00000", "n0", 1)
    assert found is not None and found.gpus == 3 and "unreadable: line 4" in found.reason


@pytest.mark.parametrize("kind", ["fifo", "link", "everyone", "folder", "nested"])
def test_a_result_file_is_read_with_distrust(world: World, tmp_path: Path, kind: str) -> None:
    path = world.spool / "20270115-080000-00000.n0.jsonl"
    world.write_result("n0", job_id=1)
    if kind == "everyone":
        path.chmod(0o666)
    elif kind == "nested":
        path.write_text("[" * 200_000)
    else:
        path.rename(tmp_path / "elsewhere")
        {"fifo": lambda: os.mkfifo(path), "folder": path.mkdir,
         "link": lambda: path.symlink_to(tmp_path / "elsewhere")}[kind]()  # fmt: skip
    assert results.read([str(world.spool)], "20270115-080000-00000", "n0", 1) is None
    assert results.complaint([str(world.spool)], "20270115-080000-00000", "n0", 1).startswith("result file ")


# -- Slurm's troubles ---------------------------------------------------------------


def test_a_controller_that_is_away_for_a_while_loses_nothing(world: World) -> None:
    down_s = (START_S + 1.0, START_S + 100.0)
    away = "slurm_load_jobs error: Connection reset by peer"  # 24.11, while slurmctld ends
    world.refuse = lambda argv: away if down_s[0] < world.now_s < down_s[1] else ""
    assert world.sweep().run() and set(world.states().values()) == {DONE}
    assert sum(1 for c in world.slurm.calls if c[0] == "sbatch") == 4


def test_a_controller_that_stays_away_ends_the_sweep_with_the_way_to_resume(world: World) -> None:
    world.refuse = lambda argv: "Unable to contact slurm controller" if len(world.slurm.jobs) == 2 else ""
    world.on_sleep = lambda: None
    with pytest.raises(SlurmError, match="--resume 20270115-080000-00000"):
        world.sweep().run()
    assert world.now_s - START_S < 600
    world.refuse = lambda argv: ""
    world.on_sleep = world.finish_all
    assert world.sweep(world.again()).run() and set(world.states().values()) == {DONE}


def test_a_submission_that_timed_out_but_was_accepted_is_not_repeated(world: World) -> None:
    def lost_answer(argv: Sequence[str]) -> str:
        if argv[0] == "sbatch" and len(world.slurm.jobs) == 1:
            world.slurm(argv, "#!/bin/sh\n")
            return "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
        return ""

    world.refuse = lost_answer
    world.on_sleep = lambda: world.finish_all() if world.now_s > START_S + 5 else None
    assert world.sweep().run()
    assert [j.req for j in world.slurm.jobs.values()] == ["n0", "n1", "n2", "n3"]


def test_a_lost_submission_is_not_repeated_while_nobody_can_look(world: World) -> None:
    looked: list[str] = []

    def lost_answer(argv: Sequence[str]) -> str:
        if argv[0] == "sbatch" and len(world.slurm.jobs) == 1:
            looked.append("")
            world.slurm(argv, "#!/bin/sh\n")
            return "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
        if looked and argv[0] == "scontrol" and len(looked) < 3:
            looked.append(argv[0])
            return "Unable to contact slurm controller (connect failure)"
        return ""

    world.refuse = lost_answer
    world.on_sleep = lambda: world.finish_all() if world.now_s > START_S + 20 else None
    assert world.sweep().run() and len(looked) == 3
    assert [j.req for j in world.slurm.jobs.values()] == ["n0", "n1", "n2", "n3"]


def test_a_limit_of_submitted_jobs_is_waited_for_as_long_as_a_job_of_ours_runs(tmp_path: Path) -> None:
    world = World(tmp_path, node_s=400.0, max_parallel=3)

    def limit(argv: Sequence[str]) -> str:
        at_work = any(job.state == "RUNNING" for job in world.slurm.jobs.values())
        return "sbatch: error: AssocMaxSubmitJobLimit" if argv[0] == "sbatch" and at_work else ""

    def finish() -> None:
        for number in world.slurm.jobs:
            began.setdefault(number, world.now_s)
        if any(j.state == "RUNNING" and world.now_s - began[j.job_id] > 400 for j in world.slurm.jobs.values()):
            world.finish_all()

    began: dict[int, float] = {}
    world.refuse, world.on_sleep = limit, finish
    assert world.sweep().run() and set(world.states().values()) == {DONE}
    assert world.now_s > START_S + 1600 and sum(1 for c in world.slurm.calls if c[0] == "sbatch") == 4


def test_a_refused_node_fails_and_the_others_go_on(world: World) -> None:
    bad = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
    world.refuse = lambda argv: bad if argv[0] == "sbatch" and "n1" in argv else ""
    assert world.sweep().run()
    assert world.states() == {"n0": DONE, "n1": FAILED, "n2": DONE, "n3": DONE}
    assert "not available" in world.again().nodes["n1"].reason


def test_when_slurm_refuses_every_job_the_sweep_ends_at_once(world: World) -> None:
    bad = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
    world.refuse = lambda argv: bad if argv[0] == "sbatch" else ""
    with pytest.raises(SlurmError, match=r"Slurm refuses sweep jobs: .*Invalid account"):
        world.sweep().run()
    assert world.now_s < START_S + 5


# -- the directory ------------------------------------------------------------------


def test_two_sweeps_at_once_are_refused_by_name(tmp_path: Path) -> None:
    state_dir = str(tmp_path / "new" / "state")
    with only_sweep(state_dir, "first"):
        with pytest.raises(BusyError, match=r"sweep first is running: .*pid"), only_sweep(state_dir, "second"):
            raise AssertionError("two sweeps at once")
        assert json.loads(Path(state_dir, "sweep.running").read_text())["sweep"] == "first"
    with only_sweep(state_dir, "third"):
        pass
    assert not os.path.exists(os.path.join(state_dir, "sweep.running"))


def test_a_busy_error_of_the_work_itself_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(BusyError, match=r"^the database$"), only_sweep(str(tmp_path), "first"):
        raise BusyError("the database")


def test_terms_survive_the_disk(world: World) -> None:
    assert world.again().terms == world.directory.terms
    world.directory.set("n0", NodeState(FAILED, 7, START_S, 'it\'s "odd"\nü', 2))
    assert world.again().nodes["n0"] == NodeState(FAILED, 7, START_S, 'it\'s "odd"\nü', 2)
    assert world.again().counts()[FAILED] == 1


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "\udcff", '{"schema": "pal.sweep/99"}', '{"schema": "pal.sweep/1"}', '{"schema": "pal.record/1"}'],
)
def test_a_damaged_plan_is_one_clear_error(world: World, text: str) -> None:
    (Path(world.directory.path) / "plan.json").write_text(text, errors="surrogateescape")
    with pytest.raises(DataError, match=r"plan\.json"):
        world.again()


@pytest.mark.parametrize(
    ("key", "value"),
    [("node_s", None), ("max_parallel", "2"), ("skipped", []), ("window", 7), ("chosen", [["n0", "4", 0.0]]),
     ("chosen", [[["n0"], 4, 0.0]]), ("chosen", [{}])],
)  # fmt: skip
def test_a_plan_with_values_of_other_types_is_the_same_error(world: World, key: str, value: object) -> None:
    plan = Path(world.directory.path) / "plan.json"
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {key: value}))
    with pytest.raises(DataError, match=r"plan\.json cannot be read"):
        world.again()


def test_a_plan_that_everyone_can_write_is_not_carried_out(world: World) -> None:
    (Path(world.directory.path) / "plan.json").chmod(0o666)
    with pytest.raises(DataError, match=r"plan\.json can be written by everyone"):
        world.again()


def test_lines_of_a_journal_that_mean_nothing_are_passed_over(world: World) -> None:
    assert world.sweep().run()
    journal, before = Path(world.directory.path) / "journal.jsonl", world.again().nodes
    for line in (
        {"node": ["n0"], "state": "todo"}, {"node": "n0", "state": ["todo"]}, {"state": "todo"}, [], 7,
        {"node": "n0", "state": "submitted", "since_s": "yesterday"}, {"node": "n0", "state": "todo", "job_id": None},
        {"pause": {"why": 1, "since_s": "x"}}, {"node": "n0", "state": "todo", "mood": 1},
    ):  # fmt: skip
        with journal.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
    with journal.open("ab") as stream:
        stream.write(b"\xff\x00{\n")
    assert world.again().nodes == before and world.again().pause is None
    os.utime(journal, (START_S, START_S))
    assert len(sweep_state.expenses(world.state_dir, START_S - 1)) == 4


def test_a_disk_that_fills_up_in_the_middle_costs_no_line_and_leaves_nothing_pending(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.occupy("n1")
    original, full = os.write, [True]
    monkeypatch.setattr("os.write", lambda fd, raw: original(fd, raw[:9] if full[0] and b'"n2"' in raw else raw))
    with pytest.raises(DataError, match=r"cannot write the journal in .*: No space left on device"):
        world.sweep().run()
    assert "PENDING" not in {job.state for job in world.slurm.jobs.values()}
    full[0] = False
    world.directory.set("n3", NodeState(FAILED, 7))  # by the same process: the torn line swallows nothing
    assert world.states()["n3"] == FAILED
    world.slurm.finish(1)
    assert world.sweep(world.again()).run() and set(world.states().values()) == {DONE}


def test_unknown_sweeps_are_named(world: World, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no sweep 'x'; the last ones are 20270115-080000-00000"):
        sweep_state.load(world.state_dir, "x")
    with pytest.raises(UsageError, match="no sweep in"):
        sweep_state.load(str(tmp_path / "elsewhere"))


def test_sweep_ids_sort_by_time() -> None:
    ids = [sweep_state.new_id(START_S + t) for t in (0.0, 0.002, 1.0, 86400.0)]
    assert ids == sorted(ids) and len(set(ids)) == 4


def test_a_clock_that_is_set_back_hides_no_sweep_and_no_node(tmp_path: Path) -> None:
    """The last sweep is the last one; what was measured in the future holds no node back until then."""
    ahead = sweep_state.new_id(START_S + 400 * 86400.0)
    back = [sweep_state.new_id(START_S, ahead)]
    back += [sweep_state.new_id(START_S, back[0]), sweep_state.new_id(START_S, "20270115-080000-00fff")]
    assert ahead < back[0] < back[1] and back[2] > "20270115-080000-00fff"
    assert all(sweep_state._ID.fullmatch(made) for made in back)
    assert sweep_state.new_id(START_S, "20270114-235959-99999").startswith("20270115-080000-000")
    with open_database(str(tmp_path), write=True) as database:
        for number, ts in enumerate((START_S, START_S + 400 * 86400.0)):
            database.insert([records_factory.record(run_id=f"r{number}", node="n1", ts=ts)], ts)
    config = SimpleNamespace(state_dir=str(tmp_path))
    assert collect.newest_by_node(cast(Config, config), START_S + 10) == {"n1": START_S}


def test_an_unwritable_state_directory_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="state directory"), only_sweep(str(tmp_path / "file" / "state"), "s"):
        raise AssertionError("held a lock in a file")


@pytest.mark.parametrize(
    ("raw", "line"),
    [(b"", ""), (b"\n\n", ""), (b"a\nb\n", "b"), (b"x\x1b[31m\xff", "x\\x1b[31m\N{REPLACEMENT CHARACTER}")],
)
def test_last_words_are_printable(tmp_path: Path, raw: bytes, line: str) -> None:
    (tmp_path / "out").write_bytes(raw)
    assert last_line(str(tmp_path / "out")) == line and last_line(str(tmp_path / "none")) == ""


# -- pauses -------------------------------------------------------------------------


def local_s(hour: int, minute: int = 0) -> float:
    return time.mktime((2027, 1, 15, hour, minute, 0, 0, 0, -1))


def submissions(world: World) -> int:
    return sum(1 for c in world.slurm.calls if c[0] == "sbatch")


def test_outside_its_window_a_sweep_submits_nothing_and_asks_slurm_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, window="20:00-06:00", yield_to_users=True)
    world.now_s = local_s(19, 59)
    world.on_sleep = lambda: world.finish_all() if world.now_s >= local_s(20) else None
    calls: list[int] = []
    paused = world.directory.set_pause
    world.directory.set_pause = lambda pause: (calls.append(len(world.slurm.calls)), paused(pause))[1]  # type: ignore
    assert world.sweep().run() and set(world.states().values()) == {DONE}
    assert world.pauses == ["outside the window, opens 20:00", ""] and calls == [0, 3]  # then it looks who waits
    assert world.again().pause is None and world.now_s < local_s(20, 5)


def test_when_the_window_closes_pending_jobs_are_withdrawn_and_running_ones_end(tmp_path: Path) -> None:
    world = World(tmp_path, window="20:00-06:00", max_parallel=3, pending_max_s=1e6)
    world.now_s = local_s(5, 59)
    user = world.occupy("n1")
    world.on_sleep = lambda: world.finish_all() if world.now_s > local_s(6, 1) else None
    states: list[str] = []

    def stop_at_noon() -> None:
        if world.now_s > local_s(12):
            states.append(world.again().pause.why if world.again().pause else "")  # type: ignore[union-attr]
            world.stop.set()
        elif world.now_s > local_s(6, 1):
            world.finish_all()

    world.on_sleep = stop_at_noon
    assert not world.sweep().run()
    assert states[0] == "outside the window, opens 20:00"
    assert world.states() == {"n0": DONE, "n1": TODO, "n2": DONE, "n3": TODO}
    assert "outside the window" in world.again().nodes["n1"].reason
    world.slurm.finish(user)
    world.stop.clear()
    world.now_s = local_s(20, 1)
    world.on_sleep = world.finish_all
    assert world.sweep(world.again()).run() and set(world.states().values()) == {DONE}


def test_while_a_user_waits_nothing_is_submitted_and_pending_jobs_are_withdrawn(tmp_path: Path) -> None:
    world = World(tmp_path, nodes=6, yield_to_users=True, max_parallel=2, pending_max_s=1e6)
    users = [world.occupy(f"n{i}") for i in range(3)]  # the sweep's job on n0 would wait for ever
    waits: list[int] = []

    def step() -> None:
        if world.now_s > START_S + 30 and not waits:
            waits.append(world.occupy("n0"))  # pending (Resources)
        if waits and START_S + 60 < world.now_s < START_S + 300:
            own = [j for j in world.slurm.jobs.values() if j.name.startswith("pal-profile:")]
            assert not [j for j in own if j.state == "PENDING"]
            assert world.again().pause is not None
        if world.now_s > START_S + 300:
            for one in (*users, *waits):
                if world.slurm.jobs[one].state == "RUNNING":
                    world.slurm.finish(one)
        world.finish_all()

    world.on_sleep = step
    assert world.sweep().run() and set(world.states().values()) == {DONE}
    assert world.pauses[0].startswith(f"users wait: job {waits[0]} (Resources)") and world.pauses[-1] == ""
    assert world.again().pause is None


def test_idle_nodes_are_taken_before_busy_ones(tmp_path: Path) -> None:
    world = World(tmp_path, yield_to_users=True, max_parallel=1)
    world.occupy("n0")
    assert world.sweep().run()
    ours = [j.req for j in world.slurm.jobs.values() if j.name.startswith("pal-profile:")]
    assert ours == ["n1", "n2", "n3", "n0"] and world.states()["n0"] == SKIPPED


def test_the_budget_of_a_day_counts_all_sweeps_and_the_sweep_goes_on_when_it_is_free(tmp_path: Path) -> None:
    world = World(tmp_path, budget_gpu_h_per_day=2 * 4 * 10.0 / 3600.0)  # two nodes a day
    assert world.sweep().run() and set(world.states().values()) == {DONE}
    times = sorted(s.since_s for s in world.again().nodes.values())
    assert times[1] < START_S + 60 and times[2] > START_S + 86400 - 60 and times[3] < START_S + 86400 + 60
    assert [p.partition(":")[0] for p in world.pauses] == ["budget", ""]
    os.utime(Path(world.directory.path) / "journal.jsonl", (world.now_s, world.now_s))
    found = sweep_state.expenses(world.state_dir, START_S + 3600)
    assert len(found) == 2 and all(e.gpu_h == pytest.approx(40 / 3600) for e in found)


def test_a_job_that_takes_ten_times_as_long_as_expected_costs_that_of_the_budget(tmp_path: Path) -> None:
    world = World(tmp_path, nodes=2, max_parallel=1, budget_gpu_h_per_day=3 * 4 * 10.0 / 3600.0)

    def finish() -> None:
        if world.now_s > START_S + 100.0:
            world.finish_all()

    world.on_sleep = finish
    assert world.sweep().run() and set(world.states().values()) == {DONE}
    assert world.again().nodes["n1"].since_s > START_S + 86400 - 60 and world.pauses[0].startswith("budget: 0.11")


def test_what_a_running_sweep_has_is_published_now_and_then(tmp_path: Path) -> None:
    world = World(tmp_path, nodes=40, publish_every_s=2.0)
    assert world.sweep().run()
    assert len(world.published) >= 3
    assert all(b - a >= 2.0 for a, b in zip(world.published, world.published[1:], strict=False))
    world = World(tmp_path / "off", nodes=40)
    assert world.sweep().run() and world.published == []


def test_a_restart_of_the_controller_while_paused_loses_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, yield_to_users=True)
    away = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    world.refuse = lambda argv: away if world.now_s < START_S + 120 else ""
    assert world.sweep().run() and set(world.states().values()) == {DONE} and submissions(world) == 4


def test_a_submission_waits_as_long_for_the_controller_as_everything_else(world: World) -> None:
    world.refuse = lambda argv: (
        "Unable to contact slurm controller" if argv[0] == "sbatch" and world.now_s < START_S + 200 else ""
    )
    assert world.sweep().run() and set(world.states().values()) == {DONE}


def test_whether_a_sweep_is_at_work_is_told_by_its_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Path(world.state_dir, "sweep.running")
    with only_sweep(world.state_dir, "s1"):
        here = json.loads(holder.read_text())
        holder.write_text(json.dumps(here | {"host": "elsewhere", "pid": 2**22 + 1}))  # a shared state directory
        assert at_work(world.state_dir) == "s1"
        with pytest.raises(BusyError, match="sweep s1 is running on elsewhere: "), only_sweep(world.state_dir, "s2"):
            raise AssertionError("two sweeps at once")
        monkeypatch.setattr("os.open", refused)  # another user
        assert at_work(world.state_dir) == "s1"
        holder.write_text(json.dumps(here | {"pid": 2**22 + 1}))
        assert at_work(world.state_dir) == ""
        monkeypatch.undo()
    holder.write_text(json.dumps(here))  # it was killed, and its pid is another program's now
    assert at_work(world.state_dir) == ""


def refused(path: str, *how: int, opened: Callable[..., int] = os.open) -> int:
    if path.endswith(".lock"):
        raise PermissionError(path)
    return opened(path, *how)


def test_a_sweep_is_at_work_only_while_its_process_lives(world: World) -> None:
    assert at_work(world.state_dir) == ""
    with only_sweep(world.state_dir, "s1"):
        assert at_work(world.state_dir) == "s1"
    dead = subprocess.Popen(["/bin/true"])
    dead.wait()
    Path(world.state_dir, "sweep.running").write_text(json.dumps({"sweep": "s1", "pid": dead.pid}))
    assert at_work(world.state_dir) == ""


def test_terms_of_an_older_release_can_be_resumed(world: World) -> None:
    plan = Path(world.directory.path) / "plan.json"
    table = json.loads(plan.read_text())
    for key in ("window", "budget_gpu_h_per_day", "yield_to_users", "publish_every_s"):
        del table[key]
    table["chosen"] = [row[:3] for row in table["chosen"]]
    for key in ("mode", "mig"):
        del table["job"][key]
    plan.write_text(json.dumps(table))
    assert world.sweep(world.again()).run() and set(world.states().values()) == {DONE}


def test_a_job_that_has_started_is_not_taken_back_by_a_pause(tmp_path: Path) -> None:
    world = World(tmp_path, nodes=1, window="20:00-06:00", pending_max_s=1e6, node_s=100.0)
    world.now_s = local_s(5, 58)
    user = world.occupy("n0")

    def step() -> None:
        if world.now_s > local_s(5, 59) and world.slurm.jobs[user].state == "RUNNING":
            world.slurm.finish(user)
        if world.now_s > local_s(6, 1) and world.slurm.jobs[2].state == "RUNNING":
            world.slurm.finish(2, "FAILED")  # without a result

    world.on_sleep = step
    assert world.sweep().run()
    assert world.states() == {"n0": FAILED} and "job 2 FAILED" in world.again().nodes["n0"].reason
    assert not [c for c in world.slurm.calls if c[0] == "scancel"]
