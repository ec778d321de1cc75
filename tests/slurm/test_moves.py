# SPDX-License-Identifier: MIT
"""Moves on a real Slurm: to the target and back out of trouble, whoever interferes and wherever the mover dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.journal.journal import Move, open_journal
from slurm_pal.lab.lab import Lab
from slurm_pal.moves.mover import Mover, StepLimits
from slurm_pal.slurm.cli import CliClient
from slurm_pal.submit.checkpoint import render
from slurm_pal.submit.choice import Saving

from . import queue_of

pytestmark = pytest.mark.real_slurm

PATIENCE_S = 40.0
LIMITS = StepLimits()
DRIVER = """
import sys, time
from slurm_pal.moves.mover import Mover, StepLimits
from slurm_pal.journal.journal import open_journal
from slurm_pal.slurm.cli import CliClient
path, step, when = sys.argv[1:]
def stop():
    print("here", flush=True)
    time.sleep(1000)
def note(what, details):
    if when == "before" and details.get("step") == step:
        stop()
mover = Mover(open_journal(path), CliClient(), StepLimits(), note)
real = mover._order
def order(move, act, now_s):
    real(move, act, now_s)
    if when == "after" and move.step == step:
        stop()
mover._order = order
mover.recover(time.time())
while mover.step(time.time()):
    time.sleep(0.05)
"""


class Site:
    """The lab, a journal of the test's own, and a mover."""

    def __init__(self, path: Path) -> None:
        self.client, self.path = CliClient(), str(path / "rebalance.db")

    def submit(self, *words: str, script: str = "#!/bin/sh\nsleep 100\n") -> int:
        return self.client.submit(["-o", "/dev/null", *words], script)

    def until(self, number: int, wanted: Callable[[SlurmJob], bool]) -> SlurmJob:
        return queue_of.until(self.client, number, wanted)

    def running(self, number: int) -> SlurmJob:
        return self.until(number, lambda job: job.state == "RUNNING")

    def move(self, number: int, target: str = "n2") -> Move:
        job, now_s = self.running(number), time.time()
        node = job.nodes[0]
        return Move(
            0, number, job.user, now_s, job.restarts, f"{node}:0", (target,), f"{target}:0", "", 1.3, 1.0, 900.0, 60.0,
            False, "", "planned", now_s,
        )  # fmt: skip

    def carry_out(self, *moves: Move, meanwhile: Callable[[str], object] = lambda step: None) -> list[Move]:
        """Start these and go on with what is under way; `meanwhile` is called after each look, with the step."""
        with open_journal(self.path) as journal:
            mover = Mover(journal, self.client, LIMITS, lambda what, details: None)
            mover.recover(time.time())
            mover.start(moves)
            deadline_s = time.monotonic() + PATIENCE_S
            while mover.step(time.time()):
                for open_move in journal.open_moves():
                    meanwhile(open_move.step)
                assert time.monotonic() < deadline_s, journal.open_moves()
                time.sleep(0.1)
            return journal.moves()

    def at(self, step: str, *argv: str) -> Callable[[str], None]:
        """Run a command of Slurm's once, when a move has reached this step."""
        done: list[str] = []

        def run(present: str) -> None:
            if present == step and not done:
                done.append(step)
                subprocess.run(argv, check=True)

        return run


