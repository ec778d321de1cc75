# SPDX-License-Identifier: MIT
"""Which pairs of nodes are measured, as which jobs, and how a pair counts beside users' idle nodes."""

from __future__ import annotations

from pathlib import Path

from slurm_pal.base.cluster import Node
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.sweep.pair_plan import choose_pairs
from slurm_pal.profiling.sweep.plan import ChosenNode
from slurm_pal.profiling.sweep.spare import SpareNodes
from slurm_pal.profiling.sweep.sweep_job import JobOptions, members, script, submit_argv
from slurm_pal.slurm.topology import BLOCK, Topology, of_conf

NAMES = tuple(f"n{k}" for k in range(12))
CONF = """SwitchName=a Nodes=n[0-2]
SwitchName=b Nodes=n[3-5]
SwitchName=c Nodes=n[6-8]
SwitchName=row Switches=a,b
SwitchName=core Switches=row,c
"""
TREE = of_conf(CONF, NAMES)


def node(name: str, gpus: int = 4, kind: str = "", partitions: tuple[str, ...] = ("gpu",)) -> ChosenNode:
    return ChosenNode(name, gpus, 0.0, 1.0, "", partitions, (kind,) if kind else ())


ALL = [node(name) for name in NAMES]


def pairs(
    idle: list[ChosenNode], network: Topology = TREE, per_level: int = 8, have: dict[int, int] | None = None
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pair in choose_pairs(idle, network, per_level, have or {}, 5.0).chosen:
        found.setdefault(pair.why, []).append(pair.node)
    return found


def test_each_level_has_its_pairs_over_as_many_leaves_as_there_are() -> None:
    found = pairs(ALL, per_level=3)
    assert found["level 1"] == ["n0,n1", "n3,n4", "n6,n7"]
    assert found["level 2"] == ["n0,n3", "n1,n4", "n2,n5"]
    assert [{members(pair)[0] < "n6", members(pair)[1] >= "n6"} for pair in found["level 3"]] == [{True}] * 3
    for pair in (pair for names in pairs(ALL).values() for pair in names):
        assert "n9" not in pair and TREE.level(members(pair))
    many = pairs(ALL, per_level=64)
    assert {name: len(names) for name, names in many.items()} == {"level 1": 9, "level 2": 9, "level 3": 18}
    assert all(len(set(names)) == len(names) for names in many.values()), "no pair twice"


def test_levels_that_have_enough() -> None:
    assert set(pairs(ALL, per_level=3, have={1: 3, 2: 1})) == {"level 2", "level 3"}
    assert len(pairs(ALL, per_level=3, have={2: 1})["level 2"]) == 2
    done = choose_pairs(ALL, TREE, 3, {1: 3, 2: 4, 3: 3}, 5.0)
    assert done.chosen == () and done.skipped == {}


def test_a_flat_network_has_one_level() -> None:
    assert pairs([node("x"), node("y"), node("z")], Topology(), 2) == {"level 1": ["x,y", "x,z"]}
    assert pairs([node("x")], Topology()) == {} and pairs([], TREE) == {}


def test_only_nodes_of_a_kind_and_of_one_partition() -> None:
    assert pairs([node("n0", 4), node("n1", 8)]) == {} == pairs([node("n0", 1), node("n1", 1)])
    assert pairs([node("n0", kind="a100"), node("n1", kind="v100")]) == {}
    assert pairs([node("n0", partitions=("a",)), node("n1", partitions=("b",))]) == {}
    some = [node("n0", partitions=("a", "b")), node("n1", partitions=("b",))]
    (pair,) = choose_pairs(some, TREE, 8, {}, 5.0).chosen
    assert (pair.node, pair.gpus, pair.partitions, pair.seconds) == ("n0,n1", 8, ("b",), 5.0)
    assert "no two idle nodes" in choose_pairs(some, TREE, 8, {}, 5.0).skipped["level 2"]


def test_blocks_have_one_level_where_slurm_takes_no_segments() -> None:
    blocks = Topology(BLOCK, TREE.switches)
    found = choose_pairs(ALL, blocks, 1, {}, 5.0)
    assert {pair.why for pair in found.chosen} == {"level 1"} and "several blocks" in found.skipped["level 2"]
    newer = choose_pairs(ALL, blocks._replace(release=(26, 5)), 1, {}, 5.0)
    assert {pair.why for pair in newer.chosen} == {"level 1", "level 2", "level 3"} and not newer.skipped


def options(tmp_path: Path, backend: str) -> JobOptions:
    return JobOptions("s", "c", str(tmp_path), "/spool", "/py", Setting(backend, "/reg", 3, 0.5), srun="/usr/bin/srun")


def test_the_job_of_a_pair(tmp_path: Path) -> None:
    argv = submit_argv(options(tmp_path, "emu"), "n0,n3", 8, ("gpu",))
    assert argv[:5] == ["-N2", "-w", "n0,n3", "--exclusive", "--gres=gpu:4"] and "--nice=10000" in argv
    assert "--segment=1" not in argv
    assert "--segment=1" in submit_argv(options(tmp_path, "emu")._replace(segments=True), "n0,n3", 8)
    first, last = script(options(tmp_path, "emu"), "n0,n3", 8).splitlines()
    assert first == "#!/bin/sh" and last.startswith(
        "exec /usr/bin/srun --export=ALL --mpi=none --kill-on-bad-exit=1 -N2"
    )
    assert "--ntasks-per-node=1 /py -P -m slurm_pal.profiling.node.between" in last and "--gpus=4" in last
    assert "--nodes=n0,n3" in last and "--registry=/reg" in last and "--wall-scale=0.5" in last
    for backend in ("torch", "auto"):
        assert "--ntasks-per-node=4 " in script(options(tmp_path, backend), "n0,n3", 8)


def slurm_node(name: str) -> Node:
    return Node(name, frozenset({"IDLE"}), ("",) * 4, 0, 16, 0, 1, 0, frozenset(), ("gpu",))


def test_a_pair_leaves_spare_nodes() -> None:
    three, two = ([slurm_node(f"n{k}") for k in range(count)] for count in (3, 2))
    assert not SpareNodes(three, 1).bars_all(("n0", "n1")) and not SpareNodes(two, 1).bars_all(("n0",))
    assert SpareNodes(two, 1).bars_all(("n0", "n1")), "the second would take the spare one of the first"
    assert SpareNodes(three, 2).bars_all(("n0", "n1"))
    spare = SpareNodes(three, 1)
    assert not spare.bars_all(("n0", "n1")) and not spare.bars_all(("n1", "n2")), "asking takes nothing"
