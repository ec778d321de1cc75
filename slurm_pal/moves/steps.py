# SPDX-License-Identifier: MIT
"""What to do next for one journalled move of a running job. Pure: the job as it is now decides.

    planned -> [signalling] -> requeueing -> targeting -> [clearing | freeing] -> over

A job that leaves nodes whose owners want them back (`Move.owners`) takes the same way without a target: it is
requeued also where no checkpoint came in time, and waits for nodes that are open to it.

The job is requeued, not held: Slurm itself starts it again after a delay (cred_expire + 1 s),
whatever becomes of us. In that delay it is given its nodes, its partition where that is to be
another one, and a start in `LATER_S` instead of a minute or two. So no job can be
left held by us, a hold that we see is always somebody else's, and the job keeps its place in the
queue, which a released one would lose.

Each step is journalled before it is taken and can be taken twice without harm: after a crash the
same function finishes or undoes the move.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from slurm_pal.base import marks
from slurm_pal.base.clock import CLOCK_SKEW_S
from slurm_pal.base.hostlist import expand, fold
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.numbers import digits
from slurm_pal.decide.lease import EXCLUDED, PARTITION, REQUIRED
from slurm_pal.decide.lease_marks import in_force
from slurm_pal.decide.offers import used_indexes
from slurm_pal.decide.ownership import Whose, listed, names, of_lease, whose
from slurm_pal.decide.tick_lease import LeaseKind, TickLease
from slurm_pal.journal.journal import Move
from slurm_pal.journal.move_states import MoveOutcome, MoveStep
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import JOB_ACTIVE, JOB_ENDED, JOB_UNKNOWN, JOB_WAITING, usable

SETTLED_S = 1.2
"""A job does not start again sooner after its end, on any node, since that may be one that it held just now or in
an earlier move, or one that its user lists meanwhile. There slurmd compares the moment of the kill with
that of the new credential in whole seconds; a start within the same second is refused ("Job credential revoked"),
and slurmctld then ends the job for good (seen on 22.05 and 24.11)."""
LATER_S, LATER = 2.0, "now+2"
"""The start that comes with the update of the lists; slurmctld cuts it to whole seconds."""
_FAILED, _MISSING = "its checkpoint failed", "no checkpoint after"
_REQUEUED = "somebody else has requeued it"
LOST = "; no checkpoint came"
"""Ends the detail of a job that left for owners, was asked for a checkpoint, and acknowledged none."""
RUNS_ON = "it runs on "
"""Begins the detail of a job that was seen running again; nodes follow."""
_STARTED = JOB_ACTIVE - {"COMPLETING"}


class Order(StrEnum):
    """What Slurm is asked to do for a job that is moved."""

    NONE = ""
    SIGNAL = "signal"  # its batch shell, for a checkpoint
    REQUEUE = "requeue"
    UPDATE = "update"


class StepLimits(NamedTuple):
    """How long a move stays in a step, s."""

    ack_limit_s: float = 120.0  # for the acknowledgement of a checkpoint
    grace_s: float = 60.0  # the same of a job that leaves for owners, whether or not it comes
    start_limit_s: float = 3.0  # one scheduling pass, for a start on the target
    plan_limit_s: float = 10.0  # an older plan is not carried out
    retry_s: float = 2.0  # an order that Slurm refuses is given anew for so long
    settle_limit_s: float = 60.0  # after that nobody watches a job that waits without our list


class Act(NamedTuple):
    """The next thing to do; all of it empty: wait."""

    step: MoveStep = MoveStep.NONE  # to be journalled first; the present step: only its time, as if just entered
    order: Order = Order.NONE
    fields: dict[str, str] = {}  # of the update
    outcome: MoveOutcome = MoveOutcome.OPEN  # else the move is over
    detail: str = ""


class _Seen(NamedTuple):
    """A move and its job at one moment."""

    move: Move
    job: SlurmJob
    now_s: float
    limits: StepLimits
    lease: TickLease | None

    @property
    def age_s(self) -> float:
        """How long the move has been in the present step."""
        return self.now_s - self.move.step_s

    @property
    def whose(self) -> Whose:
        return _whose(self.move, self.job, self.lease)

    @property
    def back(self) -> dict[str, str]:
        return back(self.move, self.job, self.lease, self.now_s)


def act(move: Move, job: SlurmJob | None, now_s: float, limits: StepLimits, lease: TickLease | None = None) -> Act:
    """What to do next. `job` is None when slurmctld no longer knows it.

    `lease` is what the journal holds for this job: a list of ours from before the move.
    """
    if job is None or job.state in JOB_ENDED:
        return Act(outcome=MoveOutcome.ENDED, detail="it is gone" if job is None else f"it is {job.state}")
    seen = _Seen(move, job, now_s, limits, lease)
    if now_s < move.step_s - CLOCK_SKEW_S:
        return _set_back(seen)
    if move.owners and move.step not in (MoveStep.PLANNED, MoveStep.REQUEUEING):
        return _leaving(seen)
    return _STEPS.get(move.step, _requeued)(seen)


def _set_back(seen: _Seen) -> Act:
    """The clock was set back: nobody knows how old the step is, and the start that came with our lists is far off."""
    move, job = seen.move, seen.job
    ours = move.step == MoveStep.TARGETING and _waits(job) and not job.held and seen.whose is Whose.OURS
    if ours and _delayed(job, seen.now_s):
        return Act(MoveStep.TARGETING, Order.UPDATE, _aimed(seen, 0.0))
    return Act(step=move.step)


def no_checkpoint(move: Move) -> bool:
    """Whether a move was given up since its job did not make the checkpoint that it was to make."""
    return move.outcome is MoveOutcome.ABANDONED and move.detail.startswith((_FAILED, _MISSING))


def requeued_otherwise(move: Move) -> bool:
    """Whether a move was given up since its job was requeued, as some programs do when they are asked to save."""
    return move.outcome is MoveOutcome.ABANDONED and move.detail == _REQUEUED


def look_s(move: Move, now_s: float) -> float:
    """How long after the last look the next one may come: steps that take long need no more than one a second."""
    long = move.step in (MoveStep.SIGNALLING, MoveStep.CLEARING, MoveStep.FREEING) or now_s - move.step_s > 10.0
    return 1.0 if long else 0.0


# -- before the requeue: the job runs, and runs on ---------------------------------------------


def _planned(seen: _Seen) -> Act:
    why = _not_as_planned(seen)
    if not why and seen.age_s > seen.limits.plan_limit_s:
        why = f"the plan is {seen.age_s:.0f} s old"
    if why:
        return Act(outcome=MoveOutcome.ABANDONED, detail=why)
    if seen.move.checkpoint:
        return Act(MoveStep.SIGNALLING, Order.SIGNAL)
    return Act(MoveStep.REQUEUEING, Order.REQUEUE)


def _signalling(seen: _Seen) -> Act:
    answered, why = _answered(seen), _not_as_planned(seen)
    if not why and answered and answered.get("failed"):
        why = _FAILED
    if not why and seen.age_s > seen.limits.ack_limit_s:  # an old checkpoint is no better than none
        why = f"{_MISSING} {seen.limits.ack_limit_s:g} s"
    if why:
        return Act(outcome=MoveOutcome.ABANDONED, detail=why)
    return Act(MoveStep.REQUEUEING, Order.REQUEUE) if answered else Act()


def _answered(seen: _Seen) -> dict[str, str]:
    """The job's word on the checkpoint that it was asked for; {} while there is none."""
    said = marks.read(seen.job.comment, marks.ACK)
    return said if said.get(marks.ACK, "") not in ("", seen.move.ack) else {}


