# SPDX-License-Identifier: MIT
"""The kernels as PTX: which file suits a device, and whether it was made from the current source."""

from __future__ import annotations

import functools
import hashlib
import re
from importlib import resources
from typing import NamedTuple

from slurm_pal.profiling.node.devices import DeviceError

ISA = "7.0"
"""The PTX version that the files declare: what drivers from CUDA 11.0 on can read."""
LEAST_DRIVER = 11000  # as cuDriverGetVersion counts


class Target(NamedTuple):
    """One file of PTX."""

    file: str
    least: int  # compute capability from which on it is used, major * 10 + minor
    compile_for: str  # nvcc's name of the architecture
    assemble_for: tuple[str, ...]  # what ptxas must accept it for


TARGETS = (
    Target("ampere.ptx", 80, "compute_80", ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")),
    # nvcc 13 knows nothing below 7.5; what it writes for that is good for 7.0, as ptxas 12 proves.
    Target("volta.ptx", 70, "compute_75", ("sm_70", "sm_75")),
)
SOURCES = (
    "kernels.cu", "platform.h", "numbers.h", "normal.h", "memory.h", "gemm_scalar.h",
    "gemm_tensor.h", "gemm_fp64.h", "gemm_wmma.h", "block.h",
)  # fmt: skip

_ENTRY = re.compile(r"^\.visible \.entry (\w+)", re.MULTILINE)


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="ascii")


def source_hash() -> str:
    """16 hex digits of the kernels' source, which the PTX names in its header."""
    whole = hashlib.blake2b(digest_size=8)
    for name in SOURCES:
        whole.update(f"{name}\0{_read(name)}\0".encode())
    return whole.hexdigest()


@functools.cache
def text(target: Target) -> str:
    """The whole of one file."""
    return _read(target.file)


@functools.cache
def version() -> str:
    """8 hex digits of all PTX: the backend's version, part of the method."""
    return hashlib.blake2b("".join(text(target) for target in TARGETS).encode(), digest_size=4).hexdigest()


def target_for(capability: int) -> Target:
    """The file for a compute capability (major * 10 + minor). Raises DeviceError below the oldest."""
    for target in TARGETS:
        if capability >= target.least:
            return target
    raise DeviceError(f"the kernels need compute capability 7.0 or later; this is {capability / 10:.1f}")


def entries(whole: str) -> dict[str, str]:
    """Each kernel's own text."""
    starts = [*_ENTRY.finditer(whole)]
    ends = [*(m.start() for m in starts[1:]), len(whole)]
    return {m[1]: whole[m.start() : end] for m, end in zip(starts, ends, strict=True)}


def module(target: Target, names: frozenset[str]) -> bytes:
    """A module with only these kernels, as cuModuleLoadDataEx takes it: the driver compiles no more than is used."""
    whole = text(target)
    own = entries(whole)
    head = whole[: whole.index(".visible .entry")]
    return (head + "".join(own[name] for name in sorted(names))).encode() + b"\0"
