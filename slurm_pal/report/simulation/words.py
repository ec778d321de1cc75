# SPDX-License-Identifier: MIT
"""Numbers as people read them: one unit per column, and only claims that an interval supports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from slurm_pal.simulate.statistics import LEAST_PIECES, Ratio, verdict

NOTHING = "-"
UNCLEAR = {"unclear": ", no clear change", "cannot tell": ", cannot tell"}


class Unit(NamedTuple):
    """A unit of time: its short name and its length in s."""

    name: str
    size_s: float

    def text(self, seconds: float | None) -> str:
        """The number alone, for a column whose header names the unit."""
        if seconds is None:
            return NOTHING
        value = seconds / self.size_s
        return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


UNITS = (Unit("d", 86400.0), Unit("h", 3600.0), Unit("min", 60.0), Unit("s", 1.0))
MANY = 2.0  # a unit is used from this many on; days only from ten, since users know hours
DAYS = 10.0


def unit_of(values_s: Iterable[float | None]) -> Unit:
    """One unit for all the values, chosen by the greatest."""
    most = max((v for v in values_s if v is not None), default=0.0)
    return next((u for u in UNITS if most >= u.size_s * (DAYS if u.name == "d" else MANY)), UNITS[-1])


def percent(share: float | None, digits: int = 0) -> str:
    return NOTHING if share is None else f"{100 * share:.{digits}f} %"


def number(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def count(value: float | None) -> str:
    """A mean of counts, with a decimal only if it matters."""
    return NOTHING if value is None else f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def interval(ratio: Ratio | None) -> str:
    """The 95 % interval of the mean ratio; `-` if there is none."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return NOTHING
    return f"{ratio.low:.2f} to {ratio.high:.2f}"


def ratio_text(ratio: Ratio | None) -> str:
    """Mean ratio and interval in brackets."""
    if ratio is None:
        return NOTHING
    return f"{ratio.mean:.2f} ({interval(ratio) if ratio.low is not None else 'no interval'})"


def change(ratio: Ratio, less: str, more: str) -> str:
    """`13 % shorter`, with the caller's words."""
    return f"{100 * abs(1 - ratio.mean):.0f} % {less if ratio.mean <= 1 else more}"


def unclear_because(ratio: Ratio) -> str:
    """Why there is no claim, as a clause."""
    if ratio.low is None or ratio.high is None or ratio.geo_low is None or ratio.geo_high is None:
        return f"{pieces_text(ratio.pieces)}, at least {LEAST_PIECES} are needed"
    if ratio.low <= 1 <= ratio.high:
        return f"95 % interval {interval(ratio)} includes 1.00"
    return (
        f"95 % interval {interval(ratio)}, but that of the geometric mean, "
        f"{ratio.geo_low:.2f} to {ratio.geo_high:.2f}, is not on the same side of 1.00"
    )


def pairs_text(n: int) -> str:
    return "1 pair" if n == 1 else f"{n} pairs"


def pieces_text(n: int) -> str:
    return "1 independent trace or week" if n == 1 else f"{n} independent traces or weeks"


def weight(ratio: Ratio) -> str:
    """What a ratio rests on: pairs of runs, and how many of them are independent."""
    return f"{pairs_text(ratio.n)} of {pieces_text(ratio.pieces)}"


def gpus_text(size: str) -> str:
    """`1 GPU`, `2-4 GPUs`: a size group by its name."""
    return f"{size} GPU" if size == "1" else f"{size} GPUs"


def judged(ratio: Ratio | None) -> str:
    """`0.93 (0.88 to 0.98)`, and words if nothing can be claimed."""
    text = ratio_text(ratio)
    return text if ratio is None else text + UNCLEAR.get(verdict(ratio), "")
