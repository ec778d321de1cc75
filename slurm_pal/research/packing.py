# SPDX-License-Identifier: MIT
"""Space sharing where jobs of one kind differ: makespan and finish-time fairness with pairs (gavel.md 6).

Jobs with different work cannot be one row of the program. But whom a job shares its GPUs with
matters only by the partner's kind. So a variable is the time of a group of equal jobs beside
the jobs of another kind, and the two sides must add up to the same. Times that do can always be
dealt out to pairs of jobs. That makes jobs x kinds variables, where one row per pair makes
jobs x jobs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation import base
from slurm_pal.allocation.grouping import Groups
from slurm_pal.allocation.linear import INFINITE, LinearProgram, Rows, together
from slurm_pal.allocation.problem import Allocation, PairShare, Problem, Vector
from slurm_pal.research.pairs import LEAST, Mix, cut, effective_packed, kind_groups, listed, shared

Ints = NDArray[np.int64]

CLOSE = 1e-9  # of the level, where the search for it ends
ROUNDING = 1e-13  # part of a difference of numbers that means nothing


class _Needs(NamedTuple):
    """At level L a group needs work * L / (span - age * L) steps/s for each member; 0 where it has no work."""

    work: Vector  # (g,) steps
    span: Vector  # (g,)
    age: Vector  # (g,)

    def at(self, level: float) -> Vector:
        return np.asarray(self.work * level / self._rest(level))

    def reached(self, throughput: Vector) -> float:
        """The level that these throughputs, steps/s, are enough for."""
        asks = self.work > 0
        with np.errstate(divide="ignore"):
            return float((self.span[asks] / (self.age[asks] + self.work[asks] / throughput[asks])).min())

    def relative_slope(self, level: float) -> Vector:
        """Increase of the need by the level, over the need."""
        return np.asarray(self.span / (level * self._rest(level)))

    def _rest(self, level: float) -> Vector:
        """For a job that is old and nearly done, rounding leaves nothing of the difference: a little is kept."""
        return np.maximum(self.span - self.age * level, ROUNDING * self.span)


class _Sides(NamedTuple):
    """Variables: time on a column, of one group, alone or beside jobs of a kind, summed over the members."""

    group: Ints  # (v,)
    link: Ints  # (v,) row of `links`; -1 alone
    sign: Vector  # (v,) 1 and -1 on the two sides of a link; 0 where both are of one kind, and alone
    column: Ints  # (v,)
    speed: Vector  # (v,) steps/s
    links: Mix  # pairs of kinds that can share a column

    @property
    def size(self) -> int:
        return len(self.group)

    @property
    def twins(self) -> NDArray[np.bool_]:
        """(l,) links between jobs of one kind."""
        return np.asarray(self.links.first == self.links.second)

    @property
    def gpus(self) -> Vector:
        """(v,) GPUs taken, per time and scale: one side of a link takes those of both."""
        return np.where(self.link < 0, 1.0, np.where(self.sign == 0, 0.5, np.maximum(self.sign, 0.0)))


def makespan_packing(problem: Problem) -> Allocation:
    """`makespan` where jobs may share GPUs: the objective is the time when the last job ends, s. Exact."""
    return _highest(problem, np.ones(problem.n_jobs), np.zeros(problem.n_jobs))


def finish_time_fairness_packing(problem: Problem) -> Allocation:
    """`finish_time_fairness` where jobs may share GPUs: the objective is the least largest rho. Exact."""
    return _highest(problem, base.isolated_s(problem), problem.age_s)


def _highest(problem: Problem, span: Vector, age: Vector) -> Allocation:
    """The least largest (age + remaining / throughput) / span of the jobs with work left; span and age are (m,)."""
    runs = np.asarray(base.fitting(problem).any(axis=1))
    asks, notes = runs & (problem.remaining > 0), base.left_out(runs)
    if not asks.any():
        return base.nothing(problem, float("nan") if problem.remaining.any() else 0.0, notes)
    busy = problem._replace(throughput=np.where(asks[:, None], problem.throughput, 0.0))
    found = kind_groups(busy, problem.remaining, span, age)
    sides, work = _sides(busy, found), np.where(asks, problem.remaining, 0.0)[found.first]
    needs = _Needs(work, np.where(work > 0, span[found.first], 1.0), np.where(work > 0, age[found.first], 0.0))
    made = _dealt(busy, found, sides, cut(_solved(busy, found, sides, needs), _limits(busy, found, sides)))
    end = age[asks] + problem.remaining[asks] / effective_packed(problem, made)[asks]
    return made._replace(objective=float((end / span[asks]).max()), notes=notes)


def _sides(problem: Problem, found: Groups) -> _Sides:
    alone, kinds = base.cells(problem, found), kind_groups(problem)
    links = shared(problem, kinds)
    kind = kinds.member[found.first]
    order = np.argsort(kind, kind="stable")
    counts = np.bincount(kind, minlength=len(kinds.first))
    starts, twins = np.cumsum(counts) - counts, links.first == links.second
    one, one_link = _expanded(links.first, order, starts, counts)
    other, other_link = _expanded(np.where(twins, -1, links.second), order, starts, counts)
    link = np.concatenate([np.full(alone.size, -1), one_link, other_link])
    sign = np.repeat([0.0, 1.0, -1.0], [alone.size, one.size, other.size])
    return _Sides(
        np.concatenate([alone.group, one, other]), link,
        np.where((link >= 0) & np.append(twins, False)[link], 0.0, sign),
        np.concatenate([alone.column, links.column[one_link], links.column[other_link]]),
        np.concatenate([alone.throughput, links.speed[one_link], links.other_speed[other_link]]), links,
    )  # fmt: skip


def _expanded(kinds: Ints, order: Ints, starts: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """All groups of each kind in a list (-1: none), and the places in the list."""
    size = np.where(kinds >= 0, counts[kinds], 0)
    place = np.repeat(np.arange(len(kinds)), size)
    within = np.arange(place.size) - np.repeat(np.cumsum(size) - size, size)
    return order[starts[kinds[place]] + within], place


def _limits(problem: Problem, found: Groups, sides: _Sides) -> Rows:
    """Row i: the time of all members of group i; then the capacities."""
    time = base.Time(sides.group, np.arange(sides.size), np.ones(sides.size))
    gpus = problem.scale[found.first][sides.group] * sides.gpus
    return base.limit_rows(problem, time, found.count, sides.column, gpus)


def _balance(found: Groups, sides: _Sides) -> Rows:
    """The two sides of a link have equal time. Within one kind nobody has more than all others together.

    The latter needs a row for groups of one job only, and a variable for the time of all: one
    per link, after the height.
    """
    links, total = len(sides.twins), sides.size + 1 + np.arange(len(sides.twins))
    beside, twin = np.flatnonzero(sides.link >= 0), np.flatnonzero(sides.twins)
    single = np.flatnonzero((sides.link >= 0) & (sides.sign == 0) & (found.count[sides.group] == 1))
    each = links + np.arange(single.size)
    return Rows(
        np.concatenate([sides.link[beside], twin, each, each]),
        np.concatenate([beside, total[twin], single, total[sides.link[single]]]),
        np.concatenate([
            np.where(sides.sign == 0, 1.0, sides.sign)[beside], -np.ones(twin.size),
            np.full(single.size, 2.0), -np.ones(single.size),
        ]),
        np.concatenate([np.zeros(links), np.full(single.size, -INFINITE)]), np.zeros(links + single.size),
    )  # fmt: skip


def _solved(problem: Problem, found: Groups, sides: _Sides, needs: _Needs) -> Vector:
    """(v,) times that reach the highest level.

    A program says by which factor the needs of a level can be met. Its inverse is convex in the
    level, so Newton's method comes down to the highest level and not below it: the next level
    is a bound, and the search ends when a solution reaches it.
    """
    asks, best = np.flatnonzero(needs.work), np.zeros(len(needs.work))
    np.maximum.at(best, sides.group, sides.speed)
    level = needs.reached(best)
    limits = together(_limits(problem, found, sides), _balance(found, sides))
    rows, height = len(limits.lower) + asks, sides.size
    each = found.count[asks] / best[asks]
    program = _program(sides, limits, best, asks, each * needs.at(level)[asks])
    while True:
        solution = program.solve()
        want = min(1.0, float(solution.x[height])) * needs.at(level)
        x = _filled(found, sides, _evened(sides, solution.x[:height]), want)
        reached = needs.reached(np.bincount(sides.group, sides.speed * x, len(best)) / found.count)
        price = np.abs(solution.dual[rows]) * each * needs.at(level)[asks]
        slope = float(price @ needs.relative_slope(level)[asks] / price.sum())
        lower = level - (1.0 - solution.x[height]) / slope
        if min(lower, level) <= reached * (1.0 + CLOSE) or not 0.0 < lower < level:
            return x
        level = lower
        for row, value in zip(rows.tolist(), (each * needs.at(level)[asks]).tolist(), strict=True):
            program.change_value(row, height, -value)
        program.option("solver", "simplex")  # goes on from the basis, which the interior point method cannot


def _program(sides: _Sides, limits: Rows, best: Vector, asks: Ints, scaled: Vector) -> LinearProgram:
    """The largest factor by which the needs can be met; `scaled` are those of the groups `asks`, of their best."""
    height = sides.size
    unit = np.where(best > 0, best, 1.0)
    throughput = Rows(
        np.concatenate([sides.group, asks]), np.concatenate([np.arange(height), np.full(asks.size, height)]),
        np.concatenate([sides.speed / unit[sides.group], -scaled]), np.zeros(best.size), np.full(best.size, INFINITE),
    )  # fmt: skip
    cost = np.zeros(height + 1 + len(sides.twins))
    cost[height] = 1.0
    program = LinearProgram(cost, together(limits, throughput))
    program.option("solver", "ipm")
    return program


def _evened(sides: _Sides, x: Vector) -> Vector:
    """The solution with no more time on one side of a link than on the other; a solver keeps to a tolerance only."""
    time = np.where(x > LEAST, x, 0.0)
    count = len(sides.twins)
    one, other = (np.bincount(sides.link[side], time[side], count) for side in (sides.sign > 0, sides.sign < 0))
    least = np.minimum(one, other)
    for total, side in ((one, sides.sign > 0), (other, sides.sign < 0)):
        part = np.divide(least, total, out=np.zeros(count), where=total > 0)
        time[side] *= part[sides.link[side]]
    return time


def _filled(found: Groups, sides: _Sides, time: Vector, want: Vector) -> Vector:
    """The times with what groups lack of `want`, (g,) steps/s, added in their fastest columns.

    That is the solver's tolerance at most, but it is all that a nearly finished job beside long ones needs.
    What such a job has in pairs does not count: in such small parts it would be lost.
    """
    alone = np.flatnonzero(sides.link < 0)
    alone = alone[np.lexsort((-sides.speed[alone], sides.group[alone]))]
    group, first = np.unique(sides.group[alone], return_index=True)
    cell = alone[first]
    got = np.bincount(sides.group, sides.speed * time, len(want))[group] / found.count[group]
    lacks = want[group] - np.where(want[group] <= CLOSE * sides.speed[cell], 0.0, got)
    filled = time.copy()
    filled[cell] += np.maximum(lacks, 0.0) * found.count[group] / sides.speed[cell]
    return filled


def _dealt(problem: Problem, found: Groups, sides: _Sides, time: Vector) -> Allocation:
    """The shares of jobs and of pairs of jobs; the members of a group have the same time in everything."""
    alone, used = sides.link < 0, np.flatnonzero((sides.link >= 0) & (time > 0))
    shares = np.zeros((len(found.first), problem.n_columns))
    shares[sides.group[alone], sides.column[alone]] = time[alone] / found.count[sides.group[alone]]
    order = np.argsort(found.member, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(found.member))[:-1])
    dealt = []
    for link in np.unique(sides.link[used]):
        mine = used[sides.link[used] == link]
        one, other = (
            _line(sides.group[side], time[side], members)
            for side in (mine[sides.sign[mine] >= 0], mine[sides.sign[mine] < 0])
        )
        dealt.append((int(sides.links.column[link]), *_overlap(*(_halves(one) if sides.twins[link] else (one, other)))))
    return Allocation(shares[found.member], pairs=_merged(problem, dealt))


class _Line(NamedTuple):
    """Jobs one after the other on a line, each as long as its time."""

    job: Ints
    time: Vector


def _line(group: Ints, time: Vector, members: list[Ints]) -> _Line:
    jobs = [members[g] for g in group]
    return _Line(
        np.concatenate(jobs) if jobs else group,
        np.concatenate([np.full(len(each), t / len(each)) for each, t in zip(jobs, time, strict=True)])
        if jobs
        else time,
    )


def _halves(line: _Line) -> tuple[_Line, _Line]:
    """The line cut in the middle. Laid on each other, no job meets itself, for none is longer than half."""
    end = np.cumsum(line.time)
    first = np.diff(np.minimum(end, end[-1] / 2), prepend=0.0)
    return _Line(line.job, first), _Line(line.job, line.time - first)


def _overlap(one: _Line, other: _Line) -> tuple[Ints, Ints, Vector]:
    """Two lines of equal length laid on each other: who meets whom, and for how long."""
    end, other_end = np.cumsum(one.time), np.cumsum(other.time)
    other_end = np.append(np.minimum(other_end[:-1] * (end[-1] / other_end[-1]), end[-1]), end[-1])
    cuts = np.unique(np.concatenate([[0.0], end, other_end]))
    middle = (cuts[:-1] + cuts[1:]) / 2
    a, b = one.job[np.searchsorted(end, middle)], other.job[np.searchsorted(other_end, middle)]
    real = (np.diff(cuts) > LEAST) & (a != b)
    return a[real], b[real], np.diff(cuts)[real]


def _merged(problem: Problem, dealt: list[tuple[int, Ints, Ints, Vector]]) -> tuple[PairShare, ...]:
    """One entry for each two jobs, over all columns."""
    if not dealt:
        return ()
    m, n = problem.n_jobs, problem.n_columns
    code = np.concatenate([np.minimum(a, b) * m + np.maximum(a, b) for _, a, b, _ in dealt])
    column = np.concatenate([np.full(a.size, j) for j, a, _, _ in dealt])
    codes, place = np.unique(code, return_inverse=True)
    time = np.bincount(place * n + column, np.concatenate([time for *_, time in dealt]), codes.size * n)
    return tuple(listed(codes // m, codes % m, np.asarray(time.reshape(-1, n), dtype=np.float64)))
