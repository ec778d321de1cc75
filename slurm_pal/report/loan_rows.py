# SPDX-License-Identifier: MIT
"""Owners and guests for people and programs: who lends, who is there, who had to leave, what was ordered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError, one_line
from slurm_pal.base.hostlist import fold
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.facts import MoveSettings, appends
from slurm_pal.journal import paths
from slurm_pal.journal.journal import LoanOrder, Move, open_journal
from slurm_pal.loans.lend import leaver_of, unstoppable
from slurm_pal.loans.terms import LoanTerms, preemption_of, refused, terms_of
from slurm_pal.report import reclaim_rows
from slurm_pal.report.move_rows import stamp
from slurm_pal.report.reclaim_rows import ReclaimRow
from slurm_pal.report.table import counted, lasting
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.client import Overview, SlurmClient
from slurm_pal.slurm.states import JOB_ACTIVE, usable
from slurm_pal.tick import deciding

ASK_TIMEOUT_S = 10.0
NOTHING = (
    "nothing is lent: in [loan] of pal.toml set owners to the partitions whose idle nodes are lent, and guest to the "
    "partition of the guests"
)
MOST_ORDERS = 10
"""Orders that are shown as text, the newest ones."""


class OwnerRow(NamedTuple):
    """One owner partition now. Each of its nodes is in one of these states."""

    partition: str
    total: int
    used: int  # jobs of owners run on it
    open: int  # to guests
    closed: int  # neither
    down: int  # it takes no jobs
    guests: int  # jobs of guests that run on its nodes
    open_nodes: str  # a hostlist, as the next one
    closed_nodes: str


class GuestRow(NamedTuple):
    """One job of the guests' partition that runs on nodes of owners."""

    job_id: int
    user: str
    nodes: str  # a hostlist
    start_s: float  # Unix s
    gpus: int
    checkpoint: bool  # it would be asked for one
    lost_s: float  # work of its own that it would lose if it had to leave now
    lost_gpu_s: float
    restarts: int | None  # how often somebody else has put it back into the queue; None: not known
    note: str


class LoanView(NamedTuple):
    """All of it."""

    lends: bool  # the settings ask for it
    refused: str = ""  # why it cannot be
    guest: str = ""
    owners: tuple[OwnerRow, ...] = ()
    guests: tuple[GuestRow, ...] = ()
    reclaims: tuple[ReclaimRow, ...] = ()
    orders: tuple[LoanOrder, ...] = ()


class _Past(NamedTuple):
    """What the journal holds that this user may read."""

    moves: Sequence[Move] = ()  # reclaims among them, whenever they were
    orders: Sequence[LoanOrder] = ()


def read(config: Config, since_s: float, now_s: float, tell: Callable[[str], None]) -> LoanView:
    """As of `now_s`, and what was reclaimed and ordered since `since_s` (both Unix s).

    `tell` gets what is missing because Slurm does not answer. Raises DataError if the journal cannot be read.
    """
    terms, client, past = terms_of(config), connect(config, timeout_s=ASK_TIMEOUT_S), _past(config, since_s)
    seen = LoanView(terms is not None, guest=terms.guest if terms is not None else "", orders=tuple(past.orders))
    jobs: dict[int, SlurmJob] = {}
    if terms is not None:
        try:
            overview, pairs = client.overview(marked=True, whole=frozenset({terms.guest})), client.config()
        except SlurmError as error:
            tell(f"without owners and guests of now: {one_line(error)}")
        else:
            jobs = {job.job_id: job for job in overview.jobs}
            moving = deciding.terms_of(config, appends(pairs))
            seen = seen._replace(
                refused=refused(terms, overview, preemption_of(pairs)),
                owners=tuple(owner_rows(overview, terms)),
                guests=tuple(guest_rows(overview, terms, moving, past.moves, now_s)),
            )
    found = reclaim_rows.of_journal((move for move in past.moves if move.owners), jobs)
    if not paths.has_powers():
        found += _told(client, tell)
    since = sorted((row for row in found if row.made_s >= since_s), key=lambda row: row.made_s)
    return seen._replace(reclaims=tuple(since))


