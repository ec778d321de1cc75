# SPDX-License-Identifier: MIT
"""Standing answers: what the filter looks up is the placement rule's choice, also after GPUs were given away."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.config import Config
from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import GpuShape, SlurmJob
from slurm_pal.decide.case import Settings
from slurm_pal.decide.decide import decide, in_order
from slurm_pal.decide.offers import build_view
from slurm_pal.decide.request import Request
from slurm_pal.placement.plain import plain_pick
from slurm_pal.placement.view import Rule
from slurm_pal.publisher import ranked
from slurm_pal.publisher.standing import (
    NOT_RANKED,
    UNMEASURED,
    WHOLE,
    Richest,
    Size,
    Spare,
    Standing,
    standing,
    tabulated,
)
from slurm_pal.publisher.table import records
from slurm_pal.slurm.client import Overview
from slurm_pal.store import snapshot
from slurm_pal.store.snapshot import GpuScore, Snapshot

from ...doubles.faulty_gpus import broken

BARRED = 1.05
LOCALITY = 1.7


def job(number: int, node: str, gpus: tuple[int, ...]) -> SlurmJob:
    return SlurmJob(
        number, "RUNNING", "None", "u", "j", "gpu", {node: gpus}, (node,), (), (), 1.0, 1.0, 0.0, None, 0, "", len(gpus)
    )


def node(
    name: str, types: tuple[str, ...], used: int = 0, state: str = "IDLE", features: frozenset[str] = frozenset()
) -> Node:
    return Node(name, frozenset(state.split("+")), types, used, 16, used, 64000, 500 * used, features, ("gpu",))


def cluster(*nodes: Node, partitions: Mapping[str, tuple[str, ...]] | None = None) -> Overview:
    """An overview whose used GPUs are the first of each node."""
    jobs = [job(number, n.name, tuple(range(n.gpus_used))) for number, n in enumerate(nodes, 1) if n.gpus_used]
    inside = partitions or {"gpu": tuple(n.name for n in nodes)}
    parts = [Partition(name, name == "gpu", True, names) for name, names in inside.items()]
    return Overview(nodes, tuple(jobs), tuple(parts), {})


def scores(
    slowdown: Mapping[tuple[str, int], float],
    centroids: Mapping[str, list[float]] | None = None,
    models: Mapping[str, str] | None = None,
) -> Snapshot:
    """A snapshot with the same slowdown for A and B; C suffers a tenth. `models`: node -> model, if not all alike."""
    kinds = models or {}
    gpus = [
        GpuScore(name, k, f"{name}-{k}", kinds.get(name, "m"), {"A": x, "B": x, "C": 1 + (x - 1) / 10},
                 {"A": "v0"}, 1.0, 1.0, ())
        for (name, k), x in slowdown.items()
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot")
        snapshot.publish(path, gpus, cluster="c", epoch=1, now_s=1.0, centroids=dict(centroids or {}))
        return snapshot.read(path)


def answer(overview: Overview, scored: Snapshot, policy: str = "class-fit", soft: bool = False) -> Standing:
    return standing(overview, scored, Settings(policy, LOCALITY, BARRED), soft)


def lookup(found: Standing, pool: int, c: str, count: str, gone: Mapping[str, int]) -> str | None:
    """What the filter does: the first entry that tells the truth about its node, preference by preference."""
    for preference in range(1, 17):
        for place_, j in found.lists.get((pool, c, preference, count), ()):
            if gone.get(found.nodes[place_].name, 0) == j:
                return found.nodes[place_].name
    return None


def after(overview: Overview, gpu_type: str, gone: Mapping[str, int]) -> Overview:
    """The cluster once other jobs have been given the next GPUs of these nodes."""
    nodes, jobs = list(overview.nodes), list(overview.jobs)
    for i, n in enumerate(nodes):
        held = {k for other in overview.jobs for k in other.gpus.get(n.name, ())}
        free = [k for k, kind in enumerate(n.gpu_types) if k not in held and gpu_type in ("", kind)]
        given_ = tuple(free[: gone.get(n.name, 0)])
        if given_:
            jobs.append(job(1000 + i, n.name, given_))
            nodes[i] = n._replace(gpus_used=n.gpus_used + len(given_), cpus_used=n.cpus_used + 1)
    return overview._replace(nodes=tuple(nodes), jobs=tuple(jobs))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Overview, Snapshot]:
    """Half of them with GPUs of one type only: of several no order is published."""
    kinds = draw(st.sampled_from([["v100"], ["v100", "a100"]]))
    nodes: list[Node] = []
    slowdown: dict[tuple[str, int], float] = {}
    jobs: list[SlurmJob] = []
    for i in range(draw(st.integers(1, 6))):
        types = tuple(sorted(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))))
        used = tuple(sorted(draw(st.sets(st.integers(0, len(types) - 1)))))
        state = draw(st.sampled_from(["IDLE", "IDLE", "MIXED", "MIXED", "DRAIN", "IDLE+PLANNED", "MIXED+RESERVED"]))
        weight = draw(st.sampled_from([1, 1, 1, 10, 1000]))  # the site's order
        nodes.append(node(f"n{i}", types, len(used), state)._replace(weight=weight))
        if used:
            jobs.append(job(i + 1, f"n{i}", used))
        for k in range(len(types)):
            value = draw(st.sampled_from([0.9, 0.95, 1.0, 1.05, 1.2, 1.5, None]))
            if value is not None:
                slowdown[f"n{i}", k] = value
    names = tuple(n.name for n in nodes)
    some = tuple(draw(st.sets(st.sampled_from(names))))
    made = cluster(*nodes, partitions={"gpu": names, "some": some})._replace(jobs=tuple(jobs))
    faults = draw(st.sets(st.sampled_from(sorted(slowdown)), max_size=3)) if slowdown else ()
    return made, broken(scores(slowdown), dict.fromkeys(faults, "no_answer"))


def several_types(overview: Overview, names: tuple[str, ...], gpu_type: str) -> bool:
    """Whether a job of this type ("": any) may get GPUs of several."""
    seen = [n for n in overview.nodes if n.name in names and "RESERVED" not in n.states]
    return len({kind for n in seen for kind in n.gpu_types if gpu_type in ("", kind)}) > 1


@given(
    clusters(),
    st.data(),
    st.sampled_from(["gpu", "some"]),
    st.sampled_from(["", "v100", "a100"]),
    st.sampled_from(["A", "B", "C", UNMEASURED]),
    st.sampled_from(["class-fit", "packed"]),
)
def test_the_first_entry_is_the_rules_own_choice(
    seen: tuple[Overview, Snapshot], data: st.DataObject, partition: str, gpu_type: str, listed_as: str, policy: str
) -> None:
    c = listed_as.upper()
    overview, scored = seen
    found = answer(overview, scored, policy)
    names = next(p.nodes for p in overview.partitions if p.name == partition)
    in_types = {kind for n in overview.nodes if n.name in names for kind in n.gpu_types}
    assert ((partition, gpu_type) in found.pools) == bool(in_types if not gpu_type else gpu_type in in_types)
    if (partition, gpu_type) not in found.pools:
        return
    pool = found.pools[partition, gpu_type]
    assert (pool == NOT_RANKED) == several_types(overview, names, gpu_type)
    if pool == NOT_RANKED:
        return
    listed = sorted({i for key, entries in found.lists.items() if key[0] == pool for i, _ in entries})
    offered = [found.nodes[i] for i in listed]
    gone = {n.name: data.draw(st.integers(0, len(n.slowdown["A"]))) for n in offered}
    later = after(overview, gpu_type, gone)
    barred_states = ("DRAIN", "PLANNED", "RESERVED")
    open_nodes = [n.name for n in later.nodes if n.name in names and not n.states.intersection(barred_states)]
    rule = Rule(c, LOCALITY, BARRED, measured=listed_as != UNMEASURED)
    for count in (*"1234", WHOLE):
        whole = count == WHOLE
        number = 1 if whole else int(count)
        shape = GpuShape(number, nodes=1, per_node=number, gpu_type=gpu_type, whole_nodes=whole)
        view = build_view(later, scored, shape, c, open_nodes)
        chosen = in_order(policy, view, shape, rule)
        expected = None if chosen is None else view.names[chosen.nodes[0]]
        assert lookup(found, pool, listed_as, count, gone) == expected
        before = build_view(overview, scored, shape, c, open_nodes)
        plain = plain_pick(before, shape, rule)
        there = found.plain.get((pool, c, count))
        assert (None if there is None else there[:2]) == (
            None if plain is None else (plain.slowdown, before.names[plain.nodes[0]])
        )


def better(found: Standing, pool: int, c: str, count: int) -> list[str]:
    """The nodes to wait for with a job of so many GPUs."""
    slow = found.slow.get((pool, c, str(count)), ())
    return [spare.name for spare in found.spares.get((pool, c), ()) if spare.fast >= count and spare.name not in slow]


@given(clusters(), st.integers(1, 4), st.sampled_from("AB"))
def test_the_filter_finds_what_palsub_decides(seen: tuple[Overview, Snapshot], count: int, c: str) -> None:
    overview, scored = seen
    found = answer(overview, scored)
    pool = found.pools["gpu", ""]
    shape = GpuShape(count, nodes=1, per_node=count)
    request = Request(shape=shape, nodes_max=1, asks_gpus=True, partitions=("gpu",))
    decided = decide(request, overview, scored, c, Settings(), "daemon", 1.0)
    assert (pool == NOT_RANKED) == ("scores do not compare" in decided.reason)
    if decided.action == "nodelist":
        assert decided.pinned == (lookup(found, pool, c, str(count), {}),)
    alike = len({node.weight for node in overview.nodes}) == 1  # else the filter keeps a job off no node
    if decided.action == "exclude" and alike:
        assert found.slow[pool, c, str(count)] == decided.excluded and better(found, pool, c, count)
    if "no better ones will become free" in decided.reason and alike:
        assert not better(found, pool, c, count)


def test_what_stands_of_a_node() -> None:
    overview = cluster(node("n0", ("",) * 4, 1, "MIXED", frozenset({"ib", "bad name", "pal_A_v0"})))
    found = answer(overview, scores({("n0", 1): 0.9, ("n0", 3): 1.1}))
    (only,) = found.nodes
    assert (only.name, only.cpus, only.memory_mib, only.gpus) == ("n0", 15, 63500, 4)
    assert only.features == ("ib", "pal_A_v0") and only.slowdown["A"] == pytest.approx((0.9, 1.0, 1.1))
    assert found.pools == {("gpu", ""): 1}
    # What is left once it has given one fits tighter; then nothing but the outlier is left.
    assert found.lists[1, "A", 1, "1"] == [(0, 1), (0, 0), (0, 2)] and (1, "A", 1, WHOLE) not in found.lists


def test_pools_of_the_same_gpus_are_one() -> None:
    nodes = [node("n0", ("v100",) * 2), node("n1", ("v100",) * 2), node("n2", ("a100",) * 2)]
    inside = {"gpu": ("n0", "n1"), "long": ("n1", "n0"), "all": ("n0", "n1", "n2"), "cpu": ("c0",)}
    found = answer(cluster(*nodes, partitions=inside), scores({}))
    same = {found.pools[name] for name in (("gpu", ""), ("gpu", "v100"), ("long", ""), ("long", "v100"))}
    assert len(same) == 1
    assert sorted(found.pools) == [
        ("all", ""), ("all", "a100"), ("all", "v100"), ("gpu", ""), ("gpu", "v100"), ("long", ""), ("long", "v100"),
    ]  # fmt: skip
    assert found.pools["all", ""] == NOT_RANKED
    assert len(set(found.pools.values())) == 4 and len(found.nodes) == 3
    seen = cluster(*nodes, partitions=inside)  # jobs that share no block: only palsub looks at blocks
    apart = [part._replace(own_blocks=part.name == "gpu") for part in seen.partitions]
    pools = answer(seen._replace(partitions=tuple(apart)), scores({})).pools
    assert pools["gpu", ""] == pools["gpu", "v100"] == NOT_RANKED != pools["long", ""]


def test_gpus_of_several_models_have_no_order() -> None:
    """The better V100 is still the slower GPU; so no list, no plain choice and no exclusion compares them."""
    nodes = [node("n0", ("v100",) * 2), node("n1", ("h100",) * 2), node("n2", ("",) * 2), node("n3", ("",) * 2)]
    inside = {"typed": ("n0", "n1"), "plain": ("n2", "n3"), "one": ("n2",)}
    slow = {(n.name, k): 0.9 if n.name in ("n0", "n2") else 1.2 for n in nodes for k in range(2)}
    models = {"n0": "V100", "n1": "H100", "n2": "V100", "n3": "H100"}
    found = answer(cluster(*nodes, partitions=inside), scores(slow, models=models))
    assert found.pools["typed", ""] == found.pools["plain", ""] == NOT_RANKED
    ranked_pools = {found.pools[name] for name in (("typed", "v100"), ("typed", "h100"), ("one", ""))}
    assert len(ranked_pools) == 3 and NOT_RANKED not in ranked_pools
    assert {key[0] for table in (found.lists, found.plain) for key in table} == ranked_pools
    assert {key[0] for key in found.slow} == {found.pools["typed", "h100"]}
    assert records(found, Config(), 1)["pool.plain.-"] == "0"
    away = [n._replace(states=frozenset({"RESERVED"})) if n.name == "n3" else n for n in nodes]
    assert answer(cluster(*away, partitions=inside), scores(slow, models=models)).pools["plain", ""] != NOT_RANKED
    assert answer(cluster(*nodes, partitions=inside), scores({})).pools["plain", ""] != NOT_RANKED  # nobody measured


def test_no_exclusion_where_slurm_would_boot_a_node() -> None:
    nodes = [node("n0", ("",)), node("n1", ("",), 1, "MIXED"), node("n2", ("",), state="IDLE+CLOUD+POWERED_DOWN")]
    slow = scores({("n0", 0): 1.4, ("n1", 0): 1.0, ("n2", 0): 1.0})
    assert answer(cluster(*nodes[:2]), slow).slow
    assert not answer(cluster(*nodes), slow).slow
    hidden = cluster(*nodes[:2], partitions={"gpu": ("n0", "n1", "n2")})  # without PrivateData=cloud
    assert not answer(hidden, slow).slow


def test_a_partition_that_is_down_or_full_gets_no_node() -> None:
    overview = cluster(node("n0", ("",) * 2, 2, "ALLOCATED"))
    full = answer(overview, scores({}))
    assert full.pools == {("gpu", ""): 1} and not full.lists and not full.nodes
    (part,) = overview.partitions
    assert answer(overview._replace(partitions=(part._replace(up=False),)), scores({})).pools == {}


def test_slow_nodes_and_the_better_ones_that_are_busy() -> None:
    overview = cluster(node("n0", ("",) * 2), node("n1", ("",) * 2, 2, "ALLOCATED"), node("n2", ("",) * 2, 2, "DOWN"))
    slow = {(name, k): 1.3 if name == "n0" else 1.0 for name in ("n0", "n1", "n2") for k in range(2)}
    found = answer(overview, scores(slow))
    keys = [(1, c, count) for c in "AB" for count in ("1", "2", WHOLE)]
    assert found.slow == dict.fromkeys(keys, ("n0",))
    assert found.spares == dict.fromkeys([(1, "A"), (1, "B")], (Spare("n1", 2, 0),))
    assert found.sizes == (Size(16, 64000, 2, 1, ()),) and found.richest == {1: Richest(16, 64000, 8, 32000)}
    there, in_class_c = found.plain[1, "A", "1"], found.plain[1, "C", "1"]
    assert there.slowdown == pytest.approx(1.3) and in_class_c.slowdown == pytest.approx(1.03)
    assert (there.node, there.otherwise) == ("n0", 1.0)  # without n0 none is free: a median GPU, some day


def test_of_many_spares_some_of_each_size_are_listed() -> None:
    """First those that have nothing free."""
    many = [node(f"n{i}", ("",) * 2, 2 if i % 2 else 0, "ALLOCATED" if i % 2 else "IDLE") for i in range(300)]
    odd = node("odd", ("",) * 4, 4, "ALLOCATED", frozenset({"ib"}))
    slow = {("slow", k): 1.3 for k in range(2)}
    found = answer(cluster(*many, odd, node("slow", ("",) * 2)), scores(slow))
    spares = found.spares[1, "A"]
    assert len(spares) == 128 and Spare("odd", 4, 1) in spares
    assert {int(spare.name[1:]) % 2 for spare in spares if spare.name != "odd"} == {1}
    assert found.richest[1] == Richest(16, 64000, 8, 32000)


def test_a_long_exclusion_is_left_out() -> None:
    overview = cluster(*(node(f"n{i}", ("",)) for i in range(201)))
    slow = scores({(f"n{i}", 0): 1.3 for i in range(201)})
    assert not answer(overview, slow).slow
    fewer = cluster(*overview.nodes[:200])
    assert len(answer(fewer, slow).slow[1, "A", "1"]) == 200


def test_lists_are_cut_where_they_are_no_longer_complete() -> None:
    overview = cluster(*(node(f"n{i}", ("",) * 2) for i in range(100)))
    scored = scores({(f"n{i}", k): 0.9 + i / 1000 for i in range(100) for k in range(2)})
    found = answer(overview, scored)
    for entries in found.lists.values():
        assert sum(j == 0 for _, j in entries) == ranked.DEPTH and entries[-1][1] == 0
    gone: dict[str, int] = {}
    for number in range(ranked.DEPTH):
        name = lookup(found, 1, "A", "2", gone)
        assert name == f"n{number}"
        gone[name] = 2
    assert lookup(found, 1, "A", "2", gone) is None


def test_beyond_the_nodes_listed_nothing_worse_is_offered() -> None:
    names = [f"n{i}" for i in range(100)]
    overview = cluster(*(node(name, ("",) * 2) for name in names))
    slow = {(name, 1): 1.5 if i >= ranked.DEPTH else 1.6 for i, name in enumerate(names)}
    found = answer(overview, scores(slow | {(name, 0): 0.9 for name in names}))
    assert lookup(found, 1, UNMEASURED, "2", {}) == "n64"  # so it may have given one away
    gone = dict.fromkeys(names[: ranked.DEPTH], 2) | {"n64": 1}
    assert lookup(found, 1, "A", "1", gone) is None  # n65 would be right; n64's slow GPU would not


def test_a_node_that_one_class_has_begun_is_known_to_the_others() -> None:
    overview = cluster(*(node(f"n{i}", ("",) * 2) for i in range(100)))
    scored = scores({(f"n{i}", k): 0.9 + i / 1000 for i in range(100) for k in range(2)})
    found = answer(overview, scored)
    begun = lookup(found, 1, "C", "1", {})  # the GPUs that sensitive jobs want least
    assert begun == "n99" and lookup(found, 1, "A", "1", {}) == "n0"
    assert lookup(found, 1, "A", "1", {begun: 1}) == begun  # packing comes first


def test_a_node_behind_its_outlier_is_clean() -> None:
    overview = cluster(node("n0", ("",) * 2), node("n1", ("",) * 2))
    found = answer(overview, scores({("n0", 0): 1.5, ("n0", 1): 0.9}))
    assert lookup(found, 1, "A", "1", {}) == "n1" and lookup(found, 1, "C", "1", {}) == "n0"
    assert lookup(found, 1, "A", "1", {"n0": 1}) == "n0"


def test_soft_features_only_where_slurm_takes_unknown_ones() -> None:
    features = frozenset({"pal_A_v0", "pal_A_v2", "pal_B_v0"})
    overview = cluster(node("n0", ("",), features=features))
    scored = scores({}, {"A": [0.9, 1.0, 1.3], "B": [1.2]})
    assert answer(overview, scored, soft=True).prefer == {"A": ("pal_A_v0",)}
    assert answer(overview, scored).prefer == {}


def test_names_that_the_filter_cannot_read_are_left_out_and_told() -> None:
    nodes = [node("n0", ("",)), node('n"1', ("",)), node("n2", ("v 1",)), node("n3", ("",))]
    overview = cluster(*nodes, partitions={"gpu": ("n0", 'n"1', "n2"), "a b": ("n3",)})
    found = answer(overview, scores({}))
    assert [n.name for n in found.nodes] == ["n0"] and list(found.pools) == [("gpu", "")]
    assert found.left_out == ("GPU type 'v 1' with its nodes", "node 'n\"1'", "partition 'a b'")


def test_a_rule_that_cannot_be_tabulated_has_a_stand_in() -> None:
    assert {tabulated(p) for p in ("pal", "pm-first", "threshold", "random", "class-fit")} == {"class-fit"}
    assert tabulated("packed") == "packed"
    with pytest.raises(UsageError, match="not one of"):
        answer(cluster(node("n0", ("",))), scores({}), "best")
