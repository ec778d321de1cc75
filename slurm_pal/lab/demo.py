# SPDX-License-Identifier: MIT
"""The demonstration: the same jobs once with sbatch and once with palsub, on a live Slurm.

Every step is a command that a user could type, run as its own process; the results come
from the jobs themselves. Also the source of the completion ratios in docs/benchmarks.md,
which repeat it with several seeds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from slurm_pal.base.errors import PalError
from slurm_pal.lab.lab import Lab

Say = Callable[[str], None]


class DemoJob(NamedTuple):
    """One job of the demonstration: sensitivity class, GPUs on one node, seconds on median GPUs."""

    sensitivity: str
    gpus: int
    seconds: float


class FinishedJob(NamedTuple):
    """One finished job, as the payload and Slurm reported it."""

    job: DemoJob
    job_id: int
    where: str  # e.g. "n3:0-1"
    slowdown: float
    run_s: float
    completion_s: float  # from before the submit command to the end of the payload


WORKLOAD = tuple(
    DemoJob(sensitivity, gpus, 20.0)
    for sensitivity, gpus in (
        ("C", 1), ("A", 1), ("B", 1), ("A", 2), ("C", 2), ("A", 4), ("C", 1), ("A", 1),
        ("B", 2), ("C", 1), ("A", 1), ("B", 4), ("A", 2), ("C", 2), ("C", 1), ("A", 1),
    )
)  # fmt: skip
"""27 of 32 GPUs, a well-used cluster: nothing waits, and the phases differ only in which GPUs a job gets."""

SPACING_S = 0.37
"""Time between submissions, the same in both phases: jobs that start together would
slow each other down on the one machine that acts as all nodes. Not a simple fraction of
a second, because Slurm may start a job only with its next pass, once a second."""


def script_of(job: DemoJob, pal: str) -> str:
    """The batch script; `#PAL` is a comment to plain sbatch."""
    work = f"{pal} lab work --class {job.sensitivity} --seconds {job.seconds:g} --json"
    return f"#!/bin/sh\n#SBATCH --gres=gpu:{job.gpus} --time=5\n#PAL class={job.sensitivity}\nexec {work}\n"


class Phase:
    """The same jobs submitted with one command; `submit` is its argv, e.g. ["sbatch"]."""

    def __init__(self, env: dict[str, str], submit: Sequence[str], directory: str) -> None:
        self._env = env
        self._submit = list(submit)
        self._directory = directory
        self._submitted: list[tuple[DemoJob, int, float]] = []

    def submit(self, jobs: Sequence[DemoJob]) -> None:
        """Submit one job every SPACING_S seconds. Raises PalError if a submission fails."""
        started_s = time.time()
        for number, job in enumerate(jobs):
            time.sleep(max(0.0, started_s + number * SPACING_S - time.time()))
            path = os.path.join(self._directory, f"job-{number}.sh")
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(script_of(job, program("pal")))
            output = os.path.join(self._directory, "%j.json")
            argv = [*self._submit, "--parsable", "-o", output, "-J", f"demo-{job.sensitivity}", path]
            before_s = time.time()
            done = subprocess.run(
                argv, env=self._env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
            )
            if done.returncode != 0:
                raise PalError(f"{os.path.basename(self._submit[0])} failed: {done.stderr.strip()}")
            self._submitted.append((job, int(done.stdout.split(";")[0]), before_s))

    def telling(self, sensitivity: str) -> int:
        """The id of the first job of a class that palsub steered to other GPUs than sbatch would, else of the first."""
        mine = [job_id for job, job_id, _ in self._submitted if job.sensitivity == sensitivity]
        return next((job_id for job_id in mine if self._steered(job_id)), mine[0])

    def _steered(self, job_id: int) -> bool:
        decision = json.loads(_output(self._env, [program("pal"), "explain", str(job_id), "--json"]))["decision"]
        if not decision or not decision["added"] or not decision["plain_slurm"]:
            return False
        ours, theirs = ([(g["node"], g["index"]) for g in decision[k]["gpus"]] for k in ("chosen", "plain_slurm"))
        return ours != theirs

    def outcomes(self, limit_s: float = 150.0) -> list[FinishedJob]:
        """Wait until no job is left and read their results.

        Raises PalError if jobs remain after `limit_s` or left no result.
        """
        deadline_s = time.monotonic() + limit_s
        listed = ",".join(str(job_id) for _, job_id, _ in self._submitted)
        while self._squeue(listed):
            if time.monotonic() > deadline_s:
                raise PalError(f"jobs {listed} are still in the queue after {limit_s:g} s")
            time.sleep(0.5)
        return [_outcome(job, job_id, at_s, self._directory) for job, job_id, at_s in self._submitted]

    def _squeue(self, listed: str) -> str:
        argv = ["squeue", "-h", "-o", "%A", "-j", listed]
        return subprocess.run(argv, env=self._env, capture_output=True, text=True, check=False).stdout.strip()


def _outcome(job: DemoJob, job_id: int, submitted_s: float, directory: str) -> FinishedJob:
    path = os.path.join(directory, f"{job_id}.json")
    try:
        with open(path, encoding="utf-8") as stream:
            said: dict[str, Any] = json.load(stream)
    except (OSError, ValueError) as error:
        raise PalError(f"job {job_id} left no result in {path}: {error}") from None
    return FinishedJob(
        job=job,
        job_id=job_id,
        where=_where(said["gpus"]),
        slowdown=float(said["slowdown"]) * float(said["locality"]),
        run_s=float(said["ended_s"]) - float(said["started_s"]),
        completion_s=float(said["ended_s"]) - submitted_s,
    )


def _where(gpus: dict[str, list[int]]) -> str:
    return " ".join(f"{node}:{','.join(map(str, indexes))}" for node, indexes in gpus.items())


def program(name: str) -> str:
    """The installed program beside this Python. Raises PalError if it is missing."""
    path = os.path.join(os.path.dirname(sys.executable), name)
    if not os.path.exists(path):
        raise PalError(f"{name} is not installed beside {sys.executable}: pip install .")
    return path


def ratios(plain: Sequence[FinishedJob], placed: Sequence[FinishedJob]) -> dict[str, float]:
    """Mean completion time with palsub divided by that with sbatch, per sensitivity class and for "all"."""
    found: dict[str, float] = {}
    for name in [*sorted({outcome.job.sensitivity for outcome in plain}), "all"]:
        before, after = (
            statistics.fmean(o.completion_s for o in phase if name in ("all", o.job.sensitivity))
            for phase in (plain, placed)
        )
        found[name] = after / before
    return found


def demonstrate(directory: str, seed: int, say: Say) -> dict[str, float]:
    """The whole demonstration in a lab under `directory`; returns the completion ratios.

    The lab is ended and its directory removed in any case.
    """
    started_s = time.monotonic()
    say("1. A real Slurm with emulated GPUs (some secretly slow): pal lab up --nodes 8 --gpus 4")
    with Lab.up(os.path.join(directory, "lab"), nodes=8, gpus=4, seed=seed) as lab:
        # palsub's records for this user are to be removed with the lab.
        env = lab.environ() | {"XDG_STATE_HOME": os.path.join(directory, "state")}
        env["SLURM_PAL_PROFILE_SPARE_NODES"] = "0"  # nobody else is here
        say(f"   8 nodes x 4 GPUs after {time.monotonic() - started_s:.1f} s")
        say("")
        say("2. Measure every GPU, one Slurm job per node: pal-profile run --max-parallel 8")
        _show(env, [program("pal-profile"), "run", "--yes", "--max-parallel", "8"], say)
        say("")
        say("3. What is known now: pal nodes")
        _show(env, [program("pal"), "nodes"], say)
        say("")
        say(f"4. {len(WORKLOAD)} jobs on the empty cluster: first with sbatch, then with palsub --pal-watch")
        plain = _phase(env, ["sbatch"], directory, say).outcomes()
        phase = _phase(env, [program("palsub"), "--pal-watch"], directory, say)
        told = [_output(env, [program("pal"), "explain", str(phase.telling(name))]) for name in "ABC"]
        placed = phase.outcomes()
        say("")
        for line in comparison(plain, placed):
            say(line)
        say("")
        say("5. Why, for one running job of each class: pal explain JOBID")
        for line in "\n\n".join(told).splitlines():
            say("   " + line)
    found = ratios(plain, placed)
    said = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
    say("")
    say(f"Mean completion, palsub / sbatch: {said}   (below 1 is faster)")
    say(f"The lab is stopped and removed. {time.monotonic() - started_s:.0f} s in all.")
    return found


def comparison(plain: Sequence[FinishedJob], placed: Sequence[FinishedJob]) -> list[str]:
    """One line per job: where it ran, true slowdown and completion, before and after."""
    lines = ["   class GPUs | sbatch    slowdown  done after | palsub    slowdown  done after | faster by"]
    for before, after in sorted(zip(plain, placed, strict=True), key=lambda pair: pair[0].job):
        gain_pct = 100.0 * (1.0 - after.completion_s / before.completion_s)
        cells = [f"{o.where:10s} {o.slowdown:7.3f} {o.completion_s:9.1f} s" for o in (before, after)]
        lines.append(
            f"   {before.job.sensitivity:5s} {before.job.gpus:4d} | {cells[0]} | {cells[1]} | {gain_pct:+5.1f} %"
        )
    return lines


def _phase(env: dict[str, str], submit: Sequence[str], directory: str, say: Say) -> Phase:
    name = os.path.basename(submit[0])
    say(f"   {name}: one job every {SPACING_S:g} s")
    output = os.path.join(directory, name)
    os.mkdir(output)
    phase = Phase(env, submit, output)
    phase.submit(WORKLOAD)
    return phase


def _show(env: dict[str, str], argv: Sequence[str], say: Say) -> None:
    for line in _output(env, argv).splitlines():
        say("   " + line)


def _output(env: dict[str, str], argv: Sequence[str]) -> str:
    """What a command prints. Raises PalError, with the command's own words, if it fails."""
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise PalError(f"{os.path.basename(argv[0])} {argv[1]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.rstrip()
