# SPDX-License-Identifier: MIT
"""Which running jobs to move now, and where to: the plan of one tick. Pure.

The rule that places a job at its start chooses where it would go, and the test whether that pays
is the simulator's (moves/worth.py). Here it is done on what a real Slurm shows: a target must
be free now, since Slurm would make the job wait for GPUs that another move has not given up yet.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from slurm_pal.base.jobs import GpuShape, SlurmJob
from slurm_pal.decide.request import Request
from slurm_pal.journal import journal
from slurm_pal.journal.move_states import MoveStep
from slurm_pal.moves.booking import Bookings, Found, Traffic, Way, thin_out
from slurm_pal.moves.learning import slowest
from slurm_pal.moves.money import Money
from slurm_pal.moves.survey import Survey, Want
from slurm_pal.moves.worth import Movable, MoveLimits, Slots, expected_left_s, slots, stated_limit_s
from slurm_pal.placement.penalties import Penalties
from slurm_pal.placement.view import Rule
from slurm_pal.slurm.client import Overview
from slurm_pal.store.snapshot import Snapshot

NO_GPUS = "no GPUs are free there that suit it"
LOST_SHARE = 0.5
"""A job without a checkpoint of ours loses on average half of the most that it can lose."""


class Elsewhere(NamedTuple):
    """Another of its user's partitions, where a running job might go."""

    partition: str
    speed: float  # its throughput there over that where it runs, on median GPUs, as far as known
    money: Money | None = None  # its user wants what costs least; None: the faster place counts


class Running(NamedTuple):
    """A movable job that runs."""

    job: SlurmJob
    request: Request  # the user's own: without lists that we set
    sensitivity: str
    checkpoint: bool  # it makes a checkpoint before it is moved
    lost_s: float  # the most work that is lost without one
    moves: int  # so far
    last_move_s: float  # Unix s, 0.0: never
    remaining_s: float | None  # still to come on these GPUs, by its own word; None unknown
    factor: float | None  # time factor measured on these GPUs; None: the believed one counts
    stated_s: float | None = None  # `remaining_s` as the job states it, not made to fit a measured factor
    own_partitions: tuple[str, ...] = ()  # its user's list, where it is known
    elsewhere: tuple[Elsewhere, ...] = ()
    measured: bool = False  # its class was measured, not stated or guessed
    slowest: float = 1.0  # its throughput in the slowest of them, for which its time limit is, over that here
    locality: Penalties = ()  # of its work, as far as known


class MoveTerms(NamedTuple):
    """When a move is worth its cost, and how many moves are. Times in s."""

    policy: str
    locality: Penalties  # of work of which nothing else is known
    barred_slowdown: float
    margin: float  # gain over cost
    minimum_s: float  # the least time a job has run where it is
    end_guard_s: float  # the least time before its limit
    per_tick: int  # new moves
    per_job: int  # in its life
    per_user: int  # under way at once
    move_cost_s: float  # of users without a known move
    expected_run_share: float  # of the time limit
    expected_run_s: float  # of a job without a time limit
    calibration: float  # multiplies predicted gains; the same
    in_flight: Mapping[str, int]  # user -> moves under way
    open_moves: tuple[journal.Move, ...] = ()  # the moves under way
    costs_s: Mapping[str, float] = {}  # user -> what a move of their jobs costs
    calibrations: Mapping[str, float] = {}  # user -> share of their predicted gains that came true
    lately: Mapping[str, int] = {}  # user -> moves of their jobs lately; users with fewer go first
    wanted: frozenset[str] = frozenset()  # partitions for whose nodes jobs wait in the queue
    failed: Mapping[str, int] = {}  # user -> late moves without a checkpoint; each takes one from those under way


class PlannedMove(NamedTuple):
    """One job to other GPUs."""

    job_id: int
    user: str
    restarts: int
    source: str  # "n3:0,1 n4:2"
    target: tuple[str, ...]
    target_gpus: str  # expected there
    before: float  # time factor where it is: measured by the job itself, else believed
    after: float  # believed where it goes; in another partition, too, relative to median GPUs of its own
    gain_s: float  # cost not deducted
    cost_s: float
    checkpoint: bool
    why: str  # one sentence
    partition: str = ""  # it is sent to; "" where it stays in its own
    own_partitions: str = ""  # its user's list then
    saving: float = 0.0  # money, cost not deducted; 0.0 of a move for time


