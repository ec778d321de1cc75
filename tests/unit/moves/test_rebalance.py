# SPDX-License-Identifier: MIT
"""Which running jobs are worth moving, how long a wait can pay, and who backfills first."""

from __future__ import annotations

from math import inf
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slurm_pal.base.jobs import GpuShape
from slurm_pal.moves.job_rows import JobRows
from slurm_pal.moves.order import response_ratio
from slurm_pal.moves.prospects import COLUMNS, Prospects
from slurm_pal.moves.reach import Reach
from slurm_pal.moves.worth import CandidateMove, Movable, MoveLimits, slots
from slurm_pal.placement.occupancy import Occupancy
from slurm_pal.placement.patience import patience_s
from slurm_pal.placement.view import Placement, Rule

from ...doubles.cluster_factory import CLASSES, levels, shapes, tables
from ...doubles.plain_moves import plan_moves
from ...doubles.trials import trials

HOUR_S = 3600.0


def cluster(*rows: list[float]) -> Occupancy:
    """Nodes given as the slowdowns of their GPUs, alike for all classes."""
    table = {name: [list(row) for row in rows] for name in CLASSES}
    return Occupancy([f"n{i}" for i in range(len(rows))], table, table)


def job(occupancy: Occupancy, name: str, held: list[tuple[int, tuple[int, ...]]], **changes: object) -> Movable:
    """A running class-A job on these GPUs, believed as slow as they are; takes them."""
    occupancy.take(held)
    factor = max(occupancy.believed("A")[node][k] for node, indexes in held for k in indexes)
    made = Movable(
        job_id=name,
        shape=GpuShape(sum(len(indexes) for _, indexes in held)),
        rule=Rule("A", 1.7, 1.2),
        partition="",
        slots=tuple(held),
        factor=factor * (1.7 if len(held) > 1 else 1.0),
        remaining_s=HOUR_S,
        since_s=HOUR_S,
        cost_s=100.0,
        moves=0,
    )
    return made._replace(**changes)  # type: ignore[arg-type]


# -- plan_moves ------------------------------------------------------------------------------


def test_a_move_must_gain_more_than_it_costs_with_the_margin() -> None:
    """From 1.5 to 1.0 with an hour to go: 1800 s gained."""
    for cost_s, moved in ((1199.0, True), (1200.0, False), (1201.0, False)):
        occupancy = cluster([1.5], [1.0])
        running = [job(occupancy, "1", [(0, (0,))], cost_s=cost_s)]
        moves = plan_moves(occupancy, "class-fit", running, MoveLimits(margin=1.5))
        assert [(move.job_id, move.placement.nodes, move.gain_s) for move in moves] == (
            [("1", (1,), 1800.0)] if moved else []
        )


def test_gathering_a_spread_job_counts_its_locality() -> None:
    occupancy = cluster([1.0, 1.0], [1.0, 1.0])
    running = [job(occupancy, "1", [(0, (0,)), (1, (0,))])]
    (move,) = plan_moves(occupancy, "packed", running, MoveLimits())
    assert move.placement.nodes == (0,) and move.gain_s == pytest.approx(0.7 * HOUR_S)


def test_a_job_rests_for_a_while_where_it_is() -> None:
    for since_s, moved in ((599.0, 0), (600.0, 1)):
        occupancy = cluster([1.5], [1.0])
        running = [job(occupancy, "1", [(0, (0,))], since_s=since_s)]
        assert len(plan_moves(occupancy, "class-fit", running, MoveLimits(minimum_s=600.0))) == moved


def test_a_job_moves_a_limited_number_of_times() -> None:
    for moves, moved in ((2, 1), (3, 0)):
        occupancy = cluster([1.5], [1.0])
        running = [job(occupancy, "1", [(0, (0,))], moves=moves)]
        assert len(plan_moves(occupancy, "class-fit", running, MoveLimits(per_job=3))) == moved


