# SPDX-License-Identifier: MIT
"""Random jobs on a real slurmctld and on the twin's: who starts where and when, and how long Slurm itself takes.

    python tests/bench/twin_agreement.py [--jobs 200] [--seed 1] [--json]

A lab of 4 nodes x 4 GPUs with 16 CPUs and 64000 MiB each under priority/multifactor (age, size, partition), with
partitions of other tiers, nodes and defaults; jobs of 1 to 8 GPUs, some with many CPUs or much memory, nice, on named
nodes, with limits of 1 to 5 minutes and run times of 3 to 20 s, one each `EVERY_S`. The twin gets the same jobs at the
same moments, and slurm.conf from `scontrol show config`. Starts are compared while both have done the same: one that
differs changes all that follow, so the run is cut into rounds of `ROUND` jobs, each on empty nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from doubles.twin_pairs import Jobs, live, replayed

from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient

EDITS = (
    (
        "PartitionName=gpu",
        "PartitionName=low Nodes=n[0-1] PriorityTier=1\n"
        "PartitionName=high Nodes=n[1-2] PriorityTier=5 PriorityJobFactor=4\n"
        "PartitionName=defs Nodes=ALL DefCpuPerGPU=4 DefMemPerGPU=15000\n"
        "PartitionName=gpu",
    ),
    (
        "PriorityType=priority/basic",
        "PriorityType=priority/multifactor\nPriorityWeightAge=1000\nPriorityWeightJobSize=10000\n"
        "PriorityWeightPartition=2000\nPriorityCalcPeriod=1",
    ),
)
EVERY_S, ROUND = 1.0, 25
WITHIN_S = (1.5, 4.0)


def jobs_of(draw: random.Random, count: int) -> Jobs:
    """Random jobs, many more than fit at once."""
    found = []
    for _ in range(count):
        partition = draw.choice(("gpu", "gpu", "low", "high", "defs"))
        shape = draw.choice(("-N1 --gpus-per-node={0}", "-N1 --gpus-per-node={0}", "-N2 --gpus-per-node={0}"))
        words = ["-p", partition, *shape.format(draw.choice((1, 1, 2, 3, 4))).split(), f"-t{draw.randint(1, 5)}"]
        if partition != "defs":
            words += draw.choice(
                ([], [], ["-c", str(draw.choice((4, 8, 14)))], [f"--mem={draw.choice((9, 30, 60))}000"])
            )
        words += draw.choice(([], [], [], [f"--nice={draw.choice((300, 3000))}"]))
        if partition == "gpu" and "-N1" in words and draw.random() < 0.1:
            words += ["-w", f"n{draw.randrange(4)}"]
        found.append((" ".join(words), draw.randint(3, 20)))
    return tuple(found)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    rows: list[tuple[float, float, bool]] = []  # start live, in the twin, on the same GPUs
    with (
        tempfile.TemporaryDirectory(prefix="pal") as folder,
        Lab.up(f"{folder}/lab", nodes=4, gpus=4, seed=1, conf_edits=EDITS) as lab,
    ):
        os.environ.update(lab.variables())
        client = CliClient(conf=lab.variables()["SLURM_CONF"])
        while len(rows) < asked.jobs:
            jobs = jobs_of(draw, min(ROUND, asked.jobs - len(rows)))
            empty = client.overview()
            seen = live(client, jobs, EVERY_S, patience_s=600.0)
            twin = replayed(client, empty, jobs, seen.began_s, EVERY_S).starts
            for place, (at_s, gpus) in seen.starts.items():
                rows.append((at_s, twin[place][0], gpus == twin[place][1]))
                if not rows[-1][2] or abs(at_s - twin[place][0]) > WITHIN_S[1]:
                    what = f"{jobs[place][0]} for {jobs[place][1]} s"
                    print(f"{len(rows) - 1}: {what}: {at_s:.1f} {gpus}, twin {twin[place]}", file=sys.stderr)
            while client.job_states():
                time.sleep(0.3)
    late = [live_s - twin_s for live_s, twin_s, _ in rows]
    found = {
        "jobs": len(rows),
        "same_gpus": round(statistics.fmean(same for *_, same in rows), 3),
        **{f"within_{s:g}_s": round(statistics.fmean(abs(one) <= s for one in late), 3) for s in WITHIN_S},
        "mean_s": round(statistics.fmean(late), 2),
        "median_s": round(statistics.median(late), 2),
        "mean_wait_ratio": round(sum(live_s for live_s, *_ in rows) / sum(twin_s for _, twin_s, _ in rows), 4),
    }
    print(json.dumps(found) if asked.json else "\n".join(f"{key}: {value}" for key, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
