# SPDX-License-Identifier: MIT
"""Hostile texts in real jobs, and all our code that reads them: is what it believes still true?

    python tests/fuzz/facts.py [--seconds 60] [--seed 1] [--jobs 400]

Starts a lab of its own (8 nodes, 4 GPUs each), with jobs running on known GPUs and jobs that wait. Then, repeatedly,
a program writes mutated texts into names, comments, admin comments, wckeys, accounts, paths, environments, features,
licences, reservations and more of these jobs, without Slurm's commands; after each write palsub's reader, the large
look of the tick and the reader of all jobs are asked, and in turn the tick itself with its publisher, the gate of a
sweep, `pal explain`, `pal nodes` and palsub. A violation is any exception but a PalError on one's own job, a job that
Slurm does not have or one that is missing, a wrong owner, state, node or GPU, and more than 200 MiB of memory.

A slurmctld that dies of such texts is no violation: the run goes on in a new lab, with the next seed. The last line is
one JSON object whatever happens, and it comes within --seconds and half a minute; the exit code is 1 where there was a
violation, or an error that ended the run early: a lab that could not be started, a signal.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from click.testing import CliRunner
from facts_lab import ANSWER_S, FEATURES, GPUS, LICENSES, NODES, RESERVATIONS, Died, FactsLab, clear, compiled

from slurm_pal.base import config as settings
from slurm_pal.base.errors import PalError, SlurmError
from slurm_pal.base.hostlist import expand
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.cli.pal import pal
from slurm_pal.decide.job_request import request_of
from slurm_pal.decide.lease_marks import in_force
from slurm_pal.journal.event_log import EventLog
from slurm_pal.journal.journal import open_journal
from slurm_pal.lab.demo import program
from slurm_pal.profiling.sweep.plan import ChosenNode
from slurm_pal.profiling.sweep.waiting import user_waiting
from slurm_pal.publisher.publication import Publisher
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.counted import Counted
from slurm_pal.slurm.parse import seconds, unix_s
from slurm_pal.store import snapshot
from slurm_pal.submit.processes import runner
from slurm_pal.tick.role import role_of
from slurm_pal.tick.tick import Tick

MOST_MIB = 200.0
TOUCHED = ("name", "comment", "admin_comment")
"""Of a job that runs; with the others it is not known where its GPUs stand, and that is no violation."""
WAITING = (*TOUCHED, "wckey", "account")
SUBMITTED = (
    "name", "comment", "wckey", "account", "alloc_node", "work_dir", "std_out", "network", "burst_buffer", "extra",
    "mail_user", "environment",
)  # fmt: skip
CHECKED = ("features", "prefer", "licenses", "reservation")
IN_UPDATES, IN_SUBMISSIONS = 0.1, 0.5
"""The share of requests that bear one of these."""
ODD_UPDATES, ODD_SUBMISSIONS = 0.2, 0.02
"""The share of their values that may have any form. slurmctld of 22.05.8 frees some texts of a submission twice when it
refuses the features, and dies of it at once or later: a higher share shows nothing but its deaths."""
AWAY = (
    "Unable to contact", "Zero Bytes", "Connection reset", "Socket timed out", "took too long", "did not answer within",
)  # fmt: skip
"""What Slurm's commands say when slurmctld did not answer; nothing is believed then, and that is right."""
START_S, LATE_S, AGAIN_S = 15.0, 5.0, 3.0
"""A lab starts in about half of the first; what is under way when the time is over has the second."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
TURN = 8
"""The slow readers are asked after so many rounds, one of them."""
RECORD = (
    "JobId={job_id} {array}JobName={name} {sluid}UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901759 "
    "Nice=0 Account=(null) QOS=(null) {wckey}JobState={state} Reason=None Dependency=(null) Requeue=1 Restarts=0 "
    "BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:01 TimeLimit=365-00:00:00 SubmitTime=2026-11-20T21:51:04 "
    "EligibleTime=2026-11-20T21:51:04 StartTime=2026-11-20T21:51:08 EndTime=Unknown Partition=gpu "
    "AllocNode:Sid=localhost:0 ReqNodeList={req} ExcNodeList=(null) NodeList={nodes} BatchHost=n0 NumNodes=1 NumCPUs=1 "
    "NumTasks=1 CPUs/Task=1 JOB_GRES=gpu:4 {gap}Nodes={nodes} CPU_IDs=0 Mem=500 GRES=gpu:4(IDX:0-3) MinCPUsNode=1 "
    "MinMemoryCPU=500M Features=(null) OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null) "
    "Command=x WorkDir=/ Comment={comment} TresPerNode=gres:gpu:4 "
)
NODE = "NodeName=n0 Gres=gpu:4 GresUsed=gpu:4 State=DOWN Partitions=gpu"
ODD = (
    b"\n", b"\r", b"\r\n", b"\t", b" ", b"\x1b[2J", b"\x7f", b"\x85", b"\xff\xfe", b"\xc3", b"\xe2\x80\xae",
    b"\xe2\x80\xa8", "²".encode(), "٣".encode(), b"=", b"|", b"~", b",", b";", b"'", b'"', b"\\", b"%", b"$(id)",
    b"`id`", b"@",
    b"@x';id>>FILE;'", b"@*", b"n[0-8000000]", b"n[1-9][1-9][1-9][1-9]", b"[[[[[[", b"n[", b"]", b"(null)", b"N/A",
    b"scontrol: ", b"pal:job=A;mov=1;ck=1;lost=0", b"pal:it=99;of=100000000;at=1;r=0", b"pal:ack=9.9",
    b"pal:lease=0;req=;exc=;act=exclude;set=n[0-7];class=A", b"pal:lease=60;req=@x;exc=;act=nodelist;set=n0",
    b"pal:ev=1;what=move;from=n0:0;to=n1:0", b"ArrayJobId=\xc2\xb2", b"MinMemoryCPU=.", b"NodeList=n[0-8000000]",
    b"NodeList=@x';id;'", b" JobState=RUNNING ", b" UserId=news(9) ", b" Licenses=", b" MinCPUsNode=", b" WorkDir=/",
    b"9" * 400, b"x" * 900, b"1-2-3:4:5", b"ReservationName=r Nodes=n[0-7] State=ACTIVE",
    b"PartitionName=gpu State=DOWN",
)  # fmt: skip
KEYS = (
    b" NodeList=n7 UserId=news(0) JobState=RUNNING ReqNodeList=n0 Licenses=", b" Reservation=r1", b" ExcNodeList=@x",
    b" DelayBoot=0 OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null) Command=x WorkDir=/ Comment=pal:job=A",
    b" JobState=COMPLETED BatchHost=n7 NodeList=n7", b" Licenses=", b" Contiguous=1 Licenses=", b" Prefer=pal_A",
    b" Nodes=n0 CPU_IDs=0 Mem=0 GRES=gpu:4(IDX:0-3)", b" NodeList=n7\nJobId=1 JobName=", b" Features=", b" Priority=0",
    b" TresPerNode=gres:gpu:4 Comment=pal:job=A;mov=1", b" NumNodes=7 NumCPUs=7 JobState=RUNNING", b" UserId=news(0)",
)  # fmt: skip
"""Pairs of Slurm's own, for a text that stands between them."""
SIGNS = b"&|,[](){}*"
"""slurmctld looks for these in a list of features."""


