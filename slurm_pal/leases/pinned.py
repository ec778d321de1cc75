# SPDX-License-Identifier: MIT
"""Lists of ours that stand on pending jobs, whoever set them, and what puts the users' own back. Pure but for reading.

Those of palsub and the submit filter are shown by their marks on the jobs; those of the tick and of
its moves by the journal, where a list may also stand that was about to be replaced when a tick was killed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from slurm_pal.base.cluster import Partition
from slurm_pal.base.errors import NotNowError, SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.aside import fault_of
from slurm_pal.decide.lease_marks import Update, in_force, judged
from slurm_pal.decide.ownership import Whose, of_lease
from slurm_pal.decide.place import SITE_FACTOR, GivenPlace, to_give_back, updates
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease
from slurm_pal.journal.journal import DOUBT_S, REFUSED, REPLACED, Journal, LoanList, Move
from slurm_pal.moves import steps
from slurm_pal.slurm.client import AGAIN_S, SlurmClient
from slurm_pal.slurm.states import HELD_BACK


class Remembered(NamedTuple):
    """The lists in a journal: job -> leases, those in force first, and its move under way."""

    leases: Mapping[int, tuple[TickLease, ...]] = {}
    moves: Mapping[int, Move] = {}
    places: Mapping[int, GivenPlace] = {}  # in the queue
    lists: Sequence[LoanList] = ()  # of partitions
    marks: bool = True  # whether the marks of palsub and the filter count, too: nobody else ends them now


class Ended(NamedTuple):
    """What was done."""

    lists: tuple[Update, ...]  # taken back
    trouble: tuple[str, ...]  # what stays for now, one line each


def remembered(journal: Journal) -> Remembered:
    """Raises DataError, BusyError."""
    leases: dict[int, list[TickLease]] = defaultdict(list)
    for lease in journal.every_lease():
        leases[lease.job_id].append(lease)
    for lease, why, _ in reversed(journal.ended_leases(since_s=journal.last_tick_s() - DOUBT_S)):
        if why.startswith((REPLACED, REFUSED)):  # the update that was to replace it may not have come through
            leases[lease.job_id].append(lease)
    found = {job_id: tuple(lists) for job_id, lists in leases.items()}
    moves = {move.job_id: move for move in journal.open_moves()}
    return Remembered(found, moves, journal.given_places(), journal.loan_lists())


def due(known: Remembered, now_s: float, pass_s: float) -> Remembered:
    """The leases and lists of partitions in a journal whose time is over."""
    leases = {job_id: tuple(one for one in lists if now_s >= one.until_s + pass_s)
              for job_id, lists in known.leases.items()}  # fmt: skip
    late = [one for one in known.lists if now_s >= one.until_s + pass_s]
    return Remembered({job_id: lists for job_id, lists in leases.items() if lists}, lists=late, marks=False)


def back(job: SlurmJob, known: Remembered, up: Set[str], now_s: float) -> dict[str, str]:
    """Fields of one update that give a pending job its user's own lists; {} where none of ours stands."""
    if job.state != "PENDING":
        return {}
    fields = in_force(job) if known.marks else {}
    for lease in reversed(known.leases.get(job.job_id, ())):
        if lease.kind is LeaseKind.FENCE:  # no list, see `_unfenced`
            continue
        whole = lease.kind.sort is Sort.NODES or up >= {*lease.own.split(",")}
        if whole and of_lease(job, lease) is Whose.OURS:
            fields[lease.kind.key] = lease.own
    move = known.moves.get(job.job_id)
    if move is not None:
        fields |= steps.back(move, job, None, now_s)
        fields.pop("StartTime", None)  # Slurm's own delay ends, and a start too early would end the job for good
    return fields


def pinned(jobs: Iterable[SlurmJob], known: Remembered, up: Set[str], now_s: float) -> tuple[list[Update], list[str]]:
    """The jobs with lists of ours, and one line for each job that cannot be read, which is skipped."""

    def judge(job: SlurmJob) -> Update | None:
        fields = back(job, known, up, now_s)
        return Update(job.job_id, fields) if fields else None

    found, broken = judged(jobs, judge)
    lines = (f"the lists of job {job.job_id} cannot be judged: {fault_of(error).line}" for job, error in broken)
    return found, [*lines]


def places_back(client: SlurmClient, given: Mapping[int, GivenPlace], again_s: Sequence[float] = AGAIN_S) -> list[str]:
    """Give all jobs with a place of ours in the queue their own value back; what stays, one line for each order.

    The same pauses as for lists. Raises SlurmError when Slurm does not answer.
    """
    for pause_s in (0.0, *again_s):
        time.sleep(pause_s)
        wanted = values_back(client, given)
        refused: list[str] = []
        for update in updates(wanted):
            try:
                client.update_jobs(update.job_ids, **{update.lever: str(update.value)})
            except NotNowError as error:
                refused.append(f"{len(update.job_ids)} jobs keep their places in the queue for now: {error}")
            except SlurmError as error:  # some of them may have started or ended just now
                if values_back(client, {job_id: given[job_id] for job_id in update.job_ids}):
                    refused.append(f"{len(update.job_ids)} jobs keep their places in the queue for now: {error}")
        if not refused:
            return []
    return refused


