# SPDX-License-Identifier: MIT
"""pal-rebalance killed with SIGKILL over and over while it moves jobs on a real Slurm: nothing may be lost.

    python tests/bench/rebalance_kills.py [--kills 1000] [--nodes 8] [--seed 1] [--numbers 80] [--kinds a,b]
        [--victims tick,node,program] [--for-s S] [--partitions] [--dir DIR]

A lab of emulated GPUs. Jobs come and go: movable ones with a checkpoint on USR1, movable ones
that save their state themselves, and others that must not be touched; with --kinds also such as are moved by a
recipe: they save on SIGTERM, when they find a stop file, or at intervals. Scores are drawn anew
every few seconds, so that there is always something to move. The daemon is killed, half of the
time at a random moment, otherwise just after it has written its journal or logged a chosen step, and started again.
With --victims a kill also meets a node of the job that is being moved, as if its power were cut (slurmd, slurmstepd and
all of its jobs; it boots again, and an admin resumes it), or that job's program.
Now and then somebody takes the target of a move. In the end it runs undisturbed and gets a SIGTERM. With --partitions
the nodes are in two partitions that all jobs name; which one is faster for which job is also drawn anew, and the tick
shares them out.

A payload counts: each number is a line of its output, with the restart that wrote it. Prints one JSON
object; `violations` must be 0, which the exit status shows.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.files import write_atomic
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, SlurmJob
from slurm_pal.decide.tick_lease import TickLease
from slurm_pal.journal.journal import Move, open_journal
from slurm_pal.lab import processes
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.power import resume
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.states import JOB_ENDED
from slurm_pal.store import snapshot
from slurm_pal.store.snapshot import GpuScore

GPUS_PER_NODE = 4
TUNED = {
    "MINIMUM_S": "2", "END_GUARD_S": "1", "MOVE_COST_S": "0.5", "LOST_WORK_S": "0", "MARGIN": "1",
    "MOVES_PER_JOB": "100", "MOVES_PER_USER": "16", "MOVES_PER_TICK": "16", "ACK_LIMIT_S": "10",
}  # fmt: skip
"""[rebalance]: a move whenever one is possible."""
DRAW_S = 4.0  # between two draws of all scores
BEAT_S = 0.4  # a payload's time for one number
LOADS, LOAD_S, FINAL_LOAD = (0.55, 1.25), 12.0, 1.4  # GPUs asked for, over those there are, for so long each
PATIENCE_S = 300.0  # for the last jobs; a wrapper alone may wait a minute for a requeue
HELD_S = 3.0  # no job may be seen held for longer
MOST_TIMES = 6
"""With --until-moved so many times the kills at most, until one was not too early for a move."""
MEET_S = 4.0  # for a move to reach a step, else nobody is killed
AIM_S = 2.5  # for a chosen step to come, else the kill is a random one
COMMIT = "commit"  # any write of the journal
RARE = ("clearing", "freeing", "elsewhere", "abandoned", "nodelist", "exclude", "clear")
AIMS = {
    ("planned",): 2, ("signalling",): 3, ("requeueing",): 5, ("targeting",): 5, ("moved",): 2, RARE: 6, (COMMIT,): 10,
}  # fmt: skip
"""Steps, outcomes and wishes, as the log calls them, and how often a kill is aimed at each."""
TICK, NODE, PROGRAM = "tick", "node", "program"
"""What is killed."""
PAYLOAD = """#!/bin/bash
#SBATCH --time=10 --open-mode=append
file={file}
restart=${{SLURM_RESTART_COUNT:-0}}
exec 9> "$file.lock"
flock -n 9 || echo "twice 0 $restart" >> "$file"
n=0
[ ! -e "$file.saved" ] || read -r n < "$file.saved"
save() {{
  echo "saving $n $restart" >> "$file"
  echo "$n" > "$file.part" && mv "$file.part" "$file.saved" && echo "saved $n $restart" >> "$file"
}}
if [ -e "$file" ] && grep -q "^done" "$file"; then echo "again 0 $restart" >> "$file"; exit 0; fi
echo "start $n $restart" >> "$file"
{trap}
while [ "$n" -lt {numbers} ]; do
  echo "n $((n + 1)) $restart" >> "$file"
  n=$((n + 1))
  {each}
  sleep {beat} 9>&-
