# SPDX-License-Identifier: MIT
"""The pictures of a replay's report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.report import drawing
from slurm_pal.report.drawing import (
    COLOURS,
    INK,
    NO_DATE,
    PAPER,
    SOFT,
    Axes,
    Figure,
    Kind,
    Picture,
    legend_above,
    ticker,
)
from slurm_pal.report.simulation.study import ParameterSweep, PolicyComparison
from slurm_pal.report.simulation.words import gpus_text, unit_of
from slurm_pal.simulate.metrics import Metrics
from slurm_pal.simulate.result import Replay, Timeline
from slurm_pal.simulate.statistics import Ratio, mean_interval, ratios

Floats = NDArray[np.float64]

BASELINE_COLOUR = SOFT
DASHES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "^", "D", "v", "P")

CDF_POINTS = 250
TIME_BINS = 240


class ReplayPicture(NamedTuple):
    """How one picture is made; `draw` returns why not if its data is absent."""

    name: str
    title: str
    caption: str
    draw: Callable[[PolicyComparison, Figure], str]
    height_in: float = 4.8


def pictures(comparison: PolicyComparison, kinds: Sequence[Kind] = ("svg", "png")) -> list[Picture]:
    """All pictures of the comparison, in the order of the page."""
    return [_picture(plan, comparison, kinds) for plan in PLANS]


def file_names() -> list[str]:
    """Names of all files that `pictures` may give."""
    return [f"{plan.name}.{kind}" for plan in PLANS for kind in NO_DATE]


def _picture(plan: ReplayPicture, comparison: PolicyComparison, kinds: Sequence[Kind]) -> Picture:
    caption = plan.caption.format(baseline=comparison.study.baseline, policy=comparison.study.policy)
    title = plan.title.format(baseline=comparison.study.baseline)
    return drawing.draw(plan.name, title, caption, lambda figure: plan.draw(comparison, figure), kinds, plan.height_in)


class Style(NamedTuple):
    """How a policy looks in every picture."""

    colour: str
    dash: str
    mark: str


def style(comparison: PolicyComparison, policy: str) -> Style:
    """The baseline is grey; the others take the palette in their order, then the same colours with other dashes."""
    if policy == comparison.study.baseline:
        return Style(BASELINE_COLOUR, "--", "o")
    others = [p for p in comparison.policies if p != comparison.study.baseline]
    turn, place = divmod(others.index(policy), len(COLOURS))
    return Style(COLOURS[place], DASHES[turn % len(DASHES)], MARKS[place])


def _ratios(comparison: PolicyComparison, figure: Figure) -> str:
    rows = [
        (row, ratio)
        for row in comparison.rows
        if row.queue == comparison.queue and (ratio := row.ratio.get("mean_jct_s")) is not None
    ]
    if not rows:
        return "no finished pair of runs"
    figure.set_figheight(1.2 + 0.8 * len(rows))
    axes = figure.subplots()
    here = [run for run in comparison.runs if run.queue == comparison.queue]
    for place, (row, ratio) in enumerate(rows):
        look = style(comparison, row.policy)
        single = ratios(here, row.policy, comparison.study.baseline, "mean_jct_s")
        # Spread by rank, not at random, so that equal ratios stay visible and the bytes reproducible.
        offsets = 0.26 + 0.16 * (np.arange(len(single)) % 3) / 2
        axes.scatter(single, place + offsets, s=16, color=look.colour, alpha=0.35, linewidths=0)
        _whisker(axes, ratio, place, look, across=True)
        text = f"{ratio.mean:.2f}" + ("" if ratio.low is None else f"   [{ratio.low:.2f}, {ratio.high:.2f}]")
        shade = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.0, "alpha": 0.9}
        axes.annotate(text, (ratio.mean, place), (0, 11), textcoords="offset points", ha="center", bbox=shade)
    axes.set_yticks(range(len(rows)), [row.policy for row, _ in rows])
    axes.set_ylim(len(rows) - 0.35, -0.55)
    axes.grid(axis="y", visible=False)
    axes.axvline(1.0, color=BASELINE_COLOUR, linestyle="--", linewidth=1.5, zorder=1)
    axes.set_xlabel(f"mean JCT / {comparison.study.baseline}'s (left of 1.00: shorter)")
    return ""


def _whisker(axes: Axes, ratio: Ratio, place: float, look: Style, across: bool) -> None:
    """A point with its 95 % interval, `across` the picture or upright."""
    low, high = (ratio.low, ratio.high) if ratio.low is not None and ratio.high is not None else (ratio.mean,) * 2
    # The interval belongs to the mean but need not be centred on it, nor (bootstrap) contain it.
    span = np.array([[max(0.0, ratio.mean - low)], [max(0.0, high - ratio.mean)]])
    x, y, x_span, y_span = (ratio.mean, place, span, None) if across else (place, ratio.mean, None, span)
    axes.errorbar(
        x,
        y,
        xerr=x_span,
        yerr=y_span,
        color=look.colour,
        marker=look.mark,
        markersize=8,
        capsize=4,
        linestyle="none",
    )


def _jct_cdf(comparison: PolicyComparison, figure: Figure) -> str:
    shares = np.linspace(0.0, 1.0, CDF_POINTS)
    lines = {p: _quantiles(comparison.replays(p), shares) for p in comparison.policies}
    known = {p: line for p, line in lines.items() if line is not None}
    if not known:
        return "no finished run"
    axes = figure.subplots()
    for policy, line in known.items():
        look = style(comparison, policy)
        axes.plot(line, 100 * shares, color=look.colour, linestyle=look.dash, label=policy)
    axes.set_xscale("log")
    _time_ticks(axes, min(line[0] for line in known.values()), max(line[-1] for line in known.values()))
    axes.set_xlabel("job completion time (log scale)")
    axes.set_ylabel("jobs completed within, %")
    axes.set_ylim(0, 101)
    legend_above(axes)
    return ""


def _quantiles(replays: Sequence[Replay], shares: Floats) -> Floats | None:
    if not replays:
        return None
    # A job that takes no time has no place on a log scale: it is drawn at 1 s.
    return np.quantile(np.maximum([o.jct_s for r in replays for o in r.outcomes], 1.0), shares)


TIME_TICKS = (
    *((x, f"{x} s") for x in (1, 10, 30)),
    *((60 * x, f"{x} min") for x in (1, 10, 30)),
    *((3600 * x, f"{x} h") for x in (1, 3, 10)),
    *((86400 * x, f"{x} d") for x in (1, 3, 10, 30, 100)),
)


def _time_ticks(axes: Axes, low_s: float, high_s: float) -> None:
    """Ticks at times that people name, unlike powers of ten of seconds."""
    if high_s > low_s:
        axes.set_xlim(low_s * 0.9, high_s * 1.1)
    names = {float(x): name for x, name in TIME_TICKS if low_s * 0.9 <= x <= high_s * 1.1}
    if not names:  # all within one step
        names = {high_s: f"{high_s:.0f} s"}
    axes.xaxis.set_major_locator(ticker.FixedLocator(list(names)))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: names.get(float(x), "")))
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def _over_time(comparison: PolicyComparison, figure: Figure) -> str:
    known = {p: [r for r in comparison.replays(p) if r.timeline.time_s] for p in comparison.policies}
    known = {p: replays for p, replays in known.items() if replays}
    if not known:
        return "the runs recorded no timeline"
    end_s = max(float(np.mean([_mostly_done_s(r.timeline) for r in replays])) for replays in known.values())
    if end_s <= 0:
        return "the runs took no time"
    edges = np.linspace(0.0, end_s, TIME_BINS + 1)
    unit = unit_of([end_s])
    middles = (edges[:-1] + edges[1:]) / 2 / unit.size_s
    upper, lower = figure.subplots(2, 1, sharex=True)
    for policy, replays in known.items():
        look = style(comparison, policy)
        queued = np.mean([binned(r.timeline, r.timeline.queued_jobs, edges) for r in replays], axis=0)
        busy = np.mean([binned(r.timeline, r.timeline.busy_gpus, edges) / r.n_gpus for r in replays], axis=0)
        for axes, values in ((upper, queued), (lower, 100 * busy)):
            axes.plot(middles, values, color=look.colour, linestyle=look.dash, label=policy, linewidth=1.6)
    upper.set_ylabel("jobs in the queue")
    upper.set_ylim(bottom=0)
    lower.set_ylabel("GPUs in use, %")
    lower.set_ylim(0, 103)
    lower.set_xlabel(f"time since the start of the trace, {unit.name}")
    lower.set_xlim(0, end_s / unit.size_s)
    legend_above(upper)
    return ""


def _mostly_done_s(timeline: Timeline) -> float:
    """When 99 % of the GPU-seconds were spent: one long last job would squeeze all else to the left."""
    times = np.asarray(timeline.time_s, dtype=np.float64)
    spent = np.r_[0.0, np.cumsum(np.diff(times) * np.asarray(timeline.busy_gpus[:-1], dtype=np.float64))]
    return float(times[np.searchsorted(spent, 0.99 * spent[-1])])


def binned(timeline: Timeline, values: Sequence[float], edges: Floats) -> Floats:
    """Time averages of a step function within bins (n + 1 edges, s); 0 before its first step, its last value after.

    Averages, not samples: a queue that fills and empties within a bin must remain visible.
    """
    times = np.asarray(timeline.time_s, dtype=np.float64)
    level = np.asarray(values, dtype=np.float64)
    times, level = np.r_[times, max(times[-1], edges[-1])], np.r_[level, level[-1]]
    area = np.r_[0.0, np.cumsum(np.diff(times) * level[:-1])]  # linear between the steps
    bins: Floats = np.diff(np.interp(edges, times, area, left=0.0)) / np.diff(edges)
    return bins


def _load(comparison: PolicyComparison, figure: Figure) -> str:
    return _sweep(comparison, figure, comparison.study.load, "load")


def _move_cost(comparison: PolicyComparison, figure: Figure) -> str:
    return _sweep(comparison, figure, comparison.study.move_cost, "move cost")


def _sweep(comparison: PolicyComparison, figure: Figure, sweep: ParameterSweep | None, what: str) -> str:
    if sweep is None or not any(sweep.lines.values()):
        return f"no runs with another {what} were made"
    axes = figure.subplots()
    for policy, line in sweep.lines.items():
        look = style(comparison, policy)
        x = [at for at, _ in line]
        axes.plot(x, [r.mean for _, r in line], color=look.colour, linestyle=look.dash, marker=look.mark, label=policy)
        band = [(at, r.low, r.high) for at, r in line if r.low is not None and r.high is not None]
        if band:
            at, low, high = zip(*band, strict=True)
            axes.fill_between(at, low, high, color=look.colour, alpha=0.16, linewidth=0)
    axes.axhline(1.0, color=BASELINE_COLOUR, linestyle="--", linewidth=1.5, label=comparison.study.baseline)
    axes.set_xlabel(sweep.label)
    axes.set_ylabel(f"mean JCT / {comparison.study.baseline}'s")
    legend_above(axes)
    return ""


def _class_slowdown(comparison: PolicyComparison, figure: Figure) -> str:
    classes = comparison.members("slowdown")
    known = [p for p in comparison.policies if _metrics(comparison, p)] if classes else []
    if not known:
        return "no executed work"
    axes = figure.subplots()
    width = 0.8 / len(known)
    for number, policy in enumerate(known):
        look = style(comparison, policy)
        metrics = _metrics(comparison, policy)
        for place, name in enumerate(classes):
            values = [m.slowdown[name] for m in metrics if name in m.slowdown]
            if not values:
                continue
            x = place - 0.4 + width * (number + 0.5)
            mean, low, high = mean_interval(values)
            label = policy if policy not in axes.get_legend_handles_labels()[1] else None
            axes.bar(x, mean - 1, width * 0.9, bottom=1.0, color=look.colour, label=label)
            axes.errorbar(x, mean, [[mean - low], [high - mean]], color=INK, linewidth=1, capsize=3)
            at, side = (high, 1) if mean >= 1 else (low, -1)
            below = "bottom" if side > 0 else "top"
            text = f"{mean:.3f}" if len(known) <= 4 else f"{mean:.2f}"
            axes.annotate(text, (x, at), (0, 3 * side), textcoords="offset points", ha="center", va=below, fontsize=10)
    axes.axhline(1.0, color=BASELINE_COLOUR, linewidth=1)
    axes.set_xticks(range(len(classes)), [f"class {name}" for name in classes])
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.15)
    axes.set_ylabel("slowdown x locality (1.0: ideal)")
    legend_above(axes)
    return ""


def _metrics(comparison: PolicyComparison, policy: str) -> list[Metrics]:
    here = (run for run in comparison.runs if run.queue == comparison.queue and run.complete)
    return [run.metrics for run in here if run.policy == policy]


def _size_jct(comparison: PolicyComparison, figure: Figure) -> str:
    sizes = comparison.members("size_jct_s")
    rows = [row for row in comparison.rows if row.queue == comparison.queue and row.ratio]
    points = {
        row.policy: [(i, r) for i, size in enumerate(sizes) if (r := row.ratio[f"size_jct_s.{size}"]) is not None]
        for row in rows
    }
    if not any(points.values()):
        return "no finished pair of runs"
    axes = figure.subplots()
    step = 0.7 / max(1, len(points))
    for number, (policy, found) in enumerate(points.items()):
        look = style(comparison, policy)
        for place, ratio in found:
            _whisker(axes, ratio, place + step * (number - (len(points) - 1) / 2), look, across=False)
        axes.plot([], [], color=look.colour, marker=look.mark, linestyle="none", label=policy)
    axes.axhline(1.0, color=BASELINE_COLOUR, linestyle="--", linewidth=1.5, label=comparison.study.baseline)
    axes.set_xticks(range(len(sizes)), [gpus_text(size) for size in sizes])
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel(f"mean JCT / {comparison.study.baseline}'s")
    legend_above(axes)
    return ""


PLANS = (
    ReplayPicture(
        "ratio",
        "Mean completion time against {baseline}",
        "Large mark: mean ratio over the pairs of runs, with its 95 % interval. Small dots: single pairs. "
        "An interval that reaches 1.00 shows no clear difference.",
        _ratios,
        4.2,
    ),
    ReplayPicture(
        "jct-cdf",
        "Completion times of all jobs",
        "Share of the jobs that completed within a time, all seeds together. Further left is faster.",
        _jct_cdf,
    ),
    ReplayPicture(
        "over-time",
        "Queue and use of the GPUs over time",
        "Means over the seeds, averaged within 1/240 of the time shown; it ends where the slowest "
        "policy has, on average, spent 99 % of its GPU-hours.",
        _over_time,
        6.2,
    ),
    ReplayPicture(
        "class-slowdown",
        "What the GPUs cost each sensitivity class",
        "Mean slowdown x locality of the executed work, weighted by ideal GPU-seconds; whiskers: 95 % interval "
        "over the seeds, differences between the seeds included (the table below compares pair by pair). "
        "Class A is the most sensitive.",
        _class_slowdown,
    ),
    ReplayPicture(
        "size-jct",
        "Who gains: completion time by job size",
        "Mean ratio to {baseline} within each size group, with 95 % intervals. Below 1.00 is shorter.",
        _size_jct,
    ),
    ReplayPicture(
        "gain-load",
        "Gain against load",
        "Mean ratio to {baseline} at each load; bands: 95 % intervals. Below 1.00 is shorter.",
        _load,
    ),
    ReplayPicture(
        "gain-move-cost",
        "Gain against the cost of a move",
        "Mean ratio to {baseline} for each price of a move; bands: 95 % intervals. Below 1.00 is shorter.",
        _move_cost,
    ),
)
