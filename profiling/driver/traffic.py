# SPDX-License-Identifier: MIT
"""Memory, host link and launch: the benchmarks that move bytes or do nothing."""

from __future__ import annotations

from collections.abc import Callable

from slurm_pal.profiling.driver.arguments import NumberFormat, Stream
from slurm_pal.profiling.driver.workbench import Array, BenchLaunch, DriverWorkbench
from slurm_pal.profiling.node import inputs
from slurm_pal.profiling.node.devices import DeviceError

VECTOR = 16  # bytes
BLOCK_VECTORS = 1024  # that one block of threads moves
L2_MULTIPLE = 4  # an array that is not much larger than the cache measures the cache


def _arrays(bench: DriverWorkbench, count: int) -> list[Array]:
    size = bench.array_bytes(VECTOR * BLOCK_VECTORS)
    cache = bench.gpu.limits.l2_bytes
    if size < L2_MULTIPLE * cache:
        raise DeviceError(
            f"{bench.spec.id}: arrays of {size} bytes for a cache of {cache}; "
            f"wanted {L2_MULTIPLE} times the cache or more"
        )
    return [bench.normal(NumberFormat.FP32, size // 4) for _ in range(count)]


def triad(bench: DriverWorkbench) -> BenchLaunch:
    """a = b + s * c. Raises DeviceError."""
    bench.load(["hbm_triad"])
    a, b, c = _arrays(bench, 3)
    vectors = a.size // VECTOR
    argument = Stream(a.address, b.address, c.address, vectors, inputs.TRIAD_SCALE, 0)
    launch = bench.gpu.launch("hbm_triad", (vectors // BLOCK_VECTORS, 1), argument)
    return BenchLaunch(launch, 3.0 * a.size, {"a": a, "b": b, "c": c})


def copy(bench: DriverWorkbench) -> BenchLaunch:
    """a = b. Raises DeviceError."""
    bench.load(["hbm_copy"])
    a, b = _arrays(bench, 2)
    vectors = a.size // VECTOR
    argument = Stream(a.address, b.address, 0, vectors, 0.0, 0)
    launch = bench.gpu.launch("hbm_copy", (vectors // BLOCK_VECTORS, 1), argument)
    return BenchLaunch(launch, 2.0 * a.size, {"a": a, "b": b})


def _over_the_bus(name: str, to_device: bool) -> Callable[[DriverWorkbench], BenchLaunch]:
    def build(bench: DriverWorkbench) -> BenchLaunch:
        gpu = bench.gpu
        bench.load([])
        size = bench.array_bytes(VECTOR)
        source = bench.normal(NumberFormat.FP32, size // 4)
        target = bench.empty(NumberFormat.FP32, size // 4)
        host = gpu.pinned(size)
        # The host's memory is touched, and holds noise rather than zeros, before anything is timed.
        gpu.library.call("cuMemcpyDtoHAsync_v2", host, source.address, size, gpu.stream)
        gpu.wait()
        check, function = gpu.library.check, gpu.library.function(name)
        arguments = (target.address, host, size) if to_device else (host, source.address, size)

        def launch() -> None:
            check(name, function(*arguments, gpu.stream))

        return BenchLaunch(launch, float(size), {"source": source, "target": target})

    return build


pcie_h2d = _over_the_bus("cuMemcpyHtoDAsync_v2", True)
pcie_d2h = _over_the_bus("cuMemcpyDtoHAsync_v2", False)


def launch_latency(bench: DriverWorkbench) -> BenchLaunch:
    """A kernel that does nothing, one after the other: what is timed is how fast they can be started."""
    bench.gpu.load(["empty"])
    return BenchLaunch(bench.gpu.launch("empty", (1, 1)), 1.0)


def p2p(bench: DriverWorkbench) -> BenchLaunch:
    """Copies to the memory of one other device. Raises DeviceError."""
    if len(bench.gpus) != 2:
        raise DeviceError(f"{bench.spec.id} needs one peer and got {len(bench.gpus) - 1}")
    gpu, peer = bench.gpus
    bench.load([])
    size = bench.array_bytes(VECTOR)
    source = bench.normal(NumberFormat.FP32, size // 4)
    target = Array(peer.allocate(size), NumberFormat.FP32, source.shape)
    gpu.reach(peer)
    peer.reach(gpu)
    gpu.use()
    check, function = gpu.library.check, gpu.library.function("cuMemcpyPeerAsync")
    arguments = (target.address, peer.context, source.address, gpu.context, size, gpu.stream)

    def launch() -> None:
        check("cuMemcpyPeerAsync", function(*arguments))

    return BenchLaunch(launch, float(size), {"source": source, "target": target})
