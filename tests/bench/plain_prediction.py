# SPDX-License-Identifier: MIT
"""How often the prediction of plain Slurm names the GPUs that Slurm then gives.

Usage: plain_prediction.py [--seeds N] [--steps N]. On a lab of 8 x 4 GPUs: random
submissions of 1 to 8 GPUs, random cancellations in between, so that free GPUs are scattered.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time

from slurm_pal.base.jobs import GpuShape
from slurm_pal.decide.offers import build_view
from slurm_pal.lab.lab import Lab
from slurm_pal.placement.plain import plain_pick
from slurm_pal.placement.view import Rule
from slurm_pal.slurm.cli import CliClient
from slurm_pal.store import snapshot

SETTLE_S = 0.6  # for cancelled jobs to leave their GPUs
SCRIPT = "#!/bin/sh\nsleep 600\n"


def shape_of(draw: random.Random) -> tuple[list[str], GpuShape]:
    """sbatch's words and the same as a shape."""
    gpus, nodes = draw.choice([1, 1, 1, 2, 2, 4]), draw.choice([1, 1, 1, 1, 2])
    if draw.random() < 0.3:
        return [f"--gpus={gpus * nodes}"], GpuShape(gpus * nodes)
    return [f"--gres=gpu:{gpus}", f"--nodes={nodes}"], GpuShape(gpus * nodes, nodes, gpus)


def started(client: CliClient, number: int) -> dict[str, tuple[int, ...]]:
    """The GPUs of a job once it runs; {} when it does not within 3 s."""
    for _ in range(60):
        job = client.job(number)
        if job is not None and job.state == "RUNNING":
            return job.gpus
        time.sleep(0.05)
    return {}


def measure(seed: int, steps: int, scores: snapshot.Snapshot) -> tuple[int, int]:
    """(right, tried) on the lab in force."""
    client, draw = CliClient(), random.Random(seed)
    names = [node.name for node in client.nodes()]
    live: list[int] = []
    right = tried = 0
    for _ in range(steps):
        while live and draw.random() < 0.45:
            client.cancel([live.pop(draw.randrange(len(live)))])
        time.sleep(SETTLE_S)
        words, shape = shape_of(draw)
        view = build_view(client.overview(), scores, shape, "A", names)
        predicted = plain_pick(view, shape, Rule("A", 1.7, 1.1))
        if predicted is None:
            continue
        number = client.submit([*words, "-o", "/dev/null"], SCRIPT)
        live.append(number)
        expected = {view.names[i]: gpus for i, gpus in zip(predicted.nodes, predicted.gpus, strict=True)}
        tried += 1
        right += started(client, number) == expected
    client.cancel(live)
    return right, tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    asked = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="pal")
    try:
        snapshot.publish(os.path.join(directory, "none"), [], cluster="", epoch=1, now_s=0.0)
        empty = snapshot.read(os.path.join(directory, "none"))
        for seed in range(1, asked.seeds + 1):
            with Lab.up(os.path.join(directory, "lab"), nodes=8, gpus=4) as lab:
                os.environ.update(lab.variables())
                right, tried = measure(seed, asked.steps, empty)
            print(f"seed {seed}: {right} of {tried}", flush=True)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
