# SPDX-License-Identifier: MIT
"""Which nodes select/cons_tres gives to a job, where so much is free: required ones, then by weight and runs.

`placement.plain` says what plain Slurm picks among nodes that suit; here is which suit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import GpuShape
from slurm_pal.decide.candidates import share
from slurm_pal.decide.request import Request
from slurm_pal.placement.need import Picks, need_of
from slurm_pal.placement.plain import plain_picks
from slurm_pal.placement.view import View
from slurm_pal.twin.room import Hardware, Room, Take, lowest


class Asking(NamedTuple):
    """What a job wants in one partition, with what the partition adds to its request."""

    request: Request
    rows: tuple[int, ...]  # nodes that it may use, in Slurm's order
    required: tuple[int, ...] = ()  # all of these
    preferred: frozenset[int] | None = None  # rather only these (--prefer)

    @property
    def least_nodes(self) -> int:
        shape = self.request.shape
        return (shape.nodes if shape is not None else None) or self.request.nodes_min


class Scout(NamedTuple):
    """`look` at a room once; `fits` by what was seen, without some nodes, as often as wanted."""

    alike: tuple[object, ...]  # with the same others see the same
    look: Callable[[Room], list[dict[int, int]]]
    fits: Callable[[list[dict[int, int]], Collection[int]], bool]


class Picker:
    """Picks on the nodes of one cluster. `weight` is a node's, and may be changed."""

    def __init__(self, made: Hardware, weight: Sequence[int]) -> None:
        self._made, self.weight = made, [*weight]
        self._sizes = [*zip(made.threads, made.cpus, made.memory_mib, strict=True)]
        self._shares: dict[tuple[object, ...], _Shares] = {}

    def pick(self, room: Room, wanted: Asking, among: Collection[int] | None = None) -> list[Take] | None:
        """What the job gets of this room, on nodes of `among` (None: any); None where it does not fit."""
        rows = [row for row in wanted.rows if room.gpus[row] and (among is None or row in among)]
        if not set(wanted.required) <= set(rows):
            return None
        if wanted.preferred is not None:
            liked = wanted.preferred.union(wanted.required)
            found = self._pick(room, wanted, [row for row in rows if row in liked])
            if found is not None:
                return found
        return self._pick(room, wanted, rows)

    def _pick(self, room: Room, wanted: Asking, rows: Sequence[int]) -> list[Take] | None:
        for shape, tasks in _readings(wanted.request):
            found = self._fit(room, wanted, rows, shape, tasks)
            if found is not None:
                return found
        return None

    def _fit(self, room: Room, wanted: Asking, rows: Sequence[int], shape: GpuShape, tasks: int) -> list[Take] | None:
        most = self._most(room, wanted.request, rows, shape, tasks)
        if not _enough(most, wanted, shape):
            return None
        picks = self._required(wanted, most, shape) if wanted.required else self._plain(room, most, shape)
        if picks is None:
            return None
        return [self._take(room, row, wanted.request, tasks, shape, count) for row, count in picks]

    def _most(self, room: Room, request: Request, rows: Sequence[int], shape: GpuShape, tasks: int) -> dict[int, int]:
        """Node -> how many GPUs the job could have there, of those with enough for it."""
        least = shape.per_node or (shape.total if shape.nodes == 1 else 1)
        most: dict[int, int] = {}
        gpus, masks, kind, exact = room.gpus, self._made.masks, shape.gpu_type, bool(shape.per_node)
        sizes, shares = self._sizes, self._shares_of(request)
        for row in rows:
            free = (gpus[row] & masks[row].get(kind, 0)).bit_count()
            if free < least or (shape.whole_nodes and not self._whole(room, row)):
                continue
            while free >= least:
                cpus, memory_mib = shares[sizes[row], tasks, least if exact else free]
                if cpus <= room.cpus[row] and memory_mib <= room.memory_mib[row]:
                    most[row] = free
                    break
                free = 0 if exact else free - 1
        return most

    def scout(self, wanted: Asking) -> Scout:
        """For a quick look whether a job fits, at many moments and on many sets of nodes."""
        readings = _readings(wanted.request)

        def look(room: Room) -> list[dict[int, int]]:
            rows = [row for row in wanted.rows if room.gpus[row]]
            return [self._most(room, wanted.request, rows, shape, tasks) for shape, tasks in readings]

        def fits(found: list[dict[int, int]], barred: Collection[int]) -> bool:
            for most, (shape, _) in zip(found, readings, strict=True):
                left = {row: free for row, free in most.items() if row not in barred} if barred else most
                if _enough(left, wanted, shape):
                    return True
            return False

        return Scout((wanted.rows, wanted.request.takes, *readings), look, fits)

    def _plain(self, room: Room, most: dict[int, int], shape: GpuShape) -> Picks | None:
        rows = [*most]
        if len(rows) < (shape.nodes or 1):
            return None
        view = View(
            names=rows, free=[range(most[row]) for row in rows], slowdown=(), level=(), slowdown_a=(),  # type: ignore[arg-type]
            node_gpus=[len(self._made.gpu_types[row]) for row in rows], weight=[self.weight[row] for row in rows],
            position=rows, cpus_free=[room.cpus[row] for row in rows],
        )  # fmt: skip
        picks = plain_picks(view, shape)
        return None if picks is None else [(rows[place], count) for place, count in picks]

    def _required(self, wanted: Asking, most: dict[int, int], shape: GpuShape) -> Picks | None:
        """All required nodes, and others in Slurm's order."""
        order = [*wanted.required, *(row for row in most if row not in wanted.required)]
        need = need_of(shape, max((len(self._made.gpu_types[row]) for row in order), default=0))
        if need is None:
            return None
        picks: Picks = []
        if need.counts:
            if len(wanted.required) > len(need.counts):
                return None
            left = order
            for count in need.counts:
                row = next((row for row in left if most[row] >= count), None)
                if row is None:
                    return None
                picks.append((row, count))
                left = [other for other in left if other != row]
        else:
            total = shape.total
            for place, row in enumerate(order):
                others = max(0, len(wanted.required) - place - 1)  # each of which gets one at least
                count = min(most[row], total - others)
                if total <= 0 and place >= len(wanted.required):
                    break
                if count < 1:
                    return None
                picks.append((row, count))
                total -= count
            if total > 0:
                return None
        return picks if set(wanted.required) <= {row for row, _ in picks} else None

    def _take(self, room: Room, row: int, request: Request, tasks: int, shape: GpuShape, count: int) -> Take:
        mask = room.gpus[row] & self._made.masks[row].get(shape.gpu_type, 0)
        cpus, memory_mib = self._shares_of(request)[self._sizes[row], tasks, count]
        return Take(row, room.gpus[row] if shape.whole_nodes else lowest(mask, count), cpus, memory_mib)

    def _whole(self, room: Room, row: int) -> bool:
        return room.gpus[row] == self._made.masks[row][""] and room.cpus[row] == self._made.cpus[row]

    def _shares_of(self, request: Request) -> _Shares:
        key = request.takes, request.shape is not None and request.shape.whole_nodes
        found = self._shares.get(key)
        if found is None:
            found = self._shares[key] = _Shares(request)
        return found


