# SPDX-License-Identifier: MIT
"""The report as one HTML page: headline numbers, pictures, tables, then how it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from slurm_pal import __version__
from slurm_pal.report.drawing import Picture
from slurm_pal.report.gpus import words
from slurm_pal.report.gpus.history_picture import history
from slurm_pal.report.gpus.names import clean
from slurm_pal.report.gpus.pictures import pictures
from slurm_pal.report.gpus.single import gpu_claim, gpu_sections, gpu_title, known
from slurm_pal.report.gpus.site import Site
from slurm_pal.report.html import inline, rendered
from slurm_pal.report.table import age, unbroken

TEMPLATE = "page.html.j2"
SLOWEST, FLAGGED = 30, 100  # rows shown; pal gpus has all


class Tile(NamedTuple):
    """One number at the top of the page."""

    name: str
    value: str
    detail: str
    verdict: str  # gain, loss or flat: the colour


def page(site: Site) -> str:
    """The page of the site. Whatever comes from records or Slurm is escaped."""
    drawn = pictures(site)
    if site.measured.runs and site.slowest:
        drawn.append(history(site, site.slowest[0].uuid, prefix="Slowest GPU"))
    claims = words.claims(site)
    content = {
        "title": words.heading(site),
        "subtitle": words.coverage_line(site.coverage),
        "claim": claims[0],
        "lines": claims[1:],
        "tiles": tiles(site),
        "advice": words.advice(site),
        "tables": [
            words.spread_table(site),
            words.cost_table(site),
            words.slowest_table(site, SLOWEST),
            words.flag_table(site),
            words.flagged_table(site, FLAGGED),
        ],
        "changes": words.changes(site),
        "methods": words.method_table(site),
        "caveats": words.caveats(site),
    }
    return _page(site, drawn, content)


def gpu_page(site: Site, uuid: str) -> str:
    """The page of one GPU. Raises UsageError when it is not among those shown."""
    content = {
        "title": f"GPU {gpu_title(site, uuid)}",
        "subtitle": words.heading(site),
        "claim": gpu_claim(site, uuid),
        "lines": (),
        "tiles": (),
        "advice": (),
        "tables": gpu_sections(site, uuid),
        "changes": (),
        "methods": words.method_table(site)._replace(rows=[]),
        "caveats": words.caveats(site),
    }
    return _page(site, [history(site, known(site, uuid).uuid)], content)


def _page(site: Site, drawn: Sequence[Picture], content: dict[str, Any]) -> str:
    shown = [(picture, inline(picture)) for picture in drawn if not picture.missing]
    common = {
        "when": words.when(site.now_s),
        "version": __version__,
        "pictures": shown,
        "missing": [picture for picture in drawn if picture.missing],
    }
    return clean(unbroken(rendered(__package__ or "", TEMPLATE, {**common, **content})))


def tiles(site: Site) -> list[Tile]:
    """Coverage, spread, cost and faults in one number each."""
    c = site.coverage
    share = c.scored / c.gpus if c.gpus else 0.0
    detail = f"{c.scored:,} of {c.gpus:,}" + (f", median age {age(c.median_age_s)}" if c.scored else "")
    found = [Tile("GPUs with a score", words.percent(share, 0), detail, "loss" if share < 0.9 else "gain")]
    groups = site.leading
    if not groups:
        found.append(Tile("Spread", words.NOTHING, "nothing to compare", "flat"))
    else:
        name = f"Spread, class {groups[0].group.sensitivity}"
        detail = f"outliers aside; slowest {words.slowest_of(site, groups).slowdown:.2f} x the median"
        far = max(group.spread.whisker for group in groups)
        found.append(Tile(name, words.percent(far), detail, "flat"))
    cost = words.waiting(site)
    value = words.hours(cost.waiting_gpu_h) if cost else words.NOTHING
    detail = f"{words.percent(cost.waiting_share)} of the time, waiting at full load" if cost else "no estimate"
    found.append(Tile("GPU-hours lost a day", value, detail, "flat"))
    faulty, noticed = len(words.faults(site)), len(words.noticed(site))
    detail = f"and {noticed - faulty:,} more with a flag" if noticed > faulty else "no other flags"
    found.append(Tile("GPUs to look at", f"{faulty:,}", detail, "loss" if faulty else "gain"))
    return found
