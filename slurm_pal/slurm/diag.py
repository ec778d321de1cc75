# SPDX-License-Identifier: MIT
"""Whether slurmctld is too busy for changes by the tick, from sdiag(1)."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_pal.base.numbers import digits

MOST_AGENT_MESSAGES = 100
"""Messages waiting to be sent to nodes: above this, starts and ends of jobs lag behind."""


def busy(statistics: Mapping[str, str], busy_threads: int) -> str:
    """Why the tick should change nothing, or "". Pure; what sdiag does not show does not count.

    `busy_threads` is the setting rebalance.busy_threads; slurmctld has at most 256 (slurm.conf(5), max_rpc_cnt).
    """
    limits = {"Server thread count": busy_threads, "Agent queue size": MOST_AGENT_MESSAGES}
    for name, limit in limits.items():
        number = digits(statistics.get(name, ""))
        if number is not None and number >= limit:
            return f"slurmctld is busy: {name.lower()} {number}, and from {limit} on the tick changes nothing"
    return ""