def test_those_with_most_at_stake_move_first_and_no_more_than_allowed() -> None:
    """Stake is GPUs x remaining x factor; job numbers settle ties. Only two may move, and two good GPUs are there."""
    occupancy = cluster([1.5] * 4, [1.0] * 4)
    running = [
        job(occupancy, "little", [(0, (0,))], remaining_s=1000.0),
        job(occupancy, "much", [(0, (1,))], remaining_s=5000.0),
        job(occupancy, "b", [(0, (2,))], remaining_s=2000.0),
        job(occupancy, "a", [(0, (3,))], remaining_s=2000.0),
    ]
    for per_tick, expected in ((1, ["much"]), (2, ["much", "a"]), (9, ["much", "a", "b", "little"])):
        moves = plan_moves(occupancy, "class-fit", running, MoveLimits(per_tick=per_tick))
        assert [move.job_id for move in moves] == expected
    wide = cluster([1.5] * 4, [1.0] * 4)
    running = [job(wide, "long", [(0, (0,))]), job(wide, "wide", [(0, (1, 2))], remaining_s=0.6 * HOUR_S)]
    assert [move.job_id for move in plan_moves(wide, "class-fit", running, MoveLimits())] == ["wide", "long"]


def test_later_moves_use_what_earlier_ones_give_up() -> None:
    """One free GPU: the first takes it, and the second takes the place of the first."""
    occupancy = cluster([1.2], [1.5], [1.0])
    running = [
        job(occupancy, "slow", [(1, (0,))], remaining_s=1.0 * HOUR_S),
        job(occupancy, "first", [(0, (0,))], remaining_s=5.0 * HOUR_S),
    ]
    moves = plan_moves(occupancy, "class-fit", running, MoveLimits())
    assert {move.job_id: move.placement.nodes for move in moves} == {"first": (2,), "slow": (0,)}


CASES = st.tuples(
    st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 999), st.sampled_from(("class-fit", "packed"))
)


def filled(sizes: list[int], seed: int, best_first: bool, data: st.DataObject) -> tuple[Occupancy, list[Movable]]:
    """A cluster with jobs on it, anywhere, and some GPUs free."""
    slowdown = tables(sizes, seed, outliers=0.3)
    partitions = {"half": list(range(0, len(sizes), 2)), "all": list(range(len(sizes)))}
    occupancy = Occupancy([f"n{i}" for i in range(len(sizes))], slowdown, levels(slowdown), partitions, best_first)
    gpus = [(node, k) for node, size in enumerate(sizes) for k in range(size)]
    owners = data.draw(st.lists(st.integers(-2, 4), min_size=len(gpus), max_size=len(gpus)), label="owners")
    running = []
    for number in sorted({owner for owner in owners if owner >= 0}):
        mine = [gpu for gpu, owner in zip(gpus, owners, strict=True) if owner == number]
        held = [(node, tuple(k for at, k in mine if at == node)) for node in sorted({node for node, _ in mine})]
        occupancy.take(held)
        sensitivity = data.draw(st.sampled_from((*CLASSES, "?")), label="class")
        penalty = data.draw(st.sampled_from((1.0, 1.1, 1.7)), label="penalty")
        slowest = max(occupancy.believed(sensitivity)[node][k] for node, k in mine)
        partition = data.draw(st.sampled_from(("", "all")), label="partition")
        running.append(
            Movable(
                str(number), GpuShape(len(mine)), Rule(sensitivity, penalty, 1.2), partition, tuple(held),
                slowest * (penalty if len(held) > 1 else 1.0), data.draw(st.sampled_from((100.0, 1e4)), label="left"),
                data.draw(st.sampled_from((0.0, 1e3)), label="since"), data.draw(st.sampled_from((0.0, 200.0))),
                data.draw(st.integers(0, 3)),
            )
        )  # fmt: skip
    return occupancy, running


def state(occupancy: Occupancy) -> tuple[int, list[frozenset[int]]]:
    return occupancy.free_gpus, [occupancy.free_indexes(node) for node in range(len(occupancy.names))]


