# SPDX-License-Identifier: MIT
"""pal doctor: what is wrong, and the command that mends it."""

from __future__ import annotations

import time

import click

from slurm_pal.base import config as settings
from slurm_pal.base.errors import ConfigError, Exit
from slurm_pal.cli import common
from slurm_pal.report.doctor import CheckResult, examine
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import SlurmClient

_MARKS = {"ok": ("ok", "green"), "note": ("note", "cyan"), "warn": ("WARN", "yellow"), "fail": ("FAIL", "red")}


@click.command()
@common.csv_option
@common.json_option
@common.color_option
@common.verbose_option
@click.pass_context
def doctor(context: click.Context, as_csv: bool, as_json: bool, color: str) -> None:
    """Check Slurm, settings, data, clock and permissions; name the command that mends each fault.

    Exit code 0 when nothing has failed (warnings do not count), 1 otherwise.
    """
    findings = examine(_client(), time.time())
    failed = any(finding.level == "fail" for finding in findings)
    if as_json:
        common.print_json("doctor", {"ok": not failed, "findings": [finding._asdict() for finding in findings]})
    elif as_csv:
        common.print_csv(CheckResult._fields, [finding._asdict() for finding in findings])
    else:
        colored = common.use_color(color)
        for finding in findings:
            mark, tint = _MARKS[finding.level]
            common.say_finding(f"{mark:4}", tint, f"{finding.topic:11}  {finding.text}", finding.mend, colored)
    context.exit(Exit.FAILED if failed else Exit.OK)


def _client() -> SlurmClient:
    """The site's backend, or the command line where the settings are at fault."""
    try:
        return connect(settings.load(), timeout_s=15.0)
    except ConfigError:
        return CliClient(timeout_s=15.0)
