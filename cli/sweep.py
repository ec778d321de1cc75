# SPDX-License-Identifier: MIT
"""pal-profile plan, run, network: sweeps of nodes and of pairs of nodes."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from slurm_pal.base import config as settings
from slurm_pal.base import hooks
from slurm_pal.base.config import Config
from slurm_pal.base.errors import Exit, PalError, UsageError, one_line
from slurm_pal.base.hostlist import fold, typed
from slurm_pal.cli import common
from slurm_pal.cli.aliases import Renamed
from slurm_pal.profiling.sweep import collect, prepare, sweep_state
from slurm_pal.profiling.sweep.lock import only_sweep
from slurm_pal.profiling.sweep.plan import SweepPlan, SweepRequest, duration_s, sample_size
from slurm_pal.profiling.sweep.prepare import MeasureOptions, SweepSurvey
from slurm_pal.profiling.sweep.progress import shown, stoppable
from slurm_pal.profiling.sweep.sweep import Sweep, SweepListeners
from slurm_pal.profiling.sweep.sweep_state import FAILED, PARTIAL, SweepDirectory
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.client import SlurmClient
from slurm_pal.store.level_ratios import Level

MAX_FIRST = 6
PAIRS = 8


def _choice_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of `plan` and `run` that choose the nodes and how they are measured."""
    for option in reversed(
        (
            click.option(
                "-w", "--nodelist", cls=Renamed, was=["--nodes"], metavar="HOSTLIST", help="Only these nodes."
            ),
            click.option("--sample", metavar="N|P%", default="", help="Only a random sample of them."),
            click.option("--since", metavar="AGE", help="Only nodes not measured for this long, e.g. 30d or 12h."),
            click.option("--max-nodes", type=click.IntRange(min=1), help="At most this many nodes."),
            click.option(
                "--budget", metavar="GPU-HOURS", type=click.FloatRange(min=0), help="At most this many GPU-hours."
            ),
            click.option(
                "--budget-per-day",
                metavar="GPU-HOURS",
                type=click.FloatRange(min=0),
                help="At most this many GPU-hours in 24 h, of all sweeps (default: profile.budget_gpu_h_per_day).",
            ),
            click.option(
                "--window",
                metavar="HH:MM-HH:MM",
                help="Submit only in these hours, local time, e.g. 20:00-06:00 (default: profile.window).",
            ),
            click.option("--max-parallel", type=click.IntRange(min=1), help="Nodes at once (default: 5 %, 1 to 16)."),
            click.option("--bench", metavar="ID,...", default="", help="Only these benchmarks."),
            click.option("--quick", is_flag=True, help="Only the three short ones of the default benchmarks."),
            click.option(
                "--mode",
                type=click.Choice(["concurrent", "solo"]),
                default="concurrent",
                help="All GPUs of a node at once (the default), or one after the other.",
            ),
            click.option(
                "--mig", is_flag=True, help="Also measure partitions of GPUs in MIG mode, which are otherwise refused."
            ),
            click.option("--seed", type=int, help="Seed of the sample and of emulated noise."),
            click.option(
                "--gpu-timeout-s", type=click.FloatRange(min=0.1), help="Give up on a GPU that is silent for longer, s."
            ),
            click.option(
                "--wall-scale", type=click.FloatRange(min=0), help="Emulated GPUs: wall seconds per device second."
            ),
        )
    ):
        command = option(command)
    return command


def _request(options: dict[str, Any]) -> tuple[SweepRequest, MeasureOptions]:
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"--{name.replace('_', '-')} {value:g} must be a finite number; leave it out for no limit")
    if options["sample"]:
        sample_size(options["sample"], 1)  # report what is wrong before Slurm is asked
    nodes = typed(options["nodelist"]) if options["nodelist"] is not None else None
    if nodes == ():
        raise UsageError("--nodelist names no node; write it like n[1-4,7]")
    request = SweepRequest(
        nodes=nodes,
        sample=options["sample"],
        since_s=duration_s(options["since"]) if options["since"] else None,
        max_nodes=options["max_nodes"],
        budget_gpu_h=options["budget"],
        seed=options["seed"] or 0,
    )
    wish = MeasureOptions(
        max_parallel=options["max_parallel"],
        benchmarks=options["bench"],
        quick=options["quick"],
        seed=options["seed"],
        wall_scale=options["wall_scale"],
        gpu_timeout_s=options["gpu_timeout_s"],
        mode=options["mode"],
        mig=options["mig"],
        window=options["window"],
        budget_gpu_h_per_day=options["budget_per_day"],
    )
    return request, wish


