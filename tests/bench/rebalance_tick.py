# SPDX-License-Identifier: MIT
"""What one tick of pal-rebalance costs on a large cluster: time, memory, questions to Slurm.

    python tests/bench/rebalance_tick.py [--nodes 1000] [--gpus 4] [--pending 5000] [--repeats 3] [--advise]
                                         [--keep] [--scenes full,busy,free,slurm] [--profile FILE]

One JSON line for each scene and tick, medians over processes. `full`, `busy` and `free` are
made-up answers of Slurm, as text: 1, 20 and 90 % of the GPUs are free, all pending jobs are
palsub's and wait for GPUs, all running ones may be moved and report their progress.
Orders are obeyed at once; the tick after the first finds its node lists on the jobs.
`slurm` is a real slurmctld of nodes that never come up (State=CLOUD), filled with jobs that
wait for them for ever: a full cluster, whose sdiag counts the RPCs. Its last line has what
one order takes.

With --keep each tick is kept, too, and decided again: keep_mib and again_s, identical.

Each line: tick_s (wall) and cpu_s of the tick, parts_s, most_mib (peak of the process),
queries and orders (processes started), answer_mib, and what was decided.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import math
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from slurm_pal.base import config as settings
from slurm_pal.base.hostlist import fold
from slurm_pal.journal.event_log import EventLog
from slurm_pal.journal.journal import open_journal
from slurm_pal.lab.conf import LabSpec, config_files, node_names
from slurm_pal.lab.crew import Crew
from slurm_pal.lab.daemons import munged_argv
from slurm_pal.lab.directory import LabDirectory
from slurm_pal.lab.ports import free_blocks, is_listening
from slurm_pal.lab.processes import stop
from slurm_pal.lab.programs import account_name, find_programs, slurm_version
from slurm_pal.moves.mover import Mover
from slurm_pal.publisher.publication import Publisher
from slurm_pal.slurm import told
from slurm_pal.slurm.cli import CliClient, subprocess_runner
from slurm_pal.slurm.client import Completed, Runner
from slurm_pal.slurm.counted import Counted
from slurm_pal.slurm.question import started
from slurm_pal.store import snapshot
from slurm_pal.tick import deciding, kept, pace, tick
from slurm_pal.tick.again import again
from slurm_pal.tick.intake import Intake
from slurm_pal.tick.keeping import Keeper
from slurm_pal.tick.role import role_of
from slurm_pal.tick.tick import Tick
from slurm_pal.tick.wishes import Hand

P, R = ParamSpec("P"), TypeVar("R")
FREE = {"full": 0.01, "busy": 0.20, "free": 0.90}
"""Share of the GPUs that no job has."""
INTERVAL_S = 15.0
ORDERS = 100
PARTS: dict[str, tuple[tuple[Any, str], ...]] = {
    "statistics": ((CliClient, "statistics"),),
    "overview": ((CliClient, "overview"),),
    "table": ((Publisher, "serve"),),
    "intake": ((Intake, "take"),),
    "learning": ((pace, "look"), (deciding.learning, "corrected")),
    "steered": ((deciding, "steered"),),
    "retarget": ((deciding, "retarget"),),
    "plan": ((deciding, "plan"),),
    "decide": ((deciding.Decider, "decide"),),
    "keep": ((Keeper, "keep"),),
    "wishes": ((Hand, "carry_out"),),
    "moves": ((Mover, "start"),),
    "remember": ((Tick, "_remember"), (Tick, "_end_leases")),
}
"""What is timed; `decide` holds learning, steered, retarget and plan."""

_NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=64  CPUAlloc={cpus} CPUEfctv=64 CPUTot=64 CPULoad=4.20 "
    "AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:{gpus} GresDrain=N/A GresUsed=gpu:{used}(IDX:{indexes}) "
    "NodeAddr=10.0.0.1 NodeHostName={name} Port=6818 Version=22.05.8 OS=Linux 6.1.0 #1 SMP @0  RealMemory=512000 "
    "AllocMem={memory} FreeMem=22672 Sockets=1 Boards=1 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A "
    "MCS_label=N/A Partitions=gpu  BootTime=2026-11-20T21:05:16 SlurmdStartTime=2026-11-20T21:54:18 "
    "LastBusyTime=2026-11-20T21:54:19 CfgTRES=cpu=64,mem=500G,billing=64 AllocTRES=cpu={cpus} CapWatts=n/a "
    "CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s "
)
_JOB = (
    "JobId={job_id} JobName={name} UserId={user}(1000) GroupId=users(100) MCS_label=N/A Priority={priority} Nice=0 "
    "Account=(null) QOS=(null) JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 "
    "Reboot=0 ExitCode=0:0 DerivedExitCode=0:0 RunTime=00:00:00 TimeLimit=1-00:00:00 TimeMin=N/A SubmitTime={submit} "
    "EligibleTime={submit} AccrueTime={submit} StartTime={start} EndTime={end} Deadline=N/A SuspendTime=None "
    "SecsPreSuspend=0 LastSchedEval={submit} Scheduler=Main Partition=gpu AllocNode:Sid=login:4711 ReqNodeList={req} "
    "ExcNodeList={exc} NodeList={nodes} {batch}NumNodes={count} NumCPUs={cpus} NumTasks={tasks} CPUs/Task=4 "
    "ReqB:S:C:T=0:0:*:* TRES=cpu={cpus},mem={memory}M,node={count},billing={cpus} Socks/Node=* "
    "NtasksPerN:B:S:C=0:0:*:* CoreSpec=* {layout}MinCPUsNode=4 MinMemoryNode=16000M MinTmpDiskNode=0 Features=(null) "
    "DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null) "
    "Command=/home/{user}/project/train.sh WorkDir=/home/{user}/project AdminComment={admin} Comment={comment} "
    "StdErr=/home/{user}/project/slurm-{job_id}.out StdIn=/dev/null StdOut=/home/{user}/project/slurm-{job_id}.out "
    "Power= TresPerNode=gres:gpu:{gpus} "
)


class Job(NamedTuple):
    """One made-up job; `held` is empty while it waits."""

    job_id: int
    user: str
    name: str
    sensitivity: str
    nodes: int
    gpus: int  # on each node
    held: dict[str, tuple[int, ...]]
    submit_s: float
    step_s: float


class MadeUp:
    """A runner that answers for a cluster of `nodes` nodes and takes node lists for jobs."""

    def __init__(self, nodes: int, gpus: int, pending: int, free: float, now_s: float) -> None:
        self._names, self._gpus, self.now_s = node_names(nodes), gpus, now_s
        self._changed: dict[int, dict[str, str]] = defaultdict(dict)
        rng = random.Random(nodes + pending)
        self.slowdown = {
            (name, k): rng.gauss(1.0, 0.02) + (0.4 if rng.random() < 0.02 else 0.0)
            for name in self._names
            for k in range(gpus)
        }
        self._jobs = list(self._running(rng, free))
        first = len(self._jobs) + 1
        self._jobs += [self._job(rng, first + k, {}, *_shape(rng, gpus)) for k in range(pending)]
        self._sections: dict[str, bytes] = {}
        self._rows: list[dict[str, str]] = []
        self._listed: tuple[str, bytes] = "", b""

    def _running(self, rng: random.Random, free: float) -> Iterator[Job]:
        """Jobs on nodes in a random order, until no more than the free share is left."""
        left = {name: list(range(self._gpus)) for name in self._names}
        order = rng.sample(self._names, len(self._names))
        to_take = math.ceil((1 - free) * len(order) * self._gpus)
        job_id = 0
        while to_take > 0:
            count, gpus = _shape(rng, self._gpus)
            fitting = [name for name in order if len(left[name]) >= gpus][:count]
            if len(fitting) < count or count * gpus > to_take:
                count, gpus = 1, 1
                fitting = [name for name in order if left[name]][:1]
            held = {name: tuple(left[name][:gpus]) for name in fitting}
            for name in fitting:
                del left[name][:gpus]
            job_id, to_take = job_id + 1, to_take - count * gpus
            yield self._job(rng, job_id, held, count, gpus)

    def _job(self, rng: random.Random, job_id: int, held: dict[str, tuple[int, ...]], count: int, gpus: int) -> Job:
        factor = max((self.slowdown[name, k] for name, row in held.items() for k in row), default=1.0)
        user, kind = f"user{rng.randrange(40)}", rng.randrange(5)
        sensitivity = rng.choices("ABC", [5, 3, 2])[0]
        submit_s = self.now_s - rng.uniform(3600, 40000)
        step_s = (1 + kind) * factor * rng.gauss(1.0, 0.02)
        return Job(job_id, user, f"train{kind}", sensitivity, count, gpus, held, submit_s, step_s)

    # -- answers ---------------------------------------------------------------------------------

    def __call__(self, argv: Sequence[str], stdin: str) -> Completed:
        text = ""
        if argv[0] == "sdiag":
            text = "Server thread count: 3\nAgent queue size: 0\n"
        elif argv[:3] == ["scontrol", "show", "config"]:
            text = f"SlurmUser = {account_name()}({os.geteuid()})\nSchedulerParameters = (null)\n"
        elif argv[:2] == ["scontrol", "update"]:
            pairs = dict(word.partition("=")[::2] for word in argv[2:])
            self._changed[int(pairs.pop("JobId"))].update(pairs)
        elif list(argv) == ["scontrol", "-d", "-o"]:
            shown = (line.split()[1:] for line in stdin.splitlines() if line.startswith("show "))
            parts = (self._sections.get(kind, b"") or f"{''.join(more)}\n".encode() for kind, *more in shown)
            text = b"".join(parts).decode(errors="replace")  # as subprocess_runner does it
        elif argv[0] == "squeue":
            text = self._squeue(argv[argv.index("-O") + 1])
        return Completed(0, text, "")

    def _squeue(self, form: str) -> str:
        """The rows, as they were prepared for the fields that are always asked for, with this question's words."""
        asked = [one.split(":", 1) for one in form.split(",")]
        end, stop = asked[0][1], asked[-1][1]
        fields = ",".join(field for field, _ in asked)
        if self._listed[0] != fields:
            lines = ("\0".join(row.get(field, "(null)") for field, _ in asked) + "\1\n" for row in self._rows)
            self._listed = fields, "".join(lines).encode()
        return self._listed[1].replace(b"\0", end.encode()).replace(b"\1", stop.encode()).decode(errors="replace")

    def prepare(self, now_s: float) -> None:
        """Make the answer to the large question beforehand, as the jobs are at `now_s`."""
        self.now_s = now_s
        lines: dict[str, list[str]] = defaultdict(list)
        for line in self._lines():
            lines[{"N": "node", "P": "partition"}.get(line[0], "job")].append(f"{line}\n")
        self._sections = {kind: "".join(some).encode() for kind, some in lines.items()}
        self._listed = "", b""
        self._rows = [self._row(job) for job in self._jobs]
        self._squeue(",".join(f"{field}:" for field in told.ALL))

    def _lines(self) -> Iterator[str]:
        used: dict[str, list[int]] = defaultdict(list)
        for job in self._jobs:
            for name, row in job.held.items():
                used[name] += row
        for name in self._names:
            taken = sorted(used[name])
            state = "ALLOCATED" if len(taken) == self._gpus else "MIXED" if taken else "IDLE"
            yield _NODE.format(
                name=name, gpus=self._gpus, used=len(taken), indexes=",".join(map(str, taken)) or "N/A",
                cpus=4 * len(taken), memory=16000 * len(taken), state=state,
            )  # fmt: skip
        yield (
            f"PartitionName=gpu AllowGroups=ALL Default=YES DefaultTime=NONE MaxTime=UNLIMITED "
            f"Nodes={fold(list(self._names))} State=UP TotalNodes={len(self._names)}"
        )
        for job in self._jobs:
            yield self._line(job)

    def _comment(self, job: Job) -> str:
        comment = f"pal:job={job.sensitivity};from=--pal-class;mov=1;ck=1;lost=600;app=1"
        if job.held:
            done = int((self.now_s - job.submit_s) / job.step_s)
            comment += f" pal:it={done};of={2 * done};at={self.now_s:.0f};r=0"
        return comment

    def _row(self, job: Job) -> dict[str, str]:
        """What squeue shows of a job."""
        return {
            "jobid": str(job.job_id), "userid": "1000", "nodelist": fold(list(job.held)) if job.held else "",
            "name": job.name, "allocnodes": "login", "state": "RUNNING" if job.held else "PENDING",
            "comment": self._comment(job), "tres-per-node": f"gres:gpu:{job.gpus}", "reqswitch": "0",
            "admin_comment": self._changed[job.job_id].get("AdminComment") or "(null)",
        }  # fmt: skip

    def _line(self, job: Job) -> str:
        runs, changed, tasks = bool(job.held), self._changed[job.job_id], job.nodes * job.gpus
        comment = self._comment(job)
        layout = f"JOB_GRES=gpu:{tasks}   "
        for number, (name, row) in enumerate(job.held.items()):
            layout += f"Nodes={name} CPU_IDs={4 * number}-{4 * number + 3} Mem=16000 GRES=gpu:{len(row)}(IDX:"
            layout += f"{','.join(map(str, row))})   "
        held = list(job.held)
        started, ends = (stamp(job.submit_s + s) if runs else "Unknown" for s in (60, 86460))
        return _JOB.format(
            job_id=job.job_id, name=job.name, user=job.user, priority=4294901759 - job.job_id,
            state="RUNNING" if runs else "PENDING", reason="None" if runs else "Priority", submit=stamp(job.submit_s),
            start=started, end=ends, req=changed.get("ReqNodeList") or "(null)",
            exc=changed.get("ExcNodeList") or "(null)", nodes=fold(held) if runs else "",
            batch=f"BatchHost={held[0]} " if runs else "", count=job.nodes if runs else f"{job.nodes}-{job.nodes}",
            cpus=4 * tasks, tasks=tasks, memory=16000 * job.nodes, layout=layout if runs else "",
            admin=changed.get("AdminComment") or "(null)", comment=comment, gpus=job.gpus,
        )  # fmt: skip


