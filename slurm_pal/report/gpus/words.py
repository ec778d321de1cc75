# SPDX-License-Identifier: MIT
"""What the figures say, in sentences; text and page say the same."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from slurm_pal.base.faults import cure_of
from slurm_pal.base.hostlist import fold
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.report.costs import DAYS, AccountCost
from slurm_pal.report.gpus.cost import Cost, assumption
from slurm_pal.report.gpus.course import SweepChange
from slurm_pal.report.gpus.gpu_report import SMALLEST, GpuReport, flagged
from slurm_pal.report.gpus.heatmap import cell
from slurm_pal.report.gpus.reasons import AGE, FAULT, by_gravity, kind, meaning
from slurm_pal.report.gpus.shown_names import LONGEST_MODEL, cut
from slurm_pal.report.inventory import GpuRow, faulty
from slurm_pal.report.table import age, counted

NOTHING = "-"
WORK = {"A": "compute-bound work", "B": "mixed work", "C": "memory-bound work"}
PLACES = 6  # names of GPUs in one line
LONGEST_LIST = 60  # characters of a host list
WORTH_PLACING = 0.005  # share of the time that is lost by waiting


class Section(NamedTuple):
    """A table with its heading."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def figure(value: float, digits: int = 3) -> str:
    """A number, or `-` where it is undefined."""
    return f"{value:.{digits}f}" if math.isfinite(value) else NOTHING


def when(ts: float) -> str:
    """Date and time, UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ts))


def hours(gpu_h: float) -> str:
    """GPU-hours with the digits that matter."""
    return f"{gpu_h:,.0f}" if gpu_h >= 100 else f"{gpu_h:.1f}"


def place(row: GpuRow) -> str:
    """Where a GPU is: node and Slurm's index."""
    return f"{cut(row.node)}:{row.gpu_index}"


def advice(report: GpuReport) -> list[str]:
    """What to do about it, the most urgent first; there is always something."""
    found = []
    broken = faults(report)
    if broken:
        found.append(
            f"Look at the hardware of {counted(len(broken), 'GPU')}: {_by_fault(broken)}. For the vendor, pal evidence "
            "UUID collects what is known about one."
        )
    found += [f"{_sentence(line.text)}. {_sentence(line.mend)}." for line in report.notices if line.alarm]
    doubtful = [row for row in report.rows if "unconfirmed" in row.flags]
    if doubtful:
        nodes = places(doubtful)
        which, chosen = ("them", "") if nodes.endswith("...") else (nodes, f" -w {nodes}")
        verb = "seems to be far from its peers or its past" if len(doubtful) == 1 else "seem far from peers or past"
        found.append(f"{counted(len(doubtful), 'GPU')} {verb}; confirm {which}: pal-profile run{chosen}")
    missing = [row for row in report.rows if cell(row, "A").slowdown is None]
    old = [row for row in report.rows if "stale" in row.flags and cell(row, "A").slowdown is not None]
    for rows, text in ((missing, "have no score for class A"), (old, "were measured more than 30 days ago")):
        if rows:
            verb = text.replace("have", "has").replace("were", "was") if len(rows) == 1 else text
            nodes = places(rows)
            chosen = "" if nodes.endswith("...") or len(rows) == len(report.rows) else f" --nodelist {nodes}"
            found.append(f"{counted(len(rows), 'GPU')} {verb}: pal-profile run{chosen}")
    found += [one.line for one in report.power if one.cure]
    cost = waiting(report)
    if cost is not None and cost.saved_share >= WORTH_PLACING:
        found.append(
            f"Give {WORK[cost.sensitivity]} GPUs of like speed, by palsub or the submit filter: that saves at most "
            f"{hours(cost.saved_gpu_h)} GPU-hours a day inside nodes{_by_shapes(report)}."
        )
    return found or ["Nothing now. Measure again within 30 days: scores older than that count less every day."]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _by_shapes(report: GpuReport) -> str:
    """What the saving rests on."""
    if report.shapes is None:
        return ", if jobs take half of a node each (jobs that fill nodes gain nothing there)"
    return f", by the jobs that run now ({percent(report.shapes.filling, 0)} of their GPUs are in nodes that one fills)"


