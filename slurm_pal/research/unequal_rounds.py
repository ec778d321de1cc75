# SPDX-License-Identifier: MIT
"""An allocation policy in the published rounds (gavel.md 4), for jobs whose moves are charged.

Shares are computed anew when a job came or went, and only after RESET_S. Each round gives the GPUs
to the jobs that are furthest behind their shares. Unlike the published simulator's, a round begins
each ROUND_S on the clock, or at the first look after that, and GPUs are never kept for a job without a share.
"""

from __future__ import annotations

import math
from random import Random

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.problem import Matrix, Problem, Vector
from slurm_pal.research.allocation_policies import AllocationPolicy
from slurm_pal.research.replica.gavel_published import Earned
from slurm_pal.research.rounds import Account, ChosenRow, RoundQueue, select
from slurm_pal.research.unequal import Moment

ROUND_S, RESET_S = 360.0, 1920.0
REVIEW_S = 60.0
"""A look at least this often: a round begins late by this much at most."""
CREDIT_S = ROUND_S / 2.0
REFERENCE = 0  # the column whose throughput stands for all where an agnostic policy needs one


class Rounds:
    """The policy. `weight`, `deadline_s` (on the clock) and `entity` are by job number, `price` by column."""

    def __init__(
        self,
        policy: AllocationPolicy,
        weight: Vector,
        deadline_s: Vector,
        entity: NDArray[np.int64],
        price: Vector,
        seed: int,
    ) -> None:
        n = price.size
        self._policy, self._price = policy, price
        self._weight, self._deadline_s, self._entity = weight, deadline_s, entity
        self._draws, self._turns = Random(seed), Random(seed + 5)
        self._account, self._ids = Account(n), np.zeros(0, dtype=np.int64)
        self._shares: Matrix = np.zeros((0, n))
        self._stale = False
        self._round, self._round_s, self._reset_s = -1, 0.0, -math.inf
        self._earned = Earned(weight.size)

    def __call__(self, moment: Moment) -> NDArray[np.int64]:
        number = int(moment.now_s / ROUND_S)
        if number <= self._round:
            return moment.problem.held.copy()
        self._follow(moment)
        self._round, self._round_s = number, moment.now_s
        if self._stale and moment.now_s >= self._reset_s + RESET_S:
            self._allocate(moment)
        return self._chosen(moment.problem)

    def _follow(self, moment: Moment) -> None:
        """Drop jobs that left, book the round that ended, add jobs that came."""
        stay = np.isin(self._ids, moment.job)
        kept, new = int(stay.sum()), moment.job.size - int(stay.sum())
        self._account.keep(stay)
        for row in np.flatnonzero(moment.problem.held[:kept] >= 0).tolist():
            self._account.charge(ChosenRow(row, int(moment.problem.held[row])), moment.now_s - self._round_s)
        self._account.add(np.full(new, CREDIT_S))
        self._shares = np.concatenate((self._shares[stay], np.zeros((new, self._price.size))))
        self._stale = self._stale or new > 0 or not bool(stay.all())
        self._ids = moment.job.copy()

    def _allocate(self, moment: Moment) -> None:
        elapsed_s = moment.now_s - self._reset_s if self._reset_s >= 0 else 0.0
        self._account.reset(self._shares, elapsed_s, CREDIT_S)
        whole = self._shares == 1.0
        told = moment.problem._replace(
            weight=self._weight[moment.job],
            deadline_s=np.maximum(0.0, self._deadline_s[moment.job] - moment.now_s),
            entity=self._entity[moment.job],
            entity_weight=np.ones(int(self._entity.max()) + 1),
            price=self._price,
            held=np.where(whole.any(axis=1), whole.argmax(axis=1), -1),
        )
        seen = self._policy.seen(told, REFERENCE)
        seen = seen._replace(earned_s=self._earned.until_now(seen, moment.job))
        self._shares = self._policy.allocate(seen, self._draws).shares
        self._reset_s, self._stale = moment.now_s, False

    def _chosen(self, problem: Problem) -> NDArray[np.int64]:
        turn = list(range(problem.n_columns))
        if self._policy.shuffled:
            self._turns.shuffle(turn)
        ids = tuple((number, -1) for number in self._ids.tolist())
        queue = RoundQueue(ids, problem.scale.astype(np.int64), problem.throughput > 0)
        gpus = [int(count) for count in problem.gpus]
        found = np.full(len(ids), -1)
        entitled_only = self._policy.entitled_only
        for each in select(queue, self._shares, self._account, gpus, turn, entitled_only=entitled_only):
            found[each.row] = each.column
        return found
