# SPDX-License-Identifier: MIT
"""Where a worker may run, and which GPUs the runtime in it may see.

Both are set in the worker itself, before the device runtime is initialised, and never
reset: the process ends with its GPU's measurement.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence

from slurm_pal.profiling.node.devices import DeviceInfo

VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES"}
"""The variable that tells a vendor's runtime which devices there are, by UUID and in this order."""


def show(device: DeviceInfo, peers: Iterable[DeviceInfo]) -> None:
    """Let the runtime see this device as its device 0, and its peers after it."""
    name = VISIBLE.get(device.vendor)
    if name:
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ[name] = ",".join([device.uuid, *(peer.uuid for peer in peers)])
        os.environ.pop("CUDA_LAUNCH_BLOCKING", None)  # a debugging aid that would time the host instead


def bind(device: DeviceInfo, sys_path: str = "/sys") -> tuple[int, ...]:
    """Keep this process on the processors of the GPU's NUMA node; return those it has now.

    Only those that the job has been given count; where none of them is near the GPU, or the
    system does not say, nothing changes.
    """
    allowed = os.sched_getaffinity(0)
    near = allowed.intersection(_numa_cpus(device.numa_node, sys_path))
    if near and near != allowed:
        with contextlib.suppress(OSError):  # a cpuset that has just shrunk
            os.sched_setaffinity(0, near)
    return tuple(sorted(os.sched_getaffinity(0)))


def _numa_cpus(numa_node: int | None, sys_path: str) -> Sequence[int]:
    if numa_node is None or numa_node < 0:  # -1: the platform has no NUMA, or does not say
        return ()
    path = os.path.join(sys_path, "devices", "system", "node", f"node{numa_node}", "cpulist")
    try:
        with open(path, encoding="ascii") as stream:
            return cpus(stream.read())
    except (OSError, ValueError):
        return ()


def cpus(text: str) -> tuple[int, ...]:
    """The kernel's list format, e.g. "0-3,8". Raises ValueError."""
    found: list[int] = []
    for word in text.strip().split(","):
        if word:
            first, _, last = word.partition("-")
            found += range(int(first), int(last or first) + 1)
    return tuple(found)
