# SPDX-License-Identifier: MIT
"""Which jobs run now, as whole gangs: the set with the highest reward that fits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.base import WHOLE, Time, fitting, limit_rows, whole_gangs
from slurm_pal.allocation.linear import LinearProgram, Rows
from slurm_pal.allocation.problem import Matrix, Problem, Vector

GAP = 1e-3  # a branch that cannot gain more than this part is dropped
NODES = 60  # linear programs at most; then the best found counts
COLUMNS = 3  # of each job that are looked at where there are more


def select(problem: Problem, reward: Matrix, price: Vector) -> NDArray[np.int64]:
    """(m,) column of each job, -1 for the jobs that do not run.

    reward (m, n) is what a job makes per second in a column; only entries above 0 are chosen. price (n,) is about
    what a GPU makes; it serves to leave out entries without a chance.
    Branch and bound on the linear program, whose basic solutions split at most as many gangs as there are
    capacity rows; with single GPUs none. What is held now counts as found, so it stays unless something is better
    by more than GAP. Ties may fall either way.
    """
    job, column = np.nonzero(_contenders(problem, reward, price))
    value = reward[job, column]
    chosen = np.full(problem.n_jobs, -1)
    if not value.size:
        return chosen
    program = LinearProgram(value, _rows(problem, job, column))
    force = 1e3 * (1.0 + float(value.max()))
    held, gpus = (problem.held[job] == column).astype(np.float64), problem.scale[job]
    picked = whole_gangs(problem, held, value, job, column, gpus)
    most = float(value[picked].sum())
    waiting = [value]
    for _ in range(NODES):
        if not waiting:
            break
        cost = waiting.pop()
        program.change_cost(cost)
        x = program.solve().x
        if (x[cost > value] < 1 - WHOLE).any() or x @ value <= most * (1 + GAP):
            continue  # the forced ones do not fit together, or there is little to win
        fits = whole_gangs(problem, x, value, job, column, gpus)
        if value[fits].sum() > most:
            most, picked = float(value[fits].sum()), fits
        split = np.flatnonzero((x > WHOLE) & (x < 1 - WHOLE))
        if split.size:
            branch = split[problem.scale[job[split]].argmax()]
            for change in (-force, force):
                waiting.append(cost.copy())
                waiting[-1][branch] = value[branch] + change
    chosen[job[picked]] = column[picked]
    return chosen


def _contenders(problem: Problem, reward: Matrix, price: Vector) -> NDArray[np.bool_]:
    """(m, n) entries that may be chosen.

    No more gangs of a size can run than all capacities hold. So only that many, the best in a column, are
    needed: if another were chosen, one of these would be free to take its place. Where there are many columns,
    only those in which a job makes most above the price count, which is a guess.
    """
    reward = fitting(problem._replace(throughput=np.maximum(reward, 0.0)))
    able = reward > 0
    for scale in np.unique(problem.scale):
        rows = np.flatnonzero(problem.scale == scale)
        places = int(np.floor(problem.capacity / scale).sum())
        if rows.size > places:
            order = np.argsort(-reward[rows], axis=0, kind="stable")
            np.put_along_axis(able, rows[order[places:]], False, axis=0)
    if problem.n_columns > COLUMNS:
        surplus = np.where(able, reward / problem.scale[:, None] - price, -np.inf)
        good = surplus >= np.partition(surplus, -COLUMNS, axis=1)[:, [-COLUMNS]]
        held = np.flatnonzero(problem.held >= 0)
        good[held, problem.held[held]] = True
        able &= good
    return able


def _rows(problem: Problem, job: NDArray[np.int64], column: NDArray[np.int64]) -> Rows:
    """A job runs once; the capacity of every row of `uses`."""
    time = Time(job, np.arange(job.size), np.ones(job.size))
    return limit_rows(problem, time, np.ones(problem.n_jobs), column, problem.scale[job])
