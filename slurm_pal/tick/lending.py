# SPDX-License-Identifier: MIT
"""Loans in the tick: what is remembered, decided by `loans.lend`, and carried out: journal first, then Slurm.

All that stands in Slurm is the node list of the guests' partition. slurmctld forgets it when it reads slurm.conf anew,
and the lease guard takes it back when we are gone: then the partition has all its nodes, and owners have what Slurm's
own preemption gives them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from slurm_pal.allocation.demand import WEEK_H
from slurm_pal.base import marks
from slurm_pal.base.config import Config
from slurm_pal.base.errors import PalError, SlurmError, one_line
from slurm_pal.base.hostlist import fold
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.journal.event_log import EventLog
from slurm_pal.journal.journal import Journal, Move
from slurm_pal.journal.move_states import MoveStep
from slurm_pal.leases.pinned import lists_back, unhold
from slurm_pal.loans.lend import ENDS_AFTER, Lent, LoanMemory, lend, required_by_user, set_next
from slurm_pal.loans.terms import LoanTerms, Preemption, refused, terms_of, unpreempted
from slurm_pal.slurm.client import Overview, SlurmClient
from slurm_pal.tick.deciding import terms_of as moving_terms
from slurm_pal.tick.role import LOANS, Role

FILTER_S = 1.1
"""The submit filter looks for a new table once a second: until then it may name nodes that are open no more."""
HISTORY_AGAIN_S = 3600.0
"""While less than a week is known sacct is asked again after this time; after an order interval if it failed."""

History = Callable[[Sequence[str], float, float], dict[int, float]]
"""Partitions, since when (Unix s), s of an hour -> hour (Unix time over that) -> the most nodes that their jobs had in
it. Raises PalError."""


class Site(NamedTuple):
    """What the caller knows of the site."""

    slurm: Preemption = Preemption()
    history: History | None = None  # None: no accounting


NO_SITE = Site()
"""Nothing is known: nothing is lent."""


def lends(config: Config) -> bool:
    """Whether the site lends nodes."""
    return bool(config.text("loan", "owners").strip())


class Lending:
    """The loans of one process."""

    def __init__(
        self, config: Config, client: SlurmClient, journal: Journal, role: Role, log: EventLog, site: Site,
        appends: bool = False, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._config, self._client, self._journal, self._role, self._log = config, client, journal, role, log
        self._site, self._sleep = site, sleep
        self._moving = moving_terms(config, appends)
        self.terms: LoanTerms | None = terms_of(config) if LOANS in role.may else None
        self._asked_s, self._again_s = 0.0, HISTORY_AGAIN_S  # when sacct was asked, and for how long it is not again

    @property
    def whole(self) -> frozenset[str]:
        """Partitions of which every pending job counts."""
        return frozenset((*self.terms.owners, self.terms.guest)) if self.terms is not None else frozenset()

    def decide(self, overview: Overview, now_s: float) -> Lent | None:
        """What is to be lent from now on; None where nothing is, and nothing of ours stands. Raises PalError."""
        listed = {one.guest: one for one in self._journal.loan_lists()}
        if self.terms is None:
            return Lent(trouble=()) if listed else None
        terms = self.terms
        if why := refused(terms, overview, self._site.slurm):
            return Lent(trouble=(why,))
        since_s = now_s - self._config.number("loan", "history_d") * 86400
        before = self._journal.loan_orders(now_s - 2 * terms.interval_s)
        orders = [one for one in before if one.guest == terms.guest and one.due]
        known = LoanMemory(
            listed=listed.get(terms.guest),
            order_s=orders[-1].at_s if orders else 0.0,  # not the latest time: a clock may be set back
            demand=self._journal.demand(terms.key, int(since_s // terms.hour_s)),
            leaving=frozenset(move.job_id for move in self._journal.open_moves()),
            own_req=self._own_req(),
        )
        found = lend(overview, terms, known, self._moving, now_s)
        guests = (job for job in overview.jobs if job.partition == terms.guest and job.nodes)
        return found._replace(trouble=tuple(unpreempted(guests, self._site.slurm)))

    def remember(self, lent: Lent | None, now_s: float) -> list[str]:
        """Learn what owners need; what went wrong, one line each. Raises DataError, BusyError."""
        terms = self.terms
        if terms is None or lent is None or not lent.guest:
            return []
        history_s = self._config.number("loan", "history_d") * 86400
        since_hour, trouble = int((now_s - history_s) // terms.hour_s), []
        needed = {int(now_s // terms.hour_s): float(lent.needed)}
        past = [hour for hour in self._journal.demand(terms.key, since_hour) if hour < now_s // terms.hour_s]
        again = not 0 <= now_s - self._asked_s < self._again_s
        if self._site.history is not None and again and len(past) < WEEK_H:
            self._asked_s, self._again_s = now_s, HISTORY_AGAIN_S
            try:
                found = self._site.history(terms.owners, now_s - history_s, terms.hour_s)
                self._journal.add_demand(terms.key, found, since_hour)
            except PalError as error:
                self._again_s = terms.interval_s
                trouble.append(f"the owners' past demand is not known yet: {one_line(error)}")
        self._journal.add_demand(terms.key, needed, since_hour)
        return trouble

    def carry_out(self, lent: Lent, now_s: float) -> list[str]:
        """Set the list; what went wrong, one line each.

        Raises SlurmError when Slurm does not take it, so that nobody leaves a node in vain; DataError, BusyError.
        """
        if self.terms is None or not lent.guest:
            return self.take_back("nothing is lent now", now_s)
        until_s = now_s + ENDS_AFTER * self.terms.interval_s
        ours_stands = {*lent.nodes} != {*lent.own}
        if lent.changed or (lent.order is not None and ours_stands):
            listed = next((one for one in self._journal.loan_lists() if one.guest == lent.guest), None)
            with self._journal.together():
                self._journal.set_loan_list(set_next(lent, listed, now_s, until_s))
                if lent.order is not None:
                    self._journal.add_loan_order(lent.order)
        elif lent.order is not None:
            self._journal.add_loan_order(lent.order)
        if lent.changed:
            if not {*lent.present} <= {*lent.nodes}:
                self._sleep(FILTER_S)
            try:
                self._client.update_partition(lent.guest, Nodes=fold(list(lent.nodes)))
            except SlurmError as error:
                raise SlurmError(f"partition {lent.guest} keeps its nodes for now: {error}") from None
            about = {"open": fold(list(lent.opened)), "why": lent.order.why if lent.order else "an owner's job runs"}
            self._log.write(now_s, "loan", partition=lent.guest, nodes=fold(list(lent.nodes)), **about)
        if not ours_stands:
            self._journal.end_loan_list(lent.guest)
        return [*unhold(self._client, lent.unheld), *self._release(lent.released, now_s)]

    def _release(self, workers: Iterable[SlurmJob], now_s: float) -> list[str]:
        """Flexible workers go back to the queue: their base jobs run on."""
        trouble = []
        for job in workers:
            try:
                self._client.requeue(job.job_id)
                self._log.write(now_s, "release", job_id=job.job_id, nodes=fold(list(job.nodes)))
            except SlurmError as error:
                trouble.append(f"flexible worker {job.job_id} runs on: {error}")
        return trouble

    def leaving(self, lent: Lent, now_s: float) -> list[Move]:
        """The guests that leave, as the journal holds them."""
        owners = self.terms.names if self.terms is not None else ""
        own_req = self._own_req()
        return [
            Move(
                0, one.job.job_id, one.job.user, now_s, one.job.restarts, source_of(one.job), (), "",
                required_by_user(one.job, own_req), 0.0, 0.0, 0.0, one.lost_s, one.checkpoint,
                marks.read(one.job.comment, marks.ACK).get(marks.ACK, ""), MoveStep.PLANNED, now_s, owners=owners,
                ran_s=one.ran_s,
            )
            for one in lent.leavers
        ]  # fmt: skip

    def _own_req(self) -> dict[int, str]:
        """Job -> the nodes that its user requires, where a lease of the tick may stand in for them."""
        leases = self._journal.leases()
        return {job_id: lease.own_req for job_id, lease in leases.items() if lease.own_req is not None}

    def overdue(self, now_s: float) -> list[str]:
        """Where nothing can be decided a list stands no longer than its time. Raises as `take_back` does."""
        late = any(now_s >= one.until_s for one in self._journal.loan_lists())
        return self.take_back("nothing could be decided about it", now_s) if late else []

    def take_back(self, why: str, now_s: float) -> list[str]:
        """Give partitions their own nodes back; what went wrong, one line each. Raises SlurmError, DataError."""
        listed = self._journal.loan_lists()
        if not listed:
            return []
        back, trouble = lists_back(self._client, listed, self._client.overview().partitions)
        for one in back:
            self._log.write(now_s, "loan", partition=one.guest, nodes=one.own, why=why)
            self._journal.end_loan_list(one.guest)
        return trouble


def source_of(job: SlurmJob) -> str:
    """Where a job runs, as the journal writes it: "n3:0,1 n4:2", without GPUs "n3"."""
    return " ".join(
        f"{name}:{','.join(map(str, job.gpus[name]))}" if job.gpus.get(name) else name for name in job.nodes
    )
