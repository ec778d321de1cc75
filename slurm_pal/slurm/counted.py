# SPDX-License-Identifier: MIT
"""A runner that counts queries to Slurm and changes in it, since both cost slurmctld time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from slurm_pal.slurm.client import Completed, Runner
from slurm_pal.slurm.question import started

_ORDERS = frozenset({"create", "delete", "requeue", "update"})


class Counts(Protocol):
    """What was asked of Slurm so far, and what was ordered."""

    queries: int
    orders: int


class Counted:
    """Runs through another runner; `queries` only read, `orders` change something."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.after: Callable[[], None] = lambda: None
        """Called after each command, to show that the caller is alive: each command has its own time limit."""
        self.queries = 0
        self.orders = 0

    def __call__(self, argv: Sequence[str], stdin: str) -> Completed:
        return self.start(argv, stdin)()

    def start(self, argv: Sequence[str], stdin: str) -> Callable[[], Completed]:
        """As the other runner starts it; from a runner that cannot, the answer is there when this returns."""
        self._count(argv)
        wait = started(self._runner, argv, stdin)

        def answer() -> Completed:
            try:
                return wait()
            finally:
                self.after()

        return answer

    def _count(self, argv: Sequence[str]) -> None:
        if argv[0] in ("scancel", "sbatch") or (argv[0] == "scontrol" and _ORDERS.intersection(argv[1:2])):
            self.orders += 1
        else:
            self.queries += 1
