# SPDX-License-Identifier: MIT
"""pal throughputs: how fast each application is on each type of GPUs, as known today."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from slurm_pal.base import config as settings
from slurm_pal.base.cluster import Node
from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError, one_line
from slurm_pal.cli import common, tables
from slurm_pal.journal import paths
from slurm_pal.journal.journal import open_journal
from slurm_pal.sensitivity.catalogue import APPLICATIONS
from slurm_pal.slurm.backend import connect

if TYPE_CHECKING:  # these bring numpy, which the other commands start without
    from slurm_pal.allocation.throughputs import Entry, ThroughputKey

ASK_TIMEOUT_S = 10.0
NOTHING = "no throughputs: no table is given, and no past run has reported its steps (pal progress)"


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@click.option("--output", metavar="FILE", help="Write what is known (no estimates) as a table, CSV or .json.")
@tables.table_options
@common.verbose_option
def throughputs(file: str | None, output: str | None, form: tables.Form) -> None:
    """Throughputs by application, GPUs and type of GPUs: steps/s of the job, error, runs, age and source.

    \b
    table      from FILE, the site's own table (CSV or .json)
    progress   from past runs whose jobs called `pal progress`
    estimated  derived from other types, applications and numbers of GPUs
    prior      speeds of the types for an unknown application

    root and SlurmUser see all runs, other users those that their own pal-rebalance --mine saw. A
    number after ~ is not in steps/s: only ratios between types mean something.
    """
    from slurm_pal.allocation.throughputs import merge
    from slurm_pal.partitions import throughput_table
    from slurm_pal.partitions.history import types_of
    from slurm_pal.report import throughput_rows

    now_s = time.time()
    stated = throughput_table.read(file, now_s) if file else {}
    config = settings.load()
    types = types_of(_nodes(config))
    known = merge([stated, _past(config, types, stated, now_s)])
    unnamed = throughput_table.write(output, known, now_s) if output else 0
    if unnamed:
        common.say(f"pal: {unnamed} not written to {output}: the job name is too long or not printable", err=True)
    rows = throughput_rows.rows(known, types.values())
    tables.show(form, throughput_rows.listing(rows), "throughputs", lambda told: {"throughputs": told}, empty=NOTHING)


def _nodes(config: Config) -> tuple[Node, ...]:
    try:
        return connect(config, timeout_s=ASK_TIMEOUT_S).nodes()
    except SlurmError as error:
        common.say(f"pal: past runs are not shown, since the types of nodes are unknown: {one_line(error)}", err=True)
        return ()


def _past(
    config: Config, types: Mapping[str, str], stated: Mapping[ThroughputKey, Entry], now_s: float
) -> dict[ThroughputKey, Entry]:
    """What past runs reported; those left out are named on stderr. Raises DataError when the journal cannot be read."""
    from slurm_pal.partitions import history

    path = paths.readable_journal(config)
    if path is None or not types:
        return {}
    with open_journal(path, write=False) as journal:
        seen = journal.observations(0.0)
    names = history.spellings([*(key.application for key in stated), *config.apps, *APPLICATIONS])
    found = history.history(seen, types, names, now_s)
    for why, count in sorted(found.unused.items()):
        common.say(f"pal: {count} past {'run is' if count == 1 else 'runs are'} left out: {why}", err=True)
    return found.entries
