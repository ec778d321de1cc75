# SPDX-License-Identifier: MIT
"""One placement decision at 1,000 and 10,000 GPUs: `make bench`, figures in docs/benchmarks.md."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.jobs import GpuShape, SlurmJob
from slurm_pal.decide.case import Decision, Settings
from slurm_pal.decide.decide import decide
from slurm_pal.decide.offers import build_view
from slurm_pal.moves.worth import slots
from slurm_pal.placement import POLICIES, place
from slurm_pal.placement.occupancy import Occupancy
from slurm_pal.placement.view import Placement, Rule
from slurm_pal.slurm.client import Overview
from slurm_pal.store import snapshot
from slurm_pal.submit import argv, options

PER_NODE = 8


def cluster(n_gpus: int, path: Path) -> tuple[Overview, snapshot.Snapshot]:
    """Nodes of eight GPUs, half of the GPUs in use by 1- to 8-GPU jobs, all measured."""
    draw = random.Random(7)
    names = [f"gpu{i:04d}" for i in range(n_gpus // PER_NODE)]
    jobs = []
    for number, name in enumerate(names):
        held = tuple(sorted(draw.sample(range(PER_NODE), draw.randrange(PER_NODE + 1))))
        jobs.append(
            SlurmJob(number, "RUNNING", "None", "u", "j", "gpu", {name: held}, (name,), (), (), 0, 0, 0, None, 0, "", 1)
        )
    nodes = tuple(
        Node(
            name, frozenset({"MIXED"}), ("",) * PER_NODE, len(job.gpus[name]), 64, 8, 512_000, 0, frozenset(), ("gpu",)
        )
        for name, job in zip(names, jobs, strict=True)
    )
    scores = [
        snapshot.GpuScore(name, index, f"GPU-{name}-{index}", "m", {c: draw.gauss(1, 0.02) for c in "ABC"},
                          {c: f"v{draw.randrange(4)}" for c in "ABC"}, 1.0, 1.0, ())
        for name in names for index in range(PER_NODE)
    ]  # fmt: skip
    centroids = {c: [0.97, 1.0, 1.03, 1.3] for c in "ABC"}
    snapshot.publish(str(path / "s"), scores, cluster="bench", epoch=1, now_s=1.0, centroids=centroids)
    return Overview(nodes, tuple(jobs), (Partition("gpu", True, True, tuple(names)),), {}), snapshot.read(
        str(path / "s")
    )


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "random"])
@pytest.mark.parametrize("n_gpus", [1_000, 10_000])
def test_one_decision(benchmark: BenchmarkFixture, tmp_path: Path, n_gpus: int, policy: str) -> None:
    overview, known = cluster(n_gpus, tmp_path)
    shape, rule = GpuShape(total=4, nodes=1, per_node=4), Rule("A", 1.7, 1.2)
    allowed = [node.name for node in overview.nodes]

    def decide() -> Placement | None:
        return place(policy, build_view(overview, known, shape, "A", allowed), shape, rule)

    assert benchmark(decide) is not None


@pytest.mark.parametrize("n_gpus", [1_000, 10_000])
def test_a_whole_decision_of_palsub(benchmark: BenchmarkFixture, tmp_path: Path, n_gpus: int) -> None:
    """With alternatives, the prediction of plain Slurm and the lease, as `pal explain` shows them."""
    overview, known = cluster(n_gpus, tmp_path)
    asked = options.build(argv.parse(["--gres=gpu:4", "job.sh"], dict), {}, None)

    def decided() -> Decision:
        return decide(asked, overview, known, "A", Settings(), "watcher", 1.0)

    assert benchmark(decided).action == "nodelist"


def occupancy(n_gpus: int) -> Occupancy:
    """The same cluster as the tick and the simulator keep it: half of the GPUs in use."""
    draw = random.Random(7)
    nodes = range(n_gpus // PER_NODE)
    tables = {c: [[draw.gauss(1, 0.02) for _ in range(PER_NODE)] for _ in nodes] for c in "ABC"}
    levels = {c: [[round(x, 2) for x in row] for row in table] for c, table in tables.items()}
    made = Occupancy([f"gpu{node}" for node in nodes], tables, levels)
    for node in nodes:
        made.take([(node, tuple(sorted(draw.sample(range(PER_NODE), draw.randrange(PER_NODE + 1)))))])
    return made


@pytest.mark.parametrize("total", [1, 4, 64])
@pytest.mark.parametrize("n_gpus", [1_000, 10_000, 100_000])
def test_one_job_where_the_state_is_kept(benchmark: BenchmarkFixture, n_gpus: int, total: int) -> None:
    """A start and an end, as in the simulator; the first call, which ranks all nodes, is apart."""
    state, rule = occupancy(n_gpus), Rule("A", 1.7, 1.05)
    state.place("class-fit", GpuShape(total), rule)

    def start_and_end() -> Placement | None:
        placed = state.place("class-fit", GpuShape(total), rule)
        if placed is not None:
            held = slots(placed)
            state.take(held)
            state.give(held)
        return placed

    assert benchmark(start_and_end) is not None


@pytest.mark.parametrize("n_gpus", [10_000, 100_000])
def test_one_job_with_every_node_looked_at(benchmark: BenchmarkFixture, n_gpus: int) -> None:
    """What palsub does, its view at hand."""
    view = occupancy(n_gpus).view("A")
    assert benchmark(lambda: place("class-fit", view, GpuShape(4), Rule("A", 1.7, 1.05))) is not None
