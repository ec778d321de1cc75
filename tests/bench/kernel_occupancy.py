# SPDX-License-Identifier: MIT
"""Registers, spills and occupancy of the driver's kernels, by the assembler alone: no GPU, nothing is run.

    python tests/bench/kernel_occupancy.py [--ptxas PTXAS]... [--write docs/benchmarks.md]

Without --ptxas the assemblers of WHEELS are fetched by pip (130 MB). --write replaces the section's table in that file.
Exit code 1 where a kernel spills. Of a multiprocessor only its limits are used (CUDA Programming Guide, "Compute
Capabilities"): blocks that fit at once are not speed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_pal.profiling.driver import ptx
from slurm_pal.profiling.driver.arguments import KERNELS, Signature

WHEELS = (
    "nvidia-cuda-nvcc-cu11==11.8.89",
    "nvidia-cuda-nvcc-cu12==12.4.131",
    "nvidia-cuda-nvcc-cu12==12.9.86",
    "nvidia-cuda-nvcc==13.0.88",
)
BEGIN, END = "<!-- made by tests/bench/kernel_occupancy.py -->\n", "<!-- end of the table -->\n"
REGISTERS = 65536  # of a multiprocessor, of every architecture here
_ENTRY = re.compile(r"entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


class Multiprocessor(NamedTuple):
    """What fits at once on one multiprocessor."""

    threads: int
    blocks: int
    shared_kib: int
    reserved: int  # bytes of shared memory that the system takes of each block


LIMITS = {
    "sm_70": Multiprocessor(2048, 32, 96, 0),
    "sm_75": Multiprocessor(1024, 16, 64, 0),
    "sm_80": Multiprocessor(2048, 32, 164, 1024),
    "sm_86": Multiprocessor(1536, 16, 100, 1024),
    "sm_89": Multiprocessor(1536, 24, 100, 1024),
    "sm_90": Multiprocessor(2048, 32, 228, 1024),
    "sm_90a": Multiprocessor(2048, 32, 228, 1024),
    "sm_100": Multiprocessor(2048, 32, 228, 1024),
    "sm_100a": Multiprocessor(2048, 32, 228, 1024),
    "sm_103": Multiprocessor(2048, 32, 228, 1024),
    "sm_103a": Multiprocessor(2048, 32, 228, 1024),
    "sm_120": Multiprocessor(1536, 24, 100, 1024),
}


class Made(NamedTuple):
    """What an assembler made of one kernel."""

    registers: int
    shared: int  # bytes, static
    spilled: int  # bytes, stores and loads


def fetched(folder: Path) -> list[str]:
    """The assemblers of WHEELS, unpacked into `folder`."""
    found = []
    for wheel in WHEELS:
        into = folder / wheel
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), wheel]
        subprocess.run(pip, check=True)
        (file,) = into.glob("*.whl")
        with zipfile.ZipFile(file) as packed:
            (name,) = (name for name in packed.namelist() if name.endswith("bin/ptxas"))
            program = Path(packed.extract(name, into))
        program.chmod(0o755)
        found.append(str(program))
    return found


def release(ptxas: str) -> str:
    said = subprocess.run([ptxas, "--version"], check=True, capture_output=True, text=True).stdout
    match = re.search(r"release (\d+\.\d+)", said)
    assert match, said
    return match[1]


def assembled(ptxas: str, text: str, architecture: str) -> dict[str, Made] | None:
    """By kernel; None where the assembler does not know the architecture or the PTX version."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.ptx"
        file.write_text(text, encoding="ascii")
        words = [ptxas, "-v", f"-arch={architecture}", "-o", str(Path(folder) / "out"), str(file)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        if "is not defined for option" in done.stderr or "Unsupported .version" in done.stderr:
            return None
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    return parsed(done.stderr)


def parsed(said: str) -> dict[str, Made]:
    """What `ptxas -v` says, by kernel."""
    found = {}
    starts = [*_ENTRY.finditer(said)]
    for start, end in zip(starts, [*(m.start() for m in starts[1:]), len(said)], strict=True):
        part = said[start.start() : end]
        used, spills, shared = _USED.search(part), _SPILLS.search(part), _SHARED.search(part)
        assert used and spills, part
        found[start[1]] = Made(int(used[1]), int(shared[1]) if shared else 0, int(spills[1]) + int(spills[2]))
    return found


def blocks(made: Made, kernel: Signature, on: Multiprocessor) -> int:
    """How many blocks fit at once. Registers are given to warps by 256, and warps lie in four quarters."""
    threads = kernel.threads
    warps = -(-threads // 32)
    each = -(-made.registers * 32 // 256) * 256
    by_registers = REGISTERS // each // 4 * 4 // warps
    used = made.shared + kernel.shared + on.reserved
    by_shared = on.shared_kib * 1024 // used if used else on.blocks
    return min(on.threads // threads, on.blocks, by_registers, by_shared)


def table(programs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Lines for the document, and the kernels that spill."""
    cells: dict[tuple[str, str], str] = {}
    spills: list[str] = []
    by: dict[str, list[str]] = {}
    columns = _order(architecture for target in ptx.TARGETS for architecture in target.assemble_for)
    for target in ptx.TARGETS:
        for architecture in target.assemble_for:
            for program in programs:
                made = assembled(program, ptx.text(target), architecture)
                if made is None:
                    continue
                by.setdefault(release(program), []).append(architecture)
                for name, one in made.items():
                    fit = blocks(one, KERNELS[name], LIMITS[architecture])
                    cells[name, architecture] = f"{one.registers} / {fit}"  # of the newest that knows it
                    if one.spilled:
                        spills.append(f"{name} on {architecture} by ptxas {release(program)}: {one.spilled} bytes")
    own = (f", {file} {made}" for name in KERNELS for file, made in ptx.own_version(name).items())
    versions = ptx.version() + "".join(own)
    known = [f"{name} for {', '.join(_order(them))}" for name, them in by.items()]
    lines = [
        f"PTX {versions}. Registers of a thread / blocks that fit at once on a multiprocessor, by the newest of "
        f"these assemblers that knows it: {'; '.join(known)}.",
        "",
        f"| kernel | {' | '.join(columns)} |",
        f"|---|{'---|' * len(columns)}",
        *(f"| `{name}` | {' | '.join(cells.get((name, a), '-') for a in columns)} |" for name in KERNELS),
        "",
        f"Spills: {'; '.join(spills) or 'none, by any of them'}.",
    ]
    return lines, spills


def _order(architectures: Iterable[str]) -> list[str]:
    return sorted(set(architectures), key=list(LIMITS).index)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Registers, spills and occupancy of the driver's kernels.")
    parser.add_argument("--ptxas", action="append", help="use this one; may be repeated")
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace the table in this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines, spills = table(options.ptxas or fetched(Path(folder)))
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.write:
        whole = options.write.read_text(encoding="utf-8")
        head, _, rest = whole.partition(BEGIN)
        _, found, tail = rest.partition(END)
        if not found:
            raise SystemExit(f"{options.write} lacks the lines {BEGIN.strip()} and {END.strip()}")
        options.write.write_text(f"{head}{BEGIN}{text}{END}{tail}", encoding="utf-8")
    return 1 if spills else 0


if __name__ == "__main__":
    raise SystemExit(main())
