# SPDX-License-Identifier: MIT
"""In which of its user's partitions a pending job should wait for a start: pure, by effective throughput.

A job that may run in several partitions has a list of them. An allocation policy says how much
of each job's time belongs where (research/allocation_policies.py); here that becomes a shorter list, a lease:
the one partition where the job belongs and finds room now, or those where it belongs while
waiting for them pays. Slurm itself starts the job, and checks accounts, QOS and limits as ever:
a list is only ever a part of the user's own, and one that Slurm does not take is given up at once.

Waiting is counted whenever the job finds room in a partition that a list of ours keeps it off.
A GPU that looks free may not be (another job's reservation, a limit), so what looks like no room
elsewhere may be room: a list that has stood for `Terms.longest_s` makes way for one interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from slurm_pal.base.clock import CLOCK_SKEW_S
from slurm_pal.base.jobs import GpuShape, SlurmJob
from slurm_pal.decide.lease import PARTITION
from slurm_pal.decide.lease_marks import in_force
from slurm_pal.decide.ownership import Whose, of_lease
from slurm_pal.decide.partition_mark import mark_of
from slurm_pal.decide.steering import gained_s
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease
from slurm_pal.pending.retarget import Waiting, Wish, WishAction
from slurm_pal.placement.patience import WAIT_SHARE
from slurm_pal.slurm.client import Overview

LIMITS = ("Partition", "Assoc", "QOS", "Account", "InvalidAccount", "InvalidQOS", "Reservation")
"""How Slurm's reasons begin when it would not start a job in any of its partitions, free GPUs or not."""
UNFIT = "BadConstraints"
"""No node of its partitions fits the job: slurmctld has set its priority to 0, until its partitions change."""
NOT_TAKEN = "Slurm does not take it there"
"""The reason for the end of a list with which Slurm would not start the job."""
CHANGED = "somebody has changed its partitions since: left alone"
"""Why a job is left alone whose partitions are not those that we gave it, or gave back."""
LEAST_SHARE = 1e-6
"""A smaller share is rounding of the solver."""


class Claimant(NamedTuple):
    """A pending job, with the partitions that its user named."""

    job: SlurmJob
    own: tuple[str, ...]  # its user's list, in their order
    shape: GpuShape
    speed: Mapping[str, float]  # partition -> throughput, in any unit of its own; those where it could run
    error: Mapping[str, float]  # partition -> standard deviation of its logarithm
    nodes: Mapping[str, Sequence[str]]  # partition -> nodes where all it needs besides GPUs is free now
    run_s: float  # expected in the slowest of its partitions: its time limit must hold there, too
    waited_s: float  # how long it could have started but for our lists
    closed: Set[str] = frozenset()  # partitions in which the job's node lists, perhaps ours, leave no node


class SharingTerms(NamedTuple):
    """How long a list may stand. Times in s."""

    pass_s: float  # of one scheduling pass of Slurm
    interval_s: float  # between two ticks
    longest_s: float  # how long, in all, a list may keep a job that could start off a partition


class Shared(NamedTuple):
    """What is decided about the partitions of all jobs."""

    wishes: tuple[Wish, ...]
    waiting: tuple[Waiting, ...]  # as given, those with one partition now as if they had never had more
    overview: Overview  # the same jobs in the same partitions


