# SPDX-License-Identifier: MIT
"""The benchmarks, as a table: what is run, for which sensitivity class, in which unit.

All run on single GPUs, since scores of multi-GPU runs belong to the node. To add one, add
a row here and teach the device backends its `id`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.base.errors import UsageError
from slurm_pal.variability.params import TIME_UNITS

METHOD_VERSION = 3
"""Raised whenever warm-up, stop rules, statistic or the neighbours' load change, so that old and new never mix."""


class Benchmark(NamedTuple):
    """One benchmark. `work` is per launch; a value is `work / scale` per second of device time.

    A row whose `unit` is a time (us) is worth device time per `scale` launches instead.
    """

    id: str
    sensitivity_class: str  # "A", "B", "C", or "" for node health
    version: int
    dtype: str
    shape: str
    distribution: str  # of the input data: zeros draw less power than noise
    unit: str
    work: float  # FLOP, steps, bytes or launches per launch
    scale: float  # FLOP in a TFLOP, bytes in a GB, ...
    nominal: float  # typical value in `unit`; sizes the emulated device, judges nothing
    seconds: float  # device time of one turn, s; of the first benchmark with its long warm-up
    together: bool = True  # all GPUs of the node at once; False: one after the other
    peers: int = 0  # other GPUs that it needs: 1 pairs, -1 all of the node
    quick: bool = False  # part of --quick
    below_cap: bool = False  # to be run only where no product before it has met the power cap

    def value(self, launches: int, device_s: float) -> float:
        """The value in `unit` of this many launches in `device_s` seconds."""
        if self.unit in TIME_UNITS:
            return device_s / launches * self.scale
        return launches * self.work / self.scale / device_s

    @property
    def is_health(self) -> bool:
        """Whether this is about the node's health and takes no part in scores."""
        return not self.sensitivity_class

    def turns(self, gpus: int) -> int:
        """How many times `seconds` a node of this many GPUs takes, all GPUs at once by default."""
        if self.together:
            return 1
        return {0: gpus, 1: gpus * (gpus - 1)}.get(self.peers, min(gpus - 1, 1))


GIB = 2**30
NORMAL = "normal(0,1)"


def _gemm(dtype: str, nominal: float, seconds: float, quick: bool = False) -> Benchmark:
    shape = "8192x8192x8192"
    return Benchmark(
        f"gemm_{dtype}", "A", 1, dtype, shape, NORMAL, "TFLOP/s", 2.0 * 8192**3, 1e12, nominal, seconds, quick=quick
    )


def _health(
    name: str, shape: str, unit: str, work: float, scale: float, nominal: float, seconds: float, peers: int = 0
) -> Benchmark:
    return Benchmark(
        name, "", 1, "bytes", shape, "any", unit, work, scale, nominal, seconds, together=False, peers=peers
    )


def _block(name: str, dtype: str) -> Benchmark:
    return Benchmark(name, "B", 1, dtype, "d2048-seq2048-batch4", NORMAL, "steps/s", 1.0, 1.0, 42.0, 10.0, quick=True)


BENCHMARKS: tuple[Benchmark, ...] = (
    # Power-capped GEMM is the fingerprint of a GPU and runs first: it heats the device.
    _gemm("bf16", 250.0, 35.0, quick=True),
    # The same product by the warpgroup instructions of compute capability 9.0, where mma.sync stays below the cap.
    _gemm("bf16", 250.0, 35.0)._replace(id="gemm_bf16_wgmma"),
    # ... by those of 10.0 and 10.3
    _gemm("bf16", 250.0, 35.0)._replace(id="gemm_bf16_tcgen05"),
    # ... and by the vendor's library, for backends whose gemm_bf16 is their own.
    _gemm("bf16", 250.0, 35.0)._replace(id="gemm_bf16_cublas"),
    _gemm("fp16", 250.0, 35.0, quick=True),
    _gemm("tf32", 120.0, 10.0),
    _gemm("fp32", 19.0, 10.0),
    _gemm("fp64", 9.5, 10.0),
    _block("tblock", "bf16"),
    _block("tblock_fp16", "fp16"),
    # a = b + s * c moves three arrays of 1 GiB, a copy two. An array should be four times the last cache: 1 GiB
    # is, on every card of NVIDIA and AMD (at most 256 MiB). On Intel's Max 1550 (408 MB) it is 2.6 times.
    Benchmark("hbm_triad", "C", 1, "fp32", "3x1GiB", NORMAL, "GB/s", 3.0 * GIB, 1e9, 1500.0, 4.0, quick=True),
    Benchmark("hbm_copy", "C", 1, "fp32", "2x1GiB", NORMAL, "GB/s", 2.0 * GIB, 1e9, 1500.0, 4.0),
    # Node health: no sensitivity class, one GPU after the other, so that links are not shared.
    # Seconds of a turn: eight GPUs have 8 turns, 56 ordered pairs, one ring.
    _health("pcie_h2d", "256MiB-pinned", "GB/s", 256.0 * 2**20, 1e9, 25.0, 1.0),
    _health("pcie_d2h", "256MiB-pinned", "GB/s", 256.0 * 2**20, 1e9, 25.0, 1.0),
    _health("launch_latency", "empty-kernel", "us", 1.0, 1e6, 3.0, 0.25),
    _health("p2p", "256MiB", "GB/s", 256.0 * 2**20, 1e9, 250.0, 0.15, peers=1),
    _health("allreduce", "1GiB-ring", "GB/s", 1.0 * GIB, 1e9, 200.0, 2.0, peers=-1),
)

