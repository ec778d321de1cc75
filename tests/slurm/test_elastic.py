# SPDX-License-Identifier: MIT
"""Elastic jobs on a real Slurm: companions join and leave, nothing is lost, and no companion outlives its base job."""

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

from slurm_pal.base import marks
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.processes import Process, find_steps, read_pids
from slurm_pal.slurm.cli import CliClient

from . import queue_of
from .conftest import short_directory, skip_without_slurm

pytestmark = pytest.mark.real_slurm

PALSUB = [sys.executable, "-P", "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())"]
PATIENCE_S = 20.0
PREEMPTION = (
    (
        "PriorityType=priority/basic",
        "PriorityType=priority/basic\nPreemptType=preempt/partition_prio\nPreemptMode=REQUEUE",
    ),
)
PARTITIONS = {
    "home": "Nodes=n0",
    "lent": "Nodes=n[1-3] PriorityTier=1 PreemptMode=REQUEUE",
    "owner": "Nodes=n[1-3] PriorityTier=10 PreemptMode=OFF",
    "gone": "Nodes=n3 State=DOWN",
}
TIMES = {"SPACING": "0.001", "BEAT": "0.3", "STALE": "3", "WAIT": "20"}

WORKER = """#!/bin/bash
#SBATCH --gpus-per-node=4 --time=20
#PAL class=A elastic=1:3
#PAL elastic-hook=echo $SLURM_PAL_WORKERS >> sizes
me=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
echo "$SLURM_PAL_ROLE $SLURM_PAL_BASE $SLURM_PAL_MIN:$SLURM_PAL_MAX $SLURM_PAL_ENDPOINT $me" >> runs
# Pieces of work are taken by rename. Those of a worker that has left are put back, and that is counted.
give_back() {
  for taken in taken/*; do
    owner=${taken#taken/*.} run=
    read -r _ run _ < "$(dirname "$SLURM_PAL_WORKERS_FILE")/c.${owner%.*}"
    [ "$run" = "${owner#*.}" ] || { piece=${taken#taken/}; mv "$taken" "todo/${piece%%.*}" && echo >> given_back; }
  done 2> /dev/null
}
while :; do
  piece=$(ls todo | head -n 1)
  if [ -n "$piece" ]; then
    mv "todo/$piece" "taken/$piece.$me" 2> /dev/null || continue
    echo "$piece" >> "begun.$me"
    sleep 0.05
    mv "taken/$piece.$me" "done/$piece.$me"
  elif [ "$SLURM_PAL_ROLE" = base ] && [ -e stop ]; then
    give_back
    [ -n "$(ls todo taken | grep '[0-9]')" ] || exit "$(cat stop)"
  else
    sleep 0.1
  fi
done
"""


class User:
    """Somebody who submits elastic jobs to the lab from a directory of their own."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.home, self.client = home, CliClient()
        for name in ("todo", "taken", "done", "tmp"):
            (home / name).mkdir()
        self.env = lab.environ() | {
            "XDG_STATE_HOME": str(home / "xdg"), "TMPDIR": str(home / "tmp"), "SLURM_PAL_LOAN_GUEST": "lent",
            "SLURM_PAL_PATHS_SNAPSHOT": str(home / "none"),
        }  # fmt: skip
        self.env |= {f"SLURM_PAL_ELASTIC_{name}_S": value for name, value in TIMES.items()}
        (home / "job.sh").write_text(WORKER)

    def run(self, *argv: str, **variables: str) -> str:
        done = subprocess.run(
            argv, env=self.env | variables, cwd=self.home, capture_output=True, timeout=120, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def palsub(self, *words: str, **variables: str) -> int:
        return int(self.run(*PALSUB, "--parsable", "-p", "home", *words, **variables))

    def work(self, pieces: range) -> None:
        for piece in pieces:
            (self.home / "todo" / f"{piece:03}").touch()

    def until(self, wanted: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        deadline_s = time.monotonic() + patience_s
        while not wanted():
            told = "".join(path.read_text() for path in sorted(self.home.glob("slurm-*")))
            assert time.monotonic() < deadline_s, told + self.run("squeue", "-o", "%i %j %T %r %k")
            time.sleep(queue_of.LOOK_S)

    def read(self, name: str) -> str:
        return (self.home / name).read_text() if (self.home / name).exists() else ""

    def size(self, base: int) -> str:
        return self.read(f".pal-elastic-{base}/workers").strip()

    def until_size(self, base: int, size: int) -> None:
        self.until(lambda: self.size(base) == str(size))

    def companions(self, base: int) -> dict[int, str]:
        """id -> state of those in the queue."""
        rows = self.run("squeue", "-h", "-n", f"pal-elastic-{base}", "-o", "%i %T").split("\n")
        return {int(row.split()[0]): row.split()[1] for row in rows if row}

    def state(self, job: int) -> str:
        return self.run("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T").strip()

    def at_once(self, job: int) -> None:
        """Spare a requeued job Slurm's delay, but for the second in which its new credential would be refused."""
        self.until(lambda: self.state(job) in ("PENDING", "RUNNING"))
        time.sleep(1.1)
        if self.state(job) == "PENDING":
            queue_of.at_once(self.client, job)

    def ended(self, base: int, state: str, code: str, killed: bool = False) -> None:
        """The base job has ended so, and nothing is left: no companion, no file, unless a companion was `killed`."""
        self.until(lambda: self.state(base) == state)
        assert f"ExitCode={code}" in self.run("scontrol", "show", "job", str(base))
        self.until(lambda: not self.companions(base) and not [*self.home.glob(".pal-elastic*")])
        self.until(lambda: killed or not any((self.home / "tmp").iterdir()))

    def all_done_once(self, pieces: int) -> None:
        """Each piece is done once; it was begun as often as it was done or put back."""
        done = sorted(path.name.partition(".")[0] for path in (self.home / "done").iterdir())
        assert done == [f"{piece:03}" for piece in range(pieces)]
        begun = sum(len(path.read_text().split()) for path in self.home.glob("begun.*"))
        assert pieces <= begun <= pieces + len(self.read("given_back").split("\n")[:-1])


