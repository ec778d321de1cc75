# SPDX-License-Identifier: MIT
"""pal costs: what jobs have cost, by account."""

from __future__ import annotations

import time

import click

from slurm_pal.base import config as settings
from slurm_pal.base import prices
from slurm_pal.cli import common, tables
from slurm_pal.profiling.sweep.plan import duration_s
from slurm_pal.report import costs as report
from slurm_pal.report.listing import Listing
from slurm_pal.slurm.backend import connect


@click.command()
@click.option("--since", default="30d", show_default=True, metavar="AGE", help="Jobs that ran in the last AGE.")
@tables.table_options
@common.verbose_option
def costs(since: str, form: tables.Form) -> None:
    """What jobs have cost, by account and partition: hours of sacct at today's prices (docs/places.md).

    Needs accounting (slurmdbd). sacct shows ordinary users only their own jobs, if the site says so.
    """
    now_s, config = time.time(), settings.load()
    partitions = connect(config).overview().partitions
    known = prices.current(config, partitions, now_s)
    for text in known.complaints:
        common.say(f"pal: {text}", err=True)
    found = report.read(known, now_s - duration_s(since))
    shown = [
        [row.account, row.partition, str(row.jobs), f"{row.gpu_h:.1f}", "-" if row.cost is None else f"{row.cost:.2f}"]
        for row in found
    ]
    rows = [row._asdict() for row in found]
    listing = Listing(report.CSV_COLUMNS, rows, report.HEADER, shown)
    tables.show(form, listing, "costs", lambda told: {"rows": told, "since": since})
