# SPDX-License-Identifier: MIT
"""What a benchmark's kernels work on: sizes, read from its `shape`, and the seed of its data."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from slurm_pal.profiling.node.devices import DeviceError

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_MATRIX = re.compile(r"(\d+)x(\d+)x(\d+)")
_BLOCK = re.compile(r"d(\d+)-seq(\d+)-batch(\d+)")
_BYTES = re.compile(r"(?:\d+x)?(\d+)(KiB|MiB|GiB)(?:-.*)?")
OUTPUTS = 3  # matrices that a GEMM writes in turn
TRIAD_SCALE = 0.4  # s of a = b + s * c
_HEAD_WIDTH = 128  # usual in large language models, and what fused attention kernels are made for


class BlockShape(NamedTuple):
    """A transformer block's input: (batch, seq, width)."""

    width: int
    seq: int
    batch: int

    @property
    def heads(self) -> int:
        return max(1, self.width // _HEAD_WIDTH)


def seed(benchmark_id: str) -> int:
    """The seed of a benchmark's data, 0 .. 2^63 - 1: the same in every sweep, so that records compare."""
    return int.from_bytes(hashlib.blake2b(benchmark_id.encode(), digest_size=8).digest(), "big") >> 1


def matrix(shape: str) -> tuple[int, int, int]:
    """(m, n, k) of "8192x8192x8192": an m x k matrix times a k x n one. Raises DeviceError."""
    m, n, k = (int(word) for word in _read(_MATRIX, shape, "MxNxK, like 8192x8192x8192"))
    return m, n, k


def block(shape: str) -> BlockShape:
    """Sizes of "d2048-seq2048-batch4". Raises DeviceError."""
    width, seq, batch = (int(word) for word in _read(_BLOCK, shape, "dD-seqS-batchB, like d2048-seq2048-batch4"))
    return BlockShape(width, seq, batch)


def array_bytes(shape: str) -> int:
    """Bytes of one array of "3x1GiB", "256MiB-pinned" or "1GiB-ring". Raises DeviceError."""
    number, unit = _read(_BYTES, shape, "a size like 256MiB or 3x1GiB")
    return int(number) * _UNITS[unit]


def items(shape: str) -> int:
    """How many fp32 numbers one such array has. Raises DeviceError."""
    return array_bytes(shape) // 4


def _read(pattern: re.Pattern[str], shape: str, wanted: str) -> tuple[str, ...]:
    found = pattern.fullmatch(shape)
    if not found:
        raise DeviceError(f"shape {shape!r} cannot be read: wanted {wanted}")
    return found.groups()
