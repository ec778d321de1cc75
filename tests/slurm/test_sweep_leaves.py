# SPDX-License-Identifier: MIT
"""A sweep job leaves its node when a user's job could start there: at our word, and by Slurm's own preemption."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest

from slurm_pal.lab.lab import Lab
from slurm_pal.profiling.node.benchmarks import select
from slurm_pal.variability.records import from_json

from .test_sweep import Control, control_of, wait_until

pytestmark = pytest.mark.real_slurm

IN_TIME_S = 15.0
"""How soon the user's job must run; on a machine that is not loaded it takes 2 to 4 s."""
FIRST_S = 24.0
"""When the first benchmark of a job is complete (19 s at this scale) and the last is not (29 s)."""
SCALE = ("--wall-scale", "0.25")
HOURS = ("--wall-scale", "30")  # a job that does not end before the test
PREEMPTING = (
    ("PriorityType=priority/basic",
     "PriorityType=priority/basic\nPreemptType=preempt/partition_prio\nPreemptMode=REQUEUE"),
    ("PartitionName=gpu Nodes=ALL ",
     "PartitionName=sweep Nodes=ALL PriorityTier=1 MaxTime=INFINITE State=UP OverSubscribe=NO\n"
     "PartitionName=gpu Nodes=ALL PriorityTier=10 PreemptMode=OFF "),
)  # fmt: skip


@pytest.fixture
def control(lab: Lab) -> Iterator[Control]:
    with control_of(lab) as control:
        yield control


def start(control: Control, node: str, *words: str) -> int:
    """The id of the sweep's job on a node, once it measures."""
    control.start("run", "-w", node, "--json", *words)
    return running(control, node)


def running(control: Control, node: str) -> int:
    wait_until(lambda: [job for job in control.jobs() if (job["node"], job["state"]) == (node, "RUNNING")])
    return next(int(job["id"]) for job in control.jobs() if job["node"] == node)


