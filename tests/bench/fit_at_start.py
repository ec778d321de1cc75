# SPDX-License-Identifier: MIT
"""What keeps sensitive jobs off slow nodes when Slurm itself starts the next job: the same jobs by several means, live.

    python tests/bench/fit_at_start.py [--arms stock,prefer,...] [--loads 0.9,1.1] [--seeds 1,2] [--jobs 220]

One lab; each arm of each workload has a partition of its own with 8 x 4 GPUs, two of its nodes slow (a sensitive job
takes 1.5 times as long there), and all get the same jobs at the same moments: 1, 2 or 4 GPUs of one node, 6 to 14 s
(--seconds), every other one sensitive. Jobs are sleeps. The arms:

stock     sbatch
prefer    --prefer of a feature of the slow or of the other nodes
weights   slow nodes have a higher Weight
exclude   sensitive jobs exclude the slow nodes, until `PATIENCE_SHARE` of the mean after a later job has started there
towards   insensitive jobs want a slow node (Constraint), until as long after a later job started elsewhere
both      the two of them
order     where the job that ends next is on a slow node, the first insensitive job that is as wide as the head stands
          before it (Nice); who ends next is known to the millisecond, which nobody knows of real jobs
tick      pal-rebalance beside it, with the settings given by --set KEY=VALUE
placebo   the same with shuffled scores

Ends with a row for each workload and arm; over six workloads or more with 95 % intervals by workload. `queued_slow` is
the share on slow nodes of those sensitive jobs that waited: what their submission decided does not count.
With --handover only the time is measured until a node that the head of the queue excludes is given to the next job.
With --twin no lab is started: the same jobs go through the twin of the simulator, arms stock, tick and placebo, in the
lab's time, or N times as long (--scale); there jobs come by palsub, which chooses for those that find free GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from slurm_pal.base.config import KEYS, Config, load
from slurm_pal.base.jobs import GpuShape
from slurm_pal.lab.conf import SCHEDULER
from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab
from slurm_pal.simulate.hardware import hardware
from slurm_pal.simulate.replay import ReplayPlan
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.statistics import summary
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.store.snapshot import GpuScore, publish
from slurm_pal.twin.run import Twin

NODES, GPUS, SLOW_NODES, SLOWDOWN = 8, 4, 2, 1.5
WIDTHS = (1, 2, 4)
PATIENCE_SHARE = 0.25  # of a job's time: half of what it loses on a slow node
LOOK_S = 0.25
QUEUED_S = 2.0  # a job that waited for longer was not started by its own submission
ARMS = ("stock", "prefer", "weights", "exclude", "towards", "both", "order", "tick", "placebo")
FAST, SLOW = "fast", "slow"
PARTITION = "PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO\n"


class Job(NamedTuple):
    at_s: float
    sensitive: bool
    gpus: int
    seconds: float


class Ran(NamedTuple):
    wait_s: float
    jct_s: float
    slow: bool


def draw(seed: int, count: int, load_wanted: float, seconds: tuple[float, float]) -> list[Job]:
    """Poisson arrivals; the load is that of the work on fast nodes."""
    rng = random.Random(seed)
    rate = load_wanted * NODES * GPUS / (statistics.fmean(WIDTHS) * statistics.fmean(seconds))
    at_s, jobs = 0.0, []
    for k in range(count):
        at_s += rng.expovariate(rate)
        jobs.append(Job(at_s, k % 2 == 0, rng.choice(WIDTHS), rng.uniform(*seconds)))
    rng.shuffle(jobs)
    moments = sorted(job.at_s for job in jobs)
    return [job._replace(at_s=at_s) for job, at_s in zip(jobs, moments, strict=True)]


class Stand:
    """One arm of one workload: a partition with its nodes and jobs."""

    def __init__(self, arm: str, seed: int, jobs: Sequence[Job], first: int, folder: str) -> None:
        self.arm, self.seed, self.jobs = arm, seed, jobs
        self.name, self.folder = f"{arm}{seed}", os.path.join(folder, f"{arm}{seed}")
        self.nodes = [f"n{first + k}" for k in range(NODES)]
        order = random.Random(seed).sample(range(NODES), NODES)
        self.slow = {self.nodes[k] for k in order[:SLOW_NODES]}
        self.believed = self.slow
        if arm == "placebo":
            self.believed = set(random.Random(1000 + seed).sample(self.nodes, SLOW_NODES))
        self.patience_s = PATIENCE_SHARE * statistics.fmean(job.seconds for job in jobs)
        self.ids: dict[int, int] = {}  # number -> job id
        self.submitted_s: dict[int, float] = {}
        self.ends: dict[int, tuple[str, float, float]] = {}  # number -> node, start, end
        self.passed_s: dict[int, float] = {}
        self.cleared: set[int] = set()
        self.lock = threading.Lock()
        if folder:
            os.mkdir(self.folder)

    def words(self, job: Job) -> list[str]:
        slow = ",".join(sorted(self.slow))
        if self.arm == "prefer":
            return [f"--prefer={FAST if job.sensitive else SLOW}"]
        found = []
        if self.arm in ("exclude", "both") and job.sensitive:
            found.append(f"--exclude={slow}")
        if self.arm in ("towards", "both") and not job.sensitive:
            found.append(f"--constraint={SLOW}")
        if self.arm in ("tick", "placebo"):
            found.append(f"--comment=pal:job={'A' if job.sensitive else 'C'};from=bench;mea=1")
        return found

    def submit(self, number: int, env: dict[str, str]) -> None:
        job = self.jobs[number]
        slow_s = job.seconds * (SLOWDOWN if job.sensitive else 1.0)
        script = (
            f"#!/bin/bash\nt={job.seconds:.3f}\n"
            f'case " {" ".join(self.slow)} " in *" $SLURMD_NODENAME "*) t={slow_s:.3f};; esac\n'
            f'echo "$SLURMD_NODENAME $EPOCHREALTIME $t" > {self.folder}/{number}.part\n'
            f"mv {self.folder}/{number}.part {self.folder}/{number}\nexec sleep $t\n"
        )
        words = ["sbatch", "--parsable", "-o", "/dev/null", "-p", self.name, "-N1", f"--gres=gpu:{job.gpus}", "-t", "1"]
        began_s = time.time()
        done = subprocess.run(
            [*words, *self.words(job)], input=script, env=env, capture_output=True, text=True, check=True
        )
        with self.lock:
            self.ids[number], self.submitted_s[number] = int(done.stdout.split(";")[0]), began_s

    def look(self) -> None:
        """Which jobs have started since."""
        with self.lock:
            missing = self.ids.keys() - self.ends.keys()
        for number in missing:
            with contextlib.suppress(FileNotFoundError):
                with open(os.path.join(self.folder, str(number)), encoding="utf-8") as stream:
                    node, start, lasts = stream.read().split()
                self.ends[number] = node, float(start), float(start) + float(lasts)

    def act(self, env: dict[str, str]) -> None:
        """What the arm does between submissions."""
        if self.arm in ("exclude", "both", "towards"):
            self._end_lists(env)
        if self.arm == "order":
            self._reorder(env)

    def _waiting(self) -> list[int]:
        with self.lock:
            return sorted(self.ids.keys() - self.ends.keys())

    def _end_lists(self, env: dict[str, str]) -> None:
        now_s = time.time()
        last = {
            where: max((n for n, (node, *_) in self.ends.items() if (node in self.slow) == where), default=-1)
            for where in (True, False)
        }
        for number in self._waiting():
            job = self.jobs[number]
            key = "ExcNodeList" if job.sensitive else "Features"
            if (self.arm, job.sensitive) in (("towards", True), ("exclude", False)) or number in self.cleared:
                continue
            if last[job.sensitive] > number:
                self.passed_s.setdefault(number, now_s)
            late = now_s - self.passed_s.get(number, now_s) >= self.patience_s
            if late and _order(env, self.ids[number], f"{key}="):
                self.cleared.add(number)

    def _reorder(self, env: dict[str, str]) -> None:
        now_s = time.time()
        ends = [(end_s, node) for node, _, end_s in self.ends.values() if end_s > now_s]
        queue = [n for n in self._waiting() if n not in self.cleared]
        if not ends or len(queue) < 2 or min(ends)[1] not in self.slow or not self.jobs[queue[0]].sensitive:
            return
        head = queue[0]
        for number in queue[1:]:
            if not self.jobs[number].sensitive and self.jobs[number].gpus == self.jobs[head].gpus:
                if _order(env, self.ids[number], f"Nice=-{1000 + len(self.jobs) - number}"):
                    self.cleared.add(number)
                return

    def ran(self) -> list[Ran]:
        found = []
        for number in range(len(self.jobs)):
            node, start_s, end_s = self.ends[number]
            submit_s = self.submitted_s[number]
            found.append(Ran(start_s - submit_s, end_s - submit_s, node in self.slow))
        return found


def _order(env: dict[str, str], job_id: int, change: str) -> bool:
    argv = ["scontrol", "update", f"JobId={job_id}", change]
    return subprocess.run(argv, env=env, capture_output=True, check=False).returncode == 0


def play(stands: Sequence[Stand], env: dict[str, str]) -> None:
    """Submit all jobs at their moments, let the arms act, and wait for the last start."""
    began_s = time.time()
    moments = sorted((job.at_s, k, number) for k, one in enumerate(stands) for number, job in enumerate(one.jobs))
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            for one in stands:
                one.look()
                one.act(env)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            sent = []
            for at_s, k, number in moments:
                time.sleep(max(0.0, began_s + at_s - time.time()))
                sent.append(pool.submit(stands[k].submit, number, env))
            for one in sent:
                one.result()
        limit_s = time.time() + 180
        while any(len(one.ends) < len(one.jobs) for one in stands):
            if time.time() > limit_s:
                raise SystemExit(f"jobs never started: { {one.name: len(one.jobs) - len(one.ends) for one in stands} }")
            time.sleep(LOOK_S)
    finally:
        over.set()
        watcher.join()


def prepare(stands: Sequence[Stand], env: dict[str, str]) -> None:
    """Features, weights and scores of the nodes."""
    for one in stands:
        for node in one.nodes:
            kind = SLOW if node in one.slow else FAST
            change = [f"AvailableFeatures={kind}", f"ActiveFeatures={kind}"]
            if one.arm == "weights":
                change.append(f"Weight={11 if kind == SLOW else 1}")
            subprocess.run(["scontrol", "update", f"NodeName={node}", *change], env=env, check=True)
    gpus = [
        GpuScore(node, k, f"{node}-{k}", "m", {"A": a, "B": a, "C": 1.0}, {"A": "v0"}, time.time(), 1.0, ())
        for one in stands for node in one.nodes for k in range(GPUS)
        for a in (SLOWDOWN if node in one.believed else 1.0,)
    ]  # fmt: skip
    path = load(env).snapshot_path
    publish(path, gpus, cluster="palab", epoch=1, now_s=time.time(), centroids={"A": [1.0, SLOWDOWN]})


@contextlib.contextmanager
def ticking(env: dict[str, str], every_s: float, folder: str) -> Iterator[None]:
    """A daemon that acts."""
    with open(os.path.join(folder, "tick.log"), "w", encoding="utf-8") as log:
        command = [program("pal-rebalance"), "--daemon", "--act", f"--every={every_s:g}"]
        tick = subprocess.Popen(command, env=env, stderr=log, stdout=subprocess.DEVNULL)
        try:
            time.sleep(3)
            yield
        finally:
            tick.terminate()
            tick.wait()


def row(one: Stand, ran: Sequence[Ran], stock: Sequence[Ran] | None, load_wanted: float) -> dict[str, object]:
    of = {s: [r for job, r in zip(one.jobs, ran, strict=True) if job.sensitive == s] for s in (True, False)}
    found: dict[str, object] = {
        "load": load_wanted, "seed": one.seed, "arm": one.arm, "jobs": len(ran),
        "sensitive_slow": round(statistics.fmean(r.slow for r in of[True]), 3),
        "insensitive_slow": round(statistics.fmean(r.slow for r in of[False]), 3),
        "queued_slow": round(statistics.fmean([r.slow for r in of[True] if r.wait_s > QUEUED_S] or [0.0]), 3),
        "wait_s": round(statistics.fmean(r.wait_s for r in ran), 2),
        "wait_sensitive_s": round(statistics.fmean(r.wait_s for r in of[True]), 2),
        "jct_s": round(statistics.fmean(r.jct_s for r in ran), 2),
    }  # fmt: skip
    if stock is not None:
        later = sorted(a.wait_s - b.wait_s for a, b in zip(ran, stock, strict=True))
        found["ratio"] = round(statistics.fmean(r.jct_s for r in ran) / statistics.fmean(r.jct_s for r in stock), 4)
        found["later_p95_s"], found["later_max_s"] = round(later[int(0.95 * len(later))], 2), round(later[-1], 2)
    return found


def expected(asked: argparse.Namespace) -> str:
    """Limits are a minute: what is expected of a job is a share of its limit."""
    return f"{statistics.fmean(asked.seconds) / 60:.3f}"


def chosen(asked: argparse.Namespace) -> list[tuple[str, str]]:
    """What --set says: (SECTION.KEY, value)."""
    pairs = (pair.partition("=") for pair in asked.set)
    return [(key if "." in key else f"rebalance.{key}", value) for key, _, value in pairs]


def _tables(nodes: Sequence[str], slow: Collection[str]) -> dict[str, list[list[float]]]:
    a = [[SLOWDOWN if node in slow else 1.0] * GPUS for node in nodes]
    return {"A": a, "B": a, "C": [[1.0] * GPUS for _ in nodes]}


def in_twin(
    arms: Sequence[str], seeds: Sequence[int], wanted: float, asked: argparse.Namespace
) -> list[dict[str, object]]:
    """The same by the twin."""
    config = Config()
    words = {"submit.expected_run_share": expected(asked), "rebalance.moves": "false"}
    words |= {"rebalance.interval_s": f"{asked.every}"} | {k: v for k, v in chosen(asked)}
    for name, text in words.items():
        section, _, key = name.partition(".")
        kind = type(KEYS[section][key].default)
        config.set(section, key, text == "true" if kind is bool else kind(text), "--set")
    rows = []
    for seed in seeds:
        stock: list[Ran] | None = None
        for arm in arms:
            one = Stand(arm, seed, draw(seed, asked.jobs, wanted, asked.seconds), 0, "")
            machine = hardware(_tables(one.nodes, one.slow), _tables(one.nodes, one.believed))
            n = asked.scale
            jobs = [
                TraceJob(str(k), n * job.at_s, GpuShape(job.gpus, nodes=1, per_node=job.gpus), n * job.seconds,
                         "A" if job.sensitive else "C", n * 60.0, movable=True)
                for k, job in enumerate(one.jobs)
            ]  # fmt: skip
            policy = "slurm-twin" if arm == "stock" else "tick"
            twin = Twin(config, {"SchedulerParameters": SCHEDULER} if n == 1 else {})
            trace = Trace("bench", tuple(jobs))
            done = twin.run(ReplayPlan(trace, machine, policy, settings=ReplaySettings(warmup_s=0.0)))
            ran = [
                Ran((o.start_s - o.submit_s) / n, (o.finish_s - o.submit_s) / n, bool(one.slow & set(o.nodes)))
                for o in sorted(done.outcomes, key=lambda o: int(o.job_id))
            ]
            stock = ran if arm == "stock" else stock
            rows.append(row(one, ran, stock, wanted))
    return rows


def run(arms: Sequence[str], seeds: Sequence[int], wanted: float, asked: argparse.Namespace) -> list[dict[str, object]]:
    """One lab, all arms of some workloads."""
    root = tempfile.mkdtemp(prefix="pal")
    try:
        stands = [
            Stand(arm, seed, draw(seed, asked.jobs, wanted, asked.seconds), NODES * (k + j * len(arms)), root)
            for j, seed in enumerate(seeds) for k, arm in enumerate(arms)
        ]  # fmt: skip
        lines = "".join(
            f"PartitionName={one.name} Nodes={','.join(one.nodes)} MaxTime=INFINITE State=UP OverSubscribe=NO\n"
            for one in stands
        )
        edits = [(PARTITION, PARTITION + lines)]
        if asked.bf_interval != 1:
            edits.append(("bf_interval=1", f"bf_interval={asked.bf_interval}"))
        with Lab.up(os.path.join(root, "lab"), nodes=NODES * len(stands), gpus=GPUS, conf_edits=edits) as lab:
            env = lab.environ() | {"SLURM_PAL_SUBMIT_EXPECTED_RUN_SHARE": expected(asked)}
            env |= {f"SLURM_PAL_{key.upper().replace('.', '_')}": value for key, value in chosen(asked)}
            prepare(stands, env)
            with contextlib.ExitStack() as stack:
                if {"tick", "placebo"} & set(arms):
                    stack.enter_context(ticking(env, asked.every, root))
                play(stands, env)
            if os.path.getsize(os.path.join(root, "tick.log")) if os.path.exists(os.path.join(root, "tick.log")) else 0:
                with open(os.path.join(root, "tick.log"), encoding="utf-8") as stream:
                    said = [line for line in stream if '"schema"' not in line]
                print("".join(said[:5]), end="")
        rows = []
        for seed in seeds:
            mine = [one for one in stands if one.seed == seed]
            stock = next((one.ran() for one in mine if one.arm == "stock"), None)
            rows += [row(one, one.ran(), stock, wanted) for one in mine]
        return rows
    finally:
        shutil.rmtree(root)


def handover(bf_interval: int, times: int) -> None:
    """How long a node that the head of the queue excludes stays idle until the next job starts there."""
    root = tempfile.mkdtemp(prefix="pal")
    try:
        edits = [("bf_interval=1", f"bf_interval={bf_interval}")]
        with Lab.up(os.path.join(root, "lab"), nodes=2, gpus=GPUS, conf_edits=edits) as lab:
            env = lab.environ()

            def submit(*words: str) -> str:
                argv = ["sbatch", "--parsable", "-o", "/dev/null", "-N1", f"--gres=gpu:{GPUS}", "-t", "60", *words]
                done = subprocess.run(
                    [*argv, "--wrap", "sleep 600"], env=env, capture_output=True, text=True, check=True
                )
                return done.stdout.strip()

            def until(job: str, state: str) -> None:
                argv = ["squeue", "-h", "-j", job, "-o", "%T"]
                while subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.strip() != state:
                    time.sleep(0.05)

            for excludes in (False, True):
                taken_s = []
                for _ in range(times):
                    full = [submit("-w", node) for node in ("n0", "n1")]
                    for job in full:
                        until(job, "RUNNING")
                    head, second = submit(*(["-x", "n0"] if excludes else [])), submit()
                    time.sleep(2)
                    began_s = time.monotonic()
                    subprocess.run(["scancel", full[0]], env=env, check=True)
                    until(second if excludes else head, "RUNNING")
                    taken_s.append(round(time.monotonic() - began_s, 2))
                    subprocess.run(["scancel", full[1], head, second], env=env, check=True)
                    while subprocess.run(["squeue", "-h"], env=env, capture_output=True, check=True).stdout.strip():
                        time.sleep(0.2)
                found = {"bf_interval": bf_interval, "head_excludes": excludes, "next_start_s": taken_s}
                print(json.dumps(found), flush=True)
    finally:
        shutil.rmtree(root)


def summed_up(rows: Sequence[dict[str, object]]) -> None:
    """Each arm over all workloads; the same jobs at several loads are one."""
    for arm in dict.fromkeys(str(r["arm"]) for r in rows):
        mine = [r for r in rows if r["arm"] == arm]
        shares = " ".join(
            f"{key} {statistics.fmean(float(str(r[key])) for r in mine):.3f}"
            for key in ("sensitive_slow", "queued_slow", "insensitive_slow", "wait_s", "jct_s")
        )
        seeds = dict.fromkeys(r["seed"] for r in mine)
        ratios = [statistics.fmean(float(str(r["ratio"])) for r in mine if r["seed"] == seed) for seed in seeds]
        found = summary(ratios)
        between = f" [{found.low:.3f}, {found.high:.3f}]" if found.low is not None else ": cannot tell"
        print(f"{arm}: {len(ratios)} workloads: {shares} ratio {found.mean:.3f}{between}", flush=True)


def _range(text: str) -> tuple[float, float]:
    first, _, last = text.partition("-")
    return float(first), float(last or first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", default="stock,prefer,weights,exclude,towards")
    parser.add_argument("--loads", default="0.9,1.1")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--together", type=int, default=1, help="workloads in one lab")
    parser.add_argument("--jobs", type=int, default=220)
    parser.add_argument("--seconds", type=_range, default=(6.0, 14.0), help="of a job, FROM-TO")
    parser.add_argument("--every", type=float, default=1.0, help="s between two ticks")
    parser.add_argument("--bf-interval", type=int, default=1)
    parser.add_argument("--handover", type=int, default=0, metavar="TIMES")
    parser.add_argument("--twin", action="store_true")
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="[SECTION.]KEY=VALUE", help="of pal.toml")
    asked = parser.parse_args()
    arms, seeds = asked.arms.split(","), [int(text) for text in asked.seeds.split(",")]
    if asked.handover:
        return handover(asked.bf_interval, asked.handover)
    if (unknown := set(arms) - set(ARMS)) or "stock" not in arms:
        parser.error(f"unknown arms {sorted(unknown)}, or none is stock: {', '.join(ARMS)}")
    rows = []
    for wanted in map(float, asked.loads.split(",")):
        for k in range(math.ceil(len(seeds) / asked.together)):
            for found in (in_twin if asked.twin else run)(
                arms, seeds[k * asked.together : (k + 1) * asked.together], wanted, asked
            ):
                rows.append(found)
                print(json.dumps(found), flush=True)
    summed_up(rows)


if __name__ == "__main__":
    main()
