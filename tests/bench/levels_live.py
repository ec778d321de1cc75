# SPDX-License-Identifier: MIT
"""Random requests of several nodes on a lab with switches or blocks: does Slurm take what we choose, and is it as near
together?

    python tests/bench/levels_live.py --requests 2000 [--blocks [--sizes 6,24]] [--topology FILE]

Each request is asked of slurmctld twice, as plain sbatch and with our node list (sbatch --test-only), while random
jobs hold GPUs. Scores are drawn. A line for each disagreement, then the sums.
"""

from __future__ import annotations

import argparse
import getpass
import os
import random
import re
import subprocess
import tempfile
import time

from slurm_pal.base.hostlist import expand
from slurm_pal.decide.case import Settings
from slurm_pal.decide.decide import decide
from slurm_pal.decide.network import leaves
from slurm_pal.decide.offers import used_indexes
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.parse import unix_s
from slurm_pal.store.snapshot import GpuScore, Snapshot, publish, read
from slurm_pal.submit.argv import parse
from slurm_pal.submit.options import build

NODES, GPUS = 48, 4
PLACE = re.compile(r"to start at (\S+) .* on nodes (\S+) in partition")
SLACK_S = 3.0  # between the two questions
ANEW = 40  # requests for each draw of what is in use


def tree() -> str:
    lines = [f"SwitchName=leaf{k} Nodes=n[{6 * k}-{6 * k + 5}]" for k in range(NODES // 6)]
    lines += [f"SwitchName=spine{k} Switches=leaf[{4 * k}-{4 * k + 3}]" for k in range(2)]
    return "\n".join([*lines, "SwitchName=core Switches=spine[0-1]", ""])


def blocks(sizes: str) -> str:
    lines = [f"BlockName=block{k} Nodes=n[{6 * k}-{6 * k + 5}]" for k in range(NODES // 6)]
    return "\n".join([*lines, f"BlockSizes={sizes}", ""])


def scores(folder: str, draw: random.Random) -> Snapshot:
    rows = []
    for n in range(NODES):
        for k in range(GPUS):
            a = draw.choice((*(0.97, 1.0, 1.0, 1.03) * 6, 1.15, 1.4))
            name = "v0" if a <= 1.05 else "v1" if a < 1.3 else "v2"
            slow = {"A": a, "B": a, "C": 1.0}
            rows.append(GpuScore(f"n{n}", k, f"n{n}-{k}", "m", slow, dict.fromkeys("ABC", name), time.time(), 0.9, ()))
    path, levels = f"{folder}/scores", {c: [1.0, 1.15, 1.4] for c in "AB"} | {"C": [1.0, 1.0, 1.0]}
    publish(path, rows, cluster="lab", epoch=1, now_s=time.time(), centroids=levels)
    return read(path)


def asked(lab: Lab, words: list[str]) -> tuple[str, tuple[str, ...], str]:
    """When and where the job would start, and what Slurm says otherwise."""
    done = subprocess.run(
        ["sbatch", "--test-only", *words], env=lab.environ(), input="#!/bin/sh\n:\n", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    found = PLACE.search(done.stderr)
    return (found[1], tuple(expand(found[2])), "") if found else ("", (), " ".join(done.stderr.split()))


def fill(lab: Lab, draw: random.Random) -> None:
    """Random jobs on random nodes."""
    subprocess.run(["scancel", "-u", getpass.getuser()], env=lab.environ(), check=True)
    deadline_s = time.monotonic() + 30
    while subprocess.run(["squeue", "-h"], env=lab.environ(), capture_output=True, check=True).stdout.strip():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    share = draw.uniform(0.1, 0.6)
    for n in range(NODES):
        if draw.random() < share:
            words = ["-w", f"n{n}", f"--gres=gpu:{draw.randint(1, GPUS)}", "-t", "60", "-o", "/dev/null"]
            subprocess.run(["sbatch", "-Q", *words, "--wrap", "sleep 3600"], env=lab.environ(), check=True)
    while subprocess.run(["squeue", "-h", "-t", "PD,CF"], env=lab.environ(), capture_output=True, check=True).stdout:
        assert time.monotonic() < deadline_s + 30
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--topology")
    parser.add_argument("--blocks", action="store_true", help="topology/block, with --segment and --exclusive=topo")
    parser.add_argument("--sizes", default="6,24", help="BlockSizes")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    counts = dict.fromkeys(("asked", "ours", "taken", "fewer", "equal", "more", "better", "alike", "worse", "left"), 0)
    with tempfile.TemporaryDirectory(prefix="pal") as folder:
        path = options.topology or f"{folder}/topology.conf"
        if not options.topology:
            with open(path, "w") as stream:
                stream.write(blocks(options.sizes) if options.blocks else tree())
        with Lab.up(f"{folder}/lab", nodes=NODES, gpus=GPUS, seed=1, topology=path) as lab:
            os.environ.update(lab.environ())
            client, known = CliClient(), scores(folder, draw)
            for number in range(options.requests):
                if number % ANEW == 0:
                    fill(lab, draw)
                    overview = client.overview()
                _one(lab, draw, overview, known, counts, options.blocks)
    print(counts)


def _one(
    lab: Lab, draw: random.Random, overview: Overview, known: Snapshot, counts: dict[str, int], blocks: bool
) -> None:
    nodes, gpus = draw.randint(2, 9), draw.randint(1, GPUS)
    words = [f"-N{nodes}", f"--gpus-per-node={gpus}", "-t", "30"]
    if blocks:
        if draw.random() < 0.3:
            words.append(f"--segment={draw.choice([k for k in range(1, nodes + 1) if nodes % k == 0])}")
        if draw.random() < 0.2:
            words.append("--exclusive=topo")
    elif draw.random() < 0.2:
        words.append(f"--switches={draw.randint(1, 3)}")
    counts["asked"] += 1
    request = build(parse([*words, "--wrap", "true"]), {}, None)
    found = decide(request, overview, known, "A", Settings(), "daemon", time.time())
    if found.action != "nodelist" or found.chosen is None:
        counts["left"] += 1
        why = found.action if found.action != "none" else re.sub(r"[0-9]+", "N", found.reason)
        counts[why] = counts.get(why, 0) + 1
        return
    counts["ours"] += 1
    network = overview.network
    at, there, _ = asked(lab, words)
    mine_at, mine, said = asked(lab, [*words, *found.added])
    if set(mine) != set(found.pinned):
        print(f"not taken: {words} {found.added}: {said or mine}")
        return
    late = unix_s(mine_at) - unix_s(at) > SLACK_S
    counts["taken"] += not late
    if late:
        print(f"later: {words} {found.added}: {mine_at}, plain {at}")
    if unix_s(at) - unix_s(mine_at) > SLACK_S:
        counts["sooner"] = counts.get("sooner", 0) + 1
        return
    spread, plain = leaves(network, mine), leaves(network, there)
    counts["fewer" if spread < plain else "equal" if spread == plain else "more"] += 1
    if spread > plain:
        print(f"more leaves: {words}: {mine} ({spread}), plain {there} ({plain})")
    if spread == plain:
        ours, theirs = (max(_slowest(known, overview, name, gpus) for name in some) for some in (mine, there))
        counts["better" if ours < theirs else "alike" if ours == theirs else "worse"] += 1


def _slowest(known: Snapshot, overview: Overview, name: str, gpus: int) -> float:
    """The slowest GPU that a job would get there, where GPUs of the best class count as alike."""
    used = used_indexes(overview.jobs).get(name, set())
    free = [k for k in range(GPUS) if k not in used][:gpus]
    return max(max(1.05, known.slowdown("A", name, k) or 1.0) for k in free)


if __name__ == "__main__":
    main()
