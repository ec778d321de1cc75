# SPDX-License-Identifier: MIT
"""pal-profile on a real Slurm: measure, interrupt, resume, cancel, lose a node."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.emulation.gpus import set_fault
from slurm_pal.lab.lab import Lab
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.sweep.sweep_job import JobOptions, submit_argv
from slurm_pal.slurm.cli import CliClient
from slurm_pal.store import snapshot
from slurm_pal.variability.records import from_json

from . import queue_of

pytestmark = pytest.mark.real_slurm

PATIENCE_S = 120.0  # how long to wait for what must come; never what a test is about
PAL_PROFILE = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import profile; profile()"]


class Control:
    """pal-profile and Slurm's commands in one lab."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.state = Path(lab.directory("pal"))
        self.children: list[subprocess.Popen[str]] = []

    def start(self, *argv: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [*PAL_PROFILE, *argv],
            env=self.lab.environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        return child

    def end(self, child: subprocess.Popen[str]) -> tuple[int, str, str]:
        out, err = child.communicate(timeout=PATIENCE_S)
        return child.returncode, out, err

    def run(self, *argv: str) -> tuple[int, str, str]:
        return self.end(self.start(*argv))

    def json(self, *argv: str) -> dict[str, Any]:
        code, out, err = self.run(*argv, "--json")
        assert code == 0, err
        table: dict[str, Any] = json.loads(out)
        return table

    def ask(self, *argv: str) -> str:
        done = subprocess.run(
            argv, env=self.lab.environ(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def jobs(self) -> list[dict[str, str]]:
        """Sweep jobs in the queue."""
        lines = self.ask("squeue", "-h", "-o", "%A|%T|%j|%n").splitlines()
        rows = [dict(zip(("id", "state", "name", "node"), line.split("|"), strict=True)) for line in lines]
        return [row for row in rows if row["name"].startswith("pal-profile:")]

    def records(self, node: str, sweep_id: str) -> list[Any]:
        path = self.state / "spool" / "ingested" / f"{sweep_id}.{node}.jsonl"
        return [from_json(line) for line in path.read_text().splitlines()]


def wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "what the test waits for did not come"
        time.sleep(queue_of.LOOK_S)


@contextlib.contextmanager
def control_of(lab: Lab) -> Iterator[Control]:
    control = Control(lab)
    try:
        yield control
    finally:
        for child in control.children:
            if child.poll() is None:
                child.kill()
            child.communicate()
        ids = control.ask("squeue", "-h", "-o", "%A").split()
        if ids:
            control.ask("scancel", *ids)
        wait_until(lambda: set(control.ask("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"})


@pytest.fixture
def control(lab: Lab) -> Iterator[Control]:
    with control_of(lab) as control:
        yield control


def test_a_job_gets_a_short_environment_and_no_login_shell(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**control.lab.variables(), "CUDA_VISIBLE_DEVICES": "none", "MINE": "1"}.items():
        monkeypatch.setenv(name, value)
    options = JobOptions("s1", "c", str(tmp_path), str(tmp_path), sys.executable, Setting("emu"))
    client = CliClient()
    number = client.submit(submit_argv(options, "n0", 4), "#!/bin/sh\nenv\n")
    queue_of.until(client, number, lambda job: job.state == "COMPLETED")
    lines = (tmp_path / "n0.out").read_text().splitlines()
    seen = dict(line.split("=", 1) for line in lines if "=" in line)
    assert (seen["SLURM_JOB_ID"], seen["PATH"]) == (str(number), os.environ["PATH"])
    assert seen["CUDA_VISIBLE_DEVICES"] == "0,1,2,3" and "MINE" not in seen
    assert "SLURM_GET_USER_ENV" not in seen  # by it sbatch has the node start one


def test_a_sweep_finds_the_hidden_truth(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    table = control.json("run", "--max-parallel", "4")
    assert table["counts"] == {"done": 4} and table["gpus"] == 16 and table["complaints"] == []
    published = snapshot.read(table["published"])
    registry = control.lab.registry()
    rows = [published.gpu(row) for row in range(len(published))]
    assert {(g.node, g.index): g.uuid for g in rows} == {(g.node, g.index): g.uuid for g in registry.gpus}
    for sensitivity in "AB":
        truth = [registry.gpu(g.node, g.index).true_slowdown(sensitivity) for g in rows]
        middle = sorted(truth)[7:9]
        for gpu, true in zip(rows, truth, strict=True):
            assert gpu.slowdown[sensitivity] == pytest.approx(true * 2 / sum(middle), abs=0.006)
    assert {g.variability_class["C"] for g in rows} == {"v0"}  # too little spread to make classes of

    monkeypatch.setenv("SLURM_CONF", control.lab.directory.conf)
    jobs = [job for job in CliClient().jobs() if job.name == f"pal-profile:{table['sweep_id']}"]
    assert len(jobs) == 4 and {job.nodes for job in jobs} == {("n0",), ("n1",), ("n2",), ("n3",)}
    for job in jobs:
        assert job.state == "COMPLETED" and job.comment == "pal-profile" and job.time_limit_s == 600
        assert (job.raw["Requeue"], job.raw["NumNodes"], job.raw["Nice"]) == ("0", "1", "10000")
        assert job.raw["OverSubscribe"] == "NO" and job.gpus_per_node == 4
    record = control.records("n2", table["sweep_id"])[0]
    assert record.slurm_job_id in {job.job_id for job in jobs} and record.cluster == "palab"


def test_a_hung_gpu_costs_only_itself(control: Control) -> None:
    registry = control.lab.directory.registry
    set_fault(registry, "n1", 2, "hang")
    try:
        code, out, err = control.run("run", "-w", "n[0-1]", "--max-parallel", "2", "--gpu-timeout-s", "5", "--json")
    finally:
        set_fault(registry, "n1", 2, "hang", None)
    table = json.loads(out)
    assert code == Exit.FAILED and table["counts"] == {"done": 1, "partial": 1} and table["gpus"] == 7, err
    node = next(n for n in control.json("status")["nodes"] if n["node"] == "n1")
    assert node["reason"] == "GPU 2: no answer within 5 s in gemm_bf16"


def test_two_sweeps_at_once(control: Control) -> None:
    first = control.start("run", "-w", "n0", "--wall-scale", "0.05")
    wait_until(control.jobs)
    code, out, err = control.run("run", "-w", "n1")
    assert (code, out) == (Exit.BUSY, "") and err.count("\n") == 1
    assert control.json("status")["sweep"] in err
    assert control.end(first)[0] == 0


def interrupted(control: Control, sweep: subprocess.Popen[str]) -> list[dict[str, str]]:
    """Send Ctrl-C; the sweep jobs that are left."""
    os.kill(sweep.pid, signal.SIGINT)
    code, _, err = control.end(sweep)
    assert code == Exit.INTERRUPTED and "pal-profile run --resume" in err
    return control.jobs()


def test_interrupt_and_resume(control: Control) -> None:
    with contextlib.ExitStack() as stack:
        control.ask("scontrol", "update", "PartitionName=gpu", "State=DOWN")  # jobs queue, none starts
        stack.callback(control.ask, "scontrol", "update", "PartitionName=gpu", "State=UP")
        sweep = control.start("run", "-w", "n[1-3]", "--max-parallel", "3", "--wall-scale", "0.1")
        wait_until(lambda: len(control.jobs()) == 3)
        assert interrupted(control, sweep) == []
        assert control.json("status")["counts"] == {"todo": 3}
    sweep = control.start("run", "--resume")
    wait_until(lambda: [job["state"] for job in control.jobs()].count("RUNNING") >= 2)
    left = interrupted(control, sweep)
    assert len(left) >= 2 and {job["state"] for job in left} == {"RUNNING"}
    table = control.json("run", "--resume")
    assert table["counts"] == {"done": 3}
    running = {job["id"] for job in left}
    assert running <= {str(n["job_id"]) for n in control.json("status")["nodes"]}  # not measured twice
    again = control.json("run", "--resume")
    assert again["counts"] == table["counts"] and again["new_records"] == 0


def test_a_cancelled_job_says_so(control: Control) -> None:
    sweep = control.start("run", "-w", "n3", "--wall-scale", "0.2", "--json")
    wait_until(lambda: [job for job in control.jobs() if job["state"] == "RUNNING"])
    (job,) = control.jobs()
    wait_until(lambda: len(job_processes(control.lab, job["id"])) >= 6)  # slurmstepd, bench and its four workers
    control.ask("scancel", job["id"])
    code, out, _ = control.end(sweep)
    assert code == Exit.FAILED and json.loads(out)["counts"] == {"failed": 1}
    reason = control.json("status")["nodes"][0]["reason"]
    assert f"job {job['id']} CANCELLED" in reason
    # Slurm shows the job as cancelled before they have ended.
    wait_until(lambda: not job_processes(control.lab, job["id"]))


def test_a_job_that_slurm_lost_is_tried_once_more_on_a_node_that_is_well(control: Control) -> None:
    """Marked down while the job runs, which ends it, and up again at once."""
    child = control.start("run", "-y", "--wall-scale", "0.1", "-w", "n1")
    wait_until(lambda: any(job["state"] == "RUNNING" for job in control.jobs()))
    control.ask("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")
    up = ["scontrol", "update", "NodeName=n1", "State=RESUME"]  # refused where the node has come back by itself
    subprocess.run(up, env=control.lab.environ(), capture_output=True, check=False)
    code, _, err = control.end(child)
    assert code == 0, err
    (node,) = control.json("status")["nodes"]
    assert (node["node"], node["state"], node["attempts"]) == ("n1", "done", 2)
    assert "NODE_FAIL" in err and "once more" in err


@pytest.mark.long
def test_a_node_that_dies_during_its_job(lab_dir: str) -> None:
    with contextlib.ExitStack() as stack:
        lab = Lab.up(lab_dir, nodes=2, gpus=2, seed=2)
        stack.callback(lab.down)
        control = Control(lab)
        sweep = control.start("run", "--max-parallel", "2", "--wall-scale", "0.1", "--json")
        wait_until(lambda: [j for j in control.jobs() if j["node"] == "n1" and j["state"] == "RUNNING"])
        (job,) = [j for j in control.jobs() if j["node"] == "n1"]
        wait_until(lambda: job_processes(control.lab, job["id"]))
        namesake = stack.enter_context(subprocess.Popen(["sleep", "100"], env={"SLURM_JOB_ID": job["id"]}))
        stack.callback(namesake.kill)
        slurmd = int(Path(lab.directory("run", "slurmd-n1.pid")).read_text())
        for pid in (slurmd, *job_processes(control.lab, job["id"])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        code, out, err = control.end(sweep)
        table = json.loads(out)
        assert code == Exit.FAILED and table["counts"] == {"done": 1, "failed": 1} and table["published_gpus"] == 2, err
        node = next(n for n in control.json("status")["nodes"] if n["node"] == "n1")
        assert node["state"] == "failed" and f"job {job['id']}" in node["reason"]
        assert namesake.poll() is None, "a job of another Slurm with the same number"


def job_processes(lab: Lab, job_id: str) -> list[int]:
    """The slurmstepds of a job of this lab, which stay where its slurmd was started, and what has come from them.

    Other Slurms on this machine have jobs of the same number, and so has the fake one of other tests.
    """
    parents: dict[int, int] = {}
    found: set[int] = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            words = Path(f"/proc/{name}/cmdline").read_bytes()
            here = os.readlink(f"/proc/{name}/cwd").startswith(f"{lab.directory()}/")
            if here and words.startswith(f"slurmstepd: [{job_id}.".encode()):
                found.add(int(name))
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)
