# SPDX-License-Identifier: MIT
"""The kernels as PTX: which file suits a device, and whether it was made from the current source."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import NamedTuple

from slurm_pal.profiling.node.devices import DeviceError

LEAST_DRIVER = 11000  # as cuDriverGetVersion counts


class Target(NamedTuple):
    """One file of PTX."""

    file: str
    least: int  # compute capability from which on it is used, major * 10 + minor
    compile_for: str  # nvcc's name of the architecture
    assemble_for: tuple[str, ...]  # what ptxas must accept it for
    isa: str = "7.0"  # the PTX version that it declares: what drivers from CUDA 11.0 on can read
    driver: int = LEAST_DRIVER  # the oldest that can read it
    only: frozenset[str] = frozenset()  # its kernels, where it has not all of them: for these capabilities alone
    alone: tuple[int, ...] = ()  # compute capabilities that it is for; (): all from `least` on

    @property
    def named(self) -> str:
        """The architecture that the file declares."""
        return self.compile_for.replace("compute", "sm") if self.only else f"sm_{self.least}"

    def serves(self, capability: int) -> bool:
        """Whether a device of this compute capability can use it."""
        return capability in self.alone if self.alone else capability >= self.least

    @property
    def needs(self) -> str:
        """The compute capabilities that it is for, as words."""
        return " or ".join(f"{capability / 10:.1f}" for capability in self.alone or (self.least,))


TARGETS = (
    Target("ampere.ptx", 80, "compute_80", ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")),
    Target(
        "hopper.ptx", 90, "compute_90a", ("sm_90a",),
        isa="8.0", driver=12000, only=frozenset({"gemm_bf16_wgmma"}), alone=(90,),
    ),
    # What a family of architectures has, PTX can name from 8.8 on: one file for 10.0 and 10.3.
    Target(
        "blackwell.ptx", 100, "compute_100f", ("sm_100a", "sm_103a"),
        isa="8.8", driver=12090, only=frozenset({"gemm_bf16_tcgen05"}), alone=(100, 103),
    ),
    # nvcc 13 knows nothing below 7.5; what it writes for that is good for 7.0, as ptxas 12 proves.
    Target("volta.ptx", 70, "compute_75", ("sm_70", "sm_75")),
)  # fmt: skip
SOURCES = (
    "kernels.cu", "platform.h", "numbers.h", "normal.h", "memory.h", "gemm_scalar.h",
    "gemm_tensor.h", "gemm_fp64.h", "gemm_wmma.h", "gemm_hopper.h", "gemm_blackwell.h",
    "block.h",
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


def _code(target: Target) -> str:
    """A file without its comments: what the driver compiles."""
    return "".join(line for line in text(target).splitlines(keepends=True) if not line.startswith("//"))


@functools.cache
def version() -> str:
    """8 hex digits of the PTX that several architectures share: the backend's version, part of the method."""
    shared = "".join(_code(target) for target in TARGETS if not target.only)
    return hashlib.blake2b(shared.encode(), digest_size=4).hexdigest()


def own_version(name: str) -> dict[str, str]:
    """The same for a kernel with a file of its own, by that file's name: part of the method of its benchmark alone."""
    own = (target for target in TARGETS if name in target.only)
    return {t.file: hashlib.blake2b(_code(t).encode(), digest_size=4).hexdigest() for t in own}


def target_for(capability: int) -> Target:
    """The file with most kernels for a compute capability (major * 10 + minor). Raises DeviceError below the oldest."""
    for target in TARGETS:
        if target.serves(capability) and not target.only:
            return target
    raise DeviceError(f"the kernels need compute capability 7.0 or later; this is {capability / 10:.1f}")


def target_with(name: str) -> Target:
    """The file that alone has this kernel."""
    return next(target for target in TARGETS if name in target.only)


def entries(whole: str) -> dict[str, str]:
    """Each kernel's own text."""
    starts = [*_ENTRY.finditer(whole)]
    ends = [*(m.start() for m in starts[1:]), len(whole)]
    return {m[1]: whole[m.start() : end] for m, end in zip(starts, ends, strict=True)}


def modules(capability: int, names: frozenset[str]) -> Iterator[tuple[frozenset[str], bytes]]:
    """These kernels for a device, in one module or two. Raises DeviceError."""
    rest = names
    for target in TARGETS:
        mine = rest & target.only if target.serves(capability) else frozenset()
        if mine:
            yield mine, module(target, mine)
            rest -= mine
    yield rest, module(target_for(capability), rest)


def module(target: Target, names: frozenset[str]) -> bytes:
    """A module with only these kernels, as cuModuleLoadDataEx takes it: the driver compiles no more than is used."""
    return part(text(target), names).encode() + b"\0"


def part(whole: str, names: Iterable[str]) -> str:
    """The same file with only these kernels."""
    own = entries(whole)
    return whole[: whole.index(".visible .entry")] + "".join(own[name] for name in sorted(names))
