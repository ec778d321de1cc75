# SPDX-License-Identifier: MIT
"""Sia in rounds, and `pal-sia`: the same program, told which GPUs of a type are slow and what locality costs.

`pal-sia` (sia-and-bar.md 4) has a column for each partition, packed or spread, and variability class. A job's goodput
there is its throughput over slowdown x locality. When the program has chosen, jobs get GPUs in the order of their
sensitivity. Where these are slower than the program counted on, it is solved once more with what they are. A running
job is moved only where what it gains in the time it has left is worth two moves. GPU sets of the same kind
are dealt so that as few jobs as possible move.

Between rounds, jobs that wait may start on free GPUs; what runs stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

from slurm_pal.allocation import columns
from slurm_pal.allocation import problem as problems
from slurm_pal.allocation.problem import Matrix, Problem, Vector
from slurm_pal.allocation.sia import Configurations, SiaSettings, Standing, choose, rigid
from slurm_pal.base.jobs import GpuShape
from slurm_pal.placement.occupancy import placed_as
from slurm_pal.placement.view import Rule
from slurm_pal.research.unequal import Chosen, GangJob, Moment
from slurm_pal.research.unequal_places import BLIND, Places, Slots, drag, slots_of
from slurm_pal.simulate.hardware import Hardware, identical

ROUND_S = 60.0
"""Of Sia, as published (SOSP'23)."""
AGAIN_S = 600.0
"""Without a change of the jobs a round decides nothing new, but for restart factors, which rise with age."""
WORTH = 2.0
"""A move must gain as many times what it costs."""
MET = 0.995
"""A job that gets this part of the speed that was counted on has got it."""
SOLVES = 3
"""So often the program is solved for jobs whose moves turn out not to pay."""
RULE, BARRED = "pal", 1.05
"""How GPUs are found inside a partition."""


class SiaParts(NamedTuple):
    """Parts of `pal-sia` that can be taken out one by one."""

    variability: bool = True
    locality: bool = True
    types: bool = True
    restarts: bool = True
    relabel: bool = True
    moves: bool = True
    sizes: bool = False  # elastic jobs may get other numbers of GPUs than they ask for


WHOLE = SiaParts()
PUBLISHED = SiaParts(variability=False, locality=False, relabel=False)


class SiaRounds:
    """Sia, told nothing of single GPUs. The policy of one run."""

    def __init__(self, jobs: Sequence[GangJob], parts: SiaParts = PUBLISHED) -> None:
        self._jobs, self._parts, self._settings = jobs, parts, SiaSettings()
        self._clock = _Clock(parts.moves)

    def __call__(self, moment: Moment) -> Chosen:
        may_move = self._clock.may_move(moment)
        if may_move is None:
            return Chosen(moment.problem.held.copy(), moment.gpus)
        now, options = _sized(moment), configurations(moment, self._jobs, self._parts)
        picked, _ = choose(now, options, _standing(moment, ~may_move, self._parts), self._settings)
        column = np.where(may_move, -1, now.held)
        gpus = moment.gpus.copy()
        rows = np.flatnonzero(picked >= 0)
        column[rows], gpus[rows] = options.column[picked[rows]], options.gpus[picked[rows]]
        return self._clock.noted(moment, Chosen(column, gpus))


class PalSiaRounds:
    """`pal-sia`. The policy of one run on a cluster with nodes and slowdowns; without these it is Sia."""

    def __init__(self, jobs: Sequence[GangJob], parts: SiaParts = WHOLE) -> None:
        self._jobs, self._parts, self._settings = jobs, parts, SiaSettings()
        self._clock = _Clock(parts.moves)
        self._blind = SiaRounds(jobs, parts)
        self._site: _Site | None = None

    def __call__(self, moment: Moment) -> Chosen:
        if moment.places is None:
            return self._blind(moment)
        may_move = self._clock.may_move(moment)
        if may_move is None:
            return Chosen(moment.problem.held.copy(), moment.gpus)
        if self._site is None:
            self._site = _Site(moment.places.machine, self._parts)
        one = _Round(moment, moment.places, self._site, self._jobs, self._parts, self._settings)
        return self._clock.noted(moment, one.decided(may_move))


class _Clock:
    """When running jobs may be moved: at the first round after a change, and at least every AGAIN_S."""

    def __init__(self, moves: bool) -> None:
        self._moves = moves
        self._round, self._full_s = -1, -AGAIN_S
        self._planned: bytes = b""  # the jobs of the last full decision
        self._left: tuple[bytes, bytes] = (b"", b"")

    def may_move(self, moment: Moment) -> NDArray[np.bool_] | None:
        """(m,) jobs that may be moved now; None where nothing is to be decided."""
        number, jobs = int(moment.now_s / ROUND_S), moment.job.tobytes()
        due = jobs != self._planned or moment.now_s >= self._full_s + AGAIN_S
        begins = number > self._round and due
        if not begins and (jobs, moment.problem.held.tobytes()) == self._left:
            return None
        if begins:
            self._round, self._full_s, self._planned = number, moment.now_s, jobs
        return np.asarray((moment.problem.held < 0) | (begins and self._moves))

    def noted(self, moment: Moment, chosen: Chosen) -> Chosen:
        self._left = (moment.job.tobytes(), chosen.column.tobytes())
        return chosen


# -- what jobs may be given -------------------------------------------------------------------


def configurations(moment: Moment, jobs: Sequence[GangJob], parts: SiaParts) -> Configurations:
    """The types of each job; of an elastic one those with other numbers of GPUs, too."""
    rows, gpus, speeds = _speeds(moment, jobs, parts)
    found = rigid(
        moment.problem._replace(throughput=speeds, scale=gpus, held=np.full(rows.size, -1), weight=np.ones(rows.size))
    )
    job = rows[found.job]
    held = (moment.problem.held[job] == found.column) & (moment.gpus[job] == found.gpus)
    return found._replace(job=job, held=held)


def _speeds(moment: Moment, jobs: Sequence[GangJob], parts: SiaParts) -> tuple[NDArray[np.int64], Vector, Matrix]:
    """(r,) rows of the moment, (r,) a number of GPUs that the job may have, and (r, n) steps/s there.

    An elastic job may have up to twice what it has, and one that waits no more than it asks for.
    """
    now, speeds = moment.problem, moment.problem.throughput
    rows, gpus, each = [*range(now.n_jobs)], now.scale.tolist(), [*speeds]
    for row, number in enumerate(moment.job.tolist() if parts.sizes else []):
        most = 2 * moment.gpus[row] or now.scale[row]
        for count, at in jobs[number].sizes:
            if count <= most:
                rows.append(row)
                gpus.append(float(count))
                each.append(np.array(at))
    found = np.array(each).reshape(len(rows), now.n_columns)
    if not parts.types:
        able = found > 0
        mean = found.sum(axis=1) / np.maximum(1, able.sum(axis=1))
        found = np.where(able, mean[:, None], 0.0)
    order = np.argsort(rows, kind="stable")
    return np.array(rows, dtype=np.int64)[order], np.array(gpus)[order], found[order]


def _sized(moment: Moment) -> Problem:
    """Running jobs with the GPUs that they hold."""
    return moment.problem._replace(scale=np.where(moment.gpus > 0, moment.gpus, moment.problem.scale))


def _standing(moment: Moment, pinned: NDArray[np.bool_], parts: SiaParts) -> Standing:
    cost_s = moment.move_cost_s if parts.restarts else 0.0
    return Standing(moment.moves.astype(np.float64), np.full(moment.job.size, cost_s), pinned)


# -- pal-sia ----------------------------------------------------------------------------------


class _Site:
    """The columns of a cluster, and what is believed of its GPUs."""

    def __init__(self, machine: Hardware, parts: SiaParts) -> None:
        self.seen = machine if parts.variability else identical(machine)
        self.rule = RULE if parts.variability else BLIND
        table = self.seen.level["A"]
        values = sorted({value for row in table for value in row})
        self.level = [[values.index(value) for value in row] for row in table]  # [node][index]
        self.columns = columns.columns(
            [self._partition(name, nodes, len(values)) for name, nodes in machine.partitions.items()]
        )
        self.partition = np.repeat(np.arange(len(machine.partitions)), 2 * len(values))  # of each column
        self.levels = len(values)

    def _partition(self, name: str, nodes: Sequence[int], levels: int) -> columns.PartitionGpus:
        counts = [np.bincount(self.level[node], minlength=levels).tolist() for node in nodes]
        slowdown = {}
        for sensitivity, table in self.seen.believed.items():
            at: list[list[float]] = [[] for _ in range(levels)]
            for node in nodes:
                for index, value in enumerate(table[node]):
                    at[self.level[node][index]].append(value)
            worst: list[float] = []  # a gang runs at its slowest GPU
            for some in at:
                worst.append(max(some) if some else (worst[-1] if worst else 1.0))
            slowdown[sensitivity] = worst
        return columns.PartitionGpus(name, counts, slowdown)

    def held(self, partition: int, slots: Slots, spread: bool) -> int:
        """The column that these GPUs are of."""
        worst = max(self.level[node][index] for node, indexes in slots for index in indexes)
        return int(self.columns.first[partition]) + self.levels * spread + worst


class _Round:
    """One decision."""

    def __init__(
        self, moment: Moment, places: Places, site: _Site, jobs: Sequence[GangJob], parts: SiaParts,
        settings: SiaSettings,
    ) -> None:  # fmt: skip
        self._moment, self._places, self._site, self._parts, self._settings = moment, places, site, parts, settings
        self._jobs = [jobs[number] for number in moment.job.tolist()]
        self._slots = [places.slots.get(number, ()) for number in moment.job.tolist()]
        self._class = [placed_as(job.sensitivity) for job in self._jobs]
        self._penalty = [job.locality_penalty if parts.locality else 1.0 for job in self._jobs]
        self._options, self._capacities = self._columns(*_speeds(moment, jobs, parts))

    def _columns(self, rows: NDArray[np.int64], gpus: Vector, speeds: Matrix) -> tuple[Configurations, Problem]:
        """Ways to run, and the problem with what running jobs hold, by columns of the site."""
        site, now, m = self._site, self._moment.problem, self._moment.job.size
        made = columns.problem(
            site.columns,
            columns.PartitionJobs(
                speeds, 1.0 / np.array([self._penalty[row] for row in rows.tolist()]),
                [self._class[row] for row in rows.tolist()], gpus,
            ),
        )  # fmt: skip
        line, column = np.nonzero(made.throughput)
        job = rows[line]
        goodput = made.throughput[line, column]
        held = np.full(m, -1)
        for row in np.flatnonzero(now.held >= 0).tolist():
            partition, slots = int(now.held[row]), self._slots[row]
            spread = len(slots) > 1
            at = site.held(partition, slots, spread)
            open_ = (job == row) & (gpus[line] == self._moment.gpus[row])
            if spread and not (open_ & (column == at)).any():
                at -= site.levels  # where no node holds the gang, the packed column spans nodes
            held[row] = at
            goodput[open_ & (column == at)] = self._rate(row, partition, int(self._moment.gpus[row]), slots)
        options = Configurations(
            job, column, gpus[line], goodput, (held[job] == column) & (self._moment.gpus[job] == gpus[line])
        )
        scale = np.where(self._moment.gpus > 0, self._moment.gpus, now.scale)
        nothing = np.zeros((m, made.n_columns))
        return options, problems.problem(
            nothing, scale, made.gpus, uses=made.uses, capacity=made.capacity, weight=now.weight,
            remaining=now.remaining, age_s=now.age_s, held=held,
        )  # fmt: skip

    def _rate(self, row: int, partition: int, gpus: int, slots: Slots) -> float:
        """Steps/s as believed on these GPUs."""
        job = self._jobs[row]
        speeds = job.throughput if gpus == job.scale else dict(job.sizes)[gpus]
        return float(speeds[partition]) / drag(self._site.seen.believed[self._class[row]], slots, self._penalty[row])

    def decided(self, may_move: NDArray[np.bool_]) -> Chosen:
        picked = self._picked(may_move)
        placed = self._placed(may_move, picked)
        if self._found_less(picked, placed):
            picked = self._picked(may_move)
            placed = self._placed(may_move, picked)
        self._kept(placed)
        if self._parts.relabel:
            self._relabel(placed)
        now = self._moment.problem
        column, gpus = np.where(may_move, -1, now.held), self._moment.gpus.copy()
        for row, slots in placed.items():
            column[row] = self._partition(slots)
            gpus[row] = len(_gpus(slots))
        return Chosen(column, gpus, placed)

    def _picked(self, may_move: NDArray[np.bool_]) -> NDArray[np.int64]:
        """(m,) the program's configurations; jobs whose move would not pay are pinned, and it is solved anew."""
        pinned = ~may_move
        for _ in range(SOLVES):
            standing = _standing(self._moment, pinned, self._parts)
            picked, _ = choose(self._capacities, self._options, standing, self._settings)
            futile = np.array(
                [row for row in np.flatnonzero(picked >= 0).tolist() if not self._pays(row, int(picked[row]))],
                dtype=np.int64,
            )
            if not futile.size:
                break
            pinned[futile] = True
        own = self._own()
        return np.where(pinned & may_move, own, picked)

    def _own(self) -> NDArray[np.int64]:
        """(m,) number of the configuration that a job has, -1 where it has none."""
        own = np.full(self._moment.job.size, -1)
        has = np.flatnonzero(self._options.held)
        own[self._options.job[has]] = has
        return own

    def _pays(self, row: int, option: int) -> bool:
        """Whether a running job's move gains enough. One that gives way to others need not gain."""
        own = int(self._own()[row])
        if own < 0 or own == option or not self._parts.restarts:
            return True
        return self._worth_it(row, float(self._options.goodput[own]), float(self._options.goodput[option]))

    def _worth_it(self, row: int, before: float, after: float) -> bool:
        gained_s = self._moment.problem.remaining[row] * (1.0 / before - 1.0 / after)
        return bool(after < before or gained_s > WORTH * self._moment.move_cost_s)

    def _stays(self, may_move: NDArray[np.bool_], picked: NDArray[np.int64]) -> NDArray[np.bool_]:
        own = self._own()
        return np.asarray((~may_move | ((own >= 0) & (picked == own))) & (self._moment.problem.held >= 0))

    def _placed(self, may_move: NDArray[np.bool_], picked: NDArray[np.int64]) -> dict[int, Slots]:
        """Row -> GPUs, of all jobs that run from now on; the most sensitive choose first, of these the largest."""
        stays = self._stays(may_move, picked)
        free = self._places.without(self._moment.job[~stays].tolist())
        found = {row: self._slots[row] for row in np.flatnonzero(stays).tolist()}
        rows = np.flatnonzero((picked >= 0) & ~stays).tolist()
        for row in sorted(rows, key=lambda row: (self._class[row], -self._options.gpus[picked[row]], row)):
            partition = int(self._site.partition[self._options.column[picked[row]]])
            gpus = int(self._options.gpus[picked[row]])
            rule = Rule(self._class[row], self._penalty[row], BARRED)
            placement = free.place(self._site.rule, GpuShape(gpus), rule, self._places.names[partition])
            if placement is not None:
                found[row] = slots_of(placement)
                free.take(found[row])
        return found

    def _partition(self, slots: Slots) -> int:
        nodes = self._places.machine.partitions
        return next(k for k, name in enumerate(nodes) if slots[0][0] in nodes[name])

    def _found_less(self, picked: NDArray[np.int64], placed: Mapping[int, Slots]) -> bool:
        """Whether a job found less than the program counted on; its configurations there count as that from now on."""
        options, less = self._options, False
        at = self._site.partition[options.column]
        for row, slots in placed.items():
            option = int(picked[row])
            if option < 0 or options.held[option]:
                continue
            partition, gpus = self._partition(slots), int(options.gpus[option])
            rate = self._rate(row, partition, gpus, slots)
            if rate < MET * options.goodput[option]:
                same = (options.job == row) & (at == partition) & (options.gpus == gpus) & ~options.held
                options.goodput[same] = np.minimum(options.goodput[same], rate)
                less = True
        return less

    def _kept(self, placed: dict[int, Slots]) -> None:
        """Jobs that were to stop, or to move for too little, stay where nobody else was given their GPUs."""
        if not self._parts.restarts:
            return
        taken = {gpu for slots in placed.values() for gpu in _gpus(slots)}
        for row, old in enumerate(self._slots):
            slots = placed.get(row, ())
            own, new = _gpus(old), _gpus(slots)
            if not old or old == slots or own & (taken - new):
                continue
            was = self._rate(row, self._partition(old), len(own), old)
            rate = self._rate(row, self._partition(slots), len(new), slots) if slots else 0.0
            if rate <= was or not self._worth_it(row, was, rate):
                placed[row] = old
                taken = (taken - new) | own

    def _relabel(self, placed: dict[int, Slots]) -> None:
        """Deal the GPU sets of jobs of one class and size in a partition so that most of them keep theirs."""
        groups: dict[tuple[int, str, int], list[int]] = defaultdict(list)
        for row, slots in placed.items():
            groups[self._partition(slots), self._class[row], len(_gpus(slots))].append(row)
        for rows in groups.values():
            sets = [placed[row] for row in rows]
            if not any(self._slots[row] and self._slots[row] != placed[row] for row in rows):
                continue
            cost = np.array([[float(self._slots[row] != slots) for slots in sets] for row in rows])
            cost[np.arange(len(rows)), np.arange(len(rows))] -= 1e-3  # of equal deals the one at hand
            row_of, set_of = linear_sum_assignment(cost)
            for k, at in zip(row_of.tolist(), set_of.tolist(), strict=True):
                placed[rows[k]] = sets[at]


def _gpus(slots: Slots) -> set[tuple[int, int]]:
    """(node, index) of each."""
    return {(node, index) for node, indexes in slots for index in indexes}
