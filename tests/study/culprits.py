# SPDX-License-Identifier: MIT
"""How often the right GPU is named from records of collectives, and whether the ladder flaps.

Synthetic jobs: every rank computes with noise of its own, now and then one stalls, the network is noisy and has bursts.
One GPU (or a whole node) is slower by FACTOR. The records go through files and the reader as a job's own would.

    .venv/bin/python tests/study/culprits.py --cases 300
    .venv/bin/python tests/study/culprits.py --histories 10
"""

from __future__ import annotations

import argparse
import math
import os
import random
import tempfile
from collections import Counter
from typing import NamedTuple

from slurm_pal.emulation.collectives import Behaving, Rank, files
from slurm_pal.online import collectives, culprit
from slurm_pal.online.culprit import Found
from slurm_pal.online.ladder import Measured, Terms, climb
from slurm_pal.store.late import RELEASED, Heard, LateGpu

SHAPES = ((1, 4), (1, 8), (2, 2), (2, 4), (2, 8), (4, 2), (4, 4), (8, 1))
SPREAD = 0.01  # of healthy GPUs
NODE_SPREAD = 0.002


class Kind(NamedTuple):
    """One kind of job."""

    name: str
    behaving: Behaving
    inner: bool = False  # with communicators within the nodes


KINDS = (
    Kind("one communicator", Behaving(steps=90)),
    Kind("many stalls", Behaving(steps=90, stall_rate=0.01, stall_s=0.5)),
    Kind("noisy network", Behaving(steps=90, network_noise=0.6, burst_rate=0.08)),
    Kind("half the time on the network", Behaving(steps=90, transfer_s=0.05)),
    Kind("noisy computation", Behaving(steps=90, noise=0.05)),
    Kind("tensor and data parallel", Behaving(steps=60, layers=4, buckets=2), inner=True),
)


def found_in(ranks: list[Rank], behaving: Behaving, draws: random.Random, version: str) -> Found:
    """What the reader and the search make of the job's files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files(ranks, behaving, draws, version).items():
            with open(os.path.join(folder, name), "w", encoding="ascii") as stream:
                stream.write(text)
        return culprit.find(collectives.read(folder).collectives)


def drawn(shape: tuple[int, int], draws: random.Random, spread: float) -> list[Rank]:
    """Healthy ranks."""
    hosts, gpus = shape
    return [Rank(f"n{h}", k, math.exp(draws.gauss(0.0, spread))) for h in range(hosts) for k in range(gpus)]


def case(number: int, seed: int, factor: float) -> tuple[str, str, bool, bool]:
    """(what is slow, kind of job, whether the right one was named, whether a wrong one was)."""
    draws = random.Random(f"{seed}/{number}")
    kind = KINDS[number % len(KINDS)]
    slow = ("GPU", "GPU", "node", "nothing")[number // len(KINDS) % 4]
    shapes = [s for s in SHAPES if (min(s) > 1 or not (kind.inner or slow == "node"))]
    shape = draws.choice(shapes)
    spread = NODE_SPREAD if slow == "nothing" else SPREAD
    ranks = drawn(shape, draws, spread)
    at = draws.randrange(len(ranks))
    if slow == "GPU":
        ranks[at] = ranks[at]._replace(slowdown=factor)
    elif slow == "node":
        ranks = [r._replace(slowdown=r.slowdown * factor) if r.host == ranks[at].host else r for r in ranks]
    found = found_in(ranks, kind.behaving, draws, ("v4.0", "v4.3")[number % 2])
    one = found.culprit
    if slow == "nothing":
        return slow, kind.name, one is None, one is not None
    place = None if slow == "node" else ranks[at].place
    right = one is not None and one.host == ranks[at].host and one.position == place
    return slow, kind.name, right, one is not None and not right


def named(cases: int, seed: int, factor: float) -> None:
    """Print the table."""
    total: Counter[tuple[str, str]] = Counter()
    right: Counter[tuple[str, str]] = Counter()
    wrong: Counter[tuple[str, str]] = Counter()
    for number in range(cases):
        slow, kind, good, bad = case(number, seed, factor)
        for key in ((slow, kind), (slow, "all")):
            total[key] += 1
            right[key] += good
            wrong[key] += bad
    print(f"factor {factor:g}, seed {seed}\n| slow | job | cases | right | another named |\n|---|---|---|---|---|")
    for slow, kind in sorted(total, key=lambda key: (key[0], key[1] == "all", key[1])):
        key = slow, kind
        print(f"| {slow} | {kind} | {total[key]} | {right[key] / total[key]:.1%} | {wrong[key]} |")


def histories(count: int, seed: int, factor: float) -> None:
    """Two jobs of two users report 30 times; a GPU becomes slow at the 8th time and is measured at the 22nd."""
    shape, behaving = (2, 4), Behaving(steps=60)
    wanted = flaps = 0
    for number in range(count):
        draws = random.Random(f"{seed}/history/{number}")
        healthy = drawn(shape, draws, NODE_SPREAD)
        at = draws.randrange(len(healthy))
        slow = (healthy[at].host, healthy[at].place)
        gpus = {f"n{h}": tuple(range(shape[1])) for h in range(shape[0])}
        known: tuple[LateGpu, ...] = ()
        rungs: Counter[tuple[str, int]] = Counter()
        for look in range(30):
            now_s = 1e9 + 60.0 * look
            ranks = [r._replace(slowdown=factor) if k == at and look >= 8 else r for k, r in enumerate(healthy)]
            heard = []
            for job_id, user in ((1, "ada"), (2, "bob")):
                found = found_in(ranks, behaving, draws, "v4.0")
                if found.culprit is not None:
                    node, indexes = culprit.place(found.culprit, gpus)
                    heard += [((node, k), Heard(job_id, user, found.culprit.factor, "A", now_s)) for k in indexes]
            measured_s, score = (now_s, factor) if look >= 22 else (1e9 - 1.0, 1.0)
            measured = {(h, k): Measured(f"{h}-{k}", measured_s if (h, k) == slow else 1e9 - 1.0,
                        {"A": score if (h, k) == slow else 1.0}) for h, held in gpus.items() for k in held}  # fmt: skip
            known, steps = climb(known, heard, measured, Terms("reserve", 2), now_s)
            for step in steps:
                rungs[step.gpu.node, step.gpu.index] += step.gpu.rung in (RELEASED, "observe")
        # The slow one is observed once and released once; every other change is a flap.
        wanted += rungs[slow] == 2
        flaps += sum(times for gpu, times in rungs.items() if gpu != slow) + max(0, rungs[slow] - 2)
    print(
        f"factor {factor:g}: {count} histories of 60 reports, slow GPU observed and released in {wanted}, flaps {flaps}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=0)
    parser.add_argument("--histories", type=int, default=0)
    parser.add_argument("--factor", type=float, default=1.1)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if asked.cases:
        named(asked.cases, asked.seed, asked.factor)
    if asked.histories:
        histories(asked.histories, asked.seed, asked.factor)


if __name__ == "__main__":
    main()
