# SPDX-License-Identifier: MIT
"""What a tick would do: Slurm's state, the scores and the journal in, wishes and planned moves out.

Nothing is done here. What is read and remembered is the pace of the jobs, see `pace`.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from slurm_pal.base import prices
from slurm_pal.base.cluster import Gpu
from slurm_pal.base.config import Config
from slurm_pal.base.errors import PalError, one_line
from slurm_pal.base.files import Reader, read_trusted
from slurm_pal.base.hostlist import expand
from slurm_pal.decide import place_mark
from slurm_pal.decide.case import settings_of
from slurm_pal.decide.facts import MoveSettings
from slurm_pal.decide.lease import REQUIRED
from slurm_pal.decide.network import leaves, permitted
from slurm_pal.decide.steering import Market
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease
from slurm_pal.journal.journal import Journal, Move
from slurm_pal.moves import learning
from slurm_pal.moves.learning import Corrections
from slurm_pal.moves.planning import MovePlan, MoveTerms, Passed, Running, plan
from slurm_pal.moves.steps import no_checkpoint
from slurm_pal.partitions import sharing
from slurm_pal.partitions.sharing import Shared
from slurm_pal.pending import head
from slurm_pal.pending.demand import wanted
from slurm_pal.pending.retarget import Levers, Waiting, Wish, WishAction, retarget
from slurm_pal.placement import penalties
from slurm_pal.placement.penalties import Penalties
from slurm_pal.slurm import releases
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.topology import BLOCK
from slurm_pal.store import snapshot as snapshots
from slurm_pal.store.snapshot import Snapshot
from slurm_pal.tick import pace
from slurm_pal.tick.role import WAIT, Role
from slurm_pal.tick.steered import Memory, Pace, Steered, steered

if TYPE_CHECKING:
    from slurm_pal.partitions.speeds import Past

MEMORY_S = 90 * 86400.0  # how long finished moves teach
LATELY_S = 86400.0  # so long a move counts when users compete for the next one
FAILED_S = 3600.0  # so long a move for which no checkpoint came takes one from those that its user may have under way


class Decided(NamedTuple):
    """What was found, and what would be better."""

    steered: Steered | None = None  # None: nothing could be decided
    scores: Snapshot | None = None  # as published
    wishes: tuple[Wish, ...] = ()
    plan: MovePlan | None = None
    exposed: tuple[tuple[Gpu, float], ...] = ()  # GPUs that became slow since they were measured, and how slow
    calibration: float = 1.0  # observed gains over predicted ones
    trouble: str = ""  # why partitions could not be shared out
    penalties: Mapping[str, Penalties] = {}  # key of work -> its locality penalties, as its steps show them

    @property
    def staying(self) -> tuple[Passed, ...]:
        """Running jobs that are not moved, and why."""
        return (*(self.steered.staying if self.steered else ()), *(self.plan.passed if self.plan else ()))


def terms_of(config: Config, appends: bool) -> MoveSettings:
    """What the settings say of moving jobs. `appends`: Slurm's JobFileAppend."""
    return MoveSettings(
        _names(config.text("rebalance", "movable_qos")),
        _names(config.text("rebalance", "movable_partitions")),
        config.number("rebalance", "lost_work_s"),
        appends,
        config.flag("rebalance", "may_empty_output"),
        config.flag("rebalance", "gather"),
    )


def _names(text: str) -> frozenset[str]:
    return frozenset(filter(None, (word.strip() for word in text.split(","))))


