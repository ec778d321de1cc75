# SPDX-License-Identifier: MIT
"""Kept off slow GPUs by its user's wish: which nodes, for how long, and when not."""

from __future__ import annotations

import pytest

from slurm_pal.base.cluster import Partition
from slurm_pal.decide.avoid import NO_NODE, Avoided, avoided, joined, without
from slurm_pal.decide.case import Decision, Settings
from slurm_pal.decide.decide import decide
from slurm_pal.decide.lease import comment
from slurm_pal.decide.lease_marks import ending, in_force
from slurm_pal.slurm.client import Overview
from slurm_pal.store.snapshot import Snapshot

from .test_submit_decide import NOW_S, Scores, cluster, job, node, request, scores

__all__ = ["scores"]
THREE = [node("n0"), node("n1"), node("n2")]
TABLE = {"n0": [1.0] * 4, "n1": [1.0, 1.0, 1.0, 1.25], "n2": [1.05] * 4}


def look(
    words: str, overview: Overview, snapshot: Snapshot, bound: float = 1.1, sensitivity: str = "A",
    clearer: str = "daemon", **changes: float,
) -> Avoided:  # fmt: skip
    return avoided(request(words), overview, snapshot, sensitivity, Settings(**changes), bound, clearer)


def made(words: str, overview: Overview, snapshot: Snapshot, bound: float = 1.1) -> Decision:
    found, asked = look(words, overview, snapshot, bound), request(words)
    plain = decide(without(asked, found), overview, snapshot, "A", Settings(), "daemon", NOW_S)
    return joined(plain, found, asked)


def test_a_node_with_one_gpu_beyond_the_bound_is_avoided(scores: Scores) -> None:
    snapshot, overview = scores(TABLE), cluster(THREE)
    assert look("--gres=gpu:1 -t 60", overview, snapshot) == Avoided(1.1, ("n1",), 1.25, False, 450.0)  # .25 x 1800 s
    assert look("--gres=gpu:1", overview, snapshot, 1.04).nodes == ("n1", "n2")
    assert look("--gres=gpu:1", overview, snapshot, 1.25).nodes == ()
    assert look("--gres=gpu:1", overview, snapshot, sensitivity="C").nodes == ()
    assert look("--gres=gpu:1 -t 600", overview, snapshot).lease_s == 600.0  # submit.lease_max_s
    assert look("--gres=gpu:1 -t 1", overview, snapshot, lease_pass_s=20.0).lease_s == 20.0


def test_gpus_that_were_seen_to_fail_are_avoided_whatever_their_speed(
    scores: Scores, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = scores({"n0": [1.0] * 4, "n1": [1.0] * 4})
    plain = type(snapshot).gpu

    def failing(self: Snapshot, row: int) -> object:
        score = plain(self, row)
        return score._replace(flags=("ecc",)) if (score.node, score.index) == ("n1", 2) else score

    monkeypatch.setattr(type(snapshot), "gpu", failing)
    found = look("--gres=gpu:1 -t 60", cluster(THREE[:2]), snapshot)
    assert (found.nodes, found.failing, found.lease_s) == (("n1",), True, 600.0)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--gres=gpu:4 -N3", NO_NODE),
        ("--gres=gpu:1 --exclude=n0,n2", NO_NODE),
        ("--gres=gpu:1 --constraint=odd", NO_NODE),
        ("--gres=gpu:1 --array=1-2", "an array has one node list for all its tasks"),
        ("--gres=gpu:1 -w n1", "the user's own --nodelist names all nodes"),
        ("-n1", "it asks for no GPU"),
        ("--gres=gpu:1 -p other", "partition other is not known or not up"),
    ],
)
def test_where_it_cannot_be_it_is_refused_with_the_reason(scores: Scores, words: str, why: str) -> None:
    odd = [THREE[0], THREE[1]._replace(features=frozenset({"odd"})), THREE[2]]
    assert why in look(words, cluster(odd), scores(TABLE)).refused


