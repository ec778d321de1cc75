# SPDX-License-Identifier: MIT
"""pal have: a job reports that its node has a local copy of an input."""

from __future__ import annotations

import os
import re
import time

import click

from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.cli import common

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--at", metavar="COPY", help="Where the copy is, to find out its size; without it PATH is looked at.")
@click.option("--gone", is_flag=True, help="The copies are no longer there.")
def have(paths: tuple[str, ...], at: str | None, gone: bool) -> None:
    """Report that this node has a local copy of PATH, an input of your jobs (#PAL input=PATH).

    Jobs of yours that name the same input are then sent to nodes that have it, where that costs nothing else. A copy
    is believed for a week; report it again when you have used it. Called in a job's script, once on each node.

    \b
    Examples:
      cp -r /data/set1 /local/set1 && pal have /data/set1 --at /local/set1
      pal have --gone /data/set1
    """
    from slurm_pal.submit import copies
    from slurm_pal.submit.inputs import size_of

    node = os.environ.get("SLURMD_NODENAME", "")
    if not _NODE.fullmatch(node):
        raise UsageError("this is no job: call pal have in a job's script, where SLURMD_NODENAME is set")
    if at is not None and len(paths) > 1:
        raise UsageError(f"--at {at!r} is the copy of one PATH, but {len(paths)} were given")
    named = [os.path.abspath(path) for path in paths]
    try:
        if gone:
            copies.remove(node, named, time.time())
            return
        sizes = {}
        for path in named:
            looked_at = at or path
            try:
                sizes[path] = size_of(looked_at)
            except OSError as error:
                raise UsageError(f"{looked_at}: {error.strerror}: there is no copy to report") from None
        copies.add(node, sizes, time.time())
    except OSError as error:
        raise DataError(f"the copies of {node} cannot be remembered: {error.strerror}") from None
    common.say(f"{node} has {', '.join(named)}", err=True)
