# SPDX-License-Identifier: MIT
"""What a planner of moves sees of a cluster: free GPUs, and where each running job may go."""

from __future__ import annotations

import math
import time

import pytest

from slurm_pal.base.cluster import Counting, Node, Partition
from slurm_pal.base.jobs import Asks, SlurmJob
from slurm_pal.decide.offers import free_indexes
from slurm_pal.moves.survey import Survey, Want
from slurm_pal.slurm import parse
from slurm_pal.slurm.client import Overview

from ...doubles.running_factory import NOW_S, job, node, overview, request, scores

FOUR = [node(f"n{i}") for i in range(4)]


def want(one: SlurmJob, words: str = "", nodes: int = 0) -> Want:
    asked = request(words or f"--gpus={sum(map(len, one.gpus.values()))} --nodes={len(one.gpus)}")
    assert asked.shape is not None, asked.leave
    return Want(one, asked, asked.shape._replace(nodes=nodes or len(one.gpus)))


def names(survey: Survey, number: int = 0) -> list[str]:
    """The nodes of one place."""
    place = survey.places[number]
    assert not place.why
    occupancy = survey.occupancy
    return [name for i, name in enumerate(occupancy.names) if occupancy.in_partition(place.partition, i)]


def survey(seen: Overview, *wants: Want) -> Survey:
    return Survey(seen, scores({}), wants)


# -- free GPUs -------------------------------------------------------------------------------


def test_gpus_in_use_claimed_and_untold_are_not_free() -> None:
    pinned = job(9, {}, state="PENDING", req_nodes=("n2",), gpus_per_node=2, nodes=())
    nodes = [node("n0"), node("n1", gpus_used=2), node("n2"), node("n3"), node("n4", gpus=0)]
    seen = overview(nodes, [job(1, {"n0": (1, 2)}), job(2, {"n1": (1,)}), pinned])
    occupancy = Survey(seen, scores({}), ()).occupancy
    free = [sorted(occupancy.free_indexes(i)) for i in range(5)]
    assert free == [[0, 3], [3], [2, 3], [0, 1, 2, 3], []]
    for i in range(3):
        used = {k for one in seen.jobs for k in one.gpus.get(f"n{i}", ())}
        assert free[i] == free_indexes(seen.nodes[i], used, 2 if i == 2 else 0)


def stamp(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))


@pytest.mark.parametrize(
    ("reason", "fields", "claimed"),
    [
        ("Resources", {}, True),
        ("Priority", {"Priority": "7"}, True),
        ("", {}, True),
        ("(Nodes required for job are DOWN)", {}, True),
        ("BeginTime", {"EligibleTime": stamp(NOW_S - 3 * 3600 + 121)}, True),  # the delay after a requeue
        ("BeginTime", {"EligibleTime": stamp(NOW_S)}, False),
        ("JobHeldUser", {}, False),
        ("None", {"Priority": "0"}, False),
        ("Dependency", {}, False),
        ("AssocGrpGRES", {}, False),
    ],
)
def test_a_job_that_waits_for_something_else_claims_nothing(reason: str, fields: dict[str, str], claimed: bool) -> None:
    pinned = job(
        9, {}, state="PENDING", req_nodes=("n0",), gpus_per_node=2, nodes=(), reason=parse.reason(reason), fields=fields
    )
    free = Survey(overview([node("n0")], [pinned]), scores({}), ()).occupancy.free_indexes(0)
    assert sorted(free) == ([2, 3] if claimed else [0, 1, 2, 3])


def test_what_is_believed_is_the_snapshot_and_the_median_where_it_says_nothing() -> None:
    snapshot = scores({"n0": [1.5, math.nan], "n2": [0.9]})
    occupancy = Survey(overview([node("n0", 2), node("n1", 2), node("n2", 1)]), snapshot, ()).occupancy
    for sensitivity, factor in (("A", 1.5), ("?", 1.5), ("B", 1 + 0.5 / 3), ("C", 1.0)):
        assert occupancy.believed(sensitivity)[0] == pytest.approx([factor, 1.0])
        assert occupancy.believed(sensitivity)[1] == [1.0, 1.0]
    assert occupancy.believed("A")[2] == pytest.approx([0.9])