done
echo "done $n $restart" >> "$file"
"""

COUNTER = r"""#!/usr/bin/perl
use strict; use warnings; use Fcntl ":flock";
my ($file, $numbers, $beat, $run, $each, $stop) = @ARGV;
my ($wanted, $n, $done) = (0, 0, 0);
$SIG{TERM} = sub { $wanted = 1 };
open(my $out, ">>", $file) or die;
sub note { syswrite($out, "$_[0] $_[1] $run\n") }
open(my $lock, ">", "$file.lock") or die;
flock($lock, LOCK_EX | LOCK_NB) or note("twice", 0);
if (open(my $in, "<", "$file.saved")) { $n = <$in> + 0 }
if (open(my $in, "<", $file)) { $done = grep(/^done/, <$in>) }
if ($done) { note("again", 0); exit 0 }
sub save {
  note("saving", $n);
  open(my $part, ">", "$file.part") or die;
  print $part "$n\n";
  close($part) && rename("$file.part", "$file.saved") && note("saved", $n);
}
note("start", $n);
while ($n < $numbers) {
  $n++;
  note("n", $n);
  select(undef, undef, undef, $beat);
  save() if $each && $n % $each == 0;
  if ($wanted || ($stop && -e $stop)) { save(); exit 1 }
}
note("done", $n);
"""
"""Programs that recipes are for: they save on SIGTERM or when they find a stop file, and end; or at intervals."""
BY_RECIPE = """#!/bin/bash
#SBATCH --time=10 --open-mode=append
IFS=. read -r _ requeues repeats <<< "$SLURM_PAL_RUN"
for try in {{0..999}}; do
  {counter} {file} {numbers} {beat} $(((requeues * 1000 + repeats) * 1000 + try)) {words}
  [ $? = 137 ] || break # killed: it goes on from what it has saved
done
"""
RECIPES = """[interval]
saved = "{-o}.saved"
"""
"""Of the site: whatever it is, its next save is waited for."""


def program(module: str, entry: str) -> list[str]:
    """argv of one of our programs with this Python, wherever the package lies."""
    return [sys.executable, "-P", "-c", f"from slurm_pal.cli.{module} import {entry}; {entry}()"]


HALVES = ("left", "right")
SHARING = {"ALLOCATION": "gavel:max-sum", "PARTITION_WAIT_S": "3"}
APPS = ("one", "two", "three")


class Kind(NamedTuple):
    """A sort of job."""

    words: tuple[str, ...]  # of palsub; () for sbatch
    share: int
    movable: bool = False
    trap: str = ""
    each: str = ":"
    beats: float = 1.0  # numbers, relative to what was asked for
    counter: str | None = None  # the last words for a program that a recipe moves


KINDS = {
    "checkpoint": Kind(("--pal-class=A", "--pal-checkpoint=USR1"), 4, True,
         trap="""trap 'save && : > "$SLURM_PAL_ACK"' USR1"""),
    "movable": Kind(("--pal-class=A", "--pal-movable"), 2, True, each='[ $((n % 5)) != 0 ] || save'),
    "ours": Kind(("--pal-class=B",), 3, beats=0.4),
    "plain": Kind((), 4, beats=0.2),
    "on-term": Kind(("--pal-class=A", "--pal-checkpoint=recipe:saves-on-term"), 4, True, counter="0"),
    "stop-file": Kind(("--pal-class=A", "--pal-checkpoint=recipe:stop-file {file}.stop"), 4, True,
         counter="0 {file}.stop"),
    "interval": Kind(("--pal-class=A", "--pal-checkpoint=recipe:interval"), 3, True, counter="8 '' -o {file}"),
    "transparent": Kind(("--pal-class=A", "--pal-checkpoint=transparent"), 4, True),
}  # fmt: skip
COMMON = ("checkpoint", "movable", "ours", "plain")
EXACT = ("on-term", "stop-file", "transparent")
"""They do no work twice, but after a kill."""


class Job(NamedTuple):
    """One submitted job."""

    job_id: int
    kind: str
    file: str
    numbers: int
    gpus: int
    req: tuple[str, ...]  # its user's own lists
    exc: tuple[str, ...]
    partition: str  # as submitted; "" for the default


class Findings:
    """What went wrong, told as it is found; safe for threads."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._lock = threading.Lock()

    def add(self, line: str) -> None:
        with self._lock:
            if line not in self.lines:
                self.lines.append(line)
                print(f"VIOLATION {line}", file=sys.stderr, flush=True)


