# SPDX-License-Identifier: MIT
"""Programs of many kinds, each asked to move twice on a real Slurm: moved correctly, refused with a reason, or wrong.

    python tests/bench/movable_set.py [--means auto|transparent] [--only TEXT] [--at-once 6] [--moves 2] [--json]

A lab of emulated GPUs. Each program of movable_programs.py is submitted by palsub; once it has done some work, the
mover of pal-rebalance takes it to another node, and later once more. A job that palsub has not marked as movable is
never asked by a tick: then the reason is that of `pal explain`. What each comes to is known without running it.

    moved    every request moved it, and result and output are those of a run without moves
    refused  no request touched it, it ran to its right end where it was, and a reason was given
    wrong    anything else, and whatever is not as expected (--means auto)

With `--means transparent` each is submitted with that checkpoint instead of what its script says; then nothing is
expected of a single one, but that it is not wrong. Prints a table; the exit status is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

sys.path.insert(0, os.path.dirname(__file__))

import movable_programs as programs
from movable_programs import ENDS, MOVED, STAYS, Program

from slurm_pal.base import marks
from slurm_pal.base.files import write_atomic
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.journal.journal import Move, open_journal
from slurm_pal.lab.lab import Lab
from slurm_pal.moves.mover import Mover, StepLimits
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.states import JOB_ENDED

NODES, GPUS_PER_NODE = 4, 8
ACK_LIMIT_S = 12.0  # rebalance.ack_limit_s
EACH_STEPS = 12  # of work before a request
PATIENCE_S = 240.0
REFUSED, WRONG = "refused", "wrong"
EXECUTABLE = ("mdrun", "mdrun_mpi", "lmp", "pw.x", "mpirun", "part", "work")


class Outcome(NamedTuple):
    """What became of one program."""

    name: str
    verdict: str
    moves: int
    requests: int
    said: str  # the reason, or what is wrong


class NotSubmittedError(Exception):
    """palsub refuses the means; the text says why."""


class Job:
    """One submitted program, in a folder of its own."""

    def __init__(self, program: Program, folder: str, means: str) -> None:
        self.program, self.folder, self.client = program, folder, CliClient()
        self.details: list[str] = []
        for name, text in programs.FILES.items():
            write_atomic(os.path.join(folder, name), text, 0o755 if name in EXECUTABLE else 0o644)
        self.job_id = self._submit(means)

    def _submit(self, means: str) -> int:
        ours = [sys.executable, "-P", "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())"]
        words = ["--parsable", "--gres=gpu:1", "-oout", *self.program.words]
        if means != "auto":
            words = [word for word in words if not word.startswith("--pal-")] + [f"--pal-checkpoint={means}"]
        text: str | None = None
        if self.program.piped:
            text = self.program.script
        elif self.program.script:
            write_atomic(os.path.join(self.folder, "job"), self.program.script)
            words.append("job")
        env = os.environ | self.program.variables | {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        done = subprocess.run(
            [*ours, *words], input=text, cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NotSubmittedError(" ".join(done.stderr.split()))
        self.warnings = [line for line in done.stderr.splitlines() if "not movable" in line or "ignored" in line]
        return int(done.stdout.split(";")[0])

    def seen(self) -> SlurmJob:
        job = self.client.job(self.job_id)
        assert job is not None, f"{self.program.name} has vanished"
        return job

    def steps(self) -> int:
        """Lines of work, over all runs."""
        return sum(text[:1].isdigit() for lines in self.outputs().values() for text in lines)

    def outputs(self) -> dict[str, list[str]]:
        """Its output by file, without lines of slurmstepd and ours."""
        found = {}
        for path in sorted(glob.glob(os.path.join(self.folder, self.program.output))):
            with open(path, encoding=self.program.encoding, errors="strict") as stream:
                lines = stream.read().split("\n")
            found[path] = [line for line in lines if line and not line.startswith(("palsub: ", "slurmstepd: "))]
        return found

    def complaints(self) -> list[str]:
        """Our lines in its output."""
        path = os.path.join(self.folder, "out")
        if not os.path.exists(path):
            return []
        with open(path, encoding=self.program.encoding, errors="replace") as stream:
            return list(dict.fromkeys(line.strip() for line in stream if line.startswith("palsub: ")))

    def until(self, what: str, done: Callable[[SlurmJob], bool]) -> SlurmJob:
        deadline_s = time.monotonic() + PATIENCE_S
        while not done(job := self.seen()):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{what}: {job.state} {job.reason}, {self.steps()} steps")
            time.sleep(0.2)
        return job

    def ask(self, mark: dict[str, str]) -> str:
        """One request, as a tick gives it; the outcome of the move."""
        before = self.steps()
        job = self.until("no work is done", lambda job: job.state in JOB_ENDED or self.steps() >= before + EACH_STEPS)
        if job.state != "RUNNING":
            return ""
        now_s, here = time.time(), job.nodes[0]
        target = f"n{(int(here[1:]) + 1) % NODES}"
        ack = marks.read(job.comment, marks.ACK).get(marks.ACK, "")
        there = f"{target}:{GPUS_PER_NODE - 1}"  # Slurm gives the lowest first
        move = Move(
            0, self.job_id, job.user, now_s, job.restarts, f"{here}:0", (target,), there, "", 1.3, 1.0, 900.0, 60.0,
            mark.get("ck") == "1", ack, "planned", now_s,
        )  # fmt: skip
        with open_journal(os.path.join(self.folder, "rebalance.db")) as journal:
            mover = Mover(journal, self.client, StepLimits(ack_limit_s=ACK_LIMIT_S), lambda what, details: None)
            mover.start([move])
            while mover.step(time.time()):
                time.sleep(0.05)
            done = journal.moves()[-1]
        if done.outcome != MOVED:
            self.details.append(done.detail)
        return str(done.outcome)

    def why_unmarked(self) -> str:
        """Why palsub has not marked it as movable, as it says itself or `pal explain` does."""
        argv = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()", "explain", str(self.job_id)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        lines = [line.strip() for line in done.stdout.splitlines()]
        return next((line for line in lines if "it stays" in line), "; ".join(self.warnings))


def run(program: Program, folder: str, means: str, moves: int) -> Outcome:
    """Submit one program, ask it to move, and judge."""
    os.mkdir(folder)
    requests: list[str] = []
    try:
        job = Job(program, folder, means)
        job.until(
            "it does not begin", lambda one: one.state != "PENDING" and (one.state in JOB_ENDED or job.steps() > 0)
        )
        mark = marks.read(job.seen().comment, marks.JOB)
        while mark.get("mov") == "1" and len(requests) < moves and (outcome := job.ask(mark)):
            requests.append(outcome)
        ended = job.until("it does not end", lambda one: one.state in JOB_ENDED)
        why = "; ".join([*job.details, *job.complaints()]) if mark.get("mov") == "1" else job.why_unmarked()
        return _judged(job, ended, requests, why, means)
    except NotSubmittedError as error:
        return Outcome(program.name, WRONG if means == "auto" else REFUSED, 0, 0, str(error))
    except (AssertionError, TimeoutError, OSError, UnicodeError) as error:
        return Outcome(program.name, WRONG, requests.count(MOVED), len(requests), f"{type(error).__name__}: {error}")


def _judged(job: Job, ended: SlurmJob, requests: Sequence[str], why: str, means: str) -> Outcome:
    program, moved = job.program, requests.count(MOVED)
    trouble = _trouble(job, ended, moved, means)
    verdict = REFUSED
    if moved and moved == len(requests):
        verdict = MOVED
    elif moved:
        trouble.append(f"only {moved} of {len(requests)} requests moved it: {why}")
    elif not why and program.expected != ENDS:
        trouble.append("it stays, and nobody says why")
    if means == "auto":
        wanted = {MOVED: MOVED, STAYS: REFUSED, ENDS: REFUSED}[program.expected]
        if verdict != wanted:
            trouble.append(f"{verdict}, not {wanted}: {why}")
        elif program.said not in why:
            trouble.append(f"it says {why!r}, not {program.said!r}")
        if program.expected == MOVED and moved < program.least:
            trouble.append(f"{moved} moves")
    return Outcome(program.name, WRONG if trouble else verdict, moved, len(requests), "; ".join(trouble) or why)


def _trouble(job: Job, ended: SlurmJob, moved: int, means: str) -> list[str]:
    """What is wrong with its end, its result or its output."""
    program, found = job.program, []
    if ended.state != program.state and means == "auto":
        found.append(f"it ended as {ended.state}")
    if ended.restarts != moved:
        found.append(f"{ended.restarts} restarts by {moved} moves")
    wanted = programs.sums()
    results = []
    for path in glob.glob(os.path.join(job.folder, "*.result")):
        with open(path, encoding="utf-8") as stream:
            results.append(stream.read().strip())
    if program.state == "COMPLETED" and results != [wanted[-1].split()[1]] * program.tasks:
        found.append(f"results {results}")
    outputs = job.outputs()
    if len(outputs) != program.tasks:
        found.append(f"output in {len(outputs)} files")
    for path, lines in outputs.items():
        tail = "\xff\x80\xc3" if program.encoding == "latin-1" else ""
        steps = [line.removesuffix(tail) for line in lines if line[:1].isdigit()]
        if program.state == "COMPLETED" and not (program.exact or means == "transparent") and moved:
            steps = list(dict.fromkeys(steps))
        missing, twice = set(wanted) - set(steps), len(steps) - len(set(steps))
        if program.state == "COMPLETED" and program.keeps_output and steps != wanted:
            name = os.path.basename(path)
            found.append(f"{name}: {len(missing)} lines missing {sorted(missing)[:3]}, {twice} twice")
        text = "\n".join(lines)
        if program.once and text.count(program.once) != 1:
            found.append(f"{program.once!r} {text.count(program.once)} times")
        if program.never and program.never in text:
            found.append(f"{program.never!r} is in its output")
    return found


def row(one: Outcome) -> str:
    return f"{one.name:48} {one.verdict:8} {one.moves}/{one.requests}  {one.said}"


def play(only: Sequence[str], means: str, moves: int, at_once: int) -> list[Outcome]:
    """All programs whose names have one of these texts, in a lab."""
    chosen = [program for program in programs.PROGRAMS if any(text in program.name for text in only)]
    if not chosen:
        raise SystemExit(f"no program has one of {only!r} in its name")
    work = tempfile.mkdtemp(prefix="pal")
    try:
        with Lab.up(os.path.join(work, "lab"), nodes=NODES, gpus=GPUS_PER_NODE, seed=1) as lab:
            os.environ.update(lab.environ() | {"XDG_STATE_HOME": os.path.join(work, "xdg")})
            os.environ["SLURM_PAL_PATHS_SNAPSHOT"] = os.path.join(work, "none")
            binary = os.path.join(work, "work")
            source = f"{binary}.c"
            write_atomic(source, programs.WORK_C)
            subprocess.run(["gcc", "-pthread", "-o", binary, source], check=True)
            programs.FILES["work"] = f'#!/bin/sh\nexec {binary} "$@"\n'
            with ThreadPoolExecutor(at_once) as pool:
                todo = [
                    pool.submit(run, program, os.path.join(work, str(k)), means, moves)
                    for k, program in enumerate(chosen)
                ]
                for one in as_completed(todo):
                    print(row(one.result()), file=sys.stderr, flush=True)
                found = [one.result() for one in todo]
    finally:
        if not os.environ.get("PAL_KEEP"):
            shutil.rmtree(work)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--means", choices=("auto", "transparent"), default="auto")
    parser.add_argument("--only", action="append", metavar="TEXT", help="programs with this in their names")
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--moves", type=int, default=2, help="requests for each program")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = play(args.only or [""], args.means, args.moves, args.at_once)
    counts = Counter(one.verdict for one in found)
    if args.json:
        body = {"schema": "pal.bench.movable/1", "means": args.means, "counts": dict(counts)}
        print(json.dumps(body | {"programs": [one._asdict() for one in found]}))
    else:
        for one in found:
            print(row(one))
        print(", ".join(f"{counts[name]} {name}" for name in (MOVED, REFUSED, WRONG)), f"of {len(found)}")
    sys.exit(bool(counts[WRONG]))


if __name__ == "__main__":
    main()