def _not_as_planned(seen: _Seen) -> str:
    if seen.job.restarts != seen.move.restarts:
        return _REQUEUED
    return "" if seen.job.state == "RUNNING" else f"it is {seen.job.state}"


def _requeueing(seen: _Seen) -> Act:
    if seen.job.restarts > seen.move.restarts:
        return _left(seen) if seen.move.owners else _requeued(seen)
    if seen.job.state == "COMPLETING":  # it ends on its own
        return Act()
    if seen.age_s > seen.limits.retry_s:
        return Act(outcome=MoveOutcome.ABANDONED, detail="it was not requeued")
    return Act(order=Order.REQUEUE)


# -- a job that leaves for owners ----------------------------------------------------------------


def _leaving(seen: _Seen) -> Act:
    """It was signalled, or its run was stopped."""
    if seen.move.step != MoveStep.SIGNALLING:
        return _left(seen)
    if why := _not_as_planned(seen):
        return Act(outcome=MoveOutcome.ABANDONED, detail=why)
    over = _answered(seen) or seen.age_s > seen.limits.grace_s
    return Act(MoveStep.REQUEUEING, Order.REQUEUE) if over else Act()


def _left(seen: _Seen) -> Act:
    """After the requeue: Slurm's own delay ends, so that it may start at once on nodes that are open to it."""
    job, moment = seen.job, seen.age_s
    answer = _answered(seen)
    lost = LOST if seen.move.checkpoint and (not answer or answer.get("failed")) else ""
    if job.state in _STARTED:
        return Act(outcome=MoveOutcome.RECLAIMED, detail=f"{RUNS_ON}{fold(job.nodes)}{lost}")
    if _waits(job):
        # A list of ours would send it back to the node that it has just left, or have Slurm hold it.
        fields = in_force(job) | ({REQUIRED: seen.move.own_req} if seen.whose is Whose.OLD else {})
        delayed = _delayed(job, seen.now_s)
        if moment > seen.limits.settle_limit_s or (not fields and (job.held or not delayed)):
            return Act(outcome=MoveOutcome.RECLAIMED, detail=f"it waits: {job.reason}{lost}")
        if seen.move.step != MoveStep.FREEING:
            return Act(MoveStep.FREEING, Order.UPDATE if fields else Order.NONE, fields)
        if delayed and moment >= SETTLED_S:
            fields["StartTime"] = "now"
        return Act(order=Order.UPDATE if fields else Order.NONE, fields=fields)
    if job.state == JOB_UNKNOWN and moment > seen.limits.settle_limit_s:
        return Act(outcome=MoveOutcome.RECLAIMED, detail=f"its state cannot be read{lost}")
    return Act()  # the run that was stopped has not ended: KillWait, epilogs