def _shape(rng: random.Random, gpus: int) -> tuple[int, int]:
    """(nodes, GPUs on each): most jobs are small."""
    total = rng.choices([1, 2, 4, 8, 16], [40, 20, 25, 10, 5])[0]
    return max(1, total // gpus), min(total, gpus)


def stamp(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))


# -- a real slurmctld ----------------------------------------------------------------------------


class Controller:
    """A slurmctld whose nodes are all given to jobs that wait for them to power up."""

    WORDS = "pal:job={};from=--pal-class;mov=1;ck=1;lost=600;app=1"

    def __init__(self, root: str, nodes: int, gpus: int) -> None:
        d = LabDirectory(os.path.join(root, "ctld"))
        os.makedirs(d.path)
        d.make_rooms(gpus)
        programs = find_programs()
        port = next(free_blocks(2, d.path))
        spec = LabSpec(d, nodes, gpus, 64, 512000, account_name(), port, slurm_version(programs["slurmctld"]))
        for file, text in config_files(spec).items():
            Path(d("etc", file)).write_text(_in_the_cloud(text, port) if file == "slurm.conf" else text)
        key = Path(d("etc", "munge.key"))
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.crew = Crew(d)
        self.environment = os.environ | {"SLURM_CONF": d.conf}
        self.crew.spawn("munged", munged_argv(programs["munged"], d))
        wait(lambda: os.path.exists(d.munge_socket))
        self.crew.spawn("slurmctld", [programs["slurmctld"], "-D", "-f", d.conf])
        wait(lambda: is_listening(port))

    def fill(self, nodes: int, gpus: int, pending: int) -> None:
        """One job on each node, and so many that wait for one."""
        whole = (f"--gres=gpu:{gpus}", "--mem=1000")
        for number in range(nodes):
            self._submit(number, *whole)
        wait(lambda: not self.run("sinfo", "-h", "-t", "idle", "-o", "%n").strip(), 300.0)
        for number in range(pending):
            self._submit(number, f"--gres=gpu:{1 + number % gpus}", "--mem=1000")

    def _submit(self, number: int, *words: str) -> None:
        comment = self.WORDS.format("ABC"[number % 3])
        argv = ("sbatch", "-o", "/dev/null", "--time=600", f"--comment={comment}", *words, "--wrap=true")
        self.run(*argv)

    def order_s(self, count: int) -> float:
        """What one node list for one job takes, as the tick sets it: the median over so many jobs."""
        client, took = CliClient(subprocess_runner(15.0, self.environment)), []
        for job_id in self.run("squeue", "-h", "-t", "PENDING", "-o", "%A").split()[:count]:
            started = time.perf_counter()
            client.update_job(int(job_id), ExcNodeList="n0", AdminComment="pal:ev=1700000000;what=exclude;set=n0")
            took.append(time.perf_counter() - started)
        return float(f"{statistics.median(took):.4g}")

    def run(self, *argv: str) -> str:
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=True).stdout

    def end(self) -> None:
        stop(self.crew.processes(), 3.0, self.crew.reap)


