# SPDX-License-Identifier: MIT
"""Random guests of loaned nodes, and what the rule that reclaims is compared with: the optimum, a cruder rule.

For tests and for tests/bench/reclaim_rules.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, islice

import numpy as np

from slurm_pal.allocation.reclaim import Guest

CHUNK = 20_000  # sets of nodes at once
NODE_GPUS = 8
MOST_JOBS = 26  # on 14 nodes


def names(nodes: int) -> tuple[str, ...]:
    return tuple(f"n{number:03}" for number in range(nodes))


def drawn(seed: int, nodes: int, *, weighted: bool, spread: bool) -> list[Guest]:
    """Up to 26 jobs for 14 nodes of 8 GPUs, in proportion for others: 1 to 32 GPUs in workers of up to 8 GPUs.

    Workers go to the node with the least sufficient room, or with `spread` to any with room; a third of the jobs has
    ended since. Each costs 1, or with `weighted` its restart (150 s) and up to 1,800 s of work on its GPUs.
    """
    rng = random.Random(seed)
    free = dict.fromkeys(names(nodes), NODE_GPUS)
    found = []
    for number in range(2 * MOST_JOBS * nodes // 14):
        gpus = rng.choice((1, 2, 4, 8, 16, 32))
        worker = min(gpus, rng.choice((1, 2, 4, 8)))
        held: list[str] = []
        after = dict(free)
        for _ in range(gpus // worker):
            room = [name for name, left in after.items() if left >= worker]
            if not room:
                break
            held.append(rng.choice(room) if spread else min(room, key=after.__getitem__))
            after[held[-1]] -= worker
        else:
            free = after
            cost = (150 + rng.uniform(0, 1800)) * gpus if weighted else 1.0
            found.append(Guest(f"j{number}", tuple(dict.fromkeys(held)), cost))
    return rng.sample(found, min(MOST_JOBS * nodes // 14, len(found) * 2 // 3))


def least_cost(loaned: Sequence[str], guests: Sequence[Guest], count: int) -> float:
    """The optimum, by trying all sets of nodes: 1,001 for 4 of 14, 134,596 for 6 of 24."""
    if not guests:
        return 0.0
    on = np.array([[node in guest.nodes and not guest.flexible for guest in guests] for node in loaned])
    cost = np.array([guest.cost for guest in guests])
    sets = combinations(range(len(loaned)), min(count, len(loaned)))
    best = np.inf
    while chunk := list(islice(sets, CHUNK)):
        ended = np.zeros((len(chunk), len(guests)), dtype=bool)
        for column in np.array(chunk, dtype=np.int64).reshape(len(chunk), -1).T:
            ended |= on[column]
        best = min(best, float((ended @ cost).min()))
    return best


def by_jobs_once(loaned: Sequence[str], guests: Sequence[Guest], count: int) -> list[str]:
    """Fewest jobs on the node first, as counted at the beginning."""
    jobs = {node: sum(node in guest.nodes for guest in guests) for node in loaned}
    return sorted(loaned, key=jobs.__getitem__)[:count]
