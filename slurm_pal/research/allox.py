# SPDX-License-Identifier: MIT
"""AlloX: the waiting jobs queue on the free GPUs so that the mean completion time is least (EuroSys'20, gavel.md 2)."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.problem import Allocation, Matrix, Problem
from slurm_pal.base.errors import DataError
from slurm_pal.research.fifo import alone, keep_held

NEVER = 1e-10  # steps/s that stand for a GPU on which the job cannot run; the published value


class _Slots(NamedTuple):
    """Places in the queues of the free GPUs, in the published order: by place, then by GPU."""

    place: NDArray[np.int64]  # from the end of the queue, 1 = last
    gpu: NDArray[np.int64]
    column: NDArray[np.int64]


def allox(problem: Problem, alpha: float = 1.0) -> Allocation:
    """Each free GPU gets the first job of its queue; a job with a GPU (`held`) keeps it until done.

    Considered are the oldest max(alpha x waiting jobs, free GPUs) jobs. The cost of a place is
    place x remaining steps / throughput + age, s. Only the heads of the queues start: the
    rest is decided anew next time.
    Raises DataError for a job of more than 1 GPU: the assignment knows none.
    """
    if (problem.scale != 1).any():
        job = int(np.flatnonzero(problem.scale != 1)[0])
        raise DataError(
            f"job {job} needs {problem.scale[job]:g} GPUs; AlloX places jobs of 1 GPU only: use another policy"
        )
    columns, room = keep_held(problem)
    waiting = np.flatnonzero(columns < 0)
    used = np.bincount(columns[columns >= 0], minlength=problem.n_columns)
    free = np.maximum(problem.gpus - used, 0).astype(np.int64)
    oldest = waiting[np.argsort(-problem.age_s[waiting], kind="stable")]
    oldest = oldest[: max(int(alpha * waiting.size), int(free.sum()))]
    if not oldest.size or not free.any():
        return alone(problem, columns)
    slots = _slots(free, oldest.size)
    optimize = import_module("scipy.optimize")  # here: it takes long, and few runs need it
    chosen = optimize.linear_sum_assignment(_cost(problem, oldest, slots))[1]
    for row in _heads(slots, chosen):
        job, column = int(oldest[row]), int(slots.column[chosen[row]])
        if problem.throughput[job, column] > 0 and column in room.columns(job):
            columns[job] = column
            room.take(job, column)
    return alone(problem, columns)


def _slots(free: NDArray[np.int64], jobs: int) -> _Slots:
    """The places worth offering: on k equal GPUs, some optimum uses no place beyond jobs / k, rounded up.

    (Of two equal GPUs, a place on the shorter queue is never dearer.) That leaves at most
    jobs + k slots per column, where the published matrix has jobs x k.
    """
    column = np.repeat(np.arange(free.size), free)
    depth = -(-jobs // np.maximum(free, 1))[column]
    place, gpu = np.nonzero(np.arange(depth.max())[:, None] < depth)
    return _Slots(place + 1, gpu, column[gpu])


def _cost(problem: Problem, jobs: NDArray[np.int64], slots: _Slots) -> Matrix:
    speed = np.where(problem.throughput[jobs] > 0, problem.throughput[jobs], NEVER)
    alone_s = problem.remaining[jobs, None] / speed
    return np.asarray(slots.place * alone_s[:, slots.column] + problem.age_s[jobs, None])


def _heads(slots: _Slots, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows that come first in their GPU's queue, by GPU: the ones with the highest place from the end."""
    order = np.lexsort((-slots.place[chosen], slots.gpu[chosen]))
    return order[np.unique(slots.gpu[chosen][order], return_index=True)[1]]
