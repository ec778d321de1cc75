# SPDX-License-Identifier: MIT
"""Whether a running job should go on in another partition for money: pure, by the rule of `decide/alternatives.py`."""

from __future__ import annotations

from typing import NamedTuple

from slurm_pal.decide.alternatives import MOVE_FACTOR, MOVE_LEFT_S, worth_moving

ROUNDING = 1e-9
"""What is less than this share of what is still to be paid is no saving: prices that are equal differ by as much."""
MOST_CHEAPER = 100.0
"""Prices of which one is more than so many times the other, or nothing, are compared as if they were these."""


class Money(NamedTuple):
    """What an hour of a job costs where it runs and in another partition, in any unit, and what bounds a move."""

    here: float
    there: float
    egress: float  # of one move, beside its restart
    longest_s: float  # it must have ended there so soon, by its deadline and by its time limit

    @property
    def cheaper(self) -> float:
        """The price of an hour here over that of an hour there."""
        ratio = self.here / self.there if self.there else MOST_CHEAPER
        return min(max(ratio, 1.0 / MOST_CHEAPER), MOST_CHEAPER)

    def saving(self, left_here_s: float, left_there_s: float) -> float:
        """What is saved by going on there, the cost of the move not deducted."""
        return (self.here * left_here_s - self.there * left_there_s) / 3600.0

    def cost(self, restart_s: float) -> float:
        """What a move costs."""
        return restart_s / 3600.0 * self.there + self.egress

    def why_not(self, left_here_s: float, left_there_s: float, restart_s: float) -> str:
        """Why a move does not pay; "" where it does. The times are to run here and there, and what a move takes."""
        if restart_s + left_there_s > self.longest_s:
            return "it would end there after its deadline or time limit"
        if left_there_s <= MOVE_LEFT_S:
            return f"{left_there_s / 3600:.1f} h are left there, more than {MOVE_LEFT_S / 3600:g} are needed"
        same_work = self.here * left_here_s / left_there_s
        saving, cost = self.saving(left_here_s, left_there_s), self.cost(restart_s)
        more = saving > ROUNDING * self.here * left_here_s / 3600.0
        if more and worth_moving(same_work, self.there, left_there_s, restart_s, self.egress):
            return ""
        return f"{saving:.2f} would be saved, more than {MOVE_FACTOR * cost:.2f} is needed"