def _by_fault(broken: Sequence[GpuRow]) -> str:
    """The GPUs by their gravest flag."""
    found: dict[str, list[str]] = {}
    for row in broken:
        found.setdefault(by_gravity(row.flags)[0], []).append(place(row))
    return "; ".join(f"{flag} {_cut(found[flag], len(found[flag]))}" for flag in by_gravity(found))


def waiting(report: GpuReport) -> Cost | None:
    """The estimate that is shown first: class A, where it is known how jobs share nodes, or GPUs of a node differ."""
    return next((c for c in report.costs if c.sensitivity == "A" and (report.shapes or c.waiting_share > 0)), None)


def changes(report: GpuReport) -> list[str]:
    """What the newest sweep changed."""
    if not report.steps:
        return ["No sweep has been ingested."]
    step = report.steps[-1]
    found = [f"Sweep {step.sweep_id} of {when(step.ts)} measured {counted(step.gpus, 'GPU')}."]
    if not step.compared:
        return [*found, "It is the first one: there is nothing to compare it with."]
    for c in SENSITIVITY_CLASSES:
        churn = step.churn(c)
        if churn is not None:
            n, of = step.changed[c], step.compared[c]
            found.append(f"Class {c}: {n:,} of {of:,} GPUs changed class ({percent(churn)}).")
    return [*found, *_moves(step)]


def _moves(step: SweepChange) -> list[str]:
    found = []
    far = [m for m in step.moves if m.slowdown]
    if far:
        shown = [
            f"{cut(m.node)}:{m.gpu_index} {c} {a:.3f} to {b:.3f}"
            for m in far[:PLACES]
            for c, (a, b) in m.slowdown.items()
        ]
        found.append(f"Slowdown changed by 1 % or more: {counted(len(far), 'GPU')} ({_cut(shown, len(far))}).")
    for word, flags in (("New", "new_flags"), ("No longer", "gone_flags")):
        counts = Counter(flag for m in step.moves for flag in getattr(m, flags))
        if counts:
            found.append(
                f"{word}: " + ", ".join(f"{flag} on {counted(n, 'GPU')}" for flag, n in sorted(counts.items()))
            )
    found += [f"{counted(len(step.new), 'GPU')} seen for the first time."] if step.new else []
    found += [f"{counted(len(step.gone), 'GPU')} no longer seen."] if step.gone else []
    return found


def _cut(texts: Sequence[str], of: int) -> str:
    return ", ".join(texts[:PLACES]) + (", ..." if of > PLACES else "")


def spread_table(report: GpuReport) -> Section:
    header = ("CLASS", "MODEL", "BENCHMARK", "GPUS", "MEDIAN", "WHISKER", "P1", "P99", "MAX", "SD", "REPEATS", "ICC")
    rows = [
        (
            g.group.sensitivity,
            cut(g.group.model, LONGEST_MODEL),
            g.group.benchmark,
            str(g.spread.gpus),
            f"{g.median_value:.4g} {g.group.unit}",
            percent(g.spread.whisker),
            figure(g.spread.p1),
            figure(g.spread.p99),
            figure(g.spread.slowest),
            f"{g.spread.between_sd_pct:.2f} %",
            f"{g.spread.within_cv_pct:.2f} %" if math.isfinite(g.spread.within_cv_pct) else NOTHING,
            figure(g.spread.icc, 2),
        )
        for g in report.measured.groups
    ]
    note = (
        "By the median of each GPU's runs; newer runs count more in its score. CLASS: A is compute-bound work, which "
        "suffers most from a slow GPU, B mixed, C memory-bound. BENCHMARK: gemm multiplies matrices, tblock is a block "
        "of a transformer, hbm moves memory. MEDIAN: in TFLOP/s, 10^12 operations a second, or GB/s, 10^9 bytes a "
        "second. P1, P99, MAX: slowdown that 1 %, 99 % and all of the GPUs do not exceed. WHISKER: slowest minus "
        "fastest GPU without outliers (Tukey). SD: standard deviation between GPUs. REPEATS: that of one GPU's runs, "
        "median over the GPUs. ICC, intraclass correlation: share of all variance that lies between GPUs; near 1 the "
        "benchmark distinguishes the GPUs."
    )
    return Section("How far apart the GPUs are", header, rows, note)


