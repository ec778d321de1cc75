# SPDX-License-Identifier: MIT
"""One tick: look once, decide what would be better, and do it where that is wanted and allowed.

The caller has the loop and the clock. Parts run in the order of their price: what is free comes
first. Each part stands alone: one that fails does not stop the others.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple, TypeVar

from slurm_pal.base import hooks, marks
from slurm_pal.base.config import Config
from slurm_pal.base.errors import PalError, SlurmError, one_line
from slurm_pal.base.hostlist import fold
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.notify import ALIVE, notify
from slurm_pal.base.timing import REAL, Timing
from slurm_pal.decide.aside import Aside, Fault, blamed
from slurm_pal.decide.facts import REQUEUE_DELAY_S
from slurm_pal.decide.lease_marks import in_force
from slurm_pal.decide.tick_lease import LeaseKind, Sort
from slurm_pal.journal import story
from slurm_pal.journal.event_log import EventLog
from slurm_pal.journal.journal import BREAKS, Journal, Move
from slurm_pal.loans.lend import Lent, as_lent
from slurm_pal.loans.scale import Scaled
from slurm_pal.moves.mover import Mover, StepLimits
from slurm_pal.moves.planning import to_move
from slurm_pal.partitions import sharing
from slurm_pal.partitions.published import publish
from slurm_pal.pending import head
from slurm_pal.pending.places import PlaceChange
from slurm_pal.pending.retarget import Wish, WishAction, over
from slurm_pal.publisher.observed import collector
from slurm_pal.publisher.publication import LATEST_S, Publication, Publisher
from slurm_pal.slurm.client import AGAIN_S, LAST_S, Overview, SlurmClient
from slurm_pal.slurm.counted import Counts
from slurm_pal.slurm.diag import busy
from slurm_pal.tick import levers, metrics
from slurm_pal.tick.choosing import Choosing
from slurm_pal.tick.continuing import Continuing
from slurm_pal.tick.deciding import Decided, Decider
from slurm_pal.tick.intake import Intake
from slurm_pal.tick.keeping import Keeper, NotedDecider
from slurm_pal.tick.late_gpus import LateGpus
from slurm_pal.tick.lending import NO_SITE, Lending, Site
from slurm_pal.tick.localities import locality_book
from slurm_pal.tick.metrics import TickNumbers
from slurm_pal.tick.ordering import Ordered, Ordering
from slurm_pal.tick.role import COMMENT, FEATURES, WEIGHTS, Role
from slurm_pal.tick.scaling import Elastic
from slurm_pal.tick.wishes import Hand

T = TypeVar("T")

STATISTICS_S = 60.0
AGAIN_LOOK_S = 1.0
"""After an order that Slurm did not take, to a job that is pinned in vain."""
SLOW_S = 1.0
"""A slurmctld that answers sooner has threads to spare."""
LONGEST_INTERVAL_S = 900.0
"""A longer time without a tick was a pause, which does not show when the next tick comes."""


class TickResult(NamedTuple):
    """What one tick saw, planned and did."""

    at_s: float
    acted: bool
    paused: str  # why it only looked; "" where it did not
    query_s: float  # how long Slurm took to answer the large question
    queries: int  # asked of Slurm
    orders: int  # given to Slurm
    ingested: int  # new records
    published: Publication | None
    decided: Decided
    moving: int  # moves under way
    trouble: tuple[str, ...]  # one line each
    ordered: Ordered | None = None  # about the order of the queue
    lent: Lent | None = None  # about the nodes of owners
    scaled: Scaled | None = None  # about elastic jobs
    placed: tuple[PlaceChange, ...] = ()  # jobs that change between the places that their users named
    continued: tuple[int, ...] = ()  # jobs that go on after their time limits without Slurm's delay


class Tick:
    """Ticks of one process: one journal, one role. Without `act` Slurm gets no order.

    `last`: no other tick follows soon, so orders that Slurm cannot take at the moment are repeated for longer.
    `appends`: Slurm's JobFileAppend, `requeue_delay_s`: its delay after a requeue. `keeper` keeps each tick, to be
    decided again.
    """

    def __init__(
        self, config: Config, client: SlurmClient, counted: Counts, journal: Journal, role: Role,
        publisher: Publisher | None, log: EventLog, *, act: bool, last: bool = False, appends: bool = False,
        timing: Timing = REAL, keeper: Keeper | None = None, site: Site = NO_SITE,
        requeue_delay_s: float = REQUEUE_DELAY_S,
    ) -> None:  # fmt: skip
        self._now_s = 0.0
        self._config, self._client, self._counted, self._journal, self._role = config, client, counted, journal, role
        self._publisher, self._log, self._act, self._monotonic = publisher, log, act, timing.monotonic
        self._again_s = LAST_S if last else AGAIN_S
        self._keeper = keeper
        self._decider = (NotedDecider if keeper else Decider)(config, journal, role, appends)
        self._hand = Hand(client, journal, role, log, self._blame, timing.sleep)
        limits = StepLimits(
            ack_limit_s=config.number("rebalance", "ack_limit_s"), start_limit_s=self.pass_s,
            grace_s=config.number("loan", "grace_s"),
        )  # fmt: skip
        self._mover = Mover(journal, client, limits, self._note, self._blame)
        self._intake = Intake(config) if publisher else None
        hears = role.name == "slurm-user" and bool(act or publisher)
        self._late = LateGpus(config, client, log, role.user) if hears else None
        self._ordering = Ordering(config, client, journal, role, log, stays=not last)
        self._lending = Lending(config, client, journal, role, log, site, appends, timing.sleep)
        self._elastic = Elastic(config, client, journal, role, log)
        self._choosing = Choosing(config, client, role, log)
        self._continuing = Continuing(client, role, log, requeue_delay_s)
        of_all = role.name == "slurm-user"
        self._observers = collector(config, bool(publisher)) if publisher or not of_all else None
        self._localities = locality_book(config, of_all)
        self._trouble: list[str] = []
        self._aside = Aside(self._report_fault)
        if publisher is not None:
            publisher.aside = self._aside
        self._anew = True  # this process has not looked yet
        self._look_s = math.inf  # when to look after the nodes named last
        self._recovered = False
        self._asked_s, self._took_s = -math.inf, 0.0  # when sdiag was asked, how long the last look took
        self._beginning: dict[int, SlurmJob] = {}  # jobs whose moves begin just now

    @property
    def pass_s(self) -> float:
        """Time of one scheduling pass."""
        return self._config.number("submit", "lease_pass_s")

    # -- a tick ------------------------------------------------------------------------------

    def run(self, now_s: float) -> TickResult:
        """One tick at `now_s`, Unix seconds. Raises SlurmError when Slurm does not answer."""
        self._trouble, started, self._now_s = [], self._monotonic(), now_s
        queries, orders = self._counted.queries, self._counted.orders
        paused = self._busy(now_s)
        intake, publisher = self._intake, self._publisher
        ingested = self._try(lambda: intake.take(now_s), 0) if intake else 0
        asked_s = self._monotonic()
        overview = self._look()
        if self._choosing.look(overview):  # at the first look of a process: who else waits there?
            overview = self._look()
        query_s = self._took_s = self._monotonic() - asked_s
        every, overview = overview, self._aside.without(overview)
        if observers := self._observers:
            self._each(lambda seen: observers.take(seen.jobs, now_s), every, 0)
        since_s = self._try(lambda: self._since_last(now_s), self._config.number("rebalance", "interval_s"))
        if self._act:  # first of all: nothing may begin that cannot be journalled
            self._trouble += filter(None, (self._try(self._in_place, ""),))
            paused = self._try(lambda: self._ticked(now_s), "the journal cannot be written") or paused
        ours: frozenset[int] = self._try(self._looked_after, frozenset())
        shared: frozenset[int] = self._try(lambda: frozenset(self._journal.leases(Sort.PARTITIONS)), frozenset())
        lent = self._each(lambda seen: self._lending.decide(seen, now_s), every, None)
        self._trouble += lent.trouble if lent is not None else ()
        published = (
            self._each(
                lambda seen: publisher.serve(as_lent(seen, lent), query_s, now_s, ours, every.jobs, shared), every, None
            )
            if publisher
            else None
        )
        self._trouble += published.reported if published else ()
        if self._act:
            self._try(lambda: self._recover(now_s), None)
            self._each(self._settle, every, None)
        interval_s = self._interval(since_s)
        decided = self._each(
            lambda seen: self._decider.decide(as_lent(seen, lent), now_s, interval_s), every, Decided()
        )
        self._trouble += filter(None, (decided.trouble,))
        self._each(lambda seen: self._hear(seen, decided, now_s), every, None)
        ordered = self._each(lambda seen: self._ordering.decide(seen, now_s, self._moving()), every, None)
        self._trouble += ordered.trouble if ordered is not None else ()
        scaled = self._each(lambda seen: self._elastic.decide(as_lent(seen, lent), lent, now_s), every, None)
        nothing: list[PlaceChange] = []
        placed = self._each(
            lambda seen: self._choosing.decide(as_lent(seen, lent), ours | shared | self._moving(), now_s),
            every,
            nothing,
        )
        self._trouble += self._choosing.complaints
        again: list[int] = []
        again = self._each(lambda seen: self._continuing.decide(seen, self._moving(), now_s), every, again)
        overview = self._aside.without(every)
        if self._act:
            wanted, none = ([] if paused else placed), (nothing, list[str]())
            placed, refused = self._try(lambda: self._choosing.carry_out(wanted, now_s), none)
            self._trouble += refused
            soon, rest = ([] if paused else again), (list[int](), list[str]())
            again, refused = self._try(lambda: self._continuing.carry_out(soon, now_s), rest)
            self._trouble += refused
            if lent is not None:
                self._lend(lent, bool(paused), now_s)
            else:
                self._trouble += self._try(lambda: self._lending.overdue(now_s), [])
            if scaled is not None and not paused:
                self._trouble += self._try(lambda: self._elastic.carry_out(scaled, now_s), [])
            self._do(decided, every, paused, now_s)
            self._try(lambda: self._tell(paused), None)
            self._each(lambda seen: self._localities.tell(seen.jobs, decided.penalties, now_s), every, 0)
            if any(wish.action is WishAction.NODELIST for wish in decided.wishes):
                self._look_s = now_s + (self._monotonic() - started) + self.pass_s
            if ordered is not None and not paused:
                self._trouble += self._try(lambda: self._ordering.carry_out(ordered, now_s), [])
            self._try(lambda: self._leave_alone(every, now_s), None)
            kept_off = [wish.job_id for wish in decided.wishes if wish.could_start]
            held = ours | shared
            waits = {job_id: since_s if job_id in held else self._interval(since_s) for job_id in kept_off}
            self._try(lambda: self._remember(waits, overview, now_s), None)
        moving = self._try(lambda: len(self._journal.open_moves()), 0)
        seen = TickResult(
            now_s, self._act, paused, query_s, self._counted.queries - queries, self._counted.orders - orders, ingested,
            published, decided, moving, tuple(dict.fromkeys(self._trouble)), ordered, lent, scaled,
            tuple(placed), tuple(again),
        )  # fmt: skip
        if self._act:
            self._try(lambda: self._measure(seen, self._monotonic() - started), None)
        self._try(lambda: self._keep(seen), None)
        return seen._replace(trouble=tuple(dict.fromkeys(self._trouble)))

    def _busy(self, now_s: float) -> str:
        """Why this tick only looks, "" where it may act. sdiag is asked once a minute, and always while slurmctld
        is slow or was busy."""
        if self._took_s < SLOW_S and 0 <= now_s - self._asked_s < STATISTICS_S:
            return ""
        found = busy(self._client.statistics(), int(self._config.number("rebalance", "busy_threads")))
        self._asked_s = -math.inf if found else now_s
        return found

    def _do(self, decided: Decided, every: Overview, paused: str, now_s: float) -> None:
        self._each(lambda seen: self._end_leases(seen, () if paused else decided.wishes, now_s), every, None)
        if not paused:
            self._each(lambda seen: self._change_nodes(decided, seen), every, None)
            self._try(lambda: self._climb(every, now_s), None)
            self._each(lambda seen: self._carry_wishes(decided.wishes, seen, now_s), every, None)
            self._each(lambda seen: self._begin_moves(decided, seen, now_s), every, None)

    def _tell(self, paused: str) -> None:
        """Where new jobs belong, for palsub, as long as we are there to take its lists back."""
        if self._role.name != "slurm-user" or self._publisher is None:
            return
        publish(self._config.snapshot_path, None if paused else self._decider.market)

    def _lend(self, lent: Lent, paused: bool, now_s: float) -> None:
        """Open and close nodes of owners; guests that leave are taken on by the mover."""
        self._trouble += self._try(lambda: self._lending.remember(lent, now_s), [])
        said = None if paused else self._try(lambda: self._lending.carry_out(lent, now_s), None)
        if said is not None:
            self._trouble += said
            self._begin(self._lending.leaving(lent, now_s), {one.job.job_id: one.job for one in lent.leavers})

    def _begin(self, moves: Sequence[Move], jobs: Mapping[int, SlurmJob]) -> None:
        self._beginning = dict(jobs)
        try:
            self._try(lambda: self._mover.start(moves), None)
        finally:
            self._beginning = {}

    def _hear(self, overview: Overview, decided: Decided, now_s: float) -> None:
        """What jobs say of GPUs that they wait for."""
        if self._late is None:
            return
        self._trouble += self._late.take(overview, decided, now_s, self._act)
        if self._late.news and self._intake is not None:
            self._intake.again()
            self._late.news = False

    def _leave_alone(self, every: Overview, now_s: float) -> None:
        """Jobs on which our code fails are left alone, and `pal doctor` shows them."""
        free = self._aside.refresh(frozenset(job.job_id for job in every.jobs), now_s)
        known = {} if self._anew else self._journal.broken()
        with self._journal.together():
            if self._anew:  # by an earlier process, which may have been an older release
                self._journal.mend()
                self._anew = False
            for job_id in free:
                self._journal.mend(job_id)
            for job_id, one in self._aside.jobs().items():
                if job_id not in known:
                    self._journal.hands_off(job_id, f"{BREAKS}{one.fault.line}", now_s)

    def alive(self, now_s: float) -> None:
        """Between two ticks, and between two commands of one: show palsub and the watchdog that we are alive."""
        notify(ALIVE)
        if self._publisher is not None:
            self._publisher.alive(now_s)

    @property
    def journal_path(self) -> str:
        return self._journal.path

    @property
    def lost(self) -> bool:
        """Whether the publisher has lost its lock: only a new process can go on."""
        return self._publisher is not None and self._publisher.lost

    def failed(self) -> None:
        """A tick failed: nobody is promised anything until one succeeds."""
        if self._publisher is not None:
            self._publisher.silent()

    @property
    def look_s(self) -> float:
        """When `advance` has something to look after besides moves, Unix seconds; infinity for never."""
        return self._look_s

    def advance(self, now_s: float) -> bool:
        """One look at the moves under way; whether there are any. Raises SlurmError, DataError."""
        self._now_s = now_s
        if not self._act:
            return False
        self._recover(now_s)
        if now_s >= self._look_s:
            self._look_s = math.inf
            self._try(lambda: self._let_go(now_s), None)
        return self._mover.step(now_s)

    def _let_go(self, now_s: float) -> None:
        """One pass after nodes were named: end the lists of jobs that Slurm has not started on GPUs that are free."""
        leases = {job_id: one for job_id, one in self._journal.leases().items() if one.kind is LeaseKind.NODELIST}
        moving = {move.job_id for move in self._journal.open_moves()}
        jobs = self._client.jobs_of(sorted(leases.keys() - moving))
        nodes = self._client.nodes() if any(job.state == "PENDING" for job in jobs.values()) else ()
        wishes = over(leases, jobs.values(), nodes, now_s, self.pass_s)
        self._trouble += self._hand.carry_out(wishes, jobs, now_s)
        if self._journal.leases().keys() & {wish.job_id for wish in wishes}:  # Slurm had the job in its hands
            self._look_s = now_s + AGAIN_LOOK_S

    def _look(self) -> Overview:
        whole = self._lending.whole | self._elastic.whole | self._choosing.whole
        return self._client.overview(marked=True, whole=whole)

    def _each(self, part: Callable[[Overview], T], every: Overview, otherwise: T) -> T:
        """Do a part that looks at jobs: jobs on which it fails are set aside, and it is done for all others."""
        return self._try(lambda: self._aside.run(part, every, self._now_s), otherwise)

    def _try(self, part: Callable[[], T], otherwise: T) -> T:
        try:
            return part()
        except (PalError, OSError) as error:
            self._trouble.append(one_line(error))
        except Exception as error:
            self._trouble.append(f"internal error, {self._aside.report(error).line}")
        return otherwise

    def _report_fault(self, job_id: int | None, fault: Fault) -> None:
        about = {"job_id": job_id} if job_id is not None else {}
        self._log.write(self._now_s, "fault", **about, error=fault.line, trace=fault.trace)
        if job_id is not None:
            self._trouble.append(f"job {job_id} is left alone: our code fails on it: {fault.line}")

    def _since_last(self, now_s: float) -> float:
        """Seconds since the last tick: for that long jobs may have waited because of us."""
        last_s = self._journal.last_tick_s()
        return now_s - last_s if 0 < last_s <= now_s else self._config.number("rebalance", "interval_s")

    def _in_place(self) -> str:
        """Check the journal's file; returns what was wrong, which is logged, too."""
        said = self._journal.in_place()
        if said:
            self._log.write(self._now_s, "journal", detail=said)
        return said

    def _ticked(self, now_s: float) -> str:
        self._journal.ticked(now_s)
        return ""

    def _moving(self) -> frozenset[int]:
        return frozenset(move.job_id for move in self._journal.open_moves())

    def _looked_after(self) -> frozenset[int]:
        """Jobs with a lease or a move of the tick itself."""
        return frozenset((*self._journal.leases(), *(move.job_id for move in self._journal.open_moves())))

    def _interval(self, since_s: float) -> float:
        """When to expect the next tick, judged by when the last one was."""
        return since_s if since_s <= LONGEST_INTERVAL_S else self._config.number("rebalance", "interval_s")

    def _blame(self, job_id: int, error: Exception) -> str:
        """An order for one job, or a move of it, failed by an error of ours; returns the line for the report."""
        self._aside.report(error, job_id)
        return blamed(job_id, error)

    def _recover(self, now_s: float) -> None:
        if not self._recovered:
            self._mover.recover(now_s)
            self._recovered = True

    def _settle(self, overview: Overview) -> None:
        """Not for jobs of moves under way, whose lists the mover looks after."""
        moving = {move.job_id for move in self._journal.open_moves()}
        self._hand.settle(job for job in overview.jobs if job.job_id not in moving)

    def _end_leases(self, overview: Overview, wishes: Sequence[Wish], now_s: float) -> None:
        """Leases that are over and have no wish of this tick, and those of jobs that have left the queue."""
        moving = {move.job_id for move in self._journal.open_moves()}
        wished = {wish.job_id for wish in wishes if wish.sort is Sort.NODES} | moving
        living = {job.job_id for job in overview.jobs}
        leases = self._journal.leases()
        others = [job for job in overview.jobs if job.job_id not in wished]
        self._carry_wishes(over(leases, others, overview.nodes, now_s, self.pass_s), overview, now_s)
        gone = leases.keys() - living - moving
        if gone:
            with self._journal.together():
                for job_id in gone:
                    self._journal.end_lease(job_id, "the job has left the queue", now_s)
        self._end_partitions(overview, wishes, moving, now_s)
        fences, decided = self._journal.leases(Sort.FENCES), {one.job_id for one in wishes if one.sort is Sort.FENCES}
        left = {job_id: fence for job_id, fence in fences.items() if job_id not in decided}
        self._carry_wishes(head.over(left, overview.jobs, now_s), overview, now_s)

    def _end_partitions(self, overview: Overview, wishes: Sequence[Wish], moving: Set[int], now_s: float) -> None:
        """The same for lists of partitions, where the tick could decide nothing about them, or only looks."""
        leases, wished = (
            self._journal.leases(Sort.PARTITIONS),
            {wish.job_id for wish in wishes if wish.sort is Sort.PARTITIONS},
        )
        late = {
            job_id: lease
            for job_id, lease in leases.items()
            if job_id not in wished | moving and now_s >= lease.until_s + self.pass_s
        }
        self._carry_wishes(sharing.over(late, overview.jobs, overview.up, "its time is over"), overview, now_s)
        gone = leases.keys() - {job.job_id for job in overview.jobs} - moving
        if gone:
            with self._journal.together():
                for job_id in gone:
                    self._journal.end_lease(job_id, "the job has left the queue", now_s, Sort.PARTITIONS)

    def _carry_wishes(self, wishes: Sequence[Wish], overview: Overview, now_s: float) -> None:
        jobs = {job.job_id: job for job in overview.jobs}
        self._trouble += self._hand.carry_out(wishes, jobs, now_s, self._again_s)

    def _change_nodes(self, decided: Decided, overview: Overview) -> None:
        """Class features and weights, where they are asked for, allowed, and not as they should be."""
        config, scores = self._config, decided.scores
        if scores is None:
            return
        if FEATURES in self._role.may:
            classes = config.flag("rebalance", "features")
            wanted = levers.wanted_features(overview.nodes, scores) if classes else {}
            for node, late in (self._late.features() if self._late is not None else {}).items():
                wanted[node] = wanted.get(node, frozenset()) | late
            mine = levers.OURS if classes else levers.LATE_ONLY
            self._trouble += levers.left_alone(overview.nodes, wanted, mine)
            levers.set_features(self._client, levers.feature_updates(overview.nodes, wanted, mine))
        if config.flag("rebalance", "weights") and WEIGHTS in self._role.may:
            barred = config.number("placement", "barred_slowdown")
            bases = self._journal.weights()
            updates = levers.weight_updates(overview.nodes, scores, barred, bases)
            levers.set_weights(self._client, self._journal, updates)

    def _climb(self, overview: Overview, now_s: float) -> None:
        if self._late is not None and FEATURES in self._role.may:
            self._trouble += self._late.carry_out(overview.nodes, now_s)

    def _begin_moves(self, decided: Decided, overview: Overview, now_s: float) -> None:
        jobs = {job.job_id: job for job in overview.jobs}
        leases, partitions = self._journal.leases(), self._journal.leases(Sort.PARTITIONS)
        begun, moving = [], self._moving()  # some may leave for owners since
        for planned in decided.plan.moves if decided.plan else ():
            if planned.job_id in moving:
                continue
            job, lease = jobs[planned.job_id], leases.get(planned.job_id)
            own_req = in_force(job).get("ReqNodeList", fold(job.req_nodes))
            if lease is not None and lease.own_req is not None:
                own_req = lease.own
            ack = marks.read(job.comment, marks.ACK).get("ack", "")
            old = partitions[job.job_id].ours if job.job_id in partitions else ""
            begun.append(to_move(planned, now_s, own_req, ack, old))
        self._begin(begun, jobs)

    def _remember(self, waits: Mapping[int, float], overview: Overview, now_s: float) -> None:
        """`waits`: by so many seconds a job has waited longer because of us."""
        with self._journal.together():
            for job_id, seconds in waits.items():
                self._journal.add_waited(job_id, seconds)
            self._journal.forget(frozenset(job.job_id for job in overview.jobs), now_s)

    def _keep(self, seen: TickResult) -> None:
        if self._keeper is not None and isinstance(self._decider, NotedDecider):
            told = {name: value for name, value in seen._asdict().items() if name not in ("published", "decided")}
            told["lent"] = seen.lent and seen.lent.told
            self._keeper.keep(self._decider, seen.at_s, told)

    def _measure(self, seen: TickResult, tick_s: float) -> None:
        path, scores = self._config.text("rebalance", "metrics"), seen.decided.scores
        lends = seen.lent is not None and bool(seen.lent.guest)
        if not path or (scores is None and not lends) or self._role.name != "slurm-user":
            return
        leases = self._journal.every_lease()
        kinds = Counter(str(lease.kind) for lease in leases)
        numbers = TickNumbers(
            seen.at_s, tick_s, seen.queries, seen.query_s, scores, kinds, self._journal.moves(),
            seen.decided.calibration, bool(seen.paused), len(self._aside.jobs()), self._aside.faults,
            metrics.loan_numbers(seen.lent, self._journal.reclaims()) if seen.lent is not None and lends else None,
        )  # fmt: skip
        metrics.write(path, numbers)

    def _note(self, what: str, details: dict[str, object]) -> None:
        """A move took a step or ended: to the log, and to the job's owner where we may write that."""
        at_s = float(str(details.pop("at_s")))
        self._log.write(at_s, what, **details)
        job_id = int(str(details["job_id"]))
        if what in ("step", "refused"):
            return
        hooks.call(self._config, hooks.ON_MOVE, {"what": what, **details}, at_s)
        if COMMENT not in self._role.may:
            return
        with contextlib.suppress(SlurmError):  # the move itself does not depend on it
            job = self._beginning.get(job_id) or self._client.job(job_id)
            words = {"ev": f"{at_s:.0f}", "what": what, "from": str(details["from"]), "to": str(details["to"])}
            words |= {name: f"{float(str(details[key])):.0f}" for name, key in story.AMOUNTS.items() if key in details}
            text = story.added(job.admin_comment, words) if job is not None else None
            if text is not None:
                self._client.update_job(job_id, AdminComment=text)

    # -- the end -----------------------------------------------------------------------------

    def stop(self, now_s: float) -> None:
        """From now on nobody promises anything."""
        if self._publisher is not None:
            self._publisher.stop(now_s)
            with contextlib.suppress(OSError):
                publish(self._config.snapshot_path, None)

    def take_back_node_lists(self, now_s: float) -> list[str]:
        """End the node lists that did not lead to a start; what went wrong, one line each."""
        self._trouble = []
        self._try(lambda: self._take_back(now_s, LeaseKind.NODELIST), None)
        return self._trouble

    def take_back_lists(self, now_s: float) -> list[str]:
        """End every lease of ours and of palsub's and the filter's, since nobody will be there to do it in time."""
        self._trouble = []
        self._try(lambda: self._take_back(now_s), None)
        self._trouble += self._try(lambda: self._ordering.take_back(now_s), [])
        self._trouble += self._try(lambda: self._lending.take_back("nobody looks after it any more", now_s), [])
        publisher = self._publisher
        if publisher is not None:
            self._trouble += self._try(lambda: publisher.take_back_all()[1], [])
            if not self._trouble and not self._try(lambda: len(self._journal.open_moves()), 1):
                publisher.kept()
        return [*dict.fromkeys(self._trouble)]

    def withdraw(self, now_s: float) -> list[str]:
        """Take back all that is ours on jobs and nodes, after `stop` and once no move is under way."""
        self.take_back_lists(now_s)
        if FEATURES in self._role.may:
            self._try(self._withdraw_features, None)
            self._try(self._withdraw_weights, None)
            self._try(lambda: self._withdraw_late(now_s), None)
        return self._trouble

    def left(self) -> tuple[int, int]:
        """What cannot be taken back now: moves under way, and jobs with lists of ours: running, or Slurm refused it."""
        lists = len({lease.job_id for lease in self._journal.every_lease()}) + len(self._journal.loan_lists())
        return len(self._journal.open_moves()), lists

    def _withdraw_features(self) -> None:
        levers.set_features(self._client, levers.feature_updates(self._client.nodes(), {}))

    def _withdraw_late(self, now_s: float) -> None:
        if self._late is not None:
            self._trouble += self._late.withdraw(self._client.nodes(), now_s)

    def _withdraw_weights(self) -> None:
        updates = levers.withdrawn_weights(self._client.nodes(), self._journal.weights())
        levers.set_weights(self._client, self._journal, updates)

    def _take_back(self, now_s: float, only: LeaseKind | None = None) -> None:
        if not (self._journal.every_lease() or self._hand.in_doubt):
            return
        overview = self._client.overview(marked=True)
        self._try(lambda: self._settle(overview), None)
        moving = {move.job_id for move in self._journal.open_moves()}
        partitions = {} if only else self._journal.leases(Sort.PARTITIONS)
        leases = {
            job_id: lease
            for job_id, lease in self._journal.leases().items()
            if only in (None, lease.kind) and job_id not in moving
        }
        partitions = {job_id: lease for job_id, lease in partitions.items() if job_id not in moving}
        own = sharing.over(partitions, overview.jobs, overview.up, "nobody shares out partitions")
        fences = {} if only else self._journal.leases(Sort.FENCES)
        gone = head.cleared(fences, "nobody looks after it any more")
        wishes = [*gone, *own, *over(leases, overview.jobs, overview.nodes, LATEST_S, self.pass_s)]
        self._again_s = LAST_S
        self._carry_wishes(wishes, overview, now_s)
