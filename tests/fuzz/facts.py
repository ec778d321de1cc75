# SPDX-License-Identifier: MIT
"""Hostile texts in real jobs, and everything of ours that reads them: is what is believed still what is true?

    python tests/fuzz/facts.py [--seconds 60] [--seed 1] [--jobs 400]

Starts a lab of its own (8 nodes, 4 GPUs each) with jobs that run on known GPUs and others that wait. Then, in rounds,
a program writes mutated texts into names, comments, admin comments, wckeys, accounts, paths, environments and
more of these jobs, without Slurm's commands; after each round palsub's reader, the large look of the tick and the
reader of all jobs are asked, and in turn the tick itself with its publisher, the gate of a sweep, `pal explain`,
`pal nodes` and palsub. A violation is any exception but a PalError on one's own job, a job that Slurm does not have or
one that is missing, a wrong owner, state, node or GPU, and more than 200 MiB of memory. The last line is one JSON
object; the exit code is 1 where there was a violation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from slurm_pal import config as settings
from slurm_pal.cli.pal import pal
from slurm_pal.errors import PalError, SlurmError
from slurm_pal.hostlist import expand
from slurm_pal.jobs import SlurmJob
from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab
from slurm_pal.profiling.plan import Chosen
from slurm_pal.profiling.waiting import user_waiting
from slurm_pal.rebalance.event_log import EventLog
from slurm_pal.rebalance.journal import open_journal
from slurm_pal.rebalance.leases import in_force
from slurm_pal.rebalance.requests import request_of
from slurm_pal.rebalance.role import role_of
from slurm_pal.rebalance.round import Publisher
from slurm_pal.rebalance.tick import Tick
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.counted import Counted
from slurm_pal.slurm.parse import seconds, unix_s
from slurm_pal.slurm.question import clean_environment
from slurm_pal.store import snapshot
from slurm_pal.submit.processes import runner

MOST_MIB = 200.0
NODES, GPUS = 8, 4
TOUCHED = ("name", "comment", "admin_comment")
"""Of a job that runs; with the others it is not known where its GPUs stand, and that is no violation."""
WAITING = (*TOUCHED, "wckey", "account")
SUBMITTED = (
    "name", "comment", "wckey", "account", "alloc_node", "work_dir", "std_out", "network", "burst_buffer", "extra",
    "mail_user", "environment",
)  # fmt: skip
"""No features, licences or reservations: slurmctld refuses any that are not there, and that of 22.05.8 sometimes dies
of a refused submission (its heap is damaged), with or without us."""
AWAY = ("Unable to contact", "Zero Bytes", "Connection reset", "Socket timed out", "took too long")
"""What Slurm's commands say when slurmctld did not answer; nothing is believed then, and that is right."""
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


class Writer:
    """The program that writes texts into jobs (facts_writer.c)."""

    def __init__(self, folder: str, environment: dict[str, str]) -> None:
        path = os.path.join(folder, "writer")
        source = str(Path(__file__).with_name("facts_writer.c"))
        subprocess.run(["cc", "-o", path, source, "-lslurm"], check=True)
        self._process = subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
        )

    def ask(self, lines: Sequence[str]) -> list[int]:
        """Send requests; the job ids of those that were taken, 0 for the others."""
        taken = []
        assert self._process.stdin and self._process.stdout
        for line in lines:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline().strip()
            if not answer:
                raise RuntimeError(f"the writer ended at {line[:200]}")
            taken.append(int(answer))
        return taken

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