@pytest.mark.parametrize("state", ["DRAIN", "DOWN", "PLANNED", "MAINTENANCE"])
def test_nobody_goes_to_a_node_that_starts_no_job(state: str) -> None:
    one = job(1, {"n0": (0,)})
    seen = overview([*FOUR[:2], node("n2", states=frozenset({"IDLE", state}))], [one])
    found = survey(seen, want(one))
    assert names(found) == ["n0", "n1"]
    assert found.occupancy.free(2) == 0


# -- where a job may go ----------------------------------------------------------------------


def test_a_reserved_node_is_for_jobs_of_its_reservation() -> None:
    nodes = [*FOUR[:2], node("n2", states=frozenset({"IDLE", "RESERVED"}))]
    outside, inside = job(1, {"n0": (0,)}), job(2, {"n2": (0,)})
    seen = overview(nodes, [outside, inside], reservations={"r": ("n2",)})
    found = survey(seen, want(outside), want(inside, "--gpus=1 --reservation=r"))
    assert (names(found), names(found, 1)) == (["n0", "n1"], ["n2"])
    assert found.occupancy.free(2) == 3
    unknown = survey(seen, want(outside, "--gpus=1 --reservation=s")).places[0]
    assert unknown.why == "reservation s is not known"


def test_partition_constraint_exclusions_and_the_users_own_list_bind() -> None:
    nodes = [node(f"n{i}", features=frozenset({"x"} if i % 2 else ())) for i in range(6)]
    one = job(1, {"n5": (0,)})
    halves = (Partition("gpu", True, True, ("n1", "n2", "n3", "n5")), Partition("other", False, True, ("n0", "n4")))
    seen = overview(nodes, [one], partitions=halves)
    assert names(survey(seen, want(one))) == ["n1", "n2", "n3", "n5"]
    assert names(survey(seen, want(one, "--gpus=1 --constraint=x"))) == ["n1", "n3", "n5"]
    assert names(survey(seen, want(one, "--gpus=1 --exclude=n3"))) == ["n1", "n2", "n5"]
    left_on_it = one._replace(exc_nodes=("n1",))
    assert names(survey(seen._replace(jobs=(left_on_it,)), want(left_on_it))) == ["n2", "n3", "n5"]
    own = want(one)._replace(request=request("--gpus=1")._replace(req_nodes=("n5",)))
    assert names(survey(seen, own)) == ["n5"]
    two = job(1, {"n2": (0,), "n5": (0,)})
    part = want(two, "--nodes=2 --gpus-per-node=1 --nodelist=n5")
    assert survey(seen._replace(jobs=(two,)), part).places[0].why == "its user named a part of its nodes (n5)"
    elsewhere = one._replace(partition="closed")
    assert "closed" in survey(seen._replace(jobs=(elsewhere,)), want(elsewhere)).places[0].why


def test_a_node_must_have_cpus_and_memory_for_the_share_of_the_job() -> None:
    nodes = [
        node("n0"),
        node("cpus", cpus_used=13),
        node("fits", cpus_used=12, memory_used_mib=56000),
        node("memory", memory_used_mib=56001),
    ]
    one = job(1, {"n0": (0,)})
    words = "--gpus=1 --cpus-per-task=4 --mem=8000"
    assert names(survey(overview(nodes, [one]), want(one, words))) == ["n0", "fits"]