def _survey(client: SlurmClient, config: Config, options: dict[str, Any]) -> tuple[SweepSurvey, MeasureOptions]:
    request, wish = _request(options)
    now_s = time.time()
    newest, urgent = collect.newest_by_node(config, now_s), collect.urgent_nodes(config)
    return prepare.survey(client, config, request, wish, newest, urgent, now_s, os.environ), wish


def _plan_lines(found: SweepSurvey) -> list[str]:
    plan = found.plan
    lines = [
        f"{len(plan.chosen)} nodes, {plan.gpus} GPUs, about {plan.node_s:.0f} s each, {found.max_parallel} at once: "
        f"about {plan.gpu_hours:.3g} GPU-hours" + (" (emulated)" if found.setting.name == "emu" else "")
    ]
    if plan.chosen:
        lines.append(f"  {fold([c.node for c in plan.chosen])}")
    first = [f"{c.node} ({c.why})" for c in plan.chosen if c.why]
    if first:
        more = f" and {len(first) - MAX_FIRST} more" if len(first) > MAX_FIRST else ""
        lines.append(f"first: {', '.join(first[:MAX_FIRST])}{more}")
    limits = [f"window {found.window}"] if found.window else []
    limits += [f"{found.budget_gpu_h_per_day:g} GPU-hours in 24 h"] if found.budget_gpu_h_per_day else []
    if limits:
        lines.append(f"within {', '.join(limits)}")
    reasons: dict[str, list[str]] = {}
    for node, reason in plan.skipped.items():
        reasons.setdefault(reason, []).append(node)
    lines += [f"skipped {len(nodes)}: {fold(nodes)} {reason}" for reason, nodes in sorted(reasons.items())]
    return lines


def _plan_json(found: SweepSurvey) -> dict[str, Any]:
    plan: SweepPlan = found.plan
    return {
        "nodes": [c._asdict() for c in plan.chosen],
        "skipped": plan.skipped,
        "gpus": plan.gpus,
        "node_s": plan.node_s,
        "gpu_hours": plan.gpu_hours,
        "max_parallel": found.max_parallel,
        "window": found.window,
        "budget_gpu_h_per_day": found.budget_gpu_h_per_day,
        "backend": found.setting.name,
    }


@click.command()
@_choice_options
@common.json_option
@common.verbose_option
def plan(as_json: bool, **options: Any) -> None:  # noqa: ANN401 - checked in _request
    """Print what `run` would do; submit nothing."""
    config = settings.load()
    found, _ = _survey(connect(config), config, options)
    if as_json:
        common.print_json("plan", _plan_json(found))
    else:
        pairs = int(config.number("profile", "network_pairs"))
        after = [f"then up to {pairs} pairs of nodes at each level of the network"] if pairs else []
        common.say(*_plan_lines(found), *after)


