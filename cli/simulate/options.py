# SPDX-License-Identifier: MIT
"""The options of pal simulate, by topic."""

from __future__ import annotations

import math
from typing import Any

import click

from slurm_pal.cli import common
from slurm_pal.cli.simulate.site_options import SITE_OPTIONS
from slurm_pal.cli.tables import NAMES, table_options_beside_a_trace


def number(least: float = 0.0, most: float = math.inf, above: bool = False) -> dict[str, Any]:
    """What makes an option a finite number of at least `least` (or above it) and at most `most`."""

    def check(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
        del context
        if value is None or (math.isfinite(value) and (value > least if above else value >= least) and value <= most):
            return value
        low = f"above {least:g}" if above else f"at least {least:g}"
        high = f" and at most {most:g}" if most < math.inf else ""
        raise click.BadParameter(f"{value:g} must be a number {low}{high}", param=parameter)

    return {"type": float, "callback": check}


COUNT = click.IntRange(min=1)

INPUT = (
    click.option(
        "--trace",
        multiple=True,
        metavar="FILE",
        help="Replay the jobs of this file (docs/traces.md); may be gzip; may be repeated.",
    ),
    click.option("--format", "format_", metavar="NAME", default="auto", show_default=True, help="Format of the trace."),
    click.option("--app-pattern", "app_patterns", multiple=True, metavar="GLOB=APP", help="sacct: class by job name."),
    click.option("--app-table", metavar="FILE", help="sia, shockwave: seconds per iteration and class of models."),
    click.option("--processors-per-gpu", type=COUNT, default=1, show_default=True, help="swf: processors of one GPU."),
    click.option(
        "--throughputs",
        metavar="FILE",
        help="Steps/s by application and GPU type, JSON or CSV (docs/traces.md); for TYPE:GPUS,... and format gavel.",
    ),
    click.option(
        "--prices",
        metavar="TYPE=PRICE,...|FILE",
        help="Per GPU-hour, for gavel:cost and gavel:cost-slo; for min-cost a log of prices.",
    ),
    click.option("--job-days", **number(above=True), metavar="D", help="min-cost: work of a job, days.  [default: 4]"),
    click.option("--reference", metavar="TYPE", help="min-cost: type of GPU.  [default: the log's first]"),
    click.option("--egress", **number(), metavar="MONEY", help="min-cost: leaving a market with the data costs this."),
    click.option(
        "--generate", metavar="SPEC", help="Draw a trace instead: 'jobs=1000,load=0.8,seed=1', or ''; keys: --list."
    ),
)
CLUSTER = (
    click.option(
        "--cluster",
        metavar="NxG",
        help="Nodes x GPUs (NxG/CPUS/GIB: with CPUs and memory), partitions NAME=NxG,..., or TYPE:GPUS[/NODE],... "
        "for unequal GPUs.  [default: 16x4]",
    ),
    click.option("--nodes", type=COUNT, help="The same, in two options."),
    click.option("--gpus-per-node", type=COUNT, help="GPUs of each node.  [default: 4]"),
    click.option(
        "--keep-partitions", is_flag=True, help="Partitions the cluster lacks span all nodes, with own queues."
    ),
    click.option(
        "--profile", "--profile-dir", metavar="PROFILE", help="Slowdowns of the GPUs: see --list.  [default: drawn]"
    ),
    click.option("--slow", metavar="SHARE:FACTOR", help="Share of persistently slower GPUs, e.g. 0.03:1.5 (class A)."),
    click.option("--scores", default="exact", show_default=True, metavar="WORDS", help="What is believed: see --list."),
    click.option(
        "--mtbf",
        "mtbf_h",
        **number(above=True),
        metavar="H",
        help="Nodes fail: mean time between failures of one, hours.",
    ),
    click.option(
        "--repair",
        "repair_h",
        **number(above=True),
        default=4.0,
        show_default=True,
        metavar="H",
        help="Hours until they come back.",
    ),
    click.option("--failures", metavar="FILE", help="Nodes fail as this CSV says: node,down_s,up_s."),
)
COMPARISON = (
    click.option(
        "--policy",
        "policies",
        multiple=True,
        metavar="NAME,...",
        help="What to compare.  [default: slurm-twin,palsub,filter,tick; TYPE:GPUS: slurm,gavel:max-min,pal-share]",
    ),
    click.option(
        "--baseline",
        metavar="NAME",
        help="Compared with.  [default: slurm-twin, packed, or the first]",
    ),
    click.option("--queue", default="fifo", show_default=True, metavar="NAME", help="Who is first in line."),
    click.option(
        "--seeds", type=COUNT, metavar="N", help="Paired runs of each policy.  [default: 8; TYPE:GPUS: 1; aryl: 3]"
    ),
    click.option("--seed", type=click.IntRange(min=0), metavar="S", help="The first seed.  [default: 1]"),
    click.option(
        "--jitter",
        **number(),
        metavar="S",
        help="Submissions move by up to S seconds, by seed.  [default: 600; 0 with one seed]",
    ),
    click.option(
        "--background",
        **number(),
        default=0.0,
        metavar="JOBS_PER_H",
        help="Load after the last submission: its jobs again, unreported.",
    ),
    click.option(
        "--worst",
        type=click.IntRange(min=0),
        metavar="K",
        help="Share of the gain from the K slowest GPUs; 0: skip.  [default: 1 for studies, 0 for the program]",
    ),
    click.option(
        "--causes/--no-causes",
        default=True,
        show_default=True,
        help="Split the ratio by placebo runs: shuffled scores, identical GPUs, levers switched off.",
    ),
    click.option(
        "--sweep",
        "sweeps",
        multiple=True,
        metavar="load|move-cost",
        help="Gain against load, or cost of a move; may be repeated.",
    ),
)
COSTS = (
    click.option(
        "--locality-penalty",
        "--locality",
        **number(1.0),
        metavar="FACTOR",
        help="Run time on several nodes over that on one.  [default: 1.7]",
    ),
    click.option(
        "--move-cost",
        **number(),
        metavar="S",
        help="Checkpoint, Slurm's gap and restart.  [default: 180; replica: 0]",
    ),
    click.option("--warm-up", **number(), metavar="S", help="Time without progress after each start.  [default: 0]"),
    click.option("--margin", **number(), metavar="FACTOR", help="A move must gain this many times its cost."),
    click.option(
        "--tick",
        "--round",
        "tick",
        **number(above=True),
        metavar="S",
        help="How often moves are planned.  [default: 300; tick: pal.toml; replica: 360]",
    ),
    click.option("--bar", **number(1.0), metavar="SLOWDOWN", help="Sensitive jobs are kept off slower GPUs."),
    click.option(
        "--limit-factor",
        **number(1.0),
        metavar="FACTOR",
        help="Time limit over ideal run time, for jobs without a limit.",
    ),
    click.option("--backfill/--no-backfill", default=None, help="EASY backfill.  [default: yes; replica: no]"),
    click.option(
        "--bf-interval", **number(), metavar="S", help="Time between backfill passes; 0: at every event.  [default: 30]"
    ),
    click.option(
        "--steer",
        type=click.Choice(["start", "submit"]),
        help="submit: only jobs that can start at once are placed by us.",
    ),
    click.option("--best-first", is_flag=True, help="Within a node the best GPU for the class, not the lowest index."),
)
OUTPUT = (
    click.option("--jobs", type=COUNT, metavar="N", help="Processes.  [default: one per core]"),
    click.option("--out", metavar="DIR", help="Write the page, pictures, jobs.csv and summary.json there."),
    click.option("--jobs-out", metavar="DIR", help="Write NAME.csv there: job_id,submit_s,start_s,finish_s,gpus."),
    click.option("-v", "--verbose", count=True, help="More detail; -vv shows tracebacks."),
    click.option("--list", "list_", is_flag=True, help="Policies, queues, formats, profiles and scores."),
    click.option("--replica", metavar="blox-pal|gavel", help="A published simulator instead, job for job."),
    click.option("--window", metavar="FIRST:END", help="TYPE:GPUS and replica gavel: report these jobs, from 0."),
    click.option(
        "--replay/--no-replay",
        default=None,
        help="Replica: endless copies of the trace keep the load up.  [default: yes]",
    ),
)

_REPORTED = ("trace", "format_", "cluster", "policies", "seed", "tick", "jobs", "jobs_out", *NAMES,
             "list_", "replica", "verbose")  # fmt: skip
REPLICAS = {
    "blox-pal": frozenset((
        *_REPORTED, "nodes", "gpus_per_node", "profile", "queue", "seeds", "locality_penalty", "move_cost", "bar",
        "backfill", "out", "replay",
    )),
    "gavel": frozenset((*_REPORTED, "throughputs", "window")),
}  # fmt: skip
"""The published simulators, and the options that mean something with each."""
UNEQUAL = frozenset((
    "trace", "format_", "app_patterns", "app_table", "processors_per_gpu", "throughputs", "prices", "generate",
    "cluster", "policies", "seeds", "seed", "jitter", "move_cost", "limit_factor", "jobs", *NAMES,
    "list_", "verbose", "window", "profile", "locality_penalty",
))  # fmt: skip
"""The options that mean something with --cluster TYPE:GPUS,... ."""
LOANS = frozenset((
    "policies", "generate", "seeds", "seed", "jobs", *NAMES, "list_", "verbose",
))  # fmt: skip
"""The options that mean something with --policy aryl,... ."""
PRICED = frozenset((
    "policies", "prices", "throughputs", "job_days", "reference", "egress", "move_cost", *NAMES,
    "list_", "verbose",
))  # fmt: skip
"""The options that mean something with --policy min-cost."""
NOT_PLAIN = {
    "job_days": "--policy min-cost",
    "reference": "--policy min-cost",
    "egress": "--policy min-cost",
    "replay": "--replica",
    "prices": "--cluster TYPE:GPUS,... or --policy min-cost",
    "window": "--replica gavel or --cluster TYPE:GPUS,...",
}
"""Options that mean nothing on a cluster of nodes, and what they need."""


def simulate_options(command: common.Command) -> common.Command:
    command = table_options_beside_a_trace(command)
    for option in reversed((*INPUT, *CLUSTER, *COMPARISON, *COSTS, *SITE_OPTIONS, *OUTPUT)):
        command = option(command)
    return command
