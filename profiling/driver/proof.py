# SPDX-License-Identifier: MIT
"""A kernel that no card has confirmed, tried before it is measured: does it give the numbers of mma.sync?

It runs in a process of its own, python -m slurm_pal.profiling.driver.proof UUID BENCHMARK SHAPE. What it does wrong
there (other numbers, a fault, no end) leaves its benchmark out, and says nothing about the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import signal
import subprocess
import sys
from array import array
from collections.abc import Sequence

from slurm_pal.base.errors import one_line
from slurm_pal.base.terminal import visible
from slurm_pal.profiling.driver import gemm
from slurm_pal.profiling.driver.arguments import NumberFormat
from slurm_pal.profiling.driver.gpu import GpuContext
from slurm_pal.profiling.driver.library import LIBRARY, CudaLibrary
from slurm_pal.profiling.driver.workbench import Array, DriverWorkbench
from slurm_pal.profiling.node import inputs
from slurm_pal.profiling.node.benchmarks import Benchmark, by_id
from slurm_pal.profiling.node.devices import DeviceError, DeviceInfo

UNPROVEN = frozenset({"gemm_bf16_wgmma", "gemm_bf16_tcgen05"})
PROVEN = "gemm_bf16"
SMALL = ("256x384x160", "512x128x768")
"""Tried before the benchmark's own size: fewer and more steps of k than are under way at once."""
LIMIT = 2.0**-7
"""Of the largest number: both round sums in fp32 to bf16, so they may differ by its last bit."""
PATIENCE_S = 60
_MOST_READ = 2**20  # numbers that are compared
_MODULE = "slurm_pal.profiling.driver.proof"


def failure(device: DeviceInfo, spec: Benchmark, library: str = LIBRARY) -> str:
    """Why an unproven benchmark is not measured here; "" when its numbers are right, or it is a proven one."""
    if spec.id not in UNPROVEN:
        return ""
    words = [sys.executable, "-P", "-m", _MODULE, device.uuid, spec.id, spec.shape, "--library", library]
    try:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        return f"{spec.id} is not measured: its proof cannot be started ({error.strerror})"
    with child:
        try:
            said, _ = child.communicate(timeout=PATIENCE_S + 5.0)
        except subprocess.TimeoutExpired:
            child.kill()
            return f"{spec.id} is not measured: its proof did not end"
    if child.returncode == 0:
        return ""
    if child.returncode == -signal.SIGALRM:
        return f"{spec.id} is not measured: its proof took longer than {PATIENCE_S} s"
    lines = said.strip().splitlines() or [f"exit code {child.returncode}"]
    return f"{spec.id} is not measured: {visible(lines[-1])}"


def deviation(library: CudaLibrary, device: DeviceInfo, spec: Benchmark) -> float:
    """How far its product is from that of mma.sync, relative to the largest number. Raises DeviceError."""
    gpu = GpuContext(library, device)
    try:
        bench = DriverWorkbench(spec, (gpu,))
        tried, proven = (gemm.choose(one, gpu.limits.capability) for one in (spec, by_id(PROVEN)))
        if tried is None or proven is None:
            raise DeviceError(f"{spec.id}: no kernel for it on this device")
        m, n, k = inputs.matrix(spec.shape)
        bench.load([tried.kernel, proven.kernel])
        a, b = (bench.normal(NumberFormat.BF16, size, k) for size in (m, n))
        # What is not written must not be right by chance.
        ours, theirs = (bench.normal(NumberFormat.BF16, m, n) for _ in range(2))
        for kernel, out in ((tried.kernel, ours), (proven.kernel, theirs)):
            gemm.product(gpu, kernel, (gemm.whole(a), gemm.whole(b), gemm.whole(out)), (m, n, k))()
        gpu.wait()
        rows = chosen_rows(m, n)
        return distance(_numbers(gpu, ours, rows), _numbers(gpu, theirs, rows))
    finally:
        with contextlib.suppress(DeviceError):
            gpu.close()


def chosen_rows(rows: int, columns: int) -> range | list[int]:
    """All rows, or some of all parts of tiles, where all would be more than can be compared in a second."""
    count = max(1, _MOST_READ // columns)
    if rows <= count:
        return range(rows)
    each = rows // count
    return [i * each + i * 37 % each for i in range(count)]


def _numbers(gpu: GpuContext, of: Array, rows: Sequence[int]) -> array[float]:
    size = of.shape[1] * of.format.size
    return from_bf16(b"".join(gpu.read(of.address + row * size, size) for row in rows))


def from_bf16(raw: bytes) -> array[float]:
    """Numbers of two bytes as floats."""
    words = array("H")
    words.frombytes(raw)
    found = array("f")
    found.frombytes(array("I", (word << 16 for word in words)).tobytes())
    return found


def distance(found: Sequence[float], wanted: Sequence[float]) -> float:
    """Largest difference relative to the largest number wanted; infinite where one is no number."""
    largest = max(map(abs, wanted))
    if not (math.isfinite(sum(found)) and math.isfinite(sum(wanted)) and largest > 0.0):
        return math.inf
    return max(abs(x - y) for x, y in zip(found, wanted, strict=True)) / largest


def main() -> int:
    """The command: exit code 0 if the numbers are right, else 1 and a line that says what is not."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description="Try a kernel that no card has run.")
    parser.add_argument("uuid", help="of the GPU")
    parser.add_argument("benchmark", choices=sorted(UNPROVEN))
    parser.add_argument("shape", help="like 8192x8192x8192")
    parser.add_argument("--library", default=LIBRARY, help="the driver")
    options = parser.parse_args()
    signal.alarm(PATIENCE_S)  # a kernel that hangs takes along this process only
    spec, device = by_id(options.benchmark), DeviceInfo(options.uuid, "nvidia", "", 0)
    try:
        library = CudaLibrary(options.library)
        library.start()
        for shape in (*SMALL, options.shape):
            error = deviation(library, device, spec._replace(shape=shape))
            if not error <= LIMIT:
                print(f"its product of {shape} is not that of {PROVEN} (error {error:.2g} of the largest number)")
                return 1
    except DeviceError as broken:
        print(f"its proof failed: {one_line(broken)}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
