# SPDX-License-Identifier: MIT
"""One event in a GPU's history, as drift.py finds it. Without numpy: what only shows findings starts sooner."""

from __future__ import annotations

import math
from typing import NamedTuple

from slurm_pal.variability.params import DAY_S

STEP, DRIFT, TRANSIENT, UNCONFIRMED = "step", "drift", "transient", "unconfirmed"
FLAGGED_D = 30.0  # a step or drift is a flag for this long after it was seen


class Finding(NamedTuple):
    """One event in the history of one GPU in one benchmark."""

    kind: str  # step, drift, transient or unconfirmed
    uuid: str
    sensitivity: str
    benchmark: str
    since_s: float  # Unix s of the first run that shows it; of a drift, of the first run of the slope
    seen_s: float  # Unix s of the run after which it was known
    change: float  # relative change in time: 0.021 is 2.1 % slower; of a drift, over its span
    sigmas: float  # the same, in standard deviations of chance


def flagged(finding: Finding, now_s: float) -> bool:
    """Whether a finding is a flag of its GPU now: a step or drift that was seen lately."""
    days = math.floor(now_s / DAY_S) - math.floor(finding.seen_s / DAY_S)
    return finding.kind in (STEP, DRIFT) and days <= FLAGGED_D
