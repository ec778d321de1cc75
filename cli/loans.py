# SPDX-License-Identifier: MIT
"""pal loans: who lends nodes, who is a guest there, who had to leave, and what that cost."""

from __future__ import annotations

import time

import click

from slurm_pal.base import config as settings
from slurm_pal.cli import common, tables
from slurm_pal.cli.reading import complain
from slurm_pal.profiling.sweep.plan import duration_s
from slurm_pal.report import loan_rows, table
from slurm_pal.report.listing import Listing
from slurm_pal.report.loan_rows import LoanView


@click.command()
@click.option(
    "--since", default="7d", show_default=True, metavar="AGE", help="What was reclaimed and ordered in the last AGE."
)
@tables.table_options
@common.verbose_option
def loans(since: str, form: tables.Form) -> None:
    """Owners and guests: nodes that are lent now, guests on them, guests that had to leave, the last orders.

    root and SlurmUser see what was reclaimed and ordered. Other users see who lends now, the guests that Slurm
    shows them, and what happened to those of their own jobs that Slurm still knows. With -P each line begins with
    the name of its table: owner, guest, reclaim or order.
    """
    now_s = time.time()
    seen = loan_rows.read(settings.load(), now_s - duration_s(since), now_s, complain)
    if form.parsable2 and not form.columns and not form.sort:
        common.say(*_parsable(seen, form.noheader))
        return
    listing = Listing(loan_rows.CSV_COLUMNS, loan_rows.csv_rows(seen))
    text = lambda: _print_text(seen, since, form.noheader)  # noqa: E731
    tables.show(form, listing, "loans", lambda told: loan_rows.body(seen, told), text=text)


def _parsable(seen: LoanView, noheader: bool) -> list[str]:
    return [
        f"{one.name}|{line}"
        for one in loan_rows.tables(seen)
        for line in table.parsable(one.header, one.rows, noheader)
    ]


def _print_text(seen: LoanView, since: str, noheader: bool) -> None:
    why = seen.refused if seen.lends else loan_rows.NOTHING
    text = [why] if why else []
    for one in loan_rows.tables(seen):
        text += [*([""] if text else []), *tables.lines(one.header, one.rows, noheader)]
    common.say(*text)
    ends = loan_rows.summary(seen, since)
    tables.say_notes([*([""] if text and ends else []), *ends])
