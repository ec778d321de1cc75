# SPDX-License-Identifier: MIT
"""pal simulate --cluster TYPE:GPUS,...: allocation policies on unequal GPUs, every move charged."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from slurm_pal.base.errors import Exit, UsageError
from slurm_pal.base.jobs import UNKNOWN_CLASS
from slurm_pal.cli import common, tables
from slurm_pal.cli.simulate.gavel import window_of
from slurm_pal.cli.simulate.run import Output, carry_out, interruption, show_bad_rows
from slurm_pal.cli.simulate.trace_inputs import generated, options_of
from slurm_pal.report.listing import Listing
from slurm_pal.report.simulation.words import unclear_because
from slurm_pal.research.replica.gavel_jobs import GavelCluster, parse_types
from slurm_pal.research.unequal_comparison import (
    Ran,
    UnequalComparison,
    UnequalFigures,
    UnequalTask,
    mean,
    ratio_of,
)
from slurm_pal.research.unequal_jobs import UnequalWorkload, of_rows, of_trace
from slurm_pal.research.unequal_policies import OURS, RENAMED, SLURM
from slurm_pal.research.unequal_rounds import ROUND_S
from slurm_pal.simulate.inputs import AUTO, gavel, read
from slurm_pal.simulate.inputs.collect import TraceCollector
from slurm_pal.simulate.inputs.lines import numbered, opened
from slurm_pal.simulate.known_throughputs import read_known
from slurm_pal.simulate.pool import processors
from slurm_pal.simulate.profiles import profile_of
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.statistics import Ratio, verdict
from slurm_pal.simulate.trace import Trace

DEFAULT_POLICIES = (SLURM, "gavel:max-min", OURS)
HEADER = ("POLICY", "AVG JCT(h)", "P50(h)", "P99(h)", "MAKESPAN(h)", "BOUND(h)", "UTIL", "MOVES", "LOST(GPUh)", "RATIO")
FORMS = (
    ("avg_jct_s", 3600, ".2f"), ("p50_jct_s", 3600, ".2f"), ("p99_jct_s", 3600, ".2f"), ("makespan_s", 3600, ".1f"),
    ("makespan_bound_s", 3600, ".1f"), ("utilisation", 1, ".3f"), ("moves", 1, ".0f"), ("lost_gpu_h", 1, ".1f"),
)  # fmt: skip
"""The figures of a line, the column's unit in their own, and how they are written."""
SHOWN_LATE = 5  # jobs that are named; --json names all


class PolicyLine(NamedTuple):
    """One policy: means over the seeds that have a run."""

    figures: Mapping[str, float]  # fields of Figures, and makespan_bound_s
    ratio: Ratio | None  # of mean completion times to the first policy, over pairs
    runs: int
    late_s: Mapping[str, float]  # of the first seed: job id -> s after its deadline


def run_unequal(options: Mapping[str, Any], command: str) -> Exit:
    """Run and print; the exit code. Raises UsageError and DataError for what cannot be run."""
    names, comparison = _comparison(options)
    output = Output(
        names, command, options["jobs"] or processors(), options["form"],

    )  # fmt: skip
    todo = comparison.tasks()
    results, interrupted = carry_out(comparison, todo, len(comparison.work.jobs), output.workers)
    by_policy = _lines(comparison, results)
    lines = {asked: by_policy[name] for asked, name in names.items() if name in by_policy}
    if lines:
        _show(comparison, lines, output)
    if interrupted:
        common.say(interruption(len(results), len(todo)), err=True)
    return Exit.INTERRUPTED if interrupted else Exit.OK


# -- what is asked ------------------------------------------------------------------------


def _comparison(options: Mapping[str, Any]) -> tuple[dict[str, str], UnequalComparison]:
    if not options["throughputs"]:
        raise UsageError(
            f"a cluster of types, {options['cluster']}, needs --throughputs FILE: steps/s by application and type"
        )
    words = [word.strip() for text in options["policies"] or DEFAULT_POLICIES for word in text.split(",")]
    names = {word: RENAMED.get(word, word) for word in words}
    first, count = 1 if options["seed"] is None else options["seed"], options["seeds"] or 1
    jitter_s = (600.0 if count > 1 else 0.0) if options["jitter"] is None else options["jitter"]
    works = [_priced(work, options["prices"]) for work in _workloads(options, count)]
    found = UnequalComparison(
        work=works[0],
        anew=tuple(works) if options["generate"] is not None else (),
        policies=tuple(dict.fromkeys(names.values())),
        move_cost_s=ReplaySettings().move_cost_s if options["move_cost"] is None else options["move_cost"],
        seeds=tuple(range(first, first + count)),
        jitter_s=jitter_s,
        window=window_of(options["window"]),
        source=None if options["profile"] is None else profile_of(options["profile"]),
    )
    found.check()
    return names, found


