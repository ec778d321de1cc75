# SPDX-License-Identifier: MIT
"""pal trial: one trace on a live Slurm, arm by arm, beside what the simulator says."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from slurm_pal.base.errors import Exit, PalError, UsageError
from slurm_pal.cli import common, tables
from slurm_pal.cli.simulate.options import number
from slurm_pal.cli.until_signal import until_signal
from slurm_pal.report.listing import Listing

if TYPE_CHECKING:
    from slurm_pal.simulate.trace import Trace
    from slurm_pal.simulate.virtual import VirtualCluster
    from slurm_pal.trial.folder import TrialPlan
    from slurm_pal.trial.trial import Trial

# Everything that is heavy to import is imported where it is used: `pal gpus` shares this process's start.

ASK_S = 300.0
"""A longer trial begins only after a question."""
TOLD_S = 30.0
"""Between two lines of progress where standard error is no terminal."""
STILL = ("arms", "beside", "resume", "yes", *tables.NAMES)
"""What may be given with --resume: all else is in the folder."""


@click.command()
@click.option("--trace", "traces", multiple=True, metavar="FILE", help="Run the jobs of this file (docs/traces.md).")
@click.option("--format", "format_", metavar="NAME", default="auto", show_default=True, help="Format of the traces.")
@click.option("--generate", "specs", multiple=True, metavar="SPEC", help="Draw a trace instead: 'jobs=60,load=0.9'.")
@click.option(
    "--compress", **number(1.0), default=60.0, show_default=True, metavar="N", help="Trace seconds in a lab second."
)
@click.option("--arms", metavar="NAME,...", help="What to compare; see below.  [default: all]")
@click.option("--cluster", default="8x4", show_default=True, metavar="NxG", help="Nodes x GPUs of each lab.")
@click.option("--profile", default="drawn", show_default=True, help="Slowdowns of the GPUs, as for pal simulate.")
@click.option("--slow", metavar="SHARE:FACTOR", help="Share of persistently slower GPUs, e.g. 0.03:1.5 (class A).")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Draws GPUs and the shuffling.")
@click.option(
    "--limit-factor", **number(1.0), metavar="F", help="Jobs without a time limit get F x their run time; else refused."
)
@click.option("--stated", is_flag=True, help="Jobs on an open number of nodes ask for the fewest that hold them.")
@click.option(
    "--locality-penalty", **number(1.0), default=1.7, show_default=True, metavar="FACTOR",
    help="Run time on several nodes over that on one.",
)  # fmt: skip
@click.option(
    "--move-cost", **number(), default=180.0, show_default=True, metavar="S",
    help="A move takes a job at least this long, s of the trace.",
)  # fmt: skip
@click.option("--slurm-conf", metavar="FILE", help="The site's slurm.conf, or those of its lines that schedule.")
@click.option("--pal-toml", metavar="FILE", help="The site's pal.toml.")
@click.option("--beside", type=click.IntRange(1, 16), default=1, show_default=True, help="Arms at the same time.")
@click.option("--out", metavar="DIR", help="Keep the trial here.  [default: a new folder in the state directory]")
@click.option("--resume", metavar="DIR", help="Go on with the trial in DIR: arms that were finished are not run again.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before a long trial.")
@tables.table_options_beside_a_trace
@common.verbose_option
@click.pass_context
def trial(context: click.Context, /, **options: Any) -> None:  # noqa: ANN401  # one entry for each option
    """Run a trace on a live Slurm in compressed time, arm by arm, and compare with the simulator.

    Each arm has a lab of its own (pal lab) with the site's scheduler settings. Its jobs are submitted
    at their moments and take as long as the emulated GPUs that they get. The table shows mean completion
    time, its ratio to plain sbatch, and the same by pal simulate.

    \b
    Arms:
      sbatch       plain sbatch
      palsub       every job by palsub
      filter       sbatch, with the submit filter
      tick         palsub, and ticks that set node lists of pending jobs
      tick+moves   the same, and moves
      tick+gather  tick+moves, and spread jobs are brought together
      tick+wait    tick, and jobs at the head wait for better GPUs
      tick+order   tick, and the order of the queue
      placebo      tick+moves with shuffled scores: what the scores are worth is the rest
    Other levers of the tick, and several, the same way: tick-retarget, tick+gather+wait.

    \b
    Examples:
      pal trial --generate 'jobs=50,cap_h=1,load=0.9' --stated
      pal trial --trace sacct.txt --slurm-conf /etc/slurm/slurm.conf --pal-toml /etc/slurm/pal.toml -y
      pal trial --resume DIR --json

    Ctrl-C ends the labs and prints what is finished.
    """
    from slurm_pal.lab.programs import account_name, find_programs
    from slurm_pal.simulate.pool import processors
    from slurm_pal.trial.folder import TrialFolder
    from slurm_pal.trial.live import check_programs
    from slurm_pal.trial.trial import Trial

    if options["resume"]:
        _check_resume(context)
        folder = TrialFolder(options["resume"])
        plan, traces = folder.load()
        if options["arms"]:
            plan = plan._replace(arms=_arms(",".join(dict.fromkeys((*plan.arms, *options["arms"].split(","))))))
    else:
        plan, traces = _planned(options)
        folder = TrialFolder(options["out"] or _default_folder())
    running = Trial(plan, traces, folder)
    running.check(processors())
    if options["resume"]:
        running.recall()
    if running.left():
        find_programs()
        account_name()
        check_programs(plan.arms)
    _announce(running, options)
    if not options["resume"]:
        folder.make(plan, traces)
    with folder.claimed():
        folder.write_plan(plan)
        interrupted = _run(running, options["beside"])
    running.simulate(running.complete())
    running.decide_again()
    _show(running, options)
    if interrupted or running.left():
        _keep_word(running)
    context.exit(Exit.INTERRUPTED if interrupted else Exit.OK)


def _check_resume(context: click.Context) -> None:
    """Raises UsageError for an option that is in the folder already."""
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") == click.core.ParameterSource.COMMANDLINE
        if given and parameter.expose_value and parameter.name not in STILL:
            raise UsageError(f"{parameter.opts[0]} means nothing with --resume: the folder has the trial's own")


def _arms(text: str) -> tuple[str, ...]:
    from slurm_pal.trial.arms import parse_arms

    return parse_arms(text)


def _planned(options: dict[str, Any]) -> tuple[TrialPlan, tuple[Trace, ...]]:
    """The plan of a new trial and its traces. Raises UsageError, ConfigError."""
    from slurm_pal.base import config
    from slurm_pal.simulate.experiment import Experiment
    from slurm_pal.simulate.profiles import SlowShare, parse_slow, profile_of
    from slurm_pal.simulate.virtual import parse_cluster
    from slurm_pal.slurm.site_conf import pairs
    from slurm_pal.trial import compression, scaling
    from slurm_pal.trial.arms import ARMS
    from slurm_pal.trial.folder import TrialPlan

    arms, compress = _arms(options["arms"] or ",".join(ARMS)), options["compress"]
    cluster = parse_cluster(options["cluster"])
    originals = _traces(options, cluster)
    traces = tuple(
        compression.fitted(trace, cluster, compress, options["limit_factor"], options["stated"]) for trace in originals
    )
    source = profile_of(options["profile"])
    slow = parse_slow(options["slow"]) if options["slow"] else SlowShare()
    machine = Experiment((traces[0],), cluster, source, slow).machine(options["seed"])
    conf = pairs(_readable(options["slurm_conf"], "--slurm-conf")) if options["slurm_conf"] else {}
    scheduler = scaling.scheduler(conf, compress)
    if options["pal_toml"]:
        site = config.load({"SLURM_PAL_CONFIG": _readable(options["pal_toml"], "--pal-toml"), "XDG_CONFIG_HOME": "/"})
    else:
        site = config.Config()
    penalty, move_cost_s = options["locality_penalty"], options["move_cost"]
    notes = [f"Scheduler: {note}." for note in scheduler.notes]
    for trace, original in zip(traces, originals, strict=True):
        jobs = compression.lab_jobs(trace, compress, penalty, move_cost_s)
        notes += [f"{trace.name}: {note}" for note in compression.notes(jobs, original, compress)]
        if trace.bad:
            notes.append(f"{trace.name}: {len(trace.bad)} bad rows are left out (pal trace describe).")
    return TrialPlan(
        tuple(trace.name for trace in traces), len(cluster.names), cluster.per_node, compress, arms, options["seed"],
        machine.true, f"{source.text()}{f', {slow.text()}' if options['slow'] else ''}", scheduler.edits,
        scaling.pal_settings(site, compress, move_cost_s), penalty, move_cost_s, tuple(notes),
    ), traces  # fmt: skip


def _readable(path: str, option: str) -> str:
    if not os.access(path, os.R_OK) or not os.path.isfile(path):
        raise UsageError(f"{option} {path}: there is no such file that you can read")
    return os.path.abspath(path)


def _traces(options: dict[str, Any], cluster: VirtualCluster) -> tuple[Trace, ...]:
    from slurm_pal.cli.simulate.trace_inputs import generated, options_of
    from slurm_pal.simulate.inputs import read

    if not options["traces"] and not options["specs"]:
        raise UsageError("give a trace with --trace FILE, or --generate SPEC (--generate '' takes the defaults)")
    reading = options_of({"app_table": None, "app_patterns": (), "processors_per_gpu": 1})
    found = [read(path, options["format_"], reading) for path in options["traces"]]
    found += [generated(spec, cluster.n_gpus) for spec in options["specs"]]
    for trace in found:
        if not trace.jobs:
            raise UsageError(f"trace {trace.name}: no job to run: {len(trace.bad)} bad rows")
    return tuple(found)


def _default_folder() -> str:
    from slurm_pal.lab.directory import default_directory

    state = os.path.dirname(default_directory(os.environ))
    return os.path.join(state, "trials", time.strftime(f"%Y%m%d-%H%M%S-{os.getpid()}"))


def _announce(running: Trial, options: dict[str, Any]) -> None:
    """Say how long it will take, and ask where that is long."""
    from slurm_pal.report.trial import announced, duration

    if not running.left():
        return
    expected = running.expected(options["beside"])
    until = time.strftime(
        "%H:%M" if expected.seconds < 43200 else "%a %H:%M", time.localtime(time.time() + expected.seconds)
    )
    common.say(f"pal trial: {announced(running, options['beside'], until)}", err=True)
    if expected.seconds <= ASK_S or options["yes"]:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"it would take {duration(expected.seconds)}: give -y to begin without a question")
    click.confirm("Begin?", abort=True, err=True)


def _run(running: Trial, beside: int) -> bool:
    """Run what is left; whether a signal cut it short."""
    from slurm_pal.cli.simulate.run import bar
    from slurm_pal.trial.beside import POLL_S

    runner = running.runner(beside)
    told_s = time.monotonic()
    try:
        with until_signal() as woken, bar(sum(one.jobs for one in running.progress.values())) as watch:
            while not runner.over():
                if woken(POLL_S):
                    common.say("pal trial: ending the labs", err=True)
                    runner.end()
                    return True
                watch(sum(one.ended for one in running.progress.values()))
                if not sys.stderr.isatty() and time.monotonic() - told_s >= TOLD_S:
                    told_s = time.monotonic()
                    _tell(running)
    except PalError:
        if running.results:
            _keep_word(running)
        raise
    except BaseException:
        runner.end()
        raise
    return False


def _tell(running: Trial) -> None:
    """How far the arms are that run now, in one line."""
    now = [
        f"{arm}{f' of {running.traces[k].name}' * (len(running.traces) > 1)}: {one.ended} of {one.jobs} jobs ended, "
        f"{one.submitted} submitted"
        for (k, arm), one in running.progress.items()
        if one.submitted and (k, arm) not in running.results
    ]
    common.say(f"pal trial: {len(running.results)} arms finished; {'; '.join(now) or 'a lab starts'}", err=True)


def _keep_word(running: Trial) -> None:
    from slurm_pal.report.table import counted

    kept, path = counted(len(running.results), "finished arm"), running.folder.path
    common.say(f"pal trial: {kept} in {path}; go on with pal trial --resume {path}", err=True)


def _show(running: Trial, options: dict[str, Any]) -> None:
    from slurm_pal.report import trial as report

    form: tables.Form = options["form"]
    if form.as_json:
        common.print_json("trial", report.as_json(running))
    elif form.plain or (form.parsable2 and not form.columns and not form.sort):  # the table of arms
        common.say(*report.lines(running, form.noheader, form.parsable2, common.screen_width()))
        common.say(f"pal trial: kept in {running.folder.path}", err=True)
    else:
        tables.show(form, Listing(report.JOB_COLUMNS, report.job_rows(running)), "trial", lambda told: {})