class Site:
    """The lab, where its files are, and the scores that the tick believes."""

    def __init__(self, lab: Lab, nodes: int, seed: int, halved: bool) -> None:
        self.nodes, self.random, self.halved = nodes, random.Random(seed), halved
        self.pal = lab.directory("pal")
        self.work = os.path.join(lab.directory.path, "work")
        os.mkdir(self.work)
        self.counter, self.recipes = os.path.join(self.work, "counter"), os.path.join(self.work, "recipes.d")
        os.mkdir(self.recipes)
        write_atomic(self.counter, COUNTER, 0o755)
        write_atomic(os.path.join(self.recipes, "site.toml"), RECIPES)
        self.epoch = 0
        self.throughputs = os.path.join(self.work, "throughputs.csv")
        if halved:
            self._halve()
        self.draw()

    def _halve(self) -> None:
        for k, name in enumerate(HALVES):
            nodes = ",".join(f"n{node}" for node in range(k, self.nodes, 2))
            subprocess.run(["scontrol", "create", f"PartitionName={name}", f"Nodes={nodes}", "State=UP"], check=True)

    def half_of(self, node: str) -> str:
        """The partition of a node; "" where there is only one."""
        return HALVES[int(node[1:]) % 2] if self.halved else ""

    def draw(self) -> None:
        """New scores, and new throughputs where there are two partitions."""
        self.draw_scores()
        if self.halved:
            self.draw_throughputs()

    def draw_throughputs(self) -> None:
        """Which half is faster, and how much, for each application."""
        lines = ["application,gpus,type,relative_speed"]
        for app in APPS:
            speeds = (1.0, self.random.choice((0.25, 4.0)))
            lines += [f"{app},{gpus},{h},{v:g}" for gpus in (1, 2) for h, v in zip(HALVES, speeds, strict=True)]
        write_atomic(self.throughputs, "\n".join(lines) + "\n")

    def draw_scores(self) -> None:
        """As if a sweep had found it."""
        self.epoch += 1
        now_s = time.time()
        scores = [
            GpuScore(
                f"n{node}", k, f"{node}-{k}", "m", {c: self.random.uniform(0.8, 1.6) for c in SENSITIVITY_CLASSES},
                dict.fromkeys(SENSITIVITY_CLASSES, "v0"), now_s, 1.0, (),
            )
            for node in range(self.nodes)
            for k in range(GPUS_PER_NODE)
        ]  # fmt: skip
        path = os.path.join(self.pal, "snapshot")
        snapshot.publish(path, scores, cluster="kills", epoch=self.epoch, now_s=now_s)

    def journal(self) -> tuple[list[Move], list[TickLease]]:
        """Its moves and the leases that have ended; only while no daemon lives."""
        path = os.path.join(self.pal, "rebalance.db")
        if not os.path.exists(path):
            return [], []
        with open_journal(path, write=False) as journal:
            return journal.moves(), [lease for lease, _, _ in journal.ended_leases()]


