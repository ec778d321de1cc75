# SPDX-License-Identifier: MIT
"""One HTML page with everything in it: no script, no request, nothing to install to read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from slurm_pal import __version__
from slurm_pal.report.drawing import Picture
from slurm_pal.report.html import inline, rendered
from slurm_pal.report.simulation.files import JOBS, PAGE, SUMMARY, jobs_csv, save, summary_json
from slurm_pal.report.simulation.pictures import file_names, pictures
from slurm_pal.report.simulation.study import PolicyComparison
from slurm_pal.report.simulation.tables import causes, caveats, claim, not_the_scores, table, to_json, what_you_gain
from slurm_pal.report.simulation.words import NOTHING, gpus_text, interval, percent, ratio_text
from slurm_pal.report.table import unbroken
from slurm_pal.simulate.statistics import Ratio, WorstGpus, WorstTenth, verdict

TEMPLATE = "page.html.j2"
BAD_ROWS = 20  # number shown; summary.json has more

VERDICTS = {
    "gain": "clear gain", "loss": "clear loss", "unclear": "no clear change", "cannot tell": "cannot tell",
}  # fmt: skip
TILES = (
    ("Mean completion time", "mean_jct_s"),
    ("Slowest jobs (p99)", "p99_jct_s"),
    ("Whole trace (makespan)", "makespan_s"),
    ("GPU-hours used", "gpu_hours"),
)
GROUP_NAMES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("class_jct_s", "class {}".format),
    ("size_jct_s", gpus_text),
    ("slowdown", "slowdown x locality of class {}".format),
)


class ReplayTile(NamedTuple):
    """One number at the top of the page."""

    name: str
    change: str
    detail: str
    verdict: str  # as Verdict of simulate.statistics
    words: str


def page(comparison: PolicyComparison, drawn: Sequence[Picture]) -> str:
    """The page as HTML. Everything from the trace and the command line is escaped."""
    return rendered(__package__ or "", TEMPLATE, _content(comparison, drawn))


def write_report(folder: str, comparison: PolicyComparison) -> list[str]:
    """The page, its pictures (SVG and PNG), jobs.csv and summary.json; returns their paths.

    Raises UsageError if the folder is not ours or cannot be written.
    """
    drawn = pictures(comparison)
    files: dict[str, str | bytes] = {
        SUMMARY: summary_json(to_json(comparison)),
        JOBS: jobs_csv(comparison.study.runs),
        PAGE: page(comparison, drawn),
        **{f"{picture.name}.{kind}": image for picture in drawn for kind, image in picture.images.items()},
    }
    return save(folder, files, replaced=file_names())


def _content(comparison: PolicyComparison, drawn: Sequence[Picture]) -> dict[str, Any]:
    study, trace = comparison.study, comparison.study.trace
    header, rows = table(comparison)
    said = verdict(comparison.headline.ratio.get("mean_jct_s"))
    return {
        "study": study,
        "version": __version__,
        "claim": unbroken(claim(comparison)),
        "verdict": said,
        "verdict_words": VERDICTS[said],
        "tiles": [_tile(name, comparison.headline.ratio.get(metric)) for name, metric in TILES],
        "header": header,
        "rows": rows,
        "lines": [_split(unbroken(line)) for line in what_you_gain(comparison)[1:]],
        "pictures": [(picture, inline(picture)) for picture in drawn if not picture.missing],
        "missing": [picture for picture in drawn if picture.missing],
        "fairness": _fairness(comparison),
        "causes": causes(comparison),
        "not_the_scores": not_the_scores(comparison),
        "worst": _worst(study.worst) if study.worst else None,
        "bad": trace.bad[:BAD_ROWS],
        "more_bad": max(0, len(trace.bad) - BAD_ROWS),
        "caveats": caveats(comparison),
        "seeds": len({run.seed for run in comparison.runs}),
    }


def _tile(name: str, ratio: Ratio | None) -> ReplayTile:
    if ratio is None:
        return ReplayTile(name, NOTHING, "nothing to compare", "unclear", VERDICTS["unclear"])
    said = verdict(ratio)
    changed = f"{100 * (ratio.mean - 1):+.0f} %".replace("-", "\N{MINUS SIGN}")
    return ReplayTile(name, changed, f"ratio {ratio.mean:.2f}, 95 % interval {interval(ratio)}", said, VERDICTS[said])


def _split(line: str) -> tuple[str, str]:
    """(bold beginning, rest) of a line `Topic: text`; the beginning may be empty."""
    topic, colon, rest = line.partition(": ")
    return (topic, rest) if colon and len(topic) < 30 else ("", line)


def _fairness(comparison: PolicyComparison) -> dict[str, Any]:
    """Header and rows: ratios of each policy within each group, and for the worst users."""
    rows = [row for row in comparison.rows if row.queue == comparison.queue and row.ratio]
    lines = [
        [name_of(member), *(ratio_text(row.ratio[f"{group}.{member}"]) for row in rows)]
        for group, name_of in GROUP_NAMES
        for member in comparison.members(group)
    ]
    for who in ("users", "accounts"):
        found: list[WorstTenth | None] = [getattr(row, f"worst_{who}") for row in rows]
        if any(found):
            lines.append([f"worst tenth of {who}", *map(_tenth, found)])
    return {"header": ["group", *(row.policy for row in rows)], "rows": lines if rows else []}


def _tenth(found: WorstTenth | None) -> str:
    return NOTHING if found is None else f"{found.ratio:.2f} ({found.members} of {found.of})"


def _worst(worst: WorstGpus) -> dict[str, str]:
    return {
        "k": str(worst.k),
        "total": ratio_text(worst.total),
        "capped": ratio_text(worst.capped),
        "share": percent(worst.share),
    }