def _past(config: Config, since_s: float) -> _Past:
    path = paths.readable_journal(config)
    if path is None:
        return _Past()
    with open_journal(path, write=False) as journal:
        return _Past([*journal.moves(), *journal.reclaims()], journal.loan_orders(since_s))


def _told(client: SlurmClient, tell: Callable[[str], None]) -> list[ReclaimRow]:
    """What the words on this user's own jobs say."""
    user = paths.user_name()
    try:
        known = client.jobs_of([*client.job_states(user=user)])
    except SlurmError as error:
        tell(f"without your own jobs that were taken off nodes: {one_line(error)}")
        return []
    return [row for job in known.values() if job.user == user for row in reclaim_rows.of_words(job)]


def owner_rows(overview: Overview, terms: LoanTerms) -> list[OwnerRow]:
    """The owner partitions that Slurm has, in the order of the settings."""
    parts = {partition.name: partition for partition in overview.partitions}
    able = {node.name for node in overview.nodes if usable(node.states)}
    running = [job for job in overview.jobs if job.state in JOB_ACTIVE]
    used = {name for job in running if job.partition in terms.owners for name in job.nodes}
    lent = {*parts[terms.guest].nodes} if terms.guest in parts else set()
    rows = []
    for owner in (parts[name] for name in terms.owners if name in parts):
        up = [name for name in owner.nodes if name in able]
        free = [name for name in up if name not in used]
        opened, closed = [name for name in free if name in lent], [name for name in free if name not in lent]
        there = sum(job.partition == terms.guest and not {*owner.nodes}.isdisjoint(job.nodes) for job in running)
        rows.append(
            OwnerRow(
                owner.name, len(owner.nodes), len(up) - len(free), len(opened), len(closed), len(owner.nodes) - len(up),
                there, fold(opened), fold(closed),
            )
        )  # fmt: skip
    return rows


def guest_rows(
    overview: Overview, terms: LoanTerms, moving: MoveSettings, ours: Iterable[Move], now_s: float
) -> list[GuestRow]:
    """Jobs of the guests' partition on nodes of owners, the first to come first; `ours`: moves and reclaims."""
    theirs = {name for part in overview.partitions if part.name in terms.owners for name in part.nodes}
    moves = [*ours]
    leaving = {move.job_id for move in moves if move.owners and not move.outcome}
    known = paths.has_powers()  # the site's journal has all that is ours
    rows = []
    for job in sorted(overview.jobs, key=lambda job: job.start_s):
        if job.partition != terms.guest or job.state not in JOB_ACTIVE or theirs.isdisjoint(job.nodes):
            continue
        one = leaver_of(job, moving, terms, now_s)
        gpus = sum(map(len, job.gpus.values())) or job.gpus_given
        restarts = reclaim_rows.not_ours(job, [move for move in moves if move.job_id == job.job_id]) if known else None
        note = "leaves now" if job.job_id in leaving else unstoppable(job)
        rows.append(
            GuestRow(
                job.job_id, job.user, fold(job.nodes), job.start_s, gpus, one.checkpoint, round(one.lost_s, 1),
                round(one.lost_s * gpus, 1), restarts, note,
            )
        )  # fmt: skip
    return rows


# -- as text and as data ------------------------------------------------------------------------

OWNER_HEADER = ("OWNER", "NODES", "IN_USE", "OPEN", "CLOSED", "DOWN", "GUESTS", "OPEN_NODES")
GUEST_HEADER = ("JOBID", "USER", "NODES", "SINCE", "GPUS", "CHECKPOINT", "WOULD_LOSE", "LOST_GPU_S", "NOTE")
ORDER_HEADER = ("ORDER", "NODES", "IN_USE", "WAITED_FOR", "EXPECTED", "MAY_BE_OPEN", "OPEN_NODES", "WHY")


class LoanTable(NamedTuple):
    """One table of `pal loans`."""

    name: str  # as programs see it
    header: tuple[str, ...]
    rows: list[list[str]]


