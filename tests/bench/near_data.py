# SPDX-License-Identifier: MIT
"""Near data, live: bytes that jobs must move to their nodes, and how long they wait for a start, with and without.

    python tests/bench/near_data.py --jobs 150 --seeds 2

Each data set is on two of eight nodes. Jobs of one GPU read one each; their GPUs are all alike. Both arms get the same
jobs at the same times, by palsub, with and without --pal-input; in the third, empty, the table is.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean

from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab
from slurm_pal.store.snapshot import GpuScore, publish

NODES, GPUS, SETS = 8, 2, 6
SIZE = 64 << 20
EVERY_S = 0.35


def scores(folder: str) -> None:
    now_s = time.time()
    rows = [
        GpuScore(f"n{n}", k, f"n{n}-{k}", "m", dict.fromkeys("ABC", 1.0), dict.fromkeys("ABC", "v0"), now_s, 1.0, ())
        for n in range(NODES) for k in range(GPUS)
    ]  # fmt: skip
    publish(f"{folder}/pal/snapshot", rows, cluster="lab", epoch=1, now_s=now_s)


def arm(name: str, jobs: int, seed: int, folder: str) -> tuple[float, float, float, list[str]]:
    """(GiB moved, mean and largest wait in s, the nodes of all jobs)."""
    draw = random.Random(seed)
    held = {k: draw.sample(range(NODES), 2) for k in range(SETS)}
    home = f"{folder}/{name}{seed}"
    os.makedirs(f"{home}/pal")
    table = "".join(f'"{folder}/set{k}" = "nodes=n{a},n{b} gib_per_s=0.01"\n' for k, (a, b) in held.items())
    with open(f"{home}/pal.toml", "w") as stream:
        stream.write(f'[paths]\nstate_dir = "{home}/pal"\n[data]\n{table if name != "empty" else ""}')
    scores(home)
    with Lab.up(f"{home}/lab", nodes=NODES, gpus=GPUS, seed=1) as lab:
        env = lab.environ() | {"SLURM_PAL_CONFIG": f"{home}/pal.toml", "XDG_STATE_HOME": f"{home}/state"}
        env["XDG_CONFIG_HOME"] = home

        def submit(wanted: int, seconds: float) -> tuple[int, int]:
            words = [program("palsub"), "--parsable", "--pal-watch", "--gres=gpu:1", "-t", "2", "-o", "/dev/null"]
            words += [f"--pal-input={folder}/set{wanted}"] if name != "without" else []
            done = subprocess.run(
                [*words, "--wrap", f"sleep {seconds:.1f}"],
                env=env,
                cwd=home,
                capture_output=True,
                text=True,
                check=True,
            )
            return int(done.stdout), wanted

        began_s, made = time.monotonic(), []
        with ThreadPoolExecutor(4) as pool:
            for number in range(jobs):
                time.sleep(max(0.0, began_s + EVERY_S * number - time.monotonic()))
                made.append(pool.submit(submit, draw.randrange(SETS), draw.uniform(2.0, 6.0)))
            found = [one.result() for one in made]
        while subprocess.run(["squeue", "-h"], env=env, capture_output=True, check=True).stdout.strip():
            time.sleep(0.5)
        shown = subprocess.run(
            ["squeue", "-h", "-t", "all", "-o", "%A|%N|%V|%S"], env=env, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    rows = {int(row.split("|")[0]): row.split("|")[1:] for row in shown}
    moved, waits, where = 0, [], []
    for job, wanted in found:
        node, submitted, started = rows[job]
        where.append(node)
        moved += SIZE * (int(node[1:]) not in held[wanted])
        waits.append(time.mktime(time.strptime(started, "%Y-%m-%dT%H:%M:%S"))
                     - time.mktime(time.strptime(submitted, "%Y-%m-%dT%H:%M:%S")))  # fmt: skip
    return moved / (1 << 30), fmean(waits), max(waits), where


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    for seed in range(1, options.seeds + 1):
        with tempfile.TemporaryDirectory(prefix="pn") as folder:
            for k in range(SETS):
                with open(f"{folder}/set{k}", "wb") as stream:
                    stream.truncate(SIZE)
            for name in ("without", "with", "empty"):
                moved, mean_s, most_s, _ = arm(name, options.jobs, seed, folder)
                whole = options.jobs * SIZE / (1 << 30)
                print(f"{seed} {name}: {moved:.2f} of {whole:.2f} GiB moved, wait {mean_s:.2f} s, at most {most_s:.0f}")


if __name__ == "__main__":
    main()