def cost_table(report: GpuReport) -> Section:
    header = ("CLASS", "GPUS", "BEHIND", "GPU-H/DAY", "WAITING", "GPU-H/DAY", "SAVED", "GPU-H/DAY")
    rows = [
        (
            c.sensitivity,
            str(c.gpus),
            percent(c.behind_share, 2),
            hours(c.behind_gpu_h),
            percent(c.waiting_share, 2),
            hours(c.waiting_gpu_h),
            percent(c.saved_share, 2),
            hours(c.saved_gpu_h),
        )
        for c in report.costs
    ]
    return Section(
        "What that costs at full load (estimate)",
        header,
        rows,
        f"GPU-H/DAY: GPU-hours a day. {assumption(report.shapes)}",
    )


def money_table(report: GpuReport, limit: int) -> Section:
    """Accounts with their partitions; an account with several begins with its sum."""
    accounts = report.money.accounts if report.money else ()
    rows = [row for one in accounts[:limit] for row in _of_account(one)]
    more = len(accounts) - limit
    note = (
        "GPU-H: GPU-hours. "
        f"Whole jobs that ran in the last {DAYS} days, as far as sacct shows them to this user, at today's prices in "
        "the site's own units (of billing, where it states no price). A sum leaves out what has no price (-)."
    )
    return Section(
        f"Money by account, last {DAYS} days",
        ("ACCOUNT", "PARTITION", "JOBS", "GPU-H", "COST"),
        rows,
        note + (f" And {counted(more, 'more account')}: pal costs" if more > 0 else ""),
    )


def _of_account(one: AccountCost) -> list[tuple[str, ...]]:
    name = cut(one.account, LONGEST_MODEL) or NOTHING
    parts = [(row.partition, row.jobs, row.gpu_h, row.cost) for row in one.partitions]
    if len(parts) > 1:
        parts.insert(0, ("(all)", one.jobs, one.gpu_h, one.cost))
    return [
        (
            "" if at else name,
            cut(where, LONGEST_MODEL),
            f"{jobs:,}",
            hours(gpu_h),
            NOTHING if cost is None else f"{cost:,.2f}",
        )
        for at, (where, jobs, gpu_h, cost) in enumerate(parts)
    ]


def gpu_table(title: str, rows: Sequence[GpuRow], limit: int) -> Section:
    """GPUs with slowdown and class, their flags in words."""
    header = ("GPU", "MODEL", *SENSITIVITY_CLASSES, "AGE", "FLAGS")
    cells = [
        (
            place(row),
            cut(row.model, LONGEST_MODEL) or NOTHING,
            *(
                f"{row.slowdown[c]:.3f} {row.variability_class.get(c, '?')}" if c in row.slowdown else "?"
                for c in SENSITIVITY_CLASSES
            ),
            age(row.age_s),
            ", ".join(row.flags) or NOTHING,
        )
        for row in rows[:limit]
    ]
    more = len(rows) - limit
    note = (
        "A, B, C: slowdown in work of that class, and the GPU's variability class, v0 the fastest. AGE: of the score."
    )
    return Section(title, header, cells, note + (f" And {more:,} more: pal gpus" if more > 0 else ""))


def slowest_table(report: GpuReport, limit: int) -> Section:
    return gpu_table("Slowest GPUs", report.slowest, limit)


def flagged_table(report: GpuReport, limit: int) -> Section:
    return gpu_table("Flagged GPUs", flagged(report.rows), limit)


