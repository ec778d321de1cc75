# SPDX-License-Identifier: MIT
"""The filter keeps a new job to the partition where palsub would: Lua and a published table against the rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.config import Config
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.case import Settings
from slurm_pal.decide.partition_mark import PartitionMark, mark_of, noted_partitions
from slurm_pal.decide.steering import Market, NewJob, PricedGpus, steered
from slurm_pal.publisher.publication import taken_alike
from slurm_pal.publisher.standing import standing
from slurm_pal.publisher.table import records
from slurm_pal.slurm.client import Overview
from slurm_pal.store.lua_table import Header, encode
from slurm_pal.store.snapshot import empty

from ...doubles.lua_filter import NO_VAL, NOW_S, Seen, install, job, run
from ...doubles.trials import trials
from ..publisher.test_standing import job as running

OWN = ("slow", "fast", "new")
NODES = {"slow": ("s0", "s1"), "fast": ("f0", "f1"), "new": ("h0",)}
PARTS = {
    name: {"nodes": ",".join(nodes), "flag_default": int(name == "slow"), "default_time": NO_VAL, "max_time": 1440}
    for name, nodes in NODES.items()
}
FREE = st.integers(0, 4)
priced = st.builds(
    PricedGpus,
    st.fixed_dictionaries({c: st.sampled_from([0.9, 1.0, 1.3]) for c in "ABC"}),
    st.sampled_from([0.0, 0.2, 1.5, 1e-5]), st.sampled_from([0.0, 40.0, 900.0, 40000.0]),
)  # fmt: skip


def cluster(free: dict[str, int]) -> Overview:
    nodes = tuple(
        Node(name, frozenset({"MIXED"}), ("",) * 4, 4 - free[name], 16, 4 - free[name], 64000, 0, frozenset(), (part,))
        for part, names in NODES.items()
        for name in names
    )
    jobs = [running(k, n.name, tuple(range(n.gpus_used))) for k, n in enumerate(nodes, 1) if n.gpus_used]
    return Overview(nodes, tuple(jobs), tuple(Partition(p, p == "slow", True, n) for p, n in NODES.items()), {})


def submitted(
    folder: Path, overview: Overview, market: Market | None, clears: str = "daemon", **fields: object
) -> Seen:
    site = install(folder)
    shared = market.gpus if market is not None else ()
    answers = standing(overview, empty(), Settings("class-fit", 1.7, 1.05), shared=shared)
    table = encode(Header(1, NOW_S, 30.0, clears), records(answers, Config(), 1, market=market))
    (site / "pal_table.lua").write_bytes(table)
    words = {"tres_per_node": "gres:gpu:2", "name": "app", "time_limit": 120, "partition": ",".join(OWN)}
    asked = job(**(words | {"min_nodes": 1, "max_nodes": 1} | fields))
    seen = run(site, [asked], partitions=PARTS)[1]
    assert not [line for line in seen.logs if line.startswith("error")]
    return seen


def market(**fields: object) -> Market:
    plain = PricedGpus({"A": 1.0, "B": 1.0, "C": 1.0}, 0.0, 0.0)
    speeds = {"app": {2: {"slow": (1.0, 0.05), "fast": (2.0, 0.05), "new": (6.0, 0.05)}}}
    made = Market(float(NOW_S), 15.0, 0.5, {name: [plain] for name in OWN}, speeds)
    return made._replace(**fields)


ROOM = {"s0": 4, "s1": 4, "f0": 4, "f1": 4, "h0": 4}


def shown(seen: Seen) -> SlurmJob:
    """The job as Slurm shows it afterwards."""
    fields = {"partition": seen.values.get("set_partition", ",".join(OWN)), "state": "PENDING"}
    return running(9, "s0", ())._replace(**fields, comment="", admin_comment=seen.values["set_admin_comment"])


@trials(100)
@given(
    st.fixed_dictionaries({name: FREE for name in ROOM}), st.fixed_dictionaries({name: st.lists(priced, min_size=1,
    max_size=2) for name in OWN}), st.sampled_from([0.05, 0.5]), st.sampled_from([1, 2, 4]), st.sampled_from("ABC?"),
    st.sampled_from([1, 60, 1440]),
)  # fmt: skip
def test_it_belongs_where_palsub_would_keep_it(
    tmp_path_factory: pytest.TempPathFactory, free: dict[str, int], gpus: dict[str, list[PricedGpus]], error: float,
    count: int, sensitivity: str, limit_min: int,
) -> None:  # fmt: skip
    speeds = {"app": {count: {"slow": (1.0, error), "fast": (1.9, error), "new": (6.0, error)}}}
    made = market(gpus=gpus, speeds=speeds)
    room = frozenset(name for name, nodes in NODES.items() if any(free[node] >= count for node in nodes))
    new = NewJob("app", count, "A" if sensitivity == "?" else sensitivity, 30.0 * limit_min)
    expected = steered(made, new, OWN, room)
    script = f"#!/bin/sh\n#PAL class={sensitivity}\n" if sensitivity != "?" else "#!/bin/sh\n"
    words = {"tres_per_node": f"gres:gpu:{count}", "time_limit": limit_min, "script": script}
    seen = submitted(tmp_path_factory.mktemp("site"), cluster(free), made, **words)
    assert seen.values.get("set_partition", "") == expected
    found = mark_of(shown(seen))
    assert found == (PartitionMark(33.0, ",".join(OWN), expected) if expected else None)
    if expected:
        assert noted_partitions(shown(seen)) == OWN and seen.mark["why"] != "partition"
        assert not seen.values.get("set_req_nodes") or seen.values["set_req_nodes"] in NODES[expected]
    else:
        assert (seen.mark["act"], seen.mark["why"]) == ("none", "partition")


@pytest.mark.parametrize(
    ("made", "clears", "fields"),
    [
        (None, "daemon", {}),
        (market(at_s=NOW_S - 3600.0), "daemon", {}),
        (market(at_s=NOW_S + 3600.0), "daemon", {}),
        (market(), "", {}),  # nobody would take it back
        (market(), "daemon", {"name": "who knows"}),
        (market(), "daemon", {"name": "x" * 4000}),
        (market(), "daemon", {"name": '"]=os.exit()'}),
        (market(), "daemon", {"tres_per_node": "gres:gpu:3"}),
        (market(), "daemon", {"partition": "slow,debug"}),
        (market(), "daemon", {"partition": "slow," * 17 + "new"}),
        (market(), "daemon", {"partition": "slow, new;x"}),
        (market(), "daemon", {"time_limit": 1441}),  # this partition might refuse it
        (market(), "daemon", {"time_limit": NO_VAL}),
        (market(), "daemon", {"array_inx": "1-3"}),
        (market(), "daemon", {"max_nodes": 2}),
        (market(), "daemon", {"req_nodes": "h0"}),
        (market(), "daemon", {"clusters": "other"}),
        (market(), "daemon", {"script": "#!/bin/sh\n", "comment": "pal:job=A;from=user"}),
        (market(), "daemon", {"environment": {"SLURM_PAL_OFF": "1"}}),
        (market(), "daemon", {"admin_comment": "x" * 8190}),
        # Room for the mark, not for the user's own list.
        (market(), "daemon", {"admin_comment": "x" * 8102, "partition": "new," + "slow," * 14 + "fast"}),
        (market(), "daemon", {"name": "a" + " " * 1_000_000 + "b"}),
        (market(speeds={"app": {2: {"slow": (1.0, 0.0), "fast": (2.0, 0.0)}}}), "daemon", {}),
        (market(speeds={"app": {2: {name: (0.0, 0.0) for name in OWN}}}), "daemon", {}),
        (market(gpus={name: [] for name in OWN}), "daemon", {}),
    ],
)
def test_what_is_not_sure_is_left_to_slurm(
    tmp_path: Path, made: Market | None, clears: str, fields: dict[str, object]
) -> None:
    assert "set_partition" not in submitted(tmp_path, cluster(ROOM), made, clears, **fields).values


@pytest.mark.parametrize(
    "words",
    [
        *({key: "physics"} for key in ("allow_accounts", "deny_accounts", "allow_qos", "deny_qos", "qos")),
        {"min_nodes": 2}, {"max_nodes": 0}, {"flags": 8}, {"flags": 16}, {"state_up": 1}, {"max_time": 60},
    ],
)  # fmt: skip
def test_a_partition_that_may_refuse_it_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: dict[str, object]
) -> None:
    usual = {"allow_accounts": "ALL", "min_nodes": 1, "max_nodes": NO_VAL, "flags": 7, "state_up": 3, "qos": ""}
    for added in ({}, words):
        monkeypatch.setitem(PARTS, "new", PARTS["new"] | usual | added)
        folder = tmp_path / str(len(added))
        folder.mkdir()
        assert submitted(folder, cluster(ROOM), market()).values.get("set_partition") == (None if added else "new")


@pytest.mark.parametrize(
    ("words", "alike"),
    [("", True), ("none", True), ("(null)", True), ("associations", False), ("associations,limits,qos,safe", False)],
)
def test_the_filter_steers_only_where_all_partitions_take_a_job_alike(words: str, alike: bool) -> None:
    assert taken_alike({"AccountingStorageEnforce": words}) is alike


def test_the_list_is_as_the_user_wrote_it_and_is_explained(tmp_path: Path) -> None:
    option = {"1": "_SLURM_SPANK_OPTION_pal_pal_explain="}
    seen = submitted(tmp_path, cluster(ROOM), market(), partition="new,slow", spank_job_env=option, name=" App ")
    assert seen.values["set_partition"] == "new"
    assert seen.values["set_admin_comment"].startswith("pal:part=33;own=new,slow;set=new pal:")
    assert any(line.endswith("; partition new of new,slow") for line in seen.logs), seen.logs
