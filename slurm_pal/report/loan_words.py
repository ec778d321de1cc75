# SPDX-License-Identifier: MIT
"""What owners and guests mean for one job, a sentence each: why it was stopped, why it does not start."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.base.errors import PalError, SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.journal import paths, story
from slurm_pal.journal.journal import LoanOrder, Move, open_journal
from slurm_pal.loans.terms import LoanTerms, terms_of
from slurm_pal.report import reclaim_rows
from slurm_pal.report.loan_rows import owner_rows
from slurm_pal.report.reclaim_rows import moment
from slurm_pal.slurm.client import Overview, SlurmClient
from slurm_pal.slurm.states import HELD_BACK

_NO_ROOM = ("Partition", "ReqNodeNotAvail")
"""Beside those of `waits_for_nodes`: how reasons of jobs begin that are too wide for the nodes of their partition."""


class LoanWords(NamedTuple):
    """Two sentences; "" where there is nothing to say."""

    taken_off: str = ""
    not_lent: str = ""


class _Known(NamedTuple):
    """What the journal holds that this user may read."""

    moves: Sequence[Move] = ()  # of this job, reclaims among them
    order: LoanOrder | None = None  # the last one
    whole: bool = False  # it has all that the site did with this job


def words_of(
    config: Config, client: SlurmClient, number: int, name: str, job: SlurmJob | None, now_s: float
) -> LoanWords:
    """For job `number`, which its user calls `name`. What cannot be read is left out."""
    terms, known = terms_of(config), _known(config, number)
    jobs = {number: job} if job is not None else {}
    rows = reclaim_rows.of_journal((move for move in known.moves if move.owners), jobs)
    if job is not None and not rows and (paths.has_powers() or job.user == paths.user_name()):
        rows = reclaim_rows.of_words(job)
    taken_off = reclaim_rows.sentence(rows, name, job, now_s)
    if job is None or terms is None:
        return LoanWords(taken_off)
    others = _others(job, known)
    if not taken_off:
        taken_off = reclaim_rows.by_slurm(name, job, others, terms.guest, terms.owners)
    elif others:
        taken_off += f"; somebody else, or Slurm itself, put it back into the queue {reclaim_rows.often(others)}"
    return LoanWords(taken_off, _not_lent(job, terms, client, known.order, now_s))


def _known(config: Config, number: int) -> _Known:
    path = paths.readable_journal(config)
    with contextlib.suppress(PalError):  # which is said where the story of the job is told
        if path is not None:
            with open_journal(path, write=False) as journal:
                moves = [*journal.moves(job_id=number), *journal.reclaims(job_id=number)]
                return _Known(moves, next(iter(journal.loan_orders()[-1:]), None), paths.has_powers())
    return _Known()


def _others(job: SlurmJob, known: _Known) -> int:
    """How often somebody else has put it back into the queue, as far as this user can know."""
    if known.whole:
        return reclaim_rows.not_ours(job, known.moves)
    if job.user != paths.user_name() or story.events(job.admin_comment):
        return 0  # its words may have been cut, and those of others' jobs are not ours to read
    return reclaim_rows.not_ours(job, known.moves)


def _not_lent(job: SlurmJob, terms: LoanTerms, client: SlurmClient, order: LoanOrder | None, now_s: float) -> str:
    """Why a guest waits though nodes of owners are idle; "" for any other job."""
    stuck = held_for_nodes(job)
    waits = stuck or job.waits_for_nodes or job.reason.startswith(_NO_ROOM)
    if job.state != "PENDING" or terms.guest not in job.partition.split(",") or not waits:
        return ""
    try:
        overview = client.overview()
    except SlurmError:
        return ""
    text = not_lent(overview, terms, order, now_s)
    if stuck:
        held = "Slurm holds it, since no node of its partition fitted it; the tick releases it when one does"
        text = f"{held} (an admin: scontrol release {job.job_id}){f'. Now {text}' if text else ''}"
    return text


def held_for_nodes(job: SlurmJob) -> bool:
    """Whether Slurm holds a job since no node that its partition had when its turn came fitted it."""
    return job.held and job.reason == HELD_BACK


def not_lent(overview: Overview, terms: LoanTerms, order: LoanOrder | None, now_s: float) -> str:
    """Which nodes guests cannot have now, and what was ordered last; "" where all are open."""
    closed = {row.partition: row.closed_nodes for row in owner_rows(overview, terms) if row.closed_nodes}
    if not closed:
        return ""
    whose = " and ".join(
        f"{nodes} belong{'' if _several(nodes) else 's'} to partition {owner}" for owner, nodes in closed.items()
    )
    text = f"{whose}, and {'is' if [*map(_several, closed.values())] == [False] else 'are'} not lent now"
    if order is None:
        return text
    expected = "?" if order.predicted is None else f"{order.predicted:.0f}"
    needs = f"{order.used} in use, {order.waiting} waited for, {expected} expected"
    return (
        f"{text}: by the order of {moment(order.at_s, now_s)}, {order.allowed} of {order.total} may be open ({needs})"
    )


def _several(nodes: str) -> bool:
    return any(sign in nodes for sign in ",[")
