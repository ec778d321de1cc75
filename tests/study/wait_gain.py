# SPDX-License-Identifier: MIT
"""What `rebalance.wait` is worth: the tick with and without it, of stock Slurm, in the twin.

    python tests/study/wait_gain.py [--traces DIR] [--made 8] [--jobs 120] [--slow-nodes 2] [--no-placebo] [--seeds 1]

For each trace and seed five runs on the same GPUs: stock Slurm, the tick without and with waits behind a fence, and
the same two with shuffled scores, the placebo. Nothing moves. Prints a row for each, how the waits ended, and ratios
of mean JCT: means of logs by trace, with 95 % intervals over traces (t), since seeds of one trace are no independent
pieces. `--traces` has Sia's files (workload-*.csv), for 16 x 4 GPUs; made-up traces have 3 % of the GPUs at 1.5x, or
with `--slow-nodes` all GPUs of so many nodes, as under a power cap. Jobs state their nodes.
"""

from __future__ import annotations

import argparse
import glob
import json
import math
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.base.jobs import GpuShape
from slurm_pal.simulate.experiment import SHUFFLED, TRUE, Experiment, ReplayTask
from slurm_pal.simulate.fitting import fit
from slurm_pal.simulate.inputs import ReaderOptions, read
from slurm_pal.simulate.inputs.generate import TraceSpec, generate
from slurm_pal.simulate.metrics import measure
from slurm_pal.simulate.profiles import Drawn, Fixed, SlowShare, Source, profile_of
from slurm_pal.simulate.trace import Trace
from slurm_pal.simulate.virtual import parse_cluster
from slurm_pal.twin import virtual_slurm
from slurm_pal.twin.room import Take
from slurm_pal.twin.run import Twin
from slurm_pal.twin.virtual_job import VirtualJob
from slurm_pal.twin.virtual_slurm import VirtualSlurm

T95 = (math.nan, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20)
ARMS = (("slurm-twin", False, TRUE), ("tick", False, TRUE), ("tick", True, TRUE), ("tick", False, SHUFFLED),
        ("tick", True, SHUFFLED))  # fmt: skip
NAMES = ("stock", "tick", "tick+wait", "tick, shuffled", "tick+wait, shuffled")


class Fence(NamedTuple):
    """One fence: when it was set and when it ends by itself, s."""

    job_id: int
    set_s: float
    until_s: float


class Watched(VirtualSlurm):
    """Notes what becomes of the jobs behind fences."""

    fences: list[Fence] = []
    started: dict[int, float] = {}

    def reserve(self, name: str, nodes: Sequence[str], after_s: float, lasts_s: float) -> None:
        super().reserve(name, nodes, after_s, lasts_s)
        self.fences.append(Fence(int(name.split("_")[2]), self.now_s, self.now_s + after_s + lasts_s))

    def _start(self, job: VirtualJob, partition: str, takes: Sequence[Take]) -> None:
        super()._start(job, partition, takes)
        self.started.setdefault(job.job_id, self.now_s)


