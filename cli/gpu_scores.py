# SPDX-License-Identifier: MIT
"""pal-profile show: scores and history of GPUs."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from slurm_pal.base import config as settings
from slurm_pal.base.config import Config
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.cli import common, tables
from slurm_pal.cli.gpu import METAVAR, Gpu, measured
from slurm_pal.profiling.sweep import gpu_history
from slurm_pal.report.inventory import GPU_COLUMNS
from slurm_pal.report.listing import Listing
from slurm_pal.store.database import open_database
from slurm_pal.variability.finding import Finding
from slurm_pal.variability.records import Record

MAX_FINDINGS = 20
SCORE_COLUMNS = tuple(name for name in GPU_COLUMNS if name not in ("age_s", "in_use"))
RUN_COLUMNS = (
    "uuid", "run_id", "sweep", "ts_s", "node", "index", "bench", "class", "value", "unit", "cv_pct", "ci95_pct",
    "steady", "flags", "valid", "reason",
)  # fmt: skip
"""Columns of the CSV."""
RUN_HEADER = ("TIME", "GPU", "SWEEP", "BENCH", "VALUE", "UNIT", "CV%", "CI95%", "NOTE")
_RUN_SHOWS = {"TIME": "ts_s", "GPU": "index", "CV%": "cv_pct", "CI95%": "ci95_pct", "NOTE": "reason"}
_SCORE_SHOWS = {"GPU": "index", **{c: f"slowdown_{c}" for c in SENSITIVITY_CLASSES}}


@click.command()
@click.argument("name", metavar=f"[NODE|{METAVAR}]", required=False, default="")
@click.option(
    "-n", "--runs", type=click.IntRange(min=0), default=10, show_default=True, help="Number of runs of each GPU."
)
@tables.table_options
@common.verbose_option
def show(name: str, runs: int, form: tables.Form) -> None:
    """Newest scores and history of a node's GPUs or of one GPU; without a name, the scores of all.

    A GPU is NODE:INDEX (the one measured there last), or at least 8 characters of its UUID after GPU-.
    With --csv, one row for each GPU; with a name, one row for each run.
    """
    config = settings.load()
    found = gpu_history.read(config, _named(config, name), runs if name or form.as_json else 0)
    gpus = [gpu.to_json() for gpu in found]
    if name and not form.as_json:
        measured = [{**gpu, **run, "ts_s": run["ts"]} for gpu in gpus for run in gpu["runs"]]
        cells = [_run_cells(run) for gpu in found for run in gpu.runs]
        listing = Listing(RUN_COLUMNS, measured, RUN_HEADER, cells, _RUN_SHOWS)
    else:
        header = ("NODE", "GPU", "UUID", *SENSITIVITY_CLASSES, "FLAGS")
        listing = Listing(SCORE_COLUMNS, gpus, header, list(map(_score_cells, found)), _SCORE_SHOWS)
    text = lambda: _print_history(found, name, runs, form.noheader)  # noqa: E731
    tables.show(form, listing, "history", lambda told: {"gpus": told}, text=text)


def _print_history(found: Sequence[gpu_history.GpuHistory], name: str, runs: int, noheader: bool) -> None:
    header = ["NODE", "GPU", "UUID", *SENSITIVITY_CLASSES, "FLAGS"]
    common.say(*tables.lines(header, [_score_cells(gpu) for gpu in found], noheader))
    happened = [[_when(f.seen_s), f"{g.node}:{g.slot}", *_finding_cells(f)] for g in found for f in g.findings]
    if happened:
        header = ["SEEN", "GPU", "BENCH", "WHAT", "CHANGE", "SINCE", "SIGMAS"]
        common.say("", *tables.lines(header, happened if name else happened[-MAX_FINDINGS:], noheader))
    if name and runs:
        common.say("", *tables.lines(RUN_HEADER, [_run_cells(run) for gpu in found for run in gpu.runs], noheader))


def _named(config: Config, name: str) -> str:
    """A node's name as it is, a GPU's UUID in full. Raises UsageError for an unknown GPU."""
    if not name:
        return name
    with open_database(config.state_dir) as database:
        places = measured(database)
    if name in {place.node for place in places}:
        return name
    meant = ":" in name or any(place.uuid.startswith(name) for place in places)
    return Gpu(name).among(places).uuid if meant else name  # `gpu_history` reports any other name as unknown


def _score_cells(gpu: gpu_history.GpuHistory) -> list[str]:
    score = gpu.score
    cells = [
        f"{score.slowdown[c]:.3f} {score.variability_class.get(c, '?')}" if score and c in score.slowdown else "?"
        for c in SENSITIVITY_CLASSES
    ]
    return [gpu.node, str(gpu.slot), gpu.uuid, *cells, ",".join(score.flags if score else ()) or "-"]


def _finding_cells(finding: Finding) -> list[str]:
    change = f"{100 * finding.change:+.2f} %"
    return [finding.benchmark, finding.kind, change, _when(finding.since_s), f"{finding.sigmas:.1f}"]


def _when(ts: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(ts))


def _run_cells(run: Record) -> list[str]:
    r = run.result
    note = [*run.flags, *([] if run.valid else [f"invalid: {run.reason}"])]
    place = f"{run.node_name}:{run.gpu.slurm_index}"
    figures = [f"{r.value:.5g}", r.unit, f"{r.cv_pct:.3f}", f"{r.ci95_pct:.3f}"]
    return [_when(run.ts_end), place, run.sweep_id, run.bench.id, *figures, ", ".join(note) or "-"]
