# SPDX-License-Identifier: MIT
"""pal-rebalance: retarget what waits, move what runs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import click

from slurm_pal.base import become, hooks
from slurm_pal.base import config as settings
from slurm_pal.base.config import Config
from slurm_pal.base.errors import BusyError, DataError, PalError, UsageError, one_line
from slurm_pal.base.files import slurm_conf
from slurm_pal.base.notify import ALIVE, READY, STOPPING, notify
from slurm_pal.cli import common, tables
from slurm_pal.cli.complaints import Complaints
from slurm_pal.cli.until_signal import Woken, until_signal
from slurm_pal.decide.aside import fault_of
from slurm_pal.decide.facts import appends, requeue_delay_s
from slurm_pal.decide.tick_lease import LeaseKind
from slurm_pal.journal.event_log import EventLog
from slurm_pal.journal.journal import Journal, open_journal
from slurm_pal.journal.paths import journal_path, log_path
from slurm_pal.leases import pinned, promise
from slurm_pal.leases.guard import BYE, LATER
from slurm_pal.leases.guard import beside as guard_beside
from slurm_pal.loans.terms import preemption_of
from slurm_pal.publisher.publication import Publisher
from slurm_pal.report import tick as report
from slurm_pal.report.listing import Listing
from slurm_pal.slurm.accounting import demand_history, preempted_qos
from slurm_pal.slurm.cli import CliClient, subprocess_runner
from slurm_pal.slurm.counted import Counted
from slurm_pal.tick.keeping import Keeper
from slurm_pal.tick.lending import Site, lends
from slurm_pal.tick.ordering import orders
from slurm_pal.tick.role import FEATURES, LOANS, PLACES, WAIT, WEIGHTS, role_of
from slurm_pal.tick.tick import Tick, TickResult

T = TypeVar("T")

TIMEOUT_S = 15.0
QUERY_SHARE = 5.0  # queries to Slurm take at most a fifth of the time
LOOK_S = 0.2  # between looks at moves under way
RETRY_S = 2.0  # the same after one that failed
CHUNK_S = 1.0  # between two signs of life
INTERNAL = "internal error, "  # how a failure of ours is shown
MOST_FAILED = 5
"""After this many unexpected failures in a row a new process may do better."""
LOCK_WAIT_S = 15.0  # for a lease guard that clears up after the previous daemon
LAST_S = 10.0  # given to moves under way when the program must end
ONCE_S = 600.0  # given to those that one tick began; they end sooner if Slurm answers
FILTER_LOOKS_S = 1.1  # the filter looks for a new table once a second; until then it may still promise


class RebalanceOptions(NamedTuple):
    """The command line."""

    daemon: bool
    act: bool
    mine: bool
    every: float | None
    form: tables.Form
    keep: str  # folder for ticks, "" as the settings say


@click.command()
@click.option("--once", is_flag=True, help="One tick only, as from cron or a timer (the default).")
@click.option("--daemon", is_flag=True, help="Stay, tick after tick, until SIGTERM.")
@click.option(
    "--act", is_flag=True, help='Carry out the plan (as mode = "act" in pal.toml does); default: only show it.'
)
@click.option("--mine", is_flag=True, help="Only your own jobs, with an ordinary user's means.")
@click.option("--every", type=float, metavar="SECONDS", help="Time between ticks (default: rebalance.interval_s).")
@click.option(
    "--guard", is_flag=True, help="Stay, and take lists back as soon as a daemon dies. Takes no other option."
)
@click.option("--keep-ticks", metavar="DIR", help="Keep what each tick sees and decides in DIR, for pal ticks.")
@click.option("--withdraw", is_flag=True, help="Take back all that ticks set on jobs and nodes, then end.")
@tables.table_options
@common.verbose_option
@common.version_option
def pal_rebalance(
    once: bool, daemon: bool, act: bool, mine: bool, every: float | None, guard: bool, withdraw: bool,
    keep_ticks: str | None, form: tables.Form,
) -> None:  # fmt: skip
    """Run ticks: ingest sweeps, publish scores, retarget pending jobs, move running ones where that pays.

    \b
    Examples:
      pal-rebalance                  one look: show the plan, change nothing
      pal-rebalance --once --act     one tick that acts, as from cron
      pal-rebalance --daemon --act   the service
      pal-rebalance --guard          beside the service: takes its lists back if it is killed
      pal-rebalance --mine --act     your own jobs only
      pal-rebalance --withdraw       before you switch it off for good

    Ticks touch only jobs that palsub or the submit filter saw, and move only those marked
    movable (palsub --pal-movable). Where nodes of owners
    are lent ([loan] in pal.toml) guests leave those that owners need, whoever submitted them.
    """
    if guard:
        raise UsageError("--guard takes no other option: it runs no tick")
    if withdraw and keep_ticks:
        raise UsageError("--withdraw does not go with --keep-ticks: it has no tick to keep")
    if daemon and (once or withdraw):
        raise UsageError("--daemon does not go with --once or --withdraw: it stays")
    if withdraw and form.as_json:
        raise UsageError("--withdraw does not go with --json: it has no plan to show")
    if form.tabular and (daemon or withdraw):
        raise UsageError("a table does not go with --daemon or --withdraw: it shows the plan of one tick")
    if not mine:
        become.slurm_user()
    config = settings.load()
    acts = act or withdraw or config.text("rebalance", "mode") == "act"
    wanted = RebalanceOptions(daemon, acts, mine, every, form, keep_ticks or "")
    complaints = Complaints("pal-rebalance")
    _check(config, wanted)
    with contextlib.ExitStack() as stack:
        tick = _tick(config, wanted, stack, complaints)
        if withdraw:
            _withdraw(tick, complaints)
        elif daemon:
            _stay(config, tick, wanted, complaints)
        elif acts:
            # After the locks: the guard is a process of its own and holds none of them.
            last_word = stack.enter_context(guard_beside(tick.journal_path))
            _once(tick, wanted, complaints)
            last_word(LATER if tick.left()[1] else BYE)
        else:
            _once(tick, wanted, complaints)
    if not daemon:  # after the locks: the next tick need not wait for them
        hooks.wait()


def _check(config: Config, wanted: RebalanceOptions) -> None:
    if wanted.every is None:
        return
    if not wanted.daemon:
        raise UsageError("--every goes with --daemon; one tick has no interval")
    common.check_every(config, wanted.every)


def _tick(config: Config, wanted: RebalanceOptions, stack: contextlib.ExitStack, complaints: Complaints) -> Tick:
    counted = Counted(subprocess_runner(TIMEOUT_S))
    client = CliClient(counted, conf=slurm_conf())
    every_s = (wanted.every or config.number("rebalance", "interval_s")) if wanted.daemon else math.inf
    by_turns = wanted.daemon and not wanted.act  # who takes lists back must have the lock
    publisher: Publisher | None = Publisher(config, client, wanted.daemon and wanted.act, every_s, by_turns=by_turns)
    assert publisher is not None
    asked = {lever for lever in (FEATURES, WEIGHTS, WAIT) if config.flag("rebalance", lever)}
    asked |= {PLACES} if orders(config) else set()
    asked |= {LOANS} if lends(config) else set()
    pairs = publisher.known_site(time.time()).pairs
    role = role_of(client, pairs, wanted.mine, asked)
    own = role.name != "slurm-user"
    journal = _journal(journal_path(config, own), wanted, stack)
    if own or not (by_turns or _may_publish(config, wanted, stack)):
        publisher = None
    log = EventLog(log_path(config, own), echo=wanted.daemon, mode=0o600 if own else 0o640)
    for line in role.cannot:
        common.say(f"pal-rebalance: {line}", err=True)
    tick = Tick(
        config, client, counted, journal, role, publisher, log, act=wanted.act, last=not wanted.daemon,
        appends=appends(pairs), keeper=_keeper(config, wanted, own, stack), site=_site(config, pairs),
        requeue_delay_s=requeue_delay_s(pairs),
    )  # fmt: skip
    counted.after = lambda: tick.alive(time.time())
    if publisher is not None and wanted.act:
        lists_stay = pinned.remembered(journal)._replace(lists=())  # the first tick decides about the nodes of owners
        complaints.tell(publisher.take_over(lists_stay))
    return tick


def _site(config: Config, pairs: Mapping[str, str]) -> Site:
    """What loans need to know of the site; asked only where nodes are lent."""
    if not lends(config):
        return Site()
    counts = pairs.get("AccountingStorageType", "").endswith("slurmdbd")
    qos = preempted_qos(subprocess_runner(TIMEOUT_S)) if counts else None
    return Site(preemption_of(pairs, qos), demand_history if counts else None)


def _keeper(config: Config, wanted: RebalanceOptions, own: bool, stack: contextlib.ExitStack) -> Keeper | None:
    """Who keeps the ticks, None where nobody asks for it.

    The setting is the site's: it counts for its daemon and for ticks that act, not for a look or a user's own ticks.
    Raises DataError, BusyError where DIR was given and nothing can be kept there.
    """
    stays = (wanted.daemon or wanted.act) and not own
    folder = wanted.keep or (config.text("rebalance", "keep_ticks") if stays else "")
    if not folder:
        return None
    try:
        keeper = Keeper(folder, config.number("rebalance", "keep_ticks_mib"), time.time())
    except PalError as error:
        if wanted.keep:
            raise
        common.say(f"pal-rebalance: ticks are not kept: {one_line(error)}", err=True)
        return None
    stack.callback(keeper.close)
    return keeper


def _may_publish(config: Config, wanted: RebalanceOptions, stack: contextlib.ExitStack) -> bool:
    """Whether the filter's table is ours to write. Raises BusyError, DataError for a daemon that acts."""
    promises = wanted.daemon and wanted.act
    try:
        stack.enter_context(promise.publishing(config.table_path, LOCK_WAIT_S if promises else 0.0))
    except BusyError:
        if promises:
            raise
        return False  # a publisher that stays does this better than a single tick
    except OSError as error:
        folder = os.path.dirname(config.table_path)
        line = f"no table can be written in {folder} ({error.strerror}): mkdir it, or set paths.table in pal.toml"
        if promises:
            raise DataError(line) from None
        common.say(f"pal-rebalance: nothing is published: {line}", err=True)
        return False
    return True