def stated(trace: Trace, per_node: int) -> Trace:
    """Every job states its nodes: those on an open number are left to Slurm, and would never wait."""

    def shape(gpus: int) -> GpuShape:
        nodes = next(n for n in range(-(-gpus // per_node), gpus + 1) if gpus % n == 0)
        return GpuShape(gpus, nodes, gpus // nodes)

    return trace._replace(jobs=tuple(job._replace(shape=shape(job.shape.total)) for job in trace.jobs))


def cases(asked: argparse.Namespace) -> Iterator[tuple[str, Experiment]]:
    cluster = parse_cluster("16x4")
    made: list[tuple[Trace, SlowShare, Source]] = []
    for path in sorted(glob.glob(os.path.join(asked.traces, "workload-*.csv"))) if asked.traces else ():
        made.append((read(path, "auto", ReaderOptions()), SlowShare(), profile_of(asked.profile or "drawn")))
    for seed in range(1, asked.made + 1):
        trace = generate(TraceSpec(jobs=asked.jobs, seed=seed, load=asked.load, cluster_gpus=64))
        if asked.slow_nodes:
            slow = set(random.Random(seed).sample(range(16), asked.slow_nodes))
            row = tuple(1.5 if gpu // cluster.per_node in slow else 1.0 for gpu in range(cluster.n_gpus))
            made.append((trace, SlowShare(), Fixed({**dict.fromkeys("AB", row), "C": (1.0,) * 64}, "slow nodes")))
        else:
            made.append((trace, SlowShare(0.03, 1.5), Drawn()))
    for trace, share, source in made:
        fitted = fit(stated(trace, cluster.per_node), cluster)
        yield trace.name, Experiment((fitted.trace,), fitted.cluster, source=source, slow=share)


def run(experiment: Experiment, seed: int, number: int, asked: argparse.Namespace) -> dict[str, float]:
    policy, waits, scores = ARMS[number]
    config = Config()
    for section, key, value in (
        ("rebalance", "interval_s", asked.interval), ("rebalance", "moves", False), ("rebalance", "wait", waits),
        ("rebalance", "wait_max_s", asked.longest),
    ):  # fmt: skip
        config.set(section, key, value, "the study")
    Watched.fences, Watched.started = [], {}
    began_s = time.process_time()
    m = measure(experiment._replace(program=Twin(config)).run(ReplayTask(policy, seed, scores=scores)))
    ends = [(fence, Watched.started.get(fence.job_id, math.inf)) for fence in Watched.fences]
    return {
        "jct_s": m.mean_jct_s, "wait_s": m.mean_wait_s, "slow": m.slowdown.get("A", math.nan), "fences": len(ends),
        "in_time": sum(start_s <= fence.until_s + 31.0 for fence, start_s in ends),  # a backfill cycle
        "sooner": sum(start_s < fence.until_s - 60.0 for fence, start_s in ends),
        "behind_s": sum(min(start_s, fence.until_s) - fence.set_s for fence, start_s in ends),
        "cpu_s": time.process_time() - began_s,
    }  # fmt: skip


def interval(values: Sequence[float]) -> str:
    mean, n = fmean(values), len(values)
    if n < 2:
        return f"{math.exp(mean):.3f}"
    half = (T95[n - 1] if n <= len(T95) else 1.96) * stdev(values) / math.sqrt(n)
    return f"{math.exp(mean):.3f} [{math.exp(mean - half):.3f}, {math.exp(mean + half):.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", default="", help="folder with workload-*.csv")
    parser.add_argument("--profile", default="", help="as pal simulate --profile, for those; else drawn GPUs")
    parser.add_argument("--made", type=int, default=8, help="made-up traces")
    parser.add_argument("--jobs", type=int, default=120, help="of each of them")
    parser.add_argument("--load", type=float, default=0.85)
    parser.add_argument("--slow-nodes", type=int, default=0)
    parser.add_argument("--no-placebo", action="store_true")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--interval", type=float, default=15.0, help="s between two ticks")
    parser.add_argument("--longest", type=float, default=3600.0, help="rebalance.wait_max_s")
    parser.add_argument("--save", default="", help="JSON lines, one a trace and seed; those in it are not run again")
    asked = parser.parse_args()
    virtual_slurm.VirtualSlurm = Watched  # type: ignore[misc]
    from slurm_pal.twin import run as twin

    twin.VirtualSlurm = Watched  # type: ignore[misc, attr-defined]
    known: dict[str, list[dict[str, float]]] = {}
    if asked.save and os.path.exists(asked.save):
        with open(asked.save, encoding="utf-8") as stream:
            known = {row["case"]: row["arms"] for row in map(json.loads, stream)}
    arms = 3 if asked.no_placebo else len(ARMS)
    logs: dict[tuple[str, int], list[list[float]]] = defaultdict(list)
    print("| trace | seed | " + " | ".join(NAMES[:arms]) + " | fences | started in time | before the end | behind, s |")
    for name, experiment in cases(asked):
        for seed in range(1, asked.seeds + 1):
            case = f"{name} {seed}"
            rows = known.get(case) or [run(experiment, seed, number, asked) for number in range(arms)]
            if asked.save and case not in known:
                with open(asked.save, "a", encoding="utf-8") as stream:
                    stream.write(json.dumps({"case": case, "arms": rows}) + "\n")
            cells = [f"{row['jct_s'] / 3600:.3f}" for row in rows]
            ours = rows[2]
            cells += [f"{ours['fences']:.0f}", f"{ours['in_time']:.0f}", f"{ours['sooner']:.0f}"]
            cells += [f"{ours['behind_s'] / max(1.0, ours['fences']):.0f}"]
            print(f"| {name} | {seed} | " + " | ".join(cells) + " |", flush=True)
            kind = "made up" if name.startswith("generated") else "given"
            logs[kind, int(name.encode().hex(), 16)].append([math.log(row["jct_s"]) for row in rows])
    for kind in sorted({kind for kind, _ in logs}):
        means = [[fmean(column) for column in zip(*runs, strict=True)] for (k, _), runs in logs.items() if k == kind]
        for what, over, under in (
            ("tick / stock", 1, 0), ("tick+wait / stock", 2, 0), ("tick+wait / tick", 2, 1),
            ("the same, shuffled scores", 4, 3), ("tick+wait, true / shuffled scores", 2, 4),
        )[: 3 if asked.no_placebo else 5]:  # fmt: skip
            print(f"{kind}, {len(means)} traces, {what}: {interval([row[over] - row[under] for row in means])}")


if __name__ == "__main__":
    main()