def tables(seen: LoanView) -> list[LoanTable]:
    """Those that have rows."""
    every = (
        LoanTable("owner", OWNER_HEADER, list(map(_owner_cells, seen.owners))),
        LoanTable("guest", GUEST_HEADER, list(map(_guest_cells, seen.guests))),
        LoanTable("reclaim", reclaim_rows.HEADER, list(map(reclaim_rows.cells, seen.reclaims))),
        LoanTable("order", ORDER_HEADER, list(map(_order_cells, seen.orders[-MOST_ORDERS:]))),
    )
    return [one for one in every if one.rows]


def _owner_cells(row: OwnerRow) -> list[str]:
    counts = (row.total, row.used, row.open, row.closed, row.down, row.guests)
    return [row.partition, *map(str, counts), row.open_nodes or "-"]


def _guest_cells(row: GuestRow) -> list[str]:
    return [
        str(row.job_id), row.user, row.nodes, stamp(row.start_s), str(row.gpus), "yes" if row.checkpoint else "no",
        lasting(row.lost_s), f"{row.lost_gpu_s:.0f}", row.note or "-",
    ]  # fmt: skip


def _order_cells(order: LoanOrder) -> list[str]:
    expected = "?" if order.predicted is None else f"{order.predicted:.0f}"
    counts = [str(order.total), str(order.used), str(order.waiting), expected, str(order.allowed)]
    return [stamp(order.at_s), *counts, order.open or "-", order.why]


def totals(seen: LoanView) -> dict[str, Any]:
    """Sums."""
    known = [row.restarts for row in seen.guests if row.restarts is not None]
    sums = reclaim_rows.totals(seen.reclaims)
    return {**sums, "guests": len(seen.guests), "restarts_not_ours": sum(known) if known else None}


def summary(seen: LoanView, since: str) -> list[str]:
    """The last lines of the text."""
    sums = totals(seen)
    text = []
    if sums["reclaims"]:
        more = [f"{sums[key]} {word}" for key, word in (("stayed", "stayed"), ("under_way", "under way")) if sums[key]]
        off = f"{counted(sums['left'], 'guest')} taken off nodes, {sums['with_checkpoint']} with a checkpoint"
        lost = f"{sums['lost_gpu_s']:,.0f} GPU-seconds of work lost"
        text.append("; ".join([f"In {since}: {off}", lost, *more]))
    elif seen.lends:
        text.append(f"In {since} no guest was taken off a node")
    if sums["restarts_not_ours"]:
        times = counted(sums["restarts_not_ours"], "restart")
        text.append(
            f"{times} of the guests above {'was' if sums['restarts_not_ours'] == 1 else 'were'} not ours: Slurm's own "
            "preemption, a failed node or a requeue by hand"
        )
    return text


def as_json(seen: LoanView) -> dict[str, Any]:
    """The body of pal.loans/1."""
    return {
        "lends": seen.lends and not seen.refused,
        "refused": seen.refused or (None if seen.lends else NOTHING),
        "guest": seen.guest or None,
        "owners": [row._asdict() for row in seen.owners],
        "guests": [row._asdict() for row in seen.guests],
        "reclaims": [row._asdict() for row in seen.reclaims],
        "orders": [_order(row) for row in seen.orders],
        "total": totals(seen),
    }


def _order(order: LoanOrder) -> dict[str, Any]:
    return {("open_nodes" if name == "open" else name): value for name, value in order._asdict().items()}


LISTS = ("owners", "guests", "reclaims", "orders")
CSV_COLUMNS = ("list", *dict.fromkeys(
    (*OwnerRow._fields, *GuestRow._fields, *ReclaimRow._fields, *LoanOrder._fields)
))  # fmt: skip


def csv_rows(seen: LoanView) -> list[dict[str, Any]]:
    """One row per entry of pal.loans/1 and list that holds it (owners, guests, reclaims, orders)."""
    body = as_json(seen)
    return [{"list": name, **row} for name in LISTS for row in body[name]]


def body(seen: LoanView, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The body of pal.loans/1 with its lists in the order of these rows, those of `csv_rows`."""
    lists: dict[str, list[dict[str, Any]]] = {name: [] for name in LISTS}
    for row in rows:
        lists[row["list"]].append({name: value for name, value in row.items() if name != "list"})
    return as_json(seen) | lists