class Decider:
    """Decides by one configuration, for one role."""

    def __init__(
        self, config: Config, journal: Journal, role: Role, appends: bool = False, reader: Reader = read_trusted
    ) -> None:
        """`appends`: Slurm's JobFileAppend. `reader` reads files: all that is not given here comes by it or `journal`,
        so that a decision can be made again (`again`)."""
        self._config, self._journal, self._role, self._reader = config, journal, role, reader
        self.terms = terms_of(config, appends)
        self._read: Snapshot | None = None  # as last published
        self._file: tuple[int, ...] = ()  # that it was read from
        self._partitions = None
        if config.text("rebalance", "allocation"):
            from slurm_pal.partitions.plan import Partitions

            self._partitions = Partitions(config, journal, reader)

    def decide(self, overview: Overview, now_s: float, interval_s: float) -> Decided:
        """`interval_s` is the time since the last tick.

        Raises DataError when there are no scores, or the journal cannot be used.
        """
        published = self._published()
        expected = penalties.expected(self._config.number("placement", "locality_penalty"), published.network)
        mine = [job for job in overview.jobs if not self._only_user or job.user == self._only_user]
        paces, learnt = pace.look(
            mine, published, self._journal, self.terms, overview.network, expected, now_s, bool(self._only_user)
        )  # fmt: skip
        heard = learning.corrected(published, learnt)
        scores = heard if self._only_user else self._bounded(published, learnt)
        moves = self._journal.moves(now_s - MEMORY_S)
        open_moves = self._journal.open_moves()
        depth = int(self._number("depth"))
        memory = self._memory(moves, open_moves, paces, learnt.penalties)
        jobs = steered(overview, memory, self.terms, self._only_user, depth)
        shared, running, trouble = self._shared(overview, scores, jobs, moves, now_s, interval_s)
        wishes, waiting, overview = list(shared.wishes), shared.waiting, shared.overview
        fences = self._journal.leases(Sort.FENCES)
        wishes += self._fences(overview, scores, waiting, fences, now_s, interval_s, expected)
        if self._config.flag("rebalance", "retarget"):
            leases, settings = self._journal.leases(), settings_of(self._config).knowing(expected)
            stand = head.standing(fences, wishes)
            ended = self._journal.last_ended([one.job.job_id for one in waiting], LeaseKind.FENCE)
            impatient = head.impatient([*ended.values(), *fences.values()], waiting, now_s)
            levers = Levers(self._config.flag("rebalance", "fit"), self._avoids, self.terms.gather)
            wishes += retarget(overview, scores, waiting, leases, settings, now_s, interval_s, levers, stand, impatient)
        calibration = learning.calibration(moves)
        planned = None
        if self._config.flag("rebalance", "moves"):
            terms = self._move_terms(moves, [move for move in open_moves if not move.owners], now_s, expected)
            if self.terms.gather:
                waits = wanted(overview, wishes, frozenset(move.job_id for move in open_moves))
                terms = terms._replace(wanted=waits)
            here = heard if self._only_user else published
            running, dear = self._cheaper(overview, running, moves, wishes, now_s)
            running, still = (running, ()) if self._avoids else spread(running)
            planned = plan(claimed(overview, wishes), heard, running, terms, now_s, here)
            planned = planned._replace(passed=(*planned.passed, *still))
            planned = near_together(planned, overview)
            planned = planned._replace(passed=tuple(_with_note(one, dear) for one in planned.passed))
        return Decided(
            jobs, published, tuple(wishes), planned, tuple(learnt.exposed), calibration, trouble, learnt.penalties
        )  # fmt: skip

    def _cheaper(
        self, overview: Overview, running: tuple[Running, ...], moves: Sequence[Move], wishes: Sequence[Wish],
        now_s: float,
    ) -> tuple[tuple[Running, ...], dict[int, str]]:  # fmt: skip
        """The running jobs with the cheaper places where they might go on, and why others of their places are none."""
        if not any(place_mark.bears(one.job) for one in running):
            return running, {}
        from slurm_pal.partitions import cheaper, crossing

        moving = frozenset(move.job_id for move in moves if not move.outcome)
        terms = cheaper.MoneyTerms(
            prices.current(self._config, overview.partitions, now_s, self._reader), self._number("egress"),
            wanted(overview, wishes, moving), crossing.failed(moves),
        )  # fmt: skip
        return cheaper.with_cheaper(overview, running, terms, now_s)

    def _fences(
        self, overview: Overview, scores: Snapshot, waiting: Sequence[Waiting], fences: Mapping[int, TickLease],
        now_s: float, interval_s: float, expected: Penalties,
    ) -> list[Wish]:  # fmt: skip
        """Wishes about fences, behind which the first job of a queue waits."""
        flags = all(self._config.flag("rebalance", name) for name in ("wait", "retarget"))
        if not flags or WAIT not in self._role.may:
            return head.cleared(fences, "no job waits behind a fence any more")
        wait = head.Wait(settings_of(self._config).knowing(expected), self._number("wait_max_s"), interval_s)
        return head.plan(overview, scores, waiting, fences, wait, now_s)

    @property
    def past(self) -> Past | None:
        """What the next tick takes over from this one, beside files and the journal."""
        return self._partitions.speeds.past if self._partitions is not None else None

    @property
    def market(self) -> Market | None:
        """What the last decision has found for jobs to come, of partitions."""
        return self._partitions.market if self._partitions is not None else None

    def take_over(self, past: Past, overview: Overview) -> None:
        """Decide next as the process that had this `past`. Raises DataError."""
        if self._partitions is not None:
            self._partitions.speeds.take_over(past, overview)

    def _published(self) -> Snapshot:
        """The snapshot as it is now, read anew only where the file is another. Raises DataError."""
        path = self._config.snapshot_path
        try:
            found = os.stat(path)
            file: tuple[int, ...] = found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        except OSError:
            file = ()
        if self._read is None or not file or self._file != file:
            self._read, self._file = snapshots.read(path, self._reader), file
        return self._read

    def _bounded(self, published: Snapshot, learnt: Corrections) -> Snapshot:
        """What is believed for pending jobs: words of users put a GPU behind others, but nobody waits for them."""
        return learning.corrected(published, learnt, self._config.number("placement", "barred_slowdown"))

    def _shared(
        self, overview: Overview, scores: Snapshot, jobs: Steered, moves: list[Move], now_s: float, interval_s: float
    ) -> tuple[Shared, tuple[Running, ...], str]:
        """Wishes about partitions and the jobs as they will be with them; running jobs; why none could be decided."""
        trouble = ""
        moving = frozenset(move.job_id for move in moves if not move.outcome)
        if self._partitions is not None:
            from slurm_pal.partitions.plan import Jobs

            to_go = jobs.running if self._config.flag("rebalance", "moves") else ()
            try:
                found = self._partitions.share(
                    overview, scores, Jobs(jobs.waiting, to_go, moving, moves), now_s, interval_s
                )
                return found.shared, found.running or jobs.running, ""
            except (PalError, ArithmeticError, ValueError) as error:  # the rest of the tick does not depend on it
                trouble = f"no partitions are shared out: {one_line(error)}"
        left = [job for job in overview.jobs if job.job_id not in moving]
        leases = self._journal.leases(Sort.PARTITIONS)
        wishes = sharing.over(leases, left, overview.up, "partitions are not shared out now")
        given_back = {wish.job_id for wish in wishes if wish.fields}  # no nodes are named as if they were not
        waiting = tuple(one for one in jobs.waiting if one.job.job_id not in given_back)
        return Shared(tuple(wishes), waiting, overview), jobs.running, trouble

    @property
    def _only_user(self) -> str:
        return self._role.user if self._role.name == "user" else ""

    @property
    def _avoids(self) -> bool:
        return self._config.flag("rebalance", "avoid")

    def _number(self, name: str) -> float:
        return self._config.number("rebalance", name)

    def _memory(
        self, moves: list[Move], open_moves: list[Move], paces: dict[int, Pace], learnt: Mapping[str, Penalties]
    ) -> Memory:
        by_job: dict[int, list[Move]] = defaultdict(list)
        for move in moves:
            by_job[move.job_id].append(move)
        return Memory(
            leases=self._journal.leases(),
            waited=self._journal.waited(),
            left_alone=self._journal.left_alone(),
            moves={job_id: tuple(found) for job_id, found in by_job.items()},
            moving=frozenset(move.job_id for move in open_moves),
            paces=paces,
            penalties=learnt,
        )

    def _move_terms(
        self, moves: list[Move], open_moves: list[Move], now_s: float, expected: Penalties
    ) -> MoveTerms:  # fmt: skip
        in_flight: dict[str, int] = defaultdict(int)
        for move in open_moves:
            in_flight[move.user] += 1
        settings = settings_of(self._config)
        steps = self._journal.steps_of_each(moves)
        default_s = self._number("move_cost_s")
        costs_s, calibrations = learning.move_costs_s(steps, default_s), learning.calibrations(moves)
        return MoveTerms(
            policy=settings.policy,
            locality=expected,
            barred_slowdown=settings.barred_slowdown,
            margin=self._number("margin"),
            minimum_s=self._number("minimum_s"),
            end_guard_s=self._number("end_guard_s"),
            per_tick=max(0, int(self._number("moves_per_tick")) - len(open_moves)),
            per_job=int(self._number("moves_per_job")),
            per_user=int(self._number("moves_per_user")),
            move_cost_s=learning.agreed(costs_s.values(), default_s),
            expected_run_share=settings.expected_run_share,
            expected_run_s=settings.expected_run_s,
            calibration=learning.agreed(calibrations.values(), 1.0),
            in_flight=dict(in_flight),
            open_moves=tuple(open_moves),
            costs_s=costs_s,
            calibrations=calibrations,
            lately=Counter(move.user for move in moves if move.made_s > now_s - LATELY_S),
            failed=Counter(move.user for move in moves if move.made_s > now_s - FAILED_S and no_checkpoint(move)),
        )


