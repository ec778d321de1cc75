# SPDX-License-Identifier: MIT
"""Jobs of several nodes on switches or blocks: never on more leaves than need be, there on the best GPUs."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path

import pytest

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.decide.case import Decision, Settings
from slurm_pal.decide.decide import NETWORK, decide
from slurm_pal.decide.network import leaves, permitted
from slurm_pal.decide.request import Request, read
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.parse import partition
from slurm_pal.slurm.topology import BLOCK, FLAT, TREE, Topology, of_conf, parse

from ...doubles.partition_site import NOW_S, node, part, scores

TREE_CONF = """SwitchName=l0 Nodes=n[0-3]
SwitchName=l1 Nodes=n[4-7]
# a comment
SwitchName=l2 Nodes=n[8-11]
SwitchName=mid0 Switches=l[0-1]
SwitchName=core Switches=mid0,l2
"""
NAMES = [f"n{k}" for k in range(12)]
NET = of_conf(TREE_CONF, NAMES)


def test_a_topology_conf() -> None:
    assert NET.kind == TREE and [(one.name, one.level, len(one.nodes)) for one in NET.switches] == [
        ("l0", 0, 4), ("l1", 0, 4), ("l2", 0, 4), ("mid0", 1, 8), ("core", 2, 12),
    ]  # fmt: skip
    blocks = of_conf("BlockName=b0 Nodes=n[0-5]\nBlockName=b1 Nodes=n[6-11]\nBlockSizes=6,12\n", NAMES)
    assert blocks.kind == BLOCK and len(blocks.leaves) == 2 and blocks.sizes == (6, 12)
    for bad in ("", "x", "SwitchName=a", "SwitchName=a Nodes=m1", "SwitchName=a Switches=b", "BlockName=b Nodes=n0\n"
                "SwitchName=a Nodes=n0", "SwitchName=a Nodes=n0\nSwitchName=a Nodes=n1",
                "BlockName=a Nodes=n0\nBlockSizes=x"):  # fmt: skip
        with pytest.raises(UsageError):
            of_conf(bad, NAMES)


def test_what_slurm_shows() -> None:
    leaf, core = "SwitchName=l0 Level=0 LinkSpeed=1 Nodes=n[0-1]", "SwitchName=c Level=1 Nodes=n[0-3] Switches=l0"
    tree = parse(f"{leaf}\n{core}\n")
    assert tree.kind == TREE and tree.switches[0] == ("l0", 0, ("n0", "n1")) and tree.switches[1].level == 1
    below, above = (
        "BlockName=b0 BlockIndex=0 Nodes=n[0-1] BlockSize=2",
        "AggregatedBlock=b[0-1] BlockIndex=2 Nodes=n[0-3] BlockSize=4",
    )
    block = parse(f"{below}\n{above}\n")
    assert block.kind == BLOCK and [one.level for one in block.switches] == [0, 1] and block.sizes == (2, 4)
    assert parse("scontrol: error: No topology information available\n") == Topology() and Topology().kind == FLAT
    assert leaves(NET, ["n0", "n1"]) == 1 and leaves(NET, ["n0", "n4", "n8"]) == 3 and leaves(NET, ["n0", "x"]) == 0


def site(used: dict[str, int], network: Topology = NET) -> Overview:
    nodes = tuple(node(name, "m", 2, gpus_used=used.get(name, 0)) for name in NAMES)
    return Overview(nodes, (), (part("p", *NAMES)._replace(default=True),), {}, network=network)


def decided(folder: Path, table: dict[str, list[float]], nodes: int, used: dict[str, int] | None = None,
            network: Topology = NET, **asked: object) -> Decision:  # fmt: skip
    shape = GpuShape(2 * nodes, nodes, 2)
    request = Request(shape=shape, nodes_min=nodes, nodes_max=nodes, tasks=nodes, partitions=("p",), time_limit_s=7200,
                      asks_gpus=True)._replace(**asked)  # type: ignore[arg-type]  # fmt: skip
    return decide(request, site(used or {}, network), scores(folder, table), "A", Settings(), "daemon", NOW_S)


def test_one_leaf_before_fast_gpus_elsewhere(tmp_path: Path) -> None:
    table = {name: [1.04 if k < 8 else 1.3] * 2 for k, name in enumerate(NAMES)}
    found = decided(tmp_path, table, 3, {"n0": 2, "n1": 2, "n5": 2, "n6": 2})
    assert found.chosen is not None and leaves(NET, found.chosen.nodes) == 1 and set(found.chosen.nodes) <= {*NAMES[8:]}
    flat = decided(tmp_path, table, 3, {"n0": 2, "n1": 2, "n5": 2, "n6": 2}, Topology())
    assert flat.chosen is not None and flat.chosen.slowdown < found.chosen.slowdown


def test_of_two_leaves_the_one_with_better_gpus(tmp_path: Path) -> None:
    table = {name: [1.3 if k < 4 else 0.97] * 2 for k, name in enumerate(NAMES)}
    found = decided(tmp_path, table, 4)
    assert found.chosen is not None and leaves(NET, found.chosen.nodes) == 1 and "n0" not in found.chosen.nodes


def test_a_user_may_want_few_switches(tmp_path: Path) -> None:
    table = {name: [1.0, 1.1] for name in NAMES}
    assert read({"gres": "gpu:2", "nodes": "2", "switches": "1@00:10:00"}, submitted=True).switches == 1
    assert read({"gres": "gpu:2", "nodes": "2", "switches": "1"}).leave  # of a job in the queue Slurm goes on to choose
    few = decided(tmp_path, table, 4, switches=1)
    many = decided(tmp_path, table, 5, switches=1)
    assert few.chosen is not None and many.action == "none" and "2 switches" in many.reason


def test_what_is_not_known_is_left_to_slurm(tmp_path: Path) -> None:
    table = {name: [1.0, 1.1] for name in NAMES}
    part_of = Topology(TREE, NET.switches[:2])  # n8 to n11 are on no switch
    assert decided(tmp_path, table, 9, network=part_of).reason == NETWORK
    disjoint = Topology(TREE, NET.switches[:3])
    assert decided(tmp_path, table, 5, network=disjoint).reason == NETWORK
    odd = decided(tmp_path, table, 5, shape=GpuShape(9, 5))
    assert odd.reason == NETWORK


def test_against_every_set_of_nodes(tmp_path: Path) -> None:
    """Never more leaves than the least, of those the lowest switch; then never a worse class than the best of these."""
    draw = random.Random(11)
    for _ in range(60):
        table = {name: [draw.choice((0.97, 1.02, 1.2, 1.5))] * 2 for name in NAMES}
        used = {name: 2 for name in NAMES if draw.random() < 0.35}
        free = [name for name in NAMES if name not in used]
        need = draw.randint(2, 5)
        found = decided(tmp_path, table, need, used)
        if len(free) < need:
            assert found.chosen is None
            continue
        ranks = {names: _rank(names, table) for names in combinations(free, need)}
        assert found.chosen is not None
        assert _rank(found.chosen.nodes, table) == min(ranks.values())


def _rank(names: tuple[str, ...], table: dict[str, list[float]]) -> tuple[int, int, float]:
    below = min(one.level for one in NET.switches if set(names) <= set(one.nodes))
    slowest = max(1.05 if table[name][0] <= 1.05 else 1.5 for name in names)  # classes of `scores`
    return leaves(NET, names), below, slowest


def blocks_of(sizes: str, release: tuple[int, int] = (26, 5)) -> Topology:
    """Four blocks of three nodes."""
    lines = [f"BlockName=b{k} Nodes=n[{3 * k}-{3 * k + 2}]" for k in range(4)]
    return of_conf("\n".join([*lines, f"BlockSizes={sizes}"]), NAMES)._replace(release=release)


@pytest.mark.parametrize(
    ("sizes", "nodes", "segment", "taken"),
    [  # as 24.11 and 26.05 answered for blocks of four nodes
        ("3", "0 1 2", 0, True), ("3", "0 1 3", 0, False), ("3", "0 1 2 3", 0, True), ("3", "0 1 9 10", 0, True),
        ("3", "0 3 6 9", 0, False), ("3,6", "0 1 3 4", 0, True), ("3,6", "0 1 6 7", 0, False),
        ("3,6", "0 3 6 9 10 11 1", 0, True), ("3,12", "0 1 9 10", 0, True), ("3", "0 1 3 4", 2, True),
        ("3,6", "0 1 6 7", 2, True), ("3", "0 1 2 3", 2, False), ("3", "0 3 6 9", 1, True), ("3", "0 1", 2, True),
    ],
)  # fmt: skip
def test_lists_that_blocks_permit(sizes: str, nodes: str, segment: int, taken: bool) -> None:
    assert permitted(blocks_of(sizes), [f"n{k}" for k in nodes.split()], segment) == taken
    assert not permitted(blocks_of(sizes), ["n0", "elsewhere"])


@pytest.mark.parametrize("sizes", ["3", "3,6", "3,12"])
@pytest.mark.parametrize("segment", [0, 1, 2])
def test_blocks_against_every_set_of_nodes(tmp_path: Path, sizes: str, segment: int) -> None:
    """Of what Slurm takes the fewest blocks, and there the lowest class; nothing where it takes nothing."""
    draw = random.Random(5)
    network = blocks_of(sizes)
    for _ in range(40):
        table = {name: [draw.choice((0.97, 1.02, 1.2, 1.5))] * 2 for name in NAMES}
        used = {name: 2 for name in NAMES if draw.random() < 0.35}
        need = draw.choice((2, 4)) if segment else draw.randint(2, 5)
        found = decided(tmp_path, table, need, used, network, segment=segment, submitted=True)
        free = [name for name in NAMES if name not in used]
        ranks = {
            names: (leaves(network, names), max(1.05 if table[name][0] <= 1.05 else 1.5 for name in names))
            for names in combinations(free, need)
            if permitted(network, names, segment)
        }
        if not ranks:
            assert found.action == "none" and not found.pinned
            continue
        assert found.chosen is not None
        assert ranks[found.chosen.nodes] == min(ranks.values())


def test_segments_are_steered_where_slurm_takes_lists_of_them(tmp_path: Path) -> None:
    table = {name: [1.0, 1.0] if name != "n0" else [1.4, 1.4] for name in NAMES}
    old, new = blocks_of("3", (24, 11)), blocks_of("3")
    assert read({"gres": "gpu:2", "nodes": "4", "segment": "2"}).leave  # of a job in the queue Slurm goes on to choose
    asked = read({"gres": "gpu:2", "nodes": "4", "segment": "2"}, submitted=True)
    assert asked.segment == 2 and not asked.leave
    for odd in ({"nodes": "4", "segment": "3"}, {"nodes": "2", "segment": "4"}, {"nodes": "2-4", "segment": "2"}):
        assert "--segment" in read({"gres": "gpu:2", **odd}, submitted=True).leave
    assert "24.11" in decided(tmp_path, table, 4, network=old, segment=2, submitted=True).reason
    found = decided(tmp_path, table, 4, network=new, segment=2, submitted=True)
    assert found.pinned and permitted(new, found.pinned, 2)
    assert decided(tmp_path, table, 2, network=old, segment=2, submitted=True).pinned  # one segment is a list like any
    assert "larger" in decided(tmp_path, table, 4, network=new, segment=4, submitted=True).reason
    assert "no blocks" in decided(tmp_path, table, 4, segment=2, submitted=True).reason


def test_waiting_jobs_on_blocks(tmp_path: Path) -> None:
    """24.11 does not show that a job has segments, and a list that they do not fit keeps it from starting."""
    table = {name: [1.0, 1.0] if name != "n0" else [1.4, 1.4] for name in NAMES}
    assert "--segment" in decided(tmp_path, table, 2, network=blocks_of("3", (24, 11))).reason
    assert decided(tmp_path, table, 2, network=blocks_of("3")).pinned
    assert decided(tmp_path, table, 1, network=blocks_of("3", (24, 11))).pinned


def test_a_range_and_own_nodes_on_blocks(tmp_path: Path) -> None:
    table = {name: [1.0, 1.1] for name in NAMES}
    ranged = decided(tmp_path, table, 2, network=blocks_of("3"), nodes_max=4, submitted=True)
    own = decided(tmp_path, table, 2, network=blocks_of("3"), req_nodes=("n0",), submitted=True)
    assert "range" in ranged.reason and "--nodelist" in own.reason


def test_blocks_that_are_not_shared(tmp_path: Path) -> None:
    table = {name: [0.97, 0.97] if name in ("n1", "n2") else [1.2, 1.2] for name in NAMES}
    request = read({"gres": "gpu:2", "nodes": "2", "exclusive": "topo"}, submitted=True)
    assert request.own_blocks and request.shape is not None and not request.shape.whole_nodes
    assert "--exclusive=topo" in read({"gres": "gpu:2", "nodes": "2", "exclusive": "topo"}).leave
    network = blocks_of("3")
    for nodes in (1, 2):
        shared = decided(tmp_path, table, nodes, {"n0": 1}, network, submitted=True)
        alone = decided(tmp_path, table, nodes, {"n0": 1}, network, submitted=True, own_blocks=True)
        assert shared.chosen is not None and set(shared.chosen.nodes) <= {"n1", "n2"}
        assert alone.chosen is not None and not set(alone.chosen.nodes) & {"n0", "n1", "n2"}
    everywhere = {name: 1 for name in NAMES[::3]}
    assert not decided(tmp_path, table, 1, everywhere, network, submitted=True, own_blocks=True).pinned
    assert "no blocks" in decided(tmp_path, table, 2, submitted=True, own_blocks=True).reason


def test_a_partition_with_its_own_network(tmp_path: Path) -> None:
    line = "PartitionName=p Default=YES State=UP Nodes=n[0-11] Topology=other Exclusive=TOPO"
    mine = partition(line)
    assert mine.topology == "other" and mine.own_blocks
    assert partition("PartitionName=p Nodes=n0 ExclusiveTopo=YES").own_blocks
    shape = GpuShape(4, 2, 2)
    request = Request(shape=shape, nodes_min=2, nodes_max=2, tasks=2, asks_gpus=True, submitted=True)
    seen = site({})._replace(partitions=(mine._replace(own_blocks=False),))
    known = scores(tmp_path, {name: [1.0, 1.1] for name in NAMES})
    found = decide(request, seen, known, "A", Settings(), "daemon", NOW_S)
    assert found.action == "none" and "of its own" in found.reason
