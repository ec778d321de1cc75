# SPDX-License-Identifier: MIT
"""The same jobs on a real slurmctld and on the virtual one: they start in the same order, on the same GPUs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient

from ..doubles.twin_pairs import Jobs, Live, Replayed, live, replayed

pytestmark = pytest.mark.real_slurm

JOBS = (
    ("--gpus-per-node=4 -N1 -t 1", 14),
    ("--gpus-per-node=3 -N1 -t 1", 16),
    ("--gpus-per-node=2 -N2 -t 1", 10),
    ("--gpus-per-node=1 -N1 -t 5", 30),
    ("--gpus-per-node=4 -N3 -t 1", 5),  # blocked, and planned on three nodes
    ("--gpus-per-node=2 -N1 -t 20", 6),  # too long for a planned node
    ("--gpus-per-node=1 -N1 -t 20 -w n1", 6),  # named, free, and too long for a planned node
    ("--gpus=3 -t 1", 5),
)


def same_starts(client: CliClient, jobs: Jobs) -> tuple[Live, Replayed]:
    """Run the jobs on both, and hold the one to the other."""
    empty = client.overview()
    seen = live(client, jobs)
    began_s, real = seen.began_s, seen.starts
    there = replayed(client, empty, jobs, began_s)
    twin = there.starts
    shown = {place: (real[place], twin.get(place)) for place in real}
    assert {place: start[1] for place, start in real.items()} == {place: start[1] for place, start in twin.items()}, (
        shown
    )
    by_start = sorted(real, key=lambda place: real[place][0])
    for first, second in pairwise(by_start):
        if real[second][0] > real[first][0] + 1:  # Slurm shows whole seconds
            assert twin[second][0] > twin[first][0], shown
    assert all(abs(real[place][0] - twin[place][0]) < 4.0 for place in real), shown
    return seen, there


def test_the_same_starts_in_the_same_order_on_the_same_gpus(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in lab.variables().items():
        monkeypatch.setenv(name, value)
    same_starts(CliClient(conf=lab.variables()["SLURM_CONF"]), JOBS)