# -- after it ----------------------------------------------------------------------------------


def _requeued(seen: _Seen) -> Act:
    move, job = seen.move, seen.job
    if job.state in _STARTED:
        there = set(job.nodes) == set(move.target)
        return Act(
            outcome=MoveOutcome.MOVED if there else MoveOutcome.ELSEWHERE,
            detail="" if there else f"{RUNS_ON}{fold(job.nodes)}",
        )
    if _waits(job):
        return _held(seen) if job.held else _WAITING.get(move.step, _clearing)(seen)
    if job.state == JOB_UNKNOWN and seen.age_s > seen.limits.settle_limit_s:
        return Act(outcome=MoveOutcome.WAITING, detail="its state cannot be read")
    return Act()  # the run that was stopped has not ended: KillWait, epilogs


def _held(seen: _Seen) -> Act:
    """Somebody has put a hold on it meanwhile: that stays, and our list goes."""
    if not seen.back or seen.age_s > seen.limits.settle_limit_s:
        return Act(outcome=MoveOutcome.WAITING, detail=f"somebody holds it: {seen.job.reason}")
    return _cleared(seen)


def _aim(seen: _Seen) -> Act:
    """It is pending, in its delay: give it its nodes."""
    if seen.whose is Whose.OTHER or _may_start(seen):
        return _cleared(seen)
    return Act(MoveStep.TARGETING, Order.UPDATE, _aimed(seen, 0.0))


def _may_start(seen: _Seen) -> bool:
    """Whether it could be running when the update comes, perhaps on more nodes than the target has.

    A list of fewer nodes than a running job has makes Slurm give the others up (seen on
    22.05; scontrol(1), NodeList).
    """
    one_gpu = seen.move.source.partition(":")[2].isdigit()
    return not one_gpu and not _delayed(seen.job, seen.now_s)


