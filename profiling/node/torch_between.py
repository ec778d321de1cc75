# SPDX-License-Identifier: MIT
"""All-reduces by torch.distributed, one process a GPU: NCCL (RCCL) on GPUs, gloo where a build has none."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from slurm_pal.base.errors import one_line
from slurm_pal.profiling.node.between import LARGE_BYTES, SMALL_BYTES, AllReduces, Ranks, per_launch_s
from slurm_pal.profiling.node.devices import DeviceError

CONNECT_S = 120.0
"""How long processes wait for each other, here and in a collective."""


def measured(place: Ranks, gpus: int) -> AllReduces:
    """What this process sees; all processes of both nodes are in here. Raises DeviceError."""
    try:
        return _measured(place, gpus)
    except RuntimeError as error:  # what torch raises for whatever its libraries refuse
        raise DeviceError(f"all-reduce of process {place.rank}: {one_line(error)}") from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _measured(place: Ranks, gpus: int) -> AllReduces:
    on_gpus = torch.cuda.is_available()
    device = torch.device("cpu")
    if on_gpus:
        device = torch.device("cuda", place.local % torch.cuda.device_count())  # one each, or all shown to each
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpus else "gloo",
        init_method=f"tcp://{place.address}:{place.port}",
        rank=place.rank,
        world_size=place.ranks,
        timeout=timedelta(seconds=CONNECT_S),
    )
    groups = [dist.new_group(list(range(first, first + gpus))) for first in range(0, place.ranks, gpus)]
    inside = groups[place.rank // gpus]

    def agreed(seconds: float) -> float:
        longest = torch.tensor([seconds], device=device)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        return float(longest.item())

    def taken_s(size: int, group: dist.ProcessGroup | None) -> float:
        data = torch.ones(size // 4, dtype=torch.float32, device=device)

        def run_block(launches: int) -> float:
            dist.barrier(group)
            _wait(device)
            started_s = time.monotonic()
            for _ in range(launches):
                dist.all_reduce(data, op=dist.ReduceOp.MAX, group=group)  # a sum of sums would overflow
            _wait(device)
            return time.monotonic() - started_s

        return per_launch_s(run_block, agreed)

    return AllReduces(*(taken_s(size, group) for size in (LARGE_BYTES, SMALL_BYTES) for group in (inside, None)))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
