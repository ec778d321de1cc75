# SPDX-License-Identifier: MIT
"""From plain rows to a DataFrame: what each column is called, holds and means."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from slurm_pal.base.terminal import visible

if TYPE_CHECKING:  # imported where a frame is made: reports and commands start without it
    import pandas as pd

TEXT, COUNT, NUMBER, TRUTH = "string", "Int64", "Float64", "boolean"
TIME, CATEGORY = "datetime64[us, UTC]", "category"
"""The dtypes of all columns. Each can say that a value is missing: NA, for times NaT."""

_MOST_S = 2.5e11  # the year 9892: nobody means a later time
_NOT_A_TIME = -(2**63)

Reader = TypeVar("Reader", bound=Callable[..., Any])


class Column(NamedTuple):
    """One column. `words` are the values of a category, in order; other values that occur come after them."""

    name: str
    dtype: str
    meaning: str
    words: tuple[str, ...] = ()
    ordered: bool = False


def described(columns: Sequence[Column]) -> Callable[[Reader], Reader]:
    """Append the columns to a function's docstring, for help() and the tooltips of notebooks."""

    def completed(function: Reader) -> Reader:
        width = max(len(column.name) for column in columns)
        lines = [f"    {c.name:{width}}  {c.dtype}: {c.meaning}" for c in columns]
        function.__doc__ = "\n".join([function.__doc__ or "", "    Columns:", "", *lines, ""])
        return function

    return completed


def frame(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> pd.DataFrame:
    """Rows, each in the order of the columns, as a DataFrame; None is missing.

    Times are Unix s, of which None and 0 are missing. A category takes None and "" for missing, and texts have
    escapes like `\\x1b` for what a terminal would act on, since users wrote some of them.
    """
    import pandas as pd

    table = list(rows)
    held = [list(one) for one in zip(*table, strict=True)] if table else [[] for _ in columns]
    made = {c.name: _series(c, values) for c, values in zip(columns, held, strict=True)}
    return pd.DataFrame(made, columns=[c.name for c in columns])


def number(value: object) -> float | None:
    """The value as a float; None where it is not a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        found = float(value)
    except OverflowError:  # JSON has whole numbers that no float can hold
        return None
    return None if math.isnan(found) else found


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return None if value is None else visible(str(value))


def _micro_s(value: object) -> int:
    seconds = number(value)
    return round(seconds * 1e6) if seconds and abs(seconds) < _MOST_S else _NOT_A_TIME


_READ: dict[str, Callable[[object], object]] = {
    TEXT: _text, CATEGORY: lambda value: _text(value) or None, COUNT: _count, NUMBER: number, TRUTH: _truth,
    TIME: _micro_s,
}  # fmt: skip


def _series(column: Column, held: Iterable[object]) -> pd.Series[Any]:
    import numpy as np
    import pandas as pd

    values: list[Any] = [_READ[column.dtype](value) for value in held]
    if column.dtype == TIME:
        return pd.Series(np.array(values, dtype="int64").view("M8[us]")).dt.tz_localize("UTC")
    if column.dtype == CATEGORY:
        seen = sorted({value for value in values if value}.difference(column.words))
        words = pd.Index([*column.words, *seen], dtype="str")
        return pd.Series(pd.Categorical(values, categories=words, ordered=column.ordered))
    return pd.Series(values, dtype=column.dtype)
