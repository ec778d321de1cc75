# SPDX-License-Identifier: MIT
"""Nodes that stay idle beside a sweep: what counts as one, who leaves early for it, and that the sweep still ends."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from slurm_pal.base.cluster import Node
from slurm_pal.profiling.sweep.leaving import EARLY, HeldNode, calm_s
from slurm_pal.profiling.sweep.plan import ChosenNode
from slurm_pal.profiling.sweep.spare import LONGEST_BARRED_S, SpareNodes, early_leavers, stays
from slurm_pal.profiling.sweep.sweep_state import DONE, SUBMITTED, TODO

from ...doubles.trials import trials
from .test_profiling_leaving import Busy
from .test_profiling_leaving import node as plain
from .test_profiling_sweep import START_S, submissions


def node(name: str, used: int = 0, **changes: object) -> Node:
    return plain(name, used)._replace(**changes)


def shorts(*nodes: Node, wanted: int = 1, own: str = "") -> list[str]:
    spare = SpareNodes(nodes, wanted, own)
    return [n.name for n in nodes if spare.short(n.name)]


def test_another_idle_node_is_wanted_beside_each() -> None:
    assert shorts(node("n0"), node("n1")) == []
    assert shorts(node("n0"), node("n1", 4)) == ["n0"]
    assert shorts(node("n0"), node("n1"), node("n2", 4), wanted=2) == ["n0", "n1"]
    assert shorts(node("n0", 4), node("n1", 4), wanted=0) == []


def test_a_node_counts_only_where_it_could_take_the_same_jobs() -> None:
    other = node("n1", partitions=("other",))
    assert shorts(node("n0"), other, node("n2", 4)) == ["n0"]
    assert shorts(node("n0"), node("n1", partitions=("gpu", "other")), node("n2", 4)) == []
    assert shorts(node("n0"), node("n1", gpu_types=("",) * 2), node("n2", 4)) == ["n0"]
    assert shorts(
        node("n0", gpu_types=("a",) * 4), node("n1", gpu_types=("b",) * 4), node("n2", 4, gpu_types=("a",) * 4)
    ) == ["n0"]
    assert shorts(node("n0"), node("n1", states=frozenset({"IDLE", "RESERVED"})), node("n2", 4)) == ["n0"]
    assert shorts(node("n0"), node("n1", states=frozenset({"IDLE", "PLANNED"})), node("n2", 4)) == ["n0"]


def test_the_sweeps_own_partition_makes_no_two_nodes_alike() -> None:
    one = node("n0", partitions=("a", "sweep"))
    two = [node("n1", partitions=("b", "sweep")), node("n2", 4, partitions=("a", "sweep"))]
    assert shorts(one, *two, own="sweep") == ["n0"]
    only = [node(name, partitions=("sweep",)) for name in ("n0", "n1")]
    assert shorts(*only, own="sweep") == []


def test_of_a_kind_with_too_few_nodes_all_others_are_wanted_and_a_single_one_is_free() -> None:
    assert shorts(node("n0"), node("n1", partitions=("other",))) == []
    assert shorts(node("n0"), node("n1"), wanted=9) == []
    assert shorts(node("n0"), node("n1", states=frozenset({"DOWN"}))) == []


def test_a_job_on_a_busy_node_needs_one_more() -> None:
    spare = SpareNodes([node("n0"), node("n1"), node("n2", 4)], 1)
    assert not spare.bars("n0") and not spare.bars("n2")
    spare.take("n0")
    assert spare.bars("n1") and spare.bars("n2")
    spare = SpareNodes([node("n0"), node("n1", 4), node("n2", 4)], 1)
    assert spare.bars("n1") and not spare.short("n1")  # it may be the next idle one, and n0 is taken first then


def early(nodes: list[Node], held: list[HeldNode], wanted: int = 1, leaving: tuple[str, ...] = ()) -> list[str]:
    return early_leavers(SpareNodes(nodes, wanted), held, leaving)


def test_as_few_leave_as_are_wanted_and_in_order() -> None:
    nodes = [node(f"n{i}", 4) for i in range(4)]
    held = [HeldNode("n1", 2, 2.0), HeldNode("n0", 1, 1.0)]
    assert early(nodes, held) == ["n1"] and early(nodes, held, 2) == ["n1", "n0"]
    assert early([*nodes, node("n4")], held) == []
    assert early(nodes, held, leaving=("n1",)) == ["n0"]  # a user's job takes n1
    assert early(nodes, [held[0]._replace(leaves_for=EARLY), held[1]]) == []
    assert early(nodes, [held[0]._replace(leaves_for=7), held[1]]) == ["n0"]
    assert early(nodes, [held[0]._replace(stays=True), held[1]]) == ["n0"]
    assert early([*nodes[:3], node("n3", 4, states=frozenset({"IDLE", "COMPLETING"}))], held) == []


KINDS = st.sampled_from([("gpu",), ("gpu", "long"), ("other",)])


@given(
    st.lists(st.tuples(KINDS, st.sampled_from("iuh"), st.booleans()), min_size=1, max_size=10),
    st.integers(0, 4),
)
def test_after_the_leaving_no_node_is_short_but_those_that_stay(
    rows: list[tuple[tuple[str, ...], str, bool]], wanted: int
) -> None:
    nodes = [node(f"n{i}", 0 if what == "i" else 4, partitions=where) for i, (where, what, _) in enumerate(rows)]
    held = [HeldNode(f"n{i}", i, float(i), stays=stay) for i, (_, what, stay) in enumerate(rows) if what == "h"]
    found = early(nodes, held, wanted)
    asked = [one.node for one in held if not one.stays]
    assert [name for name in asked if name in found] == found
    after = SpareNodes(nodes, wanted)
    for name in found:
        after.give(name)
    assert not [name for name in asked if name not in found and after.short(name)]
    if found and len({where for where, _, _ in rows}) == 1:  # nobody leaves for nothing
        idle = sum(what == "i" for _, what, _ in rows)
        assert idle + len(found) <= wanted


class Tight(Busy):
    """Users who never wait, and take and leave nodes that the sweep does not hold."""

    def __init__(self, tmp_path: Path, **terms: object) -> None:
        super().__init__(tmp_path, **{"spare_nodes": 1, **terms})
        self.users: dict[str, int] = {}
        self.started_s: dict[int, float] = {}

    def idle(self) -> list[str]:
        taken = {
            n for j in self.slurm.jobs.values() if j.state in ("RUNNING", "PENDING") for n in (j.placed or {j.req: 0})
        }
        return [c.node for c in self.directory.terms.chosen if c.node not in taken]

    def hold(self, count: int) -> None:
        """Users have so many of the nodes, as far as nobody waits."""
        while len(self.users) > count:
            self.slurm.finish(self.users.pop(next(iter(self.users))))
        for name in self.idle()[: count - len(self.users)]:
            self.users[name] = self.occupy(name)

    def finish_old(self, seconds: float) -> None:
        for number in self.own("RUNNING"):
            if self.now_s - self.started_s.setdefault(number, self.now_s) >= seconds:
                self.write(number, self.asked(number))
                self.slurm.finish(number)


def test_a_job_starts_only_beside_idle_nodes_one_after_the_other(tmp_path: Path) -> None:
    world = Tight(tmp_path, max_parallel=4)
    most: list[int] = []

    def step() -> None:
        most.append(len(world.own("RUNNING")))
        world.finish_old(30.0)

    world.on_sleep = step
    assert world.sweep().run() and set(world.states().values()) == {DONE}
    assert max(most) == 3 and submissions(world) == 4


def test_a_job_leaves_before_anybody_waits_and_keeps_what_it_has(tmp_path: Path) -> None:
    world = Tight(tmp_path, max_parallel=1)
    seen: list[tuple[float, int]] = []

    def step() -> None:
        world.hold(3 if START_S + 20 < world.now_s < START_S + 40 else 0)
        seen.append((world.now_s - START_S, len(world.own("RUNNING"))))
        world.finish_old(30.0)

    world.on_sleep = step
    assert world.sweep().run() and set(world.states().values()) == {DONE}
    assert not [s for s, running in seen if 22 < s < 40 and running]
    assert [s for s, running in seen if 15 < s < 20 and running]
    found = world.again().nodes["n0"]
    assert (found.leavings, found.leaves_for, found.attempts) == (1, 0, 2)
    assert next(b.id for b in world.asked(1)) == "gemm_bf16" and "gemm_bf16" not in {b.id for b in world.asked(5)}
    journal = Path(world.directory.path, "journal.jsonl").read_text()
    assert "leaves early: too few idle nodes beside it" in journal and f'"leaves_for":{EARLY}' in journal


def test_without_room_one_node_at_a_time_is_measured_all_the_same_and_says_so(tmp_path: Path) -> None:
    world = Tight(tmp_path, max_parallel=2)
    said: set[str] = set()

    def step() -> None:
        nodes = world.directory.nodes
        said.update(s.reason for s in nodes.values() if s.state == SUBMITTED)
        if nodes["n3"].state == DONE:
            world.hold(0)
        world.finish_old(100.0)

    world.hold(3)
    world.on_sleep = step
    assert world.sweep().run() and set(world.states().values()) == {DONE}
    assert "stays until a user's job waits for its node" in said
    assert world.pauses[0] == "spare nodes: fewer than 1 idle beside n3"
    assert world.again().nodes["n3"].since_s - START_S > LONGEST_BARRED_S + 100.0


def test_a_job_that_still_waits_for_its_node_is_taken_back_when_idle_nodes_run_short(tmp_path: Path) -> None:
    chosen = (ChosenNode("n0", 4, 0.0),)
    world = Tight(tmp_path, chosen=chosen)
    user = world.occupy("n0")
    others: list[int] = []

    def step() -> None:
        if world.own("PENDING") and not others:
            others.extend(world.occupy(name) for name in ("n1", "n2", "n3"))
        if others and not world.own("PENDING") and world.runs(user):
            for one in (user, *others):
                world.slurm.finish(one)
        world.finish_old(5.0)

    world.on_sleep = step
    assert world.sweep().run() and world.again().nodes["n0"].state == DONE
    assert world.now_s - START_S < 60.0
    assert '"reason":"withdrawn: spare nodes"' in Path(world.directory.path, "journal.jsonl").read_text()
    assert len(world.own("CANCELLED")) == 1 and world.again().nodes["n0"].attempts == 2


def test_jobs_that_wait_for_idle_nodes_are_not_taken_back(tmp_path: Path) -> None:
    world = Tight(tmp_path, max_parallel=3, pending_max_s=1e6)
    schedule = world.slurm.schedule

    def step() -> None:
        if world.now_s > START_S + 60:
            world.slurm.schedule = schedule  # type: ignore[method-assign]
            schedule()
        world.finish_old(5.0)

    world.on_sleep = step
    world.slurm.schedule = lambda: None  # type: ignore[method-assign]
    assert world.sweep().run() and set(world.states().values()) == {DONE}
    assert world.own("CANCELLED") == []


def test_a_node_that_was_left_twice_is_left_only_for_a_job_that_waits() -> None:
    assert [stays(n, 5) for n in (0, 1, 2, 3)] == [False, False, True, True]
    assert [stays(n, 1) for n in (0, 1)] == [False, True]


@trials(12, deadline=None)
@given(
    st.integers(2, 4),
    st.integers(1, 3),
    st.integers(1, 5),
    st.lists(st.integers(0, 5), min_size=1, max_size=40),
    st.integers(1, 60),
)
@example(nodes=4, spare=3, max_leavings=4, held=[3, 5, 1, 3], every_s=54)  # room for a moment, gone before a job starts
def test_a_sweep_ends_whatever_users_who_never_wait_do(
    nodes: int, spare: int, max_leavings: int, held: list[int], every_s: int
) -> None:
    """They may take every node but one, whenever they like; each node is left early a bounded number of times."""
    with tempfile.TemporaryDirectory() as folder:
        world = Tight(Path(folder), nodes=nodes, max_parallel=nodes, spare_nodes=spare, max_leavings=max_leavings)
        leavings: dict[str, int] = {}

        def step() -> None:
            world.hold(min(held[int((world.now_s - START_S) / every_s) % len(held)], nodes - 1))
            world.finish_old(20.0)

        world.on_sleep = step
        assert world.sweep().run()
        for line in Path(world.directory.path, "journal.jsonl").read_text().splitlines():
            if '"reason":"leaves early' in line:
                name = line.split('"node":"')[1].split('"')[0]
                leavings[name] = leavings.get(name, 0) + 1
        bound = max(1, max_leavings // 2)
        assert max(leavings.values(), default=0) <= bound
        assert not [s for s in world.states().values() if s in (TODO, SUBMITTED)]
        calm = sum(calm_s(n) for n in range(1, nodes * bound + 1))
        assert (
            world.now_s - START_S < nodes * (bound + 1) * (LONGEST_BARRED_S + 200.0) + 2 * calm + 40 * every_s * nodes
        )
