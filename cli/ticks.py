# SPDX-License-Identifier: MIT
"""pal ticks: decide kept ticks again."""

from __future__ import annotations

from datetime import datetime

import click

from slurm_pal.base.errors import Exit, UsageError
from slurm_pal.cli import common, tables
from slurm_pal.report.listing import Listing

SOON_S = 60.0
"""A time of day so soon after the newest tick means that one, not one of the day before."""


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("--at", "moment", metavar="TIME", help="Show the tick of that time: 2026-11-23T03:12, or 03:12.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the newest N ticks.")
@tables.table_options
@common.verbose_option
@click.pass_context
def ticks(context: click.Context, folder: str, moment: str | None, last: int | None, form: tables.Form) -> None:
    """Decide again what ticks have decided, from what they kept in DIR (rebalance.keep_ticks).

    Each tick is given what it saw then: nodes, jobs, scores, journal, settings, the time. The code is that of
    pal-rebalance. Slurm is not asked. Prints "identical", or the ticks that differ; exit code 1 if one does.

    \b
    Examples:
      pal ticks /var/lib/slurm-pal/ticks               are they decided as they were?
      pal ticks /var/lib/slurm-pal/ticks --at 03:12    what did it see and decide at 03:12?
    """
    # Heavy to import: `pal gpus` shares this process's start.
    from slurm_pal.cli.simulate.run import bar
    from slurm_pal.report import ticks as report
    from slurm_pal.tick import kept
    from slurm_pal.tick.again import again

    if moment is not None and (last or form.tabular):
        raise UsageError("--at shows one tick: it does not go with --last, --csv, --parsable2, --sort or --format")
    if moment is not None:
        number = kept.at(folder, _moment_s(folder, moment))
        found = again(kept.read_tick(folder, number))
        if form.as_json:
            common.print_json("tick-shown", report.one_as_json(found))
        else:
            common.say(*report.one(found))
        context.exit(Exit.OK if found.identical else Exit.FAILED)
    numbers = kept.numbers(folder)
    kept.at(folder, 0.0)  # there is one
    wanted, rows = numbers[-last:] if last else numbers, []
    with bar(len(wanted), "ticks") as watch:
        for one in kept.ticks(folder, wanted):
            rows.append(report.row(again(one)))
            watch(len(rows))
    listing = Listing(report.COLUMNS, [one.to_json() for one in rows])
    text = lambda: tables.say_notes(report.lines(rows))  # noqa: E731
    tables.show(form, listing, "ticks", lambda told: {**report.as_json(rows), "ticks": told}, text=text)
    context.exit(Exit.OK if all(one.identical for one in rows) else Exit.FAILED)


def _moment_s(folder: str, text: str) -> float:
    """Unix seconds of a date and time, local where no zone is named; a time alone is its last one that has a tick."""
    from slurm_pal.tick import kept

    try:
        if "T" in text or "-" in text or " " in text:
            return datetime.fromisoformat(text).timestamp()
        clock = datetime.strptime(text, "%H:%M:%S" if text.count(":") == 2 else "%H:%M").time()
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"--at {text!r:.40} is not a time: give 2026-11-23T03:12, 03:12 or 03:12:30") from None
    kept.at(folder, 0.0)
    newest_s = kept.read_head(folder, kept.numbers(folder)[-1]).at_s + SOON_S
    wanted_s = datetime.combine(datetime.fromtimestamp(newest_s), clock).timestamp()
    return wanted_s if wanted_s <= newest_s else wanted_s - 86400.0
