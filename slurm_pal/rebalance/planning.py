"""Which running jobs to move now, and where to: the plan of one tick. Pure.

The rule that places a job at its start chooses where it would go, and the test whether that pays
is the simulator's (rebalance/moves.py). Here it is done on what a real Slurm shows: a target must
be free now, since Slurm would let the job wait for GPUs that another move is still to give up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from slurm_pal.jobs import GpuShape, SlurmJob
from slurm_pal.placement.view import Placement, Rule
from slurm_pal.rebalance import journal
from slurm_pal.rebalance.moves import Limits, Movable, Planner, Slots, expected_left_s, slots
from slurm_pal.rebalance.survey import Survey, Want
from slurm_pal.slurm.client import Overview
from slurm_pal.store.snapshot import Snapshot
from slurm_pal.submit.request import Request

FIRST_STEP = "planned"
"""Step of a move in the journal before anything was done."""
LOST_SHARE = 0.5
"""A job without a checkpoint of ours loses on average half of what it may lose at most."""


class Running(NamedTuple):
    """A movable job that runs."""

    job: SlurmJob
    request: Request  # the user's own: without lists that we set
    sensitivity: str
    checkpoint: bool  # it makes a checkpoint before it is moved
    lost_s: float  # at most so much work is lost without one
    moves: int  # so far
    last_move_s: float  # Unix s, 0.0: never
    remaining_s: float | None  # still to come on these GPUs, by its own word; None unknown
    factor: float | None  # time factor measured on these GPUs; None: the believed one counts


class MoveTerms(NamedTuple):
    """When a move is worth its trouble, and how many are. Times in s."""

    policy: str
    locality_penalty: float
    barred_slowdown: float
    margin: float  # gain over cost
    minimum_s: float  # not before a job has run so long where it is
    end_guard_s: float  # nor so near its time limit
    per_tick: int  # new moves
    per_job: int  # in its life
    per_user: int  # under way at once
    move_cost_s: float
    expected_run_share: float  # of the time limit
    expected_run_s: float  # of a job without a time limit
    calibration: float  # multiplies predicted gains
    in_flight: Mapping[str, int]  # user -> moves under way
    promised: Mapping[str, tuple[int, ...]] = {}  # GPUs that these go to, where Slurm does not know of it yet


class PlannedMove(NamedTuple):
    """One job to other GPUs."""

    job_id: int
    user: str
    restarts: int
    source: str  # "n3:0,1 n4:2"
    target: tuple[str, ...]
    target_gpus: str
    before: float
    after: float
    gain_s: float
    cost_s: float
    checkpoint: bool
    why: str  # one sentence


class Passed(NamedTuple):
    """A movable job that stays."""

    job_id: int
    why: str


class Plan(NamedTuple):
    """What to do in one tick, best first, and who stays."""

    moves: tuple[PlannedMove, ...]
    passed: tuple[Passed, ...]


def plan(
    overview: Overview, snapshot: Snapshot, running: Sequence[Running], terms: MoveTerms, now_s: float
) -> Plan:  # fmt: skip
    """The moves of one tick. Raises UsageError for an unknown policy."""
    return _Planning(overview, snapshot, running, terms, now_s).plan()


def to_move(planned: PlannedMove, now_s: float, own_req: str, ack: str) -> journal.Move:
    """The row of a planned move that the journal begins with (`own_req`, `ack`: see journal.Move)."""
    return journal.Move(
        move_id=0, job_id=planned.job_id, user=planned.user, made_s=now_s, restarts=planned.restarts,
        source=planned.source, target=planned.target, target_gpus=planned.target_gpus, own_req=own_req,
        before=planned.before, after=planned.after, gain_s=planned.gain_s, cost_s=planned.cost_s,
        checkpoint=planned.checkpoint, ack=ack, step=FIRST_STEP, step_s=now_s,
    )  # fmt: skip


class _Way(NamedTuple):
    """One way to place a job anew."""

    want: Want
    movable: Movable
    kept_off: tuple[int, ...]  # nodes that it shall leave, since its GPUs there turned out to be slow


class _Found(NamedTuple):
    """Where a job would go, and what that is worth."""

    way: _Way
    placed: Placement

    @property
    def gain_s(self) -> float:
        movable = self.way.movable
        return movable.remaining_s * (movable.factor - self.placed.product)

    @property
    def worth(self) -> float:
        """GPU-seconds that the move saves after its cost."""
        return self.way.movable.shape.total * (self.gain_s - self.way.movable.cost_s)


class _Planning:
    """The state of one plan."""

    def __init__(
        self, overview: Overview, snapshot: Snapshot, running: Sequence[Running], terms: MoveTerms, now_s: float
    ) -> None:
        self._terms, self._now_s = terms, now_s
        self._running = {one.job.job_id: one for one in running}
        self._why: dict[int, str] = {}  # job -> why it stays
        self._booked: dict[int, _Found] = {}
        self._under_way = defaultdict(int, terms.in_flight)
        wants = [want for one in running for want in self._wants(one)]
        self._survey = Survey(overview, snapshot, wants, terms.promised)
        self._limits = Limits(terms.margin, terms.minimum_s, terms.per_tick, terms.per_job, chained=False)
        self._planner = Planner(self._survey.occupancy, terms.policy, self._limits)
        self._ways: dict[int, list[_Way]] = defaultdict(list)
        for want, place in zip(wants, self._survey.places, strict=True):
            if place.why:
                self._why[want.job.job_id] = place.why
            else:
                self._ways[want.job.job_id].append(self._way(want, place.partition))

    def plan(self) -> Plan:
        self._choose()
        self._second_look()
        self._planner.undo()
        ranked = sorted(self._booked.values(), key=lambda found: (-found.worth, found.way.want.job.job_id))
        passed = (Passed(job_id, self._why[job_id]) for job_id in self._running if job_id not in self._booked)
        return Plan(tuple(map(self._planned, ranked)), tuple(passed))

    # Who may be moved at all

    def _wants(self, one: Running) -> list[Want]:
        """The ways to place a job anew; none, with a word in `_why`, where it stays for reasons of its own."""
        why = self._stays(one)
        shapes = [] if why else _shapes(one)
        if not shapes:
            self._why[one.job.job_id] = why or "its GPUs are not those that its request asks for"
        return [Want(one.job, one.request, shape) for shape in shapes]

    def _stays(self, one: Running) -> str:
        terms, job = self._terms, one.job
        here_s = self._now_s - max(job.start_s, one.last_move_s)
        left_s = self._left_to_limit_s(job)
        if job.state != "RUNNING":
            return f"it is {job.state}"
        if one.request.leave or one.request.shape is None:
            return f"where it may go is not known: {one.request.leave or 'it asks for no GPU'}"
        if one.moves >= terms.per_job:
            return f"it was moved {one.moves} times, {terms.per_job} are the most"
        if here_s < terms.minimum_s:
            return f"it has run {here_s:.0f} s where it is, {terms.minimum_s:.0f} s are the least"
        if left_s < terms.end_guard_s:
            return f"it is {max(0.0, left_s):.0f} s from its time limit, {terms.end_guard_s:.0f} s are the least"
        return self._no_room(job.user)

    def _no_room(self, user: str) -> str:
        """Why no move more of this user's jobs can be planned; "" when it can."""
        terms = self._terms
        if len(self._booked) >= terms.per_tick:
            return f"{terms.per_tick} new moves are the most in this tick"
        if self._under_way[user] >= terms.per_user:
            return f"{self._under_way[user]} moves of jobs of {user} are under way, {terms.per_user} are the most"
        return ""

    def _left_to_limit_s(self, job: SlurmJob) -> float:
        if job.time_limit_s is None:
            return math.inf
        return (job.end_s or job.start_s + job.time_limit_s) - self._now_s

    # What a job is to the planner

    def _way(self, want: Want, partition: str) -> _Way:
        one = self._running[want.job.job_id]
        held = self._survey.held(want.job)
        rule = Rule(one.sensitivity, self._terms.locality_penalty, self._terms.barred_slowdown)
        believed = self._product(want, held, rule)
        factor = believed if one.factor is None else one.factor
        locality = rule.locality_penalty if len(held) > 1 else 1.0
        # Evidence from the job itself that its GPUs are outliers, whatever is believed of them.
        slow = factor > max(believed, rule.barred_slowdown * locality)
        movable = Movable(
            str(want.job.job_id), want.shape, rule, partition, held, factor,
            self._terms.calibration * self._remaining_s(one, factor), self._now_s - max(want.job.start_s, one.last_move_s),
            self._cost_s(one), one.moves,
        )  # fmt: skip
        return _Way(want, movable, tuple(node for node, _ in held) if slow else ())

    def _product(self, want: Want, held: Slots, rule: Rule) -> float:
        """The believed time factor of a job on these GPUs."""
        table = self._survey.occupancy.believed(rule.sensitivity)
        whole = want.shape.whole_nodes
        slowest = max(max(table[node]) if whole else max(table[node][k] for k in gpus) for node, gpus in held)
        return slowest * (rule.locality_penalty if len(held) > 1 else 1.0)

    def _remaining_s(self, one: Running, factor: float) -> float:
        """Run time still to come on median GPUs of one node, and before the time limit as things are.

        A job that is moved gets a new time limit from Slurm; no gain is counted for that.
        """
        terms, job = self._terms, one.job
        to_limit_s = self._left_to_limit_s(job)
        if one.remaining_s is not None:
            return min(one.remaining_s, to_limit_s) / factor
        ran_s = self._now_s - job.start_s
        if job.time_limit_s is None:
            return max(0.0, terms.expected_run_s - ran_s) / max(factor, 1.0)
        return expected_left_s(job.time_limit_s, terms.expected_run_share, ran_s, to_limit_s, factor)

    def _cost_s(self, one: Running) -> float:
        ran_s = self._now_s - one.job.start_s
        lost_s = 0.0 if one.checkpoint else min(one.lost_s * LOST_SHARE, max(0.0, ran_s))
        return self._terms.move_cost_s + lost_s

    # Choosing

    def _choose(self) -> None:
        """Book moves one after the other: users with fewest moves under way first, then what saves most.

        What a job could gain is looked at again before it is booked, since others were booked meanwhile.
        """
        queue: list[tuple[int, float, int]] = []
        offers: dict[int, tuple[int, _Found]] = {}  # job -> (moves booked when it was looked at, what was found)
        for job_id, ways in self._ways.items():
            self._offer(job_id, ways, queue, offers)
        heapify(queue)
        while queue:
            turn, _, job_id = heappop(queue)
            user, (seen, found) = self._running[job_id].job.user, offers[job_id]
            why = self._no_room(user)
            if why:
                self._why[job_id] = f"{_gain(found)}, but {why}"
            elif seen != len(self._booked) or turn != self._under_way[user]:
                self._offer(job_id, self._ways[job_id], queue, offers)
            else:
                self._book(job_id, found)
                self._under_way[user] += 1

    def _offer(
        self, job_id: int, ways: Sequence[_Way], queue: list[tuple[int, float, int]],
        offers: dict[int, tuple[int, _Found]],
    ) -> None:  # fmt: skip
        """Look where a job would go, and put it in the queue if that pays."""
        found = self._best(ways)
        if found is None:
            least_s = self._terms.margin * ways[0].movable.cost_s
            self._why[job_id] = f"no free GPUs would save it the {least_s:.0f} s that make a move worth its cost"
            return
        offers[job_id] = len(self._booked), found
        heappush(queue, (self._under_way[self._running[job_id].job.user], -found.worth, job_id))

    def _best(self, ways: Sequence[_Way]) -> _Found | None:
        """The way that is worth most, of those that pay."""
        planned = self._planned_shares()
        found = [one for one in (self._try(way, planned) for way in ways) if one is not None]
        return max(found, key=lambda one: one.worth, default=None)

    def _try(self, way: _Way, planned: Mapping[int, tuple[int, int]]) -> _Found | None:
        barred = {*way.kept_off, *self._survey.short(way.want, planned)}
        placed = self._planner.attempt(way.movable, barred)
        if placed is None:
            return None
        found = _Found(way, placed)
        return found if self._worth_going(found) else None

    def _worth_going(self, found: _Found) -> bool:
        """Whether the gain is real: what was measured belongs to the job's GPUs, and goes along with those it keeps."""
        movable, target = found.way.movable, slots(found.placed)
        held = dict(movable.slots)
        if not any(k in held.get(node, ()) for node, gpus in target for k in gpus):
            return True
        believed = self._product(found.way.want, movable.slots, movable.rule)
        gain_s = movable.remaining_s * (min(believed, movable.factor) - found.placed.product)
        return gain_s > self._limits.margin * movable.cost_s

    def _book(self, job_id: int, found: _Found) -> None:
        self._planner.book(found.way.movable, found.placed)
        self._booked[job_id] = found
        self._why.pop(job_id, None)

    def _unbook(self, job_id: int) -> _Found:
        self._planner.unbook(str(job_id))
        return self._booked.pop(job_id)

    def _planned_shares(self) -> dict[int, tuple[int, int]]:
        """Node -> CPUs and memory that booked moves take there."""
        taken: dict[int, tuple[int, int]] = {}
        for found in self._booked.values():
            own = dict(found.way.movable.slots)
            for node in found.placed.nodes:
                if node not in own:
                    cpus, memory_mib = self._survey.share(found.way.want, node)
                    before = taken.get(node, (0, 0))
                    taken[node] = before[0] + cpus, before[1] + memory_mib
        return taken

    # As few moves as can be

    def _second_look(self) -> None:
        """Drop every move without which the others save no less: two jobs shall not change places for nothing."""
        dropped = True
        while dropped:
            dropped = any(self._drop(job_id) for job_id in sorted(self._booked, key=lambda i: self._booked[i].worth))

    def _drop(self, job_id: int) -> bool:
        """Let the job stay if one of the others, given the choice of its target, makes up for it."""
        lost = self._unbook(job_id)
        for other_id in list(self._booked):
            old = self._unbook(other_id)
            new = max(self._instead(old, lost), key=lambda found: found.worth, default=None)
            better = new is not None and new.worth >= old.worth + lost.worth
            self._book(other_id, new if better and new is not None else old)
            if better:
                self._why[job_id] = f"{_gain(lost)}, but job {other_id} makes as much of these GPUs alone"
                return True
        self._book(job_id, lost)
        return False

    def _instead(self, old: _Found, lost: _Found) -> list[_Found]:
        """What a job could do if another one did not move: choose anew, or go in its place."""
        again = self._best([old.way])
        found = [] if again is None else [again]
        mine, its = old.way.movable, lost.way.movable
        target = slots(lost.placed)
        own = {node for node, _ in mine.slots}
        if (mine.shape, mine.rule, mine.partition) != (its.shape, its.rule, its.partition) or own.intersection(
            lost.placed.nodes
        ):
            return found
        going = _Found(old.way, lost.placed)
        short = self._survey.cannot_hold(old.way.want, target, self._planned_shares())
        if not short and going.gain_s > self._limits.margin * mine.cost_s:
            found.append(going)
        return found

    # Words

    def _planned(self, found: _Found) -> PlannedMove:
        movable, job = found.way.movable, found.way.want.job
        one, target = self._running[job.job_id], slots(found.placed)
        source, goal = self._text(movable.slots), self._text(target)
        left_s = movable.remaining_s * movable.factor / self._terms.calibration
        return PlannedMove(
            job_id=job.job_id, user=job.user, restarts=job.restarts, source=source,
            target=tuple(self._survey.occupancy.names[node] for node, _ in target), target_gpus=goal,
            before=movable.factor, after=found.placed.product, gain_s=found.gain_s, cost_s=movable.cost_s,
            checkpoint=one.checkpoint,
            why=f"{source} at {movable.factor:.2f} -> {goal} at {found.placed.product:.2f}: {_gain(found)} of "
            f"{left_s:.0f} s left, for {movable.cost_s:.0f} s",
        )  # fmt: skip

    def _text(self, held: Slots) -> str:
        names = self._survey.occupancy.names
        return " ".join(f"{names[node]}:{','.join(map(str, gpus))}" for node, gpus in held)


def _gain(found: _Found) -> str:
    return f"{found.gain_s:.0f} s gained"


def _shapes(one: Running) -> list[GpuShape]:
    """What the job may be given instead of its GPUs: the same number of nodes, or one that its request allows.

    Empty when the job does not hold what its request asks for.
    """
    request, shape, n_nodes = one.request, one.request.shape, len(one.job.gpus)
    assert shape is not None
    held = sum(map(len, one.job.gpus.values()))
    in_range = request.nodes_min <= n_nodes <= (request.nodes_max or n_nodes)
    if shape.per_node is not None:
        same = shape._replace(nodes=n_nodes, total=n_nodes * shape.per_node)
        return [same] if in_range and (held == same.total or shape.whole_nodes) else []
    if not in_range or (held != shape.total and not shape.whole_nodes):
        return []
    # --gpus with an open number of nodes: a job that was spread may be gathered.
    most = max(map(len, one.job.gpus.values()))
    return [shape._replace(nodes=n_nodes)]
