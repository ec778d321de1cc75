"""Wishes of the tick into Slurm: each journalled, then one update of one job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurm_pal.errors import BusyError, DataError, SlurmError
from slurm_pal.hostlist import expand
from slurm_pal.jobs import SlurmJob
from slurm_pal.rebalance import story
from slurm_pal.rebalance.event_log import EventLog
from slurm_pal.rebalance.journal import Journal, TickLease
from slurm_pal.rebalance.retarget import Wish
from slurm_pal.rebalance.role import Role
from slurm_pal.slurm.client import SlurmClient

_REPLACED, _REFUSED = "another list takes its place", "Slurm refused: "


class Hand:
    """Carries wishes out for one role."""

    def __init__(self, client: SlurmClient, journal: Journal, role: Role, log: EventLog) -> None:
        self._client, self._journal, self._role, self._log = client, journal, role, log
        self._doubtful: set[int] | None = None  # jobs whose list may not be as journalled; None: all

    @property
    def in_doubt(self) -> bool:
        """Whether `settle` has something to look for."""
        return self._doubtful is None or bool(self._doubtful)

    def settle(self, jobs: Iterable[SlurmJob]) -> None:
        """Put right what the journal says of lists whose update was cut short, before anything is decided by it.

        Between journal and update a process may be killed: then a job bears the list from before.
        An update that Slurm did not confirm may have come through: then it bears the new one. Without
        this both would pass for a list of somebody else, and stay. Raises DataError, BusyError.
        """
        leases = self._journal.leases()
        for job in jobs if self.in_doubt else ():
            lease = leases.get(job.job_id)
            if self._doubtful is not None and job.job_id not in self._doubtful:
                continue
            if not (job.req_nodes or job.exc_nodes) or (lease is not None and _bears(job, lease)):
                continue
            for other, why, _ in self._journal.ended_leases(job.job_id)[-1:]:
                if why.startswith((_REPLACED, _REFUSED)) and _bears(job, other):
                    self._journal.lease(other)
        self._doubtful = set()

    def carry_out(self, wishes: Iterable[Wish], jobs: Mapping[int, SlurmJob], now_s: float) -> list[str]:
        """Do what is wished; what went wrong, one line each.

        While the journal cannot be written no list is set, and the others are still taken back.
        """
        trouble: list[str] = []
        for wish in wishes:
            try:
                trouble.append(self._one(wish, jobs.get(wish.job_id), now_s))
            except (DataError, BusyError) as error:
                trouble.append(str(error))
        return [line for line in dict.fromkeys(trouble) if line]

    def _one(self, wish: Wish, job: SlurmJob | None, now_s: float) -> str:
        before = self._journal.leases().get(wish.job_id)
        if wish.action == "none" and wish.lease is None and before is not None:
            self._journal.hands_off(wish.job_id, wish.reason, now_s)
        if wish.lease is not None:  # before it is set: what is not remembered could not be taken back
            self._keep(wish.lease, before, now_s)
        try:
            if wish.fields:
                self._client.update_job(wish.job_id, **wish.fields, **self._told(wish, job, now_s))
        except SlurmError as error:  # it may have started, ended or been changed just now
            if wish.lease is not None:
                self._give_up(wish.job_id, before, error, now_s)
            return f"the node list of job {wish.job_id} stays as it is: {error}"
        if wish.lease is None and before is not None:
            self._journal.end_lease(wish.job_id, wish.reason, now_s)
        if wish.fields:
            self._log.write(now_s, wish.action, job_id=wish.job_id, fields=wish.fields, reason=wish.reason)
        return ""

    def _keep(self, lease: TickLease, before: TickLease | None, now_s: float) -> None:
        """Journal a lease; one with another list, which the job may still bear, is not forgotten."""
        with self._journal.together():
            if before is not None and (before.kind, before.ours) != (lease.kind, lease.ours):
                self._journal.end_lease(lease.job_id, _REPLACED, now_s)
            self._journal.lease(lease)

    def _give_up(self, job_id: int, before: TickLease | None, error: SlurmError, now_s: float) -> None:
        if self._doubtful is not None:
            self._doubtful.add(job_id)
        with self._journal.together():
            self._journal.end_lease(job_id, f"{_REFUSED}{error}", now_s)
            if before is not None:
                self._journal.lease(before)

    def _told(self, wish: Wish, job: SlurmJob | None, now_s: float) -> dict[str, str]:
        """The job's story, for its owner to read, where we may write it."""
        if job is None or "admin-comment" not in self._role.may:
            return {}
        lists = ",".join(filter(None, wish.fields.values()))
        words = {"ev": f"{now_s:.0f}", "what": wish.action, **({"set": lists} if lists else {})}
        text = story.added(job.fields.get("AdminComment", ""), words)
        return {} if text is None else {"AdminComment": text}


def _bears(job: SlurmJob, lease: TickLease) -> bool:
    """Whether the list of this lease is in force."""
    present = job.exc_nodes if lease.kind == "exclude" else job.req_nodes
    return bool(present) and frozenset(present) == frozenset(expand(lease.ours))
