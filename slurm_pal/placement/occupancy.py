# SPDX-License-Identifier: MIT
"""Which GPUs of a cluster are free, kept up to date, and a placement of one job on them.

For whoever places many jobs: the tick and the simulator. Standard library only, like all
of placement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache

from slurm_pal.base.jobs import UNKNOWN_CLASS, GpuShape
from slurm_pal.placement import place, preferences
from slurm_pal.placement.candidates import Candidates, Preference, Scan
from slurm_pal.placement.class_fit import INSENSITIVE
from slurm_pal.placement.faulty import any_faulty
from slurm_pal.placement.need import need_of
from slurm_pal.placement.plain import plain_pick
from slurm_pal.placement.ranking import Ranking
from slurm_pal.placement.view import Placement, Rule, View

Table = Sequence[Sequence[float]]
"""One value for each GPU: [node][index]."""
Slots = Iterable[tuple[int, Sequence[int]]]
"""GPUs: (position of the node, indexes there)."""

PLAIN = "slurm"
"""In place of a rule's name: what stock Slurm would pick."""
DRAWN_ANEW = frozenset({"random"})
"""Rules whose order changes from job to job, so that nothing can be kept."""


class Occupancy:
    """The free GPUs of all nodes.

    `slowdown[class]` and `level[class]` are tables of what is believed of each GPU (see
    View). Within a node Slurm hands out the lowest free index; with `best_first` a site
    hands out the GPU that suits the job's class best instead (CUDA_VISIBLE_DEVICES chosen
    by a plug-in, or a simulation of it).
    """

    def __init__(
        self,
        names: Sequence[str],
        slowdown: Mapping[str, Table],
        level: Mapping[str, Table],
        partitions: Mapping[str, Sequence[int]] = {},
        best_first: bool = False,
    ) -> None:
        self.names = names
        self.node_gpus = [len(row) for row in slowdown["A"]]
        self._slowdown, self._level = slowdown, level
        self._faulty = any_faulty(slowdown["A"])
        self._partitions = {name: frozenset(nodes) for name, nodes in partitions.items()}
        self._best_first = best_first
        self._free = [set(range(count)) for count in self.node_gpus]
        self._down: set[int] = set()
        self._largest: dict[str, int] = {}
        self._views: dict[str, View] = {}
        self._late: dict[str, set[int]] = {}  # class -> nodes that changed since its view was last looked at
        self._watched: list[set[int]] = []
        self._orders: dict[str, list[list[int]]] = {}
        self._rankings: dict[tuple[object, ...], Ranking] = {}
        self._ranked: dict[str, list[Ranking]] = {}  # sensitivity -> rankings to notify of changes
        self.free_gpus = sum(self.node_gpus)

    def watched(self) -> set[int]:
        """A set to which each node is added whenever its free GPUs change; who asked for it empties it."""
        noted: set[int] = set()
        self._watched.append(noted)
        return noted

    def free(self, node: int) -> int:
        """How many GPUs of a node are free; none while it is down."""
        return 0 if node in self._down else len(self._free[node])

    def free_indexes(self, node: int) -> frozenset[int]:
        return frozenset() if node in self._down else frozenset(self._free[node])

    def free_counts(self, partition: str = "") -> list[int]:
        """Free GPUs of each node; none where a job of this partition may not go."""
        counts = [len(indexes) for indexes in self._free]
        for node in self._down:
            counts[node] = 0
        if not partition:
            return counts
        return [count if self.in_partition(partition, node) else 0 for node, count in enumerate(counts)]

    def largest_node(self, partition: str = "") -> int:
        """GPUs of the largest node that a job of this partition may use, free or not."""
        if partition not in self._largest:
            mine = (count for node, count in enumerate(self.node_gpus) if self.in_partition(partition, node))
            self._largest[partition] = max(mine, default=0)
        return self._largest[partition]

    def overlap(self, partition: str, other: str) -> bool:
        """Whether jobs of two partitions may want the same nodes."""
        if not partition or not other or partition == other:
            return True
        return not self._partitions[partition].isdisjoint(self._partitions[other])

    def in_partition(self, partition: str, node: int) -> bool:
        """Whether a job of this partition may use the node; "" is the whole cluster."""
        return not partition or node in self._partitions[partition]

    def take(self, slots: Slots) -> None:
        """These GPUs are in use from now on. Raises KeyError at the first node where one already was."""
        for node, indexes in slots:
            if not self._free[node].issuperset(indexes):
                raise KeyError(f"{self.names[node]}: one of the GPUs {list(indexes)} is in use already")
            self._free[node].difference_update(indexes)
            self._changed(node, -len(indexes))

    def give(self, slots: Slots) -> None:
        """These GPUs are free again. Raises KeyError at the first node where one already was."""
        for node, indexes in slots:
            if not self._free[node].isdisjoint(indexes):
                raise KeyError(f"{self.names[node]}: one of the GPUs {list(indexes)} is free already")
            self._free[node].update(indexes)
            self._changed(node, len(indexes))

    def set_down(self, node: int, down: bool) -> None:
        """No job is placed on a node that is down; the caller must release its jobs."""
        if down == (node in self._down):
            return
        count = len(self._free[node])
        if down:
            self._down.add(node)
        else:
            self._down.discard(node)
        self._changed(node, 0 if not count else (-count if down else count), counted_while_down=True)

    def believed(self, sensitivity: str) -> Table:
        """The slowdowns that placement goes by for one sensitivity class."""
        return self._slowdown[placed_as(sensitivity)]

    def handed_out(self, sensitivity: str, node: int, given: Sequence[int]) -> list[float]:
        """Slowdowns of the free GPUs of a node in the order of handing out, with those `given` back too."""
        known = placed_as(sensitivity)
        free = {*given} if node in self._down else self._free[node].union(given)
        row = self._slowdown[known][node]
        return [row[index] for index in self._in_turn(known, node, free)]

    def place(self, policy: str, shape: GpuShape, rule: Rule, partition: str = "") -> Placement | None:
        """The GPUs for a job of this shape now; nodes are positions in `names`. None when it does not fit.

        Raises UsageError for an unknown policy, KeyError for an unknown partition.
        """
        view = self.view(rule.sensitivity)
        if shape.whole_nodes or (partition and (policy == PLAIN or policy in DRAWN_ANEW or not kept(policy))):
            return self._place_among(partition, view, policy, shape, rule)
        if policy == PLAIN:
            return plain_pick(view._replace(cpus_free=[len(row) for row in view.free]), shape, rule)
        if policy in DRAWN_ANEW or not kept(policy):
            return place(policy, view, shape, rule, None, self.largest_node(), self._faulty)

        def look(number: int | None, preference: Preference) -> Candidates:
            if number is None:
                return Scan(len(self.names), self._inside(partition, preference))
            return self._ranking(policy, number, preference, rule, partition)

        return place(policy, view, shape, rule, look, self.largest_node(partition), self._faulty)

    def first_choice(self, policy: str, shape: GpuShape, rule: Rule, partition: str = "") -> tuple[Ranking, int] | None:
        """The ranking by which such a job is placed on one node, and how many GPUs it wants there.

        None where several nodes, or more than the order of nodes, decide.
        """
        need = need_of(shape, self.largest_node(partition))
        if need is None or len(need.counts) > 1 or shape.whole_nodes or self._faulty:
            return None
        if policy == PLAIN or policy in DRAWN_ANEW or not kept(policy):
            return None
        wanted = preferences(policy, self.view(rule.sensitivity), rule, False)
        return (
            (self._ranking(policy, 0, wanted[0], rule, partition), need.total) if wanted and len(wanted) == 1 else None
        )

    @contextmanager
    def as_if_free(self, sensitivity: str, node: int, given: Sequence[int]) -> Iterator[View]:
        """The view of a class in which a node has these GPUs, too; rankings do not see them."""
        view, known = self.view(sensitivity), placed_as(sensitivity)
        tables = (view.free, view.slowdown, view.level, view.slowdown_a)
        before = [table[node] for table in tables]
        if node not in self._down:
            self._fill(known, view, node, self._free[node].union(given))
        try:
            yield view
        finally:
            for table, row in zip(tables, before, strict=True):
                table[node] = row  # type: ignore[index]

    def _ranking(self, policy: str, number: int, preference: Preference, rule: Rule, partition: str) -> Ranking:
        key = (policy, number, rule.sensitivity, rule.measured, rule.barred_slowdown, partition)
        found = self._rankings.get(key)
        if found is None:
            found = self._rankings[key] = Ranking(len(self.names), self._inside(partition, preference))
            self._ranked.setdefault(placed_as(rule.sensitivity), []).append(found)
        return found

    def _inside(self, partition: str, preference: Preference) -> Preference:
        if not partition:
            return preference
        nodes, usable = self._partitions[partition], preference.usable
        return preference._replace(usable=lambda node: usable(node) if node in nodes else 0)

    def permitted(self, shape: GpuShape, partition: str) -> list[int]:
        """The nodes with free GPUs for such a job."""
        return [
            node
            for node in range(len(self.names))
            if self.in_partition(partition, node)
            and (self.free(node) == self.node_gpus[node] if shape.whole_nodes else self.free(node))
        ]

    def _place_among(self, partition: str, view: View, policy: str, shape: GpuShape, rule: Rule) -> Placement | None:
        nodes = self.permitted(shape, partition)
        if not nodes:
            return None
        some = View(
            names=[view.names[i] for i in nodes],
            free=[view.free[i] for i in nodes],
            slowdown=[view.slowdown[i] for i in nodes],
            level=[view.level[i] for i in nodes],
            slowdown_a=[view.slowdown_a[i] for i in nodes],
            node_gpus=[view.node_gpus[i] for i in nodes],
            weight=[1] * len(nodes),
            position=nodes,
            cpus_free=[len(view.free[i]) for i in nodes],
        )
        if policy == PLAIN:
            placed = plain_pick(some, shape, rule)
        else:
            placed = place(policy, some, shape, rule, None, self.largest_node(partition), self._faulty)
        return None if placed is None else placed._replace(nodes=tuple(nodes[i] for i in placed.nodes))

    def view(self, sensitivity: str) -> View:
        """What the rules see for one sensitivity class, kept up to date: not to be changed."""
        known = placed_as(sensitivity)
        found = self._views.get(known)
        if found is None:
            nodes = range(len(self.names))
            found = self._views[known] = View(
                names=self.names,
                free=[[] for _ in nodes],
                slowdown=[[] for _ in nodes],
                level=[[] for _ in nodes],
                slowdown_a=[[] for _ in nodes],
                node_gpus=self.node_gpus,
                weight=[1] * len(self.names),
                position=nodes,
            )
            self._late[known] = set(nodes)
        for node in self._late[known]:
            free: Collection[int] = () if node in self._down else self._free[node]
            seen = found.free[node]
            if len(seen) == len(free) and all(index in free for index in seen):
                continue  # given and taken again since
            self._fill(known, found, node, free)
            for ranking in self._ranked.get(known, ()):
                ranking.changed(node)
        self._late[known].clear()
        return found

    def _in_turn(self, known: str, node: int, free: Collection[int]) -> list[int]:
        """The free GPUs of a node in the order in which a job of this class is given them."""
        if not self._best_first:
            return sorted(free)
        return [index for index in self._order(known)[node] if index in free]

    def _order(self, known: str) -> list[list[int]]:
        if known not in self._orders:
            self._orders[known] = [self._hand_out(known, node) for node in range(len(self.names))]
        return self._orders[known]

    def _hand_out(self, sensitivity: str, node: int) -> list[int]:
        """The indexes of a node in the order in which a job of this class is given them."""
        indexes = list(range(self.node_gpus[node]))
        if sensitivity in INSENSITIVE:
            indexes.sort(key=lambda k: -self._slowdown["A"][node][k])
        else:
            indexes.sort(key=lambda k: self._slowdown[sensitivity][node][k])
        return indexes

    def _changed(self, node: int, gpus: int, counted_while_down: bool = False) -> None:
        if node not in self._down or counted_while_down:
            self.free_gpus += gpus
        for late in self._late.values():
            late.add(node)
        for noted in self._watched:
            noted.add(node)

    def _fill(self, sensitivity: str, view: View, node: int, free: Collection[int]) -> None:
        indexes = self._in_turn(sensitivity, node, free)
        for table, values in (
            (view.slowdown, self._slowdown[sensitivity]),
            (view.level, self._level[sensitivity]),
            (view.slowdown_a, self._slowdown["A"]),
        ):
            row = values[node]
            table[node] = [row[index] for index in indexes]  # type: ignore[index]
        view.free[node] = indexes  # type: ignore[index]


def placed_as(sensitivity: str) -> str:
    """The class, A for a job that nobody classified: the cautious reading."""
    return "A" if sensitivity == UNKNOWN_CLASS else sensitivity


@cache
def kept(policy: str) -> bool:
    """Whether the rule says what it wants node by node, so that rankings can be kept."""
    from importlib import import_module

    from slurm_pal.placement import POLICIES

    return policy not in POLICIES or hasattr(
        import_module(f"slurm_pal.placement.{POLICIES[policy].module}"), "preferences"
    )
