# SPDX-License-Identifier: MIT
"""Known applications: their sensitivity classes, what supports them, and which programs they are.

A: compute-bound, B: mixed, C: memory-bound or otherwise insensitive. A site adds its own under [apps] in pal.toml.
A class decides where a job goes only with support: a benchmark's purpose, or published measurements on many GPUs.
Published labels without measurements serve who asks for them by name (--pal-app). Where the bound depends on a
program's input, its name shows no class. docs/sensitivity.md has the same table, with the sources.
"""

from __future__ import annotations

from slurm_pal.base.errors import UsageError
from slurm_pal.base.light import Mapping, NamedTuple

PURPOSE, MEASURED, LABELLED = 0.95, 0.9, 0.5
"""Confidence in a class by what supports it: what the benchmark is for; times on many GPUs; a label of one run."""


class Application(NamedTuple):
    """One application."""

    sensitivity: str
    support: float  # PURPOSE, MEASURED or LABELLED
    source: str


APPLICATIONS: dict[str, Application] = {
    "resnet50": Application("A", MEASURED, "SC'22 and PAL: times on 336 V100 and 296 RTX 5000"),
    "sgemm": Application("A", MEASURED, "SC'22: times and clocks on 392 V100"),
    "dgemm": Application("A", PURPOSE, "dense matrix product"),
    "hpl": Application("A", PURPOSE, "dense LU factorisation"),
    "bert": Application("B", MEASURED, "SC'22 and PAL: times on 136 V100 and 276 RTX 5000"),
    "gpt2": Application("B", LABELLED, "PAL's label"),
    "dcgan": Application("B", LABELLED, "PAL's label"),
    "vgg19": Application("C", LABELLED, "PAL's label"),
    "pointnet": Application("C", LABELLED, "PAL's label, class D"),
    "lammps": Application("C", LABELLED, "SC'22: one potential"),
    "pagerank": Application("C", MEASURED, "SC'22 and PAL: times on 172 V100 and 248 RTX 5000"),
    "hpcg": Application("C", PURPOSE, "sparse products"),
    "stream": Application("C", PURPOSE, "memory bandwidth"),
}
"""Name in lower case -> what is known of it."""

PROGRAMS: dict[str, str] = {
    "xhpl": "hpl", "hpl": "hpl", "sgemm": "sgemm", "dgemm": "dgemm", "gemm": "dgemm", "cublasmatmulbench": "dgemm",
    "gpu_burn": "dgemm", "gpu-burn": "dgemm", "xhpcg": "hpcg", "hpcg": "hpcg", "cuda-stream": "stream",
    "babelstream": "stream", "pagerank": "pagerank",
}  # fmt: skip
"""Base names of programs, without .exe, .x, .py and the like -> application. Plain `stream` may be anything."""

MODELS = ("resnet50", "bert", "gpt2", "dcgan", "vgg19", "pointnet")
"""Applications that are models: their class is that of their training."""

BY_INPUT: dict[str, tuple[str, ...]] = {
    "GROMACS": ("gmx", "gmx_mpi", "gmx_d", "mdrun"),
    "LAMMPS": ("lmp", "lammps", "lmp_mpi", "lmp_gpu", "lmp_cuda", "lmp_kokkos", "lmp_kokkos_cuda_mpi"),
    "Amber": ("pmemd", "pmemd.cuda", "pmemd.cuda_spfp", "pmemd.cuda_dpfp", "pmemd.cuda.mpi", "pmemd.hip"),
    "NAMD": ("namd2", "namd3"),
    "VASP": ("vasp_std", "vasp_gam", "vasp_ncl", "vasp_gpu"),
    "Quantum ESPRESSO": ("pw.x", "cp.x", "ph.x"),
    "CP2K": ("cp2k", "cp2k.psmp", "cp2k.popt", "cp2k.ssmp"),
    "OpenFOAM": ("simplefoam", "pimplefoam", "pisofoam", "interfoam", "icofoam", "rhosimplefoam", "foamrun"),
    "LLM serving": ("vllm", "sglang", "text-generation-launcher", "trtllm-serve", "tritonserver", "ollama", "lmdeploy"),
}
"""Programs whose bound depends on their input -> base names, as above."""


def class_of(app: str, site: Mapping[str, str]) -> str:
    """The sensitivity class of an application, the site's own table first.

    Raises UsageError, naming what is known, for an application in neither table.
    """
    own = {name.lower(): value for name, value in site.items()}
    name = app.strip().lower()
    if name in own:
        return own[name]
    if name in APPLICATIONS:
        return APPLICATIONS[name].sensitivity
    known = ", ".join(sorted({*own, *APPLICATIONS}))
    raise UsageError(f"application {app!r} is not known; known are {known}; add it under [apps] in pal.toml")