def _journal(path: str, wanted: RebalanceOptions, stack: contextlib.ExitStack) -> Journal:
    """Open for writing; for advice, read-only beside a daemon that holds it."""
    try:
        return stack.enter_context(open_journal(path))
    except BusyError:
        if wanted.act or wanted.daemon:
            raise
        return stack.enter_context(open_journal(path, write=False))


def _once(tick: Tick, wanted: RebalanceOptions, complaints: Complaints) -> None:
    seen = tick.run(time.time())
    listing = Listing(report.CSV_COLUMNS, report.csv_rows(seen))
    text = lambda: common.say(*report.lines(seen))  # noqa: E731
    tables.show(wanted.form, listing, "rebalance", lambda told: report.as_json(seen), text=text)
    complaints.tell(seen.trouble)
    if wanted.act:
        _see_through(tick, seen, complaints)


def _see_through(tick: Tick, seen: TickResult, complaints: Complaints) -> None:
    """No other tick follows: end the moves, and take back node lists that did not lead to a start."""
    pass_end_s = time.monotonic() + tick.pass_s
    with until_signal() as woken:
        _finish_moves(tick, woken, ONCE_S, complaints)
        if any(wish.lease is not None and wish.lease.kind is LeaseKind.NODELIST for wish in seen.decided.wishes):
            woken(max(0.0, pass_end_s - time.monotonic()))
            complaints.tell(tick.take_back_node_lists(time.time()))


