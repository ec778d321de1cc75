# SPDX-License-Identifier: MIT
"""Which loaned nodes go back to their owner, so that guests lose least.

After Aryl (arXiv 2202.07896) and Lyra (EuroSys 2023, DOI 10.1145/3552326.3587445): a node's server preemption cost is
the sum over its jobs of cost / nodes of the job, and the cheapest node goes first. A job that is preempted leaves all
of its nodes, so what it adds to the cost of the others ends with it. Fewest jobs for a number of nodes is NP-hard.

Where few sets of nodes are possible they are all compared, else what greedy finds is improved by exchanging nodes:
greedy alone comes some percent above the optimum, more so where costs are lost work, which differ by orders of
magnitude (docs/benchmarks.md).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from slurm_pal.base.errors import UsageError

SETS = 5000
"""So many sets of nodes are compared at once: 4 of 20 nodes, 3 of 32."""
EXCHANGES = 64
"""At most so many times: each exchange makes the result cheaper, and a handful is usual."""

Worth = tuple[float, int, int]
"""Cost, preempted jobs, flexible workers: less is better, in this order."""


class Guest(NamedTuple):
    """A job with workers on loaned nodes."""

    job: str
    nodes: tuple[str, ...]  # all nodes where it has workers, loaned or not
    cost: float  # what preempting it loses: GPU-seconds, or 1.0 to count jobs
    flexible: bool = False  # a flexible worker: its base job runs on without it, so that ending it preempts nobody


class Reclaim(NamedTuple):
    """Nodes that go back, and what ends for it."""

    nodes: tuple[str, ...]  # in the order in which they were chosen
    released: tuple[str, ...]  # flexible workers that end
    preempted: tuple[str, ...]  # jobs that leave all of their nodes
    cost: float  # of the preempted jobs together, in the unit of Guest.cost


def reclaim(loaned: Sequence[str], guests: Sequence[Guest], count: int) -> Reclaim:
    """Give back `count` of the `loaned` nodes; all of them where `count` is larger.

    Unused nodes go first, then nodes with flexible workers only, fewest workers first, then the node of the least
    server preemption cost, one by one; ties by the order of `loaned`. Raises UsageError for a negative count, a job
    that is named twice, and a guest without nodes or with a cost that is not a finite number of at least 0.
    """
    return outcome(by_cost(loaned, guests, count), guests)


def outcome(nodes: Iterable[str], guests: Sequence[Guest]) -> Reclaim:
    """What giving back these nodes ends."""
    chosen = tuple(nodes)
    gone = set(chosen)
    ended = [guest for guest in guests if not gone.isdisjoint(guest.nodes)]
    preempted = [guest for guest in ended if not guest.flexible]
    return Reclaim(
        nodes=chosen,
        released=tuple(guest.job for guest in ended if guest.flexible),
        preempted=tuple(guest.job for guest in preempted),
        cost=math.fsum(guest.cost for guest in preempted),
    )


# -- rules: (loaned nodes, guests, how many) -> nodes, each raising UsageError as `reclaim` does ---------------


def by_cost(loaned: Sequence[str], guests: Sequence[Guest], count: int, exact: int = SETS) -> list[str]:
    """The rule of `reclaim`: the cheapest of up to `exact` sets of nodes; where there are more, greedy and exchanges.

    What greedy finds stays where nothing is cheaper.
    """
    on = _present(loaned, guests, count)
    greedy = greedy_by_cost(loaned, guests, count)
    lost = _lost(greedy, on)
    if not lost[1]:  # nobody is preempted
        return greedy
    if math.comb(len(on), len(greedy)) <= exact:
        found = cheapest(loaned, guests, count)
        return found if _lost(found, on) < lost else greedy
    starts = greedy, _one_by_one(loaned, guests, count, _whole)
    return min((_exchanged(start, loaned, guests) for start in starts), key=lambda chosen: _lost(chosen, on))


def greedy_by_cost(loaned: Sequence[str], guests: Sequence[Guest], count: int) -> list[str]:
    """Greedy by server preemption cost with update, as published."""

    return _one_by_one(loaned, guests, count, _shares)


def by_jobs(loaned: Sequence[str], guests: Sequence[Guest], count: int) -> list[str]:
    """Fewest jobs on the node first, flexible workers among them; a job that has ended counts no more."""
    return _one_by_one(loaned, guests, count, _number)


def by_jobs_once(loaned: Sequence[str], guests: Sequence[Guest], count: int) -> list[str]:
    """Fewest jobs first as counted at the beginning."""
    on = _present(loaned, guests, count)
    return sorted(on, key=lambda node: len(on[node]))[:count]


def at_random(loaned: Sequence[str], guests: Sequence[Guest], count: int, rng: random.Random) -> list[str]:
    """Unused nodes first, then any."""
    on = _present(loaned, guests, count)
    drawn = rng.sample(list(on), len(on))
    return sorted(drawn, key=lambda node: bool(on[node]))[:count]


def cheapest(loaned: Sequence[str], guests: Sequence[Guest], count: int) -> list[str]:
    """The optimum by trying all sets of nodes, for tests and studies: 1,001 sets for 4 of 14 nodes."""
    on = _present(loaned, guests, count)
    return list(min(combinations(on, min(count, len(on))), key=lambda nodes: _lost(nodes, on)))


# -- how ------------------------------------------------------------------------------------


def _present(loaned: Sequence[str], guests: Sequence[Guest], count: int) -> dict[str, list[Guest]]:
    """Loaned node -> guests on it. Raises UsageError for input that makes no sense."""
    if count < 0:
        raise UsageError(f"{count} nodes to reclaim; it must be at least 0")
    if len({guest.job for guest in guests}) < len(guests):
        raise UsageError(f"{len(guests)} guests have {len({guest.job for guest in guests})} names; each needs its own")
    on: dict[str, list[Guest]] = {node: [] for node in loaned}
    for guest in guests:
        if not guest.nodes or not 0 <= guest.cost < math.inf:
            raise UsageError(
                f"guest {guest.job} has {len(guest.nodes)} nodes and the cost {guest.cost}; "
                "it needs a node, and a finite cost of at least 0"
            )
        for node in dict.fromkeys(guest.nodes):
            if node in on:
                on[node].append(guest)
    return on


def _shares(present: Sequence[Guest]) -> Worth:
    """The server preemption cost of a node, then its jobs, then its flexible workers."""
    bases = [guest for guest in present if not guest.flexible]
    return sum(guest.cost / len(guest.nodes) for guest in bases), len(bases), len(present) - len(bases)


def _whole(present: Sequence[Guest]) -> Worth:
    """The same with all that its jobs lose, wherever else they are."""
    bases = [guest for guest in present if not guest.flexible]
    return sum(guest.cost for guest in bases), len(bases), len(present) - len(bases)


def _number(present: Sequence[Guest]) -> Worth:
    return 0.0, len(present), 0


def _one_by_one(
    loaned: Sequence[str], guests: Sequence[Guest], count: int, worth: Callable[[Sequence[Guest]], Worth]
) -> list[str]:
    """The node whose guests are worth least, again and again; its guests leave their other nodes."""
    on = _present(loaned, guests, count)
    found: list[str] = []
    while on and len(found) < count:
        node = min(on, key=lambda name: worth(on[name]))
        found.append(node)
        ended = {guest.job for guest in on.pop(node)}
        for name, present in on.items():
            on[name] = [guest for guest in present if guest.job not in ended]
    return found


def _exchanged(nodes: list[str], loaned: Sequence[str], guests: Sequence[Guest]) -> list[str]:
    """The best exchange of one or two chosen nodes for others, again and again while it makes the whole cheaper."""
    on = _present(loaned, guests, len(nodes))
    found, lost = nodes, _lost(nodes, on)
    for _ in range(EXCHANGES):
        others = [node for node in on if node not in found]
        tried = [
            [*(node for node in found if node not in out), *into]
            for size in (1, 2)
            if math.comb(len(found), size) * math.comb(len(others), size) <= SETS
            for out in combinations(found, size)
            for into in combinations(others, size)
        ]
        best = min(tried, key=lambda chosen: _lost(chosen, on), default=found)
        if _lost(best, on) >= lost:
            break
        found, lost = best, _lost(best, on)
    return found


def _lost(nodes: Iterable[str], on: Mapping[str, Sequence[Guest]]) -> tuple[float, int, int]:
    """What giving back these nodes ends, as rules compare it: cost, then preempted jobs, then flexible workers."""
    ended = {guest.job: guest for node in nodes for guest in on[node]}.values()
    costs = [guest.cost for guest in ended if not guest.flexible]
    return math.fsum(costs), len(costs), len(ended) - len(costs)
