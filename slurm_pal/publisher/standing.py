# SPDX-License-Identifier: MIT
"""Standing answers: for every request of a simple kind, the nodes it should go to now, best first.

The submit filter runs inside slurmctld and can neither ask Slurm nor weigh nodes. It looks
the answers up in a table, and remembers what it gave away since the table was made: so a
node stands in a list once for every number of its free GPUs that may be gone by then. The
order is that of the placement rule in force; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice, zip_longest
from typing import NamedTuple

from slurm_pal.base.cluster import Counting, Node
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, GpuShape
from slurm_pal.decide.candidates import cpus_of, left_of
from slurm_pal.decide.case import Settings, ends_per_s
from slurm_pal.decide.decide import no_choice
from slurm_pal.decide.pools import Pool, Pools, every_gpu
from slurm_pal.decide.scene import rows
from slurm_pal.placement import CLASS_FIT
from slurm_pal.placement.faulty import worst_wanted
from slurm_pal.placement.occupancy import DRAWN_ANEW, kept
from slurm_pal.placement.patience import MEDIAN_SLOWDOWN
from slurm_pal.placement.plain import plain_pick
from slurm_pal.placement.view import Rule, View
from slurm_pal.publisher.ranked import Row, rankings
from slurm_pal.slurm.client import Overview
from slurm_pal.store.lua_table import NAME
from slurm_pal.store.snapshot import Snapshot

STAND_IN = CLASS_FIT
"""Tabulated where the rule in force cannot be said node by node."""
MOST_SLOW = 200  # a longer exclusion is not worth its place in the table
MOST_SPARES = 128  # nodes worth waiting for, of one pool and class
WHOLE = "x"  # in the place of a count: the whole node
NOT_RANKED = 0
"""In the place of a pool: its GPUs are of several models, which scores do not compare."""

Question = tuple[int, str, str]
"""Pool, sensitivity class, and GPUs on one node: a count, or WHOLE."""
UNMEASURED = "c"
"""In the place of class C in a list: for a job whose class C was stated or guessed, not measured."""


class Offered(NamedTuple):
    """One node with free GPUs, as a list names it."""

    name: str
    cpus: int  # free
    memory_mib: int  # free
    all_cpus: int
    all_memory_mib: int
    gpus: int  # all of the node
    threads: int  # of a core
    features: tuple[str, ...]  # active
    slowdown: dict[str, tuple[float, ...]]  # sensitivity class -> free GPUs in the order of handing out


class Size(NamedTuple):
    """What a node has, whatever runs on it, as far as that says which jobs Slurm could ever give it."""

    cpus: int
    memory_mib: int
    gpus: int  # of the pool's type
    threads: int  # of a core
    features: tuple[str, ...]  # active


class Spare(NamedTuple):
    """A node that may do better for a job once it is free: `fast` of its GPUs are neither barred nor faulty."""

    name: str
    fast: int
    size: int  # its position in `sizes`


class Richest(NamedTuple):
    """The most that any node of a pool has of each. The rates are for each GPU of a node."""

    cpus: int
    memory_mib: int
    cpus_per_gpu: int
    memory_mib_per_gpu: int


class Plain(NamedTuple):
    """Where plain Slurm would put such a job, with what slowdown, and what it would find were that node gone."""

    slowdown: float
    node: str
    otherwise: float


class Standing(NamedTuple):
    """All answers at one moment. In a list stands (node, GPUs gone): the node's position in `nodes`."""

    policy: str  # the rule that was tabulated
    default: str  # the partition of a job that names none; "" without one
    pools: dict[tuple[str, str], int]  # partition, GPU type ("": any) -> pool, from 1, or NOT_RANKED
    nodes: tuple[Offered, ...]
    lists: dict[tuple[int, str, int, str], list[tuple[int, int]]]  # pool, class or UNMEASURED, preference from 1, count
    plain: dict[Question, Plain]
    slow: dict[Question, tuple[str, ...]]  # free nodes that such a job is better kept off
    spares: dict[tuple[int, str], tuple[Spare, ...]]  # pool, class -> nodes that jobs may be kept waiting for
    ends_per_s: dict[tuple[int, str], float]  # the same: how many of the jobs on those nodes end in a second
    sizes: tuple[Size, ...]
    richest: dict[int, Richest]  # of each pool
    prefer: dict[str, tuple[str, ...]]  # class -> features of nodes worth asking for
    counting: dict[str, Counting]  # partition -> what Slurm adds to a request there
    left: dict[str, dict[str, int]]  # partition -> node -> CPUs that it may still use there, where it has a limit
    left_out: tuple[str, ...]  # what has a name that the filter cannot read
    alike: tuple[tuple[int, str], ...] = ()  # pool, class or UNMEASURED: all free GPUs are equally fast, none is named
    network: bool = False  # with switches or blocks: a list of several nodes is left to palsub, the tick and Slurm


