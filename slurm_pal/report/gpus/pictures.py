# SPDX-License-Identifier: MIT
"""The pictures of a site's GPUs, each a function from data to a figure that returns why not if data is absent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.report import drawing
from slurm_pal.report.drawing import COLOURS, SOFT, Axes, Figure, Kind, Line2D, Picture, legend_above, ticker
from slurm_pal.report.gpus.figures import GpuPoint, GroupFigures
from slurm_pal.report.gpus.gpu_report import GpuReport
from slurm_pal.report.gpus.loan_picture import loans
from slurm_pal.report.gpus.map_picture import MOST_GPUS, heat_map
from slurm_pal.report.gpus.opening import map_title
from slurm_pal.report.gpus.shown_names import cut
from slurm_pal.report.inventory import GpuRow
from slurm_pal.report.table import counted, day
from slurm_pal.variability.kmeans import Floats

CLASS_COLOURS = dict(zip(SENSITIVITY_CLASSES, COLOURS, strict=False))
RASTER_FROM = 400  # points from which a scatter is drawn as pixels: an outline each would be megabytes
SENSOR_NAMES = {"power_w": "power, W", "temp_c": "temperature, \u00b0C", "sm_clk_mhz": "SM clock, MHz"}
MIN_FOR_CORRELATION = 8
LONGEST_LABEL = 30  # characters of a model's name
MOST_SHOWN = 1.25  # a slowdown that is always within the limits of the distribution


class GpuPicture(NamedTuple):
    """How one picture is made."""

    name: str
    title: str
    caption: str
    paint: Callable[[GpuReport, Figure], str]
    height_in: float = 4.8


def pictures(report: GpuReport, kinds: Sequence[Kind] = ("svg",)) -> list[Picture]:
    """All pictures of the report, in the order of the page."""
    plans = PLANS if report.loans is None else (*PLANS, LOANS)
    return [_drawn(plan, partial(plan.paint, report), kinds) for plan in plans]


def _drawn(plan: GpuPicture, paint: Callable[[Figure], str], kinds: Sequence[Kind]) -> Picture:
    return drawing.draw(plan.name, plan.title, plan.caption, paint, kinds, plan.height_in)


def single_map(
    rows: Sequence[GpuRow], sensitivity: str, kinds: Sequence[Kind], cluster: str = "", now_s: float = 0.0
) -> Picture:
    """The heat map alone. `now_s`: the Unix time to which ages count."""
    plan = next(plan for plan in PLANS if plan.name == f"map-{sensitivity}")
    title = map_title(cluster, rows, sensitivity, now_s)
    return _drawn(plan, partial(heat_map, rows, sensitivity, title=title), kinds)


def map_of(sensitivity: str) -> Callable[[GpuReport, Figure], str]:
    """The heat map of one sensitivity class."""

    def paint(report: GpuReport, figure: Figure) -> str:
        title = map_title(report.cluster, report.rows, sensitivity, report.now_s)
        return heat_map(report.rows, sensitivity, figure, alike_is_enough=True, title=title)

    return paint


def distribution(report: GpuReport, figure: Figure) -> str:
    """One panel per sensitivity class: share of the GPUs up to a slowdown, a line for each model.

    All panels have one scale; otherwise a class with similar GPUs would look like one with different GPUs.
    """
    compared = [g for g in report.measured.groups if g.compared]
    by_class = {c: [g for g in compared if g.group.sensitivity == c] for c in SENSITIVITY_CLASSES}
    known = {c: groups for c, groups in by_class.items() if groups}
    if not known:
        return "fewer than two GPUs of one model were measured"
    colours = _model_colours(known)
    low, high = _limits([g for groups in known.values() for g in groups])
    panels = figure.subplots(1, len(known), squeeze=False, sharey=True, sharex=True)[0]
    for axes, (c, groups) in zip(panels, known.items(), strict=True):
        beyond = sum(_ecdf(axes, group, colours[group.group.model], low, high) for group in groups)
        _boundaries(axes, report, c, groups)
        axes.set_title(f"class {c}", loc="left", fontsize=12, fontweight="bold")
        axes.set_title(f"beyond the edges: {beyond}" if beyond else "", loc="right", fontsize=10, color=SOFT)
        axes.axvline(1.0, color=SOFT, linestyle="--", linewidth=1)
        axes.set_xlabel("slowdown")
        axes.xaxis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.ticklabel_format(axis="x", useOffset=False)
    lines = [Line2D([], [], color=colour, label=cut(model, LONGEST_LABEL)) for model, colour in colours.items()]
    figure.legend(handles=lines, loc="outside upper left", ncols=3, fontsize=10)
    panels[0].set_ylabel("share of the GPUs, %")
    panels[0].set_ylim(0, 101)
    panels[0].set_xlim(low, high)
    return ""


def _limits(groups: Sequence[GroupFigures]) -> tuple[float, float]:
    """The slowdowns to show: of all GPUs but the farthest few, which would squeeze the others together."""
    values = np.concatenate([np.fromiter(g.slowdown.values(), dtype=np.float64) for g in groups])
    q1, q3 = np.quantile(values, [0.25, 0.75])
    far = max(8 * float(q3 - q1), MOST_SHOWN - 1)
    low, high = (float(np.clip(v, 1 - far, 1 + far)) for v in (values.min(), values.max()))
    margin = 0.03 * max(high - low, 0.02)
    return min(low, 0.99) - margin, max(high, 1.01) + margin


def _model_colours(known: Mapping[str, Sequence[GroupFigures]]) -> dict[str, str]:
    """One colour for each model in all panels; the palette repeats if there are more models."""
    models = dict.fromkeys(group.group.model for groups in known.values() for group in groups)
    return {model: COLOURS[i % len(COLOURS)] for i, model in enumerate(models)}


def _ecdf(axes: Axes, group: GroupFigures, colour: str, low: float, high: float) -> int:
    """Draw the line of one group; return how many of its GPUs are outside the limits."""
    values = np.sort(np.fromiter(group.slowdown.values(), dtype=np.float64))
    at = np.unique(np.linspace(0, len(values) - 1, min(len(values), 400)).round().astype(int))
    x, share = values[at], 100.0 * (at + 1) / len(values)
    axes.step([x[0], *x], [0.0, *share], where="post", color=colour, linewidth=1.8)
    axes.plot(values[-1:], [100.0], marker="o", color=colour, markersize=5)
    return int(np.count_nonzero((values < low) | (values > high)))


def _boundaries(axes: Axes, report: GpuReport, sensitivity: str, groups: Sequence[GroupFigures]) -> None:
    """Where one variability class ends and the next begins, by the published GPUs; for the largest group only."""
    mine = groups[0].slowdown
    classes: dict[str, list[float]] = {}
    for row in report.rows:
        if row.uuid in mine:
            classes.setdefault(row.variability_class.get(sensitivity, "?"), []).append(mine[row.uuid])
    ranges = sorted((min(v), max(v)) for name, v in classes.items() if name != "?" and len(v) > 1)
    for (_, end), (start, _) in pairwise(ranges):
        axes.axvline((end + start) / 2, color=SOFT, linestyle=":", linewidth=1)


def causes(report: GpuReport, figure: Figure) -> str:
    """Slowdown against power, temperature and clock; each sensitivity class has its row."""
    found = {c: _points(report, c) for c in SENSITIVITY_CLASSES}
    known = {c: points for c, points in found.items() if points}
    if not known:
        return "no run reported power, temperature or clock"
    figure.set_figheight(0.6 + 2.7 * len(known))
    grid = figure.subplots(len(known), len(SENSOR_NAMES), squeeze=False)
    for row, (c, points) in zip(grid, known.items(), strict=True):
        for axes, (sensor, name) in zip(row, SENSOR_NAMES.items(), strict=True):
            _scatter(axes, points, sensor, CLASS_COLOURS[c])
            axes.set_xlabel(name)
        row[0].set_ylabel(f"class {c}: slowdown")
    return ""


def _points(report: GpuReport, sensitivity: str) -> list[GpuPoint]:
    """The points of the largest group: other models have other clocks and powers."""
    groups = [g for g in report.measured.groups if g.group.sensitivity == sensitivity and g.compared]
    return [p for p in groups[0].points if p.sensors] if groups else []


def _scatter(axes: Axes, points: Sequence[GpuPoint], sensor: str, colour: str) -> None:
    known = [(p.sensors[sensor], p.slowdown) for p in points if sensor in p.sensors]
    if not known:
        axes.text(0.5, 0.5, "unknown", transform=axes.transAxes, ha="center", color=SOFT)
        axes.set_xticks([])
        return
    x, y = np.array(known).T
    size = 14.0 if len(known) <= RASTER_FROM else 5.0
    axes.scatter(x, y, s=size, color=colour, alpha=0.5, linewidths=0, rasterized=len(known) > RASTER_FROM)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(4))
    r = correlation(x, y)
    text = "all alike" if r is None else f"rank correlation {r:+.2f}".replace("-", "\N{MINUS SIGN}")
    axes.set_title(text if len(known) >= MIN_FOR_CORRELATION else "", loc="right", fontsize=10, color=SOFT)


def correlation(x: Iterable[float], y: Iterable[float]) -> float | None:
    """Spearman's rank correlation; None if one of the two does not vary."""
    a, b = (_ranks(np.asarray(list(v), dtype=np.float64)) for v in (x, y))
    if len(a) < 2 or not a.std() or not b.std():
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Floats) -> Floats:
    """Rank of each value, equal ones share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[which], dtype=np.float64)


def churn(report: GpuReport, figure: Figure) -> str:
    """Share of the GPUs that changed class with each sweep."""
    shown = [step for step in report.steps if any(step.churn(c) is not None for c in SENSITIVITY_CLASSES)]
    if not shown:
        return "needs two sweeps of the same GPUs"
    if not any(n for step in shown for n in step.changed.values()):
        return f"no GPU changed class with the last {counted(len(shown), 'sweep')}"
    axes = figure.subplots()
    width = 0.8 / len(SENSITIVITY_CLASSES)
    for number, c in enumerate(SENSITIVITY_CLASSES):
        x = np.arange(len(shown)) - 0.4 + width * (number + 0.5)
        heights = [100 * (step.churn(c) or 0.0) for step in shown]
        axes.bar(x, heights, width * 0.9, color=CLASS_COLOURS[c], label=f"class {c}")
        for at, height, step in zip(x, heights, shown, strict=True):
            text = str(step.changed.get(c, 0))
            axes.annotate(text, (at, height), (0, 2), textcoords="offset points", ha="center", fontsize=9)
    axes.set_xticks(range(len(shown)), [f"{day(step.ts)}\n{step.gpus} GPUs" for step in shown])
    axes.tick_params(axis="x", labelsize=10)
    axes.set_ylabel("GPUs that changed class, %")
    axes.set_ylim(bottom=0, top=max(1.0, axes.get_ylim()[1]))
    axes.set_xlim(-0.6, max(len(shown), 3) - 0.4)
    axes.grid(axis="x", visible=False)
    legend_above(axes)
    return ""


def lent(report: GpuReport, figure: Figure) -> str:
    """The course of loans; a page without orders does not have this picture."""
    return loans(report.loans, figure) if report.loans is not None else "no order was given"


PLANS = (
    *(
        GpuPicture(
            f"map-{c}",
            f"Every GPU, class {c}" + (" (compute-bound, suffers most)" if c == "A" else ""),
            f"One square for each GPU: nodes from left to right, GPU indexes from top to bottom; with more than "
            f"{MOST_GPUS:,} GPUs one for each node, which is its slowest GPU. Slowdown is time against the median GPU "
            "of the model: blue is faster, orange and brown slower; hatched: unknown; a ring marks a flag.",
            map_of(c),
        )
        for c in SENSITIVITY_CLASSES
    ),
    GpuPicture(
        "distribution",
        "How far apart the GPUs are",
        "Share of a model's GPUs up to each slowdown; the steeper, the more alike. The dashed line is the "
        "median GPU, the dot the slowest; dotted lines are the boundaries of the variability classes of the most "
        "frequent model.",
        distribution,
        4.4,
    ),
    GpuPicture(
        "causes",
        "Slowdown against power, temperature and clock",
        "SM clock: that of the streaming multiprocessors, which compute. "
        "One dot for each GPU of the most frequent model, from its newest usable run. A rank correlation near +1 or "
        "\N{MINUS SIGN}1 means that the two go together; it does not say which is the cause.",
        causes,
    ),
    GpuPicture(
        "churn",
        "How stable the classes are",
        "Share of the GPUs whose variability class changed with a sweep; the number above a bar counts them. Classes "
        "that change often are not worth relying on.",
        churn,
        4.0,
    ),
)
LOANS = GpuPicture(
    "loans",
    "Nodes of owners, lent to guests",
    "By the orders of the tick: how many nodes owners used and waited for, how many they were expected to need, and "
    "how many were open to guests. A mark on the axis is a guest that had to leave. Nothing is drawn where no order "
    "came for long.",
    lent,
    4.4,
)
"""Drawn where there are orders."""
