# SPDX-License-Identifier: MIT
"""Space sharing: two jobs of equal scale on the same GPUs, by groups of equal jobs (gavel.md 6 and 10.4).

The published programs have one row for each pair of jobs. Jobs that a program cannot tell
apart can be served alike, so here a variable is the time that two *groups* of jobs share a
column, summed over their members. Afterwards that time is dealt out to pairs of members, so that
every member of a group has the same part of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation import base
from slurm_pal.allocation.grouping import Groups, groups
from slurm_pal.allocation.linear import INFINITE, LinearProgram, Rows, together
from slurm_pal.allocation.problem import Allocation, Matrix, PairShare, Problem, Vector, effective
from slurm_pal.allocation.throughput_sum import checked_prices

Ints = NDArray[np.int64]

LEAST = 1e-12  # shares below this are rounding of the solver


class Mix(NamedTuple):
    """Variables of a program with pairs: time on a column, of one group or of two, summed over the members."""

    first: Ints  # (v,) group
    second: Ints  # (v,) group of the other job; the same as `first` for two of one group; -1: alone
    column: Ints  # (v,)
    speed: Vector  # (v,) steps/s of the job of `first`
    other_speed: Vector  # (v,) steps/s of the job of `second`; 0 if alone

    @property
    def size(self) -> int:
        return len(self.first)


class _Parts(NamedTuple):
    """Which groups take part in which variables: the entries of the rows for time and throughput."""

    group: Ints
    variable: Ints
    time: Vector  # 2 where both jobs are of the group
    speed: Vector  # steps/s, of both where both are of the group


def max_min_packing(problem: Problem) -> Allocation:
    """`max_min` where jobs may share GPUs: the least s * throughput / (w * reference) as large as it can be.

    Two jobs share a column only if both have a pair throughput there. Exact: equal to the
    program with one row per pair of jobs.
    """
    found = kind_groups(problem, problem.weight)
    mix = _mix(problem, found)
    unit = (problem.weight * base.reference_throughput(problem) / problem.scale)[found.first]
    if not mix.size:
        return base.nothing(problem, notes=_left_out(found, mix))
    return _made(problem, found, mix, _level(problem, found, mix, unit), unit)


def max_sum_packing(problem: Problem) -> Allocation:
    """`max_sum` where jobs may share GPUs: the largest sum of throughput / reference. Exact."""
    found = kind_groups(problem)
    mix = _mix(problem, found)
    reference = base.reference_throughput(problem)[found.first]
    other = np.where(mix.second < 0, 1.0, reference[mix.second])  # the reference of nobody may be 0
    return _sum(problem, found, mix, mix.speed / reference[mix.first] + mix.other_speed / other)


def cost_packing(problem: Problem) -> Allocation:
    """`cost` where jobs may share GPUs: the largest sum of throughput / price of the column. Exact.

    A pair pays for its GPUs once. Raises DataError for a price that is not above 0.
    """
    price, found = checked_prices(problem), kind_groups(problem)
    mix = _mix(problem, found)
    return _sum(problem, found, mix, (mix.speed + mix.other_speed) / price[mix.column])


def effective_packed(problem: Problem, found: Allocation) -> Vector:
    """(m,) effective throughput with what jobs get in pairs, steps/s."""
    total = effective(problem, found.shares)
    if found.pairs:
        a, b = (np.array([pair[side] for pair in found.pairs]) for side in (0, 1))
        shares = np.array([pair.shares for pair in found.pairs])
        for one, other in ((a, b), (b, a)):
            gained = (problem.pairs[problem.kind[one], problem.kind[other]] * shares).sum(axis=1)
            total += np.bincount(one, gained, minlength=problem.n_jobs)
    return total


def kind_groups(problem: Problem, *columns: NDArray[np.float64]) -> Groups:
    """Groups of jobs of one kind that are equal in `columns` too; without pairs kinds make no difference."""
    return groups(problem, problem.kind, *columns) if problem.pairs.size else groups(problem, *columns)


def _mix(problem: Problem, found: Groups) -> Mix:
    alone = base.cells(problem, found)
    none = np.full(alone.size, -1)
    first, second, column, speed, other_speed = shared(problem, found)
    return Mix(
        np.concatenate([alone.group, first]), np.concatenate([none, second]), np.concatenate([alone.column, column]),
        np.concatenate([alone.throughput, speed]), np.concatenate([np.zeros(alone.size), other_speed]),
    )  # fmt: skip


def shared(problem: Problem, found: Groups) -> Mix:
    """The pairs of groups worth a variable.

    A pair whose relative speeds add up to 1 or less is worth none: the two get as much from
    the same GPUs one after the other, and need less of their time.
    """
    speed, scale = base.fitting(problem)[found.first], problem.scale[found.first]
    a, b = np.triu_indices(len(found.first) if problem.pairs.size else 0)
    both = (scale[a] == scale[b]) & ((a != b) | (found.count[a] > 1))
    a, b = a[both], b[both]
    kind = problem.kind[found.first]
    there, back = problem.pairs[kind[a], kind[b]], problem.pairs[kind[b], kind[a]]
    able = (np.minimum(there, back) > 0) & (np.minimum(speed[a], speed[b]) > 0)
    relative = np.divide(there, speed[a], out=np.zeros_like(there), where=able)
    relative += np.divide(back, speed[b], out=np.zeros_like(back), where=able)
    row, column = np.nonzero(relative > 1.0)
    return Mix(a[row], b[row], column, there[row, column], back[row, column])


def _parts(mix: Mix) -> _Parts:
    variable, twin = np.arange(mix.size), mix.first == mix.second
    other = np.flatnonzero((mix.second >= 0) & ~twin)
    return _Parts(
        np.concatenate([mix.first, mix.second[other]]),
        np.concatenate([variable, other]),
        np.concatenate([1.0 + twin, np.ones(other.size)]),
        np.concatenate([mix.speed + np.where(twin, mix.other_speed, 0.0), mix.other_speed[other]]),
    )


def _limits(problem: Problem, found: Groups, mix: Mix) -> Rows:
    """Row i: the time of all members of group i; then the capacities."""
    parts = _parts(mix)
    time = base.Time(parts.group, parts.variable, parts.time)
    return base.limit_rows(problem, time, found.count, mix.column, problem.scale[found.first][mix.first])


def _level(problem: Problem, found: Groups, mix: Mix, unit: Vector) -> Vector:
    """(v,) max L such that the throughput of each member is at least L * unit, steps/s, where its group runs."""
    parts, best = _parts(mix), _best(found, mix)
    runs = np.flatnonzero(best > 0)
    rows = Rows(
        np.concatenate([parts.group, runs]),
        np.concatenate([parts.variable, np.full(runs.size, mix.size)]),
        np.concatenate([parts.speed / best[parts.group], -(found.count * unit)[runs] / best[runs]]),
        np.zeros(len(best)),
        np.full(len(best), INFINITE),
    )
    program = LinearProgram(np.append(np.zeros(mix.size), 1.0), together(_limits(problem, found, mix), rows))
    return program.solve().x[: mix.size]


def _sum(problem: Problem, found: Groups, mix: Mix, value: Vector) -> Allocation:
    """The largest sum of value * time."""
    if not mix.size:
        return base.nothing(problem, notes=_left_out(found, mix))
    time = _within(problem, found, mix, LinearProgram(value, _limits(problem, found, mix)).solve().x)
    shares, pairs = _dealt(problem, found, mix, time)
    return Allocation(shares, float(value @ time), pairs, _left_out(found, mix))


def _best(found: Groups, mix: Mix) -> Vector:
    best = np.zeros(len(found.first))
    np.maximum.at(best, mix.first, np.where(mix.second < 0, mix.speed, 0.0))
    return best


def _made(problem: Problem, found: Groups, mix: Mix, x: Vector, unit: Vector) -> Allocation:
    """The allocation of a solution; its objective is the least throughput / unit that it gives."""
    time = _within(problem, found, mix, x)
    parts = _parts(mix)
    total = np.bincount(parts.group, parts.speed * time[parts.variable], minlength=len(found.first))
    runs = _best(found, mix) > 0
    objective = float((total[runs] / found.count[runs] / unit[runs]).min())
    shares, pairs = _dealt(problem, found, mix, time)
    return Allocation(shares, objective, pairs, _left_out(found, mix))


def _left_out(found: Groups, mix: Mix) -> tuple[str, ...]:
    return base.left_out((_best(found, mix) > 0)[found.member])


def _within(problem: Problem, found: Groups, mix: Mix, x: Vector) -> Vector:
    """The solution cut to its limits, which a solver keeps to a tolerance only."""
    return cut(np.where(x > LEAST, x, 0.0), _limits(problem, found, mix))


def cut(time: Vector, rows: Rows) -> Vector:
    """All times made shorter by one factor, so that none of the upper limits is broken."""
    used = np.bincount(rows.row, rows.value * time[rows.column], minlength=len(rows.upper))
    over = used > rows.upper
    return np.asarray(time * (rows.upper[over] / used[over]).min(initial=1.0))


def _dealt(problem: Problem, found: Groups, mix: Mix, time: Vector) -> tuple[Matrix, tuple[PairShare, ...]]:
    """The shares of jobs and of pairs of jobs; all members of a group have the same time in everything."""
    alone = mix.second < 0
    shares = np.zeros((len(found.first), problem.n_columns))
    shares[mix.first[alone], mix.column[alone]] = time[alone] / found.count[mix.first[alone]]
    order = np.argsort(found.member, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(found.member))[:-1])
    dealt = []
    used = np.flatnonzero(~alone & (time > 0))
    codes, place = np.unique(mix.first[used] * len(members) + mix.second[used], return_inverse=True)
    amounts = np.zeros((codes.size, problem.n_columns))
    amounts[place, mix.column[used]] = time[used]
    for code, amount in zip(codes.tolist(), amounts, strict=True):
        a, b = divmod(code, len(members))
        dealt += _pairs_within(members[a], amount) if a == b else _pairs_between(members[a], members[b], amount)
    return shares[found.member], tuple(dealt)


def _pairs_between(ones: Ints, others: Ints, amount: Vector) -> list[PairShare]:
    """Each of the ones has the same part of the amount, and each of the others, in as few pairs as that takes.

    The amount is a line, cut in equal parts for the ones and in equal parts for the others.
    Where two parts overlap, these two share.
    """
    c, d = len(ones), len(others)
    cuts = np.unique(np.concatenate([np.arange(c + 1) * d, np.arange(d + 1) * c]))
    a, b = ones[cuts[:-1] // d], others[cuts[:-1] // c]
    return listed(a, b, np.outer(np.diff(cuts) / (c * d), amount))


def _pairs_within(members: Ints, amount: Vector) -> list[PairShare]:
    """A ring: each with its two neighbours, for the same time."""
    c = len(members)
    edges = c if c > 2 else 1
    return listed(members[:edges], np.roll(members, -1)[:edges], np.tile(amount / edges, (edges, 1)))


def listed(a: Ints, b: Ints, shares: Matrix) -> list[PairShare]:
    return list(map(PairShare, np.minimum(a, b).tolist(), np.maximum(a, b).tolist(), shares))
