# SPDX-License-Identifier: MIT
"""What a sweep job of two nodes runs on each: an all-reduce within the node, then over the GPUs of both.

Started by srun as `python -m slurm_pal.profiling.node.between`: one process a GPU where a library connects them, one a
node for emulated GPUs. The first process of each node drops what it has seen in the spool.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from slurm_pal.base.errors import DataError, MissingPackageError, PalError, UsageError, one_line
from slurm_pal.base.files import write_atomic
from slurm_pal.base.numbers import digits
from slurm_pal.profiling.node.backends import Setting, open_backend
from slurm_pal.profiling.node.benchmarks import Benchmark, on_the_bus
from slurm_pal.store.ingest import spool_directories
from slurm_pal.store.level_ratios import file_name
from slurm_pal.variability.pair_times import PairTimes

LARGE_BYTES, SMALL_BYTES = 256 * 2**20, 64 * 2**10
"""As much as several buckets of gradients, and so little that only latency counts."""
WARM_UP = 3
BLOCKS = 7
BLOCK_S = 0.2
MOST_LAUNCHES = 10_000
DEVICE_S = 4 * (BLOCKS + 1) * BLOCK_S
"""Expected device time of two messages within a node and between two."""
LARGE = Benchmark(
    "allreduce_large", "", 1, "fp32", "256MiB", "any", "GB/s", float(LARGE_BYTES), 1e9, 200.0, BLOCK_S, peers=-1
)
SMALL = Benchmark("allreduce_small", "", 1, "fp32", "64KiB", "any", "us", 1.0, 1e6, 30.0, BLOCK_S, peers=-1)
PER_GPU = ("auto", "torch")
"""Backends that have one process a GPU."""


class AllReduces(NamedTuple):
    """Seconds of one all-reduce."""

    large_within_s: float
    large_between_s: float
    small_within_s: float
    small_between_s: float


class Ranks(NamedTuple):
    """This process among those that srun has started."""

    rank: int
    ranks: int
    local: int  # among those of its node
    address: str  # of the first node
    port: int


def cannot(backend: str) -> str:
    """Why a backend cannot measure between nodes; "" where it can."""
    known = (*PER_GPU, "emu")
    return "" if backend in known else f"backend {backend} has no all-reduce between nodes; {' and '.join(known)} have"


def per_launch_s(run_block: Callable[[int], float], agreed: Callable[[float], float] = float) -> float:
    """Seconds of one all-reduce: the median of some blocks of `run_block(launches)`.

    `agreed`: the same number for all processes, so that all launch as often.
    """
    run_block(WARM_UP)
    once_s = agreed(run_block(1))
    launches = max(1, min(MOST_LAUNCHES, math.ceil(BLOCK_S / max(once_s, 1e-9))))
    return median(run_block(launches) / launches for _ in range(BLOCKS))


def emulated(setting: Setting, nodes: Sequence[str], node: str, gpus: int) -> AllReduces:
    """What the lab's GPUs and network take. Raises PalError."""
    backend = open_backend(setting)
    places = {name: backend.devices(name, range(gpus)) for name in nodes}
    if any(len(found) < gpus for found in places.values()):
        raise DataError(f"not all of {gpus} GPUs are there")
    inside = places[node]
    both = (*inside, *(device for name in nodes if name != node for device in places[name]))

    def taken_s(spec: Benchmark, devices: Sequence[object]) -> float:
        asked = on_the_bus(spec, len(devices)) if spec is LARGE else spec
        return per_launch_s(backend.prepare(devices[0], asked, devices[1:]).run_block)  # type: ignore[arg-type]

    return AllReduces(*(taken_s(spec, devices) for spec in (LARGE, SMALL) for devices in (inside, both)))


def parser() -> argparse.ArgumentParser:
    """The options of a pair's processes."""
    p = argparse.ArgumentParser(prog="pal-profile between")
    p.add_argument("--sweep", required=True)
    p.add_argument("--spool", required=True)
    p.add_argument("--nodes", required=True)
    p.add_argument("--gpus", type=int, required=True)
    p.add_argument("--backend", required=True)
    p.add_argument("--registry", default="")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--wall-scale", type=float, default=None)
    return p


def ranks_of(environ: Mapping[str, str]) -> Ranks:
    """From what srun gives its processes. Raises UsageError outside of one."""
    numbers = [digits(environ.get(f"SLURM_{name}", "")) for name in ("PROCID", "NTASKS", "LOCALID", "JOB_ID")]
    rank, ranks, local, job_id = numbers
    address = environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    if rank is None or ranks is None or local is None or not job_id or not address:
        raise UsageError("this process was not started by srun: start a sweep with pal-profile network")
    return Ranks(rank, ranks, local, address, 20_000 + job_id % 10_000)


def main(argv: Sequence[str] | None = None) -> int:
    """Run with an argv list (default: sys.argv); the exit code."""
    try:
        run(parser().parse_args(argv), os.environ)
    except PalError as error:
        print(f"pal-profile between: {one_line(error)}", file=sys.stderr, flush=True)
        return int(error.exit_code)
    return 0


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Measure, and drop the result if this is the first process of its node. Raises PalError."""
    nodes, node = tuple(options.nodes.split(",")), environ.get("SLURMD_NODENAME", "")
    if node not in nodes:
        raise UsageError(f"node {node!r} is not one of {options.nodes}")
    place = ranks_of(environ)
    if options.backend in PER_GPU:
        times = _connected(place, options.gpus)
    elif why := cannot(options.backend):
        raise UsageError(why)
    else:
        setting = Setting(options.backend, options.registry, options.seed, options.wall_scale)
        times = emulated(setting, nodes, node, options.gpus)
    if place.local:
        return
    backend, job_id = options.backend.replace("auto", "torch"), digits(environ["SLURM_JOB_ID"]) or 0
    found = PairTimes(options.sweep, job_id, node, nodes, options.gpus, backend, time.time(), *times)
    path = os.path.join(spool_directories(options.spool)[0], file_name(options.sweep, node, job_id))
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        write_atomic(path, found.to_json() + "\n", 0o644)
    except OSError as error:
        raise DataError(f"results not written, {path}: {error.strerror}; check the spool") from None
    print(f"{node}: an all-reduce with {options.nodes} in {path}", flush=True)


def _connected(place: Ranks, gpus: int) -> AllReduces:
    try:
        from slurm_pal.profiling.node.torch_between import measured
    except ImportError as error:
        raise MissingPackageError(f"an all-reduce between nodes needs PyTorch on them: {one_line(error)}") from None
    return measured(place, gpus)


if __name__ == "__main__":
    sys.exit(main())
