# SPDX-License-Identifier: MIT
"""Hadar in rounds, for jobs whose moves are charged: all jobs are placed anew each ROUND_S (hadar.md 2).

Between two rounds jobs that wait may start on free GPUs; what runs stays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.hadar import hadar
from slurm_pal.research.unequal import Moment
from slurm_pal.research.unequal_rounds import ROUND_S


class HadarRounds:
    """The policy of one run. `n_jobs` are those of the trace."""

    def __init__(self, n_jobs: int) -> None:
        self._total = np.full(n_jobs, np.nan)  # steps of each job, as believed when it came
        self._round = -1
        self._left = np.zeros((2, 0), dtype=np.int64)  # jobs and their columns as the last look has left them

    def __call__(self, moment: Moment) -> NDArray[np.int64]:
        now = moment.problem
        new = np.isnan(self._total[moment.job])
        self._total[moment.job[new]] = now.remaining[new]
        number = int(moment.now_s / ROUND_S)
        if number <= self._round and np.array_equal(np.stack((moment.job, now.held)), self._left):
            return now.held.copy()
        pinned = (now.held >= 0) & (number <= self._round)
        self._round = number
        cost_s = np.where(moment.charged, moment.move_cost_s, 0.0)
        column = hadar(now, self._total[moment.job], cost_s, pinned)
        self._left = np.stack((moment.job, column))
        return column
