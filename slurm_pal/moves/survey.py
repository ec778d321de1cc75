# SPDX-License-Identifier: MIT
"""The cluster as a planner of moves sees it: which GPUs are free, and where each running job may go.

Built once for a tick. Each job's permitted nodes are a partition of the occupancy; jobs
that may use the same nodes share one, and with it the rankings of these nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, GpuShape, SlurmJob
from slurm_pal.decide.candidates import candidates, cpus_of, left_of, may_start, share, startable
from slurm_pal.decide.offers import build_view, claimed_gpus, free_indexes, used_indexes
from slurm_pal.decide.request import Request
from slurm_pal.moves.worth import Slots
from slurm_pal.placement.occupancy import Occupancy
from slurm_pal.placement.view import Rule
from slurm_pal.slurm.client import Overview
from slurm_pal.store.snapshot import Snapshot

Key = tuple[object, ...]
Make = tuple[str, int]
"""GPU type, and the number of the model in the snapshot or -1 where no GPU of the node was ever measured."""


class Want(NamedTuple):
    """One way to place a running job anew."""

    job: SlurmJob
    request: Request  # the user's own: without lists that we set
    shape: GpuShape  # for a stated number of nodes
    partition: str = ""  # another one than it runs in; "" that one

    @property
    def n_nodes(self) -> int:
        return self.shape.nodes or 1

    @property
    def tasks(self) -> int:
        """Tasks that each node must hold."""
        return self.request.tasks_per_node or -(-self.request.tasks // self.n_nodes)

    @property
    def gpus(self) -> int:
        """The most GPUs that it takes on one node."""
        return self.shape.per_node or self.shape.total - self.n_nodes + 1


class Place(NamedTuple):
    """Where a job may go: a partition of the occupancy, or why none can be named."""

    partition: str = ""
    why: str = ""


class Survey:
    """The free GPUs of a cluster, and a partition for each of `wants` in `places`."""

    def __init__(self, overview: Overview, snapshot: Snapshot, wants: Sequence[Want]) -> None:
        self._overview, self.network = overview, overview.network
        self._nodes = overview.nodes
        self.position = {node.name: number for number, node in enumerate(overview.nodes)}
        self._holders = Counter(
            (name, k) for job in overview.jobs for name, indexes in job.gpus.items() for k in indexes
        )
        self._makes = _makes(overview.nodes, snapshot)
        self._free = _free(overview)
        self._fields: dict[Key, str | tuple[list[int], list[int]]] = {}
        self._sets: dict[Key, frozenset[int]] = {}
        self._names: dict[frozenset[int], str] = {}
        self._taken: dict[str, dict[str, int]] = {}  # partition with a limit -> CPUs of its jobs on each node
        self.places = [self._place(want) for want in wants]
        self.occupancy = self._occupancy(snapshot)

    def held(self, job: SlurmJob) -> Slots:
        """The GPUs of a running job, in Slurm's order of nodes."""
        return tuple(sorted((self.position[name], tuple(sorted(indexes))) for name, indexes in job.gpus.items()))

    def locality(self, nodes: Sequence[int], rule: Rule) -> float:
        """The locality penalty of a job on these nodes."""
        return rule.locality(self.network.span([self._nodes[node].name for node in nodes]))

    def holds(self, want: Want, node: int, planned: Mapping[int, tuple[int, int]]) -> bool:
        """Whether CPUs and memory of a node suffice once its own share there is free and `planned` is taken."""
        return self._holds(want, node, planned.get(node, (0, 0)))

    def more(self, want: Want, node: int) -> tuple[int, int]:
        """(CPUs, memory in MiB) that the job would take on a node beside what it has there."""
        seen = self._nodes[node]
        cpus, memory_mib = share(seen, want.request, want.tasks, want.gpus)
        own = self._own_share(want, seen)
        return max(0, cpus - own[0]), max(0, memory_mib - own[1])

    def _place(self, want: Want) -> Place:
        why = self._unclear(want)
        if why:
            return Place(why=why)
        make = self._make(want)
        if isinstance(make, str):
            return Place(why=make)
        field = self._field(want, make)
        if isinstance(field, str):
            return Place(why=field)
        named = want.request.req_nodes
        if named and len(named) != want.n_nodes:
            return Place(why=f"its user named a part of its nodes ({','.join(named)})")
        nodes = self._kind(want, make, field)
        own = [self.position[name] for name in want.job.gpus]
        again = [node for node in own if node not in nodes and node in field[1] and self._holds(want, node)]
        if again:
            nodes = nodes.union(again)
        return Place(self._names.setdefault(nodes, f"p{len(self._names)}"))

    def _unclear(self, want: Want) -> str:
        """Why it is not known which GPUs the job holds, or of what make; "" where it is."""
        gpus = want.job.gpus
        held = [(name, k) for name, indexes in gpus.items() for k in indexes]
        if not gpus or not all(gpus.values()) or set(gpus) != set(want.job.nodes):
            return "Slurm does not show which GPUs it has"
        if any(self._holders[gpu] != 1 for gpu in held):
            return "one of its GPUs is held by another job, too"
        if any(name not in self._makes for name in gpus) or any(k >= self.count(name) for name, k in held):
            return "it runs on a node that has GPUs of several types or is not known"
        if any(not _alike(self._makes[name], self._makes[next(iter(gpus))]) for name in gpus):
            return "it runs on GPUs of several types"
        return ""

    def _make(self, want: Want) -> Make | str:
        """The GPUs that it is placed on: like those that it has, or in another partition those of all its nodes."""
        if not want.partition:
            return self._makes[next(iter(want.job.gpus))]
        names = next((p.nodes for p in self._overview.partitions if p.name == want.partition), ())
        makes = [self._makes.get(name) for name in names if name in self.position and self.count(name)]
        known = [make for make in makes if make is not None]
        first = max(known, key=lambda make: make[1], default=None)  # a measured one, if there is any
        if first is None or len(known) < len(makes) or not all(_alike(make, first) for make in known):
            return f"partition {want.partition} has GPUs of several types, or of none that is known"
        if want.shape.gpu_type not in ("", first[0]):
            return f"partition {want.partition} has no GPUs of type {want.shape.gpu_type}"
        return first

    def count(self, name: str) -> int:
        """GPUs of a node."""
        return self._nodes[self.position[name]].n_gpus

    def _field(self, want: Want, make: Make) -> str | tuple[list[int], list[int]]:
        """Nodes with GPUs of this make that the request permits, (nothing free, something free); or why unknown."""
        request, job = want.request, want.job
        # An exclusion stays on the job whoever set it.
        barred = tuple(sorted({*request.exc_nodes, *job.exc_nodes}))
        partition = want.partition or job.partition
        key = (partition, request.constraint, request.reservation, request.req_nodes, barred, make)
        if key not in self._fields:
            asked = request._replace(partitions=(partition,), exc_nodes=barred)
            found = candidates(asked, self._overview)
            if isinstance(found, str):
                self._fields[key] = found
            else:
                names = [node.name for field in found for node in field.nodes if may_start(node)]
                if request.req_nodes:
                    names = [name for name in names if name in request.req_nodes]
                self._fields[key] = self._by_room(names, make)
        return self._fields[key]

    def _by_room(self, names: Iterable[str], make: Make) -> str | tuple[list[int], list[int]]:
        """The nodes with GPUs of this make by whether anything is free there; an unmeasured GPU may be any model."""
        alike = [name for name in names if name in self._makes and _alike(self._makes[name], make)]
        if len({self._makes[name][1] for name in alike} - {-1}) > 1:
            return "its GPUs were never measured, and the others are of several models"
        mine = [self.position[name] for name in alike]
        return [n for n in mine if not self._free[n]], [n for n in mine if self._free[n]]

    def _kind(self, want: Want, make: Make, field: tuple[list[int], list[int]]) -> frozenset[int]:
        """The nodes for all jobs that want the same: those that hold it, and those with nothing free.

        The latter matter only to a job that runs there, since it can get its own share again.
        """
        request = want.request
        key = (
            want.partition or want.job.partition, want.shape.whole_nodes, want.tasks, want.gpus, make,
            request.constraint, request.reservation, request.req_nodes, request.exc_nodes, want.job.exc_nodes,
            request.takes, self._heaviest(want),
        )  # fmt: skip
        if key not in self._sets:
            full, free = field
            heaviest = self._heaviest(want)
            open_ones = [self._left(self._nodes[node], want) for node in free]
            open_ones = [node for node in open_ones if heaviest is None or node.weight <= heaviest]
            if want.shape.whole_nodes:
                open_ones = [node for node in open_ones if not node.cpus_used]
            holding = startable(open_ones, request, want.tasks, want.gpus)
            self._sets[key] = frozenset([*full, *(self.position[node.name] for node in holding)])
        return self._sets[key]

    def _heaviest(self, want: Want) -> int | None:
        """The highest Weight of its nodes: others above it the site keeps for later. None in another partition."""
        return None if want.partition else max(self._nodes[self.position[name]].weight for name in want.job.gpus)

    def _left(self, node: Node, want: Want) -> Node:
        """The node with what the job's partition may still use of it."""
        name = want.partition or want.job.partition
        limited = [p for p in self._overview.partitions if p.name == name and p.counting.most_cpus]
        if not limited:
            return node
        if name not in self._taken:
            self._taken[name] = cpus_of(limited[0], self._overview.jobs)
        return left_of(node, limited, self._taken)

    def _holds(self, want: Want, node: int, planned: tuple[int, int] = (0, 0)) -> bool:
        seen = self._nodes[node]
        if want.shape.whole_nodes and seen.name in want.job.gpus:
            return True
        own = self._own_share(want, seen)
        cpus_used, memory_used_mib = seen.cpus_used + planned[0] - own[0], seen.memory_used_mib + planned[1] - own[1]
        left = seen._replace(cpus_used=cpus_used, memory_used_mib=memory_used_mib)
        return bool(startable([left], want.request, want.tasks, want.gpus))

    def _own_share(self, want: Want, node: Node) -> tuple[int, int]:
        """(CPUs, memory in MiB) that the job has on a node at least: its tasks may be spread unevenly."""
        gpus = want.job.gpus
        if node.name not in gpus:
            return 0, 0
        tasks = want.request.tasks_per_node or want.request.tasks // len(gpus)
        return share(node, want.request, tasks, len(gpus[node.name]))

    def _occupancy(self, snapshot: Snapshot) -> Occupancy:
        slowdown, level = _tables(self._overview, snapshot)
        names = [node.name for node in self._nodes]
        partitions = {name: tuple(nodes) for nodes, name in self._names.items()}
        made = Occupancy(names, slowdown, level, partitions)
        for number, node in enumerate(self._nodes):
            taken = [k for k in range(node.n_gpus) if k not in self._free[number]]
            if taken:
                made.take([(number, taken)])
            if not may_start(node):
                made.set_down(number, True)
        return made