class Room:
    """GPUs that are free now. Jobs to be started claim theirs."""

    def __init__(self, free: Mapping[str, Sequence[str]], empty: Set[str] = frozenset()) -> None:
        """`free`: node -> the types of its free GPUs ("": of no type); `empty`: nodes with nothing running on them."""
        self._free = {name: list(types) for name, types in free.items()}
        self._empty = set(empty)

    def take(self, nodes: Sequence[str], shape: GpuShape, *, claim: bool) -> bool:
        """Whether a job of this shape finds its GPUs on these nodes now; with `claim` they are gone afterwards."""
        counts = {name: self._count(name, shape) for name in nodes}
        names = sorted((name for name in nodes if counts[name]), key=lambda name: (counts[name], name))
        found = self._one_node(names, counts, shape) if (shape.nodes or 1) == 1 else {}
        found = found or ({} if shape.nodes == 1 else self._several(names, counts, shape))
        if claim:
            for name, count in found.items():
                self._claim(name, count, shape)
        return bool(found)

    def _count(self, name: str, shape: GpuShape) -> int:
        free = self._free.get(name, [])
        if shape.whole_nodes and name not in self._empty:
            return 0
        return free.count(shape.gpu_type) if shape.gpu_type else len(free)

    def _one_node(self, names: Sequence[str], counts: Mapping[str, int], shape: GpuShape) -> dict[str, int]:
        wanted = shape.per_node or shape.total
        return next(({name: wanted} for name in names if counts[name] >= wanted), {})

    def _several(self, names: Sequence[str], counts: Mapping[str, int], shape: GpuShape) -> dict[str, int]:
        if shape.nodes is not None and shape.per_node is not None:
            fitting = [name for name in names if counts[name] >= shape.per_node]
            return dict.fromkeys(fitting[: shape.nodes], shape.per_node) if len(fitting) >= shape.nodes else {}
        fullest, least = names[::-1][: shape.nodes], shape.nodes or 0  # of a stated number each node gives one
        if min(len(fullest), shape.total) < least:
            return {}
        found: dict[str, int] = {}
        left = shape.total
        for place, name in enumerate(fullest, 1):
            if left:
                found[name] = min(left - max(0, least - place), counts[name])
                left -= found[name]
        return {} if left else found

    def _claim(self, name: str, count: int, shape: GpuShape) -> None:
        free = self._free[name]
        gone = [k for k, kind in enumerate(free) if shape.gpu_type in ("", kind)][:count]
        self._free[name] = [] if shape.whole_nodes else [kind for k, kind in enumerate(free) if k not in gone]
        self._empty.discard(name)


def share(
    claimants: Sequence[Claimant],
    belongs: Sequence[Mapping[str, float]],
    leases: Mapping[int, TickLease],
    room: Room,
    up: Set[str],
    terms: SharingTerms,
    now_s: float,
) -> list[Wish]:
    """What to do about these jobs, given by Slurm's priority, highest first.

    `belongs[k]` is the share of time of claimant k in each partition, as an allocation policy
    has it; a job without any share is left to all of its partitions. `up` are the partitions that
    take jobs now.
    """
    return [
        _Sharing(one, place, leases.get(one.job.job_id), room, up, terms, now_s).wish()
        for one, place in zip(claimants, belongs, strict=True)
    ]