def _finish_moves(tick: Tick, woken: Woken, most_s: float, complaints: Complaints) -> None:
    """Wait until no move is under way, at most `most_s`, and LAST_S after a signal. What fails is tried again."""
    until_s, ending = time.monotonic() + most_s, False
    while True:
        notify(ALIVE)
        moving, failed = _attempt(lambda: tick.advance(time.time()))
        pause_s = RETRY_S if failed else LOOK_S
        moving = moving or bool(failed)
        complaints.tell([failed] if failed else [])
        if not moving or time.monotonic() >= until_s:
            return
        if ending:
            time.sleep(pause_s)
        elif woken(pause_s):
            until_s, ending = min(until_s, time.monotonic() + LAST_S), True


def _stay(config: Config, tick: Tick, wanted: RebalanceOptions, complaints: Complaints) -> None:
    """Run ticks until a signal comes. A failed tick is reported, and the next one tries again.

    Raises PalError after MOST_FAILED internal errors in a row: a new process may do better.
    """
    interval_s = wanted.every or config.number("rebalance", "interval_s")
    if not wanted.act and not wanted.form.as_json:
        common.say(
            'pal-rebalance: advice only (--json shows it); --act or mode = "act" in pal.toml carries it out', err=True
        )
    with until_signal() as woken:
        notify(READY)
        query_s, failed = 0.0, 0
        while True:
            started = time.monotonic()
            seen, trouble = _attempt(lambda: tick.run(time.time()))
            if seen is not None:
                query_s, failed = seen.query_s, 0
                complaints.tell(seen.trouble)
                trouble = _printed(seen) if wanted.form.as_json else ""
                notify(f"STATUS={_status(seen)}")
            else:
                tick.failed()
                failed += trouble.startswith(INTERNAL)
                notify(f"STATUS=the last tick failed: {trouble}")
            complaints.tell([trouble] if trouble else [])
            if failed >= MOST_FAILED or tick.lost:
                break
            if _sleep(tick, woken, started + max(interval_s, QUERY_SHARE * query_s)):
                break
        notify(STOPPING)
        _leave(tick, woken, complaints)
    if failed >= MOST_FAILED:
        raise PalError(f"{failed} ticks in a row failed with internal errors: restart pal-rebalance")
    if tick.lost:
        raise DataError("somebody deleted the publisher's lock: restart pal-rebalance")


