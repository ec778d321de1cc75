"""The benchmarks, as a table: what is run, for which sensitivity class, in which unit.

All run on single GPUs, since scores of multi-GPU runs belong to the node. To add one, add
a row here and teach the device backends its `id`.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from slurm_pal.errors import UsageError

METHOD_VERSION = 1
"""Raised whenever warm-up, stop rules or the statistic change, so that old and new never mix."""


class Benchmark(NamedTuple):
    """One benchmark. `work` is per launch; a value is `work / scale` per second of device time."""

    id: str
    sensitivity_class: str  # "A", "B", "C"
    version: int
    dtype: str
    shape: str
    distribution: str  # of the input data: zeros draw less power than noise
    unit: str
    work: float  # FLOP, steps or bytes per launch
    scale: float  # FLOP in a TFLOP, bytes in a GB, ...
    nominal: float  # typical value in `unit`; sizes the emulated device, judges nothing
    seconds: float  # typical device time when the GPU is hot already, s

    def value(self, launches: int, device_s: float) -> float:
        """Throughput in `unit` of so many launches in `device_s` seconds."""
        return launches * self.work / self.scale / device_s


BENCHMARKS: tuple[Benchmark, ...] = (
    # Power-capped GEMM is the fingerprint of a GPU and runs first: it heats the device.
    Benchmark(
        "gemm_bf16", "A", 1, "bf16", "8192x8192x8192", "normal(0,1)", "TFLOP/s", 2.0 * 8192**3, 1e12, 250.0, 35.0
    ),
    Benchmark("tblock", "B", 1, "bf16", "d2048-seq2048-batch4", "normal(0,1)", "steps/s", 1.0, 1.0, 42.0, 25.0),
    # a = b + s * c moves three arrays of 1 GiB.
    Benchmark("hbm_triad", "C", 1, "fp32", "3x1GiB", "normal(0,1)", "GB/s", 3.0 * 2**30, 1e9, 1500.0, 25.0),
)


def select(ids: str) -> tuple[Benchmark, ...]:
    """The benchmarks of a comma-separated list of ids, in table order; "" means all.

    Raises UsageError naming the id that does not exist.
    """
    wanted = [word.strip() for word in ids.split(",") if word.strip()]
    known = [b.id for b in BENCHMARKS]
    for word in wanted:
        if word not in known:
            raise UsageError(f"unknown benchmark {word!r}; there are: {', '.join(known)}")
    return tuple(b for b in BENCHMARKS if not wanted or b.id in wanted)


def method_hash(benchmark: Benchmark, backend: str, environment: dict[str, str]) -> str:
    """What must be equal for two numbers to be compared, as 16 hex digits.

    `environment` names what else decides it: driver major, library versions, power
    limit, ECC and MIG mode. `nominal` and `seconds` judge nothing and stay out.
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