class Crowd:
    """Users: they submit what is missing to the load that is wanted, and remember what they did."""

    def __init__(self, site: Site, numbers: int, kinds: Sequence[str], seed: int) -> None:
        self._site, self._numbers, self._kinds, self._random = site, numbers, kinds, random.Random(seed + 1)
        self.jobs: dict[int, Job] = {}
        self._number, self._lock = 0, threading.Lock()
        self._began_s = time.monotonic()

    def feed(self, living: frozenset[int]) -> None:
        """Submit a job if too few GPUs are asked for. `living` are those that are not known to have ended."""
        load = LOADS[int((time.monotonic() - self._began_s) / LOAD_S) % len(LOADS)]
        if self._missing(living, load) > 0:
            self.submit(self._any())

    def fill(self, living: frozenset[int], load: float) -> None:
        """Submit all that is missing to a load."""
        for _ in range(self._missing(living, load)):
            self.submit(self._any())

    def _missing(self, living: frozenset[int], load: float) -> int:
        asked = sum(self.jobs[job_id].gpus for job_id in living)
        return round(load * self._site.nodes * GPUS_PER_NODE) - asked

    def _any(self) -> str:
        return self._random.choices(self._kinds, [KINDS[name].share for name in self._kinds])[0]

    def submit(self, name: str, node: str = "") -> None:
        """One job of a kind, on `node` if that is named."""
        kind = KINDS[name]
        with self._lock:
            self._number += 1
            number = self._number
        gpus = self._random.choice((1, 1, 1, 2))
        numbers = max(3, int(self._numbers * kind.beats * self._random.uniform(0.5, 1.5)))
        file = os.path.join(self._site.work, str(number))
        last = f"n{self._site.nodes - 1}"
        exc = () if node or self._random.random() > 0.2 else (last,)
        words = ["--parsable", "-o", f"{file}.out", "-N1", f"--gres=gpu:{gpus}", *(f"--exclude={one}" for one in exc)]
        words += [f"--nodelist={node}"] if node else []
        partition = self._partition(node)
        words += ["-p", partition, "-J", self._random.choice(APPS)] if partition else []
        text = PAYLOAD.format(file=file, trap=kind.trap, each=kind.each, numbers=numbers, beat=BEAT_S)
        if kind.counter is not None:
            last_words = kind.counter.format(file=file)
            text = BY_RECIPE.format(
                counter=self._site.counter, file=file, numbers=numbers, beat=BEAT_S, words=last_words
            )
        asked = [word.format(file=file) for word in kind.words]
        command = [*program("palsub", "main"), *asked] if asked else ["sbatch"]
        env = os.environ | {"SLURM_PAL_SUBMIT_RECIPES": self._site.recipes}
        done = subprocess.run([*command, *words], input=text, capture_output=True, text=True, env=env, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{command[0]} failed: {done.stderr}")
        job_id = int(done.stdout.split(";")[0])
        self.jobs[job_id] = Job(job_id, name, file, numbers, gpus, (node,) if node else (), exc, partition)

    def _partition(self, node: str) -> str:
        """All for most jobs, so that the tick has something to choose."""
        if node or not self._site.halved:
            return self._site.half_of(node) if node else ""
        return ",".join(HALVES) if self._random.random() < 0.9 else self._random.choice(HALVES)


class Watch:
    """Looks at the queue all the time."""

    def __init__(self, crowd: Crowd, findings: Findings) -> None:
        self._crowd, self._findings, self._client = crowd, findings, CliClient()
        self.ended: dict[int, str] = {}  # job -> how
        self.restarts: Counter[int] = Counter()
        self.cut: Counter[int] = Counter()  # job -> how often its node or program was killed
        self.may_be_cut = False  # nodes are
        self._held_s: dict[int, float] = {}

    @property
    def living(self) -> frozenset[int]:
        return frozenset(self._crowd.jobs.keys() - self.ended.keys())

    def look(self) -> dict[int, SlurmJob]:
        """Ask for all jobs that have not ended, and check them."""
        asked = self.living
        found = self._client.jobs_of(sorted(asked))
        now_s = time.monotonic()
        for job_id in asked:
            if job_id not in found:
                self._findings.add(f"job {job_id} has vanished")
                self.ended[job_id] = "vanished"
        for job_id, job in found.items():
            self._check(job, now_s)
            if job.state in JOB_ENDED:
                self.ended[job_id] = job.state
        return found

    def glance(self) -> None:
        """A look that may fail."""
        with contextlib.suppress(SlurmError):
            self.look()

    def _check(self, job: SlurmJob, now_s: float) -> None:
        seen = self._findings
        if job.restarts < self.restarts[job.job_id]:
            seen.add(f"job {job.job_id} has forgotten restarts")
        self.restarts[job.job_id] = job.restarts
        held = job.state == "PENDING" and (job.held or "held" in job.reason.lower())
        since_s = self._held_s.setdefault(job.job_id, now_s) if held else self._held_s.pop(job.job_id, now_s)
        if now_s - since_s > HELD_S:
            seen.add(f"job {job.job_id} is held: {job.reason}")

    def check_lists(self, jobs: Sequence[SlurmJob]) -> int:
        """After the daemon's end: pending jobs bear the lists of their users and no others. How many are pending."""
        pending = [job for job in jobs if job.state == "PENDING"]
        for job in pending:
            mine = self._crowd.jobs[job.job_id]
            if (set(job.req_nodes), set(job.exc_nodes)) != (set(mine.req), set(mine.exc)):
                lists = f"{job.req_nodes} {job.exc_nodes}"
                self._findings.add(f"job {job.job_id} ({mine.kind}) is pending with the lists {lists}")
            if mine.partition and set(job.partition.split(",")) != set(mine.partition.split(",")):
                self._findings.add(
                    f"job {job.job_id} ({mine.kind}) is pending in {job.partition}, not {mine.partition}"
                )
        return len(pending)


class Log:
    """The log of the tick, as it grows."""

    def __init__(self, path: str) -> None:
        self._path, self._offset = path, 0

    def news(self) -> list[dict[str, object]]:
        """The whole lines that came since the last call."""
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as stream:
            stream.seek(self._offset)
            text = stream.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._offset += len(whole)
            return [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]
        return []


def called(event: dict[str, object]) -> str:
    """The name of an event among the AIMS."""
    names = {"step": str(event.get("step", "")), "move": "planned"}
    return names.get(str(event["what"]), str(event["what"]))


class Daemon:
    """pal-rebalance, started again and again."""

    def __init__(self, site: Site) -> None:
        tuned = TUNED | (SHARING | {"THROUGHPUTS": site.throughputs} if site.halved else {})
        self._env = os.environ | {f"SLURM_PAL_REBALANCE_{name}": value for name, value in tuned.items()}
        self._said = os.path.join(site.work, "daemon.err")
        self._process: subprocess.Popen[bytes] | None = None
        self.log = Log(os.path.join(site.pal, "rebalance.log"))

    def start(self) -> None:
        with open(self._said, "ab") as said:
            command = [*program("start", "rebalance"), "--daemon", "--act", "--every=1"]
            self._process = subprocess.Popen(command, env=self._env, stderr=said, stdout=said)

    def end(self, number: int) -> int:
        """Send the signal and wait for the end; its exit status."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait()

    def dead(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def last_words(self) -> str:
        with open(self._said, encoding="utf-8", errors="replace") as stream:
            return " | ".join(stream.read().splitlines()[-3:])


class Nodes:
    """The lab's nodes, whose power can be cut."""

    def __init__(self, lab: Lab, watch: Watch, seed: int) -> None:
        self._directory, self._watch, self._random = lab.directory, watch, random.Random(seed + 4)

    def cut(self, node: str) -> None:
        """Kill slurmd, slurmstepd and all jobs of a node, all at once, and boot it again."""
        with open(self._directory("run", f"slurmd-{node}.pid"), encoding="ascii") as stream:
            slurmd = int(stream.read())
        there = self._jobs(node)
        pids, clean = [slurmd], 0
        while clean < 3:  # one that was being started at that moment is not seen the first time
            pids += [one.pid for one in processes.find_steps(self._directory) if self._is_on(node, one.pid)]
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in pids:
                    end(pid, number)
            clean = 0 if pids else clean + 1
            pids = []
            time.sleep(0.1)
        time.sleep(self._random.uniform(0.0, 2.7))
        self._watch.cut.update(there | self._jobs(node))
        resume(self._directory, [node])

    def welcome(self) -> None:
        """As an admin does with nodes that Slurm keeps DOWN, since they have booted without being asked to."""
        argv = ["sinfo", "-h", "-N", "-t", "down", "-o", "%N %E"]
        for line in subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines():
            node, _, reason = line.partition(" ")
            if "unexpectedly rebooted" in reason:
                subprocess.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=True)

    def end_programs(self, node: str) -> bool:
        """Kill those on this node that recipes move; whether there was one."""
        found = False
        for process in processes.find_steps(self._directory):
            words, said = read(process.pid, "cmdline"), read(process.pid, "environ")
            if f"SLURMD_NODENAME={node}" in said and any(word.endswith("/counter") for word in words):
                self._watch.cut.update(int(word[13:]) for word in said if word.startswith("SLURM_JOB_ID="))
                end(process.pid, signal.SIGKILL)
                found = True
        return found

    def _is_on(self, node: str, pid: int) -> bool:
        """A slurmstepd, by its log, or a process below one; without any, by what slurmd has given it.

        That is not asked first: processes that CRIU has restored have it from the node where they began.
        """
        logs, above = self._directory("log") + "/slurmd-", pid
        while above > 1:
            with contextlib.suppress(OSError):
                opened = {os.readlink(one.path) for one in os.scandir(f"/proc/{above}/fd")}
                if any(path.startswith(logs) for path in opened):
                    return self._directory.log(f"slurmd-{node}") in opened
            above = parent_of(above)
        return f"SLURMD_NODENAME={node}" in read(pid, "environ")

    def _jobs(self, node: str) -> set[int]:
        argv = ["squeue", "-h", "-t", "R,CG,CF", "-w", node, "-o", "%A"]
        return {int(word) for word in subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()}


