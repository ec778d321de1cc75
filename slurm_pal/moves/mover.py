# SPDX-License-Identifier: MIT
"""Moves under way, carried out step by step: journal first, then one order to Slurm.

No clock and no sleep: the caller calls `step` now and then for as long as it returns that moves are
under way. `steps` decides what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_pal.base.errors import NotNowError, PalError, SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.aside import blamed
from slurm_pal.decide.tick_lease import Sort, TickLease
from slurm_pal.journal.journal import Journal, Move
from slurm_pal.journal.move_states import MoveOutcome, MoveStep
from slurm_pal.moves import reclaimed, steps
from slurm_pal.moves.steps import Act, Order, StepLimits
from slurm_pal.slurm.client import SlurmClient

__all__ = ["CHECKPOINT_SIGNAL", "Mover", "StepLimits"]

CHECKPOINT_SIGNAL = "USR1"
PAUSE_S = 0.3  # before an order that Slurm has refused is given again


class Mover:
    """The moves of one journal.

    `blame` is called for jobs whose move failed by an error of ours; it returns the line for the report.
    `note` is called with what happens: ("move" | "step" | "refused" | an outcome, details as plain
    values: move_id, job_id, user, from, to, gain_s, and step, action, error, detail or at_s
    where they apply; of a job that leaves for owners these as `to`, and ran_s, lost_s and checkpoint
    in place of gain_s).
    """

    def __init__(
        self, journal: Journal, client: SlurmClient, limits: StepLimits, note: Callable[[str, dict[str, object]], None],
        blame: Callable[[int, Exception], str] = blamed,
    ) -> None:  # fmt: skip
        self._journal, self._client, self._limits, self._note, self._blame = journal, client, limits, note, blame
        self._moves: dict[int, Move] = {}  # job -> its open move
        self._looked_s = 0.0  # when Slurm was last asked
        self._unsure: set[int] = set()  # jobs that an earlier process may not have signalled any more
        self._refused: dict[int, tuple[float, str]] = {}  # job -> when Slurm refused an order last, and its words

    def start(self, moves: Sequence[Move]) -> None:
        """Journal new moves; `step` takes them on. Raises DataError when the journal cannot be written."""
        for move in moves:
            begun = self._journal.begin(move)
            self._moves[begun.job_id] = begun
            self._report(reclaimed.BEGUN if begun.owners else "move", begun, begun.made_s)

    def recover(self, now_s: float) -> None:
        """Take up what an earlier process left, with a first look at it. Raises as `step` does."""
        self._moves = {move.job_id: move for move in self._journal.open_moves()}
        self._unsure = {job_id for job_id, move in self._moves.items() if move.step == MoveStep.SIGNALLING}
        self.step(now_s)

    def step(self, now_s: float) -> bool:
        """Look at all moves under way (one query) and do the next thing for each; whether any is still under way.

        Raises SlurmError when Slurm does not answer (nothing is done then), and, once every
        move has been looked at, DataError or BusyError when the journal cannot be written.
        """
        if not self._moves:
            return False
        pause_s = min(steps.look_s(move, now_s) for move in self._moves.values())
        if 0 <= now_s - self._looked_s < pause_s:
            return True
        self._looked_s = now_s
        jobs = self._client.jobs_of(list(self._moves))
        leases = self._journal.leases()
        trouble: PalError | None = None
        for job_id, move in list(self._moves.items()):
            try:
                self._advance(move, jobs.get(job_id), leases.get(job_id), now_s)
            except PalError as error:
                trouble = error
            except Exception as error:  # the other moves go on
                trouble = PalError(self._blame(job_id, error))
        if trouble is not None:
            raise trouble
        return bool(self._moves)

    def _advance(self, move: Move, job: SlurmJob | None, lease: TickLease | None, now_s: float) -> None:
        act = self._checked(move, steps.act(move, job, now_s, self._limits, lease))
        if move.job_id in self._unsure and act == Act():  # a second checkpoint does no harm
            act = Act(order=Order.SIGNAL)
        self._unsure.discard(move.job_id)
        refused_s = self._refused.get(move.job_id, (-PAUSE_S, ""))[0]
        if not act.step and not act.outcome and 0 <= now_s - refused_s < PAUSE_S:
            return
        try:
            if act.outcome:
                return self._finish(move, job, lease, act, now_s)
            if act.step:
                move = self._moves[move.job_id] = self._journal.enter(move, act.step, now_s)
        except PalError:
            self._let_go(move, job, lease, now_s)
            raise
        if act.step:
            self._report("step", move, now_s, step=move.step)
        self._order(move, act, now_s)

    def _checked(self, move: Move, act: Act) -> Act:
        """Whether the target is still there after the time that a checkpoint took: a requeue costs the job its run."""
        if act.order is Order.REQUEUE and act.step and move.checkpoint and not move.owners:
            why = steps.unwilling(move, self._client.overview())
            return Act(outcome=MoveOutcome.ABANDONED, detail=why) if why else act
        return act

    def _order(self, move: Move, act: Act, now_s: float) -> None:
        try:
            if act.order is Order.SIGNAL:
                self._client.signal_batch(move.job_id, CHECKPOINT_SIGNAL)
            elif act.order is Order.REQUEUE:
                self._client.requeue(move.job_id)
            elif act.order is Order.UPDATE:
                self._client.update_job(move.job_id, **act.fields)
        except SlurmError as error:
            if isinstance(error, NotNowError) and act.order is Order.UPDATE:
                return  # the next look gives it again
            self._refused[move.job_id] = now_s, str(error)
            self._report("refused", move, now_s, action=act.order, error=str(error))
            if act.order is Order.SIGNAL and not move.owners:  # nothing has been done to the job
                self._finish(move, None, None, Act(outcome=MoveOutcome.ABANDONED, detail="no signal"), now_s)

    def _let_go(self, move: Move, job: SlurmJob | None, lease: TickLease | None, now_s: float) -> None:
        """The journal cannot be written: no step is taken, but a job that waits because of us is freed of our list."""
        fields = steps.back(move, job, lease, now_s)
        fields.pop("StartTime", None)  # Slurm's own delay then ends the wait
        if fields:
            self._order(move, Act(order=Order.UPDATE, fields=fields), now_s)

    def _finish(self, move: Move, job: SlurmJob | None, lease: TickLease | None, act: Act, now_s: float) -> None:
        error = self._refused.get(move.job_id, (0.0, ""))[1]
        well = act.outcome in (MoveOutcome.MOVED, MoveOutcome.ENDED, MoveOutcome.RECLAIMED)
        detail = act.detail if well or not error else f"{act.detail}; Slurm refused an order: {error}"
        # Before a requeue we have not touched its lists, nor those of a job that leaves for owners.
        if act.outcome is not MoveOutcome.ABANDONED and not move.owners:
            left = steps.lease_after(move, job, lease, now_s)
            self._leave(move, lease, left, act.outcome, now_s)
            if move.partition:
                before = self._journal.lease_of(move.job_id, Sort.PARTITIONS)
                left = steps.partitions_after(move, job, before, now_s)
                self._leave(move, before, left, act.outcome, now_s, Sort.PARTITIONS)
        ended = self._journal.finish(move, act.outcome, detail, now_s)
        self._moves.pop(move.job_id)
        self._refused.pop(move.job_id, None)
        self._report(reclaimed.WORDS[act.outcome] if move.owners else act.outcome, ended, now_s, detail=detail)

    def _leave(
        self,
        move: Move,
        before: TickLease | None,
        left: TickLease | None,
        outcome: MoveOutcome,
        now_s: float,
        sort: Sort = Sort.NODES,
    ) -> None:
        """The journal holds this lease from now on."""
        if left is None and before is not None:
            self._journal.end_lease(move.job_id, f"the job was moved: {outcome}", now_s, sort)
        elif left is not None and left != before:
            self._journal.lease(left)

    def _report(self, what: str, move: Move, at_s: float, **more: object) -> None:
        whole = {"move_id": move.move_id, "job_id": move.job_id, "user": move.user, "from": move.source}
        if move.owners:
            amounts = {"ran_s": move.ran_s, "lost_s": reclaimed.lost_s(move)}
            whole |= {"to": move.owners, "checkpoint": int(reclaimed.saved(move))}
        else:
            amounts = {"gain_s": move.gain_s, **({"saving": move.saving} if move.saving else {})}
            whole |= {"to": move.target_gpus}
        self._note(what, {**whole, **{name: round(s, 1) for name, s in amounts.items()}, "at_s": at_s, **more})
