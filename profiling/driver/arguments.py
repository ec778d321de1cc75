# SPDX-License-Identifier: MIT
"""The arguments of the kernels, field by field as in the C headers, and how many threads each kernel has."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import NamedTuple


class NumberFormat(IntEnum):
    """Number formats, as numbers.h counts them."""

    BF16 = 0
    FP16 = 1
    TF32 = 2
    FP32 = 3
    FP64 = 4

    @property
    def size(self) -> int:
        """Bytes of a number in memory; tf32 is kept as fp32."""
        return {NumberFormat.BF16: 2, NumberFormat.FP16: 2, NumberFormat.FP64: 8}.get(self, 4)


class Operand(ctypes.Structure):
    """One factor or the result of a matrix product; steps in elements."""

    _fields_ = [
        ("data", ctypes.c_uint64),
        ("row", ctypes.c_int64),
        ("outer_step", ctypes.c_int64),
        ("inner_step", ctypes.c_int64),
    ]


class Gemm(ctypes.Structure):
    """c = alpha * a b (+ add)."""

    _fields_ = [
        ("a", Operand),
        ("b", Operand),
        ("c", Operand),
        ("add", ctypes.c_uint64),
        ("m", ctypes.c_int32),
        ("n", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("inner", ctypes.c_int32),
        ("alpha", ctypes.c_float),
        ("unused", ctypes.c_int32),
    ]


class Normal(ctypes.Structure):
    """Numbers to be drawn."""

    _fields_ = [
        ("out", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("stream", ctypes.c_uint32),
        ("format", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("offset", ctypes.c_float),
    ]


class Stream(ctypes.Structure):
    """Arrays that are read and written once."""

    _fields_ = [
        ("out", ctypes.c_uint64),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
        ("vectors", ctypes.c_uint64),
        ("factor", ctypes.c_float),
        ("unused", ctypes.c_int32),
    ]


class Norm(ctypes.Structure):
    """Layer norm, forward and backward."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("x", "gain", "bias", "y", "mean", "rstd", "dy", "add", "dx", "parts")),
        ("width", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
    ]


class Columns(ctypes.Structure):
    """Sums over rows."""

    _fields_ = [
        ("out", ctypes.c_uint64),
        ("parts", ctypes.c_uint64),
        ("rows", ctypes.c_int32),
        ("width", ctypes.c_int32),
    ]


class Softmax(ctypes.Structure):
    """Causal softmax, forward and backward."""

    _fields_ = [
        ("y", ctypes.c_uint64),
        ("dy", ctypes.c_uint64),
        ("width", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    ]


class Gelu(ctypes.Structure):
    """GELU, forward and backward."""

    _fields_ = [
        ("x", ctypes.c_uint64),
        ("y", ctypes.c_uint64),
        ("dy", ctypes.c_uint64),
        ("vectors", ctypes.c_uint64),
    ]


class Signature(NamedTuple):
    """What a kernel takes, and the threads of its blocks."""

    argument: type[ctypes.Structure] | None
    threads: int
    rows: int = 128  # of a product's tile
    shared: int = 0  # bytes that the launch gives to a block, beside what the kernel has of its own


KERNELS: dict[str, Signature] = {
    "normal_fill": Signature(Normal, 256),
    "hbm_triad": Signature(Stream, 256),
    "hbm_copy": Signature(Stream, 256),
    "ring_add": Signature(Stream, 256),
    "empty": Signature(None, 32),
    "gemm_fp32": Signature(Gemm, 256),
    "gemm_fp64": Signature(Gemm, 256),
    "gemm_fp64_scalar": Signature(Gemm, 256),
    "gemm_fp16_wmma": Signature(Gemm, 256),
    "gemm_bf16_wgmma": Signature(Gemm, 128),
    "gemm_bf16_tcgen05": Signature(Gemm, 128, rows=256, shared=98336),
    "gemm_bf16_nt": Signature(Gemm, 128),
    "gemm_bf16_nn": Signature(Gemm, 128),
    "gemm_bf16_tn": Signature(Gemm, 128),
    "gemm_fp16_nt": Signature(Gemm, 128),
    "gemm_tf32_nt": Signature(Gemm, 128),
    "layer_norm": Signature(Norm, 256),
    "layer_norm_back": Signature(Norm, 256),
    "layer_norm_parts": Signature(Norm, 256),
    "column_sums": Signature(Columns, 256),
    "softmax": Signature(Softmax, 256),
    "softmax_back": Signature(Softmax, 256),
    "gelu": Signature(Gelu, 256),
    "gelu_back": Signature(Gelu, 256),
}
