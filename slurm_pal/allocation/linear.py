# SPDX-License-Identifier: MIT
"""Linear programs, some variables of which may be whole numbers, straight to HiGHS: arrays in, arrays out."""

from __future__ import annotations

from typing import NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.problem import Vector
from slurm_pal.base.errors import PalError

INFINITE = float("inf")
PRIMAL = 4  # value of the option "simplex_strategy": faster than the dual simplex where 0 is feasible
OPTIONS: tuple[tuple[str, str | float | bool], ...] = (
    ("output_flag", False), ("threads", 1), ("presolve", "off"), ("solver", "simplex"),
    ("primal_feasibility_tolerance", 1e-9), ("dual_feasibility_tolerance", 1e-9),
    ("small_matrix_value", 1e-12),  # the least that it allows; what is smaller is dropped, by default below 1e-9
)  # fmt: skip
WHOLE: tuple[tuple[str, str | float | bool], ...] = (
    ("presolve", "on"), ("solver", "choose"), ("mip_rel_gap", 0.0), ("mip_abs_gap", 0.0),
)  # fmt: skip
"""On top of OPTIONS, where variables are whole numbers."""


class InfeasibleError(PalError):
    """No point meets all rows of the program."""


class UnsolvedError(PalError):
    """The solver ended without an optimum, for another reason."""


class Rows(NamedTuple):
    """Rows of a program as triplets; lower <= row <= upper."""

    row: NDArray[np.int64]
    column: NDArray[np.int64]
    value: Vector
    lower: Vector
    upper: Vector


class Solution(NamedTuple):
    """An optimum. `dual` has the sign of HiGHS: the change of the objective by the bound of the row."""

    objective: float
    x: Vector
    dual: Vector
    ended: str = ""  # by which limit the search for whole numbers ended; "": by none


_LIMITS = (highspy.HighsModelStatus.kSolutionLimit, highspy.HighsModelStatus.kTimeLimit)


class LinearProgram:
    """One program, which may be solved again after a change: the solver goes on from its last basis."""

    def __init__(
        self, cost: Vector, rows: Rows, *, upper: Vector | None = None, maximise: bool = True, integers: int = 0
    ) -> None:
        """Variables are at least 0 and at most `upper` (default: no limit); the first `integers` are whole numbers.

        With whole numbers there is an exact optimum, too, and no duals.
        """
        self._highs = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in OPTIONS:
            self._highs.setOptionValue(option, value)
        for option, value in WHOLE if integers else ():
            self._highs.setOptionValue(option, value)
        self._pass(cost, rows, upper, maximise, integers)

    def _pass(self, cost: Vector, rows: Rows, upper: Vector | None, maximise: bool, integers: int) -> None:
        n, k = len(cost), len(rows.lower)
        order = np.argsort(rows.row, kind="stable")
        start = np.concatenate(([0], np.cumsum(np.bincount(rows.row, minlength=k)))).astype(np.int32)
        sense = highspy.ObjSense.kMaximize if maximise else highspy.ObjSense.kMinimize
        # As arrays: attribute by attribute, a model takes three times as long, number by number.
        self._highs.passModel(
            n, k, len(order), int(highspy.MatrixFormat.kRowwise), int(sense), 0.0,
            cost, np.zeros(n), np.full(n, INFINITE) if upper is None else upper, rows.lower, rows.upper,
            start, rows.column[order].astype(np.int32), rows.value[order], (np.arange(n) < integers).astype(np.int32),
        )  # fmt: skip

    def option(self, name: str, value: str | float | bool) -> None:
        """Set an option of the solver, e.g. ("solver", "ipm")."""
        self._highs.setOptionValue(name, value)

    def change_value(self, row: int, column: int, value: float) -> None:
        self._highs.changeCoeff(row, column, value)

    def change_row(self, row: int, lower: float, upper: float) -> None:
        self._highs.changeRowBounds(row, lower, upper)

    def change_cost(self, cost: Vector) -> None:
        self._highs.changeColsCost(len(cost), np.arange(len(cost), dtype=np.int32), cost)

    def solve(self) -> Solution:
        """The optimum, or the best whole numbers found when a limit of the search was reached.

        Raises InfeasibleError, or UnsolvedError with the solver's reason.
        """
        self._highs.run()
        status = self._highs.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:  # the dual simplex also calls programs so that just fit
            self._highs.setOptionValue("simplex_strategy", PRIMAL)
            self._highs.clearSolver()
            self._highs.run()
            status = self._highs.getModelStatus()
        words = self._highs.modelStatusToString(status)
        found = self._highs.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        limited = status in _LIMITS and found
        if status != highspy.HighsModelStatus.kOptimal and not limited:
            if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
                raise InfeasibleError(f"no allocation meets all conditions ({words})")
            raise UnsolvedError(f"the linear program was not solved: {words}")
        solution = self._highs.getSolution()
        objective = self._highs.getInfo().objective_function_value
        return Solution(objective, np.array(solution.col_value), np.array(solution.row_dual), words if limited else "")


def together(*parts: Rows) -> Rows:
    """Rows below each other; each part counts its own rows from 0."""
    starts = np.cumsum([0, *(len(part.lower) for part in parts)])[:-1]
    return Rows(
        np.concatenate([part.row + start for part, start in zip(parts, starts, strict=True)]),
        np.concatenate([part.column for part in parts]),
        np.concatenate([part.value for part in parts]),
        np.concatenate([part.lower for part in parts]),
        np.concatenate([part.upper for part in parts]),
    )
