# SPDX-License-Identifier: MIT
"""pal top: GPUs, jobs, lists of ours and moves, again and again."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

import click

from slurm_pal.base import config as settings
from slurm_pal.base.errors import DataError, PalError, SlurmError, one_line
from slurm_pal.base.terminal import visible
from slurm_pal.cli import common, reading, tables
from slurm_pal.cli.until_signal import until_signal
from slurm_pal.report import inventory, move_rows, top

if TYPE_CHECKING:
    from slurm_pal.report.inventory import GpuRow
    from slurm_pal.report.top import View

MOVES_S = 86400.0
MIN_EVERY_S = 5.0
SHARE = 5.0
"""So many times the time that Slurm took to answer passes at least before it is asked again."""


@click.command("top")
@click.option("-w", "--nodelist", metavar="HOSTLIST", help="Only these nodes, and the jobs there.")
@common.class_option
@click.option(
    "--every",
    type=click.FloatRange(MIN_EVERY_S),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Ask Slurm so often, 5 or more; more rarely where Slurm is slow to answer.",
)
@click.option("--once", is_flag=True, help="Print it once and end, as without a terminal.")
@tables.table_options
@common.verbose_option
def top_command(nodelist: str | None, sensitivity: str, every: float, once: bool, form: tables.Form) -> None:
    """GPUs as a heat map, jobs with GPUs (those on slow GPUs first), lists of ours on waiting jobs, newest moves.

    It fills the terminal and is renewed every 30 seconds by one bulk query; Ctrl-C ends it. Moves are those that
    pal moves would show you, of the last 24 hours.
    """
    source = _Source(nodelist)
    color = common.use_color(form.color)
    if not form.plain:
        seen, _ = source.look()
        tables.show(form, top.listing(seen), "top", lambda told: {**seen.to_json(), "jobs": told})
    elif once or not sys.stdout.isatty():
        seen, rows = source.look()
        size = shutil.get_terminal_size()
        for line in _screen(source, seen, rows, sensitivity, size.columns, sys.maxsize, color):
            click.echo(line, color=color)
    else:
        _live(source, sensitivity, every, color)


class _Source:
    """What is asked again and again; `notes` are what the last answer lacks."""

    def __init__(self, nodelist: str | None) -> None:
        self.nodelist, self.cluster, self.notes, self.took_s = nodelist, "Slurm", list[str](), 0.0
        self._partitions: frozenset[str] = frozenset()

    def look(self) -> tuple[View, list[GpuRow]]:
        """Raises SlurmError, DataError, UsageError for a node that nobody knows."""
        self.notes = []
        began_s = time.monotonic()
        config = settings.load()
        snapshot, overview = inventory.look(config, self.notes.append, marked=True, whole=self._partitions)
        if overview and not self._partitions:  # pending jobs are counted once the partitions are known
            self._partitions = frozenset(partition.name for partition in overview.partitions)
            snapshot, overview = inventory.look(config, self.notes.append, marked=True, whole=self._partitions)
        now_s = time.time()
        rows = inventory.gpu_rows(snapshot, overview, now_s)
        chosen = reading.selected(self.nodelist, {row.node for row in rows})
        rows = [row for row in rows if row.node in chosen]
        try:
            moves = move_rows.read(config, now_s - MOVES_S, None, self.notes.append)[0]
        except PalError as error:
            moves = []
            self.notes.append(f"without moves: {one_line(error)}")
        self.cluster = (snapshot.cluster if snapshot else "") or "Slurm"
        self.took_s = time.monotonic() - began_s
        return top.view(rows, overview.jobs if overview else (), moves, now_s), rows


def _screen(
    source: _Source, seen: View, rows: list[GpuRow], sensitivity: str, width: int, height: int, colored: bool
) -> list[str]:
    """At most `height` lines; the map may take half of them."""
    from slurm_pal.report.gpus.heatmap import printed, render

    lines = top.head(seen, source.cluster, [f"pal: {note}" for note in source.notes])
    limit = common.screen_width()  # a pipe has none
    lines = [part for line in lines for part in common.wrapped(line)]
    drawn = printed(render(rows, sensitivity, width), colored) if rows else ["no GPUs are known: see pal doctor"]
    room = max(3, height // 2)
    if len(drawn) > room:
        drawn = [*drawn[: room - 1], f"and {len(drawn) - room + 1} more lines: pal heatmap"]
    lines += ["", *drawn]
    return [*lines, *map(visible, top.tables(seen, height - len(lines), limit))]


def _live(source: _Source, sensitivity: str, every: float, colored: bool) -> None:
    """Until a signal. A moment in which Slurm does not answer leaves the last screen, and says so."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(no_color=not colored)
    last: tuple[View, list[GpuRow]] | None = None
    with until_signal() as woken, Live(console=console, screen=True, auto_refresh=False) as shown:
        while True:
            trouble = ""
            try:
                last = source.look()
            except (SlurmError, DataError) as error:
                if last is None:
                    raise
                trouble = f"pal: {one_line(error)}"
            pause_s = max(every, SHARE * source.took_s)
            foot = trouble or f"again every {pause_s:.0f} s; Ctrl-C ends"
            lines = _screen(source, *last, sensitivity, console.width, console.height - 2, colored)
            text = Text.from_ansi("\n".join([*lines, "", visible(foot)]), no_wrap=True, overflow="crop")
            shown.update(text, refresh=True)
            if woken(pause_s):
                return
