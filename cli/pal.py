# SPDX-License-Identifier: MIT
"""pal: everything there is to look at."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.cli import common, reading, tables
from slurm_pal.cli.admin import admin
from slurm_pal.cli.aliases import renamed
from slurm_pal.cli.compare import compare
from slurm_pal.cli.costs import costs
from slurm_pal.cli.demo import demo
from slurm_pal.cli.doctor import doctor
from slurm_pal.cli.evidence import evidence
from slurm_pal.cli.explain import explain
from slurm_pal.cli.fork import fork
from slurm_pal.cli.gpu import METAVAR, Gpu
from slurm_pal.cli.have import have
from slurm_pal.cli.lab import lab
from slurm_pal.cli.loans import loans
from slurm_pal.cli.moves import moves
from slurm_pal.cli.note import note
from slurm_pal.cli.observe import observe
from slurm_pal.cli.probe import probe_command
from slurm_pal.cli.progress import ack, progress
from slurm_pal.cli.publish import publish_table
from slurm_pal.cli.recipes import recipes
from slurm_pal.cli.report import heatmap, report
from slurm_pal.cli.setup import setup_command
from slurm_pal.cli.simulate.command import simulate
from slurm_pal.cli.throughputs import throughputs
from slurm_pal.cli.ticks import ticks
from slurm_pal.cli.top import top_command
from slurm_pal.cli.trace import trace
from slurm_pal.cli.trial import trial
from slurm_pal.cli.whatif import whatif
from slurm_pal.cli.why_slow import why_slow_command
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


@click.group()
@common.version_option
@common.verbose_option
def pal() -> None:
    """See what slurm-pal knows about this cluster's GPUs, and what it did for a job.

    \b
    Examples:
      pal gpus -f              flagged GPUs only
      pal nodes -w n[1-4]      four nodes
      pal heatmap              every GPU in one picture
      pal top                  GPUs, jobs, lists and moves, again and again
      pal report --html F.html what the GPUs are worth, on one page
      pal explain 4711         why job 4711 runs where it runs
      pal whatif job.sh        when it would start now and on which GPUs, and with other requests
      pal why-slow 4711        which GPU holds job 4711 up
      pal setup                slurm-pal on this site, by one command; --undo takes it back
      pal doctor               whether jobs are placed here, what is wrong, and what mends it
      pal lab up               a private Slurm with emulated GPUs to play with
    """


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


@pal.command()
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


@pal.command()
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


pal.add_command(admin)
pal.add_command(setup_command)
pal.add_command(lab)
pal.add_command(explain)
pal.add_command(whatif)
pal.add_command(why_slow_command)
pal.add_command(moves)
pal.add_command(loans)
pal.add_command(publish_table)
renamed(pal, publish_table, "publish")
pal.add_command(progress)
pal.add_command(ack)
pal.add_command(note)
pal.add_command(fork)
pal.add_command(have)
pal.add_command(recipes)
pal.add_command(costs)
pal.add_command(observe)
pal.add_command(probe_command)
pal.add_command(compare)
pal.add_command(evidence)
pal.add_command(doctor)
pal.add_command(top_command)
pal.add_command(heatmap)
pal.add_command(report)
pal.add_command(demo)
pal.add_command(simulate)
pal.add_command(throughputs)
pal.add_command(ticks)
pal.add_command(trace)
pal.add_command(trial)


def main() -> None:
    """Entry point of the program `pal`."""
    common.run(pal, "pal")