def _aimed(seen: _Seen, age_s: float) -> dict[str, str]:
    """The update that sends it there; `age_s` after it was seen to have ended."""
    fields = {REQUIRED: _ours(seen.move)}
    if seen.move.partition:
        fields[PARTITION] = seen.move.partition
    fields["StartTime"] = "now" if age_s >= SETTLED_S else LATER
    own = in_force(seen.job).get(EXCLUDED)
    if seen.lease is not None and _still_excluded(seen.job, seen.lease):
        own = seen.lease.own
    return fields if own is None else fields | {EXCLUDED: own}


def _targeted(seen: _Seen) -> Act:
    if seen.age_s > seen.limits.start_limit_s + LATER_S or seen.whose is Whose.OTHER:
        return _cleared(seen)
    # The update may not have been given, or slurmctld was away or busy with the job.
    same = not seen.move.partition and names(seen.move.own_req) == names(_ours(seen.move))
    nothing_to_see = same and not _delayed(seen.job, seen.now_s)
    if nothing_to_see or seen.whose is Whose.OURS or _may_start(seen):
        return Act()
    return Act(order=Order.UPDATE, fields=_aimed(seen, seen.age_s))


def _cleared(seen: _Seen) -> Act:
    fields = dict(seen.back)
    # Where it starts is open now: see SETTLED_S.
    step = MoveStep.FREEING if fields.pop("StartTime", "") else MoveStep.CLEARING
    return Act(step, Order.UPDATE if fields else Order.NONE, fields)


def _clearing(seen: _Seen) -> Act:
    fields = dict(seen.back)
    if seen.move.step != MoveStep.FREEING or not SETTLED_S <= seen.age_s <= SETTLED_S + seen.limits.retry_s:
        fields.pop("StartTime", None)  # too early, or a time that its user has set since
    if seen.age_s > seen.limits.settle_limit_s:
        detail = "its own lists could not be put back yet" if fields else f"it waits: {seen.job.reason}"
        return Act(outcome=MoveOutcome.WAITING, detail=detail)
    return Act(order=Order.UPDATE if fields else Order.NONE, fields=fields)


_STEPS: dict[MoveStep, Callable[[_Seen], Act]] = {
    MoveStep.PLANNED: _planned,
    MoveStep.SIGNALLING: _signalling,
    MoveStep.REQUEUEING: _requeueing,
}
_WAITING: dict[MoveStep, Callable[[_Seen], Act]] = {MoveStep.REQUEUEING: _aim, MoveStep.TARGETING: _targeted}


# -- lists -------------------------------------------------------------------------------------


def back(move: Move, job: SlurmJob | None, lease: TickLease | None, now_s: float) -> dict[str, str]:
    """What frees a requeued, pending job of what the move did to it: for one update; {} when there is nothing.

    The user's own lists, of nodes and of partitions, come back, also in the place of those that we set
    before the move, and the delay after the requeue ends. A list that somebody else has set since stays.
    """
    if job is None or move.owners or not _waits(job) or job.restarts <= move.restarts:
        return {}
    found = {REQUIRED: _whose_nodes(move, job, lease), PARTITION: _whose_partitions(move, job)}
    own = {REQUIRED: move.own_req, PARTITION: move.own_partitions}
    fields = {key: own[key] for key, whom in found.items() if whom in (Whose.OURS, Whose.OLD)}
    if Whose.OURS not in found.values() and _delayed(job, now_s):  # ours came with its own start: a delay is not ours
        fields["StartTime"] = "now"
    return fields


def lease_after(move: Move, job: SlurmJob | None, lease: TickLease | None, now_s: float) -> TickLease | None:
    """What the journal must hold for a job when its move is over, so that no list of ours is forgotten.

    While a job runs Slurm does not let its list be changed; the tick takes it back when the job
    is pending again.
    """
    if job is None or job.state in JOB_ENDED:
        return None
    found = _whose_nodes(move, job, lease)
    if found is Whose.OURS:
        reason = f"it was moved to {fold(move.target)}"
        return TickLease(job.job_id, LeaseKind.MOVE, _ours(move), move.own_req, now_s, now_s, job.restarts, reason)
    if lease is not None and (_still_excluded(job, lease) or (found is Whose.OLD and lease.own_req is not None)):
        return lease
    return None


