# SPDX-License-Identifier: MIT
"""pal-profile selftest: is this card, and what we say of it, to be trusted?"""

from __future__ import annotations

import os
import signal
import sys

import click

from slurm_pal.base import config as settings
from slurm_pal.base.errors import Exit
from slurm_pal.base.numbers import MOST_GPUS
from slurm_pal.cli import common, tables
from slurm_pal.profiling.node.backends import resolve
from slurm_pal.profiling.node.benchmarks import DEFAULT, select
from slurm_pal.profiling.selftest import limits
from slurm_pal.profiling.selftest import run as selftest_run
from slurm_pal.profiling.selftest.checks import FAILED, INCOMPLETE, INTERRUPTED, NOT_CHECKED, OK, Check
from slurm_pal.profiling.selftest.run import Plan, Report
from slurm_pal.report.listing import Listing

BUDGET_S = 460.0
"""Where a command may run for ten minutes and the card takes its time at the end."""


@click.command()
@click.option(
    "--gpu",
    type=click.IntRange(0, MOST_GPUS - 1),
    help="Slurm's index of the GPU (default: the first of the job, or of CUDA_VISIBLE_DEVICES).",
)
@click.option("--node", metavar="NAME", default="", help="Node name, for emulated GPUs outside a job.")
@click.option("--bench", metavar="ID,...", default="", help="Only these benchmarks (default: those of a sweep).")
@click.option(
    "--runs", type=click.IntRange(2, 100), default=10, show_default=True, help="Runs that show how well numbers repeat."
)
@click.option(
    "--budget", metavar="SECONDS", type=click.FloatRange(1.0, 86400.0), default=BUDGET_S, show_default=True,
    help="End by then; what is left out is shown as not checked.",
)  # fmt: skip
@click.option("--backend", metavar="NAME", default="", help="Device backend (default: profile.backend).")
@click.option("--registry", metavar="FILE", default="", help="Registry of emulated GPUs, or the file to replay.")
@click.option("--seed", type=int, default=0, help="Seed of emulated noise.")
@click.option("--wall-scale", type=click.FloatRange(min=0), help="Emulated GPUs: wall seconds per device second.")
@click.option("--gpu-timeout-s", type=click.FloatRange(min=0.1), help="Give up on a GPU that is silent for longer, s.")
@tables.table_options
@common.verbose_option
def selftest(
    gpu: int | None,
    node: str,
    bench: str,
    runs: int,
    budget: float,
    backend: str,
    registry: str,
    seed: int,
    wall_scale: float | None,
    gpu_timeout_s: float | None,
    form: tables.Form,
) -> int:
    """Check one GPU of this node, and whether what we measure on it can be trusted.

    Driver and sensors, numbers of the kernels, all benchmarks, whether they are what such a card reaches,
    the power-cap regime, repeatability, a library's product beside ours, and what the sampler costs. It records
    nothing. What cannot be checked is shown as such, with the reason. Exit code 0 if all that was checked holds, 1 if
    one check does not, 3 if no benchmark could be run.

    \b
    Examples:
      srun --gres=gpu:1 --exclusive pal-profile selftest
      pal-profile selftest --gpu 2 --json > card.json
    """
    environ = os.environ
    setting = resolve(backend or settings.load().text("profile", "backend"), environ, registry)
    setting = setting._replace(seed=seed, wall_scale=wall_scale)
    index, given = selftest_run.chosen(gpu, setting.registry, environ)
    place = selftest_run.placed(node, setting.registry, environ, os.uname().nodename)
    plan = Plan(setting, place, index, given, select(bench or ",".join(DEFAULT)), runs, budget, gpu_timeout_s)
    if not environ.get("SLURM_JOB_ID"):
        plan = plan._replace(visible=environ.get("CUDA_VISIBLE_DEVICES", ""))
    report = selftest_run.selftest(plan, _say if sys.stderr.isatty() else lambda text: None)
    listing = Listing(
        Check._fields, [check.to_json() for check in report.checks], HEADER, list(map(_cells, report.checks)), _SHOWS,
        [check.verdict == FAILED for check in report.checks],
    )  # fmt: skip
    tables.show(
        form, listing, selftest_run.SCHEMA, lambda told: {**report.to_json(), "checks": told},
        text=lambda: tables.say_notes(lines(report)),
    )  # fmt: skip
    if report.stopped:
        return 128 + signal.Signals[report.stopped]
    return {OK: Exit.OK, FAILED: Exit.FAILED}.get(report.verdict, Exit.PARTIAL)


def _say(text: str) -> None:
    common.say(f"selftest: {text}", err=True)


def lines(report: Report) -> list[str]:
    """Verdict and what does not hold, then all checks."""
    shown = [_verdict(report)]
    same: dict[tuple[str, str], list[str]] = {}  # one line for what several checks say
    for check in report.checks:
        if check.verdict == FAILED:
            same.setdefault((check.step, _seen(check)), []).append(check.name)
    shown += [f"  {step} {', '.join(names)}: {text}" for (step, text), names in same.items()]
    row = limits.card(report.device.vendor, report.device.model)
    if report.device.vendor == "emu":
        shown.append("limits: those of emulated GPUs")
    elif row:
        shown.append(f"limits: those of {row.name} (docs/selftest.md)")
    elif report.device.model:
        shown.append(f"limits: no peaks are known for model {report.device.model!r}: judged by what needs none")
    return [*shown, "", *tables.lines(HEADER, list(map(_cells, report.checks)))]


HEADER = ("STEP", "CHECK", "VERDICT", "VALUE", "WANTED", "NOTE")
_SHOWS = {"CHECK": "name", "WANTED": "low", "NOTE": "text"}


def _cells(check: Check) -> list[str]:
    return [check.step, check.name, check.verdict, _value(check), _range(check), check.text]


def _verdict(report: Report) -> str:
    made = report.count(OK) + report.count(FAILED)
    left = report.count(NOT_CHECKED)
    counts = {
        OK: f"{made} checks hold",
        FAILED: f"{report.count(FAILED)} of {made} checks do not hold",
        INCOMPLETE: f"no benchmark was run, {made} checks hold",
        INTERRUPTED: f"by {report.stopped}; {report.count(OK)} checks held, {report.count(FAILED)} did not",
    }[report.verdict]
    device = report.device
    card = " ".join(filter(None, (f"GPU {report.node}:{device.slot}", device.model, device.uuid)))
    what = f"{counts}, {left} not checked"
    return f"selftest {report.verdict}: {what}; {card}, backend {report.backend}, {report.seconds:.0f} s"


def _value(check: Check) -> str:
    return "-" if check.value is None else f"{check.value:.5g} {check.unit}".rstrip()


def _range(check: Check) -> str:
    if check.low is None and check.high is None:
        return "-"
    if check.low is None:
        return f"<= {check.high:.4g}"
    return f">= {check.low:.4g}" if check.high is None else f"{check.low:.4g} .. {check.high:.4g}"


def _seen(check: Check) -> str:
    number = "" if check.value is None else f"{_value(check)}, wanted {_range(check)}"
    if check.low is None and check.high is None:
        number = ""
    source = f"({check.source})" if number and check.source else ""
    return " ".join(filter(None, (": ".join(filter(None, (number, check.text))), source))) or "does not hold"
