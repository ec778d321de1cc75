# SPDX-License-Identifier: MIT
"""Near data: nodes that have a job's input, among placements that are alike, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from slurm_pal.base.jobs import GpuShape
from slurm_pal.decide.case import Decision, Settings
from slurm_pal.decide.decide import decide
from slurm_pal.decide.near import Input, Near, near
from slurm_pal.decide.request import Request
from slurm_pal.slurm.client import Overview

from ...doubles.partition_site import NOW_S, node, part, scores

GIB = 1 << 30
SET = Input("/data/set", 100 * GIB, frozenset({"n2"}), 1.0)


def site(*names: str, used: tuple[str, ...] = ()) -> Overview:
    nodes = tuple(node(name, "m", 2, gpus_used=2 if name in used else 0) for name in names)
    return Overview(nodes, (), (part("p", *names)._replace(default=True),), {})


def decided(
    folder: Path, table: dict[str, list[float]], data: Near | None, sensitivity: str = "A", gpus: int = 1
) -> Decision:
    shape = GpuShape(gpus, 1, gpus)
    request = Request(
        shape=shape, nodes_min=1, nodes_max=1, tasks=1, partitions=("p",), time_limit_s=7200, asks_gpus=True
    )
    seen = scores(folder, table)
    return decide(request, site(*table), seen, sensitivity, Settings(), "daemon", NOW_S, data=data)


def test_what_a_node_lacks() -> None:
    other = Input("/data/other", 10 * GIB, frozenset({"n1", "n2"}), 2.0)
    found = near([SET, other])
    assert found is not None and found.whole == 110 * GIB
    assert [found.seconds((name,)) for name in ("n0", "n1", "n2")] == [105.0, 100.0, 0.0]
    assert found.seconds(("n1", "n2")) == 100.0 and found.moved(("n0", "n2")) == 110 * GIB
    assert near([]) is None and near([SET._replace(nodes=frozenset())]) is None
    assert near([SET._replace(size_bytes=0)]) is None


def test_of_equal_gpus_the_nearest_are_taken(tmp_path: Path) -> None:
    table = {f"n{k}": [1.0, 1.0] for k in range(4)}
    without, with_ = decided(tmp_path, table, None), decided(tmp_path, table, near([SET]))
    assert without.action == "none"
    assert with_.pinned == ("n2",) and "100 s sooner" in with_.reason and with_.stage_in_s == 0.0
    assert with_.lease_s == 100.0 and "for its input" in with_.lease_why  # no longer than it saves


def test_data_never_outweighs_a_variability_class(tmp_path: Path) -> None:
    table = {"n0": [1.0, 1.0], "n1": [1.0, 1.0], "n2": [1.3, 1.3]}
    found = decided(tmp_path, table, near([SET]))
    assert found.chosen is not None and found.chosen.nodes[0] in ("n0", "n1")


def test_an_insensitive_job_takes_no_fast_gpu_for_its_data(tmp_path: Path) -> None:
    table = {"n0": [1.04, 1.04], "n1": [1.04, 1.04], "n2": [0.95, 0.95]}
    found = decided(tmp_path, table, near([SET]), "C")
    assert found.chosen is not None and found.chosen.nodes[0] != "n2"
    near_slow = decided(tmp_path, table, near([SET._replace(nodes=frozenset({"n1"}))]), "C")
    assert near_slow.chosen is not None and near_slow.chosen.nodes == ("n1",)


@pytest.mark.parametrize("sensitivity", ["A", "C", "?"])
def test_without_a_table_every_placement_is_as_before(tmp_path: Path, sensitivity: str) -> None:
    draw = random.Random(7)
    for _ in range(100):
        table = {f"n{k}": [draw.choice((0.97, 1.0, 1.04, 1.2, 1.5)) for _ in range(2)] for k in range(6)}
        gpus = draw.choice((1, 2))
        plain = decided(tmp_path, table, None, sensitivity, gpus)
        nowhere = near([SET._replace(nodes=frozenset({"elsewhere"}))])
        assert decided(tmp_path, table, nowhere, sensitivity, gpus)[:7] == plain[:7]


def test_whatever_is_near_the_job_is_never_slower(tmp_path: Path) -> None:
    """By its variability class; within a class GPUs count as alike."""
    draw = random.Random(8)
    gained = 0
    for _ in range(200):
        table = {f"n{k}": [draw.choice((0.97, 1.0, 1.04, 1.2, 1.5)) for _ in range(2)] for k in range(6)}
        here = frozenset(draw.sample(sorted(table), 2))
        plain = decided(tmp_path, table, None)
        found = decided(tmp_path, table, near([SET._replace(nodes=here)]))
        assert plain.chosen is not None and found.chosen is not None
        classes = [[gpu.variability_class for gpu in one.gpus] for one in (found.chosen, plain.chosen)]
        assert max(classes[0]) <= max(classes[1])
        gained += found.chosen.nodes[0] in here and plain.chosen.nodes[0] not in here
    assert gained > 50