@click.command()
@_choice_options
@click.option(
    "--resume", is_flag=False, flag_value="last", metavar="[SWEEP]", help="Continue a sweep (default: the last)."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@common.json_option
@common.verbose_option
@click.pass_context
def run(context: click.Context, /, as_json: bool, resume: str | None, yes: bool, **options: Any) -> int:  # noqa: ANN401
    """Measure nodes that are idle now, stalest first, one Slurm job for each.

    While users' jobs wait, nothing is submitted, and running jobs leave nodes where
    users' jobs could start; the next job on such a node measures the rest.
    Ctrl-C withdraws pending jobs; running ones finish, and --resume continues from
    there. No question is asked when standard input is not a terminal.
    """
    config = settings.load()
    client = connect(config, sweeps=True)
    if resume is not None:
        sweep = sweep_state.load(config.state_dir, "" if resume == "last" else resume)
        _check_resume(context, sweep)
        with only_sweep(config.state_dir, sweep.sweep_id):
            return _carry_out(client, config, sweep_state.load(config.state_dir, sweep.sweep_id), as_json)
    code, gpu_hours = _run_nodes(client, config, options, yes, as_json)
    if code in (Exit.OK, Exit.FAILED) and config.number("profile", "network_pairs"):
        left_h = None if options["budget"] is None else max(0.0, options["budget"] - gpu_hours)
        return max(code, _then_network(client, config, options | {"budget": left_h}, as_json))
    return code


def _run_nodes(
    client: SlurmClient, config: Config, options: dict[str, Any], yes: bool, as_json: bool
) -> tuple[int, float]:
    """A sweep of nodes. The exit code, and the GPU-hours that it was planned for."""
    sweep_id = sweep_state.new_id(time.time(), *sweep_state.ids(config.state_dir)[-1:])
    with only_sweep(config.state_dir, sweep_id):
        found, wish = _survey(client, config, options)
        common.say(*_plan_lines(found), err=True)
        if not found.plan.chosen:  # for a cron job with --since this is the usual case, not an error
            common.say("nothing to measure now", err=True)
            return print_summary(collect.collect(config, None, time.time()), as_json), 0.0
        if not yes and sys.stdin.isatty() and not click.confirm("Start the sweep?", default=True, err=True):
            raise click.exceptions.Exit(Exit.OK)
        terms = prepare.terms(client, config, found, wish, sweep_id, time.time())
        sweep = sweep_state.create(config.state_dir, terms)
        return _carry_out(client, config, sweep, as_json), found.plan.gpu_hours


def _then_network(client: SlurmClient, config: Config, options: dict[str, Any], as_json: bool) -> int:
    """After the nodes of a sweep, the pairs that levels of the network lack. With `as_json` nothing more is printed.

    Where they cannot be measured, the sweep has been one without them.
    """
    pairs, now_s = int(config.number("profile", "network_pairs")), time.time()
    try:
        return _run_pairs(
            client, config, options, pairs, lambda level: collect.fresh_pairs(config, level, now_s), shows=not as_json
        )
    except UsageError as error:
        common.say(f"network not measured: {one_line(error)}", err=True)
        return Exit.OK


def _run_pairs(
    client: SlurmClient,
    config: Config,
    options: dict[str, Any],
    pairs: int,
    have: Callable[[Level], Mapping[int, int]],
    yes: bool = True,
    as_json: bool = False,
    shows: bool = True,
) -> int:
    """A sweep of pairs of nodes, so many of each level less those that it has. The exit code."""
    sweep_id = sweep_state.new_id(time.time(), *sweep_state.ids(config.state_dir)[-1:])
    with only_sweep(config.state_dir, sweep_id):
        request, wish = _request(options)
        found = prepare.survey_pairs(client, config, request, wish, pairs, have, os.environ)
        common.say(*_pair_lines(found), err=True)
        if not found.plan.chosen:
            return print_summary(collect.collect(config, None, time.time()), as_json) if shows else Exit.OK
        if not yes and sys.stdin.isatty() and not click.confirm("Start the sweep?", default=True, err=True):
            return Exit.OK
        terms = prepare.terms(client, config, found, wish, sweep_id, time.time())
        return _carry_out(client, config, sweep_state.create(config.state_dir, terms), as_json, shows)


def _pair_lines(found: SweepSurvey) -> list[str]:
    plan = found.plan
    emulated = " (emulated)" if found.setting.name == "emu" else ""
    many = "s" * (len(plan.chosen) > 1)
    lines = [
        f"{len(plan.chosen)} pair{many} of nodes, about {plan.node_s:.0f} s each, one at a time: "
        f"about {plan.gpu_hours:.3g} GPU-hours{emulated}"
        if plan.chosen
        else "nothing to measure between nodes now"
    ]
    levels: dict[str, list[str]] = {}
    for pair in plan.chosen:
        levels.setdefault(pair.why, []).append(pair.node)
    lines += [f"  {level}: {' '.join(names)}" for level, names in levels.items()]
    return lines + [f"  {level}: none, {why}" for level, why in plan.skipped.items() if level.startswith("level ")]


def _check_resume(context: click.Context, sweep: SweepDirectory) -> None:
    """Raises UsageError for options that a resumed sweep would ignore, and for a user other than its own."""
    default = click.core.ParameterSource.DEFAULT
    names = [name for name in context.params if name not in ("resume", "yes", "as_json")]
    given = [f"--{name.replace('_', '-')}" for name in names if context.get_parameter_source(name) != default]
    if given:
        raise UsageError(f"{', '.join(given)} cannot be used with --resume, which keeps the sweep's own plan")
    if sweep.terms.uid not in (-1, os.geteuid()):
        raise UsageError(
            f"sweep {sweep.sweep_id} belongs to uid {sweep.terms.uid}, and so do its jobs: resume it as that user"
        )


def _carry_out(client: SlurmClient, config: Config, sweep: SweepDirectory, as_json: bool, shows: bool = True) -> int:
    stop = threading.Event()
    with stoppable(stop) as signals:
        try:
            with shown(sweep, quiet=as_json or not shows) as display:
                told = SweepListeners(display.node, display.pause, lambda: display.note(_publish_part(config, sweep)))
                ended = Sweep(client, sweep, collect.result_directories(config), told, stop).run()
        except PalError:
            with contextlib.suppress(PalError):
                collect.collect(config, sweep, time.time())  # what was measured is worth having at once
            raise
        summary = collect.collect(config, sweep, time.time())
    hooks.call(config, hooks.ON_SWEEP, summary.to_json(), time.time())
    code = print_summary(summary, as_json, shows)
    if not ended:
        common.say(f"continue with: pal-profile run --resume {sweep.sweep_id}", err=True)
        return 128 + signals[0] if signals else Exit.FAILED
    return code or (Exit.FAILED if any(s.state in (FAILED, PARTIAL) for s in sweep.nodes.values()) else Exit.OK)


def _publish_part(config: Config, sweep: SweepDirectory) -> str:
    """Publish what a running sweep has so far, and say so. A failure to publish does not end the sweep."""
    try:
        summary = collect.collect(config, sweep, time.time())
    except PalError as error:
        return f"not published yet: {one_line(error)}"
    if summary.trouble:
        return f"not published yet: {summary.trouble}"
    return f"published {summary.published_gpus} GPUs, {summary.gpus} of them by this sweep"


def print_summary(summary: collect.Summary, as_json: bool, shows: bool = True) -> Exit:
    """Show what was taken in and published; return the exit code for this alone."""
    if not shows:
        pass
    elif as_json:
        common.print_json("sweep", summary.to_json())
    else:
        common.say(*summary.lines())
    if summary.trouble:
        common.say(f"pal-profile: error: not published: {summary.trouble}", err=True)
    hooks.wait()
    return Exit.DATA if summary.trouble else Exit.FAILED if summary.complaints else Exit.OK


@click.command()
@click.option("-w", "--nodelist", metavar="HOSTLIST", help="Only pairs of these nodes.")
@click.option(
    "--pairs", type=click.IntRange(1, 64), help=f"So many of each level (default: profile.network_pairs, else {PAIRS})."
)
@click.option(
    "--budget-per-day",
    metavar="GPU-HOURS",
    type=click.FloatRange(min=0),
    help="At most this many GPU-hours in 24 h, of all sweeps (default: profile.budget_gpu_h_per_day).",
)
@click.option("--window", metavar="HH:MM-HH:MM", help="Submit only in these hours (default: profile.window).")
@click.option("--seed", type=int, help="Seed of emulated noise.")
@click.option("--wall-scale", type=click.FloatRange(min=0), help="Emulated GPUs: wall seconds per device second.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@common.json_option
@common.verbose_option
def network(pairs: int | None, yes: bool, as_json: bool, **options: Any) -> int:  # noqa: ANN401  # checked in _request
    """Measure what the network costs: an all-reduce between two idle nodes, at each of its levels.

    A level is how far apart Slurm's topology has the nodes: 1 on one leaf or block, 2 below one switch of level 1.
    Times are those over the GPUs of both nodes, against those within each. The jobs of two nodes run one after the
    other, by the rules of `run`, which also continues such a sweep with --resume.
    """
    config = settings.load()
    others = {"sample": "", "bench": "", "mode": "", "quick": False, "mig": False}
    options = {str(parameter.name): None for parameter in run.params} | others | options
    wanted = pairs or int(config.number("profile", "network_pairs")) or PAIRS
    return _run_pairs(connect(config, sweeps=True), config, options, wanted, lambda level: {}, yes, as_json)
