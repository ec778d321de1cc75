# SPDX-License-Identifier: MIT
"""A sweep of pairs of nodes against a fake Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_pal.profiling.sweep.plan import ChosenNode
from slurm_pal.profiling.sweep.sweep_state import DONE, FAILED, SKIPPED, TODO, expenses
from slurm_pal.slurm.fake import FakeNode
from slurm_pal.store.level_ratios import file_name
from slurm_pal.variability.pair_times import PairTimes

from .test_profiling_sweep import START_S, World

SWEEP = "20270115-080000-00000"


class Pairs(World):
    """Three pairs of four nodes."""

    def __init__(self, tmp_path: Path, **terms: object) -> None:
        names = ("n0,n1", "n2,n3", "n0,n3")
        chosen = tuple(ChosenNode(name, 8, 0.0, 36.0, "level 1", ("gpu",)) for name in names)
        super().__init__(tmp_path, chosen=chosen, max_parallel=1, **terms)
        self.ends = ["COMPLETED"] * 9
        self.on_sleep = self.end_all

    def end_all(self) -> None:
        for job in [job for job in self.slurm.jobs.values() if job.state == "RUNNING" and job.name != "user"]:
            state = self.ends.pop(0)
            if state == "COMPLETED":
                self.tell(job.job_id, tuple(sorted(job.placed)))
            self.slurm.finish(job.job_id, state)

    def tell(self, job_id: int, nodes: tuple[str, ...]) -> None:
        for node in nodes:
            row = PairTimes(SWEEP, job_id, node, nodes, 4, "emu", START_S, 1.0, 2.0, 1e-5, 2e-5)
            (self.spool / file_name(SWEEP, node, job_id)).write_text(row.to_json() + "\n")


@pytest.fixture
def world(tmp_path: Path) -> Pairs:
    return Pairs(tmp_path)


def test_one_pair_after_the_other(world: Pairs) -> None:
    assert world.sweep().run()
    assert world.states() == {"n0,n1": DONE, "n2,n3": DONE, "n0,n3": DONE}
    argvs = [call for call in world.slurm.calls if call[0] == "sbatch"]
    assert [call[call.index("-w") + 1] for call in argvs] == ["n0,n1", "n2,n3", "n0,n3"]
    assert all("-N2" in call and "--gres=gpu:4" in call for call in argvs)
    assert [expense.gpu_h for expense in expenses(world.state_dir, 0.0)] == pytest.approx([0.08] * 3)


def test_jobs_that_end_without_a_result(world: Pairs) -> None:
    world.ends[:2] = ["TIMEOUT", "NODE_FAIL"]
    assert world.sweep().run()
    nodes = world.again().nodes
    assert nodes["n0,n1"].state == FAILED and "TIMEOUT: no result of n0" in nodes["n0,n1"].reason
    assert nodes["n2,n3"].state == DONE and nodes["n2,n3"].attempts == 2, "lost by Slurm: once more"
    world.ends[:] = ["COMPLETED"] * 3
    assert world.sweep(world.again()).run() and world.states()["n0,n1"] == DONE


def test_one_of_two_has_told_nonsense(world: Pairs) -> None:
    def end() -> None:
        for job in [job for job in world.slurm.jobs.values() if job.state == "RUNNING"]:
            world.tell(job.job_id, tuple(sorted(job.placed)))
            (world.spool / file_name(SWEEP, sorted(job.placed)[1], job.job_id)).write_text("[]\n")
            world.slurm.finish(job.job_id)

    world.on_sleep = end
    assert world.sweep().run()
    nodes = world.again().nodes
    assert {state.state for state in nodes.values()} == {FAILED}
    assert "result of n1: the times of a pair are a JSON object" in nodes["n0,n1"].reason


def test_a_resume_finds_its_job(world: Pairs) -> None:
    world.on_sleep = lambda: world.stop.set() if world.slurm.jobs else None
    assert not world.sweep().run()
    (job,) = world.slurm.jobs.values()
    assert job.state == "RUNNING"
    world.stop.clear()
    world.on_sleep = world.end_all
    assert world.sweep(world.again()).run()
    assert set(world.states().values()) == {DONE} and len(world.slurm.jobs) == 3


def test_nodes_that_are_gone_or_busy(world: Pairs) -> None:
    world.stop.set()
    assert not world.sweep().run()
    assert set(world.states().values()) == {TODO}
    world.stop.clear()
    world.slurm.nodes["n3"] = FakeNode("n3", 0)
    world.occupy("n0")
    assert world.sweep(world.again()).run()
    nodes = world.again().nodes
    assert {name: state.state for name, state in nodes.items()} == dict.fromkeys(nodes, SKIPPED)
    assert nodes["n2,n3"].reason == "has no GPU any more" and nodes["n0,n1"].reason.startswith("busy: pending")


def test_a_user_who_waits_for_one_node_has_it(tmp_path: Path) -> None:
    world = Pairs(tmp_path, yield_to_users=True, max_leavings=1)
    user: list[int] = []

    def come() -> None:
        if not user and any(job.state == "RUNNING" for job in world.slurm.jobs.values()):
            user.append(world.occupy("n1"))
        elif user and world.slurm.jobs[user[0]].state == "RUNNING":
            world.slurm.finish(user[0])
        elif user and world.slurm.jobs[user[0]].state == "COMPLETED":
            world.end_all()

    world.on_sleep = come
    assert world.sweep().run()
    nodes = world.again().nodes
    assert nodes["n0,n1"].state == SKIPPED and f"left for job {user[0]}" in nodes["n0,n1"].reason
    assert nodes["n2,n3"].state == DONE


def test_spare_nodes_stay_beside_both(tmp_path: Path) -> None:
    world = Pairs(tmp_path, yield_to_users=True, spare_nodes=2)
    world.occupy("n2")
    world.on_sleep = lambda: world.stop.set() if world.now_s > START_S + 60 else None
    assert not world.sweep().run()
    assert [call for call in world.slurm.calls if call[0] == "sbatch"][1:] == []
    assert any("spare nodes: fewer than 2 idle beside n0,n1" in why for why in world.pauses)
