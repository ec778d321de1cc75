# SPDX-License-Identifier: MIT
"""What was measured: runs of benchmarks, and the sweeps that they belong to."""

from __future__ import annotations

import datetime
import math
import os
from typing import TYPE_CHECKING, Any

from slurm_pal.base import config as settings
from slurm_pal.base.errors import DataError, UsageError, one_line
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.frames.columns import CATEGORY, COUNT, NUMBER, TEXT, TIME, TRUTH, Column, described, frame, number
from slurm_pal.frames.missing import warn
from slurm_pal.profiling.sweep import sweep_state
from slurm_pal.profiling.sweep.lock import at_work
from slurm_pal.store.database import SweepSpan, database_path, open_database
from slurm_pal.variability.records import Record

if TYPE_CHECKING:
    import pandas as pd

GIB = 2**30
SENSORS = {"sm_clock_mhz": "sm_clk_mhz", "power_w": "power_w", "temperature_c": "temp_c"}
"""Column -> the sensor whose median over the run it holds."""
UNITS = ("TFLOP/s", "GB/s", "steps/s", "us")

RECORDS = (
    Column("run_id", TEXT, "id of the run; ids sort by time"),
    Column("sweep", TEXT, "id of the sweep"),
    Column("start_time", TIME, "begin of the run"),
    Column("end_time", TIME, "end of the run"),
    Column("node", TEXT, "node, as Slurm names it"),
    Column("index", COUNT, "Slurm's index of the GPU then"),
    Column("uuid", TEXT, "UUID of the GPU: it stays when the GPU goes to another slot"),
    Column("vendor", TEXT, "vendor of the GPU"),
    Column("model", TEXT, "model of the GPU"),
    Column("memory_gib", NUMBER, "memory of the GPU (GiB)"),
    Column("vbios", TEXT, "version of the GPU's firmware"),
    Column("driver", TEXT, "version of the driver"),
    Column("backend", TEXT, "what ran the benchmark: torch, cupy, driver, emu, ..."),
    Column("power_limit_w", NUMBER, "power limit (W)"),
    Column("bench", TEXT, "benchmark"),
    Column("sensitivity", CATEGORY, "sensitivity class that it stands for; NA: node health", SENSITIVITY_CLASSES),
    Column("method", TEXT, "hash of the method: only runs of one method compare"),
    Column("mode", CATEGORY, "all GPUs of the node at once, or one by one", ("concurrent", "solo")),
    Column("value", NUMBER, "median over the blocks of the run, in `unit`"),
    Column("unit", CATEGORY, "unit of value; larger is faster, unless it is a time", UNITS),
    Column("cv_pct", NUMBER, "coefficient of variation of the blocks, joined to a second (%)"),
    Column("ci95_pct", NUMBER, "half width of the 95 % interval of value (%)"),
    Column("blocks", COUNT, "number of blocks"),
    Column("block_s", NUMBER, "length of a block (s)"),
    Column("warmup_s", NUMBER, "warm-up before the first block (s)"),
    Column("steady", TRUTH, "whether the blocks had settled"),
    Column("sm_clock_mhz", NUMBER, "clock of the multiprocessors, median of the run (MHz)"),
    Column("power_w", NUMBER, "power, median of the run (W)"),
    Column("temperature_c", NUMBER, "temperature, median of the run (degrees C)"),
    Column("job_id", COUNT, "Slurm job that measured"),
    Column("valid", TRUTH, "whether the run counts"),
    Column("reason", TEXT, "why it does not; empty: it does"),
    Column("flags", TEXT, "flags of the run, joined by commas; empty: none"),
)


@described(RECORDS)
def records(since: datetime.datetime | str | float | None = None) -> pd.DataFrame:
    """One row for each run of a benchmark on a GPU, by time, from the database STATE_DIR/pal.db.

    `since`: only runs that ended then or later; a datetime, a text of ISO 8601 ("2026-11-20", UTC where it names
    no zone), or Unix s. Before the first sweep the frame is empty. Raises UsageError for another `since`, DataError
    when the database cannot be read, BusyError, ConfigError.
    """
    since_s = 0.0 if since is None else unix_s(since)
    state_dir = settings.load().state_dir
    if not os.path.exists(database_path(state_dir)):
        return frame(RECORDS, [])
    with open_database(state_dir) as database:
        return frame(RECORDS, map(_record, database.by_time(since_s)))


def unix_s(moment: datetime.datetime | str | float) -> float:
    """Unix s of a moment. Raises UsageError."""
    wrong = UsageError(f"since {moment!r} must be a datetime, an ISO 8601 text like 2026-11-20, or Unix seconds")
    if isinstance(moment, str):
        try:
            moment = datetime.datetime.fromisoformat(moment)
        except ValueError:
            raise wrong from None
    if isinstance(moment, datetime.datetime):
        if moment != moment:  # pandas' NaT
            raise wrong
        return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
    if isinstance(moment, bool) or not isinstance(moment, int | float) or not math.isfinite(moment):
        raise wrong
    return float(moment)


