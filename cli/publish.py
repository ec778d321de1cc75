# SPDX-License-Identifier: MIT
"""pal publish-table: what the submit filter and the plug-in on the nodes read."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from typing import Any

import click

from slurm_pal.base import config as settings
from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, PalError, one_line
from slurm_pal.base.notify import ALIVE, READY, STOPPING, notify
from slurm_pal.base.terminal import visible
from slurm_pal.cli import common
from slurm_pal.cli.complaints import Complaints
from slurm_pal.cli.until_signal import Woken, until_signal
from slurm_pal.decide.aside import fault_of
from slurm_pal.decide.lease_marks import Update
from slurm_pal.leases import pinned, promise
from slurm_pal.publisher.publication import Publication, Publisher
from slurm_pal.slurm.cli import CliClient

TIMEOUT_S = 15.0
QUERY_SHARE = 5.0  # queries to Slurm take at most a fifth of the time
SHORTEST_PAUSE_S = 0.1
CHUNK_S = 1.0  # between two signs of life
MOST_FAILED = 5  # unexpected failures in a row: after them a new process may do better
LOCK_WAIT_S = 15.0  # for a lease guard that clears up after the previous publisher
FILTER_LOOKS_S = 1.1  # the filter looks for a new table once a second; until then it may still promise


@click.command("publish-table")
@click.option("--every", type=float, metavar="SECONDS", help="Stay, repeat this often, and take leases back.")
@common.json_option
@common.verbose_option
def publish_table(every: float | None, as_json: bool) -> None:
    """Write the submit filter's table of free GPUs, and gpus.txt for the nodes.

    \b
    Examples:
      pal publish-table                once, as from cron: the filter then sets only preferences
      pal publish-table --every 5      as a service, by SlurmUser or root

    With --every it ends the leases of jobs that have waited long enough for the GPUs they
    were promised; the filter promises GPUs only while it runs. SIGTERM and Ctrl-C end it
    cleanly. paths.table and paths.gpus in pal.toml say where the files are. Sweeps and
    `pal-profile publish-scores` publish the scores that it reads.
    """
    config = settings.load()
    _check(config, every)
    publisher = Publisher(config, CliClient(timeout_s=TIMEOUT_S), every is not None, every or math.inf)
    with promise.publishing(config.table_path, LOCK_WAIT_S if every is not None else 0.0):
        if every is None:
            _once(config, publisher, as_json)
        else:
            _stay(publisher, every, as_json)


def _check(config: Config, every: float | None) -> None:
    if every is not None:
        common.check_every(config, every)
    folder = os.path.dirname(config.table_path)
    if not os.path.isdir(folder):
        raise DataError(f"no directory {folder} for the filter's table: mkdir {folder}, or set paths.table in pal.toml")


def _once(config: Config, publisher: Publisher, as_json: bool) -> None:
    done = publisher.publish(time.time())
    if done.trouble:
        raise DataError(done.trouble[0])
    for note in done.table.notes if done.table else ():
        common.say(f"pal: {note}", err=True)
    if as_json:
        common.print_json("publish", _json(done))
        return
    assert done.table is not None
    table = done.table
    common.say(f"{table.path}: {table.nodes} nodes with free GPUs in {table.pools} pools, {table.size} bytes")
    common.say(f"{config.gpus_path}: {'written' if done.gpus_written else 'unchanged'}")


def _stay(publisher: Publisher, every: float, as_json: bool) -> None:
    """Publish again and again until a signal comes. Failures are shown, and the next publication tries again."""
    complaints = Complaints("pal")
    failed = 0
    with until_signal() as woken:
        complaints.tell(publisher.take_over(pinned.Remembered()))
        notify(READY)
        query_s = 0.0
        while True:
            started = time.monotonic()
            try:
                done = publisher.publish(time.time())
                query_s, failed = done.query_s, 0
                complaints.tell(done.reported)
                _print(done, as_json)
                notify(f"STATUS={_status(done)}")
            except (PalError, OSError) as error:
                publisher.silent()
                complaints.tell([one_line(error)])
                notify(f"STATUS=the last publication failed: {one_line(error)}")
            except Exception as error:  # whatever it was: the next publication tries again
                publisher.silent()
                failed += 1
                complaints.tell([f"internal error, {fault_of(error).line}"])
            until_s = started + max(every, QUERY_SHARE * query_s, time.monotonic() - started + SHORTEST_PAUSE_S)
            if failed >= MOST_FAILED or publisher.lost or _sleep(publisher, woken, until_s):
                break
        notify(STOPPING, "STATUS=takes all lists back")
        publisher.stop(time.time())
        time.sleep(FILTER_LOOKS_S)
        try:
            ended, trouble = publisher.take_back_all()
        except PalError as error:
            ended, trouble = [], [one_line(error)]
        except Exception as error:  # the promise stands, and the next holder keeps it
            ended, trouble = [], [f"internal error, {fault_of(error).line}"]
        if not trouble:
            publisher.kept()
        complaints.tell(trouble)
        _print_ended([] if as_json else ended)
    if publisher.lost:
        raise DataError("somebody deleted the publisher's lock: restart pal publish-table")
    if failed >= MOST_FAILED:
        raise PalError(f"{failed} publications in a row failed with internal errors: restart pal publish-table")


def _sleep(publisher: Publisher, woken: Woken, until_s: float) -> bool:
    """Wait for the next publication (monotonic time), with signs of life; return whether a signal came."""
    while (left_s := until_s - time.monotonic()) > 0:
        notify(ALIVE)
        publisher.alive(time.time())
        if woken(min(left_s, CHUNK_S)):
            return True
    return False


def _status(done: Publication) -> str:
    """What `systemctl status` shows."""
    if done.table is None:
        return f"no table: {visible(done.trouble[0])}" if done.trouble else "no table"
    return f"last table: {done.table.nodes} nodes with free GPUs in {done.table.pools} pools"


def _print(done: Publication, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"schema": "pal.publish/1", **_json(done)}))
        return
    _print_ended(done.ended)


def _print_ended(ended: Sequence[Update]) -> None:
    for update in ended:
        words = " ".join(f"{key}={value}" for key, value in update.fields.items())
        common.say(f"job {update.job_id}: its lease has ended, {words}")


def _json(done: Publication) -> dict[str, Any]:
    table: dict[str, Any] | None = None
    if done.table is not None:
        header = done.table.header._asdict()
        table = done.table._asdict() | {"header": header, "notes": list(done.table.notes)}
    ended = [{"job_id": update.job_id, "fields": update.fields} for update in done.ended]
    return {
        "query_s": round(done.query_s, 4), "table": table, "gpus_written": done.gpus_written, "ended": ended,
        "trouble": list(done.trouble),
    }  # fmt: skip