def spread(running: Sequence[Running]) -> tuple[tuple[Running, ...], tuple[Passed, ...]]:
    """Jobs that a move may bring more than faster GPUs, and why the others stay: only `rebalance.avoid` moves these."""
    some = tuple(one for one in running if len(one.job.nodes) > 1 or one.elsewhere)
    moving = {one.job.job_id for one in some}
    why = "it could only gain faster GPUs, and rebalance.avoid is off"
    return some, tuple(Passed(one.job.job_id, why) for one in running if one.job.job_id not in moving)


def _with_note(one: Passed, notes: Mapping[int, str]) -> Passed:
    return one._replace(why=f"{one.why}; {notes[one.job_id]}") if one.job_id in notes else one


def near_together(planned: MovePlan, overview: Overview) -> MovePlan:
    """Without moves onto more leaves or blocks than the job is on now, or to where Slurm would not start it."""
    if not overview.network.switches:
        return planned
    on = {job.job_id: job.nodes for job in overview.jobs}

    def parts(nodes: Sequence[str]) -> int:
        return leaves(overview.network, nodes) or len(nodes)

    steerable = releases.has(overview.network.release, "segments with node lists")
    unsure = overview.network.kind == BLOCK and not steerable  # whether a job has segments is not shown
    apart = {
        move.job_id
        for move in planned.moves
        if parts(move.target) > parts(on[move.job_id])
        or not permitted(overview.network, move.target)
        or (unsure and len(move.target) > 1)
    }
    why = "its new GPUs would be on more leaves of the network, or Slurm might not start it there"
    return planned._replace(
        moves=tuple(move for move in planned.moves if move.job_id not in apart),
        passed=(*planned.passed, *(Passed(job_id, why) for job_id in sorted(apart))),
    )


def claimed(overview: Overview, wishes: list[Wish]) -> Overview:
    """The cluster as it will be once the node lists of these wishes are set: no move may go there."""
    lists = {wish.job_id: expand(wish.fields[REQUIRED]) for wish in wishes if wish.action is WishAction.NODELIST}
    jobs = tuple(job._replace(req_nodes=lists[job.job_id]) if job.job_id in lists else job for job in overview.jobs)
    return overview._replace(jobs=jobs)