def _priced(work: UnequalWorkload, text: str | None) -> UnequalWorkload:
    """`work` with the prices of --prices added to the known ones. Raises UsageError."""
    if text is None:
        return work
    given: dict[str, float] = {}
    for word in text.split(","):
        kind, _, value = word.strip().partition("=")
        try:
            given[kind] = float(value)
        except ValueError:
            given[kind] = 0.0
        if kind not in work.cluster.types or not 0 < given[kind] < math.inf:
            raise UsageError(
                f"--prices {word.strip()!r} must be TYPE=PRICE with a type of {work.cluster.text()} and a price "
                f"above 0, like {work.cluster.types[0]}=1.5"
            )
    return work._replace(price={**work.price, **given})


def _workloads(options: Mapping[str, Any], seeds: int) -> list[UnequalWorkload]:
    """The jobs of a trace of any format, or made-up ones for each seed, on the types of the cluster."""
    path = options["trace"]
    if (path is None) == (options["generate"] is None):
        raise UsageError("give a trace with --trace FILE, or --generate SPEC (--generate '' takes the defaults)")
    cluster = parse_types(options["cluster"])
    known = read_known(options["throughputs"], time.time())
    limit_factor = options["limit_factor"] or ReplaySettings().limit_factor
    if options["locality_penalty"] is not None and not cluster.per_node:
        raise UsageError(
            f"--locality-penalty needs nodes: --cluster {cluster.types[0]}:{cluster.gpus[0]}/GPUS_PER_NODE"
        )
    penalty = options["locality_penalty"] or ReplaySettings().locality_penalty
    if path is None:
        drawn = [_made_up(options["generate"], cluster, number) for number in range(seeds)]
        return [of_trace(trace, cluster, known, limit_factor, penalty) for trace in drawn]
    if _counts_steps(path, options["format_"]):
        return [of_rows(os.path.basename(path), gavel.read_rows(path), cluster, known, limit_factor, penalty)]
    reading = options_of(options)
    # Applications of the table need no line under [apps]; that would only state their class.
    apps = {**{key.application: UNKNOWN_CLASS for key in known}, **reading.site_apps}
    trace = read(path, options["format_"], reading._replace(site_apps=apps))
    show_bad_rows(trace)
    return [of_trace(trace, cluster, known, limit_factor, penalty)]


def _made_up(text: str, cluster: GavelCluster, further: int) -> Trace:
    """Jobs for all GPUs together. Raises UsageError for jobs that are wider than every type."""
    made, most = generated(text, sum(cluster.gpus), further), max(cluster.gpus)
    widest = max((job.shape.total for job in made.jobs), default=0)
    if widest > most:
        raise UsageError(
            f"--generate {text!r} draws jobs of up to {widest} GPUs, and no type of {cluster.text()} has more than "
            f"{most}; draw narrower ones, like --generate gpus={most},load={0.8 * sum(cluster.gpus) / most:.3g}"
        )
    return made


def _counts_steps(path: str, format_: str) -> bool:
    """Whether the trace is one of Gavel's."""
    if format_ != AUTO:
        return format_ == "gavel"
    with opened(path) as stream:
        _, text = next(numbered(stream, TraceCollector(path)), (0, ""))
    return gavel.detects(text)


# -- what is found ------------------------------------------------------------------------


def _lines(comparison: UnequalComparison, results: Mapping[UnequalTask, Ran]) -> dict[str, PolicyLine]:
    """Policy -> its line, of those that have a run."""
    first = comparison.policies[0]
    bounds_s = {seed: comparison.bound_s(seed) for seed in {task.seed for task in results}}
    found = {}
    by_seed: dict[str, dict[int, Ran]] = {name: {} for name in comparison.policies}
    for task, ran in sorted(results.items(), key=lambda one: one[0].seed):
        by_seed[task.policy][task.seed] = ran
    for name, runs in by_seed.items():
        if runs:
            bound_s = fmean(bounds_s[seed] for seed in runs)
            figures = {**mean([run.figures for run in runs.values()])._asdict(), "makespan_bound_s": bound_s}
            late_s = next(iter(runs.values())).late_s
            found[name] = PolicyLine(figures, ratio_of(runs, by_seed[first], bool(comparison.anew)), len(runs), late_s)
    return found


def _show(comparison: UnequalComparison, lines: Mapping[str, PolicyLine], output: Output) -> None:
    rows = [
        [name, *(format(line.figures[field] / unit, form) for field, unit, form in FORMS), _ratio(line.ratio)]
        for name, line in lines.items()
    ]
    listing = Listing(CSV_COLUMNS, [_csv_row(name, line) for name, line in lines.items()], HEADER, rows)
    tables.show(
        output.form, listing, "simulate-unequal",
        lambda _: _body(comparison, lines, output),
        notes=["", *_notes(comparison), *_unsure(lines), *_missed(comparison, lines)],
    )  # fmt: skip


