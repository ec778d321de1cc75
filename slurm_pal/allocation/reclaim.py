# SPDX-License-Identifier: MIT
"""Which loaned nodes go back to their owner, so that guests lose least.

After Aryl (arXiv 2202.07896) and Lyra (EuroSys 2023, DOI 10.1145/3552326.3587445): a node's server preemption cost is
the sum over its jobs of cost / nodes of the job, and the cheapest node goes first. A job that is preempted leaves all
of its nodes, so what it adds to the cost of the others ends with it. Fewest jobs for a number of nodes is NP-hard.

Greedy comes some percent above the optimum, more so where costs are lost work, which differ by orders of magnitude
(docs/benchmarks.md). At these sizes an integer program finds the optimum in milliseconds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.errors import UsageError

PAIRS = 1000
"""So many pairs of a guest and its loaned node go to the integer program (seconds, at worst); greedy does more."""
STEP = 1e-6
"""What a preempted job counts beside its cost, as a part of the largest cost: fewest jobs of about the same cost."""

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

    Unused nodes go first, then nodes with flexible workers only, fewest workers first, then those that together lose
    least; ties by server preemption cost, then by the order of `loaned`. Raises UsageError for a negative count, a job
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


def by_cost(loaned: Sequence[str], guests: Sequence[Guest], count: int) -> list[str]:
    """The rule of `reclaim`: the cheapest set of nodes; up to PAIRS the optimum, else what greedy finds.

    What greedy finds stays where nothing is cheaper, or where the solver fails.
    """
    on = _present(loaned, guests, count)
    greedy = greedy_by_cost(loaned, guests, count)
    lost = _lost(greedy, on)
    if not lost[1] or sum(map(len, on.values())) > PAIRS:  # nobody is preempted, or too many could be
        return greedy
    found = _cheapest(on, len(greedy))
    return found if found is not None and _lost(found, on) < lost else greedy


def greedy_by_cost(loaned: Sequence[str], guests: Sequence[Guest], count: int) -> list[str]:
    """Greedy by server preemption cost with update, as published."""

    return _one_by_one(loaned, guests, count, _shares)


def by_jobs(loaned: Sequence[str], guests: Sequence[Guest], count: int) -> list[str]:
    """Fewest jobs on the node first, flexible workers among them; a job that has ended counts no more."""
    return _one_by_one(loaned, guests, count, _number)


def at_random(loaned: Sequence[str], guests: Sequence[Guest], count: int, rng: random.Random) -> list[str]:
    """Unused nodes first, then any."""
    on = _present(loaned, guests, count)
    drawn = rng.sample(list(on), len(on))
    return sorted(drawn, key=lambda node: bool(on[node]))[:count]


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


def _cheapest(on: Mapping[str, Sequence[Guest]], count: int) -> list[str] | None:
    """The optimum: `count` nodes are chosen, and a job is preempted where any of its nodes is. None: unsolved.

    Variables: each node chosen or not, then each job preempted or not, which follows, so that it may be any number.
    """
    import numpy as np  # here, like the solver: `pal` starts without them

    from slurm_pal.allocation.linear import INFINITE, LinearProgram, Rows, UnsolvedError, together

    names = list(on)
    jobs = list({guest.job: guest for present in on.values() for guest in present if not guest.flexible}.values())
    number = {guest.job: len(names) + place for place, guest in enumerate(jobs)}
    pairs = [(number[guest.job], at) for at, name in enumerate(names) for guest in on[name] if guest.job in number]
    row = np.arange(len(pairs))
    follows = Rows(
        np.repeat(row, 2), np.array(pairs).ravel(), np.tile([1.0, -1.0], len(pairs)), np.zeros(len(pairs)),
        np.full(len(pairs), INFINITE),
    )  # fmt: skip
    each = np.arange(len(names))
    chosen = Rows(np.zeros_like(each), each, np.ones(len(names)), np.array([float(count)]), np.array([float(count)]))
    most = max(guest.cost for guest in jobs) or 1.0
    cost = np.array([0.0] * len(names) + [guest.cost / most + STEP for guest in jobs])
    program = LinearProgram(
        cost, together(follows, chosen), upper=np.ones(len(cost)), maximise=False, integers=len(names)
    )
    try:
        taken = program.solve().x[: len(names)]
    except UnsolvedError:
        return None
    return [names[at] for at in np.argsort(-np.round(taken), kind="stable")[:count]]


def _lost(nodes: Iterable[str], on: Mapping[str, Sequence[Guest]]) -> tuple[float, int, int]:
    """What giving back these nodes ends, as rules compare it: cost, then preempted jobs, then flexible workers."""
    ended = {guest.job: guest for node in nodes for guest in on[node]}.values()
    costs = [guest.cost for guest in ended if not guest.flexible]
    return math.fsum(costs), len(costs), len(ended) - len(costs)