def tabulated(policy: str) -> str:
    """The rule that stands for `policy` in the table: itself where it says of each node how it likes it."""
    return policy if kept(policy) and policy not in DRAWN_ANEW else STAND_IN


def standing(
    overview: Overview,
    snapshot: Snapshot,
    settings: Settings,
    soft_features: bool = False,
    shared: Collection[str] = (),
) -> Standing:
    """The standing answers for a cluster. Pure.

    `shared` are partitions for which a new job may be kept waiting, though others have room.
    `soft_features` says whether Slurm takes a job that prefers an unknown feature
    (slurm.conf(5), ignore_prefer_validation). Raises UsageError for an unknown policy.
    """
    seen, left_out = _readable(overview)
    barred = settings.barred_slowdown
    rules = {c: Rule(c, settings.locality_penalty, barred, measured=True) for c in SENSITIVITY_CLASSES}
    rules[UNMEASURED] = rules["C"]._replace(measured=False)
    made = _Answers(seen, snapshot, settings, rules)
    source = Pools(seen, snapshot)
    numbers: dict[tuple[frozenset[str], str], int] = {}
    found: dict[tuple[str, str], int] = {}
    pools = list(source.of_partitions())
    awaited = {words for (partition, _), words in pools if partition in shared}
    own_blocks = {partition.name for partition in seen.partitions if partition.own_blocks}  # the table knows no blocks
    for name, words in pools:
        if words is not None and words not in numbers:
            number, pool = len(numbers) + 1, source.pool(*words)
            numbers[words] = number
            made.add(number, pool)
            if words in awaited:
                made.awaited(number, pool)
        found[name] = NOT_RANKED if words is None or name[0] in own_blocks else numbers[words]
    prefer = _prefer(seen.nodes, snapshot, barred) if soft_features else {}
    default = next((p.name for p in seen.partitions if p.default), "")
    return Standing(
        made.policy, default, found, tuple(made.nodes), made.lists, made.plain, made.slow, made.spares,
        made.ends_per_s, tuple(made.sizes), made.richest, prefer, {p.name: p.counting for p in seen.partitions},
        _left(seen), left_out, tuple(made.alike), bool(overview.network.switches),
    )  # fmt: skip


def _left(overview: Overview) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for partition in (p for p in overview.partitions if p.counting.most_cpus):
        taken = {partition.name: cpus_of(partition, overview.jobs)}
        inside = frozenset(partition.nodes)
        nodes = (left_of(node, [partition], taken) for node in overview.nodes if node.n_gpus and node.name in inside)
        found[partition.name] = {node.name: max(0, node.cpus - node.cpus_used) for node in nodes}
    return found


def _readable(overview: Overview) -> tuple[Overview, tuple[str, ...]]:
    """The cluster without what has a name that the filter cannot read, and what that is."""
    types = {kind for node in overview.nodes for kind in node.gpu_types if kind}
    strange = {kind for kind in types if not NAME.fullmatch(kind)}
    nodes = [node for node in overview.nodes if NAME.fullmatch(node.name) and not strange.intersection(node.gpu_types)]
    partitions = [p for p in overview.partitions if NAME.fullmatch(p.name)]
    left_out = [f"GPU type {kind!r} with its nodes" for kind in sorted(strange)]
    left_out += [f"node {node.name!r}" for node in overview.nodes if not NAME.fullmatch(node.name)]
    left_out += [f"partition {p.name!r}" for p in overview.partitions if p not in partitions]
    return overview._replace(nodes=tuple(nodes), partitions=tuple(partitions)), tuple(left_out)


