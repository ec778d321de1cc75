# SPDX-License-Identifier: MIT
"""pal heatmap and pal report: the site's GPUs in one picture and on one page."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

import click

from slurm_pal.base import config as settings
from slurm_pal.base.errors import DataError, PalError, UsageError, one_line
from slurm_pal.base.hostlist import fold
from slurm_pal.cli import common, output_file, reading
from slurm_pal.cli.gpu import METAVAR, Gpu
from slurm_pal.slurm.states import usable

if TYPE_CHECKING:
    from slurm_pal.report.drawing import Kind
    from slurm_pal.report.gpus.gpu_report import GpuReport
    from slurm_pal.report.gpus.job_shapes import JobShapes
    from slurm_pal.report.inventory import GpuRow
    from slurm_pal.store.database import Database
    from slurm_pal.variability.params import Params

# rich, matplotlib, Jinja2 and the classification are imported where they are used: `pal gpus` shares this start.

KINDS: dict[str, Kind] = {".svg": "svg", ".png": "png"}
MIN_WIDTH, MAX_WIDTH = 40, 120  # of paragraphs, characters

nodes_option = click.option("-w", "--nodelist", metavar="HOSTLIST", help="Only these nodes.")


@click.command()
@nodes_option
@common.class_option
@click.option("-o", "--output", metavar="FILE", help="Write a picture instead: FILE.svg or FILE.png.")
@common.color_option
@common.verbose_option
def heatmap(nodelist: str | None, sensitivity: str, output: str | None, color: str) -> None:
    """Nodes x GPUs, coloured by slowdown: blue is fast, orange slow, ! marks a flag, x a fault.

    Each GPU shows a digit as well, so that the map is readable without colour. Neighbouring nodes that look
    the same share a line; a map longer than the terminal goes through the pager.
    """
    kind = _kind(output) if output else None
    output_file.check_place(output)
    snapshot, rows, _ = reading.site(nodelist)
    if not rows:
        raise DataError("neither Slurm nor the snapshot knows any GPU: see pal doctor")
    if output and kind:
        from slurm_pal.report.gpus.pictures import single_map

        picture = single_map(rows, sensitivity, (kind,), snapshot.cluster if snapshot else "", time.time())
        if picture.missing:
            raise DataError(f"nothing to draw: {picture.missing}; run pal-profile run")
        output_file.say_written(output, output_file.write(output, picture.images[kind]))
        return
    from slurm_pal.report.gpus.heatmap import printed, render

    size = shutil.get_terminal_size()
    colored = common.use_color(color)
    lines = printed(render(rows, sensitivity, size.columns), colored)
    if sys.stdout.isatty() and len(lines) >= size.lines:
        click.echo_via_pager("\n".join(lines) + "\n", color=colored)
    else:
        click.echo("\n".join(lines), color=colored)


@click.command()
@nodes_option
@click.option(
    "--gpu",
    type=Gpu,
    metavar=METAVAR,
    help="Only this GPU (at least 8 characters of its UUID after GPU-): its place, flags, history.",
)
@click.option("--html", "path", metavar="FILE", help="One page with pictures that opens offline, instead of text.")
@click.option(
    "--card", "cards", multiple=True, metavar="FILE",
    help="A few numbers for a portal: FILE.html is a piece of a page, FILE.json pal.card/1. May be repeated.",
)  # fmt: skip
@common.json_option
@common.verbose_option
def report(nodelist: str | None, gpu: Gpu | None, path: str | None, cards: tuple[str, ...], as_json: bool) -> None:
    """What the GPUs of this site are worth: spread, cost, slowest and flagged ones, changes, coverage.

    \b
    Examples:
      pal report                          a page of text
      pal report --html gpus.html         a page to show, pictures included
      pal report --gpu n7:0 --html g.html the history of one GPU
      pal report --card gpus.html         a card for Open OnDemand or another portal (docs/report.md)
    """
    if cards:
        if path or as_json or gpu:
            raise UsageError("--card writes files of its own: leave out --html, --json and --gpu")
        _write_cards(cards, nodelist)
        return
    if path and as_json:
        raise UsageError("--html and --json exclude each other: run pal report twice")
    output_file.check_place(path)
    if as_json:
        from slurm_pal.report.gpus.as_json import to_json

        common.print_json("report", to_json(*_site(nodelist, gpu)))
    elif path:
        from slurm_pal.report.gpus.page import gpu_page, page  # before the work: what is missing is reported at once

        found, uuid = _site(nodelist, gpu)
        output_file.say_written(path, output_file.write(path, page(found) if uuid is None else gpu_page(found, uuid)))
    else:
        from slurm_pal.report.gpus.text import gpu_text, text

        width = max(MIN_WIDTH, min(MAX_WIDTH, shutil.get_terminal_size().columns))
        found, uuid = _site(nodelist, gpu, newest_only=True)  # which is all that text shows
        common.say(*text(found, width) if uuid is None else gpu_text(found, uuid, width))


def _write_cards(paths: tuple[str, ...], nodelist: str | None) -> None:
    """One look at the site for all files. From cron it says nothing; on a terminal, where they are."""
    for one in paths:
        if os.path.splitext(one)[1].lower() not in (".html", ".json"):
            raise UsageError(f"--card {one}: the name must end in .html or .json")
        output_file.check_place(one)
    from slurm_pal.report.gpus import card

    snapshot, rows, overview = reading.site(nodelist)
    off = {node.name for node in overview.nodes if not usable(node.states)} if overview else set()
    body = card.card(rows, snapshot.cluster if snapshot else "", time.time(), off)
    for one in paths:
        text = card.html(body) if one.lower().endswith(".html") else json.dumps(body, indent=2, allow_nan=False) + "\n"
        size = output_file.write(one, text)
        if sys.stderr.isatty():
            output_file.say_written(one, size)


def _site(nodelist: str | None, gpu: Gpu | None, newest_only: bool = False) -> tuple[GpuReport, str | None]:
    """The report as of now, and the UUID of the GPU asked for.

    Without records, and with a line on stderr, where the database is only on the controller.
    """
    from slurm_pal.report import class_notices, costs
    from slurm_pal.report.gpus import loan_course
    from slurm_pal.report.gpus.gpu_report import gpu_report
    from slurm_pal.report.gpus.job_shapes import job_shapes
    from slurm_pal.report.power_cap import power_findings
    from slurm_pal.store.database import open_database
    from slurm_pal.store.publish import params_of

    config, now_s = settings.load(), time.time()
    params = params_of(config)
    snapshot, rows, overview = reading.site(nodelist)
    power = tuple(power_findings(rows, snapshot.met_cap)) if snapshot else ()
    notices = tuple(class_notices.lines(reading.notices(config))) if nodelist is None else ()
    shapes = overview and job_shapes(overview.jobs, {node.name: node.n_gpus for node in overview.nodes})
    uuid = None if gpu is None else _uuid(gpu, rows)  # an unknown one is reported before the records are read
    nodes = fold(sorted({row.node for row in rows})) if nodelist is not None else ""
    try:
        with open_database(config.state_dir) as database:
            found = _read(database, rows, now_s, params, nodes, uuid or "", newest_only, shapes)
    except DataError as error:
        common.say(f"pal: without records: {one_line(error)}", err=True)
        found = gpu_report(rows, (), (), now_s, params, nodes=nodes, uuid=uuid or "", shapes=shapes)
    course = money = None
    if nodelist is None and gpu is None:
        money = costs.money(config, overview and overview.partitions, now_s)
    if nodelist is None:
        try:
            course = loan_course.read(config, now_s)
        except PalError as error:
            common.say(f"pal: without loans: {one_line(error)}", err=True)
    return found._replace(power=power, notices=notices, loans=course, money=money), uuid


def _uuid(gpu: Gpu, rows: list[GpuRow]) -> str:
    place = gpu.among(reading.places(rows))
    if not place.uuid:
        raise UsageError(f"{place.text()} was never measured: pal-profile run --nodelist {place.node}")
    return place.uuid


def _read(
    database: Database,
    rows: list[GpuRow],
    now_s: float,
    params: Params,
    nodes: str,
    uuid: str,
    newest_only: bool,
    shapes: JobShapes | None,
) -> GpuReport:
    """The sweeps first, then the records, one after another: together they do not fit into memory."""
    from slurm_pal.report.gpus.course import NEWEST, steps
    from slurm_pal.report.gpus.gpu_report import gpu_report
    from slurm_pal.store import reduced
    from slurm_pal.variability.runs import horizon_s

    since_s = horizon_s(now_s, params)
    extents = database.extents(since_s)
    cluster = database.newest_cluster() if extents else ""
    sweeps = reduced.sweeps(database, extents, now_s, params)
    skip = max(0, len(extents) - (1 if newest_only else NEWEST))
    changes = steps(sweeps, params, {row.uuid for row in rows}, skip)
    return gpu_report(rows, database.by_time(since_s), changes, now_s, params, cluster, nodes, uuid, shapes)


def _kind(path: str) -> Kind:
    ending = os.path.splitext(path)[1].lower()
    if ending not in KINDS:
        raise UsageError(f"-o {path}: the name must end in .svg or .png, the kinds of picture")
    return KINDS[ending]