class Passed(NamedTuple):
    """A movable job that stays."""

    job_id: int
    why: str


class MovePlan(NamedTuple):
    """What to do in one tick, largest saving first, and which jobs stay."""

    moves: tuple[PlannedMove, ...]
    passed: tuple[Passed, ...]


def plan(
    overview: Overview, snapshot: Snapshot, running: Sequence[Running], terms: MoveTerms, now_s: float,
    here: Snapshot | None = None,
) -> MovePlan:  # fmt: skip
    """The moves of one tick. `now_s` is in Unix s. Raises UsageError for an unknown policy.

    `here` is what is believed of the GPUs that jobs hold, where that differs from what is believed of free ones:
    what other users report of a GPU moves nobody's job off it.
    """
    return _Planning(overview, snapshot, running, terms, now_s, here or snapshot).plan()


def to_move(
    planned: PlannedMove, now_s: float, own_req: str, ack: str, old_partitions: str = ""
) -> journal.Move:  # fmt: skip
    """The row that a planned move begins with in the journal (for the texts see journal.Move)."""
    return journal.Move(
        move_id=0, job_id=planned.job_id, user=planned.user, made_s=now_s, restarts=planned.restarts,
        source=planned.source, target=planned.target, target_gpus=planned.target_gpus, own_req=own_req,
        before=planned.before, after=planned.after, gain_s=planned.gain_s, cost_s=planned.cost_s,
        checkpoint=planned.checkpoint, ack=ack, step=MoveStep.PLANNED, step_s=now_s, partition=planned.partition,
        own_partitions=planned.own_partitions, old_partitions=old_partitions if planned.partition else "",
        saving=planned.saving,
    )  # fmt: skip


