# SPDX-License-Identifier: MIT
"""Jobs with several places on a real Slurm: chosen when submitted, chosen again while they wait, and told of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm import releases
from slurm_pal.slurm.cli import CliClient, subprocess_runner
from slurm_pal.store.snapshot import GpuScore, publish

from . import queue_of
from .conftest import short_directory, skip_without_slurm

pytestmark = pytest.mark.real_slurm

PALSUB = [sys.executable, "-P", "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())"]
PARTITIONS = """[partitions.fast]
nodes = "n0"
default = true
[partitions.slow]
nodes = "n1"
[partitions.cpu]
nodes = "n2"
[partitions.every]
nodes = "ALL"
"""
SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:1 -p fast -J train -t 60
#PAL alt=gpu:partition=fast,gres=gpu:1,est=20m
#PAL alt=old:partition=slow,gres=gpu:1,est=40m
#PAL alt=cpu:partition=cpu,cpus=4,est=5h
echo "$PAL_ALT $SLURM_JOB_PARTITION ${CUDA_VISIBLE_DEVICES:-none} ${SLURM_CPUS_PER_TASK:-1} $SLURM_CPUS_ON_NODE"
"""
WHERE = "echo $SLURM_JOB_PARTITION"
PATIENCE_S = 120.0


class User:
    """Somebody who submits jobs to the lab from an empty directory."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.home = home
        (home / "job.sh").write_text(SCRIPT)
        (home / "pal.toml").write_text(
            f'[paths]\nstate_dir = "{home}/pal"\n[prices]\nfast = 4.0\nslow = 1.0\ncpu = "CPU=0.01"\n'
        )
        self.env = lab.environ() | {
            "XDG_STATE_HOME": str(home / "state"), "XDG_CONFIG_HOME": str(home),
            "SLURM_PAL_CONFIG": str(home / "pal.toml"),
        }  # fmt: skip

    def run(self, *argv: str) -> str:
        done = subprocess.run(
            argv, env=self.env, cwd=self.home, capture_output=True, timeout=120, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def palsub(self, *words: str) -> tuple[int, dict[str, object]]:
        """The job, and what was decided about its place."""
        done = subprocess.run(
            [*PALSUB, "--pal-json", "--parsable", "-o", "out-%j", *words], env=self.env, cwd=self.home,
            capture_output=True, timeout=120, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        shown = json.loads(next(line for line in done.stderr.splitlines() if line.startswith("{")))
        return int(done.stdout), shown["places"]

    def fill(self, partition: str, gpus: int, seconds: int = 600) -> None:
        for _ in range(gpus):
            words = ["-p", partition, "--gres=gpu:1", "-t", "10", "-o", "/dev/null", "--wrap", f"sleep {seconds}"]
            self.run("sbatch", *words)
        self.until(lambda: self.run("squeue", "-h", "-t", "PD") == "")

    def until(self, wanted: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not wanted():
            assert time.monotonic() < deadline_s, self.run("squeue", "-o", "%i %P %T %r %k")
            time.sleep(queue_of.LOOK_S)

    def output(self, job: int) -> str:
        path = self.home / f"out-{job}"
        self.until(lambda: path.exists() and path.read_text().endswith("\n"))
        return path.read_text().strip()

    def waits_in(self, job: int) -> str:
        return self.run("squeue", "-h", "-j", str(job), "-o", "%T %P").strip()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    skip_without_slurm()
    file = tmp_path_factory.mktemp("partitions") / "partitions.toml"
    file.write_text(PARTITIONS)
    with short_directory() as path, Lab.up(path, nodes=3, gpus=2, seed=1, partitions=str(file)) as made:
        yield made


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> Iterator[User]:
    made = User(lab, tmp_path)
    yield made
    made.run("scancel", "--me")
    made.until(lambda: made.run("squeue", "-h").strip() == "")


def test_the_goal_chooses_and_the_job_knows_its_place(user: User) -> None:
    soonest, shown = user.palsub("job.sh")
    assert shown["chosen"] == "gpu" and user.output(soonest).startswith("gpu fast 0 1 ")
    cheapest, shown = user.palsub("--pal-goal=cost", "job.sh")
    assert shown["chosen"] == "cpu" and user.output(cheapest) == "cpu cpu none 4 4"
    due, shown = user.palsub("--pal-goal=deadline=now+3hours", "job.sh")
    assert shown["chosen"] == "old" and user.output(due).startswith("old slow ")
    rows = {row["name"]: row for row in shown["of"]}  # type: ignore[attr-defined]
    assert rows["gpu"]["cost"] == pytest.approx(4.0 / 3, 1e-3) and rows["cpu"]["cost"] == pytest.approx(0.2)


def test_waiting_counts_and_what_the_user_excludes_is_never_chosen(user: User) -> None:
    user.fill("fast", 2)
    job, shown = user.palsub("job.sh")
    rows = {row["name"]: row for row in shown["of"]}  # type: ignore[attr-defined]
    assert rows["gpu"]["wait_s"] > 200 and shown["chosen"] == "gpu"  # half of 10, and 20 minutes against 40
    user.run("scancel", str(job))
    user.fill("slow", 2)
    typed, shown = user.palsub("-p", "slow", "job.sh")
    assert shown["chosen"] == "old" and user.waits_in(typed) == "PENDING slow"


def test_a_job_that_backfill_starts_at_once_need_not_wait_for_its_turn(user: User) -> None:
    script = SCRIPT.replace("partition=fast", "partition=every").replace("est=40m", "est=22m")
    (user.home / "job.sh").write_text(script)
    for node in ("n0", "n2"):
        words = ["-p", "every", "-w", node, "--gres=gpu:1", "-t", "10", "-o", "/dev/null", "--wrap", "sleep 600"]
        user.run("sbatch", *words)
    user.fill("slow", 1)
    user.until(lambda: user.run("squeue", "-h", "-t", "PD") == "")
    whole = user.run(
        "sbatch", "--parsable", "-p", "every", "--gres=gpu:2", "-t", "60", "-o", "/dev/null", "--wrap", "true"
    )
    user.until(lambda: user.waits_in(int(whole)) == "PENDING every")
    job, shown = user.palsub("job.sh")
    rows = {row["name"]: row for row in shown["of"]}  # type: ignore[attr-defined]
    assert (rows["gpu"]["wait_s"], rows["gpu"]["wait_from"], shown["chosen"]) == (0, "backfill", "gpu"), rows
    assert user.output(job).startswith("gpu every ") and user.waits_in(int(whole)) == "PENDING every"


def test_a_place_that_slurm_refuses_is_not_chosen(user: User) -> None:
    (user.home / "job.sh").write_text(SCRIPT.replace("gres=gpu:1,est=20m", "gres=gpu:3,est=1s"))
    _, shown = user.palsub("job.sh")
    rows = {row["name"]: row for row in shown["of"]}  # type: ignore[attr-defined]
    assert shown["chosen"] == "old" and "not available" in rows["gpu"]["refused"]


def test_partitions_are_chosen_by_their_price(user: User) -> None:
    job, shown = user.palsub(
        "--pal-goal=cost", "-p", "fast,slow", "--gres=gpu:1", "--wrap", "echo $SLURM_JOB_PARTITION"
    )
    assert shown["chosen"] == "slow" and user.output(job) == "slow"


@contextmanager
def ticking(user: User) -> Iterator[None]:
    daemon = subprocess.Popen(
        [program("pal-rebalance"), "--act", "--daemon"], env=user.env | {"SLURM_PAL_REBALANCE_INTERVAL_S": "1"},
        cwd=user.home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        user.until(lambda: any((user.home / "pal").glob("snapshot.heartbeat*")))
        yield
    finally:
        daemon.terminate()
        daemon.wait(30)


def chosen_long_ago(user: User) -> int:
    """A job that waits in the partition `fast`, where a tick may choose again."""
    job, shown = user.palsub("job.sh")
    assert shown["chosen"] == "gpu" and user.waits_in(job) == "PENDING fast"
    comment = user.run("squeue", "-h", "-j", str(job), "-o", "%k").strip()
    at = comment.partition("at=")[2].partition(";")[0]
    user.run("scontrol", "update", f"JobId={job}", f"Comment={comment.replace(at, str(int(at) - 300))}")
    return job


@pytest.mark.parametrize("cron", [False, True])
def test_while_it_waits_a_tick_chooses_again(user: User, cron: bool) -> None:
    user.run(program("pal-profile"), "run", "--yes")  # each node by a partition of its own
    (user.home / "job.sh").write_text(SCRIPT.replace("est=40m", "est=21m"))
    user.fill("fast", 2)
    user.fill("slow", 2)
    with ticking(user):
        job = chosen_long_ago(user)
        if not cron:
            user.run("scancel", "-p", "slow", "--me")
            assert user.output(job).startswith("old slow ")
    if cron:  # the daemon has ended: this process looks once
        user.run("scancel", "-p", "slow", "--me")
        user.until(lambda: user.run("squeue", "-h", "-p", "slow") == "")
        log = user.home / "pal" / "rebalance.log"
        user.until(  # 24.11 refuses a change while it has the job in its hands
            lambda: (
                bool(user.run(program("pal-rebalance"), "--act", "--once"))
                and log.is_file()
                and '"what": "place"' in log.read_text()
            )
        )
        assert user.output(job).startswith("old slow ")
    assert '"what": "place"' in (user.home / "pal" / "rebalance.log").read_text()


def test_a_job_that_goes_to_cpus_has_them(user: User) -> None:
    """Slurm keeps the number of CPUs of a task as it was submitted; the job is told the one that it has.

    Where a pending job keeps its GPUs, the tick sends none there.
    """
    user.fill("fast", 2)
    job, _ = user.palsub("job.sh")
    client = CliClient(subprocess_runner(30.0, user.env))
    queue_of.updated(client, job, Partition="cpu", TresPerNode="", NumCPUs="4")
    gpus = "0" if releases.has(client.version(), "pending jobs keep their GPUs") else "none"
    assert user.output(job) == f"cpu cpu {gpus} 4 4"


def scores(user: User, slow: str = "") -> None:
    """All GPUs are alike, but those of one node."""
    now_s = time.time()
    gpus = [
        GpuScore(
            f"n{n}", k, f"n{n}-{k}", "m", dict.fromkeys("ABC", 1.4 if f"n{n}" == slow else 1.0),
            dict.fromkeys("ABC", "v0"), now_s, 1.0, (),
        )
        for n in range(3) for k in range(2)
    ]  # fmt: skip
    (user.home / "pal").mkdir(exist_ok=True)
    publish(str(user.home / "pal" / "snapshot"), gpus, cluster="lab", epoch=1, now_s=now_s)


def test_a_job_runs_where_its_data_is(user: User) -> None:
    scores(user)
    data = user.home / "set"
    data.mkdir()
    (data / "part").write_bytes(b"x" * (4 << 20))
    words = ["-p", "every", "--gres=gpu:1", "--wrap", "echo $SLURMD_NODENAME"]
    plain, _ = user.palsub("--pal-watch", *words)
    assert user.output(plain) == "n0"
    with (user.home / "pal.toml").open("a") as stream:
        stream.write(f'[data]\n"{user.home}" = "nodes=n2 gib_per_s=0.001"\n')
    near, _ = user.palsub("--pal-watch", f"--pal-input={data}", *words)
    assert user.output(near) == "n2"
    shown = json.loads(user.run(*PALSUB, "--pal-dry-run", "--pal-json", "--pal-watch", f"--pal-input={data}", *words))
    assert shown["inputs"]["bytes"] == 4 << 20 and "sooner" in shown["reason"]


def test_a_job_reports_a_copy_and_the_next_one_goes_there(user: User) -> None:
    scores(user)
    copy = user.home / "copy"
    copy.write_bytes(b"x" * (64 << 20))
    report = f"{program('pal')} have /data/set1 --at {copy}"
    first, _ = user.palsub("-p", "every", "-w", "n1", "--gres=gpu:1", "--wrap", report)
    assert user.output(first) == "n1 has /data/set1"
    words = ["-p", "every", "--gres=gpu:1", "--wrap", "echo $SLURMD_NODENAME"]
    then, _ = user.palsub("--pal-watch", "--pal-input=/data/set1", *words)
    assert user.output(then) == "n1"