def user_job(control: Control, node: str, *words: str) -> tuple[int, float]:
    """A user's job for all of a node, of three seconds; its id, and the seconds until it ran."""
    argv = ("sbatch", "--parsable", "-w", node, "--exclusive", "--gres=gpu:1", "-o", "/dev/null", "--wrap", "sleep 3")
    began_s = time.monotonic()
    job = control.ask(*argv, *words).strip()
    ran = ("RUNNING", "COMPLETING", "COMPLETED")
    wait_until(lambda: control.ask("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip() in ran)
    return int(job), time.monotonic() - began_s


def benchmarks(control: Control, sweep_id: str, node: str) -> dict[int, set[str]]:
    """Job -> the benchmarks that are in its taken-in results for all four GPUs."""
    found: dict[tuple[int, str], set[str]] = {}
    for path in (control.state / "spool" / "ingested").glob(f"{sweep_id}.{node}.*"):
        for record in map(from_json, path.read_text().splitlines()):
            gpus = found.setdefault((record.slurm_job_id, record.bench.id), set())
            gpus |= {record.gpu.uuid} if record.bench.id != "allreduce" else set("1234")
    return {
        job_id: {name for (number, name), gpus in found.items() if number == job_id and len(gpus) == 4}
        for job_id, _ in found
    }


def check_left_and_measured(control: Control, sweep_id: str, node: str) -> None:
    """The second job has run what the first had not, and nothing else."""
    code, _, err = control.end(control.children[0])
    assert code == 0, err
    found = control.json("status")["nodes"][0]
    assert (found["state"], found["leavings"], found["attempts"], found["gpus"]) == ("done", 1, 2, 4), found
    one, two = (names for _, names in sorted(benchmarks(control, sweep_id, node).items()))
    assert "gemm_bf16" in one and not one & two and one | two == {b.id for b in select("")}


def test_a_users_job_starts_at_once_and_the_rest_of_the_node_is_measured_later(control: Control) -> None:
    start(control, "n1", *SCALE)
    time.sleep(FIRST_S)
    user, waited_s = user_job(control, "n1")
    assert waited_s < IN_TIME_S
    journal = control.state / "sweeps" / control.json("status")["sweep"] / "journal.jsonl"
    assert f"leaves for job {user}" in journal.read_text()
    check_left_and_measured(control, control.json("status")["sweep"], "n1")


def test_a_job_leaves_before_anybody_waits_and_the_next_users_job_starts_there(control: Control) -> None:
    control.start("run", "-w", "n0", *HOURS)
    ours = running(control, "n0")
    argv = ("sbatch", "--parsable", "--exclusive", "--gres=gpu:1", "-o", "/dev/null", "--wrap", "sleep 600")
    users = [control.ask(*argv, "-w", node).strip() for node in ("n1", "n2")]
    states = ("squeue", "-h", "-t", "all", "-o", "%A %T %N")

    def shown() -> dict[str, list[str]]:
        return {line.split()[0]: line.split()[1:] for line in control.ask(*states).splitlines()}

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: control.ask("scancel", *users))
        wait_until(lambda: all(shown()[user][0] == "RUNNING" for user in users))
        time.sleep(3.0)
        assert shown()[str(ours)][0] == "RUNNING"  # n3 is idle still
        users.append(control.ask(*argv, "-w", "n3").strip())
        wait_until(lambda: shown().get(str(ours), ["CANCELLED"])[0] == "CANCELLED")
        assert {shown()[user][0] for user in users} == {"RUNNING"}  # nobody had to wait for that
        wait_until(lambda: control.json("status")["nodes"][0]["leavings"] == 1)
        users.append(control.ask(*argv).strip())
        wait_until(lambda: shown()[users[-1]] == ["RUNNING", "n0"])
        wait_until(
            lambda: control.json("status")["nodes"][0]["state"] == "todo"
        )  # no result: it waits a little for one
        assert control.json("status")["nodes"][0]["reason"] == "left early, too few idle nodes beside it"
        wait_until(lambda: control.json("status")["state"] == "paused")


def test_only_as_many_jobs_leave_as_are_needed_and_none_for_a_job_that_could_not_start(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PAL_PROFILE_SPARE_NODES", "0")
    sweep = control.start("run", "-w", "n[0-1]", "--max-parallel", "2", *HOURS)
    ours = {running(control, node) for node in ("n0", "n1")}
    argv = ("sbatch", "--parsable", "--exclusive", "--gres=gpu:1", "-o", "/dev/null")
    others = [control.ask(*argv, "-w", node, "--wrap", "sleep 600").strip() for node in ("n2", "n3")]
    with contextlib.ExitStack() as stack:
        stack.callback(control.ask, "scancel", *others)
        of_others = ("squeue", "-h", "-j", ",".join(others), "-o", "%T")
        wait_until(lambda: control.ask(*of_others).split() == ["RUNNING", "RUNNING"])
        large = control.ask(*argv, "-N3", "--wrap", "true").strip()  # two nodes of ours and one that is not
        wait_until(lambda: control.ask("squeue", "-h", "-j", large, "-o", "%r").strip() == "Resources")
        time.sleep(5.0)
        assert {int(job["id"]) for job in control.jobs()} == ours
        control.ask("scancel", large)
        small = control.ask(*argv, "-N1", "--wrap", "true").strip()
        wait_until(lambda: not control.ask("squeue", "-h", "-j", small, "-o", "%T").strip())
        (node,) = [job["node"] for job in control.jobs()]
        left = {int(job["id"]) for job in control.jobs()}
        assert left < ours
        os.kill(sweep.pid, signal.SIGKILL)  # nobody watches any more: the job goes on, up to its limit
        sweep.wait()
        waits = control.ask(*argv, "-w", node, "--wrap", "true").strip()
        time.sleep(5.0)
        assert {int(job["id"]) for job in control.jobs()} == left
        assert control.ask("squeue", "-h", "-j", waits, "-o", "%T").strip() == "PENDING"
        (limit,) = {control.ask("squeue", "-h", "-j", str(job), "-o", "%l").strip() for job in left}
        assert limit != "UNLIMITED"
        control.start("run", "--resume")
        wait_until(lambda: not control.ask("squeue", "-h", "-j", waits, "-o", "%T").strip())


def test_a_job_that_slurm_preempts_has_left_its_node(lab_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PAL_PROFILE_PARTITION", "sweep")
    monkeypatch.setenv("SLURM_PAL_PROFILE_YIELD_TO_USERS", "false")  # Slurm alone takes the node
    with contextlib.ExitStack() as stack:
        lab = Lab.up(lab_dir, nodes=1, gpus=4, seed=2, conf_edits=PREEMPTING)
        stack.callback(lab.down)
        control = stack.enter_context(control_of(lab))
        start(control, "n0", *SCALE)
        time.sleep(FIRST_S)
        _, waited_s = user_job(control, "n0", "-p", "gpu")
        assert waited_s < IN_TIME_S
        check_left_and_measured(control, control.json("status")["sweep"], "n0")
