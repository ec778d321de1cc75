# SPDX-License-Identifier: MIT
"""The scale of the heat maps: ten steps of slowdown, the same every day and at every site."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

EDGES = (0.95, 0.97, 0.98, 0.99, 1.01, 1.02, 1.03, 1.05, 1.10)
"""Boundaries of the steps. Finer near the median, where most GPUs are; slow outliers begin at 1.05."""

COLOURS = (
    "#053061", "#2166ac", "#4393c3", "#92c5de", "#e8e8e4", "#fdc98a", "#f59d3d", "#d9700b", "#a34700", "#5c2500",
)  # fmt: skip
"""Blue is faster, orange and brown slower: distinguishable with any common colour blindness, and also in grey."""

INKS = ("#ffffff",) * 2 + ("#000000",) * 6 + ("#ffffff",) * 2
"""What is readable on each colour."""

UNKNOWN = "?"
FLAGGED, FAULTY = "!", "x"
MEDIAN_STEP = 4


class ScaleStep(NamedTuple):
    """One step: its digit, its colour, the slowdowns it stands for (low <= slowdown < high)."""

    digit: str
    colour: str
    ink: str
    low: float | None
    high: float | None

    @property
    def text(self) -> str:
        """Its range, short."""
        if self.low is None:
            return f"<{self.high:.2f}"
        return f">={self.low:.2f}" if self.high is None else f"{self.low:.2f}-{self.high:.2f}"


STEPS = tuple(
    ScaleStep(str(i), colour, ink, low, high)
    for i, (colour, ink, low, high) in enumerate(zip(COLOURS, INKS, (None, *EDGES), (*EDGES, None), strict=True))
)


def step_of(slowdown: float) -> ScaleStep:
    """The step of a slowdown."""
    return STEPS[bisect_right(EDGES, slowdown)]


def counts(slowdowns: Sequence[float]) -> list[int]:
    """How many of the slowdowns are in each step."""
    found = [0] * len(STEPS)
    for value in slowdowns:
        found[bisect_right(EDGES, value)] += 1
    return found