def test_on_its_own_node_a_job_has_its_own_share_again() -> None:
    """Of n0 it has 9 CPUs, of n1 somebody else; both have free GPUs and not 9 CPUs."""
    one, other = job(1, {"n0": (0,)}), job(2, {"n1": (0,)})
    nodes = [node("n0", cpus_used=8), node("n1", cpus_used=8), node("n2")]
    found = survey(overview(nodes, [one, other]), want(one, "--gpus=1 --cpus-per-task=9"), want(other, "--gpus=1 -c9"))
    assert (names(found), names(found, 1)) == (["n0", "n2"], ["n1", "n2"])
    whole = survey(
        overview([node("n0", memory_used_mib=64000), node("n1", memory_used_mib=1), node("n2")], [one]),
        want(one, "--gpus=1 --mem=0"),
    )
    assert names(whole) == ["n0", "n2"]


def test_a_full_node_is_in_everybodys_set_and_jobs_that_may_go_to_the_same_nodes_share_it() -> None:
    """Nothing is free on n0, so whether its CPUs suffice makes no difference; the sets stay few."""
    jobs = [job(k, {"n0": (k,)}) for k in range(4)]
    seen = overview([node("n0", cpus_used=12), *FOUR[1:]], jobs)
    found = survey(seen, *(want(one, f"--gpus=1 --cpus-per-task={k + 1}") for k, one in enumerate(jobs)))
    assert names(found) == ["n0", "n1", "n2", "n3"]
    assert len({place.partition for place in found.places}) == 1


def test_gpus_that_nobody_measured_among_several_models_may_be_of_any() -> None:
    one, scored = job(1, {"n0": (0,)}), scores({"n1": [1.0], "n2": [1.0]}, {"n1": "V100", "n2": "H100"})
    seen = overview([node("n0"), node("n1"), node("n2")], [one])
    (place,) = Survey(seen, scored, [want(one)]).places
    assert "never measured" in place.why
    parts = (Partition("gpu", True, True, ("n0",)), Partition("fast", False, True, ("n3", "n1", "n2")))
    mixed = overview([node(f"n{i}") for i in range(4)], [one], partitions=parts)
    (place,) = Survey(mixed, scored, [want(one)._replace(partition="fast")]).places
    assert "fast has GPUs of several types" in place.why
    alike = scores({"n1": [1.0], "n2": [1.0]}, {"n1": "V100", "n2": "V100"})
    assert names(Survey(mixed, alike, [want(one)._replace(partition="fast")])) == ["n1", "n2", "n3"]


def test_a_job_stays_among_gpus_of_its_type_and_model() -> None:
    """A slowdown is relative to the same model: 0.9 of another one says nothing."""
    types: dict[str, tuple[str, ...]] = {"n0": ("a",) * 2, "same": ("a",) * 2, "mixed": ("a", "b"), "b": ("b",) * 2}
    one = job(1, {"n0": (0,)})
    seen = overview([node(name, gpu_types=kinds) for name, kinds in types.items()], [one])
    assert names(survey(seen, want(one))) == ["n0", "same"]
    two = job(2, {"b": (0,)})
    assert names(survey(seen._replace(jobs=(one, two)), want(one), want(two)), 1) == ["b"]
    untyped = overview([node(name, 2) for name in ("n0", "n1", "n2", "n3", "n4")], [one])
    table = {"n0": [1.0, 1.0], "n1": [1.0, 1.0], "n2": [0.9, 0.9]}
    found = Survey(untyped, scores(table, {"n2": "other"}), [want(one)])
    assert names(found) == ["n0", "n1", "n3", "n4"]


def test_a_job_with_nodes_of_its_own_goes_only_where_nothing_else_runs() -> None:
    one = job(1, {"n0": (0, 1, 2, 3)})
    seen = overview([*FOUR[:2], node("n2", cpus_used=1)], [one])
    words = "--gpus-per-node=4 --nodes=1"
    found = survey(seen, want(one, words), want(one, f"{words} --exclusive"))
    assert (names(found), names(found, 1)) == (["n0", "n1", "n2"], ["n0", "n1"])


def test_nodes_that_the_site_keeps_for_later_are_no_goal() -> None:
    one = job(1, {"n1": (0,)})
    nodes = [node("n0", weight=10), node("n1", weight=10), node("n2", weight=1), node("n3", weight=1000)]
    assert names(survey(overview(nodes, [one]), want(one))) == ["n0", "n1", "n2"]


