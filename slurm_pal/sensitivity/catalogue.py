# SPDX-License-Identifier: MIT
"""Known applications and their sensitivity classes; a site adds its own under [apps] in pal.toml.

A: compute-bound, B: mixed, C: memory-bound or otherwise insensitive. Sources: the
per-model classes of PAL (SC'24; its fourth class D, memory-bound, is part of C here),
the application study of "Not All GPUs Are Created Equal" (SC'22), and benchmarks whose
bound is their purpose.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_pal.base.errors import UsageError

APPLICATIONS: dict[str, tuple[str, str]] = {
    "resnet50": ("A", "PAL"),
    "sgemm": ("A", "SC'22"),
    "dgemm": ("A", "dense matrix product"),
    "hpl": ("A", "dense LU factorisation"),
    "bert": ("B", "PAL"),
    "gpt2": ("B", "PAL"),
    "dcgan": ("B", "PAL"),
    "vgg19": ("C", "PAL"),
    "pointnet": ("C", "PAL, class D"),
    "lammps": ("C", "SC'22, memory-bound"),
    "pagerank": ("C", "SC'22, memory-bound"),
    "hpcg": ("C", "sparse products, memory-bound"),
    "stream": ("C", "memory bandwidth"),
}
"""Name in lower case -> (class, where it comes from)."""


def class_of(app: str, site: Mapping[str, str]) -> str:
    """The sensitivity class of an application, the site's own table first.

    Raises UsageError, naming what is known, for an application in neither table.
    """
    own = {name.lower(): value for name, value in site.items()}
    name = app.strip().lower()
    if name in own:
        return own[name]
    if name in APPLICATIONS:
        return APPLICATIONS[name][0]
    known = ", ".join(sorted({*own, *APPLICATIONS}))
    raise UsageError(f"application {app!r} is not known; known are {known}; add it under [apps] in pal.toml")
