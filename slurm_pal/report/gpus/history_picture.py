# SPDX-License-Identifier: MIT
"""The history of one GPU: its values over time, against its peers, with the events in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.report import drawing
from slurm_pal.report.drawing import COLOURS, INK, SOFT, Axes, Figure, Kind, Picture, ticker
from slurm_pal.report.gpus.course import SweepChange
from slurm_pal.report.gpus.gpu_report import GpuReport
from slurm_pal.report.gpus.shown_names import LONGEST_MODEL, cut
from slurm_pal.report.table import day
from slurm_pal.variability.finding import Finding
from slurm_pal.variability.params import DAY_S, preference
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import Environment, Group, environment_of, group_of

CONFIDENCE_HALF = 0.01  # ci95_pct is the half-width in percent of the value


class Event(NamedTuple):
    """Something that happened to the GPU between two runs."""

    ts: float  # Unix s
    text: str


def history(report: GpuReport, uuid: str, kinds: Sequence[Kind] = ("svg",), prefix: str = "") -> Picture:
    """The picture of the site's GPU whose history is shown; without one it says why."""
    row = report.gpu(uuid)
    at = f"{cut(row.node)}:{row.gpu_index}" if row else uuid
    own = [r for r in report.measured.own if r.gpu.uuid == uuid]
    told = {c: class_changes(report.steps, uuid, c) for c in SENSITIVITY_CLASSES}
    title = f"{prefix}{': h' if prefix else 'H'}istory of {at} ({uuid})"
    return picture(title, own, report.measured.valid, told, kinds)


def picture(
    title: str,
    own: Sequence[Record],
    valid: Mapping[Group, Sequence[float]],
    told: Mapping[str, Sequence[Event]],
    kinds: Sequence[Kind] = ("svg",),
) -> Picture:
    """The runs of one GPU (`own`, by time) among the values of all `valid` runs, its own included.

    `told`: other events, by sensitivity class.
    """
    caption = (
        "Each dot is a run, with the 95 % interval of its median; grey: where 90 % of the runs of the same kind of GPU "
        "are; hollow: runs that do not count; dashed lines: what changed, classes v0 (fastest), v1, ..."
    )
    return drawing.draw("history", title, caption, lambda figure: _paint(own, valid, told, figure), kinds)


def _paint(
    own: Sequence[Record],
    valid: Mapping[Group, Sequence[float]],
    told: Mapping[str, Sequence[Event]],
    figure: Figure,
) -> str:
    """A panel for each sensitivity class, its preferred benchmark."""
    by_class: dict[str, list[Record]] = {}
    for record in own:
        if record.bench.sensitivity_class and record.result.value > 0:
            by_class.setdefault(record.bench.sensitivity_class, []).append(record)
    if not by_class:
        return "no stored run of it has a value"
    figure.set_figheight(0.7 + 2.5 * len(by_class))
    panels = figure.subplots(len(by_class), 1, squeeze=False, sharex=True)[:, 0]
    happened = events(own)
    for axes, c, colour in zip(panels, sorted(by_class), COLOURS, strict=False):
        bench = min({r.bench.id for r in by_class[c]}, key=preference)
        runs = [r for r in by_class[c] if r.bench.id == bench]
        _peers(axes, valid, runs)
        _runs(axes, runs, colour)
        _events(axes, [*happened, *told.get(c, ())])
        axes.set_ylabel(runs[-1].result.unit)
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.margins(x=0.1)
        axes.set_title(f"class {c}: {cut(bench)}", loc="left", fontsize=11, fontweight="bold")
    _dates(panels[-1], own)
    return ""


