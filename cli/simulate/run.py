# SPDX-License-Identifier: MIT
"""Run an experiment with a progress bar, and print and write its results.

For pal simulate with any source of jobs: a trace, the generator, or the site itself.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, TypeVar

from slurm_pal.base.errors import Exit, UsageError
from slurm_pal.base.files import write_atomic
from slurm_pal.cli import common
from slurm_pal.cli import tables as printing
from slurm_pal.report.listing import Listing
from slurm_pal.report.simulation.assemble import AssembledStudy, assemble, body, job_tables
from slurm_pal.report.simulation.files import PAGE, claim_folder
from slurm_pal.report.simulation.study import PolicyComparison, compare
from slurm_pal.report.simulation.tables import (
    CSV_COLUMNS,
    causes,
    caveats,
    claim,
    csv_rows,
    not_the_scores,
    table,
    what_you_gain,
)
from slurm_pal.report.simulation.words import percent, ratio_text
from slurm_pal.simulate.experiment import Experiment, in_order, tasks
from slurm_pal.simulate.inputs import describe
from slurm_pal.simulate.pool import Watch, Work, run_all
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.statistics import WorstGpus
from slurm_pal.simulate.trace import Trace, TraceJob

Task = TypeVar("Task")
Result = TypeVar("Result")

BAD_ROWS = 10
REDRAW_S = 0.1


class Output(NamedTuple):
    """Where results go, and in which form. `names`: policy as asked for -> policy that is run."""

    names: Mapping[str, str]
    command: str = ""
    workers: int = 1
    form: printing.Form = printing.Form()
    out: str | None = None  # folder of the report
    jobs_out: str | None = None  # folder of a CSV per policy
    gain_lines: bool = False  # say what would be gained in five lines, not in one


def run_and_report(
    experiment: Experiment, output: Output, notes: Sequence[str] = (), too_wide: Sequence[TraceJob] = ()
) -> Exit:
    """Check, run, print, write; the exit code. On Ctrl-C the same with the complete runs.

    `notes` are sentences on the trace and the cluster that belong to the result. Raises
    UsageError for what cannot be run or written, before anything is run.
    """
    experiment.check()
    claim_folders(output)
    todo = tasks(experiment)
    jobs = sum(len(experiment.traces[task.trace].jobs) for task in todo)
    results, interrupted = carry_out(experiment, todo, jobs // max(1, len(todo)), output.workers)
    done = in_order(experiment, results)
    notes = (*notes, *([interruption(len(done), len(todo))] if interrupted else []))
    found = assemble(experiment, done, notes, output.command)
    if interrupted and not _comparable(found):
        common.say(f"{notes[-1]} Nothing to compare yet.", err=True)
        return Exit.INTERRUPTED
    show(found, output, too_wide)
    write(found, output)
    return Exit.INTERRUPTED if interrupted else Exit.OK


def carry_out(
    work: Work[Task, Result], todo: Sequence[Task], jobs: int, workers: int
) -> tuple[dict[Task, Result], bool]:
    """Task -> result of all that was completed, and whether Ctrl-C cut it short."""
    results: dict[Task, Result] = {}
    try:
        with bar(jobs * len(todo)) as watch, closing(run_all(work, todo, workers, watch)) as finished:
            for task, result in finished:
                results[task] = result
    except KeyboardInterrupt:
        return results, True
    return results, False


def interruption(done: int, of: int) -> str:
    return f"Interrupted: {done} of {of} replays are complete, and only they count."


def _comparable(found: AssembledStudy) -> bool:
    """Whether both sides of the claim have a complete run."""
    return {found.study.policy, found.study.baseline} <= {run.policy for run in found.study.runs if run.outcomes}


@contextmanager
def bar(total: int, what: str = "jobs") -> Iterator[Watch]:
    """A progress bar of `what` on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        line = progress.add_task("", total=total)
        last_s = 0.0

        def watch(done: int) -> None:
            nonlocal last_s
            now_s = time.monotonic()
            if now_s - last_s >= REDRAW_S:
                last_s = now_s
                progress.update(line, completed=done)

        yield watch


# -- printing ---------------------------------------------------------------------------


def show_bad_rows(trace: Trace) -> None:
    """Rows of the trace that are not replayed, on standard error."""
    for row in trace.bad[:BAD_ROWS]:
        common.say(f"line {row.line}: {row.reason}", err=True)
    if len(trace.bad) > BAD_ROWS:
        common.say(f"... and {len(trace.bad) - BAD_ROWS} more bad rows; --json has all", err=True)
    for reason, count in trace.skipped.items():
        common.say(f"not replayed: {count} x {reason}", err=True)


