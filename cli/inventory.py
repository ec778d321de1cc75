# SPDX-License-Identifier: MIT
"""pal gpus, pal nodes: what is known of each GPU and of each node."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.cli import common, reading, tables
from slurm_pal.cli.gpu import METAVAR, Gpu
from slurm_pal.report import inventory, table
from slurm_pal.report.listing import Listing
from slurm_pal.report.power_cap import power_findings

_GPU_HEADER = ("NODE", "GPU", "MODEL", *SENSITIVITY_CLASSES, "AGE", "USE", "FLAGS", "STATE")
_GPU_SHOWS = {"GPU": "index", **{c: f"slowdown_{c}" for c in SENSITIVITY_CLASSES}, "AGE": "age_s", "USE": "in_use"}
_NODE_HEADER = (
    "NODE", "STATE", "GPUS", "USED", *(f"WORST_{c}" for c in SENSITIVITY_CLASSES), "CLASS_A", "AGE", "FLAGS",
)  # fmt: skip
_NODE_SHOWS = {
    "STATE": "states", "USED": "gpus_in_use", **{f"WORST_{c}": f"worst_slowdown_{c}" for c in SENSITIVITY_CLASSES},
    "AGE": "age_s",
}  # fmt: skip


def _table_options(command: common.Command) -> common.Command:
    """The options of `pal gpus` and `pal nodes`."""
    for option in (
        tables.table_options,
        common.verbose_option,
        click.option("-f", "--flagged", is_flag=True, help="Only rows with a flag."),
        click.option("-w", "--nodelist", metavar="HOSTLIST", help="Only these nodes."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("only", metavar=f"[{METAVAR}]...", nargs=-1, type=Gpu)
@_table_options
def gpus(only: tuple[Gpu, ...], nodelist: str | None, flagged: bool, form: tables.Form) -> None:
    """One line for each GPU: slowdown and variability class per sensitivity class.

    Slowdown is time relative to the median GPU of the same model: 1.00 is the median,
    larger is slower. Classes count from v0, the fastest. A GPU is NODE:INDEX, or at least
    8 characters of its UUID after GPU-; default: all.
    """
    snapshot, known, _ = reading.site(nodelist)
    chosen = {gpu.among(reading.places(known))[:2] for gpu in only}
    rows = [r for r in known if (not only or (r.node, r.gpu_index) in chosen) and (r.flags or not flagged)]
    found = power_findings(rows, snapshot.met_cap) if snapshot else []
    notes = [one.line for one in found]
    listing = Listing(
        inventory.GPU_COLUMNS, [row.to_json() for row in rows], _GPU_HEADER, [_gpu_cells(row) for row in rows],
        _GPU_SHOWS, [bool(row.flags) for row in rows],
    )  # fmt: skip
    tables.show(
        form, listing, "gpu-list", lambda told: {"gpus": told, "power_cap": [one._asdict() for one in found]},
        notes=[*_cures(rows), *(["", *notes] if notes else [])],
    )  # fmt: skip


def _cures(rows: Sequence[inventory.GpuRow]) -> list[str]:
    """What to do about the faulty GPUs of a table, below it."""
    lines = inventory.fault_lines(rows)
    return ["", "Jobs are kept off these until a clean measurement:", *lines] if lines else []


def _gpu_cells(row: inventory.GpuRow) -> list[str]:
    scores = [
        f"{row.slowdown[c]:.3f} {row.variability_class[c]}" if c in row.slowdown else "?" for c in SENSITIVITY_CLASSES
    ]
    use = {True: "used", False: "free", None: "?"}[row.in_use]
    return [
        row.node,
        str(row.gpu_index),
        row.model or "-",
        *scores,
        table.age(row.age_s),
        use,
        ",".join(row.flags) or "-",
        row.state,
    ]


@click.command()
@_table_options
def nodes(nodelist: str | None, flagged: bool, form: tables.Form) -> None:
    """One line for each node: Slurm's state, GPUs in use, worst slowdown, classes of its GPUs."""
    snapshot, overview = reading.load()
    every = inventory.node_rows(inventory.gpu_rows(snapshot, overview, time.time()), overview)
    chosen = reading.selected(nodelist, {row.node for row in every})
    rows = [row for row in every if row.node in chosen and (row.flags or not flagged)]
    listing = Listing(
        inventory.NODE_COLUMNS, [row.to_json() for row in rows], _NODE_HEADER, [_node_cells(row) for row in rows],
        _NODE_SHOWS, [bool(row.flags) for row in rows],
    )  # fmt: skip
    tables.show(form, listing, "nodes", lambda told: {"nodes": told})


def _node_cells(row: inventory.NodeRow) -> list[str]:
    worst = [f"{row.worst[c]:.3f}" if c in row.worst else "?" for c in SENSITIVITY_CLASSES]
    return [
        row.node,
        "+".join(row.states).lower(),
        str(len(row.gpus)),
        str(sum(1 for g in row.gpus if g.in_use)),
        *worst,
        " ".join(g.variability_class.get("A", "?") for g in row.gpus),
        table.age(row.age_s),
        ",".join(row.flags) or "-",
    ]