def read(pid: int, name: str) -> list[str]:
    """The words of a file in /proc/PID; [] where the process has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as stream:
        return stream.read().split("\0")
    return []


def parent_of(pid: int) -> int:
    """Its parent; 0 where the process has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
        return int(stream.read().rpartition(")")[2].split()[1])
    return 0


def end(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Killer:
    """Kills the daemon, or what it moves, at random and on sight."""

    def __init__(
        self, site: Site, daemon: Daemon, crowd: Crowd, findings: Findings, seed: int, nodes: Nodes | None = None,
        victims: Sequence[str] = (TICK,),
    ) -> None:  # fmt: skip
        self._site, self._daemon, self._crowd, self._findings = site, daemon, crowd, findings
        self._nodes, self._victims = nodes, victims
        self._random = random.Random(seed + 2)
        self.slower = 1.0  # so many times as long a daemon lives
        self.killed: Counter[str] = Counter()
        self.aimed: Counter[str] = Counter()
        self.at: Counter[str] = Counter()  # step of an open move that a kill has interrupted -> kills

    def kill(self) -> None:
        """One kill: of a daemon that runs already, or of the node or the program of a job that it moves, if there is
        one soon."""
        victim = self._random.choice(self._victims)
        if victim != TICK and self._nodes is not None:
            self.killed[victim] += self._kill_moved(self._nodes, victim)
            return
        self.killed[TICK] += 1
        aim = self._random.choices([*AIMS], [*AIMS.values()])[0] if self._random.random() < 0.5 else ()
        self.aimed[self._wait(aim)] += 1
        if self._daemon.dead():
            self._findings.add(f"the daemon ended by itself: {self._daemon.last_words()}")
        self._daemon.end(signal.SIGKILL)
        moves, _ = self._site.journal()
        self.at.update({move.step for move in moves if not move.outcome} or {"none"})

    def _kill_moved(self, nodes: Nodes, victim: str) -> bool:
        """Meet the node, or the program, of a job in one of the steps of a move; false where none comes."""
        wanted = self._random.choice(("planned", "signalling", "signalling", "requeueing", "targeting", "moved"))
        until_s = time.monotonic() + MEET_S
        self._daemon.log.news()
        while time.monotonic() < until_s and not self._daemon.dead():
            for event in self._daemon.log.news():
                if called(event) == wanted:
                    time.sleep(self._random.choice((0.0, self._random.uniform(0, 0.2), self._random.uniform(0, 1.5))))
                    side = "to" if wanted in ("targeting", "moved") else "from"
                    node = str(event[side]).partition(":")[0]
                    if victim == NODE:
                        nodes.cut(node)
                    elif not nodes.end_programs(node):
                        continue
                    self.aimed[f"{victim} {wanted}"] += 1
                    return True
            time.sleep(0.003)
        return False

    def _wait(self, aim: Sequence[str]) -> str:
        """Until the moment has come, that of the first of these events; what it was."""
        limit_s = self.slower * (AIM_S if aim else self._random.uniform(0.1, 2.0))
        until_s = time.monotonic() + limit_s
        self._daemon.log.news()
        if COMMIT in aim and self._commit(self._random.randint(1, 12), until_s):
            return COMMIT
        while time.monotonic() < until_s and not self._daemon.dead():
            news = self._daemon.log.news()
            self._take_target(news)
            met = [called(event) for event in news if called(event) in aim]
            if met:
                time.sleep(self._random.choice((0.0, self._random.uniform(0, 0.03), self._random.uniform(0, 0.3))))
                return met[0]
            time.sleep(0.003)
        return "missed" if aim else "random"

    def _commit(self, count: int, until_s: float) -> bool:
        """Until the journal has been written so many times: its rollback file comes and goes."""
        path = os.path.join(self._site.pal, "rebalance.db-journal")
        there = False
        while count and time.monotonic() < until_s and not self._daemon.dead():
            before, there = there, os.path.exists(path)
            count -= before and not there
            time.sleep(0.0002)
        return not count

    def _take_target(self, news: Sequence[dict[str, object]]) -> None:
        """Now and then somebody else gets there first."""
        for event in news:
            if called(event) == "requeueing" and self._random.random() < 0.1:
                self._crowd.submit("plain", str(event["to"]).partition(":")[0])


@contextlib.contextmanager
def beside(work: Callable[[], object], pause_s: float) -> Iterator[list[BaseException]]:
    """Do the work again and again in a thread while the block runs; what stopped it, which is raised in the end."""
    over = threading.Event()
    trouble: list[BaseException] = []

    def run() -> None:
        try:
            while not over.wait(pause_s):
                work()
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield trouble
    finally:
        over.set()
        thread.join()
    if trouble:
        raise trouble[0]


def check_output(job: Job, findings: Findings, cut: int = 0) -> int:
    """No gap, nothing repeated but what came after the checkpoint, one end; how many numbers were written again.

    `cut` is how often its node or program was killed: else exact kinds write nothing again.
    """
    with contextlib.suppress(FileNotFoundError), open(job.file, encoding="utf-8") as stream:
        lines = [line.split() for line in stream]
        again = _check_lines(job, lines, findings, back=bool(cut) and job.kind == "transparent")
        if again and not cut and job.kind in EXACT:
            findings.add(f"job {job.job_id} ({job.kind}): {again} numbers are there twice")
        return again
    findings.add(f"job {job.job_id} has written nothing")
    return 0


def _check_lines(job: Job, lines: Sequence[Sequence[str]], findings: Findings, back: bool) -> int:
    """`back`: it may go on from an older image, which no line says."""
    at, last, wrong = 0, -1, []  # the number reached, the newest incarnation
    again, ends = 0, 0
    may_be = [0]  # a save is cut short before or after it counts
    for what, number, restart in ((line[0], int(line[1]), int(line[2])) for line in lines):
        if restart < last or (what == "start" and restart == last):
            wrong.append(f"incarnation {restart} writes {what} {number} beside {last}")
        last = max(last, restart)
        if what == "start":
            if number not in may_be:
                wrong.append(f"starts at {number}, not where it was saved {may_be}")
            at, again = number, again + at - number
        elif what == "n":
            if back and number <= at:
                again += at + 1 - number
            elif number != at + 1:
                wrong.append(f"{number} comes after {at}")
            at = number
        elif what == "saving":
            may_be.append(number)
        elif what == "saved":
            may_be = [number]
        elif what == "done":
            ends += 1
        elif what == "twice":
            wrong.append(f"incarnation {restart} starts beside another one")
    if ends != 1 or at != job.numbers:
        wrong.append(f"{ends} ends at {at} of {job.numbers}")
    for line in wrong:
        findings.add(f"job {job.job_id} ({job.kind}): {line}")
    return again


def job_ends(site: Site) -> Iterator[tuple[int, str]]:
    """Job and state for each end of a run that Slurm has recorded (JobComp)."""
    with open(os.path.join(os.path.dirname(site.pal), "log", "jobcomp.txt"), encoding="utf-8") as stream:
        for line in stream:
            said = dict(word.split("=", 1) for word in line.split() if "=" in word)
            yield int(said["JobId"]), said["JobState"]


def node_failures(site: Site) -> Counter[int]:
    """How many runs of each job Slurm ended since their node failed.

    Whoever looks at the queue may miss a job that started while its node was off.
    """
    return Counter(job_id for job_id, state in job_ends(site) if state == "NODE_FAIL")


def check_moves(moves: Sequence[Move], watch: Watch, site: Site, findings: Findings) -> None:
    """Each move has an outcome, and no job was requeued but by a move or after a power cut, once for each."""
    ordered: Counter[int] = Counter()
    path = os.path.join(site.pal, "rebalance.db")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        state = connection.execute("PRAGMA integrity_check").fetchone()[0]
    if state != "ok":
        findings.add(f"the journal is damaged: {state}")
    with open_journal(path, write=False) as journal:
        for move in moves:
            if not move.outcome:
                findings.add(f"move {move.move_id} of job {move.job_id} is open in step {move.step}")
            ordered[move.job_id] += any(step == "requeueing" for step, _ in journal.steps_of(move.move_id))
    failures = node_failures(site)
    for job_id, count in watch.restarts.items():
        if count > ordered[job_id] + failures[job_id]:
            findings.add(f"job {job_id} was requeued {count} times by {ordered[job_id]} moves")


def check_ends(site: Site, watch: Watch, findings: Findings) -> int:
    """By Slurm's own record of ends (JobComp): one run to the end, and one that is pending again for each requeue.

    Returns how many updates of ReqNodeList met a job that had just started: Slurm takes such a one for a new
    size, which means nothing to these jobs of one node.
    """
    runs: dict[int, Counter[str]] = {job_id: Counter() for job_id in watch.ended}
    for job_id, state in job_ends(site):
        runs[job_id][state] += 1
    resized = sum(found.pop("RESIZING", 0) for found in runs.values())
    for job_id, found in runs.items():
        cut = found.pop("NODE_FAIL", 0)
        if (cut and not watch.may_be_cut) or +found != +Counter(
            {"COMPLETED": 1, "PENDING": watch.restarts[job_id] - cut}
        ):
            findings.add(
                f"job {job_id} was restarted {watch.restarts[job_id]} times, its runs ended as {dict(found)}, {cut} cut"
            )
    return resized


def finish(daemon: Daemon, crowd: Crowd, watch: Watch, findings: Findings) -> int:
    """The daemon runs in peace and is stopped; how many jobs were pending then. Waits for all jobs."""
    if not daemon.runs():
        daemon.start()
    crowd.fill(watch.living, FINAL_LOAD)
    time.sleep(6.0)
    if daemon.dead() or daemon.end(signal.SIGTERM) != 0:
        findings.add(f"the daemon did not end well: {daemon.last_words()}")
    pending = watch.check_lists([*watch.look().values()])
    until_s = time.monotonic() + PATIENCE_S
    while watch.living:
        if time.monotonic() > until_s:
            findings.add(f"jobs that do not end: {sorted(watch.living)}")
            break
        time.sleep(0.5)
        watch.check_lists([*watch.look().values()])
    return pending


def play(lab: Lab, args: argparse.Namespace) -> dict[str, object]:
    """All of it; what was counted."""
    site, findings = Site(lab, args.nodes, args.seed, args.partitions), Findings()
    crowd, daemon = Crowd(site, args.numbers, args.kinds.split(","), args.seed), Daemon(site)
    watch = Watch(crowd, findings)
    nodes, victims = Nodes(lab, watch, args.seed), args.victims.split(",")
    watch.may_be_cut = NODE in victims
    killer = Killer(site, daemon, crowd, findings, args.seed, nodes, victims)
    rng, began_s = random.Random(args.seed + 3), time.monotonic()
    with contextlib.ExitStack() as looks:
        looking = looks.enter_context(beside(watch.glance, 0.5))
        looks.enter_context(beside(nodes.welcome, 1.0))
        with beside(lambda: crowd.feed(watch.living), 0.05) as feeding, beside(site.draw, DRAW_S):
            for tries in itertools.count():
                count = sum(killer.killed.values())
                done = count >= args.kills and (not args.until_moved or any([*watch.restarts.values()]))
                late = args.for_s and time.monotonic() > began_s + args.for_s
                if looking or feeding or done or late or tries >= MOST_TIMES * args.kills:
                    break
                if not daemon.runs():
                    daemon.start()
                killer.slower = args.slower * max(
                    1.0, count / args.kills
                )  # a busy machine may need that for a first move
                killer.kill()
                if rng.random() < 0.03:  # long enough for requeued jobs to start without us
                    time.sleep(rng.uniform(0.0, 8.0))
                if tries % 50 == 49:
                    print(f"{sum(killer.killed.values())} kills, {len(crowd.jobs)} jobs", file=sys.stderr, flush=True)
    pending = finish(daemon, crowd, watch, findings)
    cut = watch.cut + node_failures(site)
    again = sum(check_output(job, findings, cut[job.job_id]) for job in crowd.jobs.values())
    moves, leases = site.journal()
    check_moves(moves, watch, site, findings)
    resized = check_ends(site, watch, findings)
    for job_id, how in watch.ended.items():
        if how != "COMPLETED":
            findings.add(f"job {job_id} ({crowd.jobs[job_id].kind}) ended as {how}")
    return {
        "schema": "pal.bench.kills/1", "kills": sum(killer.killed.values()),
        "killed": dict(killer.killed), "aimed": dict(killer.aimed.most_common()),
        "kills_in_step": dict(killer.at.most_common()), "jobs": len(crowd.jobs),
        "jobs_by_kind": dict(Counter(job.kind for job in crowd.jobs.values())),
        "restarts": sum(watch.restarts.values()), "moves": dict(Counter(move.outcome for move in moves)),
        "into_another_partition": dict(Counter(move.outcome for move in moves if move.partition)),
        "leases": dict(Counter(lease.kind for lease in leases)),
        "numbers": sum(job.numbers for job in crowd.jobs.values()), "numbers_again": again,
        "pending_at_end": pending, "resized": resized, "wall_s": round(time.monotonic() - began_s),
        "violations": len(findings.lines), "found": findings.lines[:20],
    }  # fmt: skip


def play_in(
    lab: Lab, args: argparse.Namespace, play: Callable[[Lab, argparse.Namespace], Mapping[str, object]]
) -> None:
    """Play in a lab that ends, print what was found, and exit; its directory stays where something went wrong."""
    path = lab.directory.path
    found: Mapping[str, object] = {"violations": 1}
    try:
        os.environ.update(lab.environ())
        found = play(lab, args)
    finally:
        lab.down(keep=True)
        if found["violations"]:
            print(f"see {path}", file=sys.stderr)
        else:
            shutil.rmtree(path)
            if not args.dir:
                os.rmdir(os.path.dirname(path))
    print(json.dumps(found))
    sys.exit(bool(found["violations"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--numbers", type=int, default=80, help="that a job counts to, on average")
    parser.add_argument("--kinds", default=",".join(COMMON), help=f"of jobs, of {', '.join(KINDS)}")
    parser.add_argument("--victims", default=TICK, help=f"of kills, of {TICK}, {NODE}, {PROGRAM}")
    parser.add_argument("--for-s", type=float, default=0.0, help="no more kills after so many seconds")
    parser.add_argument("--partitions", action="store_true", help="two of them, shared out by the tick")
    parser.add_argument(
        "--until-moved", action="store_true", help="on a busy machine more kills, until a job has moved"
    )
    parser.add_argument(
        "--slower", type=float, default=1.0, help="so many times as long a daemon lives, so that more moves end"
    )
    parser.add_argument("--dir", help="of the lab; it is left with all logs where something went wrong")
    args = parser.parse_args()
    path = args.dir or os.path.join(tempfile.mkdtemp(prefix="pal"), "lab")
    play_in(Lab.up(path, nodes=args.nodes, gpus=GPUS_PER_NODE, seed=args.seed), args, play)


if __name__ == "__main__":
    main()