CSV_COLUMNS = (
    "policy",
    *UnequalFigures._fields,
    "makespan_bound_s",
    "runs",
    "ratio_to_first",
    "ratio_low",
    "ratio_high",
)


def _csv_row(name: str, line: PolicyLine) -> dict[str, Any]:
    low, high = _interval(line.ratio) or (None, None)
    ratio = {"ratio_to_first": line.ratio and line.ratio.mean, "ratio_low": low, "ratio_high": high}
    return {"policy": name, **line.figures, "runs": line.runs, **ratio}


def _interval(ratio: Ratio | None) -> list[float] | None:
    """95 % interval of the mean ratio; None with few independent traces or weeks."""
    return None if ratio is None or ratio.low is None or ratio.high is None else [ratio.low, ratio.high]


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    interval = _interval(ratio)
    return f"{ratio.mean:.3f}" + (f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else "")


def _body(comparison: UnequalComparison, lines: Mapping[str, PolicyLine], output: Output) -> dict[str, Any]:
    work = comparison.work
    return {
        "policies": {
            name: {
                **line.figures,
                "ratio_to_first": line.ratio and line.ratio.mean,
                "ratio_interval": _interval(line.ratio),
                "pieces": line.ratio.pieces if line.ratio else 0,
                "verdict": verdict(line.ratio) if line.ratio else None,
                "runs": line.runs,
                "late_s": line.late_s,
            }
            for name, line in lines.items()
        },
        "trace": work.name,
        "jobs": len(work.jobs),
        "cluster": work.cluster.text(),
        "reference_type": work.cluster.types[0] if work.from_run_times else None,
        "jobs_with_estimates": work.guessed,
        "move_cost_s": comparison.move_cost_s,
        "profile": None if comparison.source is None else comparison.source.text(),
        "window": None if comparison.window is None else list(comparison.window),
        "seeds": list(comparison.seeds),
        "jitter_s": comparison.jitter_s,
        "command": output.command,
    }


def _unsure(lines: Mapping[str, PolicyLine]) -> list[str]:
    """A line where nothing can be claimed."""
    known = [line.ratio for line in list(lines.values())[1:] if line.ratio is not None]
    if not known or verdict(known[0]) != "cannot tell":
        return []
    return [f"RATIO: cannot tell a gain or a loss: {unclear_because(known[0])}."]


def _missed(comparison: UnequalComparison, lines: Mapping[str, PolicyLine]) -> list[str]:
    """A line on missed deadlines for each policy; none where no job has a deadline."""
    due = int(np.isfinite(comparison.work.deadline_s).sum())
    if not due:
        return []
    found = []
    for name, line in lines.items():
        worst = [f"job {job} by {late_s / 3600:.2f} h" for job, late_s in list(line.late_s.items())[:SHOWN_LATE]]
        more = ", ..." if len(line.late_s) > SHOWN_LATE else ""
        told = f": {', '.join(worst)}{more}" if worst else ""
        found.append(f"{name}: {line.figures['missed']:.4g} of {_several(due, 'deadline')} missed{told}")
    return found


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _notes(comparison: UnequalComparison) -> Sequence[str]:
    """What was replayed, charged and assumed."""
    work, window = comparison.work, comparison.window
    jobs, seeds = _several(len(work.jobs), "job"), _several(len(comparison.seeds), "seed")
    counted = "" if window is None else f", completion times of jobs {window[0]} to {window[1] - 1}"
    moved = f", submissions moved by up to {comparison.jitter_s:g} s" if comparison.jitter_s else ""
    if len(comparison.anew) > 1:
        seeds += " with a trace each"
    apart = "those of a type are alike" if comparison.source is None else comparison.source.text()
    return [
        f"{work.name}: {jobs} on {work.cluster.text()}{counted}; {seeds}{moved}",
        f"Each move costs {comparison.move_cost_s:g} s on the new GPUs. gavel: in rounds of {ROUND_S:g} s; "
        "nonpreemptive: no running job is stopped.",
        "BOUND: no schedule ends all jobs sooner, even with free moves. RATIO: of mean JCT, to the first policy.",
        f"GPUs: {apart}.",
        *(
            [f"Run times are taken as those on {work.cluster.types[0]}, or on the type that a job asked for."]
            if work.from_run_times
            else []
        ),
        *([f"Jobs whose throughput the table lacks, so that it is estimated: {work.guessed}."] if work.guessed else []),
    ]
