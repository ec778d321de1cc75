# SPDX-License-Identifier: MIT
"""pal doctor: whether jobs are placed here, what is wrong, and the command that mends it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from slurm_pal.admin import services, site_files, status
from slurm_pal.admin.shipped import FILTERS, SPANK
from slurm_pal.base import config as settings
from slurm_pal.base.errors import ConfigError, Exit, MissingPackageError, PalError, SlurmError, UsageError, one_line
from slurm_pal.cli import common, site_changes, tables
from slurm_pal.journal import paths
from slurm_pal.report import placing
from slurm_pal.report.check_result import CheckResult
from slurm_pal.report.doctor import class_state, examine
from slurm_pal.report.listing import Listing
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.cli import CliClient, subprocess_runner
from slurm_pal.slurm.client import SlurmClient

_MARKS = {"ok": ("ok", "green"), "note": ("note", "cyan"), "warn": ("WARN", "yellow"), "fail": ("FAIL", "red")}


@click.command()
@click.option("--nagios", is_flag=True, help="One line and the exit codes of a monitoring plug-in.")
@tables.table_options
@common.verbose_option
@click.pass_context
def doctor(context: click.Context, nagios: bool, form: tables.Form) -> None:
    """Show first whether jobs are placed here, for how many, and if not, why and what mends it.

    Then each check of Slurm, settings, data, classes, clock, permissions, palsub, services, filter and plug-in.

    Exit code 0 when nothing has failed (warnings do not count), 1 otherwise. That every palsub is plain sbatch is a
    failure. In --json, placing is true or false; classes is ok, flat (all GPUs of a model in one class) or shifted (all
    changed speed together). With --nagios: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (Slurm does not answer).
    """
    if nagios and not form.plain:
        raise UsageError("--nagios prints a line of its own: leave out --csv and --json")
    findings, placed = examined(time.time())
    answer = findings[0]
    failed = any(finding.level == "fail" for finding in findings)
    if nagios:
        code, line = placing.nagios(findings, placed)
        common.say(line)
        context.exit(code)

    def body(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "ok": not failed,
            "placing": answer.level == "ok",
            "placed": placed._asdict() if placed else None,
            "classes": class_state(),
            "findings": told,
        }

    listing = Listing(CheckResult._fields, [finding._asdict() for finding in findings])
    text = lambda: show(findings, common.use_color(form.color))  # noqa: E731
    tables.show(form, listing, "doctor", body, text=text)
    context.exit(Exit.FAILED if failed else Exit.OK)


def examined(now_s: float) -> tuple[list[CheckResult], placing.Placed | None]:
    """All checks, the verdict first, and the jobs that were placed; None where Slurm does not say."""
    client, trouble = _client()
    findings = [*examine(client, now_s), *trouble, *_services(), *_installed(now_s)]
    placed = None
    with contextlib.suppress(SlurmError, MissingPackageError):  # reported by the checks
        placed = placing.count(client.jobs())
    return [placing.verdict(findings, placed), *findings], placed


def show(findings: Sequence[CheckResult], colored: bool) -> None:
    """One line for each, and what mends it."""
    for finding in findings:
        mark, tint = _MARKS[finding.level]
        common.say_finding(f"{mark:4}", tint, f"{finding.topic:11}  {finding.text}", finding.mend, colored)


def _services() -> list[CheckResult]:
    """Our units in this machine's systemd, as it sees them."""
    with contextlib.suppress(PalError, OSError):  # it does not answer: the checks of what they do stand
        if site_changes.has_systemd():
            return services.findings(subprocess_runner(15.0))
    return []


def _installed(now_s: float) -> list[CheckResult]:
    """Submit filter and plug-in, as `pal admin status` sees them. What a user cannot see or mend has not failed."""
    try:
        site = site_files.read(site_files.find_conf(None), settings.load())
        running = None
        with contextlib.suppress(SlurmError):
            running = CliClient(timeout_s=15.0).config()
        items = status.examine(site, running, now_s)
    except (PalError, OSError) as error:
        return [CheckResult("note", "filter", f"filter and plug-in were not checked: {one_line(error)}")]
    found: list[CheckResult] = []
    if not status.parts_present(site) & {each.part for each in FILTERS}:
        text = "no submit filter is installed: jobs are placed by palsub only"
        found.append(CheckResult("note", "filter", text, "pal admin install"))
        items = [item for item in items if item.part != "filter"]
    broken = "fail" if paths.has_powers() else "warn"
    levels = {"ok": "ok", "note": "note", "wrong": broken}
    topics = {each.part: "filter" for each in FILTERS} | {"table": "filter", "prefer": "filter", SPANK: "plug-in"}
    for item in items:
        if item.state in levels:
            found.append(CheckResult(levels[item.state], topics.get(item.part, item.part), item.text, item.mend))
    return found


def _client() -> tuple[SlurmClient, list[CheckResult]]:
    """The site's backend, or the command line where its settings are at fault, which `examine` or the result says."""
    try:
        config = settings.load()
    except ConfigError:
        return CliClient(timeout_s=15.0), []
    try:
        return connect(config, timeout_s=15.0), []
    except ConfigError as error:
        wrong = CheckResult("fail", "settings", one_line(error), "correct the file or unset the variable")
        return CliClient(timeout_s=15.0), [wrong]
