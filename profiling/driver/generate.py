# SPDX-License-Identifier: MIT
"""Make the PTX from the kernels' source: python -m slurm_pal.profiling.driver.generate.

Needs nvcc of CUDA 13, or 12.9. The files are written beside the source, so run it in a checkout:

    python -m slurm_pal.profiling.driver.generate [--nvcc NVCC] [--ptxas PTXAS]... [--into FOLDER]

Each ptxas given (default: the one in the path) must assemble the files for the
architectures that ptx.TARGETS names, as far as it knows them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from slurm_pal.base.errors import MissingPackageError, PalError
from slurm_pal.base.files import write_atomic
from slurm_pal.profiling.driver import ptx
from slurm_pal.profiling.driver.ptx import TARGETS, Target, source_hash

_NAME = re.compile(r"_INTERNAL_[0-9a-f]{8}_\d+_kernels_cu_[0-9a-f]{8}")  # differs with the folder of the source


def _run(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MissingPackageError(
            f"{argv[0]} cannot be run ({error.strerror}): install the CUDA toolkit, or name it by --nvcc or --ptxas"
        ) from None
    if done.returncode:
        raise PalError(f"{' '.join(argv)} failed: {' '.join((done.stderr or done.stdout).split())[:500]}")
    return done.stdout


def tidy(raw: str, target: Target, compiler: str, source: str) -> str:
    """nvcc's text without comments and blank lines, with our header and the PTX version we promise."""
    lines = (line.partition("//")[0].strip() for line in raw.splitlines())
    kept = [line for line in lines if line and not line.startswith((".version", ".target"))]
    head = [
        "// Kernels of slurm-pal's driver-only backend. Made by python -m slurm_pal.profiling.driver.generate.",
        f"// source {source}",
        f"// compiler {compiler}",
        f".version {target.isa}",
        f".target {target.named}",
    ]
    text = _NAME.sub("kernels", "\n".join([*head, *kept]) + "\n")
    return ptx.part(text, target.only) if target.only else text


def make(target: Target, nvcc: str, source: Path) -> str:
    """One file of PTX. Raises PalError when nvcc is missing or fails."""
    compiler = next((line for line in _run([nvcc, "--version"]).splitlines() if "release" in line), "")
    if not compiler:
        raise PalError(f"{nvcc} --version names no release: is it nvcc?")
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "kernels.ptx"
        _run([nvcc, "-ptx", "-O3", f"-arch={target.compile_for}", "-o", str(raw), str(source)])
        return tidy(raw.read_text(encoding="ascii"), target, compiler, source_hash())


def assemble(text: str, architecture: str, ptxas: str) -> bool:
    """Whether `ptxas` knows the architecture; it must then accept the text. Raises PalError."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.ptx"
        file.write_text(text, encoding="ascii")
        try:
            _run([ptxas, f"-arch={architecture}", "-o", str(Path(folder) / "kernels.cubin"), str(file)])
        except PalError as error:
            if "is not defined for option" in str(error) or "Unsupported .version" in str(error):
                return False
            raise
    return True


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m slurm_pal.profiling.driver.generate", description="Make the PTX.")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--ptxas", action="append", help="assemble with this one; may be repeated")
    parser.add_argument("--into", type=Path, default=Path(ptx.__file__).resolve().parent)
    options = parser.parse_args()
    for target in TARGETS:
        text = make(target, options.nvcc, options.into / "kernels.cu")
        for ptxas in options.ptxas or ["ptxas"]:
            known = [a for a in target.assemble_for if assemble(text, a, ptxas)]
            print(f"{target.file}: {ptxas} assembles it for {', '.join(known) or 'nothing, since it knows none'}")
        try:
            write_atomic(str(options.into / target.file), text)
        except OSError as error:
            raise PalError(
                f"{options.into / target.file} cannot be written: {error.strerror}; name a folder with --into"
            ) from None


if __name__ == "__main__":
    try:
        main()
    except PalError as error:
        raise SystemExit(f"generate: {error}") from None
