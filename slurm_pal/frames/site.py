# SPDX-License-Identifier: MIT
"""The GPUs of this site, by Slurm's view and the published snapshot."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from slurm_pal.base import config as settings
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.frames.columns import CATEGORY, COUNT, NUMBER, TEXT, TIME, TRUTH, Column, described, frame
from slurm_pal.frames.missing import warn
from slurm_pal.report import inventory

if TYPE_CHECKING:
    import pandas as pd

CLASSES = tuple(f"v{k}" for k in range(10))
"""Variability classes, the fastest first."""

GPUS = (
    Column("node", TEXT, "node, as Slurm names it"),
    Column("index", COUNT, "Slurm's index of the GPU on its node"),
    Column("uuid", TEXT, "UUID of the GPU; NA: never measured"),
    Column("model", TEXT, "model of the GPU"),
    *(
        Column(f"slowdown_{c}", NUMBER, f"time relative to the median GPU of its model, class {c} (ratio, 1 = median)")
        for c in SENSITIVITY_CLASSES
    ),
    *(
        Column(f"class_{c}", CATEGORY, f"variability class for sensitivity class {c}: v0 is the fastest", CLASSES, True)
        for c in SENSITIVITY_CLASSES
    ),
    Column("measured_time", TIME, "end of the newest measurement in use; NaT: never measured"),
    Column("in_use", TRUTH, "whether a job holds it; NA: Slurm was not asked or does not know the node"),
    Column("node_state", TEXT, "Slurm's state of the node, like IDLE+DRAIN; NA: as for in_use"),
    Column("flags", TEXT, "flags, joined by commas; empty: none"),
    Column("state", TEXT, "ok, or missing, no-answer, xid, ecc, suspect: seen to fail, and not measured cleanly since"),
)


@described(GPUS)
def gpus() -> pd.DataFrame:
    """One row for each GPU that Slurm or the published snapshot knows, as `pal gpus` shows them.

    Warns where one of the two is missing. Raises SlurmError where both are, ConfigError.
    """
    snapshot, overview = inventory.look(settings.load(), warn)
    now_s = time.time()
    states = {node.name: "+".join(sorted(node.states)) for node in overview.nodes} if overview else {}
    rows = inventory.gpu_rows(snapshot, overview, now_s)
    return frame(GPUS, [_row(row, states.get(row.node), now_s) for row in rows])


def _row(row: inventory.GpuRow, state: str | None, now_s: float) -> tuple[object, ...]:
    measured_s = None if row.age_s is None else round(now_s - row.age_s, 3)
    classes = [row.variability_class.get(c, "?").replace("?", "") for c in SENSITIVITY_CLASSES]
    slowdowns = [row.slowdown.get(c) for c in SENSITIVITY_CLASSES]
    return (
        row.node, row.gpu_index, row.uuid or None, row.model or None, *slowdowns, *classes, measured_s, row.in_use,
        state, ",".join(row.flags), row.state,
    )  # fmt: skip
