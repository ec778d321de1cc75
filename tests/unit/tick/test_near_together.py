# SPDX-License-Identifier: MIT
"""Moves of jobs of several nodes on a network: never further apart, and only to where Slurm would start them."""

from __future__ import annotations

from slurm_pal.moves.planning import MovePlan, PlannedMove
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.topology import Topology, of_conf
from slurm_pal.tick.deciding import near_together

from ...doubles.partition_site import node, running

NAMES = [f"n{k}" for k in range(6)]
LEAVES = "SwitchName=l0 Nodes=n[0-2]\nSwitchName=l1 Nodes=n[3-5]\nSwitchName=c Switches=l[0-1]\n"
BLOCKS = "BlockName=b0 Nodes=n[0-1]\nBlockName=b1 Nodes=n[2-3]\nBlockName=b2 Nodes=n[4-5]\nBlockSizes=2,4\n"


def kept(network: Topology, held: tuple[str, ...], target: tuple[str, ...]) -> bool:
    seen = Overview(tuple(node(name) for name in NAMES), (running(7, "p", {name: (0,) for name in held}),), (), {})
    move = PlannedMove(7, "u", 0, "", target, "", 1.2, 1.0, 60.0, 1.0, True, "")
    left = near_together(MovePlan((move,), ()), seen._replace(network=network))
    assert [one.job_id for one in left.passed] == ([] if left.moves else [7])
    return bool(left.moves)


def test_moves_on_switches() -> None:
    tree = of_conf(LEAVES, NAMES)
    assert kept(tree, ("n0", "n1"), ("n3", "n4")) and kept(tree, ("n0", "n3"), ("n1", "n4"))
    assert not kept(tree, ("n0", "n1"), ("n1", "n3"))


def test_moves_on_blocks() -> None:
    new = of_conf(BLOCKS, NAMES)._replace(release=(26, 5))
    assert kept(new, ("n0", "n1"), ("n2", "n3")) and kept(new, ("n0", "n1", "n2"), ("n1", "n2", "n3"))
    assert not kept(new, ("n0", "n1", "n2"), ("n2", "n4", "n5"))  # as many blocks, but not those below one group
    old = new._replace(release=(24, 11))  # a job with --segment looks like any other
    assert not kept(old, ("n0", "n1"), ("n2", "n3")) and kept(old, ("n0",), ("n2",))
