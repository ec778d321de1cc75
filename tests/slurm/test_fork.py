# SPDX-License-Identifier: MIT
"""Forked jobs on a real Slurm: copies on idle nodes do their parts, every step counts once, and others go first."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab

from .conftest import short_directory, skip_without_slurm
from .test_elastic import PALSUB
from .test_elastic import User as Elastic

pytestmark = pytest.mark.real_slurm

TOTAL = 900
JOB = """#!/bin/bash
#SBATCH --gres=gpu:1 --time=20
#PAL class=A fork=4
declare -A pause=([n0]=0.02 [n1]=0.02 [n2]=0.04 [n3]=0.1)
while part=$("$PAL" fork next --steps "$TOTAL" --round 3 --merge ./merge.sh); do
  eval "$part"
  from=0
  [ -z "$PAL_FORK_FROM" ] || from=$(cat "$PAL_FORK_FROM/steps")
  sleep "$(awk "BEGIN { print $PAL_FORK_STEPS * ${pause[$SLURMD_NODENAME]} }")"
  echo $((from + PAL_FORK_STEPS)) > "$PAL_FORK_TO/steps"
  echo "$from" > "$PAL_FORK_TO/from"
  echo "$SLURMD_NODENAME $PAL_FORK_STEPS" >> parts
done
[ "$SLURM_PAL_ROLE" = base ] || exit 0
final=$("$PAL" fork result) && cp "$final/steps" result
"""
MERGE = """#!/bin/bash
# Every copy began at the same version: what is new adds up.
out=$1 sum=0
shift
from=$(cat "$2/from")
while [ $# -gt 0 ]; do [ "$(cat "$2/from")" = "$from" ] || exit 1; sum=$((sum + $1)); shift 2; done
echo $((from + sum)) > "$out/steps"
echo "$from" > "$out/from"
"""


class User(Elastic):
    """Somebody who submits forked jobs."""

    def __init__(self, lab: Lab, home: Path) -> None:
        super().__init__(lab, home)
        self.env |= {"TOTAL": str(TOTAL), "PAL": program("pal"), "SLURM_PAL_LOAN_GUEST": ""}
        (home / "job.sh").write_text(JOB)
        (home / "merge.sh").write_text(MERGE)
        (home / "merge.sh").chmod(0o755)

    def until(self, wanted: Callable[[], bool], patience_s: float = 180.0) -> None:
        super().until(wanted, patience_s)

    def submitted(self) -> int:
        number = int(self.run(*PALSUB, "--parsable", "job.sh"))
        self.until(lambda: self.state(number) == "RUNNING")
        return number

    def running(self, base: int) -> list[int]:
        return [job for job, state in self.companions(base).items() if state == "RUNNING"]

    def parts(self) -> dict[str, int]:
        """Node -> steps that were done there."""
        found: dict[str, int] = {}
        path = self.home / "parts"
        for line in path.read_text().splitlines() if path.exists() else []:
            node, steps = line.split()
            found[node] = found.get(node, 0) + int(steps)
        return found

    def ended(self, base: int) -> int:
        """The steps that count, when all has ended."""
        self.until(lambda: (self.home / "result").exists() and self.state(base) == "COMPLETED")
        self.until(lambda: not self.companions(base))
        assert not (self.home / f".pal-elastic-{base}").exists()
        return int((self.home / "result").read_text())

    def said(self) -> str:
        return "".join(path.read_text() for path in self.home.glob("slurm-*"))


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    skip_without_slurm()
    with short_directory() as path, Lab.up(path, nodes=4, gpus=1, seed=1) as made:
        yield made


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> Iterator[User]:
    made = User(lab, tmp_path)
    yield made
    made.run("scancel", "--me")
    made.until(lambda: made.run("squeue", "-h").strip() == "")


def test_all_copies_work_at_their_speed_and_each_step_counts_once(user: User) -> None:
    base = user.submitted()
    assert user.ended(base) == TOTAL
    parts = user.parts()
    assert parts.keys() == {"n0", "n1", "n2", "n3"} and sum(parts.values()) >= TOTAL
    assert parts["n3"] < parts["n2"] < max(parts["n0"], parts["n1"])
    if "these steps are done again by others" not in user.said():  # as on a machine that is busy: a copy was late
        assert sum(parts.values()) == TOTAL and "pal fork:" not in user.said()


def test_a_copy_makes_way_for_a_job_that_waits(user: User) -> None:
    base = user.submitted()
    user.until(lambda: len(user.running(base)) == 3)
    other = int(user.run("sbatch", "--parsable", "--gres=gpu:1", "-o", "/dev/null", "--wrap", "sleep 4"))
    user.until(lambda: user.state(other) in ("RUNNING", "COMPLETED"))
    assert not (user.home / "result").exists()
    assert user.ended(base) == TOTAL


def test_what_a_copy_had_begun_is_done_by_others_when_it_is_gone(user: User) -> None:
    base = user.submitted()
    user.until(lambda: len(user.running(base)) == 3 and len(user.parts()) >= 2)
    user.run("scancel", str(user.running(base)[0]))
    assert user.ended(base) == TOTAL


def test_palsub_says_what_it_makes_of_it(user: User) -> None:
    shown = json.loads(user.run(*PALSUB, "--pal-dry-run", "--pal-json", "job.sh"))
    first = shown["elastic"]["companion_argv"]
    assert (shown["elastic"]["least"], shown["elastic"]["most"]) == (1, 4) and "--nice=1000000" in first
    for words in (["--pal-fork", "none"], ["--pal-fork=0"], ["--pal-fork=3", "--pal-elastic=1:2"]):
        done = subprocess.run(
            [*PALSUB, "--pal-dry-run", *words, "job.sh"], env=user.env, cwd=user.home, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    outside = subprocess.run(
        [program("pal"), "fork", "next", "--steps", "9", "--merge", "true"],
        env=user.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert outside.returncode == 2 and "--pal-fork" in outside.stderr