def gpus_of(held: tuple[tuple[int, tuple[int, ...]], ...]) -> set[tuple[int, int]]:
    return {(node, k) for node, indexes in held for k in indexes}


@trials(200)
@given(CASES, st.booleans(), st.data())
def test_planned_moves_pay_fit_and_leave_everything_as_it_was(
    case: tuple[list[int], int, str], best_first: bool, data: st.DataObject
) -> None:
    sizes, seed, policy = case
    occupancy, running = filled(sizes, seed, best_first, data)
    limits = MoveLimits(margin=data.draw(st.sampled_from((0.5, 1.5))), minimum_s=600.0, per_tick=3, per_job=3)
    before = state(occupancy)
    moves = plan_moves(occupancy, policy, running, limits)
    assert state(occupancy) == before
    by_id = {movable.job_id: movable for movable in running}
    assert len({move.job_id for move in moves}) == len(moves) <= limits.per_tick
    for move in moves:
        movable = by_id[move.job_id]
        assert movable.since_s >= limits.minimum_s and movable.moves < limits.per_job
        assert move.gain_s == movable.remaining_s * (movable.factor - move.placement.product)
        assert move.gain_s > limits.margin * movable.cost_s
        new = slots(move.placement)
        assert len(gpus_of(new)) == movable.shape.total
        assert gpus_of(new) != gpus_of(movable.slots), "a move onto the same GPUs gains nothing"
        table = occupancy.believed(movable.rule.sensitivity)
        assert move.placement.slowdown == max(table[node][k] for node, k in gpus_of(new))
    # Carried out together they fit: all leave, all arrive, nobody twice on one GPU.
    for move in moves:
        occupancy.give(by_id[move.job_id].slots)
    for move in moves:
        occupancy.take(slots(move.placement))


@trials(200)
@given(CASES, st.booleans(), st.data())
def test_the_bound_leaves_out_no_move(case: tuple[list[int], int, str], best_first: bool, data: st.DataObject) -> None:
    """The plan is the one that trying out every job would have made."""
    sizes, seed, policy = case
    occupancy, running = filled(sizes, seed, best_first, data)
    limits = MoveLimits(margin=0.5, minimum_s=0.0)
    quick = plan_moves(occupancy, policy, running, limits)
    with patch.object(Reach, "least_product", lambda *_: -inf):
        assert plan_moves(occupancy, policy, running, limits) == quick


class Herd:
    """Running jobs as the simulator hands them to Prospects."""

    def __init__(self, occupancy: Occupancy, policy: str, limits: MoveLimits) -> None:
        self.columns = JobRows(("remaining_s", "since_s", "moves", *COLUMNS))
        self.prospects = Prospects(occupancy, policy, limits, self.columns)
        self.limits = limits

    def add(self, one: Movable) -> None:
        number = int(one.job_id)
        own = (one.remaining_s, one.since_s, float(one.moves))
        self.columns.add(number, (*own, *self.prospects.add(number, one)))

    def remove(self, one: Movable) -> None:
        self.columns.remove(int(one.job_id))
        self.prospects.remove(int(one.job_id))

    def plan(self) -> list[CandidateMove]:
        at = self.columns
        ripe = (at["alive"] > 0) & (at["since_s"] >= self.limits.minimum_s) & (at["moves"] < self.limits.per_job)
        return [move for _, move in self.prospects.plan(at["remaining_s"], ripe)]