def partitions_after(move: Move, job: SlurmJob | None, lease: TickLease | None, now_s: float) -> TickLease | None:
    """The same of a list of partitions; `lease` is what the journal holds of it now.

    A running job shows the partition where it runs, and not its list. In doubt ours is remembered: when the
    job is pending again it is seen whose its list is.
    """
    if not move.partition:
        return lease
    if job is None or job.state in JOB_ENDED:
        return None
    if _whose_partitions(move, job) is Whose.OURS:
        reason, ours = f"it was moved to {move.partition}", move.partition
        return TickLease(job.job_id, LeaseKind.PARTITION, ours, move.own_partitions, now_s, now_s, job.restarts, reason)
    return lease if not _waits(job) or _whose_partitions(move, job) is Whose.OLD else None


def _ours(move: Move) -> str:
    """The list that is set: the target, and the nodes that the user requires."""
    return fold(tuple(dict.fromkeys((*expand(move.own_req), *move.target))))


def _whose(move: Move, job: SlurmJob, lease: TickLease | None) -> Whose:
    """Whose the lists of a pending job are together: ours only where all that the move sets is in force.

    Slurm takes all of an update or nothing, so nodes of ours without our partition are somebody's doing.
    """
    nodes, partitions = _whose_nodes(move, job, lease), _whose_partitions(move, job)
    if not move.partition or nodes is Whose.OTHER:
        return nodes
    if partitions is Whose.OURS:
        return Whose.OURS if names(move.own_req) == names(_ours(move)) else nodes
    return Whose.OTHER if partitions is Whose.OTHER or nodes is Whose.OURS else nodes


def _whose_partitions(move: Move, job: SlurmJob) -> Whose:
    """The same of the partitions of a pending job; its own where the move leaves them as they are."""
    if not move.partition:
        return Whose.OWN
    own, ours, old = (names(text, PARTITION) for text in (move.own_partitions, move.partition, move.old_partitions))
    return whose(listed(job, PARTITION), own, [ours], [old])


def _whose_nodes(move: Move, job: SlurmJob, lease: TickLease | None) -> Whose:
    """Whose the required nodes of a job are; old ones were set by a lease, or by a mark that is in force."""
    present = listed(job, REQUIRED)
    before = [names(lease.ours)] if lease is not None and lease.own_req is not None else []
    marked = [present] if REQUIRED in in_force(job) else []
    return whose(present, names(move.own_req), [names(_ours(move))], [*before, *marked])


def _still_excluded(job: SlurmJob, lease: TickLease) -> bool:
    return lease.kind is LeaseKind.EXCLUDE and of_lease(job, lease) is Whose.OURS


def _waits(job: SlurmJob) -> bool:
    """Whether it is in the queue, and the run that was stopped has ended: before that StartTime would be lost."""
    return job.state in JOB_WAITING and not job.nodes


def _delayed(job: SlurmJob, now_s: float) -> bool:
    """Whether it waits for a time; Slurm says so in the reason only when it has looked at the job."""
    return job.reason.startswith("BeginTime") or job.eligible_s > now_s


# -- the target --------------------------------------------------------------------------------


def unwilling(move: Move, overview: Overview) -> str:
    """Why the target cannot take the job any more, "" if it can: a look just before the requeue. Pure."""
    if move.partition and not any(p.name == move.partition and p.up for p in overview.partitions):
        return f"partition {move.partition} takes no jobs now"
    nodes = {node.name: node for node in overview.nodes}
    for name in move.target:
        if name not in nodes or not usable(nodes[name].states):
            return f"{name} takes no jobs now"
    used = used_indexes([job for job in overview.jobs if job.job_id != move.job_id])
    for word in move.target_gpus.split():
        name, _, indexes = word.partition(":")
        if used.get(name, set()).intersection(digits(k) for k in indexes.split(",")):
            return f"GPUs of {name} were taken meanwhile"
    return ""