def show(found: AssembledStudy, output: Output, too_wide: Sequence[TraceJob] = ()) -> None:
    """The comparison on standard output."""

    def answer() -> dict[str, Any]:
        told = body(found, output.names, too_wide)
        del told["schema"]
        return told

    comparison = compare(found.study)
    shown = Listing(CSV_COLUMNS, csv_rows(comparison), *table(comparison))
    text = lambda: _print_text(found, comparison, output)  # noqa: E731
    printing.show(output.form, shown, "simulate", lambda told: answer(), text=text)


def _print_text(found: AssembledStudy, comparison: PolicyComparison, output: Output) -> None:
    printing.say_notes([_setting(found), ""])
    common.say(*printing.lines(*table(comparison), output.form.noheader))
    said = caveats(comparison)
    printing.say_notes([
        "",
        *(what_you_gain(comparison) if output.gain_lines else [f"Completion time: {_claimed(comparison)}"]),
        *cause_lines(comparison),
        *_worst_lines(found.worst),
        "", "Charged and assumed:", *(f"  {name:16}  {value}" for name, value in found.study.charged),
        *(["", "Beware:", *(f"  {line}" for line in said)] if said else []),
    ])  # fmt: skip


def _setting(found: AssembledStudy) -> str:
    study = found.study
    figures = describe(study.trace)
    seeds = len({run.seed for run in study.runs})
    several = f" in {study.trace.of} traces" if study.trace.of > 1 else ""
    return (
        f"{study.trace.name}: {figures['jobs']} jobs{several}, {figures['gpu_hours']:.0f} GPU-hours on median GPUs, on "
        f"{study.cluster}; {seeds} seed{'s' * (seeds != 1)}, queue {study.queue}"
    )


def _claimed(comparison: PolicyComparison) -> str:
    if comparison.study.policy == comparison.study.baseline:
        return "one policy only: nothing is compared."
    return claim(comparison)


def cause_lines(comparison: PolicyComparison) -> list[str]:
    """What the ratio is made of, and whether the scores have a share in it; nothing where that was not asked for."""
    rows = causes(comparison)
    if not rows:
        return []
    wide = max(len(ratio) for _, ratio, _ in rows)
    lines = [f"  {name:9}  {ratio:{wide}}  {text}" for name, ratio, text in rows]
    return [
        f"Made of (ratios of {comparison.study.policy} by placebo runs, which multiply to its own):",
        *lines,
        *filter(None, [not_the_scores(comparison)]),
    ]


def _worst_lines(worst: Sequence[WorstGpus]) -> list[str]:
    """The share of the gain from the slowest GPUs, always beside the total."""
    found = []
    for w in worst:
        which = "the slowest GPU" if w.k == 1 else f"the {w.k} slowest GPUs"
        share = "no clear gain to share" if w.share is None else f"{percent(w.share)} of the gain"
        found.append(f"From {which}: {share} (ratio {ratio_text(w.total)} in all, {ratio_text(w.capped)} without).")
    return found


# -- writing ----------------------------------------------------------------------------


def claim_folders(output: Output) -> None:
    """Make the folders. Raises UsageError at once where they cannot be written."""
    for folder, make in ((output.out, claim_folder), (output.jobs_out, lambda name: os.makedirs(name, exist_ok=True))):
        try:
            if folder:
                make(folder)
        except OSError as error:
            raise UsageError(f"cannot write to {folder}: {error.strerror}; name another folder") from None


def write(found: AssembledStudy, output: Output) -> None:
    """The report's folder and the tables of jobs, where asked for; their place is shown on standard error."""
    if output.out:
        from slurm_pal.report.simulation.page import write_report

        write_report(output.out, compare(found.study))
        common.say(f"report: {os.path.join(output.out, PAGE)}", err=True)
    if output.jobs_out:
        write_jobs(output.jobs_out, found.study.runs, output.names)


def write_jobs(folder: str, runs: Sequence[Replay], names: Mapping[str, str]) -> None:
    """NAME.csv for each policy. Raises UsageError when they cannot be written."""
    try:
        for name, text in job_tables(runs, names).items():
            write_atomic(os.path.join(folder, name), text)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; name another folder") from None
