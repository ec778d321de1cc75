# SPDX-License-Identifier: MIT
"""What the step times of one kind of work show: its own length, how much it feels slow GPUs, and the network. Pure.

log step = log base + sensitivity x log slowdown + log penalty of the level + noise

by least squares, with a sensitivity of 1 and the penalties expected anyway as prior knowledge: few observations, or
slowdowns that hardly differ, leave them there. The slowdown is that of the slowest GPU, which paces synchronous work
(PAL, SC'24).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import median
from typing import NamedTuple

from slurm_pal.journal.journal import Observation
from slurm_pal.placement.penalties import MOST, Penalties, at

STEP_NOISE, SLOPE_SPREAD, PENALTY_SPREAD = 0.05, 0.5, 0.5  # of logarithms: a step time; sensitivities; penalties
MOST_SENSITIVE = 3.0
LEAST_SETS = 2
"""A level counts as known by step times on so many different sets of GPUs, there and at a level to compare with: else
one slow GPU would pass for the network."""


class FittedWork(NamedTuple):
    """One kind of work, as its step times show it."""

    base_s: float  # step time on median GPUs of one node
    sensitivity: float  # exponent on slowdowns; 0: not felt, 1: as predicted
    penalties: Mapping[int, float]  # level of the network -> factor, of the levels that were seen

    def predicted_s(self, one: Observation) -> float:
        """Its step time where it was observed."""
        return float(self.base_s * one.slowdown**self.sensitivity * self.penalties.get(one.level, 1.0))


def fitted(seen: Sequence[Observation], expected: Penalties) -> FittedWork:
    """The work behind these observations, of which there is one at least."""
    import numpy as np  # commands that only show moves read no steps

    levels = sorted({one.level for one in seen} - {0})
    rows = [(1.0, log(one.slowdown), *(float(one.level == level) for level in levels)) for one in seen]
    steps = [log(one.step_s) for one in seen]
    priors = [log(at(expected, level)) for level in levels]
    spreads = [SLOPE_SPREAD, *(PENALTY_SPREAD for _ in levels)]
    if all(one.level for one in seen):  # nothing shows what one node would be: the lowest level is as expected
        spreads[1] = PENALTY_SPREAD / 1000.0
    design = np.vstack([np.array(rows) / STEP_NOISE, np.diag([0.0, *(1.0 / spread for spread in spreads)])[1:]])
    target = np.array(
        [*(step / STEP_NOISE for step in steps), *(x / s for x, s in zip([1.0, *priors], spreads, strict=True))]
    )
    _, slope, *logs = np.linalg.lstsq(design, target, rcond=None)[0].tolist()
    slope = min(max(slope, 0.0), MOST_SENSITIVE)
    penalties = {level: exp(min(max(value, 0.0), log(MOST))) for level, value in zip(levels, logs, strict=True)}
    made = FittedWork(1.0, slope, penalties)
    return made._replace(base_s=median(one.step_s / made.predicted_s(one) for one in seen))


def known(work: FittedWork, seen: Iterable[Observation]) -> dict[int, float]:
    """The penalties that its observations show: at their lowest level that counts they are the expected ones."""
    sets: dict[int, set[tuple[tuple[str, int], ...]]] = {}
    for one in seen:
        sets.setdefault(one.level, set()).add(tuple(sorted(one.gpus)))
    enough = sorted(level for level, found in sets.items() if len(found) >= LEAST_SETS)
    return {level: work.penalties[level] for level in enough[1:]}