def test_nodes_that_are_down_or_too_small_do_not_count_as_left(scores: Scores) -> None:
    snapshot = scores(TABLE)
    for less in ({"states": frozenset({"DOWN"})}, {"cpus": 2}, {"gpu_types": ("",) * 2}):
        others = [THREE[0]._replace(**less), THREE[1], THREE[2]._replace(**less)]
        assert look("--gres=gpu:4 -c 8", cluster(others), snapshot).refused == NO_NODE, less
    busy = cluster([one._replace(states=frozenset({"ALLOCATED"}), gpus_used=4, cpus_used=16) for one in THREE])
    assert not look("--gres=gpu:4 -c 8", busy, snapshot).refused  # they become free


def test_a_job_of_several_nodes_must_find_them_in_one_partition(scores: Scores) -> None:
    parted = cluster(
        THREE, partitions=(Partition("a", True, True, ("n0", "n1")), Partition("b", True, True, ("n1", "n2")))
    )
    assert look("--gres=gpu:4 -N2 -p a,b", parted, scores(TABLE)).refused == NO_NODE
    assert not look("--gres=gpu:4 -N1 -p a,b", parted, scores(TABLE)).refused


def test_nobody_takes_it_back(scores: Scores) -> None:
    assert "neither a daemon" in look("--gres=gpu:1", cluster(THREE), scores(TABLE), clearer="").refused


def test_the_users_own_list_stays_and_gpus_that_are_free_are_named_beside(scores: Scores) -> None:
    found = made("--gres=gpu:1 -t 60 --exclude=n2", cluster(THREE), scores(TABLE | {"n0": [1.02] * 4}))
    assert found.action == "none" or found.added[-1] == "--exclude=n2,n1"
    free = made("--gres=gpu:1 -t 60", cluster(THREE), scores(TABLE))
    assert free.action == "nodelist" and free.pinned == ("n0",) and free.excluded == ("n1",) and free.avoid_s == 450.0
    assert free.added == ("--nodelist=n0", "--exclude=n1")
    assert free.lease_s < free.avoid_s


def test_where_only_slow_ones_are_free_it_waits(scores: Scores) -> None:
    full = tuple(job(k, {name: (0, 1, 2, 3)}) for k, name in enumerate(("n0", "n2")))
    busy = {"states": frozenset({"ALLOCATED"}), "gpus_used": 4, "cpus_used": 4}
    nodes = [THREE[0]._replace(**busy), THREE[1], THREE[2]._replace(**busy)]
    waits = made("--gres=gpu:1 -t 60", cluster(nodes, full), scores(TABLE))
    assert (waits.action, waits.added, waits.excluded, waits.lease_s) == ("exclude", ("--exclude=n1",), ("n1",), 450.0)
    assert waits.reason.startswith("kept off n1, as its user wants: GPUs there are slower than 1.1 (the slowest 1.25)")


def test_both_lists_are_taken_back_each_at_its_time() -> None:
    text = " ".join([comment(5, "", "n9", "nodelist", "n0", 1.2), comment(60, "", "n9", "exclude", "n9,n1")])
    waits = job(7, {}, state="PENDING", reason="Resources", comment=text, req_nodes=("n0",), exc_nodes=("n1", "n9"))
    waits = waits._replace(submit_s=1000.0, eligible_s=1000.0, priority=1)
    assert in_force(waits) == {"ReqNodeList": "", "ExcNodeList": "n9"}
    assert ending(waits, 1003.0, 3.0) is None
    first = ending(waits, 1006.0, 3.0)
    assert first is not None and first.fields == {"ReqNodeList": ""}
    later = ending(waits._replace(req_nodes=()), 1061.0, 3.0)
    assert later is not None and later.fields == {"ExcNodeList": "n9"}
    assert ending(waits._replace(req_nodes=(), exc_nodes=("n1",)), 1061.0, 3.0) is None  # somebody has changed it
