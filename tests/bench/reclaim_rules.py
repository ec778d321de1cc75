# SPDX-License-Identifier: MIT
"""What giving loaned nodes back costs guests under several rules, over the optimum by trying all sets of nodes.

    python -P tests/bench/reclaim_rules.py [--cases N] [--nodes N] [--count N] [--seed N] [--json]

Random cases (tests/doubles/reclaim_cases.py), 8 GPUs a node; by default 14 nodes, up to 26 jobs, 4 nodes go back, 500
cases of each kind. "packed": workers on the node with the least sufficient room, "spread": on any with room. "jobs":
each preempted job costs 1; "work": its restart and the work since its checkpoint, in GPU-seconds. Ratios of means over
cases; "ms" is the mean and the longest CPU time of our rule, "pairs" the most of a job and a node of it. --nodes 24
--count 6 tries 134,596 sets for each case; above a million the ratios are over our rule, which is checked no more.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script
from doubles import reclaim_cases as cases

from slurm_pal.allocation import reclaim as r
from slurm_pal.allocation.reclaim import Guest

Rule = Callable[[Sequence[str], Sequence[Guest], int], list[str]]
RULES: dict[str, Rule] = {
    "ours": r.by_cost,
    "published greedy, server fraction with update": r.greedy_by_cost,
    "jobs per server, with update": r.by_jobs,
    "jobs per server, without update": cases.by_jobs_once,
    "random, unused nodes first": lambda loaned, guests, count: r.at_random(loaned, guests, count, random.Random(1)),
    "random": lambda loaned, guests, count: random.Random(len(guests)).sample(loaned, count),
}
MOST_SETS = 1_000_000
KINDS = [(spread, weighted) for spread in (False, True) for weighted in (False, True)]


def kind_of(spread: bool, weighted: bool) -> str:
    return f"{'spread' if spread else 'packed'}, {'work' if weighted else 'jobs'}"


def measured(first: int, number: int, nodes: int, count: int, spread: bool, weighted: bool) -> dict[str, float]:
    """Mean cost over the optimum's by rule, the optimum itself, and the time of our rule."""
    loaned, sums, took_ms = cases.names(nodes), dict.fromkeys((*RULES, "optimum"), 0.0), []
    pairs = above = 0
    for seed in range(first, first + number):
        guests = cases.drawn(seed, nodes, weighted=weighted, spread=spread)
        pairs = max(pairs, sum(len(guest.nodes) for guest in guests))
        for name, rule in RULES.items():
            start_s = time.process_time()
            chosen = rule(loaned, guests, count)
            if name == "ours":
                took_ms.append(1000 * (time.process_time() - start_s))
            sums[name] += r.outcome(chosen, guests).cost
        if math.comb(nodes, count) <= MOST_SETS:
            least = cases.least_cost(loaned, guests, count)
            above += r.outcome(r.by_cost(loaned, guests, count), guests).cost > least * (1 + 1e-9)
            sums["optimum"] += least
    if math.comb(nodes, count) > MOST_SETS:
        sums["optimum"] = sums["ours"]
    found = {name: sums[name] / (sums["optimum"] or math.nan) for name in RULES}
    found["jobs per server, with update, over ours"] = sums["jobs per server, with update"] / (sums["ours"] or math.nan)
    found |= {
        "optimum": sums["optimum"] / number,
        "ms, mean": fmean(took_ms),
        "ms, longest": max(took_ms),
        "pairs": pairs,
        "cases where ours is above the optimum": above,
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=14)
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not (given.cases > 0 and 0 < given.count <= given.nodes):
        parser.error(f"--cases {given.cases} --nodes {given.nodes} --count {given.count}: at least 1, count <= nodes")
    found = {
        kind_of(*kind): measured(given.seed, given.cases, given.nodes, given.count, *kind) for kind in KINDS
    }  # fmt: skip
    if given.json:
        print(json.dumps(found, indent=1))
        return
    width = max(map(len, next(iter(found.values()))))
    print(f"{'':{width}} " + " ".join(f"{kind:>14}" for kind in found))
    for name in next(iter(found.values())):
        print(f"{name:{width}} " + " ".join(f"{found[kind][name]:14.3f}" for kind in found))


if __name__ == "__main__":
    main()