class Fuzzer:
    """One run: a lab, jobs whose truth is known, and who reads them."""

    def __init__(self, lab: Lab, folder: str, seed: int, count: int) -> None:
        self._folder, self._rng = folder, random.Random(seed + 1)
        os.environ.update(lab.variables())
        os.environ["XDG_STATE_HOME"] = os.path.join(folder, "state")
        os.environ["SLURM_PAL_PATHS_STATE_DIR"] = os.path.join(folder, "site")
        os.mkdir(os.environ["SLURM_PAL_PATHS_STATE_DIR"], 0o755)
        self._mutator = Mutator(seed)
        self._writer = Writer(folder, clean_environment())
        self._client = CliClient()
        self._palsub = CliClient(runner(60.0))
        self._config = settings.load()
        publish(self._config.snapshot_path)
        self._plain = program("palsub")
        self.violations: list[Violation] = []
        self.rounds = self.values = self.kept = self.away = 0
        self._truth = self._start(count)
        self._extra: list[int] = []
        self._slow: list[Callable[[], None]] = [self._tick, self._gate, self._explain, self._show_nodes, self._submit]

    @property
    def inputs(self) -> int:
        return self._mutator.inputs

    def _start(self, count: int) -> dict[int, Truth]:
        """Running jobs say themselves where they are; the others are held."""
        where = os.path.join(self._folder, "where")
        os.mkdir(where)
        script = f'#!/bin/sh\necho "$SLURMD_NODENAME $SLURM_JOB_GPUS" > {where}/$SLURM_JOB_ID.new\n'
        script += f"mv {where}/$SLURM_JOB_ID.new {where}/$SLURM_JOB_ID\nsleep 100000\n"
        running = []
        for number in range(NODES * 2):
            argv = ["-J", "train", f"--gres=gpu:{1 + number % 2}", "-o", "/dev/null", "--comment=pal:job=A;mov=1"]
            running.append(self._client.submit(argv, script))
        until(lambda: all(os.path.exists(os.path.join(where, str(number))) for number in running))
        truth = {}
        for number in running:
            node, indexes = Path(where, str(number)).read_text().split()
            truth[number] = Truth(number, node, tuple(map(int, indexes.split(","))), True)
        waiting = self._writer.ask([f"submit name={b'wait'.hex()}"] * (count - len(running)))
        return truth | {number: Truth(number, "", (), False) for number in waiting}

    # -- one round -------------------------------------------------------------------------------

    def round(self) -> None:
        """Write new texts into all jobs, look, compare."""
        ids = list(self._truth)
        lines = []
        for job in self._truth.values():
            fields = TOUCHED if job.plain else WAITING
            words = (f"{field}={self._mutator.text(ids, 1000).hex()}" for field in fields)
            lines.append(f"update {job.job_id} {' '.join(words)}")
            self.values += len(fields)
        self.kept += sum(map(bool, self._writer.ask(lines)))
        self._submissions(ids)
        known = self._listed()
        self._look("the tick's look", lambda: self._client.overview(reservations=True, marked=True), known)
        self._look("palsub's look", self._palsub.overview, known)
        self._try("all jobs", lambda: self._compare_all(known))
        if self.rounds % TURN == 0:
            slow = self._slow[self.rounds // TURN % len(self._slow)]
            self._try(slow.__name__.strip("_"), slow)
        self.rounds += 1
        if memory_mib() > MOST_MIB:
            self._violation("memory", f"{memory_mib():.0f} MiB")

    def _submissions(self, ids: Sequence[int]) -> None:
        """New jobs with hostile texts in whatever a submission takes; those of the round before are cancelled."""
        if self._extra:
            self._client.cancel(self._extra)
        fields = [self._rng.sample(SUBMITTED, 4) for _ in range(4)]
        self.values += sum(map(len, fields))
        lines = [f"submit {' '.join(f'{f}={self._mutator.text(ids, 900).hex()}' for f in some)}" for some in fields]
        self._extra = [number for number in self._writer.ask(lines) if number]

    def _listed(self) -> set[int]:
        """The jobs that there are: numbers only, which no text can look like."""
        argv = ["squeue", "-h", "-a", "-t", "all", "-o", "%A"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=clean_environment())
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
            if seen.reservations or len(seen.partitions) != 1:
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
        if true is None:
            if job.gpus or job.nodes:
                self._violation(f"{who}: GPUs of a job that waits", repr(job))
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
        chosen = [Chosen(f"n{i}", GPUS, 0.0, partitions=("gpu",)) for i in range(NODES)]
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
        argv = [self._plain, "--pal-dry-run", "--pal-json", "--gres=gpu:1", "--wrap", "true"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0 or "Error" in done.stderr or "plain sbatch" in done.stderr:
            self._violation("palsub", done.stderr or done.stdout)

    # -- what is wrong ---------------------------------------------------------------------------

    def _try(self, who: str, part: Callable[[], None]) -> None:
        try:
            part()
        except Exception as error:  # every one of them is what this program looks for
            if isinstance(error, SlurmError) and any(word in str(error) for word in AWAY):
                self.away += 1
            else:
                self._violation(who, traceback.format_exc())

    def _violation(self, what: str, details: str) -> None:
        self.violations.append(Violation(what, details))
        if len(self.violations) <= 20:
            print(f"round {self.rounds}: {what}: {details[:3000]}", file=sys.stderr)

    def end(self) -> None:
        self._writer.end()


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


def until(done: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline_s:
            raise SystemExit("the jobs of the lab did not start")
        time.sleep(0.05)


def memory_mib() -> float:
    """The largest memory that this process has held, by its own account: getrusage counts who started it, too."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024


@contextlib.contextmanager
def a_lab() -> Iterator[tuple[Lab, str]]:
    """A lab in a folder of its own; nothing of either stays."""
    folder = tempfile.mkdtemp(prefix="pal")
    try:
        lab = Lab.up(os.path.join(folder, "lab"), nodes=NODES, gpus=GPUS, seed=1, wait_s=120)
        try:
            yield lab, folder
        finally:
            lab.down()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to write and look")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--rounds", type=int, help="end after so many rounds")
    asked = parser.parse_args()
    started_s = time.monotonic()
    alone, found = parsers(asked.seed, min(2.0, asked.seconds / 20))
    with a_lab() as (lab, folder):
        fuzzer = Fuzzer(lab, folder, asked.seed, asked.jobs)
        until_s = time.monotonic() + asked.seconds
        died = False
        try:
            while time.monotonic() < until_s and (asked.rounds is None or fuzzer.rounds < asked.rounds):
                fuzzer.round()
        except SlurmError as error:  # of a queue that cannot be listed there is no truth to compare with
            died = True
            print(f"round {fuzzer.rounds}: {error}", file=sys.stderr)
        finally:
            fuzzer.end()
    violations = [*found, *fuzzer.violations]
    print(
        json.dumps(
            {
                "fuzzer": "facts", "inputs": fuzzer.inputs, "seconds": round(time.monotonic() - started_s, 1),
                "violations": len(violations), "memory_mib": round(memory_mib(), 1), "rounds": fuzzer.rounds,
                "parsers_alone": alone, "seed": asked.seed, "not_answered": fuzzer.away, "slurmctld_died": died,
            }
        )
    )  # fmt: skip
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
