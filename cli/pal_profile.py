# SPDX-License-Identifier: MIT
"""pal-profile: measure every GPU of the cluster, through Slurm jobs."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from slurm_pal.base import config as settings
from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError
from slurm_pal.cli import common, tables
from slurm_pal.cli.aliases import renamed
from slurm_pal.cli.gpu_scores import show
from slurm_pal.cli.selftest import selftest
from slurm_pal.cli.sweep import network, plan, print_summary, run
from slurm_pal.profiling.sweep import collect, sweep_state
from slurm_pal.profiling.sweep.lock import at_work
from slurm_pal.profiling.sweep.progress import describe_pause
from slurm_pal.profiling.sweep.sweep_state import OVER, SweepDirectory
from slurm_pal.report.listing import Listing
from slurm_pal.store import snapshot
from slurm_pal.store.snapshot import LevelRatio

METHODS = ("exact", "pal", "pal-artifact")


@click.group()
@common.version_option
@common.verbose_option
def pal_profile() -> None:
    """Measure the GPUs of this cluster, one low-priority Slurm job for each idle node.

    \b
    Examples:
      pal-profile plan                  what a sweep would do, and what it would cost
      pal-profile run --budget 4        measure the stalest nodes for at most 4 GPU-hours
      pal-profile run --resume          continue the last sweep
      pal-profile network               what the network costs between nodes
      pal-profile status                where each node of the last sweep stands
      pal-profile show n7               scores and history of a node's GPUs; of one: n7:0
      pal-profile selftest              one card, checked: run it first on a new kind of GPU
    """


@pal_profile.command()
@click.argument("sweep", required=False, default="")
@tables.table_options
@common.verbose_option
def status(sweep: str, form: tables.Form) -> None:
    """Where each node of a sweep stands (default: the last sweep), and what is known of the network."""
    config = settings.load()
    state_dir = config.state_dir
    found = sweep_state.load(state_dir, sweep)
    levels = _levels(config)
    counts = {state: n for state, n in found.counts().items() if n}
    doing = _doing(found, at_work(state_dir))
    nodes = [{"node": node, **state._asdict()} for node, state in found.nodes.items()]

    def body(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        pause = found.pause._asdict() if found.pause and doing.startswith("paused") else None
        head = {"sweep": found.sweep_id, "state": doing.partition(" ")[0], "pause": pause, "counts": counts}
        shown_levels = {str(level): row._asdict() for level, row in levels.items()}
        return {**head, "nodes": told, "skipped": found.terms.skipped, "levels": shown_levels}

    def text() -> None:
        common.say(f"sweep {found.sweep_id} {doing}: " + ", ".join(f"{n} {state}" for state, n in counts.items()))
        width = max((len(node) for node in found.nodes), default=4)
        for node, state in found.nodes.items():
            job = str(state.job_id or "-")
            common.say(f"{node:{width}}  {state.state:9}  job {job:8}  {state.gpus:2} GPUs  {state.reason}".rstrip())
        common.say(*(row.line(level) for level, row in levels.items()))

    names = ("node", *sweep_state.NodeState._fields)
    tables.show(form, Listing(names, nodes), "sweep_status", body, text=text)


def _levels(config: Config) -> dict[int, LevelRatio]:
    """What is published of the network; {} where nothing is."""
    try:
        return snapshot.read(config.snapshot_path).levels
    except DataError:
        return {}


def _doing(sweep: SweepDirectory, at_work: str) -> str:
    """What a sweep is doing: running, paused (why), ended, or stopped with nodes left."""
    if at_work == sweep.sweep_id:
        return describe_pause(sweep.pause) if sweep.pause else "running"
    return "ended" if all(s.state in OVER for s in sweep.nodes.values()) else "stopped"


class _BenchCommand(click.Command):
    """Its options are argparse's, on a node where no click may be loaded; a shell completes them all the same."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from slurm_pal.profiling.node.bench import parser

        words = dict.fromkeys(re.findall(r"--[a-z-]+", parser().format_usage()))
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


@pal_profile.command(
    cls=_BenchCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
def bench(argv: tuple[str, ...]) -> int:
    """Measure the GPUs of this node; this is what a sweep job runs."""
    from slurm_pal.profiling.node.bench import main as bench_main

    return bench_main(argv)


@pal_profile.command("publish-scores")
@click.option("--method", type=click.Choice(METHODS), help="How classes are formed (default: classes.method).")
@common.json_option
@common.verbose_option
def publish_scores(method: str | None, as_json: bool) -> int:
    """Take in the results in the spool, recompute scores and classes, and publish their snapshot now.

    Sweeps do this by themselves. It does not write the submit filter's table: `pal publish-table` does.
    Exit code 8 when nothing could be published, 1 when a part of the spool was refused.
    """
    return print_summary(collect.collect(settings.load(), None, time.time(), method), as_json)


renamed(pal_profile, publish_scores, "publish")
for command in (plan, run, network, show, selftest):
    pal_profile.add_command(command)


def main() -> None:
    """Entry point."""
    common.run(pal_profile, "pal-profile")


if __name__ == "__main__":
    main()
