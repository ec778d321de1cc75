"""Wishes of the tick into Slurm: each journalled, then one update of one job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurm_pal.errors import BusyError, DataError, SlurmError
from slurm_pal.jobs import SlurmJob
from slurm_pal.rebalance import story
from slurm_pal.rebalance.event_log import EventLog
from slurm_pal.rebalance.journal import Journal
from slurm_pal.rebalance.retarget import Wish
from slurm_pal.rebalance.role import Role
from slurm_pal.slurm.client import SlurmClient


class Hand:
    """Carries wishes out for one role."""

    def __init__(self, client: SlurmClient, journal: Journal, role: Role, log: EventLog) -> None:
        self._client, self._journal, self._role, self._log = client, journal, role, log

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
            self._journal.lease(wish.lease)
        try:
            if wish.fields:
                self._client.update_job(wish.job_id, **wish.fields, **self._told(wish, job, now_s))
        except SlurmError as error:  # it may have started, ended or been changed just now
            if wish.lease is not None and before is not None:
                self._journal.lease(before)
            elif wish.lease is not None:
                self._journal.end_lease(wish.job_id, f"Slurm refused: {error}", now_s)
            return f"the node list of job {wish.job_id} stays as it is: {error}"
        if wish.lease is None and before is not None:
            self._journal.end_lease(wish.job_id, wish.reason, now_s)
        if wish.fields:
            self._log.write(now_s, wish.action, job_id=wish.job_id, fields=wish.fields, reason=wish.reason)
        return ""

    def _told(self, wish: Wish, job: SlurmJob | None, now_s: float) -> dict[str, str]:
        """The job's story, for its owner to read, where we may write it."""
        if job is None or "admin-comment" not in self._role.may:
            return {}
        lists = ",".join(filter(None, wish.fields.values()))
        words = {"ev": f"{now_s:.0f}", "what": wish.action, **({"set": lists} if lists else {})}
        text = story.added(job.fields.get("AdminComment", ""), words)
        return {} if text is None else {"AdminComment": text}
