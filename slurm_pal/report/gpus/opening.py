# SPDX-License-Identifier: MIT
"""How the report begins: what it covers, when that was measured, what share of the capacity is lost, and the spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from slurm_pal.report.gpus.cost import HOURS_PER_DAY, Cost
from slurm_pal.report.gpus.figures import GroupFigures
from slurm_pal.report.gpus.gpu_report import GpuReport
from slurm_pal.report.gpus.shown_names import LONGEST_MODEL, cut
from slurm_pal.report.gpus.words import LONGEST_LIST, WORK, hours, percent, place, waiting
from slurm_pal.report.inventory import GpuRow
from slurm_pal.report.table import counted, day


def heading(report: GpuReport) -> str:
    """What the report covers."""
    c = report.coverage
    name = f"{cut(report.cluster, LONGEST_MODEL)}: " if report.cluster else ""
    where = f" ({cut(report.nodes, LONGEST_LIST)})" if report.nodes else ""
    emulated = ", emulated" if report.measured.emulated else ""
    return f"{name}{counted(c.gpus, 'GPU')} of {counted(c.nodes, 'node')}{where}{emulated}"


def claims(report: GpuReport) -> list[str]:
    """The sentences at the top: what share of the capacity is lost, and how far the GPUs differ."""
    if not report.coverage.scored:
        return ["Nothing usable has been measured yet: run pal-profile run."]
    cost = waiting(report)
    lost = _lost_claims(report, cost) if cost is not None and cost.waiting_share > 0 else []
    return [*lost, _spread_claim(report) if report.leading else _snapshot_claim(report)]


def _lost_claims(report: GpuReport, cost: Cost) -> list[str]:
    """The number, and what it rests on."""
    jobs = "jobs like those that run now" if report.shapes else "jobs that fill nodes"
    gpus = cost.waiting_gpu_h / HOURS_PER_DAY
    worth = f", the work of {counted(round(gpus), 'GPU')}" if gpus >= 0.5 else ""
    return [
        f"{percent(cost.waiting_share)} of the GPUs' capacity is lost where jobs wait for a slower GPU of their own: "
        f"{hours(cost.waiting_gpu_h)} GPU-hours a day{worth}.",
        f"This is an estimate, for full load with {WORK[cost.sensitivity]} in {jobs}.",
    ]


def coverage_line(report: GpuReport) -> str:
    """How many scores there are, and from when."""
    c = report.coverage
    parts = [f"Scores: {c.scored:,} of {counted(c.gpus, 'GPU')}"]
    parts += [
        f"{n:,} {word}"
        for n, word in ((c.stale, "stale"), (c.forgotten, "forgotten"), (c.never, "without a usable run"))
        if n
    ]
    return "; ".join([*parts, *filter(None, [measured_when(report.rows, report.now_s)])])


def measured_when(rows: Sequence[GpuRow], now_s: float) -> str:
    """The dates of the measurements, which are not that of the report; "" where nothing was measured."""
    ages_s = [row.age_s for row in rows if row.age_s is not None]
    if not ages_s:
        return ""
    first, half, last = (day(now_s - age_s) for age_s in (max(ages_s), median(ages_s), min(ages_s)))
    if first == last:
        return f"measured on {first}"
    return f"measured from {first} to {last}" + (f", half of them since {half}" if half not in (first, last) else "")


def map_title(cluster: str, rows: Sequence[GpuRow], sensitivity: str, now_s: float) -> str:
    """The heading within a heat map, which people copy out of the page."""
    name = f"{cut(cluster, LONGEST_MODEL)}: " if cluster else ""
    when = measured_when(rows, now_s)
    return f"{name}slowdown in {WORK[sensitivity]} (class {sensitivity})" + (f", {when}" if when else "")


class Slowest(NamedTuple):
    """The slowest GPU of some groups."""

    slowdown: float
    place: str  # "" if it is known only from its runs


def slowest_of(report: GpuReport, groups: Sequence[GroupFigures]) -> Slowest:
    """By the scores that count now; by all runs if there is only one class. At least one group."""
    c = groups[0].group.sensitivity
    mine = {uuid for group in groups for uuid in group.slowdown}
    row = max((row for row in report.rows if row.uuid in mine), key=lambda r: r.slowdown.get(c, 0.0), default=None)
    if row is not None and row.slowdown.get(c, 0.0) > 1.0:
        return Slowest(row.slowdown[c], place(row))
    return Slowest(max(group.spread.slowest for group in groups), "")


def _snapshot_claim(report: GpuReport) -> str:
    """From the published scores alone."""
    models = Counter(row.model for row in report.rows if row.slowdown.get("A"))
    if max(models.values(), default=0) < 2:
        return "No two GPUs of one model were measured: there is nothing to compare."
    slowest = max(row.slowdown.get("A", 0.0) for row in report.rows)
    return (
        f"In {WORK['A']} the slowest of {counted(models.total(), 'GPU')} takes {slowest:.2f} times as long as the "
        "median GPU of its model."
    )


def _spread_claim(report: GpuReport) -> str:
    """Of one group by its name; of several together, since a site of two models must not read about one only."""
    groups = report.leading
    g, slowest = groups[0].group, slowest_of(report, groups)
    far = percent(max(group.spread.whisker for group in groups))
    which = f"the slowest{f', {slowest.place},' if slowest.place else ''} takes {slowest.slowdown:.2f} times as long as"
    if len(groups) == 1:
        who = f"the {groups[0].spread.gpus:,} GPUs of model {cut(g.model, LONGEST_MODEL)}"
        return f"In {WORK[g.sensitivity]} {who} differ by {far}, outliers aside; {which} the median GPU."
    alike = f"GPUs of the same kind differ by up to {far}, outliers aside"
    return f"In {WORK[g.sensitivity]} {alike}; {which} the median GPU of its kind."
