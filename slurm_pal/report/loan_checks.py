# SPDX-License-Identifier: MIT
"""Checks of `pal doctor`: whether loans can work here, and whether a list of ours stands that nobody takes back."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.base.errors import PalError, SlurmError
from slurm_pal.base.hostlist import expand, fold
from slurm_pal.journal import paths
from slurm_pal.journal.journal import LoanList, LoanOrder, open_journal
from slurm_pal.leases import promise
from slurm_pal.loans.terms import LoanTerms, Preemption, preemption_of, refused, terms_of, unpreempted
from slurm_pal.report.check_result import CheckResult
from slurm_pal.report.loan_rows import owner_rows
from slurm_pal.report.loan_words import held_for_nodes
from slurm_pal.report.table import age, counted, lasting
from slurm_pal.slurm.accounting import preempted_qos
from slurm_pal.slurm.cli import subprocess_runner
from slurm_pal.slurm.client import Overview, Runner, SlurmClient
from slurm_pal.store import heartbeat

TIMEOUT_S = 15.0
TOPIC = "loans"
MOST_NAMED = 8  # jobs in one line


class _Kept(NamedTuple):
    """What the journal holds that this user may read."""

    lists: tuple[LoanList, ...] = ()
    order: LoanOrder | None = None
    learned: bool | None = None  # whether what owners needed is known; None: not readable


def loan_checks(
    config: Config, client: SlurmClient, overview: Overview, now_s: float, run: Runner | None = None
) -> list[CheckResult]:
    """All of them; nothing where nothing is lent and no list of ours stands. `run` asks sacctmgr."""
    terms, kept = terms_of(config), _kept(config, now_s)
    found = _standing(config, kept.lists, overview, now_s)
    if terms is None:
        return found
    try:
        slurm = _preemption(client, run or subprocess_runner(TIMEOUT_S))
    except SlurmError:
        return found  # which is said elsewhere
    if why := refused(terms, overview, slurm):
        return [CheckResult("warn", TOPIC, why), *found]
    return [*_lent(terms, kept, overview, now_s), *_guests(terms, overview, slurm), *found]


def _kept(config: Config, now_s: float) -> _Kept:
    path, terms = paths.readable_journal(config), terms_of(config)
    if path is None or not paths.has_powers():
        return _Kept()
    since_s = now_s - config.number("loan", "history_d") * 86400
    with contextlib.suppress(PalError), open_journal(path, write=False) as journal:  # told where the tick is looked at
        learned = bool(journal.demand(terms.key, int(since_s // terms.hour_s))) if terms is not None else None
        return _Kept(tuple(journal.loan_lists()), next(iter(journal.loan_orders()[-1:]), None), learned)
    return _Kept()


def _preemption(client: SlurmClient, run: Runner) -> Preemption:
    """Raises SlurmError."""
    pairs = client.config()
    counts = pairs.get("AccountingStorageType", "").endswith("slurmdbd")
    return preemption_of(pairs, preempted_qos(run) if counts else None)


def _lent(terms: LoanTerms, kept: _Kept, overview: Overview, now_s: float) -> list[CheckResult]:
    found = []
    for row in owner_rows(overview, terms):
        text = f"{row.partition} lends to {terms.guest}: {counted(row.total, 'node')}, {row.used} in use by it, "
        text += f"{row.open} open to guests, {row.closed} closed" + (f", {row.down} down" if row.down else "")
        found.append(CheckResult("ok", TOPIC, text))
        if row.closed_nodes:
            text = (
                f"guests who name a node of {row.closed_nodes} (-w NODE) are refused by Slurm until it is open "
                '("Requested node configuration is not available")'
                + (f", where they submit to {terms.guest} alone and not to {terms.waits}, too" if terms.waits else "")
            )
            found.append(CheckResult("note", TOPIC, text))
    if kept.order is not None:
        why = f"{kept.order.allowed} of {counted(kept.order.total, 'node')} may be open ({kept.order.why})"
        found.append(CheckResult("ok", TOPIC, f"the last order was {age(now_s - kept.order.at_s)} ago: {why}"))
    elif kept.learned is False:
        text = "it is not known yet what owners need: the first tick that acts learns it, the next one may close nodes"
        found.append(CheckResult("note", TOPIC, text, "pal-rebalance --once --act"))
    return found


def _guests(terms: LoanTerms, overview: Overview, slurm: Preemption) -> list[CheckResult]:
    """What Slurm does with guests."""
    where = f" in {terms.waits}" if terms.waits else ""
    limits = f"EnforcePartLimits=NO: guests that ask for more nodes than are open wait{where}, they are not refused"
    guests = [job for job in overview.jobs if job.partition == terms.guest and job.nodes]
    lines = [line.rpartition(": ") for line in unpreempted(guests, slurm)]
    warned = [CheckResult("warn", TOPIC, text, mend) for text, _, mend in lines]
    found = [CheckResult("ok", TOPIC, f"{slurm.kind}, so owners do not wait for guests; {limits}"), *warned]
    named = [job for job in overview.jobs if terms.guest in job.partition.split(",") and held_for_nodes(job)]
    if named:
        jobs = " ".join(str(job.job_id) for job in named[:MOST_NAMED])
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        text = f"Slurm holds guests that no listed node fitted; the tick releases them when one does: jobs {jobs}{more}"
        found.append(CheckResult("warn", TOPIC, text, f"scontrol release {jobs}"))
    return found


def _standing(config: Config, lists: tuple[LoanList, ...], overview: Overview, now_s: float) -> list[CheckResult]:
    """Lists of ours on partitions, and whether a live process takes them back."""
    nodes = {partition.name: partition.nodes for partition in overview.partitions}
    own = {one.guest: {*expand(one.own)} for one in lists}
    standing = [
        one
        for one in lists
        if one.guest in nodes and one.stands(nodes[one.guest]) and {*nodes[one.guest]} != own[one.guest]
    ]
    alive = heartbeat.fresh(config.snapshot_path, now_s, config.number("submit", "heartbeat_max_age_s"))
    path = paths.readable_journal(config)
    alive = alive or promise.guarded(config.table_path) or (path is not None and promise.stood_by(path))
    found = []
    for one in standing:
        left_s = one.until_s - now_s
        until = f"for {lasting(left_s)} unless it is renewed" if left_s > 0 else f"{lasting(-left_s)} past its end"
        now = fold(list(nodes[one.guest])) or "no node"
        text = f"partition {one.guest} has {now} from us in place of {one.own}, {until}"
        if alive:
            found.append(CheckResult("ok", TOPIC, f"{text}; a live process takes that back"))
        else:
            text += "; no live process takes that back"
            found.append(CheckResult("warn", TOPIC, text, "pal-rebalance --withdraw, or start the daemon again"))
    return found
