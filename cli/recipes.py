# SPDX-License-Identifier: MIT
"""pal recipes: how known programs save on demand, and which recipe holds for a script."""

from __future__ import annotations

import os
from typing import Any

import click

from slurm_pal.base import config as settings
from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.base.files import SMALL_BYTES, read_plain
from slurm_pal.cli import common
from slurm_pal.report import table
from slurm_pal.submit import recipes as known
from slurm_pal.submit import transparent
from slurm_pal.submit.argv import parse
from slurm_pal.submit.recipes import Finding, Recipe
from slurm_pal.submit.script import scan


@click.command()
@click.option("--check", "script", metavar="SCRIPT", help="Which recipe holds for this script, and why, or what lacks.")
@common.noheader_option
@common.csv_option
@common.json_option
@common.verbose_option
def recipes(script: str | None, noheader: bool, as_csv: bool, as_json: bool) -> None:
    """Recipes: how known programs save on demand, for palsub --pal-checkpoint auto (docs/recipes.md).

    With --check, from the folder in which the job is to run: exit code 1 where no recipe holds, and
    no transparent checkpoint is possible either (docs/transparent.md).

    \b
    Examples:
      pal recipes                    the table, the site's own included
      pal recipes --check job.sh     what auto would find
    """
    if script is not None and as_csv:
        raise UsageError("--csv does not go with --check: it shows the table")
    config = settings.load()
    folder = config.text("submit", "recipes")
    troubles: list[str] = []
    if script is None:
        found = known.table(folder, lambda name, text: True, troubles)
        if as_json:
            common.print_json("recipes", {"recipes": [_shown(one) for one in found], "warnings": troubles})
            return
        if as_csv:
            common.print_csv((*Recipe._fields, "ends"), [_shown(one) for one in found], noheader)
        else:
            rows = [_row(one) for one in found]
            common.say(*table.columns(["RECIPE", "ASKED BY", "SHOWN WITH", "PROGRAM"], rows, noheader))
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
    if as_json:
        body: dict[str, Any] = {"script": script, "recipe": recipe.name if recipe else None, "why": why}
        body |= {"transparent": not lacks, "transparent_lacks": lacks or None}
        common.print_json("recipes", {**body, "findings": [_finding(one) for one in findings], "warnings": troubles})
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