class _Sharing:
    """What to do about one job."""

    def __init__(
        self, one: Claimant, place: Mapping[str, float], lease: TickLease | None, room: Room, up: Set[str],
        terms: SharingTerms, now_s: float,
    ) -> None:  # fmt: skip
        self._mark = mark_of(one.job) if lease is None else None
        if self._mark is not None:  # palsub has kept it off its other partitions so far
            kept_s = max(0.0, now_s - max(one.job.submit_s, one.job.eligible_s))
            one = one._replace(waited_s=one.waited_s + kept_s)
        self._one, self._lease, self._room, self._up, self._terms, self._now_s = one, lease, room, up, terms, now_s
        wanted = [
            name
            for name in one.own
            if place.get(name, 0.0) > LEAST_SHARE and one.speed.get(name, 0.0) > 0 and name not in one.closed
        ]
        self._wanted = tuple(sorted(wanted, key=lambda name: -place[name]))
        since = lease if lease is not None and lease.restarts == one.job.restarts else None
        if since is not None and now_s < since.made_s - CLOCK_SKEW_S:  # the clock was set back: its times mean nothing
            since = None
        self._stands = since if since is not None and of_lease(one.job, since) is Whose.OURS else None

    def wish(self) -> Wish:
        one, lease = self._one, self._lease
        if of_lease(one.job, lease) is Whose.OTHER:
            return _hands_off(one.job)
        if self._stands is not None and (why := not_taken(one.job)):
            return self._leave(why)
        if not self._wanted:
            return self._open("no partition suits it better than the others")
        if self._stands is not None and self._now_s - self._stands.made_s >= self._terms.longest_s:
            return self._open("it has been kept off its other partitions for long: for one interval it is not")
        now = next((name for name in self._wanted if self._finds_room(name)), "")
        tried = self._tried(now)
        choices = [self._wanted] if not now or tried or self._lists(self._wanted) else [(now,), self._wanted]
        for names in choices:
            made = self._keep(names, now, tried)
            if made is not None:
                return made
        return self._open("waiting for a faster partition no longer pays")

    def _finds_room(self, name: str, *, claim: bool = False) -> bool:
        return self._room.take(self._one.nodes.get(name, ()), self._one.shape, claim=claim)

    def _lists(self, names: Sequence[str]) -> bool:
        """Whether this list of ours is in force."""
        return self._stands is not None and set(self._stands.ours.split(",")) == set(names)

    def _tried(self, partition: str) -> bool:
        """Whether Slurm had time to start the job there, and did not."""
        return self._stands is not None and self._lists((partition,)) and self._now_s >= self._stands.until_s

    def _keep(self, names: tuple[str, ...], now: str, tried: bool) -> Wish | None:
        """A list of ours, `now` being a partition with room, or "" without one; None where it no longer pays."""
        one, terms = self._one, self._terms
        others = [name for name in one.own if name not in names and one.speed.get(name, 0.0) > 0]
        if not others:
            return self._open("it belongs in all of its partitions")
        pays_s = min(patience_s(one, names, others), terms.longest_s)
        first = names == (now,) and not tried and not one.waited_s  # Slurm's next pass should start it
        if not first and one.waited_s + terms.interval_s > pays_s:
            return None
        could_start = any(self._finds_room(name) for name in others)
        if now and not tried:
            self._finds_room(now, claim=True)
            until_s = self._now_s + max(terms.pass_s, terms.interval_s)
            until_s = min(until_s, self._stands.until_s) if self._stands and self._lists(names) else until_s
        elif tried and self._stands and self._lists(names):
            until_s = self._stands.until_s
        else:
            until_s = self._now_s + pays_s - one.waited_s + terms.interval_s
        return self._listed(names, until_s, f"{','.join(names)} is where it runs best for its share", could_start)

    def _listed(self, names: Sequence[str], until_s: float, reason: str, could_start: bool) -> Wish:
        """This list; one that stands already is kept, and the time at which it was made with it."""
        job, old = self._one.job, self._stands if self._lists(names) else None
        made_s, ours = (old.made_s, old.ours) if old is not None else (self._now_s, ",".join(names))
        made = TickLease(
            job.job_id, LeaseKind.PARTITION, ours, ",".join(self._one.own), made_s, until_s, job.restarts, reason
        )
        return _say(job, WishAction.KEEP if old is not None else WishAction.PARTITION, made, reason, could_start)

    def _open(self, why: str) -> Wish:
        """The user's own list. Slurm decides where it starts: in the first with room, if it goes by the list."""
        next((name for name in self._one.own if self._finds_room(name, claim=True)), "")
        return self._leave(why)

    def _leave(self, why: str) -> Wish:
        """The user's own list, for a job that does not start now."""
        job, mark = self._one.job, self._mark
        if self._lease is not None:
            return _back(job, self._lease, why, self._up)
        if mark is None:
            return _say(job, WishAction.NONE, None, why)
        # As if the list that palsub has set were ours. The nodes that it has named are all in that partition.
        lease = TickLease(
            job.job_id, LeaseKind.PARTITION, mark.ours, mark.own, self._now_s, self._now_s, job.restarts, why
        )
        made = _back(job, lease, why, self._up)
        return made._replace(fields=in_force(job) | made.fields) if made.fields else made