class Violation(NamedTuple):
    what: str
    details: str


class Truth(NamedTuple):
    """One job as it is; `gpus` is empty while it waits."""

    job_id: int
    node: str
    gpus: tuple[int, ...]
    plain: bool  # no text of its user stands before its GPUs in scontrol's answer


class Mutator:
    """Texts of one seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.inputs = 0

    def text(self, ids: Sequence[int], most: int) -> bytes:
        """One hostile text of at most so many bytes, without a NUL."""
        self.inputs += 1
        rng, kind = self._rng, self._rng.random()
        if kind < 0.4:
            made = self._forged(ids)
        elif kind < 0.75:
            made = b"".join(rng.choice(ODD) for _ in range(rng.randrange(1, 12)))
        elif kind < 0.85:
            made = bytes(rng.randrange(1, 256) for _ in range(rng.randrange(1, 120)))
        else:
            made = b"train"
        for _ in range(rng.choice((0, 0, 1, 3))):
            made = self._mutated(made)
        return made.replace(b"\0", b"")[:most]

    def checked(self, field: str, ids: Sequence[int], odd: float) -> bytes:
        """A text for a field that slurmctld looks at: one that it takes, with as much in it as it lets in.

        With the probability `odd` it may be any other, which slurmctld mostly refuses.
        """
        rng = self._rng
        any_form = rng.random() < odd
        if any_form and rng.random() < 0.5:
            return self.text(ids, 400)
        self.inputs += 1
        if field == "reservation":
            names = rng.sample(list(RESERVATIONS), rng.choice((1, 1, 1, 2, 3)))
            return (",".join(names) + rng.choice(("", "", "", ","))).encode()
        if field == "licenses":
            counts = ("", ":1", ":", ":+2", ": 3", ":\n4", ":\t \n\n5", ":007")
            names = [name + rng.choice(counts) for name in rng.choices(list(LICENSES), k=rng.randrange(1, 4))]
            return rng.choice((",", ";")).join(names).encode()
        return self._features(ids, rng.choice((b"&|,*", b"")) if any_form else SIGNS)

    def _features(self, ids: Sequence[int], without: bytes) -> bytes:
        """What may be asked of nodes. Behind a number slurmctld takes any text up to the next of its signs."""
        rng = self._rng
        words = []
        for name in rng.choices(FEATURES, k=rng.choice((1, 1, 2, 3))):
            word = name.encode()
            if rng.random() < 0.6:
                inputs = self.inputs
                text = self.text(ids, 400) if rng.random() < 0.7 else rng.choice(KEYS)
                self.inputs = inputs  # it is part of another
                word += b"*1" + rng.choice((b" ", b"\n", b"x")) + text.translate(None, without)
            words.append(word)
        return rng.choice((b"&", b"|", b",")).join(words)

    def _forged(self, ids: Sequence[int]) -> bytes:
        rng = self._rng
        number = rng.choice((rng.choice(ids), rng.choice(ids), 900001, 4294967295, 0, 10**12))
        words = {
            "job_id": number, "array": rng.choice(("", "", "ArrayJobId=² ", "ArrayJobId=7 ArrayTaskId=1 ")),
            "name": rng.choice(("train", "wait", "x", "")), "sluid": rng.choice(("", "SLUID=s1 ")),
            "wckey": rng.choice(("", "WCKey=(null) ")), "state": rng.choice(("RUNNING", "PENDING", "COMPLETED", "²")),
            "req": rng.choice(("(null)", "n0", "n[0-7]")), "gap": rng.choice(("", "  ")),
            "nodes": rng.choice(("n0", "n[0-7]", "n[0-8000000]", "@x';id;'", "n7")),
            "comment": rng.choice(("(null)", "pal:job=A;mov=1", "pal:it=1;of=9;at=1;r=0")),
        }  # fmt: skip
        record = rng.choice((RECORD.format(**words), NODE, "ReservationName=evil Nodes=n[0-7] State=ACTIVE"))
        if rng.random() < 0.3:
            record = record[record.find("UserId=") :]
        head = rng.choice(("x\n", "train\n", "\n", "x\nscontrol: ", " ", "x\r\n", "train "))
        tail = rng.choice(("", "\n", "\nJobId=", f"\nJobId={rng.choice(ids)} JobName="))
        return (head + record + tail).encode()

    def _mutated(self, made: bytes) -> bytes:
        rng = self._rng
        at = rng.randrange(len(made) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            return made[:at] + rng.choice(ODD) + made[at:]
        if kind == 1:
            return made[:at] + made[at + rng.randrange(1, 20) :]
        if kind == 2:
            return made[:at] + bytes([rng.randrange(1, 256)]) + made[at + 1 :]
        if kind == 3:
            return made[:at] + made[: rng.randrange(1, 200)] + made[at:]
        return made.replace(b" ", rng.choice((b"\n", b"  ", b"\t", b"")), rng.randrange(1, 4))


class Counts:
    """What is counted over all labs of one run."""

    def __init__(self) -> None:
        self.inputs = self.rounds = self.values = self.kept = self.away = self.labs = self.died = self.not_judged = 0
        self.violations: list[Violation] = []

    def violation(self, found: Violation) -> None:
        self.violations.append(found)
        if len(self.violations) <= 20:
            print(f"round {self.rounds}: {found.what}: {found.details[:3000]}", file=sys.stderr)


class Fuzzer:
    """One lab, jobs whose truth is known, and who reads them."""

    def __init__(self, site: FactsLab, counts: Counts, seed: int, jobs: int) -> None:
        self._site, self._folder, self._counts = site, site.folder, counts
        self._rng = random.Random(seed + 1)
        os.environ["XDG_STATE_HOME"] = os.path.join(self._folder, "state")
        os.environ["SLURM_PAL_PATHS_STATE_DIR"] = os.path.join(self._folder, "site")
        os.mkdir(os.environ["SLURM_PAL_PATHS_STATE_DIR"], 0o755)
        self._mutator = Mutator(seed)
        self._client = CliClient(timeout_s=ANSWER_S)
        self._palsub = CliClient(runner(ANSWER_S))
        self._config = settings.load()
        publish(self._config.snapshot_path)
        self._plain = program("palsub")
        self._unsure: list[Violation] = []
        self._extra: list[int] = []
        self._slow: list[Callable[[], None]] = [self._tick, self._gate, self._explain, self._show_nodes, self._submit]
        self._truth = self._start(jobs)

    def _start(self, count: int) -> dict[int, Truth]:
        """Running jobs say themselves where they are; the others are held. Raises Died, RuntimeError or SlurmError."""
        where = os.path.join(self._folder, "where")
        os.mkdir(where)
        script = f'#!/bin/sh\necho "$SLURMD_NODENAME $SLURM_JOB_GPUS" > {where}/$SLURM_JOB_ID.new\n'
        script += f"mv {where}/$SLURM_JOB_ID.new {where}/$SLURM_JOB_ID\nsleep 100000\n"
        self._site.reserve()
        running = []
        for number in range(NODES * 2):
            argv = ["-J", "train", f"--gres=gpu:{1 + number % 2}", "-o", "/dev/null", "--comment=pal:job=A;mov=1"]
            if number < 2:
                argv.append(f"--reservation={('odd name', 'a=b')[number]}")
            if number % 3 == 0:
                argv.append(f"--constraint={FEATURES[number % 5]}*1{self._rng.choice(KEYS).decode().split('(')[0]}")
            running.append(self._client.submit(argv, script))
        self._wait(lambda: all(os.path.exists(os.path.join(where, str(number))) for number in running))
        truth = {}
        for number in running:
            node, indexes = Path(where, str(number)).read_text().split()
            truth[number] = Truth(number, node, tuple(map(int, indexes.split(","))), True)
        waiting = self._site.write([f"submit name={b'wait'.hex()}"] * (count - len(running)))
        return truth | {number: Truth(number, "", (), False) for number in waiting}

    def _wait(self, done: Callable[[], bool], limit_s: float = 60.0) -> None:
        deadline_s = time.monotonic() + limit_s
        while not done():
            if not self._site.lives():
                raise Died("slurmctld has ended")
            if time.monotonic() > deadline_s:
                raise RuntimeError("the jobs of the lab did not start")
            time.sleep(0.05)

    # -- one round -------------------------------------------------------------------------------

    def round(self) -> None:
        """Write new texts into all jobs, look, compare. Raises Died."""
        away, made = self._counts.away, self._mutator.inputs
        try:
            self._write_and_look()
            if self._counts.away > away or not self._site.lives():
                self._site.check()
        except Died:
            # A slurmctld whose heap is damaged may say anything before it ends; what it says may still break nothing.
            self._counts.not_judged += len(self._unsure)
            raise
        else:
            for found in self._unsure:
                self._counts.violation(found)
            self._counts.rounds += 1
        finally:
            self._counts.inputs += self._mutator.inputs - made
            self._unsure.clear()

    def _write_and_look(self) -> None:
        ids = list(self._truth)
        lines = []
        for job in self._truth.values():
            fields = TOUCHED if job.plain else WAITING
            words = [f"{field}={self._mutator.text(ids, 1000).hex()}" for field in fields]
            if not job.plain and self._rng.random() < IN_UPDATES:
                words.append(self._checked(ids, ODD_UPDATES))
            lines.append(f"update {job.job_id} {' '.join(words)}")
            self._counts.values += len(words)
        self._counts.kept += sum(map(bool, self._site.write(lines)))
        self._submissions(ids)
        try:
            known = self._listed()
        except SlurmError as error:  # of a queue that cannot be listed there is no truth to compare with
            self._site.check()
            raise Died(f"slurmctld lists no queue: {error}") from None
        self._look("the tick's look", lambda: self._client.overview(reservations=True, marked=True), known)
        self._look("palsub's look", self._palsub.overview, known)
        self._try("all jobs", lambda: self._compare_all(known))
        if self._counts.rounds % TURN == 0:
            slow = self._slow[self._counts.rounds // TURN % len(self._slow)]
            self._try(slow.__name__.strip("_"), slow)
        if memory_mib() > MOST_MIB:
            self._counts.violation(Violation("memory", f"{memory_mib():.0f} MiB"))

    def _checked(self, ids: Sequence[int], odd: float) -> str:
        field = self._rng.choice(CHECKED)
        return f"{field}={self._mutator.checked(field, ids, odd).hex()}"

    def _submissions(self, ids: Sequence[int]) -> None:
        """New jobs with hostile texts in whatever a submission takes; those of the round before are cancelled."""
        if self._extra:
            self._try("cancel", lambda: self._client.cancel(self._extra))
        lines = []
        for _ in range(4):
            words = [f"{f}={self._mutator.text(ids, 900).hex()}" for f in self._rng.sample(SUBMITTED, 4)]
            if self._rng.random() < IN_SUBMISSIONS:
                words.append(self._checked(ids, ODD_SUBMISSIONS))
            lines.append(f"submit {' '.join(words)}")
            self._counts.values += len(words)
        self._extra = [number for number in self._site.write(lines) if number]

    def _listed(self) -> set[int]:
        """The jobs that there are: numbers only, which no text can look like."""
        done = self._site.run(["squeue", "-h", "-a", "-t", "all", "-o", "%A"])
        if done.returncode != 0:
            raise SlurmError(done.stderr.strip())
        return set(map(int, done.stdout.split()))

    def _look(self, who: str, ask: Callable[[], Overview], known: set[int]) -> None:
        def look() -> None:
            seen = ask()
            if [node.name for node in seen.nodes] != [f"n{i}" for i in range(NODES)]:
                self._violation(f"{who}: nodes", str([node.name for node in seen.nodes]))
            if any(not node.gpus_used <= node.n_gpus == GPUS for node in seen.nodes):
                self._violation(f"{who}: GPUs of nodes", str(seen.nodes))
            if any(node.features != set(FEATURES) for node in seen.nodes):
                self._violation(f"{who}: features of nodes", str(seen.nodes))
            reserved = {name: (node,) for name, node in RESERVATIONS.items()} if who == "the tick's look" else {}
            if seen.reservations != reserved or len(seen.partitions) != 1:
                self._violation(f"{who}: reservations, partitions", f"{seen.reservations} {seen.partitions}")
            jobs = {job.job_id: job for job in seen.jobs}
            if len(jobs) != len(seen.jobs) or not jobs.keys() <= known:
                self._violation(f"{who}: jobs", str(sorted(jobs.keys() - known)))
            for true in self._truth.values():
                if true.plain and true.job_id not in jobs:
                    self._violation(f"{who}: a job is missing", str(true))
            for job in seen.jobs:
                self._compare(who, job)

        self._try(who, look)

    def _compare_all(self, known: set[int]) -> None:
        jobs = self._client.jobs()
        ids = [job.job_id for job in jobs]
        if set(ids) - known or set(self._truth) - set(ids) or len(set(ids)) < len(ids):
            self._violation("all jobs: jobs", str(set(ids) ^ known))
        for job in jobs:
            self._compare("all jobs", job)
            request_of(job)
            in_force(job)

    def _compare(self, who: str, job: SlurmJob) -> None:
        true = self._truth.get(job.job_id)
        if job.req_nodes or job.exc_nodes:
            self._violation(f"{who}: nodes that nobody asked for", repr(job))
        if true is None:
            if job.gpus or job.nodes or (job.job_id in self._extra and job.state != "PENDING"):
                self._violation(f"{who}: a job that waits", repr(job))
            return
        expected = {true.node: true.gpus} if true.gpus else {}
        state = "RUNNING" if true.gpus else "PENDING"
        if job.gpus != expected or job.state != state or job.nodes != tuple(expected):
            self._violation(f"{who}: {state} {expected}", repr(job))
        if job.user not in ("root", account()) and not (job.user == "" and not true.plain):
            self._violation(f"{who}: owner", repr(job))

    # -- those who read and decide ---------------------------------------------------------------

    def _tick(self) -> None:
        counted = Counted(self._client._run)
        client = CliClient(counted)
        publisher = Publisher(self._config, client, stays=True)
        path = os.path.join(self._folder, "journal.db")
        with open_journal(path) as journal:
            role = role_of(client, publisher.known_site(time.time()).pairs, False)
            log = EventLog(os.path.join(self._folder, "log"), echo=False)
            tick = Tick(self._config, client, counted, journal, role, publisher, log, act=False)
            outcome = tick.run(time.time())
        if outcome.trouble:
            self._violation("tick: trouble", str(outcome.trouble))
        named = {wish.job_id for wish in outcome.decided.wishes}
        named |= {move.job_id for move in outcome.decided.plan.moves} if outcome.decided.plan else set()
        if not named <= {*self._truth, *self._extra}:
            self._violation("tick: decides about jobs that are not there", str(named))

    def _gate(self) -> None:
        chosen = [ChosenNode(f"n{i}", GPUS, 0.0, partitions=("gpu",)) for i in range(NODES)]
        user_waiting(self._client.jobs(), chosen, os.geteuid())
        self._client.job_states()
        self._client.job_states(name_prefix="train")

    def _explain(self) -> None:
        for job_id in self._rng.sample(sorted(self._truth), 2):
            self._invoke(["explain", str(job_id), "--json"])

    def _show_nodes(self) -> None:
        told = json.loads(self._invoke(["nodes", "--json"]) or "{}")
        if told and [node["gpus"] for node in told["nodes"]] != [GPUS] * NODES:
            self._violation("pal nodes", str(told["nodes"]))

    def _invoke(self, words: list[str]) -> str:
        done = CliRunner().invoke(pal, words)
        if done.exception is not None and not isinstance(done.exception, SystemExit | PalError):
            self._violation(f"pal {words[0]}", "".join(traceback.format_exception(done.exception)))
        return done.stdout if done.exit_code == 0 else ""

    def _submit(self) -> None:
        done = self._site.run([self._plain, "--pal-dry-run", "--pal-json", "--gres=gpu:1", "--wrap", "true"])
        if done.returncode != 0 or "Error" in done.stderr or "plain sbatch" in done.stderr:
            self._violation("palsub", done.stderr or done.stdout)

    # -- what is wrong ---------------------------------------------------------------------------

    def _try(self, who: str, part: Callable[[], None]) -> None:
        try:
            part()
        except SlurmError as error:
            if any(word in str(error) for word in AWAY):
                self._counts.away += 1
            else:
                self._violation(who, traceback.format_exc())
        except PalError:
            self._violation(who, traceback.format_exc())
        except Exception:  # every one of them is what this program looks for, whatever slurmctld said
            self._counts.violation(Violation(who, traceback.format_exc()))

    def _violation(self, what: str, details: str) -> None:
        """It counts when slurmctld outlives the round."""
        self._unsure.append(Violation(what, details))


def parsers(seed: int, for_s: float) -> tuple[int, list[Violation]]:
    """Our parsers alone, on texts that no Slurm printed: nothing but a PalError may come of them."""
    mutator, found = Mutator(seed), []
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        text = mutator.text([1, 2, 3], 4000).decode(errors="replace")
        for parser in (expand, seconds, unix_s):
            try:
                parser(text)
            except PalError:
                pass
            except Exception:
                found.append(Violation(parser.__name__, traceback.format_exc()))
    return mutator.inputs, found


def account() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


def publish(path: str) -> None:
    """Scores by which some GPUs are better than others, so that there is something to decide."""
    scores = [
        snapshot.GpuScore(
            f"n{i}", k, f"G-{i}-{k}", "m", {"A": 1.0 + 0.1 * (i % 3), "B": 1.0, "C": 1.0}, dict.fromkeys("ABC", "v0"),
            time.time(), 1.0, (),
        )
        for i in range(NODES)
        for k in range(GPUS)
    ]  # fmt: skip
    centroids = {name: [1.0] for name in "ABC"}
    snapshot.publish(path, scores, cluster="lab", epoch=1, now_s=time.time(), centroids=centroids)


def memory_mib() -> float:
    """The largest memory that this process has held, by its own account: getrusage counts who started it, too."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024