def test_what_its_partition_may_still_use_of_a_node_counts() -> None:
    one, other = job(1, {"n0": (0,)}), job(2, {"n1": (0,)}, asks=Asks(cpus=6))
    seen = overview([node("n0"), node("n1"), node("n2")], [one, other])
    (part, *others) = seen.partitions
    seen = seen._replace(partitions=(part._replace(counting=Counting(most_cpus=8)), *others))
    few, many = (want(one, f"--gpus=1 --nodes=1 --cpus-per-task={cpus}") for cpus in (2, 3))
    assert names(survey(seen, few, many)) == ["n0", "n1", "n2"] and names(survey(seen, few, many), 1) == ["n0", "n2"]


def test_jobs_that_take_different_threads_are_looked_at_singly() -> None:
    one = job(1, {"n0": (0,)})
    nodes = [node("n0", threads=2), node("n1", threads=2, cpus_used=14)]
    words = "--gpus=1 --nodes=1 --ntasks=2"
    found = survey(overview(nodes, [one]), want(one, words), want(one, f"{words} --hint=nomultithread"))
    assert names(found) == ["n0", "n1"] and names(found, 1) == ["n0"]


def broken(change: str) -> tuple[list[Node], list[SlurmJob]]:
    one = job(1, {"n0": (0,), "n1": (0,)})
    nodes = [node("n0"), node("n1")]
    if change == "untold":
        return nodes, [one._replace(gpus={"n0": (0,), "n1": ()})]
    if change == "no GPUs":
        return nodes, [one._replace(gpus={})]
    if change == "a node more":
        return nodes, [one._replace(nodes=("n0", "n1", "n2"))]
    if change == "shared":
        return nodes, [one, job(2, {"n1": (0, 1)})]
    if change == "types":
        return [node("n0", gpu_types=("a",)), node("n1", gpu_types=("b",))], [one]
    if change == "mixed":
        return [node("n0", gpu_types=("a", "b")), node("n1", gpu_types=("a", "a"))], [one]
    assert change == "beyond"
    return [node("n0"), node("n1")], [one._replace(gpus={"n0": (0,), "n1": (7,)})]


@pytest.mark.parametrize("change", ["untold", "no GPUs", "a node more", "shared", "types", "mixed", "beyond"])
def test_a_job_whose_gpus_are_not_clear_has_no_place(change: str) -> None:
    nodes, jobs = broken(change)
    found = survey(overview(nodes, jobs), want(jobs[0], "--gpus=2 --nodes=2", nodes=2))
    assert found.places[0].why and not found.places[0].partition


# -- shares while a plan grows ---------------------------------------------------------------


def test_a_share_counts_what_is_planned_and_what_the_job_has_there_anyway() -> None:
    one = job(1, {"n0": (0,), "n1": (0,)})
    seen = overview([node("n0", cpus_used=7), node("n1"), node("n2", cpus_used=4)], [one])
    asked = want(one, "--nodes=2 --gpus-per-node=1 --ntasks-per-node=2 --cpus-per-task=4 --mem-per-cpu=1000")
    found = survey(seen, asked)
    assert [found.more(asked, i) for i in range(3)] == [(0, 0), (0, 0), (8, 8000)]
    for planned, held in (((4, 0), True), ((5, 0), False), ((0, 56000), True), ((0, 56001), False)):
        assert found.holds(asked, 2, {2: planned}) == held
    assert found.holds(asked, 0, {0: (8, 0)}) and not found.holds(asked, 0, {0: (9, 0)})


def test_uneven_tasks_give_back_no_more_than_is_sure() -> None:
    """Three tasks on two nodes: one of them has two, and nobody knows which."""
    one = job(1, {"n0": (0,), "n1": (0,)})
    asked = want(one, "--nodes=2 --gpus=2 --ntasks=3 --cpus-per-task=4")
    assert survey(overview(FOUR, [one]), asked).more(asked, 0) == (4, 0)
