# SPDX-License-Identifier: MIT
"""Which jobs run, and how many flexible workers each elastic one has: Aryl's two phases.

After Aryl (arXiv 2202.07896) and Lyra (EuroSys 2023). An elastic job needs its base workers, and can use flexible
ones up to its most. Phase 1 starts jobs with their full (inelastic) or base demand, shortest first; phase 2 gives what
is left to flexible workers, by a multiple-choice knapsack on seconds of completion time saved.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from slurm_pal.base.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EXACT = 1_000_000
"""The knapsack is solved exactly up to so many GPUs x items, greedily above."""
CHURN = 2.0
"""A worker count changes only if that saves so many times the restart that it costs."""
COOL_DOWN_S = 1800.0


class Item(NamedTuple):
    """A job that wants to start."""

    job: str
    gpus: int  # full demand of an inelastic job, base demand of an elastic one
    run_s: float  # how long it is believed to run with them


class ElasticJob(NamedTuple):
    """An elastic job that runs, or is about to."""

    job: str
    base: int  # workers that it always has
    most: int  # workers that it can use
    gpus: int  # of each worker
    remaining_s: float  # with its base workers
    rates: tuple[float, ...] = ()  # speed with base, base + 1, ... most workers, any unit; () for linear scaling
    flexible: int = 0  # workers beyond the base that it has now
    restart_s: float = 0.0  # what a change of its workers costs it
    still_s: float = math.inf  # since its last change


def admit(items: Iterable[Item], take: Callable[[Item], bool]) -> list[Item]:
    """Phase 1: try the items shortest first (ties as given); `take` places one or says that it does not fit now.

    What does not fit is passed over. Returns those that were taken.
    """
    return [item for item in sorted(items, key=lambda item: item.run_s) if take(item)]


def flexible_workers(
    jobs: Sequence[ElasticJob], gpus: int, *, churn: float = 0.0, cool_down_s: float = 0.0, exact: int = EXACT
) -> dict[str, int]:
    """Phase 2: job -> flexible workers, such that `gpus` suffice and the seconds saved are most.

    With `churn` a change of a job's count is charged `churn` x its restart_s, so only changes that save as much are
    made (CHURN is ours; published: 0); a job that changed less than `cool_down_s` ago keeps its count as long as the
    GPUs for all of these suffice. Exact by dynamic programming where GPUs x items <= `exact`, else greedy by seconds
    per GPU. Raises UsageError for wrong counts, GPUs, seconds or rates.
    """
    if gpus < 0:
        raise UsageError(f"{gpus} GPUs for flexible workers; there must be at least 0")
    values = {job.job: _values(job, churn) for job in jobs}
    if len(values) < len(jobs):
        raise UsageError(f"{len(jobs)} elastic jobs have {len(values)} names; each needs its own")
    kept = {job.job: job.flexible for job in jobs if job.flexible and job.still_s < cool_down_s}
    still = {job.job: 0 for job in jobs if not job.flexible and job.still_s < cool_down_s}
    left = gpus - sum(job.gpus * kept.get(job.job, 0) for job in jobs)
    if left < 0:  # they cannot all be left alone
        kept, left = {}, gpus
    free = [job for job in jobs if job.job not in kept and job.job not in still]
    items = sum(len(values[job.job]) - 1 for job in free)
    solve = _exact if left * items <= exact else _greedy
    return {**kept, **still, **solve([(job, values[job.job]) for job in free], left)}


def saved_s(job: ElasticJob, flexible: int) -> float:
    """Seconds of completion time that so many flexible workers save."""
    return _values(job, 0.0)[flexible]


_Group = tuple[ElasticJob, list[float]]


def _values(job: ElasticJob, churn: float) -> list[float]:
    """Value of 0, 1, ... flexible workers, the charge for changing taken off. Raises UsageError."""
    spare = job.most - job.base
    if not (0 < job.base <= job.most and 0 <= job.flexible <= spare and job.gpus > 0):
        raise UsageError(
            f"elastic job {job.job}: base {job.base}, most {job.most}, flexible {job.flexible} workers of {job.gpus} "
            "GPUs; base and GPUs must be above 0, most at least base, and flexible at most what lies between"
        )
    if not (0 <= job.remaining_s < math.inf and 0 <= job.restart_s < math.inf):
        raise UsageError(
            f"elastic job {job.job}: {job.remaining_s} s to run, {job.restart_s} s a restart; both must be at least 0"
        )
    rates = job.rates or tuple(range(job.base, job.most + 1))
    if len(rates) != spare + 1 or not all(0 < rate < math.inf for rate in rates):
        raise UsageError(
            f"elastic job {job.job} has the rates {job.rates}; it needs {spare + 1}, for {job.base} to {job.most} "
            "workers, each above 0"
        )
    found = [job.remaining_s * (1.0 - rates[0] / rate) for rate in rates]
    return [value - churn * job.restart_s * (number != job.flexible) for number, value in enumerate(found)]


def _exact(groups: Sequence[_Group], gpus: int) -> dict[str, int]:
    """Dynamic programming over GPUs: one item of each group, none of which is an item, too. O(GPUs x items)."""
    import numpy as np  # most ticks have no elastic job

    unit = math.gcd(*(job.gpus for job, _ in groups)) if groups else 1
    room = gpus // unit + 1
    best = np.zeros(room)  # by units of GPUs: what the groups so far save at most
    chosen: list[NDArray[np.int64]] = []
    for job, values in groups:
        found, choice = best + values[0], np.zeros(room, dtype=np.int64)
        for number in range(1, len(values)):
            weight = number * job.gpus // unit
            if weight >= room:
                break
            with_it = best[: room - weight] + values[number]
            better = with_it > found[weight:]
            found[weight:][better] = with_it[better]
            choice[weight:][better] = number
        best = found
        chosen.append(choice)
    counts, left = {}, room - 1
    for (job, _), choice in zip(reversed(groups), reversed(chosen), strict=True):
        counts[job.job] = int(choice[left])
        left -= counts[job.job] * job.gpus // unit
    return counts


def _greedy(groups: Sequence[_Group], gpus: int) -> dict[str, int]:
    """The step of most value per GPU, again and again; a step may be several workers, where a curve is not concave."""
    by_name = {job.job: (job, values) for job, values in groups}
    counts = dict.fromkeys(by_name, 0)

    def step(name: str, left: int) -> tuple[float, str, int] | None:
        """(value per GPU, negative; job; its next count) of its best step; None without one that pays and fits."""
        job, values = by_name[name]
        now = counts[name]
        most = min(len(values) - 1, now + left // job.gpus)
        options = [((values[now] - values[to]) / ((to - now) * job.gpus), name, to) for to in range(now + 1, most + 1)]
        best = min(options, default=None)
        return best if best is not None and best[0] < 0 else None

    heap = [found for name in by_name if (found := step(name, gpus)) is not None]
    heapq.heapify(heap)
    while heap:
        _, name, to = heapq.heappop(heap)
        weight = (to - counts[name]) * by_name[name][0].gpus
        if weight <= gpus:
            counts[name] = to
            gpus -= weight
        following = step(name, gpus)
        if following is not None:
            heapq.heappush(heap, following)
    return counts
