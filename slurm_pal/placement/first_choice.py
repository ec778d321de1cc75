# SPDX-License-Identifier: MIT
"""What a rule takes for jobs of one kind where its first preference finds a single node, and what it would
take if a job gave its GPUs back: known without placing anything."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_pal.base.light import NamedTuple
from slurm_pal.placement.candidates import Key
from slurm_pal.placement.occupancy import Occupancy
from slurm_pal.placement.ranking import Ranking
from slurm_pal.placement.view import Placement, Rule, View


class Choice(NamedTuple):
    """One node for the whole job."""

    key: Key
    node: int
    slowdown: float
    gpus: tuple[int, ...]

    @property
    def placement(self) -> Placement:
        return Placement((self.node,), (self.gpus,), self.slowdown, 1.0)


class FirstChoice:
    """Jobs that want `count` GPUs, on one node if possible, by a rule with one preference (Occupancy.first_choice)."""

    def __init__(self, occupancy: Occupancy, ranking: Ranking, count: int, rule: Rule, may_spread: bool) -> None:
        self._occupancy, self._ranking, self._count, self._rule = occupancy, ranking, count, rule
        self._may_spread = may_spread and count > 1

    def best(self, used: frozenset[int] = frozenset()) -> Choice | None:
        """The node liked best, of those outside `used`."""
        view = self._occupancy.view(self._rule.sensitivity)
        node = self._ranking.best(self._count, used)
        if node is None:
            return None
        return self._choice(view, node)

    def own(self, node: int, given: Sequence[int]) -> Choice | None:
        """The same of one node, these GPUs given back; None where they do not suffice."""
        with self._occupancy.as_if_free(self._rule.sensitivity, node, given) as view:
            if self._ranking.usable(node) < self._count:
                return None
            return self._choice(view, node)

    def _choice(self, view: View, node: int) -> Choice:
        count = self._count
        return Choice(
            self._ranking.key(node, count), node, max(view.slowdown[node][:count]), tuple(view.free[node][:count])
        )

    def is_final(self, choice: Choice) -> bool:
        """Whether the rule takes it, and does not look for GPUs on several nodes instead (see place)."""
        bar = self._rule.barred_slowdown
        return not self._may_spread or max(choice.slowdown, bar) / self._rule.locality_penalty <= bar
