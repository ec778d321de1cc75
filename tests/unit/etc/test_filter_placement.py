# SPDX-License-Identifier: MIT
"""The filter sends jobs where the placement rule would: Lua with a published table against the rule itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.cluster import Node
from slurm_pal.base.config import Config
from slurm_pal.base.jobs import GpuShape
from slurm_pal.decide.decide import in_order
from slurm_pal.decide.offers import build_view
from slurm_pal.decide.scene import rows
from slurm_pal.placement import place
from slurm_pal.placement.faulty import is_faulty
from slurm_pal.placement.view import Rule, alike
from slurm_pal.publisher.table import records
from slurm_pal.sensitivity.keys import name_key
from slurm_pal.slurm.client import Overview
from slurm_pal.store.lua_table import Header, encode
from slurm_pal.store.snapshot import Snapshot

from ...doubles.lua_filter import NO_VAL, NOW_S, install, job, run
from ...doubles.trials import trials
from ..publisher.test_standing import BARRED, LOCALITY, after, answer, clusters, several_types

CLOSED = ("DRAIN", "PLANNED", "RESERVED")
asked = st.one_of(
    st.tuples(st.sampled_from(["A", "B", "C", "measured C"]), st.integers(1, 3), st.integers(1, 4), st.just(False)),
    st.tuples(st.sampled_from(["A", "B", "C", "measured C"]), st.integers(1, 3), st.just(1), st.just(True)),
)
"""Sensitivity class, nodes, GPUs on each, exclusive: the table ranks whole nodes for one GPU only (docs/filter.md)."""


def opened(overview: Overview) -> list[Node]:
    """The nodes that take jobs."""
    return [n for n in overview.nodes if not n.states.intersection(CLOSED)]


def chosen(overview: Overview, scored: Snapshot, c: str, shape: GpuShape) -> tuple[list[str], float, float]:
    """What the rule takes now: node names and the predicted factor; the latter of the nodes of lowest weight alone.

    Where these are slow, palsub looks whether plain Slurm would go to nodes of a higher weight, too. The filter does
    not, and leaves the job to Slurm.
    """
    view = build_view(overview, scored, shape, c[-1], [n.name for n in opened(overview)])
    rule = Rule(c[-1], LOCALITY, BARRED, measured=c == "measured C")
    placed = in_order("class-fit", view, shape, rule)
    if placed is None:
        return [], 0.0, 0.0
    tiers = (rows(view, [row for row, w in enumerate(view.weight) if w <= most]) for most in sorted({*view.weight}))
    nearest = next((found for tier in tiers if (found := place("class-fit", tier, shape, rule))), placed)
    return [view.names[i] for i in placed.nodes], placed.slowdown, nearest.slowdown


@trials(150)
@given(clusters(), st.lists(asked, min_size=1, max_size=6))
def test_a_burst_is_placed_as_by_the_rule(
    tmp_path_factory: pytest.TempPathFactory,
    seen: tuple[Overview, Snapshot],
    burst: list[tuple[str, int, int, bool]],
) -> None:
    overview, scored = seen
    site: Path = install(tmp_path_factory.mktemp("site"))
    standing = answer(overview, scored)
    table = records(standing, Config(), 1) | {"label.7": f"{name_key('measured C')}=C:0.900"}
    (site / "pal_table.lua").write_bytes(encode(Header(1, NOW_S, 30.0, "daemon"), table))
    steps = [
        job(
            tres_per_node=f"gres:gpu:{gpus}", min_nodes=nodes, max_nodes=nodes, partition="gpu",
            script=f"#!/bin/sh\n#PAL class={c[-1]}\n", name=c, user_id=7, **({"shared": 0} if exclusive else {}),
        )
        for c, nodes, gpus, exclusive in burst
    ]  # fmt: skip
    parts = {"gpu": {"nodes": ",".join(n.name for n in overview.nodes), "flag_default": 1, "default_time": NO_VAL}}
    gone: dict[str, int] = {}
    for (c, nodes, gpus, exclusive), result in zip(burst, run(site, steps, partitions=parts)[1:], strict=True):
        if several_types(overview, tuple(n.name for n in overview.nodes), ""):
            assert (result.mark["act"], result.mark["why"]) == ("none", "models")
            continue
        shape = GpuShape(nodes * gpus, nodes, gpus, "", exclusive)
        names, slowdown, nearest = chosen(after(overview, "", gone), scored, c, shape)
        why = result.mark["why"]
        if not names:
            assert why == "busy"
        elif nearest > slowdown and why in ("slow-all", "faulty-all"):
            assert nearest > BARRED and result.mark["act"] == "none"
        elif is_faulty(slowdown):
            assert why in ("faulty", "faulty-all") and "slow" not in result.mark
        elif c[-1] != "C" and slowdown > BARRED and why not in ("best", "same", "alike"):
            assert why in ("slow", "slow-all", "slow-rare")
        else:
            assert why in ("best", "same", "alike")
            if why == "alike":  # of what was free when the table was written
                every = GpuShape(1, nodes=1, per_node=1)
                assert alike(build_view(overview, scored, every, c[-1], [n.name for n in opened(overview)]))
            plain = max((x.slowdown for key, x in standing.plain.items() if key[1] == c), default=1.0)
            assert c == "C" or slowdown <= BARRED or is_faulty(plain), "on slow GPUs only where Slurm might pick worse"
            assert float(result.mark["slow"]) == pytest.approx(slowdown * (LOCALITY if nodes > 1 else 1), abs=6e-4)
            if why == "best":
                assert sorted(result.values["set_req_nodes"].split(",")) == sorted(names)
            for name in names:
                total = next(n.n_gpus for n in overview.nodes if n.name == name)
                gone[name] = gone.get(name, 0) + (total if exclusive else gpus)
