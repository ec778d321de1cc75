# SPDX-License-Identifier: MIT
"""Compare every kernel with a reference: python -m slurm_pal.profiling.driver.check [GPU] [--bench IDS].

Small sizes, the same code as a measurement's; the tests run it on a double of the driver. GPU is
Slurm's index, 0 unless given; copies between GPUs are checked with all others that are visible.
Prints one line per quantity; exit code 0 when all agree, 5 when the device gave something else or
broke, 10 where there is no driver or no such GPU.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from slurm_pal.base.errors import Exit, MissingPackageError, PalError
from slurm_pal.profiling.driver import reference
from slurm_pal.profiling.driver.backend import DriverBackend, DriverKernel, open_backend
from slurm_pal.profiling.driver.block import EPSILON
from slurm_pal.profiling.driver.reference import Real
from slurm_pal.profiling.node import binding, inputs
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.node.bench import partitions
from slurm_pal.profiling.node.benchmarks import Benchmark, by_id, select
from slurm_pal.profiling.node.devices import ANY_SLOT, DeviceError, DeviceInfo


class Deviation(NamedTuple):
    """How far one quantity is from its reference."""

    what: str
    error: float  # of the worst number, relative to the largest of the reference
    limit: float

    @property
    def good(self) -> bool:
        """NaN never agrees."""
        return self.error <= self.limit


SHAPES = {
    "gemm_bf16": "256x384x160", "gemm_bf16_wgmma": "256x384x160", "gemm_bf16_tcgen05": "256x384x160",
    "gemm_fp16": "256x384x160",
    "gemm_bf16_cublas": "256x384x160", "gemm_tf32": "256x384x160",
    "gemm_fp32": "256x384x160", "gemm_fp64": "256x384x160", "tblock": "d256-seq128-batch2",
    "hbm_triad": "3x512MiB", "hbm_copy": "2x512MiB", "pcie_h2d": "1MiB-pinned", "pcie_d2h": "1MiB-pinned",
    "launch_latency": "empty-kernel", "p2p": "1MiB", "allreduce": "1MiB-ring",
}  # fmt: skip
"""Sizes at which numpy keeps up; the arrays of hbm must still be four times a cache."""

# Half the last bit of the result, or what sums of rounded products lose, with room for a few of them.
_LIMITS = {"bf16": 4e-3, "fp16": 6e-4, "tf32": 1e-5, "fp32": 2e-6, "fp64": 1e-14}
_BLOCK_LIMIT = 0.03  # a dozen roundings to bf16 in a row
_SUM_LIMIT = 1e-6  # as many roundings to fp32 as there are devices
_MOST_READ = 2**22  # numbers of an array that are compared


def distance(found: Real, wanted: Real) -> float:
    """Largest difference relative to the largest number wanted; infinite for NaN."""
    worst = float(np.max(np.abs(found - wanted)))
    return worst / float(np.max(np.abs(wanted))) if math.isfinite(worst) else math.inf


def _read(kernel: DriverKernel, name: str) -> Real:
    """The whole of an array, or its end when it is large."""
    array = kernel.arrays[name]
    skipped = math.prod(array.shape) - _MOST_READ
    if skipped > 0:
        address = array.address + skipped * array.format.size
        array = array._replace(address=address, shape=(_MOST_READ,))
    return reference.numbers(kernel.read(array), array.format, array.shape)


def _gemm(kernel: DriverKernel, spec: Benchmark) -> Iterator[Deviation]:
    m, n, k = inputs.matrix(spec.shape)
    a, b, c = (_read(kernel, name) for name in "abc")
    wanted = (a if a.shape == (m, k) else a.T) @ (b.T if b.shape == (n, k) else b)
    yield Deviation("product", distance(c, wanted), _LIMITS[spec.dtype])
    for name, drawn in (("a", a), ("b", b)):
        yield from _normal(name, drawn)


def _normal(name: str, drawn: Real) -> Iterator[Deviation]:
    """Mean, variance and fourth moment against 0, 1 and 3: within five standard errors."""
    root = math.sqrt(drawn.size)
    yield Deviation(f"mean of {name}", abs(float(drawn.mean())), 5 / root)
    yield Deviation(f"variance of {name}", abs(float(drawn.var()) - 1), 5 * math.sqrt(2) / root)
    yield Deviation(f"fourth moment of {name}", abs(float((drawn**4).mean()) - 3), 5 * math.sqrt(96) / root)


def _triad(kernel: DriverKernel, spec: Benchmark) -> Iterator[Deviation]:
    a, b, c = (_read(kernel, name) for name in "abc")
    yield Deviation("b + s c", distance(a, b + inputs.TRIAD_SCALE * c), 1e-6)


def _same(one: str, other: str) -> Callable[[DriverKernel, Benchmark], Iterator[Deviation]]:
    def check(kernel: DriverKernel, spec: Benchmark) -> Iterator[Deviation]:
        yield Deviation(f"{one} as {other}", distance(_read(kernel, one), _read(kernel, other)), 0.0)

    return check


def _block(kernel: DriverKernel, spec: Benchmark) -> Iterator[Deviation]:
    shape = inputs.block(spec.shape)
    size = (shape.batch, shape.seq, shape.width)
    weights = {name: _read(kernel, name) for name in ("w_qkv", "w_out", "w_up", "w_down")}
    x, above = (_read(kernel, name).reshape(size) for name in ("x", "above"))
    wanted = reference.block(x, above, weights, shape.heads, EPSILON)
    for name, value in wanted.items():
        yield Deviation(name, distance(_read(kernel, name).reshape(value.shape), value), _BLOCK_LIMIT)


def _sums(kernel: DriverKernel, spec: Benchmark) -> Iterator[Deviation]:
    """All devices have the same input, so each must hold that times the number of devices."""
    own, count = _read(kernel, "input"), len(kernel.arrays) - 1
    for i in range(count):
        yield Deviation(f"sum {i + 1} of {count}", distance(_read(kernel, f"sums{i}"), count * own), _SUM_LIMIT)


def _runs(kernel: DriverKernel, spec: Benchmark) -> Iterator[Deviation]:
    """It was launched without an error."""
    yield Deviation("launched", 0.0, 0.0)


CHECKS: dict[str, Callable[[DriverKernel, Benchmark], Iterator[Deviation]]] = {
    **{f"gemm_{dtype}": _gemm for dtype in _LIMITS},
    "tblock": _block,
    "hbm_triad": _triad,
    "hbm_copy": _same("a", "b"),
    "pcie_h2d": _same("target", "source"),
    "pcie_d2h": _runs,
    "launch_latency": _runs,
    "p2p": _same("target", "source"),
    "allreduce": _sums,
    "gemm_bf16_cublas": _gemm,
    "gemm_bf16_wgmma": _gemm,  # these two last: they have not run on a card, and after a fault
    "gemm_bf16_tcgen05": _gemm,  # nothing more can be checked
}


def check(
    backend: DriverBackend, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()
) -> list[Deviation]:
    """Run two blocks of one benchmark and compare what they leave. Raises DeviceError."""
    kernel = backend.prepare(device, spec, peers)
    try:
        kernel.run_block(1)
        return list(CHECKS[spec.id](kernel, spec))
    finally:
        kernel.close()


def with_peers(
    backend: DriverBackend, device: DeviceInfo, spec: Benchmark, others: Sequence[DeviceInfo]
) -> list[Deviation]:
    """The same with as many of the others as the benchmark needs: each in turn where it needs one."""
    if spec.peers <= 0:
        return check(backend, device, spec, others if spec.peers else ())
    found = [(peer, f) for peer in others for f in check(backend, device, spec, (peer,))]
    return [f._replace(what=f"{f.what}, GPU {peer.slot}") for peer, f in found]


def run(
    backend: DriverBackend, device: DeviceInfo, others: Sequence[DeviceInfo] = (), names: Sequence[str] = ()
) -> bool:
    """These checks, or all, on one device; print and return whether all agree. Raises DeviceError without a driver."""
    good, left = True, list(names or CHECKS)
    while left:
        name = left.pop(0)
        spec = by_id(name)._replace(shape=SHAPES[name])
        lack = "it needs another GPU" if spec.peers and not others else backend.unable(device, spec)
        if lack:
            print(f"{name:15} not here: {lack}")
            continue
        try:
            findings = with_peers(backend, device, spec, others)
        except DeviceError as error:
            print(f"{name:15} FAILED: {error}", flush=True)
            good = False
            if error.flag and left:
                print(f"after a fault the driver serves this process no more: go on with --bench {','.join(left)}")
                break
            continue
        for finding in findings:
            verdict = "ok" if finding.good else "WRONG"
            print(f"{name:15} {finding.what:24} error {finding.error:.2e}  limit {finding.limit:.0e}  {verdict}")
            good = good and finding.good
    return good


def _find(backend: DriverBackend, index: int) -> tuple[DeviceInfo, list[DeviceInfo]]:
    """The GPU, or the partition of it that this job was given, and the others that are visible."""
    seen = backend.devices("", ANY_SLOT)
    found = backend.devices("", (index,))
    if not found:
        there = ", ".join(str(d.slot) for d in seen)
        raise MissingPackageError(f"there is no GPU {index} here that answers; there are: {there}")
    device = partitions(found, os.environ)[0]
    others = [] if device.parent else [d for d in seen if d.uuid != device.uuid]
    binding.show(device, others)
    return device, others


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m slurm_pal.profiling.driver.check", description="Check the kernels."
    )
    parser.add_argument("gpu", nargs="?", type=int, default=0, help="Slurm's index of the GPU")
    parser.add_argument("--bench", default=",".join(CHECKS), help="only these benchmarks, comma-separated")
    options = parser.parse_args()
    try:
        names = [spec.id for spec in select(options.bench)]
        backend = open_backend(Setting("driver"))
        device, others = _find(backend, options.gpu)
        print(f"{device.model} {device.uuid}, kernels {backend.version}", flush=True)
        raise SystemExit(Exit.OK if run(backend, device, others, names) else Exit.HARDWARE)
    except PalError as error:
        print(f"check: {error}", file=sys.stderr)
        raise SystemExit(Exit.HARDWARE if isinstance(error, DeviceError) else error.exit_code) from None


if __name__ == "__main__":
    main()