def _in_the_cloud(text: str, port: int) -> str:
    """A node that is powered down is given to a job at once, and nobody ever powers it up.

    slurmctld schedules as often as by default: every second, as in a lab, it would do nothing else.
    """
    text = re.sub(r"Port=\[.*?\]", f"Port={port + 1}", text).replace("State=UNKNOWN", "State=CLOUD")
    text = re.sub(r"(?m)^SchedulerParameters=.*\n", "", text)
    power = (
        "PrivateData=cloud\nSuspendProgram=/bin/true\nResumeProgram=/bin/true\nSuspendTime=36000\n"
        "ResumeTimeout=36000\nResumeRate=0\n"
    )
    return re.sub(r"(?m)^NodeName=", f"{power}NodeName=", text)


def wait(done: Callable[[], object], limit_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline_s:
            raise SystemExit("a daemon did not start, or the nodes were not taken")
        time.sleep(0.05)


# -- one process ---------------------------------------------------------------------------------


class Watch:
    """Seconds spent in each part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        for part, places in PARTS.items():
            for owner, name in places:
                setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, function: Callable[P, R]) -> Callable[P, R]:
        def timed(*args: P.args, **words: P.kwargs) -> R:
            started = time.perf_counter()
            try:
                return function(*args, **words)
            finally:
                self.seconds[part] += time.perf_counter() - started

        return timed


class Sized:
    """Runs through another runner, and notes how long each answer is, MiB."""

    def __init__(self, runner: Runner, seen: list[float]) -> None:
        self._runner, self._seen = runner, seen

    def __call__(self, argv: Sequence[str], stdin: str) -> Completed:
        return self.start(argv, stdin)()

    def start(self, argv: Sequence[str], stdin: str) -> Callable[[], Completed]:
        wait = started(self._runner, argv, stdin)

        def answer() -> Completed:
            done = wait()
            self._seen.append(len(done.stdout) / 2**20)
            return done

        return answer


def rpcs(runner: Runner) -> Counter[str]:
    """RPCs of each kind that slurmctld has answered."""
    found = re.findall(r"^\s+([A-Z_]+)\s+\(\s*\d+\)\s+count:(\d+)", runner(["sdiag"], "").stdout, re.MULTILINE)
    return Counter({name: int(count) for name, count in found})


def publish_scores(path: str, slowdown: dict[tuple[str, int], float], now_s: float) -> None:
    scores = [
        snapshot.GpuScore(
            name, k, f"{name}-{k}", "m", {"A": a, "B": 1 + (a - 1) / 3, "C": 1.0},
            {"A": "v3" if a > 1.2 else f"v{int(a > 1) + int(a > 1.02)}", "B": "v0", "C": "v0"}, now_s - 3600, 0.9, (),
        )
        for (name, k), a in slowdown.items()
    ]  # fmt: skip
    centroids = {"A": [0.98, 1.01, 1.03, 1.4], "B": [1.0], "C": [1.0]}
    snapshot.publish(path, scores, cluster="bench", epoch=1, now_s=now_s, centroids=centroids)


def child(args: argparse.Namespace) -> None:
    """Two ticks of one scene in this process; one JSON line for each."""
    now_s, watch = time.time(), Watch()
    made = MadeUp(args.nodes, args.gpus, args.pending, FREE.get(args.child, 0.0), now_s)
    runner: Runner = made if args.child in FREE else subprocess_runner(15.0)
    seen: list[float] = []

    config = settings.load()
    os.makedirs(config.state_dir, exist_ok=True)
    publish_scores(config.snapshot_path, made.slowdown, now_s)
    counted = Counted(Sized(runner, seen))
    client = CliClient(counted)
    publisher = Publisher(config, client, stays=True)
    role = role_of(client, publisher.known_site(now_s).pairs, False)
    log = EventLog(os.path.join(config.state_dir, "log"), echo=False)
    with open_journal(os.path.join(config.state_dir, "rebalance.db")) as journal:
        folder = os.path.join(config.state_dir, "kept")
        keeper = Keeper(folder, 1024, now_s) if args.keep else None
        one = Tick(config, client, counted, journal, role, publisher, log, act=not args.advise, keeper=keeper)
        profile = cProfile.Profile() if args.profile else None
        before_mib = peak_mib()
        for number in range(args.ticks):
            at_s = now_s + number * INTERVAL_S
            made.prepare(at_s)
            before = rpcs(runner)
            watch.seconds.clear()
            seen.clear()
            wall, cpu = time.perf_counter(), time.process_time()
            if profile:
                profile.enable()
            outcome = one.run(at_s)
            if profile:
                profile.disable()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            line = told_of(outcome, number, wall, cpu, watch, sum(seen), before_mib)
            asked = rpcs(runner) - before - Counter({"REQUEST_STATS_INFO": 1})  # our own look
            line |= again_of(folder, number + 1) if keeper else {}
            print(json.dumps(line | {"rpcs": dict(asked)}))
        if profile:
            profile.dump_stats(args.profile)


def told_of(
    outcome: tick.TickResult, number: int, wall: float, cpu: float, watch: Watch, answer_mib: float, before_mib: float
) -> dict[str, object]:
    decided = outcome.decided
    actions = Counter(wish.action for wish in decided.wishes)
    found = decided.steered
    return {
        "tick": number + 1, "tick_s": wall, "cpu_s": cpu, "parts_s": dict(watch.seconds), "most_mib": peak_mib(),
        "before_mib": before_mib, "queries": outcome.queries, "orders": outcome.orders, "answer_mib": answer_mib,
        "waiting": len(found.waiting) if found else 0, "running": len(found.running) if found else 0,
        "wishes": dict(actions), "moves": len(decided.plan.moves) if decided.plan else 0,
        "trouble": list(outcome.trouble)[:3], "paused": outcome.paused,
    }  # fmt: skip


def again_of(folder: str, number: int) -> dict[str, object]:
    """What the kept tick takes on the disk, with its own parts; and deciding it again."""
    mib = sum(path.stat().st_size for path in Path(folder).iterdir()) / 2**20
    started_s = time.process_time()
    found = again(kept.read_tick(folder, number))
    return {"keep_mib": mib, "again_s": time.process_time() - started_s, "identical": found.identical}


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# -- all of them -----------------------------------------------------------------------------------


def measured(scene: str, args: argparse.Namespace, environment: dict[str, str]) -> list[dict[str, Any]]:
    """The lines of one process."""
    with tempfile.TemporaryDirectory(prefix="pal") as folder:
        argv = [sys.executable, __file__, "--child", scene]
        for name in ("nodes", "gpus", "pending", "ticks"):
            argv += [f"--{name}", str(getattr(args, name))]
        argv += ["--advise"] if args.advise else []
        argv += ["--keep"] if args.keep else []
        argv += ["--profile", f"{args.profile}.{scene}"] if args.profile else []
        env = environment | {"SLURM_PAL_PATHS_STATE_DIR": folder}
        done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def median_line(scene: str, lines: Sequence[dict[str, Any]]) -> dict[str, object]:
    """Of the same tick of several processes: medians of the times and sizes; counts are the same in all."""

    def median(values: Sequence[float]) -> float:
        return float(f"{statistics.median(values):.4g}")

    found: dict[str, object] = {"scene": scene, "repeats": len(lines)}
    for key, value in lines[0].items():
        if key == "parts_s":
            found[key] = {part: median([line[key].get(part, 0.0) for line in lines]) for part in value}
        elif isinstance(value, float):
            found[key] = median([line[key] for line in lines])
        else:
            found[key] = value
    return found


def real(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    root = tempfile.mkdtemp(prefix="pal")
    controller = Controller(root, args.nodes, args.gpus)
    try:
        controller.fill(args.nodes, args.gpus, args.pending)
        runs = [measured("slurm", args, controller.environment) for _ in range(args.repeats)]
        for number in range(args.ticks):
            yield median_line("slurm", [run[number] for run in runs])
        yield {"scene": "slurm", "orders": ORDERS, "order_s": controller.order_s(ORDERS)}
    finally:
        controller.end()
        shutil.rmtree(root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=4, help="per node")
    parser.add_argument("--pending", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ticks", type=int, default=2, help="in each process")
    parser.add_argument("--scenes", default="full,busy,free,slurm")
    parser.add_argument("--advise", action="store_true", help="only look")
    parser.add_argument("--keep", action="store_true", help="keep the ticks, and decide them again")
    parser.add_argument("--profile", help="write cProfile's figures beside; times are then too long")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
        return
    for scene in args.scenes.split(","):
        if scene == "slurm":
            for line in real(args):
                print(json.dumps(line), flush=True)
            continue
        runs = [measured(scene, args, dict(os.environ)) for _ in range(args.repeats)]
        for number in range(args.ticks):
            print(json.dumps(median_line(scene, [run[number] for run in runs])), flush=True)


if __name__ == "__main__":
    main()
