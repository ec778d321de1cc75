# SPDX-License-Identifier: MIT
"""How far apart nodes are on the network."""

from __future__ import annotations

import pytest

from slurm_pal.slurm.topology import BLOCK, TREE, Switch, Topology, of_conf

NODES = tuple(f"n{k}" for k in range(8))
DEEP = """SwitchName=a Nodes=n[0-1]
SwitchName=b Nodes=n[2-3]
SwitchName=c Nodes=n[4-5]
SwitchName=row Switches=a,b
SwitchName=core Switches=row,c
"""


@pytest.mark.parametrize(
    ("nodes", "level"),
    [(["n0"], 0), ([], 0), (["n0", "n0"], 0), (["n0", "n1"], 1), (["n0", "n3"], 2), (["n1", "n2", "n4"], 3),
     (["n0", "n6"], None)],
)  # fmt: skip
def test_levels_of_a_tree(nodes: list[str], level: int | None) -> None:
    network = of_conf(DEEP, NODES)
    assert network.level(nodes) == level and network.span(nodes) == (4 if level is None else level)


def test_a_flat_network_and_blocks() -> None:
    assert Topology().level(["n0", "n9"]) == 1 and Topology().level(["n0"]) == 0
    blocks = (Switch("b0", 0, ("n0", "n1")), Switch("b1", 0, ("n2", "n3")), Switch("b0,b1", 1, NODES[:4]))
    assert Topology(BLOCK, blocks).level(["n0", "n1"]) == 1 and Topology(BLOCK, blocks).level(["n0", "n2"]) == 2
    assert Topology(TREE, blocks[:2]).level(["n0", "n2"]) is None
