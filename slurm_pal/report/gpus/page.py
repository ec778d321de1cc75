# SPDX-License-Identifier: MIT
"""The report as one HTML page: headline numbers, pictures, tables, then how it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from slurm_pal import __version__
from slurm_pal.report.drawing import Picture
from slurm_pal.report.gpus import opening, words
from slurm_pal.report.gpus.gpu_report import GpuReport
from slurm_pal.report.gpus.history_picture import history
from slurm_pal.report.gpus.pictures import pictures
from slurm_pal.report.gpus.shown_names import clean
from slurm_pal.report.gpus.single import gpu_claim, gpu_sections, gpu_title, known
from slurm_pal.report.html import inline, rendered
from slurm_pal.report.table import age, unbroken

TEMPLATE = "page.html.j2"
SLOWEST, FLAGGED = 30, 100  # rows shown; pal gpus has all
ACCOUNTS = 50  # shown; pal costs has all


class GpuTile(NamedTuple):
    """One number at the top of the page."""

    name: str
    value: str
    detail: str
    verdict: str  # gain, loss or flat: the colour


def page(report: GpuReport) -> str:
    """The page of the site. Whatever comes from records or Slurm is escaped."""
    drawn = pictures(report)
    if report.measured.runs and report.slowest:
        drawn.append(history(report, report.slowest[0].uuid, prefix="Slowest GPU"))
    claims = opening.claims(report)
    content = {
        "title": opening.heading(report),
        "subtitle": opening.coverage_line(report),
        "claim": claims[0],
        "basis": claims[1:-1],
        "lines": claims[1:][-1:],
        "tiles": tiles(report),
        "advice": words.advice(report),
        "tables": [
            words.fault_table(report),
            words.spread_table(report),
            words.cost_table(report),
            words.slowest_table(report, SLOWEST),
            words.flag_table(report),
            words.flagged_table(report, FLAGGED),
            words.money_table(report, ACCOUNTS),
        ],
        "changes": words.changes(report),
        "methods": words.method_table(report),
        "caveats": words.caveats(report),
    }
    return _page(report, drawn, content)


def gpu_page(report: GpuReport, uuid: str) -> str:
    """The page of one GPU. Raises UsageError if it is not among those shown."""
    content = {
        "title": f"GPU {gpu_title(report, uuid)}",
        "subtitle": opening.heading(report),
        "claim": gpu_claim(report, uuid),
        "basis": (),
        "lines": (),
        "tiles": (),
        "advice": (),
        "tables": gpu_sections(report, uuid),
        "changes": (),
        "methods": words.method_table(report)._replace(rows=[]),
        "caveats": words.caveats(report),
    }
    return _page(report, [history(report, known(report, uuid).uuid)], content)


def _page(report: GpuReport, drawn: Sequence[Picture], content: dict[str, Any]) -> str:
    shown = [(picture, inline(picture)) for picture in drawn if not picture.missing]
    common = {
        "when": words.when(report.now_s),
        "version": __version__,
        "pictures": shown,
        "missing": [picture for picture in drawn if picture.missing],
    }
    return clean(unbroken(rendered(__package__ or "", TEMPLATE, {**common, **content})))


def tiles(report: GpuReport) -> list[GpuTile]:
    """Coverage, spread, cost and faults in one number each."""
    c = report.coverage
    share = c.scored / c.gpus if c.gpus else 0.0
    detail = f"{c.scored:,} of {c.gpus:,}" + (f", median age {age(c.median_age_s)}" if c.scored else "")
    found = [GpuTile("GPUs with a score", words.percent(share, 0), detail, "loss" if share < 0.9 else "gain")]
    groups = report.leading
    if not groups:
        found.append(GpuTile("Spread", words.NOTHING, "nothing to compare", "flat"))
    else:
        name = f"Spread, class {groups[0].group.sensitivity}"
        detail = f"outliers aside; slowest {opening.slowest_of(report, groups).slowdown:.2f} x the median"
        far = max(group.spread.whisker for group in groups)
        found.append(GpuTile(name, words.percent(far), detail, "flat"))
    cost = words.waiting(report)
    value = words.hours(cost.waiting_gpu_h) if cost else words.NOTHING
    jobs = "the jobs that run now" if report.shapes else "jobs that fill nodes"
    detail = f"{words.percent(cost.waiting_share)} of the time: {jobs}, at full load" if cost else "no estimate"
    found.append(GpuTile("GPU-hours lost a day", value, detail, "flat"))
    faulty, noticed = len(words.faults(report)), len(words.noticed(report))
    detail = f"and {noticed - faulty:,} more with a flag" if noticed > faulty else "no other flags"
    found.append(GpuTile("GPUs to look at", f"{faulty:,}", detail, "loss" if faulty else "gain"))
    return found
