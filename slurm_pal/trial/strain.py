# SPDX-License-Identifier: MIT
"""How much the machine itself disturbed an arm: it acts as all nodes, and as whoever submits."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

LATE_S, SUBMITTED_LATE_S = 0.2, 1.0
"""Beyond these, times of the lab are longer than Slurm alone would make them."""


class Strain(NamedTuple):
    """Of one arm. Times are s of the lab."""

    loop_late_p95_s: float  # how much later than asked for a sleeping process woke
    submitted_late_p95_s: float  # from the moment of a submission to the start of its command
    busy: float  # share of all processors in use by anybody, 0..1

    @property
    def distorts(self) -> bool:
        return self.loop_late_p95_s > LATE_S or self.submitted_late_p95_s > SUBMITTED_LATE_S

    def text(self) -> str:
        return (
            f"loop delay {self.loop_late_p95_s:.2f} s, submissions {self.submitted_late_p95_s:.2f} s late (p95), "
            f"processors {100 * self.busy:.0f} % busy"
        )


class StrainMeter:
    """Collects while an arm runs."""

    def __init__(self) -> None:
        self._woke_late_s: list[float] = []
        self._submitted_late_s: list[float] = []
        self._began = processor_times()

    def nap(self, seconds: float) -> None:
        """Sleep, and note by how much it was longer."""
        before_s = time.monotonic()
        time.sleep(seconds)
        self._woke_late_s.append(max(0.0, time.monotonic() - before_s - seconds))

    def submitted(self, late_s: float) -> None:
        self._submitted_late_s.append(max(0.0, late_s))

    def strain(self) -> Strain:
        used, total = (now - then for now, then in zip(processor_times(), self._began, strict=True))
        return Strain(
            round(p95(self._woke_late_s), 3), round(p95(self._submitted_late_s), 3),
            round(used / total, 3) if total > 0 else 0.0,
        )  # fmt: skip


def p95(values: Sequence[float]) -> float:
    """The 95th percentile; 0.0 of nothing."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1] if values else 0.0


def processor_times() -> tuple[float, float]:
    """(ticks in use, all ticks) of all processors since the boot, by proc(5)."""
    with open("/proc/stat", encoding="ascii") as stream:
        ticks = [int(word) for word in stream.readline().split()[1:9]]
    return float(sum(ticks) - ticks[3] - ticks[4]), float(sum(ticks))
