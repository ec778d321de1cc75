# SPDX-License-Identifier: MIT
"""The report as a page of text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from slurm_pal.report.gpus import opening, words
from slurm_pal.report.gpus.gpu_report import GpuReport
from slurm_pal.report.gpus.shown_names import clean
from slurm_pal.report.gpus.single import gpu_claim, gpu_sections, gpu_title
from slurm_pal.report.gpus.words import Section
from slurm_pal.report.table import columns, unbroken

SLOWEST, FLAGGED, ACCOUNTS = 10, 10, 10


def text(report: GpuReport, width: int = 80) -> list[str]:
    """Lines of the report; paragraphs fit `width`, tables are as wide as their cells."""
    lines = [opening.heading(report), f"as of {words.when(report.now_s)}", ""]
    lines += _paragraphs(opening.claims(report), width)
    lines += _paragraphs([opening.coverage_line(report)], width)
    lines += ["", "WHAT TO DO", *_bullets(words.advice(report), width)]
    for section in (
        words.fault_table(report),
        words.spread_table(report),
        words.cost_table(report),
        words.slowest_table(report, SLOWEST),
        words.flag_table(report),
        words.flagged_table(report, FLAGGED),
        words.money_table(report, ACCOUNTS),
    ):
        lines += table(section, width)
    lines += ["", "SINCE THE PREVIOUS SWEEP", *_paragraphs(words.changes(report), width)]
    lines += table(words.method_table(report), width)
    return [clean(line) for line in (*lines, "", "CAVEATS", *_bullets(words.caveats(report), width))]


def gpu_text(report: GpuReport, uuid: str, width: int = 80) -> list[str]:
    """The same for one GPU: where it stands, its flags, its runs."""
    lines = [gpu_title(report, uuid), f"as of {words.when(report.now_s)}", "", *wrapped(gpu_claim(report, uuid), width)]
    for section in gpu_sections(report, uuid):
        lines += table(section, width)
    return [clean(line) for line in lines]


def table(section: Section, width: int) -> list[str]:
    """Heading, columns and note; nothing without rows."""
    if not section.rows:
        return []
    note = _paragraphs([section.note], width) if section.note else []
    return ["", section.title.upper(), *columns(section.header, section.rows), *note]


def _paragraphs(texts: Sequence[str], width: int) -> list[str]:
    return [line for text in texts for line in wrapped(text, width)]


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most `width`; a number and its percent sign stay together."""
    lines = textwrap.wrap(unbroken(text), width, initial_indent=first, subsequent_indent=rest)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _bullets(texts: Sequence[str], width: int) -> list[str]:
    return [line for text in texts for line in wrapped(text, width, "- ", "  ")]
