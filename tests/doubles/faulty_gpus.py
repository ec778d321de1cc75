# SPDX-License-Identifier: MIT
"""Snapshots in which some GPUs were seen to fail."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from slurm_pal.base.cluster import Gpu
from slurm_pal.store.snapshot import FLAGS, Snapshot, changeable


def broken(snapshot: Snapshot, faults: Mapping[Gpu, str]) -> Snapshot:
    """The snapshot with a flag on each of these GPUs (node, index)."""
    made = copy.copy(snapshot)
    made.columns = {**snapshot.columns, "flags": changeable(snapshot, "flags")}
    for (node, index), flag in faults.items():
        row = made.row(node, index)
        assert row is not None
        made.columns["flags"][row] |= 1 << FLAGS.index(flag)
    return made
