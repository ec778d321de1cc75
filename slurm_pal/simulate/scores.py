# SPDX-License-Identifier: MIT
"""What the scheduler believes of the GPUs: the truth, or what an old, noisy, incomplete sweep says of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.base.errors import UsageError
from slurm_pal.emulation.models import SHARE
from slurm_pal.placement.occupancy import Table

_STREAM = 0x5C05E


class Scores(NamedTuple):
    """How far belief is from the truth; the defaults are exact scores.

    `stale_sd`: SD (of the log) by which a GPU has drifted since the sweep; class A feels
    the drift in full, the others by the shares of `slurm_pal.emulation.gpus.SHARE`. `noise_sd`:
    SD (of the log) of the error of each score. `missing`: share of the GPUs without a
    score, which are believed to be median GPUs.
    """

    noise_sd: float = 0.0
    missing: float = 0.0
    stale_sd: float = 0.0

    def text(self) -> str:
        words = [f"{name} {getattr(self, part.field):g}" for name, part in PARTS.items() if getattr(self, part.field)]
        return ", ".join(words) or "exact"


class ScoreFlaw(NamedTuple):
    """One word of `--scores`."""

    field: str
    most: float
    summary: str


PARTS = {
    "noise": ScoreFlaw("noise_sd", 1.0, "noise=SD: each score is off by this relative SD"),
    "missing": ScoreFlaw("missing", 1.0, "missing=SHARE: that share of the GPUs has no score and is believed median"),
    "stale": ScoreFlaw("stale_sd", 1.0, "stale=SD: GPUs have drifted by this relative SD since they were measured"),
}
EXACT = "exact"


def parse_scores(text: str) -> Scores:
    """`exact`, or any of noise=SD, missing=SHARE and stale=SD joined by commas. Raises UsageError."""
    if text == EXACT:
        return Scores()
    values: dict[str, float] = {}
    for word in text.split(","):
        name, _, number = word.partition("=")
        part = PARTS.get(name.strip())
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if part is None or part.field in values or not 0 <= value <= part.most:
            allowed = ", ".join(f"{known}=0..{PARTS[known].most:g}" for known in PARTS)
            raise UsageError(f"scores {text!r}: {word!r} must be {EXACT} or one of {allowed}, each at most once")
        values[part.field] = value
    return Scores(**values)


def believed(true: Mapping[str, Table], scores: Scores, seed: int) -> Mapping[str, Table]:
    """What is believed where `true` holds, [node][index] per class; `true` itself for exact scores.

    Drift, noise and missing scores have random streams of their own: adding one leaves the
    others as they were.
    """
    if scores == Scores():
        return true
    drifts, noises, gaps = (np.random.default_rng(s) for s in np.random.SeedSequence([seed, _STREAM]).spawn(3))
    sizes = [len(row) for row in true["A"]]
    n_gpus = sum(sizes)
    drift = np.exp(drifts.normal(0.0, 1.0, n_gpus) * scores.stale_sd)
    missing = np.zeros(n_gpus, dtype=np.bool_)
    missing[gaps.permutation(n_gpus)[: round(scores.missing * n_gpus)]] = True
    found: dict[str, Table] = {}
    for sensitivity, table in true.items():
        now = np.array([value for row in table for value in row])
        at_sweep = now / (1.0 + SHARE.get(sensitivity, SHARE["C"]) * (drift - 1.0))
        measured = at_sweep * np.exp(noises.normal(0.0, 1.0, n_gpus) * scores.noise_sd)
        found[sensitivity] = _rows(np.where(missing, 1.0, measured), sizes)
    return found


def _rows(values: NDArray[np.float64], sizes: list[int]) -> Table:
    return [row.tolist() for row in np.split(values, np.cumsum(sizes)[:-1])]
