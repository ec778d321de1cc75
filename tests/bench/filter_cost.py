# SPDX-License-Identifier: MIT
"""What the submit filter costs slurmctld: submissions per second and server time, bare against filter.

    python tests/bench/filter_cost.py [--nodes 1000] [--blocks 20] [--block 100] [--array] [--plugin]
        [--labels 10000] [--script 1000] [--json]

Two slurmctlds without slurmds, one bare and one with the filter and a table of all nodes
idle, each with its own munged. Blocks of sbatch calls go to the two in turn, the order
drawn for each pair; the queue is emptied between blocks, and the filter has a new table to
read at each of its own. Reported: the ratio of the rates (median over pairs, 95 % by
bootstrap) and the average time of the submit RPC as sdiag counts it.

A job with a node list costs slurmctld less than one without, since it looks whether the
job can ever run. With --array the jobs are arrays of one task: looked up, but not pinned. With --labels
the table has that many labels of measured jobs, a hundred of each user, and the submissions are by one
of these users; --script is the length of their scripts in bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.config import Config
from slurm_pal.base.prices import GPU, Prices
from slurm_pal.decide.case import Settings
from slurm_pal.lab import filter as lab_filter
from slurm_pal.lab.conf import LabSpec, config_files, node_names
from slurm_pal.lab.crew import Crew
from slurm_pal.lab.daemons import munged_argv
from slurm_pal.lab.directory import LabDirectory
from slurm_pal.lab.ports import free_blocks, is_listening
from slurm_pal.lab.processes import stop
from slurm_pal.lab.programs import account_name, find_programs, slurm_version
from slurm_pal.publisher.standing import standing
from slurm_pal.publisher.table import records
from slurm_pal.slurm.client import Overview
from slurm_pal.store import lua_table, snapshot

JOB = ("sbatch", "-o", "/dev/null", "--gres=gpu:{}", "--time=60", "--wrap=true")


class Controller:
    """A slurmctld of its own; `submit_filter` says whether jobs pass ours."""

    def __init__(self, root: str, name: str, nodes: int, gpus: int, submit_filter: bool, plugin: bool) -> None:
        d = LabDirectory(os.path.join(root, name))
        os.makedirs(d.path)
        d.make_rooms(gpus)
        programs = find_programs()
        version = slurm_version(programs["slurmctld"])
        port = next(free_blocks(2, d.path))
        spec = LabSpec(d, nodes, gpus, 64, 512000, account_name(), port, version, submit_filter)
        for file, text in config_files(spec).items():
            text = re.sub(r"Port=\[.*?\]", f"Port={port + 1}", text)
            Path(d("etc", file)).write_text(text)
        key = Path(d("etc", "munge.key"))
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        if submit_filter:
            lab_filter.install(d)
            if not plugin:
                Path(d("etc", "plugstack.conf")).unlink(missing_ok=True)
        self.directory, self.crew = d, Crew(d)
        self.environment = os.environ | {"SLURM_CONF": d.conf}
        self.crew.spawn("munged", munged_argv(programs["munged"], d))
        wait(lambda: os.path.exists(d.munge_socket))
        self.crew.spawn("slurmctld", [programs["slurmctld"], "-D", "-f", d.conf])
        wait(lambda: is_listening(port))

    def block(self, count: int, words: tuple[str, ...]) -> float:
        """Submissions per second of `count` jobs in a row; the queue is empty before and after."""
        shapes = [[word.format(1 + i % 4) for word in (*JOB, *words)] for i in range(count)]
        started = time.perf_counter()
        for argv in shapes:
            self.run(*argv)
        rate = count / (time.perf_counter() - started)
        self.run("scancel", "-Q", "-u", account_name())
        wait(lambda: not self.run("squeue", "-h"))
        return rate

    def server_ms(self) -> float:
        """Average time of the submit RPC since the statistics were reset."""
        found = re.search(r"REQUEST_SUBMIT_BATCH_JOB.*?ave_time:(\d+)", self.run("sdiag"))
        assert found
        return int(found[1]) / 1e3

    def run(self, *argv: str) -> str:
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=True).stdout

    def end(self) -> None:
        stop(self.crew.processes(), 3.0, self.crew.reap)


def wait(done: object) -> None:
    deadline_s = time.monotonic() + 30
    while not done():  # type: ignore[operator]
        if time.monotonic() > deadline_s:
            raise SystemExit("a daemon did not start, or the queue did not empty")
        time.sleep(0.02)


def labels_of(count: int, uid: int) -> dict[str, str]:
    """Records of so many labels, a hundred of each user, `uid` being the first."""
    rng = random.Random(2)
    made = [f"n{rng.getrandbits(64):016x}={rng.choice('ABC')}:0.900" for _ in range(count)]
    return {f"label.{uid + at // 100}": " ".join(made[at : at + 100]) for at in range(0, count, 100)}


def script_of(size: int) -> str:
    """A script of so many bytes, a fifth of them comments."""
    lines = ("module load cuda/12", "# a word on it", "srun ./step --in a.dat --out b", "")
    return ("#!/bin/sh\n" + "\n".join(lines) * (size // 20 + 1))[: max(size, 10)]


def table(nodes: int, gpus: int, busy: float = 0.0, labels: int = 0, priced: int = 0) -> bytes:
    """The table of a cluster with made-up scores; `busy` is the share of the GPUs that are in use.

    `priced`: partitions beside gpu, with a share of the nodes each, and prices.
    """
    rng = random.Random(1)
    names = node_names(nodes)
    used = [sum(rng.random() < busy for _ in range(gpus)) for _ in names]
    cluster = tuple(
        Node(name, frozenset({"MIXED"}), ("",) * gpus, count, 64, count, 512000, count, frozenset(), ("gpu",))
        for name, count in zip(names, used, strict=True)
    )
    scores = [
        snapshot.GpuScore(name, k, f"{name}-{k}", "m", {"A": a, "B": 1 + (a - 1) / 3, "C": 1.0}, {}, 0.0, 1.0, ())
        for name in names
        for k in range(gpus)
        for a in [rng.gauss(1.0, 0.02) + (0.4 if rng.random() < 0.02 else 0.0)]
    ]
    path = tempfile.mkstemp(prefix="palbench")[1]
    try:
        snapshot.publish(path, scores, cluster="bench", epoch=1, now_s=0.0)
        known = snapshot.read(path)
    finally:
        os.unlink(path)
    parts = [Partition(f"p{number}", False, True, names[number::priced]) for number in range(priced)]
    overview = Overview(cluster, (), (Partition("gpu", True, True, names), *parts), {})
    prices = Prices({one.name: {GPU: 1.0 + number} for number, one in enumerate(parts)})
    answers = standing(overview, known, Settings(), shared=[one.name for one in overview.partitions] if priced else ())
    header = lua_table.Header(1, int(time.time()), 86400.0, "daemon")
    return lua_table.encode(header, records(answers, Config(), 1, prices=prices) | labels_of(labels, os.geteuid()))


def refreshed(text: bytes) -> bytes:
    """The same table under a new epoch, so that the filter reads all of it again."""
    now = time.time()
    text = re.sub(rb'(\["epoch"\] = |\["end"\] = )"\d+"', rb'\g<1>"%d"' % (now * 1000), text)
    return re.sub(rb'\["written_s"\] = "\d+"', b'["written_s"] = "%d"' % now, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--block", type=int, default=100)
    parser.add_argument("--array", action="store_true", help="arrays of one task: looked up, but never pinned")
    parser.add_argument("--plugin", action="store_true", help="with the SPANK plug-in as well, which sbatch loads")
    parser.add_argument("--labels", type=int, default=0)
    parser.add_argument("--script", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    words = (
        *(["--array=1"] if args.array else []),
        "-Jname",
        *(["--wrap=" + script_of(args.script)] if args.script else []),
    )
    rng, root = random.Random(0), tempfile.mkdtemp(prefix="pal")
    pair: list[Controller] = []
    try:
        pair.append(Controller(root, "bare", args.nodes, args.gpus, False, False))
        pair.append(Controller(root, "filter", args.nodes, args.gpus, True, args.plugin))
        text = table(args.nodes, args.gpus, labels=args.labels)
        ratios: list[float] = []
        for controller in pair:
            controller.block(20, words)
            controller.run("sdiag", "-r")
        for _ in range(args.blocks):
            Path(pair[1].directory.table).write_bytes(refreshed(text))
            order = rng.sample([0, 1], 2)
            rates = {which: pair[which].block(args.block, words) for which in order}
            ratios.append(rates[1] / rates[0])
        bare_ms, filter_ms = pair[0].server_ms(), pair[1].server_ms()
    finally:
        for controller in pair:
            controller.end()
        shutil.rmtree(root)
    boot = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    result = {
        "nodes": args.nodes, "gpus": args.gpus, "table_bytes": len(text), "submissions": args.blocks * args.block,
        "rate_ratio": round(statistics.median(ratios), 3), "rate_95": [round(boot[50], 3), round(boot[1949], 3)],
        "bare_ms": bare_ms, "filter_ms": filter_ms, "more_ms": round(filter_ms - bare_ms, 3),
    }  # fmt: skip
    print(json.dumps(result) if args.json else "\n".join(f"{key}: {value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
