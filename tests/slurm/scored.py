# SPDX-License-Identifier: MIT
"""Made-up scores for a lab of four GPUs a node."""

from __future__ import annotations

import time
from collections.abc import Mapping

from slurm_pal.base.config import Config
from slurm_pal.store.snapshot import GpuScore, publish


def publish_slowdowns(config: Config, slowdowns: Mapping[str, float]) -> None:
    """Publish a snapshot: node -> the slowdown of its GPUs for classes A and B; class C feels nothing."""
    gpus = [
        GpuScore(node, k, f"{node}-{k}", "m", {"A": a, "B": a, "C": 1.0}, {"A": "v0"}, time.time(), 1.0, ())
        for node, a in slowdowns.items()
        for k in range(4)
    ]
    publish(config.snapshot_path, gpus, cluster="palab", epoch=1, now_s=time.time())
