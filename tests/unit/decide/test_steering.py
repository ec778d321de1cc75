# SPDX-License-Identifier: MIT
"""Where a new job belongs by what the tick has published, and the mark by which its own list comes back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base import marks
from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide import partition_mark
from slurm_pal.decide.lease_marks import ending, in_force
from slurm_pal.decide.ownership import PARTITION
from slurm_pal.decide.partition_mark import mark_of, noted_partitions, own_partitions
from slurm_pal.decide.request import read
from slurm_pal.decide.steering import Market, NewJob, PricedGpus, of_json, places, steered, sure, to_json
from slurm_pal.slurm.client import Overview

NOW_S = 1_700_000_000.0
OWN = ("slow", "fast")
JOB = NewJob("app", 1, "A", 3600.0)


def market(fast: PricedGpus | None = None, slow: PricedGpus | None = None, error: float = 0.0) -> Market:
    plain = PricedGpus({"A": 1.0}, 0.0, 0.0)
    speeds = {"app": {1: {"slow": (1.0, error), "fast": (4.0, error)}}}
    return Market(NOW_S, 15.0, 0.5, {"slow": [slow or plain], "fast": [fast or plain]}, speeds)


def priced(price: float = 0.0, load_s: float = 0.0, slowdown: float = 1.0) -> PricedGpus:
    return PricedGpus({"A": slowdown}, price, load_s)


BOTH = frozenset(OWN)


@pytest.mark.parametrize(
    ("found", "room", "partition"),
    [
        (market(), BOTH, "fast"),
        (market(), {"slow"}, "fast"),  # waiting pays
        (market(fast=priced(load_s=10000.0)), BOTH, "slow"),
        (market(fast=priced(load_s=5000.0)), BOTH, "fast"),  # 900 + 2500 s, not 3600
        (market(fast=priced(load_s=5000.0)), {"slow"}, "slow"),
        (market(fast=priced(price=4.0)), BOTH, "slow"),  # 900 x (1 + 4) s
        (market(fast=priced(slowdown=5.0)), BOTH, "slow"),
        (market(slow=priced(load_s=1.0), fast=priced(price=4.0)), {"fast"}, ""),  # slow is full, and gains nothing
        (market(error=9.0), {"slow"}, ""),  # who knows
        (market(error=9.0), BOTH, "fast"),
    ],
)
def test_it_belongs_where_it_ends_soonest_and_costs_least(found: Market, room: set[str], partition: str) -> None:
    assert steered(found, JOB, OWN, frozenset(room)) == partition


def test_a_class_of_its_own_level_counts_the_best_of_a_partition() -> None:
    found = market()._replace(gpus={"slow": [priced()], "fast": [priced(slowdown=9.0), priced(price=0.1)]})
    assert steered(found, JOB, OWN, BOTH) == "fast"


@pytest.mark.parametrize(
    ("job", "own"),
    [
        (JOB, ("fast",)),
        (JOB._replace(application="other"), OWN),
        (JOB._replace(gpus=3), OWN),
        (JOB, ("slow", "fast", "debug")),
    ],
)
def test_what_is_not_known_is_left_to_slurm(job: NewJob, own: tuple[str, ...]) -> None:
    assert steered(market(), job, own, frozenset(own)) == ""


def test_the_file_is_read_as_it_was_written_and_not_for_long() -> None:
    found = market(fast=priced(0.25, 7.0, 1.1))
    body = json.loads(json.dumps(to_json(found)))
    assert of_json(body, NOW_S + 45.0) == found
    assert of_json(body, NOW_S + 46.0) is None and of_json(body, NOW_S - 3600.0) is None
    for wrong in (
        {**body, "schema": "pal.partitions/2"},
        {**body, "gpus": {"fast": [[1]]}},
        {"schema": body["schema"]},
    ):
        with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
            of_json(wrong, NOW_S)


@given(st.floats(-3, 3).map(lambda ratio: round(ratio, 6)), st.floats(0, 10))
def test_a_doubtful_ratio_counts_for_less(ratio: float, doubt: float) -> None:
    assert abs(sure(ratio, doubt)) <= abs(ratio) + 1e-12 and sure(ratio, doubt) * ratio >= 0


def node(name: str, used: int = 0, gpus: int = 4, **given: object) -> Node:
    made = Node(name, frozenset({"IDLE"}), ("",) * gpus, used, 64, 0, 64000, 0, frozenset(), ("p",))
    return made._replace(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "options", "found"),
    [
        ([node("a", 2), node("b", 3)], {"gres": "gpu:2", "nodes": "1"}, True),
        ([node("a", 3), node("b", 3)], {"gres": "gpu:2", "nodes": "1"}, False),
        ([node("a", 3), node("b", 3)], {"gpus": "2"}, True),
        ([node("a", 4), node("b", 3)], {"gpus": "2"}, False),
        ([node("a", 2), node("b", 1)], {"gres": "gpu:2", "nodes": "2"}, True),
        ([node("a", 2), node("b", 3)], {"gres": "gpu:2", "nodes": "2"}, False),
        ([node("a")], {"gres": "gpu:2", "nodes": "2"}, None),
        ([node("a")], {"gres": "gpu:5", "nodes": "1"}, None),
        ([node("a")], {"gpus": "5"}, None),
        ([node("a", states=frozenset({"DOWN"}))], {"gres": "gpu:1"}, None),
        ([node("a", states=frozenset({"IDLE", "RESERVED"}))], {"gres": "gpu:1"}, None),
        ([node("a", gpu_types=("h100",) * 4)], {"gres": "gpu:a100:1"}, None),
        ([node("a", cpus_used=64)], {"gres": "gpu:1"}, False),
        ([node("a")], {"gres": "gpu:1", "cpus-per-task": "65"}, None),
        ([node("a")], {"gres": "gpu:1", "constraint": "fast"}, None),
        ([node("a")], {"gres": "gpu:1", "time": "61"}, None),
        ([node("a")], {"gres": "gpu:1", "time": "60"}, True),
        ([], {"gres": "gpu:1"}, None),
    ],
)
def test_partitions_where_a_job_could_run_and_those_with_room(
    nodes: list[Node], options: dict[str, str], found: bool | None
) -> None:
    here = Partition("p", False, True, tuple(one.name for one in nodes), 3600)
    overview = Overview(tuple(nodes), (), (here, here._replace(name="q", up=False)), {})
    request = read({"partition": "p,q", **options}, submitted=True)
    assert request.leave == ""
    assert places(overview, request) == ({} if found is None else {"p": found})


# -- the mark ---------------------------------------------------------------------------------


def pending(comment: str, partition: str = "fast", **given: object) -> SlurmJob:
    made = SlurmJob(
        7, "PENDING", "Resources", "u", "app", partition, {}, (), (), (), NOW_S, 0.0, 0.0, 3600, 0, comment, 0
    )  # fmt: skip
    return made._replace(**given)  # type: ignore[arg-type]


MARK = partition_mark.word(40.0, OWN, "fast")


def test_the_mark_holds_what_comes_back() -> None:
    assert MARK == "pal:part=40;own=slow,fast;set=fast" and marks.read(MARK, "part")["own"] == "slow,fast"
    assert partition_mark.word(40.0, ("a b", "fast"), "fast") == ""
    job = pending(f"mine {MARK}")
    assert own_partitions(job) == "slow,fast" and in_force(job) == {PARTITION: "slow,fast"}
    by_filter = pending("mine", admin_comment=f"{MARK} pal:lease=40;req=;exc=;act=nodelist;set=n1", req_nodes=("n1",))
    assert own_partitions(by_filter) == "slow,fast"
    assert in_force(by_filter) == {PARTITION: "slow,fast", "ReqNodeList": ""}


@pytest.mark.parametrize(("partition", "noted"), [("fast", OWN), ("slow", OWN), ("other", ()), ("slow,fast", ())])
def test_where_a_job_runs_does_not_hide_its_own_list(partition: str, noted: tuple[str, ...]) -> None:
    assert noted_partitions(pending(MARK, partition, state="RUNNING")) == noted
    assert noted_partitions(pending("", partition, state="RUNNING")) == ()


@pytest.mark.parametrize(
    "job",
    [
        pending(MARK, "slow"),
        pending(MARK, "slow,fast"),
        pending("pal:part=x;own=slow,fast;set=fast"),
        pending("pal:part=40;own=fast;set=fast"),
        pending("pal:part=40;own=slow,other;set=fast"),
        pending("pal:part=40;own=slow,,fast;set=fast"),
        pending(""),
    ],
)
def test_another_list_is_not_ours(job: SlurmJob) -> None:
    assert mark_of(job) is None and own_partitions(job) == job.partition and in_force(job) == {}
    assert ending(job, NOW_S + 1e6, 3.0) is None


def test_the_list_comes_back_when_its_time_is_over() -> None:
    back = {PARTITION: "slow,fast"}

    def ended(job: SlurmJob, after_s: float, *, shared: bool = False) -> dict[str, str]:
        found = ending(job, NOW_S + after_s, 3.0, shared=shared)
        return found.fields if found else {}

    job = pending(MARK)
    assert ended(job, 39.0) == {} and ended(job, 40.0) == back
    assert ended(job, 40.0, shared=True) == {}  # the tick's own
    assert ended(job._replace(reason=""), 41.0) == {} and ended(job._replace(reason=""), 43.0) == back
    assert ended(job._replace(restarts=1), 0.0) == back
    assert ended(job._replace(state="RUNNING"), 1e6) == {} == ended(job._replace(reason="JobHeldUser"), 1e6)
    both = pending(f"pal:lease=60;req=;exc=;act=nodelist;set=n1 {MARK}", req_nodes=("n1",))
    assert ended(both, 39.0) == {} and ended(both, 40.0) == {**back, "ReqNodeList": ""}  # its nodes are not in all
    assert ended(both, 60.0, shared=True) == {"ReqNodeList": ""}