def _record(run: Record) -> tuple[object, ...]:
    gpu, env, bench, result = run.gpu, run.env, run.bench, run.result
    return (
        run.run_id, run.sweep_id, run.ts_start, run.ts_end, run.node_name, gpu.slurm_index, gpu.uuid, gpu.vendor,
        gpu.model, _gib(gpu.mem_bytes), gpu.vbios or None, env.driver or None, env.backend,
        env.power_limit_w, bench.id, bench.sensitivity_class, bench.method_hash, bench.mode, result.value, result.unit,
        result.cv_pct, result.ci95_pct, result.n_blocks, result.block_s, result.warmup_s, result.steady,
        *(_median(run.telemetry, name) for name in SENSORS.values()), run.slurm_job_id, run.valid, run.reason,
        ",".join(map(str, run.flags)),
    )  # fmt: skip


def _median(telemetry: dict[str, Any], name: str) -> float | None:
    """The median of a sensor over the run; not every device has every sensor, and values were not checked before."""
    found = telemetry.get(name)
    return number(found.get("p50")) if isinstance(found, dict) else None


def _gib(size_bytes: object) -> float | None:
    """NA also for 0, which stands for a size that is unknown."""
    size = number(size_bytes)
    return size / GIB if size else None


SWEEPS = (
    Column("sweep", TEXT, "id of the sweep; ids sort by time"),
    Column(
        "state", CATEGORY, "what it is doing; stopped: nodes are left (pal-profile run --resume); NA: its plan is gone",
        ("running", "paused", "stopped", "ended"),
    ),
    Column("created_time", TIME, "when it was planned"),
    Column("first_time", TIME, "end of its first run"),
    Column("last_time", TIME, "end of its newest run"),
    Column("backend", TEXT, "what runs the benchmarks; NA: each node chooses"),
    Column("mode", CATEGORY, "all GPUs of a node at once, or one by one", ("concurrent", "solo")),
    Column("nodes", COUNT, "nodes to be measured"),
    *(Column(f"nodes_{name}", COUNT, f"of which {name}: {meaning}") for name, meaning in sweep_state.STATES.items()),
    Column("records", COUNT, "runs that it brought into the database"),
    Column("gpus", COUNT, "GPUs with at least one run"),
    Column("planned_gpu_h", NUMBER, "what the plan expected to take (GPU-hours)"),
    Column("max_parallel", COUNT, "most nodes at once"),
    Column("window", TEXT, "hours of the day, local time; NA: all day"),
    Column("pause", TEXT, "why it submits nothing now; NA: it is not paused"),
)  # fmt: skip


@described(SWEEPS)
def sweeps() -> pd.DataFrame:
    """One row for each sweep that has a plan in STATE_DIR/sweeps or runs in the database, oldest first.

    Warns of plans that cannot be read; their sweeps are known by their runs only. Raises DataError when the database
    cannot be read, BusyError, ConfigError.
    """
    state_dir = settings.load().state_dir
    spans: dict[str, SweepSpan] = {}
    if os.path.exists(database_path(state_dir)):
        with open_database(state_dir) as database:
            spans = {span.sweep_id: span for span in database.sweeps()}
    planned = sweep_state.ids(state_dir)
    running = at_work(state_dir) if planned else ""
    plans = {name: _plan(state_dir, name) for name in planned}
    names = sorted({*planned, *spans})
    return frame(SWEEPS, [(name, *_sweep(plans.get(name), running, spans.get(name))) for name in names])


def _plan(state_dir: str, name: str) -> sweep_state.SweepDirectory | None:
    try:
        return sweep_state.load(state_dir, name)
    except DataError as error:
        warn(one_line(error))
        return None


def _sweep(sweep: sweep_state.SweepDirectory | None, running: str, span: SweepSpan | None) -> tuple[object, ...]:
    """All columns but the first."""
    seen = (span.first_s, span.last_s) if span else (None, None)
    brought = (span.records, span.gpus) if span else (0, 0)
    if sweep is None:
        return (None, None, *seen, *[None] * (3 + len(sweep_state.STATES)), *brought, *[None] * 4)
    terms, counts = sweep.terms, sweep.counts()
    pause = sweep.pause.why if sweep.pause and running == sweep.sweep_id else None
    return (
        _doing(sweep, running), terms.created_s, *seen, terms.job.setting.name or None, terms.job.mode or "concurrent",
        len(sweep.nodes), *(counts[name] for name in sweep_state.STATES), *brought, sum(terms.gpu_hours.values()),
        terms.max_parallel, terms.window or None, pause,
    )  # fmt: skip


def _doing(sweep: sweep_state.SweepDirectory, running: str) -> str:
    if running == sweep.sweep_id:
        return "paused" if sweep.pause else "running"
    return "ended" if all(node.state in sweep_state.OVER for node in sweep.nodes.values()) else "stopped"
