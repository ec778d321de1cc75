# SPDX-License-Identifier: MIT
"""Sia's program beside every choice there is, the restart factor by hand, and a solver that gives up."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from slurm_pal.allocation import sia as program
from slurm_pal.allocation.linear import LinearProgram, Solution, UnsolvedError
from slurm_pal.allocation.problem import Problem, problem
from slurm_pal.allocation.sia import SiaSettings, Standing, choose, gain, restart_factor, rigid, sia, standing
from slurm_pal.base.errors import UsageError


def random_problem(seed: int, jobs: int = 5) -> tuple[Problem, Standing]:
    draws = np.random.default_rng(seed)
    speeds = draws.uniform(0.5, 4.0, (jobs, 3)) * (draws.random((jobs, 3)) < 0.8)
    scale = draws.choice([1.0, 2.0, 4.0], jobs)
    made = problem(speeds, scale, [2, 3, 4], age_s=draws.uniform(0, 4000, jobs), weight=draws.uniform(1, 2, jobs))
    free, held = np.array([2.0, 3.0, 4.0]), np.full(jobs, -1)
    for job in range(jobs):
        able = [j for j in range(3) if speeds[job, j] > 0 and free[j] >= scale[job]]
        if able and draws.random() < 0.5:
            held[job] = able[0]
            free[able[0]] -= scale[job]
    now = standing(jobs, 150.0)
    return made._replace(held=held), now._replace(restarts=draws.integers(0, 4, jobs).astype(float))


def most(made: Problem, now: Standing, settings: SiaSettings) -> float:
    """The best total of all assignments."""
    options = rigid(made)
    value = gain(made, options, now, settings)
    table = {(int(j), int(c)): float(v) for j, c, v in zip(options.job, options.column, value, strict=True)}
    best = 0.0
    for columns in itertools.product(range(-1, made.n_columns), repeat=made.n_jobs):
        chosen = [(job, column) for job, column in enumerate(columns) if column >= 0]
        used = np.zeros(made.n_columns)
        for job, column in chosen:
            used[column] += made.scale[job]
        if all(one in table for one in chosen) and (used <= made.capacity).all():
            best = max(best, sum(table[one] for one in chosen))
    return best


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("power", [-0.5, 1.0])
def test_the_optimum(seed: int, power: float) -> None:
    made, now = random_problem(seed)
    settings = SiaSettings(power=power, gap=0.0)
    options = rigid(made)
    picked, notes = choose(made, options, now, settings)
    value = gain(made, options, now, settings)
    assert value[picked[picked >= 0]].sum() == pytest.approx(most(made, now, settings)) and notes == ()


def test_a_running_job_stays_where_a_move_gains_little() -> None:
    """Old jobs swap for a gain; young ones, and those that were moved often, do not."""
    made = problem([[1.0, 4.0], [1.0, 1.2]], [1, 1], [1, 1], held=[0, 1], age_s=[1e6, 1e6])
    assert sia(made, standing(2, 60.0)).shares.argmax(axis=1).tolist() == [1, 0]
    young = made._replace(age_s=np.array([30.0, 30.0]))
    assert sia(young, standing(2, 60.0)).shares.argmax(axis=1).tolist() == [0, 1]
    often = standing(2, 60.0)._replace(restarts=np.full(2, 15_000.0))
    assert sia(made, often).shares.argmax(axis=1).tolist() == [0, 1]


def test_the_restart_factor() -> None:
    found = restart_factor(np.array([850.0, 100.0, 0.0]), np.array([1.0, 5.0, 0.0]), np.array([150.0, 150.0, 0.0]))
    assert found.tolist() == [0.7, 0.01, 1.0]


def test_pinned_jobs_keep_their_gpus_and_jobs_that_fit_nowhere_get_a_note() -> None:
    made = problem([[1.0, 0.0], [5.0, 0.0], [1.0, 1.0]], [1, 1, 8], [1, 4], held=[0, -1, -1])
    found = sia(made, standing(3)._replace(pinned=np.array([True, False, False])))
    assert found.shares.tolist() == [[1, 0], [0, 0], [0, 0]]
    assert found.notes == ("1 of 3 jobs fit no column and get no share (rows 2)",)


@pytest.mark.parametrize("seed", range(6))
def test_nobody_waits_beside_free_gpus(seed: int) -> None:
    made, now = random_problem(seed, jobs=12)
    shares = sia(made, now).shares
    free = made.capacity - made.scale @ shares
    for job in np.flatnonzero(~shares.any(axis=1)):
        assert not ((made.throughput[job] > 0) & (free >= made.scale[job])).any()


@dataclass
class GivesUp:
    """A solver that ends without whole numbers, or without anything."""

    whole_only: bool

    def __call__(self, *given: object, integers: int = 0, **further: object) -> object:
        if integers or not self.whole_only:
            return self
        return LinearProgram(*given, integers=integers, **further)  # type: ignore[arg-type]

    def option(self, name: str, value: object) -> None:
        pass

    def solve(self) -> Solution:
        raise UnsolvedError("the linear program was not solved: Time limit reached")


@pytest.mark.parametrize("whole_only", [True, False])
def test_a_solver_that_gives_up(monkeypatch: pytest.MonkeyPatch, whole_only: bool) -> None:
    monkeypatch.setattr(program, "LinearProgram", GivesUp(whole_only))
    said = set()
    for seed in range(12):
        made, now = random_problem(seed, jobs=12)
        found = sia(made, now)
        used: NDArray[np.float64] = made.scale @ found.shares
        assert (used <= made.capacity).all() and found.shares.any()
        said.update(note.partition(":")[0] for note in found.notes if "Time limit" in note)
    assert said == {"the linear program was rounded" if whole_only else "by value per GPU"}


def test_a_search_that_is_ended_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ends(LinearProgram):
        def solve(self) -> Solution:
            found = super().solve()
            return found._replace(ended="Solution limit reached") if not found.dual.any() else found

    monkeypatch.setattr(program, "LinearProgram", Ends)
    notes = {note for seed in range(12) for note in sia(*random_problem(seed, jobs=12)).notes}
    assert "the best found counts: the search ended (Solution limit reached)" in notes


@pytest.mark.parametrize(
    ("field", "value"), [("power", 0.0), ("power", float("nan")), ("waiting", 0.0), ("limit_s", -1.0), ("nodes", 0)]
)
def test_settings_that_mean_nothing(field: str, value: float) -> None:
    made, now = random_problem(1)
    with pytest.raises(UsageError, match=f"sia: {field} is {value}"):
        sia(made, now, SiaSettings()._replace(**{field: value}))
