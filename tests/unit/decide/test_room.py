# SPDX-License-Identifier: MIT
"""Room for a job now, and whether a node must boot for it."""

from __future__ import annotations

import pytest

from slurm_pal.base.jobs import GpuShape
from slurm_pal.decide.request import Request
from slurm_pal.decide.room import awake, fits_now, must_boot
from slurm_pal.slurm.client import Overview

from ...doubles.partition_site import node, overview, part, running

ASLEEP = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
BOOTS = frozenset({"MIXED", "CLOUD", "POWERING_UP", "NOT_RESPONDING"})
ONE, ALL = (Request(partitions=("fast",), shape=GpuShape(count, nodes=1), asks_gpus=True) for count in (1, 2))
CPUS = Request(partitions=("fast",), tasks=2)


def site(*states: frozenset[str], shown: int = 9, busy: tuple[int, ...] = ()) -> Overview:
    nodes = [node(f"f{k}", "fast", states=one) for k, one in enumerate(states)]
    seen = overview(
        running(1, "fast", {"f0": busy}), nodes=nodes[:shown], parts=[part("fast", *(n.name for n in nodes))]
    )
    return seen


@pytest.mark.parametrize("request_", [ONE, ALL, CPUS])
@pytest.mark.parametrize("state", [ASLEEP, BOOTS])
def test_slurm_gives_it_nodes_that_have_to_boot(request_: Request, state: frozenset[str]) -> None:
    seen = site(state)
    assert must_boot(seen, request_, "fast") and not fits_now(seen, request_, "fast")
    assert fits_now(awake(seen), request_, "fast")
    up = site(frozenset({"IDLE"}), state)
    assert fits_now(up, request_, "fast") and not must_boot(up, request_, "fast")


def test_what_is_left_on_nodes_that_are_up_may_not_do() -> None:
    seen = site(frozenset({"MIXED"}), ASLEEP, busy=(0,))
    assert not must_boot(seen, ONE, "fast") and must_boot(seen, ALL, "fast")


def test_slurm_may_hide_nodes_that_are_powered_down() -> None:
    assert must_boot(site(frozenset({"MIXED"}), ASLEEP, shown=1, busy=(0, 1)), ONE, "fast")
    assert not must_boot(site(frozenset({"IDLE"}), ASLEEP, shown=1), ONE, "fast")


@pytest.mark.parametrize("more", ["DOWN", "DRAIN", "POWERING_DOWN"])
def test_nodes_that_are_out_do_not_boot(more: str) -> None:
    seen = site(ASLEEP | {more})
    assert not must_boot(seen, ONE, "fast") and not fits_now(awake(seen), ONE, "fast")


def test_of_a_request_that_nobody_can_judge_an_idle_node_decides() -> None:
    for strange in (CPUS._replace(constraint="a&b"), ONE._replace(leave="it is strange")):
        assert must_boot(site(frozenset({"MIXED"}), ASLEEP), strange, "fast")
        assert not must_boot(site(frozenset({"IDLE"}), ASLEEP), strange, "fast")
