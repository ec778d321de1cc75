# SPDX-License-Identifier: MIT
"""Numbers of many jobs as arrays, which come and go one by one and are computed with all at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class JobRows:
    """One row for each job, in the order in which they came; `alive` is 1.0, and 0.0 in rows of jobs that have gone."""

    def __init__(self, names: Sequence[str]) -> None:
        self._place = {name: k for k, name in enumerate(("alive", *names))}
        self._values = np.zeros((len(self._place), 256))
        self._rows = 0
        self.row_of: dict[int, int] = {}
        self.jobs: list[int] = []  # by row

    def __getitem__(self, name: str) -> Floats:
        return self._values[self._place[name], : self._rows]

    def add(self, job: int, values: Sequence[float]) -> int:
        """A row for a job, its values in the order of the names; returns its number, until others are added."""
        if self._rows == self._values.shape[1]:
            self._make_room()
        row = self._rows
        self._values[:, row] = (1.0, *values)
        self.row_of[job] = row
        self.jobs.append(job)
        self._rows += 1
        return row

    def remove(self, job: int) -> None:
        self._values[0, self.row_of.pop(job)] = 0.0

    def of(self, job: int) -> Floats:
        """The values of one job, in the order of the names."""
        return self._values[1:, self.row_of[job]]

    def _make_room(self) -> None:
        """Leave out the rows of jobs that have gone; where most are alive, make more."""
        kept = np.flatnonzero(self._values[0, : self._rows])
        made = np.zeros((len(self._place), max(256, 2 * len(kept))))
        made[:, : len(kept)] = self._values[:, kept]
        self._values, self._rows = made, len(kept)
        self.jobs = [self.jobs[row] for row in kept.tolist()]
        self.row_of = {job: row for row, job in enumerate(self.jobs)}
