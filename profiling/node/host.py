# SPDX-License-Identifier: MIT
"""What the node's processors do beside the measurement, from /proc.

A busy host, or one with stolen time, slows launches and copies: the flag `host_noise` spoils class B
and node health, not a matrix product.
"""

from __future__ import annotations

import os
from typing import NamedTuple

STEAL_SHARE = 0.01  # of all processor time, taken by the hypervisor for others
_STEAL = 7  # user nice system idle iowait irq softirq steal (proc_stat(5)); guest time is in user already


class Host(NamedTuple):
    """One look at the node; None where /proc does not say."""

    load: float | None = None  # runnable processes, mean over a minute
    cores: int = 0  # processors of the node, ours or not; 0 unknown
    ticks: int | None = None  # processor time so far, all kinds, all cores
    steal_ticks: int | None = None


def look(proc: str = "/proc") -> Host:
    """The node as it is now. `proc` is where procfs is mounted."""
    lines = _read(proc, "stat").splitlines()
    words = _read(proc, "loadavg").split()
    times = [int(word) for word in lines[0].split()[1:9]] if lines and lines[0].startswith("cpu ") else []
    return Host(
        load=float(words[0]) if words else None,
        cores=sum(1 for line in lines if line.startswith("cpu") and line[3:4].isdigit()),
        ticks=sum(times) if times else None,
        steal_ticks=times[_STEAL] if len(times) > _STEAL else None,
    )


def noise(before: Host, after: Host) -> str:
    """Why the host was too busy to trust what depends on it; "" when it was not, or is not known."""
    if after.load is not None and after.cores and after.load > after.cores:
        return f"load {after.load:g} on {after.cores} cores"
    if None in (before.ticks, after.ticks, before.steal_ticks, after.steal_ticks):
        return ""
    spent = (after.ticks or 0) - (before.ticks or 0)
    stolen = (after.steal_ticks or 0) - (before.steal_ticks or 0)
    if spent > 0 and stolen > STEAL_SHARE * spent:
        return f"{100 * stolen / spent:.1f} % of processor time stolen"
    return ""


def _read(proc: str, name: str) -> str:
    try:
        with open(os.path.join(proc, name), encoding="ascii") as stream:
            return stream.read()
    except OSError:
        return ""
