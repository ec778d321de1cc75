# SPDX-License-Identifier: MIT
"""Matrix products: which kernel serves which number format and device, and how it is launched."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

from slurm_pal.profiling.driver import ptx
from slurm_pal.profiling.driver.arguments import KERNELS, Gemm, NumberFormat, Operand
from slurm_pal.profiling.driver.gpu import GpuContext
from slurm_pal.profiling.driver.workbench import Array, BenchLaunch, DriverWorkbench
from slurm_pal.profiling.node import inputs
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.devices import DeviceError

TILE, DEPTH = 128, 32  # n is a multiple of the one, k of the other, m of the kernel's rows


class GemmKernel(NamedTuple):
    """A kernel for one number format."""

    kernel: str
    form: NumberFormat
    along_k: bool  # factors are a[m][k], b[n][k]; otherwise a[k][m], b[k][n]
    least: int = 0  # compute capability, major * 10 + minor
    below: int = 1000


CHOICES: dict[str, tuple[GemmKernel, ...]] = {
    "bf16": (GemmKernel("gemm_bf16_nt", NumberFormat.BF16, True, least=80),),
    "gemm_bf16_wgmma": (GemmKernel("gemm_bf16_wgmma", NumberFormat.BF16, True, least=90, below=91),),
    "gemm_bf16_tcgen05": (GemmKernel("gemm_bf16_tcgen05", NumberFormat.BF16, True, least=100, below=104),),
    "fp16": (
        GemmKernel("gemm_fp16_nt", NumberFormat.FP16, True, least=80),
        GemmKernel("gemm_fp16_wmma", NumberFormat.FP16, True, least=70, below=80),
    ),
    "tf32": (GemmKernel("gemm_tf32_nt", NumberFormat.TF32, True, least=80),),
    "fp32": (GemmKernel("gemm_fp32", NumberFormat.FP32, False),),
    "fp64": (
        GemmKernel("gemm_fp64", NumberFormat.FP64, False, least=80),
        GemmKernel("gemm_fp64_scalar", NumberFormat.FP64, False, least=70, below=80),
    ),
}
"""Number format, or benchmark with a kernel of its own -> the kernels for it."""


def choose(spec: Benchmark, capability: int) -> GemmKernel | None:
    """The kernel for a benchmark on a device: its own, or that of its number format. None where there is none."""
    choices = CHOICES.get(spec.id) or CHOICES.get(spec.dtype, ())
    return next((c for c in choices if c.least <= capability < c.below), None)


class Batch(NamedTuple):
    """How many products of one shape, and how many of them share the outer step."""

    products: int = 1
    inner: int = 1


def product(
    gpu: GpuContext,
    kernel: str,
    factors: tuple[Operand, Operand, Operand],
    sizes: tuple[int, int, int],
    alpha: float = 1.0,
    add: int = 0,
    batch: Batch = Batch(),  # noqa: B008
) -> Callable[[], None]:
    """A launch of c = alpha a b (+ add) for factors a, b, c and sizes m, n, k. Raises DeviceError."""
    (m, n, k), rows = sizes, KERNELS[kernel].rows
    if m % rows or n % TILE or k % DEPTH:
        raise DeviceError(
            f"{kernel}: a product of {m}x{n}x{k}; wanted multiples of {rows} rows, {TILE} columns, and {DEPTH} between"
        )
    argument = Gemm(*factors, add, m, n, k, batch.inner, alpha, 0)
    return gpu.launch(kernel, (m // rows * (n // TILE), batch.products), argument)


def build(bench: DriverWorkbench) -> BenchLaunch:
    """The benchmark: one product after the other into a ring of outputs. Raises DeviceError."""
    spec = bench.spec
    choice = choose(spec, bench.gpu.limits.capability)
    if choice is None:
        raise DeviceError(f"{spec.id}: no kernel for {spec.dtype} on this device")
    m, n, k = inputs.matrix(spec.shape)
    bench.load([choice.kernel])
    a, b = (bench.normal(choice.form, *((size, k) if choice.along_k else (k, size))) for size in (m, n))
    outputs = [bench.empty(choice.form, m, n) for _ in range(inputs.OUTPUTS)]
    launches = [product(bench.gpu, choice.kernel, (whole(a), whole(b), whole(out)), (m, n, k)) for out in outputs]
    turn = itertools.cycle(launches)
    arrays = {"a": a, "b": b, "c": outputs[0]}
    return BenchLaunch(lambda: next(turn)(), 2.0 * m * n * k, arrays, libs=ptx.own_version(choice.kernel))


def whole(array: Array) -> Operand:
    """An array of two dimensions as a factor, or as the result."""
    return Operand(array.address, array.shape[-1], 0, 0)
