# SPDX-License-Identifier: MIT
"""Who runs the policies that are no study: the room `twin`, which imports this one and is handed in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from slurm_pal.simulate.pool import Progress
from slurm_pal.simulate.replay import ReplayPlan
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.settings import ReplaySettings


class Program(Protocol):
    """The program, over a virtual Slurm. Sent to worker processes, so it must be picklable."""

    def check(self, policies: Iterable[str], queue: str, settings: ReplaySettings) -> None:
        """Raises UsageError for what Slurm or the program does not have."""
        ...

    def levers(self, policy: str) -> frozenset[str]:
        """What a policy does to the queue, of `policies.LEVERS`."""
        ...

    def charged(self, policy: str, settings: ReplaySettings) -> dict[str, str]:
        """What a replay under it charges and assumes otherwise than a study: name -> value with its unit."""
        ...

    def run(self, plan: ReplayPlan, progress: Progress | None = None) -> Replay:
        """Replay a trace under one of the program's policies."""
        ...