DEFAULT = (
    "gemm_bf16", "gemm_tf32", "gemm_fp32", "tblock", "hbm_triad", "hbm_copy",
    "pcie_h2d", "pcie_d2h", "launch_latency", "p2p", "allreduce",
)  # fmt: skip
"""What a sweep runs where nothing else is asked for: about 112 s on a node of eight GPUs.

`gemm_fp16` and `tblock_fp16` stand in for bf16 where a device lacks it, and few cards have
fp64 units worth their ten seconds.
"""

QUICK_BELOW_CAP = "gemm_fp32"
"""Of --quick: what draws most where tensor cores stay below the power cap, as on a V100."""

FALLBACKS: dict[str, tuple[str, ...]] = {"gemm_bf16": ("gemm_fp16", "gemm_fp32"), "tblock": ("tblock_fp16",)}
"""What is run instead where a device lacks the number format, best first."""

SETUP_S = 11.0  # of a node: preflight 3 s, start and allocation 8 s
LARGE_BYTES = 80e9  # from this much memory up, a product of 8192 is too small to fill the card


def by_id(name: str) -> Benchmark:
    """One row of the table. Raises UsageError when there is none."""
    for row in BENCHMARKS:
        if row.id == name:
            return row
    raise UsageError(f"unknown benchmark {name!r}; there are: {', '.join(b.id for b in BENCHMARKS)}")


def select(ids: str, quick: bool = False) -> tuple[Benchmark, ...]:
    """The benchmarks of a comma-separated list of ids, in table order.

    "" means the default set, with `quick` its three short rows, and one more for GPUs that these leave below
    their power cap. Raises UsageError naming the id that does not exist.
    """
    wanted = [by_id(word.strip()).id for word in ids.split(",") if word.strip()]
    if not wanted and quick:
        rows = (b._replace(below_cap=b.id == QUICK_BELOW_CAP) for b in BENCHMARKS if b.id in DEFAULT)
        return tuple(b for b in rows if b.quick or b.below_cap)
    if not wanted:
        return tuple(b for b in BENCHMARKS if b.id in DEFAULT)
    return tuple(b for b in BENCHMARKS if b.id in wanted)


def node_device_s(specs: Sequence[Benchmark], gpus: int, solo: bool = False) -> float:
    """Seconds of device time that these benchmarks and their set-up take on a node of this many GPUs.

    What only GPUs below their power cap run is not counted.
    """
    times = (b.seconds * (gpus if solo and b.together else b.turns(gpus)) for b in specs if not b.below_cap)
    return SETUP_S + sum(times)


def fitted(spec: Benchmark, mem_bytes: int) -> Benchmark:
    """`spec` with the shape and work that suit a device with this much memory: products of 16384 from 80 GB up."""
    if spec.id.startswith("gemm_") and mem_bytes >= LARGE_BYTES:
        n = 16384
        return spec._replace(shape=f"{n}x{n}x{n}", work=2.0 * n**3)
    return spec


def on_the_bus(spec: Benchmark, gpus: int) -> Benchmark:
    """An all-reduce with the bytes that cross each link: 2 (n - 1) / n times its array."""
    return spec._replace(work=spec.work * 2.0 * (gpus - 1) / gpus)


def method_hash(benchmark: Benchmark, backend: str, environment: dict[str, str]) -> str:
    """What must be equal for two numbers to be compared, as 16 hex digits.

    `environment` names what else decides it: driver major, library versions, power
    limit, ECC and MIG mode, and whether the neighbours were busy. `nominal` and `seconds` judge nothing and stay out.
    """
    import hashlib

    definition = {
        "id": benchmark.id,
        "version": benchmark.version,
        "dtype": benchmark.dtype,
        "shape": benchmark.shape,
        "distribution": benchmark.distribution,
        "unit": benchmark.unit,
        "work": benchmark.work,
        "backend": backend,
        "environment": environment,
        "method": METHOD_VERSION,
    }
    text = json.dumps(definition, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