def _prefer(nodes: Iterable[Node], snapshot: Snapshot, barred: float) -> dict[str, tuple[str, ...]]:
    """Class features (`pal_A_v0`) of GPUs that are not barred, as far as some node bears them."""
    active = frozenset(feature for node in nodes for feature in node.features)
    found: dict[str, tuple[str, ...]] = {}
    for c in SENSITIVITY_CLASSES:
        names = [f"pal_{c}_v{k}" for k, level in enumerate(snapshot.centroids.get(c, [])) if level <= barred]
        wanted = tuple(name for name in names if name in active)
        if wanted:
            found[c] = wanted
    return found


class _Answers:
    """Collects the answers pool by pool; a node that two pools offer in the same way is listed once."""

    def __init__(self, overview: Overview, snapshot: Snapshot, settings: Settings, rules: dict[str, Rule]) -> None:
        self.policy, self._rules, self._asked = tabulated(settings.policy), rules, settings.policy
        self._ends = ends_per_s(overview.jobs, settings)
        self._by_name = {node.name: node for node in overview.nodes}
        self._all = {c: every_gpu(overview, snapshot, c) for c in SENSITIVITY_CLASSES}
        self._bar = {c: worst_wanted(c, rule.barred_slowdown) for c, rule in rules.items()}
        self._places: dict[tuple[str, tuple[int, ...]], int] = {}
        self.nodes: list[Offered] = []
        self.lists: dict[tuple[int, str, int, str], list[tuple[int, int]]] = {}
        self.plain: dict[Question, Plain] = {}
        self.slow: dict[Question, tuple[str, ...]] = {}
        self.spares: dict[tuple[int, str], tuple[Spare, ...]] = {}
        self.ends_per_s: dict[tuple[int, str], float] = {}
        self.sizes: dict[Size, int] = {}
        self.richest: dict[int, Richest] = {}
        self.alike: list[tuple[int, str]] = []

    def add(self, number: int, pool: Pool) -> None:
        """All answers for one pool."""
        views = _by_list(pool.views)
        self.alike += [(number, c) for c, view in views.items() if no_choice(self._asked, view)]
        for (c, preference, count), entries in rankings(self.policy, views, self._rules).items():
            self.lists[number, c, preference, str(count)] = self._entries(pool, entries)
        idle = {c: rows(view, pool.idle) for c, view in pool.views.items()}
        for (c, preference, _), entries in rankings(self.policy, _by_list(idle), self._rules, whole_nodes=True).items():
            self.lists[number, c, preference, WHOLE] = self._entries(pool._replace(views=idle), entries)
        for count in range(1, max(map(len, pool.views["A"].free), default=0) + 1):
            self._answer(number, pool, pool.views, str(count), GpuShape(count, nodes=1, per_node=count))
        self._answer(number, pool, idle, WHOLE, GpuShape(1, nodes=1, per_node=1, whole_nodes=True))
        self.richest[number] = _richest(pool)

    def _entries(self, pool: Pool, entries: list[Row]) -> list[tuple[int, int]]:
        view = pool.views["A"]
        return [(self._place(pool, view, row), gone) for row, gone in entries]

    def _place(self, pool: Pool, view: View, row: int) -> int:
        key = view.names[row], tuple(view.free[row])
        if key not in self._places:
            self._places[key] = len(self.nodes)
            node = self._by_name[view.names[row]]
            slowdown = {c: tuple(other.slowdown[row]) for c, other in pool.views.items()}
            free_mib = max(0, node.memory_mib - node.memory_used_mib)
            free_cpus = max(0, node.cpus - node.cpus_used)
            sizes = node.cpus, node.memory_mib, node.n_gpus, node.threads
            self.nodes.append(Offered(node.name, free_cpus, free_mib, *sizes, _features(node), slowdown))
        return self._places[key]

    def _answer(self, number: int, pool: Pool, views: dict[str, View], count: str, shape: GpuShape) -> None:
        """What plain Slurm would do with a job of one node, and which nodes it should rather not get."""
        placed = plain_pick(views["A"], shape, self._rules["A"])
        if placed is None:
            return
        (row,), (gpus,) = placed.nodes, placed.gpus
        others = [other for other in range(len(views["A"].names)) if other != row]
        again = plain_pick(rows(views["A"], others), shape, self._rules["A"])
        for c, view in views.items():
            there = max(view.slowdown[row][: len(gpus)])
            second = MEDIAN_SLOWDOWN
            if again is not None:
                second = max(view.slowdown[others[again.nodes[0]]][: len(again.gpus[0])])
            self.plain[number, c, count] = Plain(there, view.names[row], second)
        if len(set(views["A"].weight)) > 1 or pool.wakes:
            return  # kept off nodes, a job would start on those that the site keeps for later, or Slurm would boot some
        for c in SENSITIVITY_CLASSES:
            slow = _slow(views[c], shape, self._bar[c])
            if 0 < len(slow) <= MOST_SLOW:
                self.slow[number, c, count] = slow
                self._await(number, pool, c)

    def awaited(self, number: int, pool: Pool) -> None:
        """Jobs may be kept waiting for nodes of this pool."""
        for c in SENSITIVITY_CLASSES:
            self._await(number, pool, c)

    def _await(self, number: int, pool: Pool, c: str) -> None:
        if (number, c) not in self.spares:
            spares = self.spares[number, c] = self._spares(pool, c)
            self.ends_per_s[number, c] = sum(self._ends.get(spare.name, 0.0) for spare in spares)

    def _spares(self, pool: Pool, c: str) -> tuple[Spare, ...]:
        """Nodes that could give, once free, GPUs that are neither barred nor faulty (as palsub judges).

        Where they are more than a record may hold, there are some of every size; first those without free
        GPUs, since of the others some are slow now.
        """
        bar, every = self._bar[c], self._all[c]
        free = frozenset(pool.views[c].names)
        by_size: dict[int, list[Spare]] = {}
        for node in pool.ever:
            mine = _gpus_of_type(node, pool.gpu_type)
            fast = sum(every[node.name][k] <= bar for k in mine) if mine else 0
            if fast:
                size = self._size(Size(node.cpus, node.memory_mib, len(mine), node.threads, _features(node)))
                by_size.setdefault(size, []).append(Spare(node.name, fast, size))
        for spares in by_size.values():
            spares.sort(key=lambda spare: (spare.name in free, -spare.fast))
        turns = (spare for turn in zip_longest(*by_size.values()) for spare in turn if spare is not None)
        return tuple(islice(turns, MOST_SPARES))

    def _size(self, size: Size) -> int:
        return self.sizes.setdefault(size, len(self.sizes))


def _by_list(views: dict[str, View]) -> dict[str, View]:
    """What each kind of list ranks."""
    return views | {UNMEASURED: views["C"]}


def _features(node: Node) -> tuple[str, ...]:
    """Active features with names that the filter can read."""
    return tuple(sorted(name for name in node.features if NAME.fullmatch(name)))


def _gpus_of_type(node: Node, gpu_type: str) -> list[int]:
    return [k for k, kind in enumerate(node.gpu_types) if not gpu_type or kind == gpu_type]


def _richest(pool: Pool) -> Richest:
    found = Richest(0, 0, 0, 0)
    for node in pool.every:
        if gpus := len(_gpus_of_type(node, pool.gpu_type)):
            has = (node.cpus, node.memory_mib, -(-node.cpus // gpus), -(-node.memory_mib // gpus))
            found = Richest(*map(max, found, has))
    return found


def _slow(view: View, shape: GpuShape, bar: float) -> tuple[str, ...]:
    """Nodes that could start such a job now, with a barred GPU among those it would be given."""
    return tuple(
        name
        for name, row in zip(view.names, view.slowdown, strict=True)
        if len(row) >= shape.total and max(row if shape.whole_nodes else row[: shape.total]) > bar
    )