def _status(seen: TickResult) -> str:
    """What `systemctl status` shows. Jobs that are left as they are count as none."""
    wishes = sum(bool(wish.fields) for wish in seen.decided.wishes)
    return f"last tick: {wishes} wishes, {seen.orders} orders, {seen.moving} moves under way"


def _attempt(work: Callable[[], T]) -> tuple[T | None, str]:
    """The result of `work`, or why it failed: whatever happens in it, the loop goes on."""
    try:
        return work(), ""
    except (PalError, OSError) as error:
        return None, one_line(error)
    except Exception as error:
        return None, f"{INTERNAL}{fault_of(error).line}"


def _printed(seen: TickResult) -> str:
    """Print a tick as JSON; return why that failed."""
    return _attempt(lambda: click.echo(json.dumps({"schema": "pal.rebalance/1", **report.as_json(seen)})))[1]


def _sleep(tick: Tick, woken: Woken, until_s: float) -> bool:
    """Wait for the next tick (monotonic time) and advance the moves under way; return whether a signal came."""
    while True:
        tick.alive(time.time())
        left_s = until_s - time.monotonic()
        moving, trouble = _attempt(lambda: tick.advance(time.time()))
        pause_s = RETRY_S if trouble else LOOK_S if moving else left_s  # the next tick reports trouble
        if woken(max(0.0, min(pause_s, CHUNK_S, until_s - time.monotonic()))):
            return True
        if time.monotonic() >= until_s:
            return False


def _leave(tick: Tick, woken: Woken, complaints: Complaints) -> None:
    """End cleanly: promises and lists are taken back; a move under way is finished if that takes little time."""
    ended_s = time.monotonic()
    _, failed = _attempt(lambda: tick.stop(time.time()))
    _finish_moves(tick, woken, LAST_S, complaints)
    time.sleep(max(0.0, ended_s + FILTER_LOOKS_S - time.monotonic()))
    trouble, failed_too = _attempt(lambda: tick.take_back_lists(time.time()))
    complaints.tell(filter(None, [failed, failed_too, *(trouble or ())]))


def _withdraw(tick: Tick, complaints: Complaints) -> None:
    with until_signal() as woken:
        tick.stop(time.time())
        _finish_moves(tick, woken, 6 * LAST_S, complaints)
    time.sleep(FILTER_LOOKS_S)
    trouble = tick.withdraw(time.time())
    moving, lists = tick.left()
    if moving:
        trouble.append(f"moves still under way: {moving}; run it again, or see pal moves")
    if trouble:
        raise PalError("; ".join(trouble))
    common.say("all our lists on jobs, places in the queue, features, weights, reservations and drains are taken back")
    if lists:
        kept = "1 running job keeps" if lists == 1 else f"{lists} running jobs keep"
        common.say(f"{kept} a list of ours: Slurm changes no list of a running job; see pal moves")


def main() -> None:
    """The entry point."""
    common.run(pal_rebalance, "pal-rebalance")