@trials(300)
@given(
    CASES,
    st.sampled_from((1, 3, 16)),
    st.booleans(),
    st.data(),
)
def test_many_jobs_at_once_are_planned_for_as_one_by_one(
    case: tuple[list[int], int, str], per_tick: int, best_first: bool, data: st.DataObject
) -> None:
    """Also when bounds were kept from the plan before, and jobs have moved, ended and started since."""
    sizes, seed, policy = case
    occupancy, running = filled(sizes, seed, best_first, data)
    limits = MoveLimits(margin=data.draw(st.sampled_from((0.0, 0.5))), minimum_s=600.0, per_tick=per_tick, per_job=3)
    herd = Herd(occupancy, policy, limits)
    for one in running:
        herd.add(one)
    for number in range(100, 104):
        moves = plan_moves(occupancy, policy, running, limits)
        assert herd.plan() == moves
        by_id = {one.job_id: one for one in running}
        gone = [by_id[move.job_id] for move in moves]
        if running and data.draw(st.booleans(), label="one ends"):
            gone.append(running[data.draw(st.integers(0, len(running) - 1), label="which")])
        came = [
            by_id[move.job_id]._replace(slots=slots(move.placement), factor=move.placement.product, moves=1)
            for move in moves
        ]
        for one in dict.fromkeys(gone):
            occupancy.give(one.slots)
            herd.remove(one)
        for one in came:
            occupancy.take(one.slots)
            herd.add(one)
        placed = occupancy.place("packed", GpuShape(2), Rule("B", 1.7, 1.2))
        if placed is not None and data.draw(st.booleans(), label="one starts"):
            new = job(occupancy, str(number), slots(placed), rule=Rule("B", 1.7, 1.2), shape=GpuShape(2))
            came.append(new)
            herd.add(new)
        running = [one for one in running if one not in gone] + came


def test_rows_of_jobs_that_have_gone_make_room_for_others() -> None:
    columns = JobRows(("value",))
    for number in range(1000):
        columns.add(number, (float(number),))
        if number >= 10:
            columns.remove(number - 10)
    assert [columns.of(number).tolist() for number in range(990, 1000)] == [[float(n)] for n in range(990, 1000)]
    alive = columns["alive"] > 0
    assert columns["value"][alive].tolist() == [float(number) for number in range(990, 1000)]
    assert len(columns["value"]) <= 256, "rows are used again"


@trials(200)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.integers(0, 999),
    st.sampled_from(("class-fit", "packed", "pal", "threshold", "random")),
    st.booleans(),
    st.data(),
)
def test_the_bound_is_never_above_what_is_found(
    sizes: list[int], seed: int, policy: str, best_first: bool, data: st.DataObject
) -> None:
    occupancy, running = filled(sizes, seed, best_first, data)
    assume(running)
    movable = data.draw(st.sampled_from(running), label="job")
    fixed = [shape for shape in shapes(4) if shape.total == movable.shape.total and len(movable.slots) == shape.nodes]
    shape = data.draw(st.sampled_from([movable.shape, *fixed, movable.shape._replace(whole_nodes=True)]))
    for partition in ("", "half"):
        bound = Reach(occupancy, policy).least_product(shape, movable.rule, partition, movable.slots)
        occupancy.give(movable.slots)
        placed = occupancy.place(policy, shape, movable.rule, partition)
        occupancy.take(movable.slots)
        assert placed is None or bound <= placed.product


@trials(200)
@given(CASES, st.booleans(), st.sampled_from((0.9, 1.7)), st.data())
def test_no_placement_beats_the_fastest_gpus_wherever_they_are(
    case: tuple[list[int], int, str], best_first: bool, penalty: float, data: st.DataObject
) -> None:
    """Whether jobs that hold nodes of their own, or a few GPUs here and there, are asked about."""
    sizes, seed, policy = case
    occupancy, running = filled(sizes, seed, best_first, data)
    for one in running:
        rule, total = one.rule._replace(locality_penalty=penalty), one.shape.total
        node_has_room = any(occupancy.free(node) >= total for node in range(len(sizes)))
        bound = Reach(occupancy, policy).anywhere(one.shape, rule, one.slots, node_has_room)
        occupancy.give(one.slots)
        placed = occupancy.place(policy, one.shape, rule)
        occupancy.take(one.slots)
        assert placed is not None and bound <= placed.product
        whole = one.shape._replace(whole_nodes=True)
        assert Reach(occupancy, policy).anywhere(whole, rule, one.slots) == 0.0