class _Planning:
    """The state of one plan."""

    def __init__(
        self, overview: Overview, snapshot: Snapshot, running: Sequence[Running], terms: MoveTerms, now_s: float,
        here: Snapshot,
    ) -> None:  # fmt: skip
        self._terms, self._now_s, self._here = terms, now_s, here
        self._running = {one.job.job_id: one for one in running}
        self._why: dict[int, str] = {}  # job -> why it stays
        self._under_way = defaultdict(int, terms.in_flight)
        self._new = 0
        largest = max((node.n_gpus for node in overview.nodes), default=0)
        wants = [want for one in running for want in self._wants(one, largest)]
        self._survey = Survey(overview, snapshot, wants)
        self._ways: dict[int, list[Way]] = defaultdict(list)
        for want, place in zip(wants, self._survey.places, strict=True):
            if place.why:
                self._why.setdefault(want.job.job_id, place.why)
            else:
                make = self._way_across if want.partition else self._way
                self._ways[want.job.job_id].append(make(want, place.partition))
        limits = MoveLimits(terms.margin, terms.minimum_s, terms.per_tick, terms.per_job)
        self._bookings = Bookings(self._survey, terms.policy, limits, self._traffic())

    def plan(self) -> MovePlan:
        self._choose()
        for job_id, (lost, heir) in thin_out(self._bookings).items():
            self._why[job_id] = f"{_gain(lost)} if it moved, but job {heir} alone makes as much of these GPUs"
        self._bookings.undo()
        booked = self._bookings.moves
        ranked = sorted(booked.values(), key=lambda found: (-found.worth, found.job_id))
        passed = (Passed(job_id, self._why[job_id]) for job_id in self._running if job_id not in booked)
        return MovePlan(tuple(map(self._planned, ranked)), tuple(passed))

    # Who may be moved at all

    def _wants(self, one: Running, largest: int) -> list[Want]:
        """The ways to place a job anew; none, with its reason in `_why`, where the job itself must stay."""
        why = self._stays(one)
        shapes = [] if why else _shapes(one, largest)
        if not shapes:
            self._why[one.job.job_id] = why or _no_shape(one)
        wants = [Want(one.job, one.request, shape) for shape in shapes]
        return wants + [Want(one.job, one.request, shapes[0], other.partition) for other in one.elsewhere if shapes]

    def _stays(self, one: Running) -> str:
        terms, job = self._terms, one.job
        here_s, left_s = self._here_s(one), self._left_to_limit_s(job)
        if job.state != "RUNNING":
            return f"it is {job.state}"
        if one.request.leave or one.request.shape is None:
            return f"where it may go is not known: {one.request.leave or 'it asks for no GPU'}"
        if one.moves >= terms.per_job:
            return f"it was moved {one.moves} times, at most {terms.per_job} are allowed"
        if here_s < terms.minimum_s:
            return f"it has run {here_s:.0f} s where it is, at least {terms.minimum_s:.0f} s are needed"
        if left_s < terms.end_guard_s:
            return f"it is {max(0.0, left_s):.0f} s from its time limit, at least {terms.end_guard_s:.0f} s are needed"
        if _is_spread(one) and job.partition in terms.wanted:  # what it gives up would be theirs before it starts again
            return "jobs wait for nodes of its partition: brought together, it could have to wait behind them"
        return self._no_room(job.user)

    def _no_room(self, user: str) -> str:
        """Why no further move of this user's jobs can be planned; "" when it can."""
        terms, under_way, failed = self._terms, self._under_way[user], self._terms.failed.get(user, 0)
        if self._new >= terms.per_tick:
            return f"at most {terms.per_tick} new moves are allowed now"
        if failed and under_way >= terms.per_user - failed:
            return f"no checkpoint came for {failed} moves of jobs of {user} lately"
        if under_way >= terms.per_user:
            return f"{under_way} moves of jobs of {user} are under way or planned, at most {terms.per_user} are allowed"
        return ""

    def _here_s(self, one: Running) -> float:
        return self._now_s - max(one.job.start_s, one.last_move_s)

    def _left_to_limit_s(self, job: SlurmJob) -> float:
        limit_s = stated_limit_s(job)
        return math.inf if limit_s is None else (job.end_s or job.start_s + limit_s) - self._now_s

    # What a job is to the planner

    def _way(self, want: Want, partition: str, as_if: Running | None = None) -> Way:
        one, held = as_if or self._running[want.job.job_id], self._survey.held(want.job)
        terms = self._terms
        nearest, *farther = one.locality or terms.locality
        rule = Rule(one.sensitivity, nearest, terms.barred_slowdown, measured=one.measured, farther=tuple(farther))
        here = self._believed(want, rule)
        factor = one.factor or here
        # Evidence from the job itself that its GPUs are outliers, whatever is believed of them.
        bar = rule.barred_slowdown * self._survey.locality([node for node, _ in held], rule)
        slow = factor > max(here, bar)
        movable = Movable(
            job_id=str(want.job.job_id), shape=want.shape, rule=rule, partition=partition, slots=held, factor=factor,
            remaining_s=self._calibration(one) * self._remaining_s(one, factor), since_s=self._here_s(one),
            cost_s=self._cost_s(one), moves=one.moves,
        )  # fmt: skip
        return Way(want, movable, tuple(node for node, _ in held) if slow else ())

    def _way_across(self, want: Want, partition: str) -> Way:
        """The same into another partition: all in terms of its median GPUs, on which the job is so much faster.

        Its believed factors count: a measured one and the time to go that the job reports may be fitted to
        each other (see steered.py), and not to GPUs of another type.
        """
        one = self._running[want.job.job_id]
        speed, money = next((o.speed, o.money) for o in one.elsewhere if o.partition == want.partition)
        plain = one._replace(factor=None, remaining_s=one.stated_s)
        way = self._way(want, partition, plain)
        here = way.movable
        # What earlier moves brought says how much time faster GPUs save, not how much work is left to be paid for.
        counts = (money.cheaper, self._calibration(one)) if money else (1.0, 1.0)
        there = here._replace(
            factor=here.factor * speed * counts[0], remaining_s=here.remaining_s / speed / counts[1]
        )  # fmt: skip
        return way._replace(movable=there, kept_off=tuple(node for node, _ in here.slots), speed=speed, money=money)

    def _believed(self, want: Want, rule: Rule) -> float:
        """The time factor (slowdown x locality) of the GPUs that it holds; on whole nodes all of them count."""
        whole = want.shape.whole_nodes
        gpus = {name: range(self._survey.count(name)) if whole else held for name, held in want.job.gpus.items()}
        here = [self._survey.position[name] for name in gpus]
        return slowest(self._here, rule.sensitivity, gpus) * self._survey.locality(here, rule)

    def _calibration(self, one: Running) -> float:
        return self._terms.calibrations.get(one.job.user, self._terms.calibration)

    def _traffic(self) -> Traffic:
        position = self._survey.position
        going = {name for move in self._terms.open_moves for name in move.target}
        left = {name for move in self._terms.open_moves for name in gpus_of(move.source)}
        return Traffic(
            frozenset(position[name] for name in going if name in position),
            frozenset(position[name] for name in left if name in position),
        )

    def _remaining_s(self, one: Running, factor: float) -> float:
        """Run time still to come on median GPUs of one node, and before the time limit as things are.

        Slurm gives a job that is moved a new time limit; no gain is counted for that.
        """
        terms, job, limit_s = self._terms, one.job, stated_limit_s(one.job)
        to_limit_s, ran_s = self._left_to_limit_s(job), self._now_s - job.start_s
        if one.remaining_s is not None:
            # A job without a limit is believed about its time to go for as long as it has run already.
            longest_s = max(terms.expected_run_s, ran_s) * one.slowest if limit_s is None else to_limit_s
            return min(one.remaining_s, longest_s) / factor
        if limit_s is None:
            return max(0.0, terms.expected_run_s * one.slowest - ran_s) / max(factor, 1.0)
        return expected_left_s(limit_s * one.slowest, terms.expected_run_share, ran_s, to_limit_s, factor)

    def _cost_s(self, one: Running) -> float:
        move_s = self._terms.costs_s.get(one.job.user, self._terms.move_cost_s)
        if one.checkpoint:
            return move_s
        return move_s + min(one.lost_s * LOST_SHARE, max(0.0, self._now_s - one.job.start_s))

    def _claim(self, found: Found) -> float:
        """What the move is worth beside those of other users, GPU-seconds: the more moves lately, the less.

        What a job reports of itself counts only where it lowers the site's own expectation: its words may move it
        back in the order, never ahead of another user's job.
        """
        movable, speed, cheaper = found.way.movable, found.way.speed, 1.0
        if found.way.money is not None:  # how much faster it is there stands in its own mark
            speed, cheaper = min(speed, 1.0), found.way.money.cheaper
        one = self._running[found.job_id]._replace(remaining_s=None)
        here = self._believed(found.way.want, movable.rule)
        expected_s = self._calibration(one) * self._remaining_s(one, here) / speed
        gain_s = max(0.0, expected_s * (here * speed * cheaper - found.placed.product))
        return movable.shape.total * min(found.gain_s, gain_s) / (1 + self._terms.lately.get(one.job.user, 0))

    # Choosing

    def _choose(self) -> None:
        """Book moves until no free GPUs pay: a move may leave a better place to the next job."""
        todo = list(self._ways)
        while todo:
            before = self._new
            self._take_turns(todo)
            left = (job_id for job_id in self._ways if job_id not in self._bookings.moves)
            todo = [job_id for job_id in left if self._new > before and not self._no_room(self._user(job_id))]

    def _take_turns(self, todo: Iterable[int]) -> None:
        """Order: fewest moves of the user under way, then the largest claim, then fewest moves lately.

        What a job could gain is computed again before it is booked when others were booked meanwhile.
        """
        queue: list[tuple[int, float, int, float, int]] = []
        offers: dict[int, tuple[int, Found]] = {}  # job -> (moves booked when it was looked at, what was found)

        def look(job_id: int) -> None:
            found, user = self._look(job_id), self._user(job_id)
            if found is not None:
                offers[job_id] = self._new, found
                lately = self._terms.lately.get(user, 0)
                heappush(queue, (self._under_way[user], -self._claim(found), lately, -found.worth, job_id))

        for job_id in todo:
            look(job_id)
        while queue:
            turn, *_, job_id = heappop(queue)
            user, (seen, found) = self._user(job_id), offers[job_id]
            why = self._no_room(user)
            if why:
                self._why[job_id] = f"{_gain(found)} if it moved, but {why}"
            elif seen != self._new or turn != self._under_way[user]:
                look(job_id)
            else:
                self._bookings.book(found)
                self._under_way[user] += 1
                self._new += 1

    def _user(self, job_id: int) -> str:
        return self._running[job_id].job.user

    def _look(self, job_id: int) -> Found | None:
        """Where a job would go if that pays."""
        ways = self._ways[job_id]
        found = self._bookings.best(ways)
        if found is None:
            least_s = self._terms.margin * ways[0].movable.cost_s
            self._why[job_id] = f"no free GPUs would save it {least_s:.0f} s, the least for a move"
            dear = [f"{way.want.partition}: {way.why_not(1.0) or NO_GPUS}" for way in ways if way.money]
            self._why[job_id] += "".join(f"; in its place {text}" for text in dear)
            return None
        others = self._bookings.in_the_way(found)
        if others:
            names = ",".join(self._survey.occupancy.names[node] for node in others)
            self._why[job_id] = f"{_gain(found)} if it moved, but another move comes or goes at {names}"
        return None if others else found

    # Words

    def _planned(self, found: Found) -> PlannedMove:
        movable, job, target = found.way.movable, found.way.want.job, slots(found.placed)
        one, way = self._running[job.job_id], found.way
        source, goal = self._text(movable.slots), self._text(target)
        before, after = way.factor / way.speed, found.placed.product / way.speed
        left_s = movable.remaining_s * way.factor / (1.0 if way.money else self._calibration(one))
        where = [f" in {name}" if way.want.partition else "" for name in (job.partition, way.want.partition)]
        why = f"{source} at {before:.2f}{where[0]} -> {goal} at {after:.2f}{where[1]}: {_gain(found)}"
        return PlannedMove(
            job_id=job.job_id, user=job.user, restarts=job.restarts, source=source,
            target=tuple(self._survey.occupancy.names[node] for node, _ in target), target_gpus=goal,
            before=before, after=after, gain_s=found.sooner_s, cost_s=movable.cost_s,
            checkpoint=one.checkpoint, why=f"{why} of {left_s:.0f} s left, for {movable.cost_s:.0f} s",
            partition=way.want.partition, own_partitions=",".join(one.own_partitions) if way.want.partition else "",
            saving=found.saving,
        )  # fmt: skip

    def _text(self, held: Slots) -> str:
        names = self._survey.occupancy.names
        return " ".join(f"{names[node]}:{','.join(map(str, gpus))}" for node, gpus in held)