def _free(overview: Overview) -> list[frozenset[int]]:
    """For each node the indexes of GPUs that neither run a job nor are about to."""
    used = used_indexes(overview.jobs)
    claims = claimed_gpus(overview.jobs, overview.nodes, used)
    return [
        frozenset(free_indexes(node, used.get(node.name, set()), claims.get(node.name, 0))) for node in overview.nodes
    ]


def _tables(overview: Overview, snapshot: Snapshot) -> tuple[dict[str, list[list[float]]], ...]:
    """Slowdowns and levels of all GPUs for each class, in use or not; 1.0 where unknown."""
    names = [node.name for node in overview.nodes]
    empty = overview._replace(nodes=tuple(n._replace(gpus_used=0, cpus_used=0) for n in overview.nodes), jobs=())
    slowdown: dict[str, list[list[float]]] = {}
    level: dict[str, list[list[float]]] = {}
    for c in SENSITIVITY_CLASSES:
        view = build_view(empty, snapshot, GpuShape(1), c, names)
        rows = {name: row for row, name in enumerate(view.names)}
        slowdown[c] = [list(view.slowdown[rows[name]]) if name in rows else [] for name in names]
        level[c] = [list(view.level[rows[name]]) if name in rows else [] for name in names]
    return slowdown, level


def _makes(nodes: Iterable[Node], snapshot: Snapshot) -> dict[str, Make]:
    """The make of the GPUs of each node whose GPUs are all alike.

    Slowdowns are relative to GPUs of the same model, so a job is moved only among such.
    """
    found: dict[str, Make] = {}
    for node in nodes:
        models = {int(snapshot.columns["model"][row]) for row in snapshot.rows.get(node.name, ())}
        if len(set(node.gpu_types)) == 1 and len(models) < 2:
            found[node.name] = node.gpu_types[0], next(iter(models), -1)
    return found


def _alike(one: Make, other: Make) -> bool:
    return one[0] == other[0] and (one[1] == other[1] or -1 in (one[1], other[1]))