def test_a_move_may_be_what_makes_the_next_one_pay() -> None:
    """For class B only the GPU on n2 is good, which m leaves. p had looked for a place before, and found none."""
    slowdown = {name: [[1.1], [1.5], [1.0], [1.5]] for name in CLASSES} | {"A": [[1.0], [1.0], [1.5], [1.0]]}
    occupancy = Occupancy(["n0", "n1", "n2", "n3"], slowdown, slowdown)
    b = Rule("B", 1.7, 2.0)
    running = [
        job(occupancy, "p", [(0, (0,))], rule=b, factor=1.1, remaining_s=9 * HOUR_S),
        job(occupancy, "m", [(2, (0,))], factor=1.5, remaining_s=5 * HOUR_S),
        job(occupancy, "s", [(1, (0,))], rule=b, factor=1.5),
    ]
    moves = plan_moves(occupancy, "class-fit", running, MoveLimits())
    assert [(move.job_id, move.placement.nodes) for move in moves] == [("m", (3,)), ("s", (2,))]


def test_a_job_whose_own_node_looked_tightest_may_still_have_a_better_place() -> None:
    """n1 with one free GPU is the tightest fit until the job gives back the other one; then n0 is as tight."""
    occupancy = cluster([1.0, 1.0], [1.4, 1.5])
    running = [job(occupancy, "1", [(1, (0,))])]
    (move,) = plan_moves(occupancy, "packed", running, MoveLimits())
    assert move.placement.nodes == (0,)


def test_nothing_is_known_of_a_rule_that_draws_anew() -> None:
    occupancy = cluster([1.0, 1.0], [1.4, 1.5])
    assert Reach(occupancy, "random").least_product(GpuShape(1), Rule("A", 1.7, 1.2), "", [(1, (0,))]) == 0.0


def test_the_bound_spares_jobs_that_are_well_off() -> None:
    """Of many jobs on full, equal nodes nobody is tried out: one look per kind of job is all."""
    occupancy = cluster(*[[1.0] * 4] * 50, [1.1] * 4)
    running = [job(occupancy, f"{node}-{k}", [(node, (k,))]) for node in range(50) for k in range(4)]
    place = Occupancy.place
    asked = 0

    def counted(self: Occupancy, *args: object) -> Placement | None:
        nonlocal asked
        asked += 1
        return place(self, *args)  # type: ignore[arg-type]

    with patch.object(Occupancy, "place", counted):
        assert plan_moves(occupancy, "class-fit", running, MoveLimits()) == []
    assert asked == 1


# -- order and patience -----------------------------------------------------------------------

TIMES = st.floats(0, 1e7)


@given(TIMES, TIMES, st.floats(1.0, 1e7), st.integers(1, 1000))
def test_the_ratio_grows_with_the_wait_and_the_width_and_falls_with_the_length(
    waited_s: float, more_s: float, run_s: float, gpus: int
) -> None:
    ratio = response_ratio(waited_s, run_s, gpus)
    assert ratio >= gpus
    assert response_ratio(waited_s + more_s, run_s, gpus) >= ratio
    assert response_ratio(waited_s, run_s + more_s, gpus) <= ratio
    assert response_ratio(waited_s, run_s, gpus + 1) > ratio


def test_the_ratio_by_hand() -> None:
    assert response_ratio(0.0, 100.0, 1) == 1.0
    assert response_ratio(300.0, 100.0, 2) == 8.0
    assert response_ratio(10.0, 0.0, 1) == 11.0, "a job of no length counts as one second"


@given(st.floats(0.5, 5), st.floats(0.5, 5), st.floats(0, 1e7))
def test_patience_is_what_the_slower_gpus_cost(there: float, here: float, run_s: float) -> None:
    wait_s = patience_s(there, here, run_s)
    assert wait_s >= 0.0
    assert wait_s + here * run_s == pytest.approx(max(there, here) * run_s, abs=1e-6)


def test_patience_by_hand() -> None:
    assert patience_s(1.5, 1.0, 1000.0) == 500.0
    assert patience_s(1.0, 1.5, 1000.0) == 0.0