def patience_s(one: Claimant, names: Sequence[str], others: Sequence[str]) -> float:
    """How long the job may be kept off `others` for `names`: half of what it gains there, as far as that is sure.

    It may come to run in the slowest of `names`. Throughputs are estimates. The logarithm of a
    ratio counts only as far as its errors allow (shrunk towards 0), so an unknown throughput
    keeps no job waiting.
    """
    speeds = [value for value in one.speed.values() if value > 0]
    slowest = min(speeds, default=0.0)
    at = {name: (one.speed[name], one.error.get(name, 0.0)) for name in (*names, *others)}
    gains = [gained_s(one.run_s * slowest, at[name], at[other]) for name in names for other in others]
    return WAIT_SHARE * max(0.0, min(gains, default=0.0))


def not_taken(job: SlurmJob) -> str:
    """Why Slurm would not start this job with the partitions that it has, "" where it only waits for its turn."""
    return f"{NOT_TAKEN} ({job.reason})" if job.reason.startswith((*LIMITS, UNFIT)) else ""


def over(leases: Mapping[int, TickLease], jobs: Iterable[SlurmJob], up: Set[str], why: str) -> list[Wish]:
    """The users' own lists, for those of these jobs that are pending with one of ours.

    A job whose list somebody else has changed is left alone from now on.
    """
    wishes = []
    for job in jobs:
        lease = leases.get(job.job_id)
        if lease is not None and job.state == "PENDING":
            other = of_lease(job, lease) is Whose.OTHER
            wishes.append(_hands_off(job) if other else _back(job, lease, not_taken(job) or why, up))
    return wishes


def changed(given_back: Mapping[int, TickLease], jobs: Iterable[SlurmJob]) -> list[Wish]:
    """Hands off the pending jobs whose partitions are not those with which our last lease, `given_back`, ended.

    Their users' lists that we remember would send them where they do not want to go any more.
    """
    last = ((job, given_back.get(job.job_id)) for job in jobs if job.state == "PENDING")
    return [
        _hands_off(job)
        for job, lease in last
        if lease is not None and of_this_job(lease, job)
        if frozenset(job.partition.split(",")) != frozenset(lease.own.split(","))
    ]


def of_this_job(lease: TickLease, job: SlurmJob) -> bool:
    """Whether a lease was made for this job, and not for one that had its number before slurmctld started afresh.

    A requeue gives a job a new time of submission.
    """
    if job.restarts != lease.restarts:
        return job.restarts > lease.restarts
    return lease.made_s >= job.submit_s - CLOCK_SKEW_S


def _back(job: SlurmJob, lease: TickLease, why: str, up: Set[str]) -> Wish:
    """The user's own list, without the partitions that take no jobs now.

    Slurm would drop these without a word, and for good. The rest is a lease, until they are up again.
    """
    own = lease.own.split(",")
    names = [name for name in own if name in up]
    if of_lease(job, lease) is Whose.OWN or len(names) == len(own):
        made = _say(job, WishAction.PARTITION_CLEAR, None, why)
        return made if of_lease(job, lease) is Whose.OWN else made._replace(fields={PARTITION: lease.own})
    reason = f"{why}; its other partitions take no jobs now"
    if not names or set(names) == set(lease.ours.split(",")):
        return _say(job, WishAction.KEEP, lease, reason)
    return _say(job, WishAction.PARTITION, lease._replace(ours=",".join(names), reason=reason), reason)


def _hands_off(job: SlurmJob) -> Wish:
    return _say(job, WishAction.NONE, None, CHANGED)


def _say(job: SlurmJob, action: WishAction, lease: TickLease | None, why: str, could_start: bool = False) -> Wish:
    fields = {PARTITION: lease.ours} if action is WishAction.PARTITION and lease is not None else {}
    return Wish(job.job_id, action, fields, lease, could_start, why, Sort.PARTITIONS)
