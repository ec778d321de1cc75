# SPDX-License-Identifier: MIT
"""A site in a folder of its own: settings, the published snapshot, an environment without the caller's words."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import isnan

from slurm_pal.base.config import KEYS, Config
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.simulate.hardware import Hardware
from slurm_pal.store import snapshot
from slurm_pal.store.snapshot import GpuScore

ORIGIN = "the twin"
MODEL = "gpu"
_FOREIGN = ("SBATCH_", "SLURM", "SALLOC_", "SRUN_")


def relocated(config: Config, folder: str) -> Config:
    """The site's settings, with every path below `folder`; nothing is written where a real site has it, or told it."""
    made = copy.deepcopy(config)
    made.set("paths", "state_dir", folder, ORIGIN)
    for name in ("snapshot", "spool", "table", "gpus"):
        made.set("paths", name, "", ORIGIN)
    for name in ("log", "metrics"):
        made.set("rebalance", name, "", ORIGIN)
    for name in KEYS["hooks"]:
        made.set("hooks", name, "", ORIGIN)
    return made


def publish(config: Config, machine: Hardware, now_s: float) -> None:
    """Write what is believed of the GPUs as the snapshot."""
    centroids: dict[str, list[float]] = {}
    for c in SENSITIVITY_CLASSES:
        values = {round(x, 6) for row in machine.level[c] for x in row}
        centroids[c] = sorted(values)[: snapshot.NO_CLASS - 1]
    number = {c: {x: f"v{k}" for k, x in enumerate(values)} for c, values in centroids.items()}
    gpus = []
    for node, name in enumerate(machine.names):
        for index in range(len(machine.believed["A"][node])):
            slow = {c: float(machine.believed[c][node][index]) for c in SENSITIVITY_CLASSES}
            bins = {c: number[c].get(round(machine.level[c][node][index], 6), "?") for c in SENSITIVITY_CLASSES}
            known = {c: x for c, x in slow.items() if not isnan(x)}
            model = machine.models[node] if machine.models else MODEL
            gpus.append(GpuScore(name, index, f"{name}-{index}", model, known, bins, now_s - 3600.0, 1.0, ()))
    snapshot.publish(config.snapshot_path, gpus, cluster="twin", epoch=1, now_s=now_s, centroids=centroids)


@contextmanager
def own_environment(folder: str) -> Iterator[None]:
    """palsub reads the environment: in the block it has none of the caller's words for Slurm, and a home of its own."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(_FOREIGN):
            del os.environ[name]
    os.environ["XDG_STATE_HOME"] = folder
    os.environ["SLURM_CONF"] = os.path.join(folder, "slurm.conf")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
