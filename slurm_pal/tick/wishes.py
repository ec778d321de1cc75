# SPDX-License-Identifier: MIT
"""Wishes of the tick into Slurm: each journalled, then one update of one job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from slurm_pal.base.errors import BusyError, DataError, NotNowError, SlurmError
from slurm_pal.base.hostlist import expand
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.timing import REAL
from slurm_pal.decide.aside import blamed
from slurm_pal.decide.ownership import Whose, of_lease
from slurm_pal.decide.tick_lease import Sort, TickLease
from slurm_pal.journal import story
from slurm_pal.journal.event_log import EventLog
from slurm_pal.journal.journal import DOUBT_S, REFUSED, REPLACED, Journal
from slurm_pal.partitions.sharing import CHANGED
from slurm_pal.pending.head import FENCE_S
from slurm_pal.pending.retarget import Wish, WishAction
from slurm_pal.slurm.client import AGAIN_S, SlurmClient
from slurm_pal.tick.role import Role

_NOT_NOW = "Slurm has the job in its hands"
_NO_FENCE = "does not wait for better GPUs, since no fence can be set"
_FENCE_STAYS = "still waits: its fence cannot be taken away, and ends by itself"


class Hand:
    """Carries wishes out for one role."""

    def __init__(
        self, client: SlurmClient, journal: Journal, role: Role, log: EventLog,
        blame: Callable[[int, Exception], str] = blamed, sleep: Callable[[float], None] = REAL.sleep,
    ) -> None:  # fmt: skip
        """`blame` is called for jobs whose order failed by an error of ours; it returns the line for the report."""
        self._client, self._journal, self._role, self._log, self._blame = client, journal, role, log, blame
        self._sleep = sleep
        self._doubtful: set[int] | None = None  # jobs whose list may not be as journalled; None: all
        self._since_s = journal.last_tick_s() - DOUBT_S

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
        if not self.in_doubt:
            return
        doubtful = [job for job in jobs if self._doubtful is None or job.job_id in self._doubtful]
        nodes, partitions = (self._journal.leases(sort) for sort in (Sort.NODES, Sort.PARTITIONS))
        last = self._last_ended()
        for job in doubtful:
            if job.req_nodes or job.exc_nodes:
                self._settle(job, nodes.get(job.job_id), last.get((job.job_id, Sort.NODES)))
            if job.state == "PENDING":
                self._settle(job, partitions.get(job.job_id), last.get((job.job_id, Sort.PARTITIONS)))
        # A running job shows one partition, and its list again when it is requeued.
        running = {job.job_id for job in doubtful if job.state != "PENDING"}
        self._doubtful = running & self._doubtful if self._doubtful else set()

    def _last_ended(self) -> dict[tuple[int, Sort], tuple[TickLease, str]]:
        """(job, sort) -> its lease of that sort that ended last, and why.

        What an earlier process left in doubt is from its last tick: a list of days ago is somebody's own by now.
        """
        if self._doubtful is None:
            ended = self._journal.ended_leases(since_s=self._since_s)
        else:
            ended = [row for job_id in sorted(self._doubtful) for row in self._journal.ended_leases(job_id)]
        return {(lease.job_id, lease.kind.sort): (lease, why) for lease, why, _ in ended}

    def _settle(self, job: SlurmJob, lease: TickLease | None, last: tuple[TickLease, str] | None) -> None:
        if last is None or (lease is not None and of_lease(job, lease) is Whose.OURS):
            return
        other, why = last
        if why.startswith((REPLACED, REFUSED)) and of_lease(job, other) is Whose.OURS:
            self._journal.lease(other)

    def carry_out(
        self, wishes: Iterable[Wish], jobs: Mapping[int, SlurmJob], now_s: float, again_s: Sequence[float] = AGAIN_S
    ) -> list[str]:
        """Carry the wishes out; returns what went wrong, one line each.

        What Slurm cannot do at that moment is tried again after each pause of `again_s`. While the
        journal cannot be written no list is set, but lists are still taken back.
        """
        trouble: list[str] = []
        comments: dict[int, str] = {}  # a job may get two lists, and its comment shows both
        left = [*wishes]
        for pause_s in (0.0, *again_s):
            self._sleep(pause_s)
            left = [wish for wish in left if not self._carried(wish, jobs.get(wish.job_id), comments, trouble, now_s)]
            if not left:
                break
        return [line for line in dict.fromkeys(trouble) if line]

    def _carried(
        self, wish: Wish, job: SlurmJob | None, comments: dict[int, str], trouble: list[str], now_s: float
    ) -> bool:
        """Whether this wish is over, well or not; False where Slurm may take it in a moment."""
        if job is not None and wish.job_id in comments:
            job = job._replace(admin_comment=comments[wish.job_id])
        comment: dict[str, str] = {}
        try:
            comment = self._comment(wish, job, now_s) if wish.fields else {}
            said = self._one(wish, comment, now_s)
        except NotNowError:
            return False
        except (DataError, BusyError) as error:
            said = str(error)
        except Exception as error:  # the others are carried out
            said = self._blame(wish.job_id, error)
        trouble.append(said)
        if comment and not said:
            comments[wish.job_id] = comment["AdminComment"]
        return True

    def _one(self, wish: Wish, comment: Mapping[str, str], now_s: float) -> str:
        before = self._journal.lease_of(wish.job_id, wish.sort)
        if wish.action is WishAction.NONE and wish.lease is None and (before is not None or wish.reason == CHANGED):
            self._journal.hands_off(wish.job_id, wish.reason, now_s)
        if wish.lease is not None:  # before it is set: what is not remembered could not be taken back
            self._keep(wish.lease, before, now_s)
        try:
            if wish.sort is Sort.FENCES:
                self._fence(wish, before, now_s)
            elif wish.fields:
                self._client.update_job(wish.job_id, **wish.fields, **wish.guard, **comment)
        except NotNowError:
            if wish.lease is not None:
                self._give_up(wish, before, _NOT_NOW, now_s)
            raise
        except SlurmError as error:  # it may have started, ended or been changed just now
            if wish.lease is not None:
                if self._doubtful is not None:
                    self._doubtful.add(wish.job_id)
                self._give_up(wish, before, f"{REFUSED}{error}", now_s)
            if wish.sort is Sort.FENCES:
                return f"job {wish.job_id} {_NO_FENCE if wish.lease is not None else _FENCE_STAYS}: {error}"
            what = "the partition" if wish.sort is Sort.PARTITIONS else "the node list"
            return f"{what} of job {wish.job_id} stays as it is: {error}"
        if wish.lease is None and before is not None:
            self._journal.end_lease(wish.job_id, wish.reason, now_s, wish.sort)
        if wish.fields:
            self._log.write(now_s, wish.action, job_id=wish.job_id, fields=wish.fields, reason=wish.reason)
        return ""

    def _fence(self, wish: Wish, before: TickLease | None, now_s: float) -> None:
        """Set a fence, or take it away. What Slurm did not confirm is taken away at once, or ends by itself."""
        if wish.action is WishAction.FENCE_CLEAR and before is not None:
            self._client.release(before.reservation)
        elif wish.action is WishAction.FENCE and wish.lease is not None:
            name, nodes = wish.lease.reservation, expand(wish.lease.ours)
            try:
                self._client.fence(name, nodes, wish.lease.until_s - now_s - FENCE_S, FENCE_S, self._role.user)
            except SlurmError:
                with contextlib.suppress(SlurmError):
                    self._client.release(name)
                raise
        else:
            return
        fence = wish.lease or before
        about = {"nodes": fence.ours, "reservation": fence.reservation} if fence is not None else {}
        self._log.write(now_s, wish.action, job_id=wish.job_id, **about, reason=wish.reason)

    def _keep(self, lease: TickLease, before: TickLease | None, now_s: float) -> None:
        """Journal a lease; one with another list, which the job may still bear, is not forgotten."""
        with self._journal.together():
            if before is not None and (before.kind, before.ours) != (lease.kind, lease.ours):
                self._journal.end_lease(lease.job_id, REPLACED, now_s, lease.kind.sort)
            self._journal.lease(lease)

    def _give_up(self, wish: Wish, before: TickLease | None, why: str, now_s: float) -> None:
        with self._journal.together():
            self._journal.end_lease(wish.job_id, why, now_s, wish.sort)
            if before is not None:
                self._journal.lease(before)

    def _comment(self, wish: Wish, job: SlurmJob | None, now_s: float) -> dict[str, str]:
        """The job's story, for its owner to read, where we may write it."""
        if job is None or "admin-comment" not in self._role.may:
            return {}
        lists = ",".join(filter(None, wish.fields.values()))
        words = {"ev": f"{now_s:.0f}", "what": wish.action, **({"set": lists} if lists else {})}
        text = story.added(job.admin_comment, words)
        return {} if text is None else {"AdminComment": text}
