# SPDX-License-Identifier: MIT
"""The vendor's own matrix product, cuBLAS by ctypes, where it is installed: what suits the card on any architecture.

Nothing of it is shipped. Names and numbers are those of the cuBLAS reference (cublas_api.h, library_types.h), the same
in its releases 11, 12 and 13. Its release is part of the method: it chooses the kernels.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable
from ctypes import POINTER, c_float, c_int, c_void_p
from typing import Any

from slurm_pal.profiling.driver.arguments import NumberFormat
from slurm_pal.profiling.driver.workbench import Array, BenchLaunch, DriverWorkbench
from slurm_pal.profiling.node import inputs
from slurm_pal.profiling.node.devices import DeviceError
from slurm_pal.profiling.node.libraries import steering

LIBRARIES = ("libcublas.so.13", "libcublas.so.12", "libcublas.so.11")
_PLAIN, _TRANSPOSED = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T
_BF16, _SUMS_FP32, _ITS_CHOICE = 14, 68, -1  # CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT
_PARTS = (0, 1, 2)  # MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cublasGetProperty": (c_int, POINTER(c_int)),
    "cublasCreate_v2": (POINTER(c_void_p),),
    "cublasDestroy_v2": (c_void_p,),
    "cublasSetStream_v2": (c_void_p, c_void_p),
    "cublasGemmEx": (
        *(c_void_p, c_int, c_int, c_int, c_int, c_int, POINTER(c_float)),
        *(ctypes.c_uint64, c_int, c_int, ctypes.c_uint64, c_int, c_int, POINTER(c_float)),
        *(ctypes.c_uint64, c_int, c_int, c_int, c_int),
    ),
}
_STATES = {
    1: "not initialised", 3: "no memory", 7: "a value that it does not take", 8: "not on this architecture",
    11: "an access that failed", 13: "the product failed", 14: "an error of its own", 15: "not supported",
}  # fmt: skip


class Cublas:
    """The library, loaded: the newest release that is found. Raises DeviceError where there is none."""

    def __init__(self) -> None:
        self._functions = _loaded()
        parts = [c_int() for _ in _PARTS]
        for which, value in zip(_PARTS, parts, strict=True):
            self.call("cublasGetProperty", which, ctypes.byref(value))
        self.version = ".".join(str(part.value) for part in parts)

    def function(self, name: str) -> Any:  # noqa: ANN401
        """The bare function; its result goes to `check`."""
        return self._functions[name]

    def call(self, name: str, *arguments: object) -> None:
        """Call and check. Raises DeviceError."""
        self.check(name, self._functions[name](*arguments))

    @staticmethod
    def check(name: str, code: int) -> None:
        """Raise DeviceError unless the code is 0."""
        if code:
            raise DeviceError(f"{name}: status {code} ({_STATES.get(code, 'see the cuBLAS reference')})")


def _loaded() -> dict[str, Any]:
    why = ""
    for name in LIBRARIES:
        try:
            library = ctypes.CDLL(name)
            functions = {called: getattr(library, called) for called in _PROTOTYPES}
        except (OSError, AttributeError) as error:
            why = str(error)
            continue
        for called, types in _PROTOTYPES.items():
            functions[called].argtypes, functions[called].restype = types, c_int
        return functions
    raise DeviceError(f"cuBLAS cannot be loaded ({why}): install it, or set LD_LIBRARY_PATH")


def lacks() -> str:
    """Why the vendor's product cannot be run here, "" when it can."""
    try:
        Cublas()
    except DeviceError as error:
        return str(error)
    return ""


def build(bench: DriverWorkbench) -> BenchLaunch:
    """The product of `gemm.build` by cuBLAS, into a ring of outputs. Raises DeviceError."""
    gpu, library = bench.gpu, Cublas()
    m, n, k = inputs.matrix(bench.spec.shape)
    bench.load([])
    a, b = (bench.normal(NumberFormat.BF16, size, k) for size in (m, n))
    outputs = [bench.empty(NumberFormat.BF16, m, n) for _ in range(inputs.OUTPUTS)]
    handle = c_void_p()
    gpu.use()
    library.call("cublasCreate_v2", ctypes.byref(handle))
    gpu.at_end(library.function("cublasDestroy_v2"), handle)
    library.call("cublasSetStream_v2", handle, gpu.stream)
    turn = itertools.cycle([_product(library, handle, (a, b, out), (m, n, k)) for out in outputs])
    arrays = {"a": a, "b": b, "c": outputs[0]}
    libs = {"cublas": library.version, **steering(os.environ)}
    return BenchLaunch(lambda: next(turn)(), 2.0 * m * n * k, arrays, libs=libs)


def _product(
    library: Cublas, handle: c_void_p, arrays: tuple[Array, Array, Array], sizes: tuple[int, int, int]
) -> Callable[[], None]:
    """A launch of c[m][n] = a[m][k] b[n][k]^T. By columns, as cuBLAS counts, that is c^T = b^T^T a^T."""
    (a, b, c), (m, n, k) = (array.address for array in arrays), sizes
    one, zero = ctypes.byref(c_float(1.0)), ctypes.byref(c_float(0.0))
    check, function = library.check, library.function("cublasGemmEx")
    factors = (handle, _TRANSPOSED, _PLAIN, n, m, k, one, b, _BF16, k, a, _BF16, k, zero)
    return lambda: check("cublasGemmEx", function(*factors, c, _BF16, n, _SUMS_FP32, _ITS_CHOICE))
