# SPDX-License-Identifier: MIT
"""pal recipes: how known programs save on demand, and which recipe holds for a script."""

from __future__ import annotations

import os
from typing import Any

import click

from slurm_pal.base import config as settings
from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.base.files import SMALL_BYTES, read_plain
from slurm_pal.cli import common, tables
from slurm_pal.report.listing import Listing
from slurm_pal.submit import recipes as known
from slurm_pal.submit import transparent
from slurm_pal.submit.argv import parse
from slurm_pal.submit.recipes import Finding, Recipe
from slurm_pal.submit.script import scan

_HEADER = ("RECIPE", "ASKED BY", "SHOWN WITH", "PROGRAM")
_SHOWS = {"RECIPE": "name", "ASKED BY": "signal", "SHOWN WITH": "shown", "PROGRAM": "title"}


@click.command()
@click.option("--check", "script", metavar="SCRIPT", help="Which recipe holds for this script, and why, or what lacks.")
@tables.table_options
@common.verbose_option
def recipes(script: str | None, form: tables.Form) -> None:
    """Recipes: how known programs save on demand, for palsub --pal-checkpoint auto (docs/recipes.md).

    With --check, from the folder in which the job is to run: exit code 1 where no recipe holds, and
    no transparent checkpoint is possible either (docs/transparent.md).

    \b
    Examples:
      pal recipes                    the table, the site's own included
      pal recipes --check job.sh     what auto would find
    """
    if script is not None and form.tabular:
        raise UsageError("--check shows no table: leave out --csv, --parsable2, --sort and --format")
    config = settings.load()
    folder = config.text("submit", "recipes")
    troubles: list[str] = []
    if script is None:
        found = known.table(folder, lambda name, text: True, troubles)
        listing = Listing((*Recipe._fields, "ends"), list(map(_shown, found)), _HEADER, list(map(_row, found)), _SHOWS)
        tables.show(form, listing, "recipes", lambda told: {"recipes": told, "warnings": troubles})
        if not form.as_json:
            common.say(*troubles, err=True)
        return
    try:
        text = read_plain(script, SMALL_BYTES).decode("utf-8", "replace")
    except (OSError, DataError) as error:
        raise UsageError(f"--check {script!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    seen = known.table(folder, known.of_text(text), troubles)
    findings = known.findings(text, seen, known.reader(os.getcwd()))
    recipe, why = known.choose(findings)
    read = scan(text.encode())._replace(body=text.encode())
    lacks = transparent.lacks(parse([script]), os.environ, read, elastic=False, config=config)
    if form.as_json:
        body: dict[str, Any] = {"script": script, "recipe": recipe.name if recipe else None, "why": why}
        body |= {"transparent": not lacks, "transparent_lacks": lacks or None}
        common.print_json(
            "recipes-check", {**body, "findings": [_finding(one) for one in findings], "warnings": troubles}
        )
    else:
        common.say(f"recipe {recipe.name}: {why}" if recipe else f"no recipe holds: {why}")
        common.say(*(f"  it goes on so: {recipe.resumes}" for recipe in [recipe] if recipe))
        if recipe is None:
            common.say(f"  not transparent: {lacks}" if lacks else "  transparent: nothing speaks against it")
        common.say(*troubles, err=True)
    if recipe is None and lacks:
        raise SystemExit(1)


def _row(one: Recipe) -> list[str]:
    how = f"SIG{one.signal}" if one.signal else f"file {one.file}" if one.file else "its next save"
    return [one.name, how, one.shown.partition(":")[0] or "-", one.title]


def _shown(one: Recipe) -> dict[str, Any]:
    return {**one._asdict(), "ends": one.ends}


def _finding(one: Finding) -> dict[str, Any]:
    command = one.command
    return {
        "recipe": one.recipe.name, "line": command.number if command else None,
        "command": command.text if command else None,
        "holds": not one.lacks, "lacks": one.lacks or None,
    }  # fmt: skip