def _runs(axes: Axes, runs: Sequence[Record], colour: str) -> None:
    good, bad = [r for r in runs if r.valid], [r for r in runs if not r.valid]
    x = [moment(r.ts_end) for r in good]
    half = [r.result.value * r.result.ci95_pct * CONFIDENCE_HALF for r in good]
    axes.errorbar(
        x, [r.result.value for r in good], half, color=colour, marker="o", markersize=5, capsize=3, linewidth=1
    )
    for r in bad:
        axes.plot([moment(r.ts_end)], [r.result.value], marker="o", markerfacecolor="none", color=colour)
    for r in runs:
        if r.flags:
            text = cut(", ".join(r.flags), LONGEST_MODEL)
            at = (moment(r.ts_end), r.result.value)
            axes.annotate(text, at, (4, -11), textcoords="offset points", fontsize=8, color=INK)


def _peers(axes: Axes, valid: Mapping[Group, Sequence[float]], runs: Sequence[Record]) -> None:
    """Where the runs of GPUs of the same group are, over all sweeps."""
    values = [value for group in {group_of(r) for r in runs} for value in valid.get(group, ())]
    if len(values) > len(runs):
        low, high = np.quantile(values, [0.05, 0.95])
        axes.axhspan(float(low), float(high), color=SOFT, alpha=0.15, linewidth=0)


def events(own: Sequence[Record]) -> list[Event]:
    """Changes of driver, settings and place between runs, by time."""
    found: list[Event] = []
    last: tuple[Environment, str, str, int] | None = None
    for r in own:
        now = (environment_of(r), r.env.driver, r.node_name, r.gpu.slurm_index)
        if last is not None and now != last:
            texts = []
            if now[1] != last[1]:
                texts.append(f"driver {cut(r.env.driver)}")
            if now[2:] != last[2:]:
                texts.append(f"moved to {cut(r.node_name)}:{r.gpu.slurm_index}")
            if now[0]._replace(driver_major="") != last[0]._replace(driver_major=""):
                texts.append("settings changed")
            found += [Event(r.ts_end, ", ".join(texts))] if texts else []
        last = now
    return found


def class_changes(steps: Sequence[SweepChange], uuid: str, sensitivity: str) -> list[Event]:
    """Where the variability class of the GPU changed, and its steps and drifts."""
    found: list[Event] = []
    before: int | None = None
    for step in steps:
        now = step.classes[sensitivity].get(uuid)
        if now is not None and before is not None and now != before:
            found.append(Event(step.ts, f"v{before} to v{now}"))
        before = now if now is not None else before
    known = steps[-1].findings if steps else ()
    return [*found, *findings_of([f for f in known if f.uuid == uuid], sensitivity)]


def findings_of(findings: Sequence[Finding], sensitivity: str) -> list[Event]:
    """The steps, drifts and transients of one GPU in one sensitivity class."""
    mine = [f for f in findings if f.sensitivity == sensitivity]
    return [Event(f.since_s, f"{f.kind} {100 * f.change:+.1f} %") for f in mine]


def _events(axes: Axes, happened: Sequence[Event]) -> None:
    by_day: dict[int, list[Event]] = {}
    for event in happened:
        by_day.setdefault(int(event.ts // DAY_S), []).append(event)
    for same in by_day.values():
        at = moment(same[0].ts)
        axes.axvline(at, color=SOFT, linestyle="--", linewidth=1)
        text = "\n".join(dict.fromkeys(event.text for event in same))
        where = axes.get_xaxis_transform()
        axes.annotate(
            text, (at, 1.0), (3, -2), xycoords=where, textcoords="offset points", va="top", fontsize=8, color=SOFT
        )


def _dates(axes: Axes, own: Sequence[Record]) -> None:
    axes.xaxis.set_major_locator(ticker.MaxNLocator(8, integer=True))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: day(x * DAY_S)))
    if len({r.ts_end for r in own}) == 1:
        axes.set_xlim(moment(own[0].ts_end - DAY_S), moment(own[0].ts_end + DAY_S))
    axes.set_xlabel("day, UTC")


def moment(ts: float) -> float:
    """Days since 1970, UTC."""
    return ts / DAY_S
