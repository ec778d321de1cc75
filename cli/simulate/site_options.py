# SPDX-License-Identifier: MIT
"""The options of pal simulate --site. Light to import: `pal gpus` shares this process's start."""

from __future__ import annotations

import click
from click.core import ParameterSource

from slurm_pal.base.errors import UsageError
from slurm_pal.cli.tables import NAMES

DAYS = 60  # a claim needs six weeks that are independent

SITE_OPTIONS = (
    click.option("--site", is_flag=True, help="What this Slurm would gain: its nodes, scores and sacct history."),
    click.option("--days", type=click.IntRange(min=1), metavar="N", help=f"site: days of history.  [default: {DAYS}]"),
    click.option(
        "--all-movable",
        is_flag=True,
        help="site: every job may be moved, not only those that pal.toml names: what moves could bring at most.",
    ),
    click.option("--class-mix", metavar="A=S,B=S,C=S", help="site: shares of classes among jobs of unknown class."),
)  # fmt: skip

SITE = frozenset((
    "site", "days", "class_mix", "all_movable", "causes", "scores",
    "trace", "app_patterns", "profile", "queue", "seeds", "seed", "jitter",
    "locality_penalty", "move_cost", "warm_up", "margin", "tick", "bar", "limit_factor", "backfill", "bf_interval",
    "best_first", "mtbf_h", "repair_h", "failures",
    "jobs", "out", "jobs_out", *NAMES, "verbose",
))  # fmt: skip
"""The options that mean something with --site."""
ONLY_SITE = frozenset(("days", "class_mix", "all_movable"))


def check_site_options(context: click.Context, site: bool) -> None:
    """Raises UsageError for an option of the command line that would be ignored."""
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) == ParameterSource.COMMANDLINE
        if given and (name not in SITE if site else name in ONLY_SITE):
            raise UsageError(f"{parameter.opts[0]} means nothing {'with' if site else 'without'} --site")