class _Shares(dict[tuple[tuple[int, int, int], int, int], tuple[int, int]]):
    """(a node's threads, CPUs and memory, tasks, GPUs) -> (CPUs, memory) that requests like this one take there."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._request = request

    def __missing__(self, key: tuple[tuple[int, int, int], int, int]) -> tuple[int, int]:
        (threads, cpus, memory_mib), tasks, gpus = key
        node = Node("", frozenset(), (), 0, cpus, 0, memory_mib, 0, frozenset(), (), threads=threads)
        found = self[key] = share(node, self._request, tasks, gpus)
        return found


def _enough(most: Mapping[int, int], wanted: Asking, shape: GpuShape) -> bool:
    """Whether these nodes together have what the job needs (for uneven counts: at least in sum)."""
    if any(row not in most for row in wanted.required):
        return False
    if shape.per_node is not None:
        return len(most) >= (shape.nodes or 1)
    return len(most) >= (shape.nodes or 1) and sum(most.values()) >= shape.total


def _readings(request: Request) -> list[tuple[GpuShape, int]]:
    """(shape, tasks of each node), in the order in which Slurm tries them."""
    shape = request.shape
    if shape is None:
        return []
    if shape.per_node is not None:
        low = request.nodes_min
        high = low if request.nodes_max is None else request.nodes_max
        found = []
        for nodes in range(high, low - 1, -1):  # of a range of nodes Slurm takes as many as it can
            tasks = request.tasks_per_node or -(-request.tasks // nodes)
            found.append((shape._replace(nodes=nodes, total=nodes * shape.per_node), tasks))
        return found
    if shape.nodes is not None and (shape.nodes > 1 or request.nodes_max == 1):
        return [(shape, request.tasks_per_node or -(-request.tasks // shape.nodes))]
    free = shape._replace(nodes=None)
    return [(free, 1)] if request.tasks == 1 else [(free._replace(nodes=1), request.tasks), (free, 1)]