class Ended(BaseException):
    """A signal: no `except Exception` on the way may take it for something that was found."""


class Run:
    """All labs of one run, and the counts."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self._asked, self.counts = asked, Counts()
        self._folder = ""
        self._began_s, self._until_s = time.monotonic(), 0.0
        self._signal = ""
        self.error = ""

    def all(self) -> None:
        """Fuzz until the time is over; `error` says what ended it before."""
        try:
            for number in (*SIGNALS, signal.SIGALRM):
                signal.signal(number, self._end)
            signal.setitimer(signal.ITIMER_REAL, self._asked.seconds + START_S + LATE_S, AGAIN_S)
            self._folder = tempfile.mkdtemp(prefix="pal")
            writer = compiled(self._folder)
            while self._goes_on(START_S if self.counts.labs else 0.0):
                self._one_lab(writer)
        except Ended:
            self.error = "" if self._signal == "SIGALRM" else self._signal
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        finally:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._clear()
        if not self.counts.rounds:
            self.error = self.error or "no lab was ready in time"

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._signal = self._signal or signal.Signals(number).name
        for other in SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)  # what is raised in a destructor, say, is lost
        raise Ended

    def _goes_on(self, least_s: float = 0.0) -> bool:
        enough = self._asked.rounds is not None and self.counts.rounds >= self._asked.rounds
        return not enough and (not self._until_s or time.monotonic() + least_s < self._until_s)

    def _one_lab(self, writer: str) -> None:
        counts, folder = self.counts, os.path.join(self._folder, str(self.counts.labs))
        counts.labs += 1
        try:
            site = FactsLab(folder, writer, wait_s=60.0)
            try:
                fuzzer = Fuzzer(site, counts, self._asked.seed + counts.labs - 1, self._asked.jobs)
            except SlurmError:
                site.check()
                raise
            # That the first lab takes its time to start takes none of the run's, as far as it is usual.
            self._until_s = self._until_s or min(time.monotonic(), self._began_s + START_S) + self._asked.seconds
            while self._goes_on():
                fuzzer.round()
        except Died as died:
            counts.died += 1
            print(f"round {counts.rounds}: {died}; on to the next lab", file=sys.stderr)
        clear(folder)

    def _clear(self) -> None:
        try:
            for number in range(self.counts.labs):
                clear(os.path.join(self._folder, str(number)))
            shutil.rmtree(self._folder, ignore_errors=True)
        except Exception as error:
            self.error = self.error or f"{type(error).__name__}: {error}"
            traceback.print_exc()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to write and look")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--rounds", type=int, help="end after so many rounds")
    asked = parser.parse_args()
    started_s = time.monotonic()
    alone, found = parsers(asked.seed, min(2.0, asked.seconds / 20))
    run = Run(asked)
    run.all()
    counts = run.counts
    violations = len(found) + len(counts.violations)
    print(
        json.dumps(
            {
                "fuzzer": "facts", "inputs": counts.inputs, "seconds": round(time.monotonic() - started_s, 1),
                "violations": violations, "memory_mib": round(memory_mib(), 1), "rounds": counts.rounds,
                "parsers_alone": alone, "seed": asked.seed, "labs": counts.labs, "slurmctld_died": counts.died,
                "not_answered": counts.away, "not_judged": counts.not_judged, "values": counts.values,
                "updates_taken": counts.kept, "error": run.error,
            }
        ),
        flush=True,
    )  # fmt: skip
    return int(bool(violations or run.error))


if __name__ == "__main__":
    sys.exit(main())
