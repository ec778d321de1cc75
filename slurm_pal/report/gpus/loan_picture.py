# SPDX-License-Identifier: MIT
"""What owners needed, what was expected of them, and how many of their nodes were open, by the orders of the tick."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from slurm_pal.base.hostlist import expand
from slurm_pal.journal.journal import LoanOrder
from slurm_pal.report.drawing import COLOURS, INK, SOFT, Figure, legend_above, ticker
from slurm_pal.report.gpus.loan_course import LoanCourse

DAY_S = 86400.0
TICKS_S = (60.0, 300.0, 900.0, 3600.0, 3 * 3600.0, 6 * 3600.0, DAY_S)
MOST_POINTS = 1000
"""Orders that are drawn one by one; more of them are drawn as the largest of each stretch of time."""
BREAK_S = 3600.0
"""Where no order came for so long, and for three times as long as usual, nothing is drawn."""


def loans(course: LoanCourse, figure: Figure) -> str:
    """Lines over time, UTC; a mark below them for each guest that left."""
    if not course.orders:
        return "no order was given"
    axes = figure.subplots()
    orders = _thinned(course.orders)
    at = [order.at_s for order in orders]
    lines = (
        ("needed", COLOURS[0], "-", [float(order.used + order.waiting) for order in orders]),
        ("expected", COLOURS[4], "--", [np.nan if order.predicted is None else order.predicted for order in orders]),
        ("open", COLOURS[2], "-", [float(len(expand(order.open))) for order in orders]),
        ("all", SOFT, ":", [float(order.total) for order in orders]),
    )
    for name, colour, style, values in lines:
        x, y = _broken(at, values)
        axes.step(x, y, where="post", color=colour, linestyle=style, label=name)
    times = [s for s in course.reclaimed_s if s >= at[0]]
    if times:
        name = f"guests that left ({len(times)})"
        axes.plot(
            times,
            [0.0] * len(times),
            linestyle="",
            marker="|",
            markersize=12,
            color=COLOURS[1],
            label=name,
            clip_on=False,
        )
    top = max(order.total for order in orders)
    axes.set_ylim(0, top * 1.05 + 0.5)
    axes.set_ylabel("nodes")
    axes.yaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
    step_s = next((s for s in TICKS_S if at[-1] - at[0] < 8 * s), TICKS_S[-1])
    axes.xaxis.set_major_locator(ticker.MultipleLocator(step_s))
    form = "%d %b" if step_s >= DAY_S else "%H:%M"
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda s, _: datetime.fromtimestamp(s, UTC).strftime(form)))
    axes.set_xlabel(f"{datetime.fromtimestamp(at[0], UTC):%d %b %Y}, UTC" if step_s < DAY_S else "UTC", color=INK)
    legend_above(axes)
    return ""


def _broken(at: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """The same with a gap where no order came for long; the last value lasts no longer than that."""
    x: list[float] = []
    y: list[float] = []
    most_s = max(BREAK_S, 3 * float(np.median(np.diff(at)))) if len(at) > 1 else BREAK_S
    for k, (s, value) in enumerate(zip(at, values, strict=True)):
        x.append(s)
        y.append(value)
        if k + 1 < len(at) and at[k + 1] - s > most_s:
            x += [s + most_s, s + most_s]
            y += [value, np.nan]
    return x, y


def _thinned(orders: Sequence[LoanOrder]) -> list[LoanOrder]:
    """At most about MOST_POINTS: of each stretch of time the order with the highest need, and of these the newest."""
    if len(orders) <= MOST_POINTS:
        return list(orders)
    width_s = (orders[-1].at_s - orders[0].at_s) / MOST_POINTS or 1.0
    kept: dict[int, LoanOrder] = {}
    for order in orders:
        stretch = int((order.at_s - orders[0].at_s) / width_s)
        other = kept.get(stretch)
        if other is None or order.used + order.waiting >= other.used + other.waiting:
            kept[stretch] = order
    return list(kept.values())