@pytest.fixture
def site(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name, value in lab.variables().items():
        monkeypatch.setenv(name, value)
    made = Site(tmp_path)
    yield made
    queue_of.emptied(made.client)


def test_a_move(site: Site) -> None:
    number = site.submit("--gres=gpu:1")
    (done,) = site.carry_out(site.move(number))
    job = site.running(number)
    assert (done.outcome, job.nodes, job.restarts, job.req_nodes) == ("moved", ("n2",), 1, ("n2",))
    with open_journal(site.path, write=False) as journal:
        assert journal.leases()[number].ours == "n2"
    (*_, done) = site.carry_out(site.move(number, "n1"))
    assert done.outcome == "moved" and site.running(number).gpus == {"n1": (0,)}


def test_a_job_of_two_nodes_keeps_its_own(site: Site) -> None:
    number = site.submit("-w", "n0", "-N2", "--gres=gpu:2")
    (done,) = site.carry_out(site.move(number)._replace(target=("n0", "n3"), own_req="n0"))
    assert done.outcome == "moved" and site.running(number).nodes == ("n0", "n3")


def test_jobs_that_start_again_where_they_were_are_not_ended(site: Site) -> None:
    """Without a second in between slurmd refuses some of them: "Job credential revoked"."""
    numbers = [site.submit("-w", f"n{k % 4}", "--gres=gpu:1") for k in range(12)]
    nodes = [site.running(number).nodes[0] for number in numbers]
    moves = [site.move(number, node)._replace(target=(node,)) for number, node in zip(numbers, nodes, strict=True)]
    assert {move.outcome for move in site.carry_out(*moves)} == {"moved"}
    time.sleep(1.5)  # a refusal takes a moment to become the job's end
    assert [site.running(number).restarts for number in numbers] == [1] * len(numbers)


def test_the_checkpoint_is_waited_for(site: Site) -> None:
    script = (
        "#!/bin/bash\ntrap 'scontrol update JobId=$SLURM_JOB_ID Comment=\"mine pal:ack=${SLURM_RESTART_COUNT:-0}.1\"' "
        "USR1\nwhile :; do sleep 0.2; done\n"
    )
    number = site.submit("--gres=gpu:1", "--comment=mine", script=script)
    site.running(number)
    time.sleep(0.5)  # until the trap stands
    (done,) = site.carry_out(site.move(number)._replace(checkpoint=True))
    assert done.outcome == "moved" and site.running(number).comment == "mine pal:ack=0.1"


ENDS = """#!/bin/bash
#SBATCH --gres=gpu:1 --open-mode=append
trap 'echo saved; @' USR1
echo "run ${SLURM_RESTART_COUNT:-0} ${SLURM_PAL_RUN#*.}"
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("status", [0, 85])
def test_a_script_that_ends_after_its_checkpoint(status: int, site: Site, tmp_path: Path) -> None:
    """One that exits 0 has ended, however near the requeue is. One that exits 85 asks for it, and runs again."""
    trap = "exit 85" if status else 'touch "$SLURM_PAL_ACK"; sleep 0.3; exit 0'
    script = render(ENDS.replace("@", trap).encode(), "USR1").decode()
    number = site.client.submit(["-o", str(tmp_path / "out"), "--comment=mine"], script)
    site.running(number)
    wait_for(tmp_path / "out", "run 0")
    (done,) = site.carry_out(site.move(number)._replace(checkpoint=True))
    if status:
        assert done.outcome == "moved" and site.running(number).restarts == 1
        wait_for(tmp_path / "out", "run 1 1.0")
        assert (tmp_path / "out").read_text().startswith("run 0 0.0\nsaved\n")
    else:
        job = site.until(number, lambda job: job.state not in ("RUNNING", "COMPLETING", "PENDING"))
        ended = job.state, job.restarts, job.raw["ExitCode"]
        assert ended == ("COMPLETED", 0, "0:0") and done.outcome in ("ended", "abandoned")
        assert (tmp_path / "out").read_text() == "run 0 0.0\nsaved\n"


@pytest.mark.parametrize("slow", [False, True])
def test_near_its_limit_a_job_is_requeued_once_by_mover_or_wrapper(slow: bool, site: Site, tmp_path: Path) -> None:
    """With --pal-save-before both would: the mover that is soon there goes first; one that is late finds it done."""
    body = ENDS.replace("@", 'touch "$SLURM_PAL_ACK"').encode()
    script = render(body, "USR1", saving=Saving(100, 3)).decode()
    number = site.client.submit(["-o", str(tmp_path / "out"), "-t2", "--comment=mine"], script)
    site.running(number)
    wait_for(tmp_path / "out", "run 0")

    def late(step: str) -> None:
        if slow and step == "signalling":
            site.until(number, lambda job: job.restarts > 0)

    (done,) = site.carry_out(site.move(number)._replace(checkpoint=True), meanwhile=late)
    wait_for(tmp_path / "out", "run 1 1.0")
    job = site.running(number)
    assert (done.outcome, job.restarts) == ("abandoned" if slow else "moved", 1)
    assert job.comment == "mine pal:ack=0.1" + (" pal:cont=1;of=3" if slow else "")


def wait_for(path: Path, text: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline_s, text
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["drained", "taken"])
def test_an_unwilling_target(site: Site, how: str) -> None:
    number = site.submit("--gres=gpu:1")
    move = site.move(number)
    if how == "drained":
        site.client.update_nodes(["n2"], State="DRAIN", Reason="test")
    else:
        site.running(site.submit("-w", "n2", "--gres=gpu:4"))
    try:
        (done,) = site.carry_out(move)
    finally:
        if how == "drained":
            site.client.update_nodes(["n2"], State="RESUME")
    job = site.running(number)
    assert (done.outcome, job.req_nodes, job.restarts) == ("elsewhere", (), 1) and "n2" not in job.nodes


@pytest.mark.parametrize("step", ["requeueing", "targeting"])
def test_its_user_cancels_it(site: Site, step: str) -> None:
    number = site.submit("--gres=gpu:1")
    (done,) = site.carry_out(site.move(number), meanwhile=site.at(step, "scancel", str(number)))
    site.until(number, lambda job: job.state == "CANCELLED")
    assert done.outcome in ("ended", "moved") if step == "targeting" else done.outcome == "ended"


@pytest.mark.parametrize("word", ["uhold", "hold"])
@pytest.mark.parametrize("step", ["requeueing", "targeting"])
def test_a_hold_of_somebody_else_stays(site: Site, step: str, word: str) -> None:
    number = site.submit("--gres=gpu:1")
    site.running(site.submit("-w", "n2", "--gres=gpu:4"))
    (done,) = site.carry_out(site.move(number), meanwhile=site.at(step, "scontrol", word, str(number)))
    job = site.until(number, lambda job: job.state == "PENDING")
    reason = {"uhold": "JobHeldUser", "hold": "JobHeldAdmin"}[word]
    assert (done.outcome, job.reason, job.req_nodes) == ("waiting", reason, ())


def test_its_users_own_list_stays(site: Site) -> None:
    number = site.submit("--gres=gpu:1")
    site.running(site.submit("-w", "n2", "--gres=gpu:4"))
    words = ["scontrol", "update", f"JobId={number}", "ReqNodeList=n3"]
    (done,) = site.carry_out(site.move(number), meanwhile=site.at("targeting", *words))
    job = site.running(number)
    assert (done.outcome, job.req_nodes, job.nodes) == ("elsewhere", ("n3",), ("n3",))


def test_a_job_that_has_ended_does_not_come_back(site: Site) -> None:
    number = site.submit("--gres=gpu:1", script="#!/bin/sh\ntrue\n")
    site.until(number, lambda job: job.state == "COMPLETED")
    site.client.requeue(number)
    time.sleep(1)
    job = site.client.job(number)
    assert job is not None and (job.state, job.restarts) == ("COMPLETED", 0)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["requeueing", "targeting", "clearing"])
def test_killed_at_a_step(site: Site, step: str, when: str) -> None:
    number = site.submit("--gres=gpu:1")
    move = site.move(number)
    if step == "clearing":
        site.running(site.submit("-w", "n2", "--gres=gpu:4"))
    with open_journal(site.path) as journal:
        journal.begin(move)
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", DRIVER, site.path, step, when], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ,
    )  # fmt: skip
    with contextlib.closing(child.stdout) as out, contextlib.closing(child.stderr) as err:
        said = out.readline()
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL and said == b"here\n", err.read()
    (done,) = site.carry_out()
    job = site.running(number)
    wanted = "elsewhere" if step == "clearing" else "moved"
    assert (done.outcome, job.restarts) == (wanted, 1) and (job.nodes == ("n2",)) == (wanted == "moved")
    assert job.req_nodes == (() if wanted == "elsewhere" else ("n2",))