def flag_table(report: GpuReport) -> Section:
    """Each flag once: what it means, on how many GPUs, and where."""
    rows = [(f, str(len(gpus)), meaning(f), places(gpus)) for f, gpus in report.flags.items()]
    note = "A slow GPU is not a broken one: flags never drain a node." if rows else ""
    return Section("Flags", ("FLAG", "GPUS", "MEANING", "NODES"), rows, note)


def fault_table(report: GpuReport) -> Section:
    """The GPUs that jobs are kept off, and what to do about each."""
    rows = [(place(row), row.state, cure_of(row.flags, row.node, row.gpu_index)) for row in faulty(report.rows)]
    note = "Jobs are kept off these until a clean measurement. No node is drained." if rows else ""
    return Section("GPUs that were seen to fail", ("GPU", "STATE", "NOTE"), rows, note)


def places(gpus: Iterable[GpuRow], limit: int = LONGEST_LIST) -> str:
    """The nodes as a host list, cut if it is long."""
    text = fold(sorted({row.node for row in gpus}))
    return text if len(text) <= limit else (text[: text.rfind(",", 0, limit) + 1] or text[:limit]) + "..."


def method_table(report: GpuReport) -> Section:
    header = ("BENCHMARK", "CLASS", "DTYPE", "SHAPE", "BACKEND", "DRIVER", "RUNS")
    rows = [
        (m.benchmark, m.sensitivity or "health", m.dtype, m.shape, m.backend, m.driver, str(m.runs))
        for m in report.measured.methods
    ]
    note = (
        "CLASS: of the work that it stands for; health: it has none, and shows faults. DTYPE: format of the numbers, "
        "with their bits. SHAPE: sizes of the arrays. BACKEND: what ran it. DRIVER: the GPU's driver."
    )
    return Section("How it was measured", header, rows, note if rows else "")


def faults(report: GpuReport) -> list[GpuRow]:
    """GPUs whose hardware somebody should check."""
    return [row for row in report.rows if any(kind(f) == FAULT for f in row.flags)]


def noticed(report: GpuReport) -> list[GpuRow]:
    """GPUs with any flag about the GPU itself."""
    return [row for row in report.rows if any(kind(f) != AGE for f in row.flags)]


def caveats(report: GpuReport) -> list[str]:
    """What readers must know before they trust the report."""
    found = []
    c = report.coverage
    if report.measured.emulated:
        found.append("These GPUs are emulated: the figures are made up and say nothing about real hardware.")
    if c.gpus > c.scored:
        n = c.gpus - c.scored
        text = "has no score that counts and is treated" if n == 1 else "have no score that counts and are treated"
        found.append(f"{counted(n, 'GPU')} {text} as a median GPU.")
    if c.stale:
        found.append(f"{counted(c.stale, 'GPU')} measured more than 30 days ago count less every day.")
    if not report.measured.runs and c.scored:
        found.append(
            "Only the published snapshot was available: spread, history and changes need the controller's records."
        )
    found += [f"{one.text}." for one in report.power if not one.cure]
    once = [g for g in report.measured.groups if g.spread.runs_per_gpu < 2]
    if once:
        found.append("Where REPEATS is missing, GPUs were measured only once, so their repeatability is not known.")
    found += [f"{_sentence(line.text)}." for line in report.notices if not line.alarm]
    if report.money is not None:
        found += [f"{_sentence(text)}." for text in report.money.complaints]
        found += [f"Money by account is missing: {report.money.missing}."] if report.money.missing else []
    small = [g for g in report.measured.groups if g.spread.gpus < SMALLEST]
    if small:
        found.append("Groups of fewer than four GPUs have no meaningful median: their slowdowns are 1.0.")
    for reason, n in list(report.measured.refused.items())[:PLACES]:
        found.append(f"{counted(n, 'run')} of the newest sweep {'does' if n == 1 else 'do'} not count: {reason}.")
    found.append("A benchmark is not an application: how much a job suffers depends on its sensitivity class.")
    return found
