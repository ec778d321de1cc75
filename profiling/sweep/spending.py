# SPDX-License-Identifier: MIT
"""What sweeps have cost in the last 24 hours, in GPU-hours, against a daily budget. Pure.

A job counts with its expected cost from the moment it is submitted: a budget that
learned of costs only afterwards would be overdrawn by the jobs that run at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

DAY_S = 86400.0


class Expense(NamedTuple):
    """One job of a sweep."""

    job: str  # any unique name
    at_s: float  # Unix s of its submission
    gpu_h: float


class Spending:
    """Expenses of the last 24 hours. A `limit_gpu_h` of 0 means no limit."""

    def __init__(self, limit_gpu_h: float, expenses: Iterable[Expense] = ()) -> None:
        self._limit_gpu_h = limit_gpu_h
        self._known = {e.job: e for e in expenses}

    def add(self, expense: Expense) -> None:
        """A job was submitted."""
        self._known[expense.job] = expense

    def take_back(self, job: str) -> None:
        """A job was withdrawn before it ran."""
        self._known.pop(job, None)

    def spent_gpu_h(self, now_s: float) -> float:
        """GPU-hours of the 24 hours before `now_s`; what is older is forgotten.

        An expense dated more than a day ahead is forgotten too: the clock was wrong then, and
        the budget would otherwise stay spent until that date.
        """
        self._known = {name: e for name, e in self._known.items() if abs(now_s - e.at_s) < DAY_S}
        return sum(e.gpu_h for e in self._known.values())

    def free_s(self, gpu_h: float, now_s: float) -> float:
        """From when (Unix s) a job of `gpu_h` fits into the budget; 0.0: now."""
        if not self._limit_gpu_h:
            return 0.0
        over_gpu_h = self.spent_gpu_h(now_s) + gpu_h - self._limit_gpu_h
        if over_gpu_h <= 1e-9:
            return 0.0
        for expense in sorted(self._known.values(), key=lambda e: e.at_s):
            over_gpu_h -= expense.gpu_h
            if over_gpu_h <= 1e-9:
                return expense.at_s + DAY_S
        return now_s + DAY_S  # a job dearer than a day's budget; a plan leaves such nodes out


def expenses(
    sweep_id: str, changes: Iterable[Mapping[str, object]], gpu_h: Mapping[str, float], since_s: float
) -> list[Expense]:
    """The jobs of one sweep's journal that were submitted after `since_s` and not withdrawn; those that left have run.

    `gpu_h`: node -> what its job was expected to cost.
    """
    found: dict[str, Expense] = {}
    under_way: dict[str, str] = {}  # node -> its job
    leavings: dict[str, object] = {}  # node -> how often it was left, at its job's submission
    for change in changes:
        node, state = str(change.get("node", "")), change.get("state")
        if state == "submitted":
            job = f"{sweep_id}:{change.get('job_id')}"
            if under_way.get(node) != job:
                leavings[node] = change.get("leavings", 0)
            under_way[node] = job
            found.setdefault(job, Expense(job, float(str(change.get("since_s", 0.0))), gpu_h.get(node, 0.0)))
            continue
        withdrawn = under_way.pop(node, "")
        if state in ("todo", "skipped") and change.get("leavings", 0) == leavings.get(node, 0):
            found.pop(withdrawn, None)
    return [e for e in found.values() if e.at_s > since_s]
