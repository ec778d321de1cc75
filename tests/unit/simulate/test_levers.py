# SPDX-License-Identifier: MIT
"""Levers of the tick by name."""

from __future__ import annotations

import pytest

from slurm_pal.base.config import Config
from slurm_pal.base.errors import UsageError
from slurm_pal.simulate import levers
from slurm_pal.simulate.levers import LEVERS, switched
from slurm_pal.simulate.policies import POLICIES, STUDY, TICK, named


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tick", {}),
        ("palsub", {}),
        ("tick-moves", {"moves": False}),
        ("tick+order", {"order": "shortest"}),
        ("tick+order=response-ratio", {"order": "response-ratio"}),
        ("tick+order=fair-moves", {"order": "fair", "moves": False}),
        ("tick-order", {"order": "none"}),
        ("tick+gather+wait-moves", {"gather": True, "wait": True, "moves": False}),
    ],
)
def test_a_name_switches_settings(name: str, values: dict[str, object]) -> None:
    assert switched(name) == {("rebalance", lever): value for lever, value in values.items()}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tick+", "after tick come levers: .* of retarget, fit, avoid, moves, gather, wait, order"),
        ("tick+magic", "after tick come levers"),
        ("tick-er+order", "after tick come levers"),
        ("tick+moves+magic", "'moves.magic' is not one of"),
        ("tick+moves-moves", "moves is given twice"),
        ("tick+order=random", r"\+order=random is not one of \+order=none, \+order=shortest"),
        ("tick-order=fair", "-order=fair is not one of"),
        ("tick+moves=2", r"\+moves=2 is not one of \+moves, -moves"),
    ],
)
def test_names_that_mean_nothing(name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        switched(name)


def test_every_lever_can_be_switched_on_and_off() -> None:
    for name in LEVERS:
        for word, wanted in ((f"tick+{name}", True), (f"tick-{name}", False)):
            config = levers.with_settings(Config(), named(word).settings, "test")
            assert levers.is_on(config, name) is wanted, word
            assert not levers.is_on(levers.without(config, [name]), name)


def test_each_lever_is_a_policy_with_a_row_in_the_list() -> None:
    rows = levers.names()
    assert {f"tick{sign}{name}" for name in LEVERS for sign in "+-"} <= set(rows)
    assert all(named(name).runs == TICK and named(name).settings for name in rows)
    assert named("tick-moves").moves == "none" and named("tick+moves").moves == POLICIES["tick"].moves


@pytest.mark.parametrize("name", ["tock", "palsub+moves", "tick+magic"])
def test_other_policies_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        named(name)
    assert named("pal-fit").runs == STUDY
