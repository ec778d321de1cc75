# SPDX-License-Identifier: MIT
"""Small random problems with pairs, and their optima by the published program: one row per job and per pair of jobs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from slurm_pal.allocation.problem import Problem, problem

Vector = NDArray[np.float64]


class Row(NamedTuple):
    """One job or pair on one column."""

    jobs: tuple[int, ...]
    speed: Vector  # (m,) steps/s
    column: int
    scale: float


def random_problem(seed: int, m: int) -> Problem:
    """Three kinds, two columns; weights, work, ages and prices from few values, so that some jobs are equal."""
    numbers = np.random.default_rng(seed)
    kinds, n = 3, 2
    speeds = numbers.uniform(0.5, 4, (kinds, n)) * (numbers.random((kinds, n)) < 0.85) + [0.01, 0]
    ratio = numbers.uniform(0.2, 1.05, (kinds, kinds, n)) * (numbers.random((kinds, kinds, n)) < 0.9)
    kind, scale = numbers.integers(0, kinds, m), numbers.choice([1, 1, 2], kinds)
    return problem(
        speeds[kind], scale[kind], numbers.integers(1, 4, n) * 2, weight=numbers.choice([1, 3], m),
        price=numbers.uniform(0.1, 2, n), remaining=numbers.choice([5.0, 20.0, 33.0], m),
        age_s=numbers.choice([0.0, 4.0], m), earned_s=numbers.choice([0.0, 3.0], m), kind=kind,
        pairs=speeds[:, None] * ratio,
    )  # fmt: skip


def rows_of(given: Problem) -> list[Row]:
    """All rows of the published program."""
    m, n = given.throughput.shape
    one, rows = np.eye(m), []
    for j in range(n):
        for i in range(m):
            rows.append(Row((i,), given.throughput[i, j] * one[i], j, given.scale[i]))
            for k in range(i + 1, m):
                there, back = (given.pairs[given.kind[a], given.kind[b], j] for a, b in ((i, k), (k, i)))
                able = min(there, back, given.throughput[i, j], given.throughput[k, j]) > 0
                if able and given.scale[i] == given.scale[k]:
                    rows.append(Row((i, k), there * one[i] + back * one[k], j, given.scale[i]))
    return rows


def _limits(given: Problem, rows: list[Row]) -> tuple[NDArray[np.float64], Vector, list[tuple[float, float | None]]]:
    time = np.array([[float(i in row.jobs) for row in rows] for i in range(given.n_jobs)])
    use = np.array([[row.scale * (row.column == j) for row in rows] for j in range(given.n_columns)])
    bounds: list[tuple[float, float | None]] = [(0, None if r.scale <= given.capacity[r.column] else 0) for r in rows]
    return np.vstack([time, use]), np.append(np.ones(given.n_jobs), given.capacity), bounds


def largest_sum(given: Problem, values: Vector) -> float:
    """The largest sum of value * time; one value for each of `rows_of`."""
    left, right, bounds = _limits(given, rows_of(given))
    return float(-linprog(-values, left, right, bounds=bounds).fun)


def highest_level(given: Problem, unit: Vector) -> float:
    """The largest least throughput / unit."""
    rows = rows_of(given)
    left, right, bounds = _limits(given, rows)
    speeds = np.array([row.speed / unit for row in rows]).T
    left = np.block([[left, np.zeros((len(left), 1))], [-speeds, np.ones((given.n_jobs, 1))]])
    right = np.append(right, np.zeros(given.n_jobs))
    return float(-linprog(np.append(np.zeros(len(rows)), -1.0), left, right, bounds=[*bounds, (0, None)]).fun)
