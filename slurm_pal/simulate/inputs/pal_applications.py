# SPDX-License-Identifier: MIT
"""The applications of the Sia-Philly traces, as the artefact of PAL fixes them (pal.md 1.2)."""

from __future__ import annotations

from typing import NamedTuple

from slurm_pal.base.errors import UsageError


class Application(NamedTuple):
    """Seconds per iteration on a median GPU, whatever the number of GPUs, and the sensitivity class."""

    iteration_s: float
    sensitivity: str


APPLICATIONS = {
    "resnet50": Application(0.17540429367763434, "A"),
    "BERT": Application(0.179, "B"),
    "GPT2": Application(3.5714, "B"),
    "DCGAN": Application(0.0469266931, "B"),
    "vgg19": Application(0.300610341, "C"),
    "PointNet": Application(0.28125, "D"),
}


def application_of(model: str) -> Application:
    """Raises UsageError for a model without a published iteration time."""
    if model not in APPLICATIONS:
        raise UsageError(f"model {model!r} has no iteration time; known: {', '.join(APPLICATIONS)}")
    return APPLICATIONS[model]
