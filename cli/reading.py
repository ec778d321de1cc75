# SPDX-License-Identifier: MIT
"""What the commands read that only show the site: the snapshot, Slurm's view, the choice of nodes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from slurm_pal.base import config as settings
from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.base.hostlist import typed
from slurm_pal.cli import common
from slurm_pal.cli.gpu import Place
from slurm_pal.report import inventory
from slurm_pal.slurm.client import Overview
from slurm_pal.store import snapshot as snapshots


def load() -> tuple[snapshots.Snapshot | None, Overview | None]:
    """Snapshot and Slurm's view; what is missing is reported in one line on stderr.

    Raises SlurmError when both are missing.
    """
    return inventory.look(settings.load(), complain)


def complain(line: str) -> None:
    """Report on stderr what an answer lacks."""
    common.say(f"pal: {line}", err=True)


def selected(nodelist: str | None, known: set[str]) -> set[str]:
    """The nodes of a host list; all where there is none. Raises UsageError for an unknown one."""
    if nodelist is None:
        return known
    wanted = set(typed(nodelist))
    unknown = sorted(wanted - known)
    if unknown:
        raise UsageError(f"no such node: {', '.join(unknown)}; sinfo -N lists the nodes")
    return wanted


def places(rows: Iterable[inventory.GpuRow]) -> list[Place]:
    """Where the GPUs of these rows are."""
    return [Place(row.node, row.gpu_index, row.uuid) for row in rows]


def notices(config: settings.Config) -> list[dict[str, Any]]:
    """What the snapshot says about its classes; nothing where there is none."""
    try:
        return snapshots.read(config.snapshot_path).notices
    except DataError:
        return []


def gpu_rows(nodelist: str | None) -> list[inventory.GpuRow]:
    """The GPUs of the chosen nodes, as of now."""
    return site(nodelist)[1]


def site(nodelist: str | None) -> tuple[snapshots.Snapshot | None, list[inventory.GpuRow], Overview | None]:
    """The same with the snapshot that they come from, and Slurm's view of the whole site, where it answers."""
    snapshot, overview = load()
    rows = inventory.gpu_rows(snapshot, overview, time.time())
    chosen = selected(nodelist, {row.node for row in rows})
    return snapshot, [row for row in rows if row.node in chosen], overview
