# SPDX-License-Identifier: MIT
"""Who is first in line: the queues as rows of a table.

A key is ascending; ties fall to the earlier submission. Keys see the pending job, the
moment and the usage so far, never the true run time of an unfinished job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol


class QueuedJob(Protocol):
    """What a queue may know of a pending job."""

    submit_s: float
    limit_s: float
    gpus: int
    user: str
    account: str
    attained_s: float  # run time received so far, before moves and restarts


class Usage:
    """GPU-seconds per account, halved every `half_life_s` (Slurm's PriorityDecayHalfLife)."""

    def __init__(self, half_life_s: float = 7 * 86400.0) -> None:
        self._half_life_s = half_life_s
        self._used: dict[str, tuple[float, float]] = {}
        self._total = (0.0, 0.0)
        self._fair: dict[str, float] = {}  # of the moment last asked about
        self._asked_s = math.nan

    def add(self, account: str, gpu_s: float, now_s: float) -> None:
        self._used[account] = (self._decayed(self._used.get(account, (0.0, now_s)), now_s) + gpu_s, now_s)
        self._total = (self._decayed(self._total, now_s) + gpu_s, now_s)
        self._asked_s = math.nan

    def add_all(self, used: Iterable[tuple[str, float]], now_s: float) -> None:
        """The same for many (account, GPU-seconds) at one moment."""
        new: dict[str, float] = {}
        total = self._decayed(self._total, now_s)
        for account, gpu_s in used:
            if account not in new:
                new[account] = self._decayed(self._used.get(account, (0.0, now_s)), now_s)
            new[account] += gpu_s
            total += gpu_s
        self._used.update((account, (so_far, now_s)) for account, so_far in new.items())
        self._total = total, now_s
        self._asked_s = math.nan

    def share(self, account: str, now_s: float) -> float:
        """The account's part of all decayed usage, 0..1."""
        total = self._decayed(self._total, now_s)
        return self._decayed(self._used.get(account, (0.0, now_s)), now_s) / total if total > 0 else 0.0

    def fair(self, account: str, now_s: float) -> float:
        """2^(-usage / share) with equal shares for all accounts, 0..1."""
        if now_s != self._asked_s:
            self._fair, self._asked_s = {}, now_s
        if account not in self._fair:
            self._fair[account] = math.pow(2.0, -self.share(account, now_s) * max(1, len(self._used)))
        return self._fair[account]

    def _decayed(self, entry: tuple[float, float], now_s: float) -> float:
        used, since_s = entry
        return used * math.pow(0.5, (now_s - since_s) / self._half_life_s)


Key = Callable[[QueuedJob, float, Usage], float]


class QueueOrder(NamedTuple):
    """One row."""

    key: Key
    summary: str
    fixed: bool = True  # the key of a pending job stays as it is while it waits


MAX_AGE_S = 7 * 86400.0
"""PriorityMaxAge, Slurm's default."""
WEIGHTS: Mapping[str, float] = {"age": 1000.0, "fairshare": 1000.0, "size": 100.0}


def multifactor(job: QueuedJob, now_s: float, usage: Usage) -> float:
    """Age, fair share and size as in Slurm's priority/multifactor (slurm.conf(5)), one level of accounts."""
    age = min(1.0, (now_s - job.submit_s) / MAX_AGE_S)
    fair = usage.fair(job.account or job.user, now_s)
    size = min(1.0, job.gpus / 64.0)
    return -(WEIGHTS["age"] * age + WEIGHTS["fairshare"] * fair + WEIGHTS["size"] * size)


QUEUES: Mapping[str, QueueOrder] = {
    "fifo": QueueOrder(lambda job, now_s, usage: job.submit_s, "first come, first served (priority/basic)"),
    "las": QueueOrder(
        lambda job, now_s, usage: job.attained_s,
        "least attained service first (Tiresias); without preemption only restarted jobs differ from fifo",
    ),
    "srtf": QueueOrder(lambda job, now_s, usage: job.limit_s - job.attained_s, "shortest remaining time limit first"),
    "multifactor": QueueOrder(multifactor, "age, fair share and size, as priority/multifactor", fixed=False),
}