def gpus_of(text: str) -> dict[str, tuple[int, ...]]:
    """GPUs as the journal writes them: "n3:0,1 n4:2"."""
    pairs = (word.rpartition(":")[::2] for word in text.split())
    return {name: tuple(map(int, indexes.split(","))) for name, indexes in pairs}


def _gain(found: Found) -> str:
    return f"{found.saving:.2f} of money saved" if found.way.money else f"{found.gain_s:.0f} s gained"


def _no_shape(one: Running) -> str:
    held, shape = sum(map(len, one.job.gpus.values())), one.request.shape
    if _is_spread(one) and shape is not None and held == shape.total:
        return "its GPUs may not be on one node, or do not fit there"
    return "it does not hold the GPUs that its request asks for"


def _is_spread(one: Running) -> bool:
    """Whether it has a total of GPUs on several nodes."""
    shape = one.request.shape
    return shape is not None and shape.per_node is None and not shape.whole_nodes and len(one.job.gpus) > 1


def _shapes(one: Running, largest: int) -> list[GpuShape]:
    """What a job may be given instead of its GPUs: as many nodes, or one that holds it all.

    `largest` is the number of GPUs of the largest node. Empty where the job does not hold what it asks for, and for
    a total on several nodes that one cannot hold: which of them gets how many is Slurm's choice, and it runs no
    faster on two nodes than on three.
    """
    request, shape = one.request, one.request.shape
    n_nodes, held = len(one.job.gpus), sum(map(len, one.job.gpus.values()))
    if shape is None or not request.nodes_min <= n_nodes <= (request.nodes_max or n_nodes):
        return []
    total = shape.total if shape.per_node is None else n_nodes * shape.per_node
    if held != total and not shape.whole_nodes:
        return []
    same = shape._replace(nodes=n_nodes, total=total)
    if shape.per_node is not None or shape.whole_nodes:
        return [same]
    if n_nodes == 1:
        return [same]
    return [same._replace(nodes=1)] if request.nodes_min == 1 and total <= largest else []