@pytest.fixture(scope="module")
def lent() -> Iterator[Lab]:
    """A lab of 4 nodes: n0 is for base jobs, an owner lends the others."""
    skip_without_slurm()
    with short_directory() as path, Lab.up(path, nodes=4, gpus=4, seed=1, conf_edits=PREEMPTION) as lab:
        for name, words in PARTITIONS.items():
            argv = ["scontrol", "create", f"PartitionName={name}", *words.split()]
            subprocess.run(argv, env=lab.environ(), check=True)
        yield lab


@pytest.fixture
def user(lent: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    for name, value in lent.variables().items():
        monkeypatch.setenv(name, value)
    somebody = User(lent, tmp_path)
    yield somebody
    (tmp_path / "stop").write_text("0")  # for a script whose batch shell was killed
    queue_of.emptied(somebody.client)


def test_companions_join_and_leave_and_no_work_is_lost(user: User) -> None:
    user.work(range(40))
    base = user.palsub("--comment=my own", "job.sh")
    user.until_size(base, 3)
    first, second = user.companions(base)
    comments = [user.run("squeue", "-h", "-j", str(job), "-o", "%k").strip() for job in (base, first, second)]
    assert [marks.read(text, marks.ELASTIC).get(marks.ELASTIC) for text in comments] == ["1:3", None, None]
    assert [marks.read(text, marks.COMPANION).get(marks.COMPANION) for text in comments] == [None, *[str(base)] * 2]
    assert all(text.startswith("my own pal:") for text in comments)
    user.run("scancel", str(first))
    user.until_size(base, 2)
    user.work(range(40, 80))
    user.run("scontrol", "requeue", str(second))
    user.until_size(base, 1)
    user.at_once(second)
    user.until_size(base, 2)
    user.work(range(80, 100))
    (user.home / "stop").write_text("3")
    user.ended(base, "FAILED", "3:0")
    user.all_done_once(100)
    sizes = user.read("sizes").split()
    assert sizes[-1] == "2" and "3" in sizes and "1" in sizes
    runs = sorted(user.read("runs").split("\n")[:-1])
    endpoint = f"{os.uname().nodename}:{20000 + base % 12000}"
    assert runs == [f"{role} {base} 1:3 {endpoint} {run}" for role, run in [
        ("base", f"{base}.0"), ("companion", f"{first}.0"), ("companion", f"{second}.0"), ("companion", f"{second}.1"),
    ]]  # fmt: skip


def test_an_owner_takes_a_companions_node_and_gives_it_back(user: User) -> None:
    user.work(range(20))
    base = user.palsub("job.sh")
    user.until_size(base, 3)
    words = ("-p", "owner", "-N", "2", "--exclusive", "-o", "/dev/null")
    owners = user.client.submit(
        list(words), "#!/bin/sh\nuntil [ -e owner ]; do sleep 0.1; done\n".replace("owner ]", f"{user.home}/owner ]")
    )
    user.until_size(base, 2)
    user.until(lambda: sorted(user.companions(base).values()) == ["PENDING", "RUNNING"])
    (user.home / "owner").touch()
    user.until(lambda: user.state(owners) == "COMPLETED")
    user.at_once(next(job for job, state in user.companions(base).items() if state == "PENDING"))
    user.until_size(base, 3)
    (user.home / "stop").write_text("0")
    user.ended(base, "COMPLETED", "0:0")
    user.all_done_once(20)


@pytest.mark.parametrize("how", ["cancelled", "killed"])
def test_no_companion_outlives_its_base_job(how: str, user: User) -> None:
    """One companion runs, the other waits; of a base job whose batch shell is killed nothing can tidy up."""
    user.run("scontrol", "update", "PartitionName=lent", "Nodes=n1")
    try:
        base = user.palsub("job.sh")
        user.until_size(base, 2)
        assert sorted(user.companions(base).values()) == ["PENDING", "RUNNING"]
        if how == "cancelled":
            user.run("scancel", str(base))
            user.ended(base, "CANCELLED", "0:15")
        else:
            user.run("scancel", "-b", "-s", "KILL", str(base))
            user.until(lambda: not user.companions(base) and user.state(base) not in ("RUNNING", "COMPLETING"))
    finally:
        user.run("scontrol", "update", "PartitionName=lent", "Nodes=n[1-3]")


def test_companions_that_never_join_do_no_harm(user: User) -> None:
    user.work(range(10))
    (user.home / "stop").write_text("7")
    base = user.palsub("--pal-elastic-partition", "gone", "job.sh")
    user.ended(base, "FAILED", "7:0")
    user.all_done_once(10)
    assert user.read("sizes") == ""


def test_a_base_job_that_is_cancelled_before_it_runs_takes_its_companions_along(user: User) -> None:
    base = user.palsub("--hold", "job.sh")
    assert sorted(user.companions(base).values()) == ["PENDING", "PENDING"]
    user.run("scancel", str(base))
    user.until(lambda: not user.companions(base))
    assert user.read("runs") == ""


def test_companions_follow_a_base_job_that_starts_anew(user: User) -> None:
    user.work(range(30))
    base = user.palsub("job.sh")
    user.until_size(base, 3)
    user.run("scontrol", "requeuehold", str(base))
    user.until(lambda: list(user.companions(base).values()) == ["PENDING", "PENDING"])
    waits = f"Dependency=after:{base}(unfulfilled)"
    for job in user.companions(base):
        user.until(lambda job=job: waits in user.run("scontrol", "show", "job", str(job)))
    user.run("scontrol", "release", str(base))
    user.at_once(base)
    for job in user.companions(base):
        user.at_once(job)
    user.until_size(base, 3)
    (user.home / "stop").write_text("0")
    user.ended(base, "COMPLETED", "0:0")
    user.all_done_once(30)


def test_a_companion_on_a_node_that_goes_down_no_longer_counts(user: User, lent: Lab) -> None:
    user.work(range(30))
    base = user.palsub("job.sh")
    user.until_size(base, 3)
    (job,) = [
        job for job in user.companions(base) if user.run("squeue", "-h", "-j", str(job), "-o", "%N").strip() == "n2"
    ]
    slurmd = next(process.pid for process in read_pids(lent.directory.pids) if process.name == "slurmd-n2")
    on_node = [process.pid for process in find_steps(lent.directory) if is_of(process, job)]
    for pid in [slurmd, *on_node]:
        with contextlib.suppress(ProcessLookupError):  # it ended with its parent, or by itself
            os.kill(pid, signal.SIGKILL)
    user.until_size(base, 2)  # by its silence, before Slurm notices anything
    assert user.state(job) == "RUNNING"
    user.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    user.at_once(job)
    user.until_size(base, 3)  # on n3
    (user.home / "stop").write_text("0")
    user.ended(base, "COMPLETED", "0:0", killed=True)
    user.all_done_once(30)


def is_of(process: Process, job: int) -> bool:
    """Whether a process of the lab is of this job: its slurmstepd, or one with its number in the environment."""
    try:
        words, variables = (Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
    except OSError:  # it has ended
        return False
    return words.startswith(b"slurmstepd: [%d." % job) or b"SLURM_JOB_ID=%d" % job in variables.split(b"\0")


def test_a_directory_that_cannot_be_written_costs_the_companions_only(user: User) -> None:
    user.work(range(5))
    (user.home / "stop").write_text("0")
    base = user.palsub("job.sh", SLURM_PAL_ELASTIC_DIR="/proc/none")
    user.until(lambda: user.state(base) == "COMPLETED")
    user.until(lambda: not user.companions(base))
    assert f"palsub: no companion can join: /proc/none/{base} cannot be written" in user.read(f"slurm-{base}.out")
    user.all_done_once(5)