def values_back(client: SlurmClient, given: Mapping[int, GivenPlace]) -> list[tuple[int, str, int]]:
    """(job, lever, own value) of the jobs that bear a place of ours now. Raises SlurmError."""
    if not given:
        return []
    jobs = client.jobs_of(sorted(given))
    levers = {place.lever for place in given.values()}
    factors = client.site_factors() if SITE_FACTOR in levers else {}
    return to_give_back(given.values(), {job_id: job.nice for job_id, job in jobs.items()}, factors)


def take_back(client: SlurmClient, known: Remembered, now_s: float, again_s: Sequence[float] = AGAIN_S) -> Ended:
    """Give all pending jobs their users' own lists back, after one more look at each.

    What Slurm cannot do at the moment is tried again after each of these pauses, s.
    Raises SlurmError when Slurm does not answer.
    """
    fenced = [f"a reservation stays until it ends: {error}" for error in _unfenced(client, known)]
    overview = client.overview(marked=True)
    fenced += lists_back(client, known.lists, overview.partitions)[1]
    up = overview.up
    unmarked = {*known.leases, *known.moves}.difference(job.job_id for job in overview.jobs)
    jobs = [*overview.jobs, *client.jobs_of(sorted(unmarked)).values()]
    wanted, trouble = pinned(jobs, known, up, now_s)
    own = client.jobs_of([update.job_id for update in wanted])
    wanted, more = pinned(own.values(), known, up, now_s)
    more += places_back(client, known.places, again_s)
    done, stays = updated(client, wanted, again_s)
    return Ended(tuple(done), (*fenced, *trouble, *more, *stays))


def updated(client: SlurmClient, wanted: Sequence[Update], again_s: Sequence[float]) -> tuple[list[Update], list[str]]:
    """Update these jobs: what was done, and one line for each list that stays.

    What Slurm cannot do at the moment is tried again after each of these pauses, s.
    """
    done: list[Update] = []
    stays: list[str] = []
    for pause_s in (*again_s, None):  # None: no more tries
        busy: list[Update] = []
        for update in wanted:
            try:
                client.update_job(update.job_id, **update.fields)
                done.append(update)
            except SlurmError as error:  # it may have started just now
                if isinstance(error, NotNowError) and pause_s is not None:
                    busy.append(update)
                else:
                    stays.append(f"the list of job {update.job_id} stays for now: {error}")
        if not busy or pause_s is None:
            break
        time.sleep(pause_s)
        wanted = busy
    return done, stays


def lists_back(
    client: SlurmClient, lists: Iterable[LoanList], partitions: Iterable[Partition]
) -> tuple[list[LoanList], list[str]]:
    """Give the guests' partitions their own nodes back where a list of ours stands, and what it kept from jobs.

    Returns those of which none stands any more, and what Slurm said against the others, one line each.
    """
    nodes = {partition.name: partition.nodes for partition in partitions}
    done, trouble = [], []
    for one in lists:
        try:
            if one.guest in nodes and one.stands(nodes[one.guest]):
                client.update_partition(one.guest, Nodes=one.own)
                trouble += unhold(client, _held_back(client, one.guest))
            done.append(one)
        except SlurmError as error:
            trouble.append(f"partition {one.guest} keeps our node list for now: {error}")
    return done, trouble


def _held_back(client: SlurmClient, guest: str) -> list[int]:
    """Jobs that Slurm holds since no listed node fitted. It does so again with those that fit nowhere."""
    held = [job_id for job_id, (state, reason) in client.job_states().items()
            if state == "PENDING" and reason == HELD_BACK]  # fmt: skip
    return [job.job_id for job in client.jobs_of(held).values() if guest in job.partition.split(",")] if held else []


def unhold(client: SlurmClient, job_ids: Iterable[int]) -> list[str]:
    """Let jobs wait again which Slurm holds because of a list of ours; what it said against it, one line each."""
    trouble = []
    for job_id in job_ids:
        try:
            client.unhold(job_id)
        except SlurmError as error:
            trouble.append(f"Slurm still holds job {job_id}, for which no node was left: {error}")
    return trouble


def _unfenced(client: SlurmClient, known: Remembered) -> list[SlurmError]:
    """Take the fences away; what Slurm said against it."""
    refused: list[SlurmError] = []
    for lease in {one for lists in known.leases.values() for one in lists if one.kind is LeaseKind.FENCE}:
        try:
            client.release(lease.reservation)
        except SlurmError as error:
            refused.append(error)
    return refused
