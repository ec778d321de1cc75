# SPDX-License-Identifier: MIT
"""Who wants to avoid slow GPUs, with which bound: command line, script, environment."""

from __future__ import annotations

import pytest

from slurm_pal.decide.case import Decision
from slurm_pal.submit.argv import parse
from slurm_pal.submit.avoid_slow import asked
from slurm_pal.submit.choice import choice

SITE = 1.1


def wanted(words: str = "", script: str | None = None, variable: str | None = None) -> tuple[float, str] | None:
    """Bound and origin; None where nobody asks."""
    environment = {} if variable is None else {"SLURM_PAL_AVOID_SLOW": variable}
    lines = () if script is None else (("avoid-slow", script),)
    found = asked(choice(parse([*words.split(), "job.sh"])), environment, lines, SITE, [])
    if found is None:
        return None
    shown = found.shown(Decision("none", "left to Slurm: nothing is known"))
    return shown["bound"], shown["from"]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, None),
        ({"words": "--pal-avoid-slow"}, (SITE, "--pal-avoid-slow")),
        ({"words": "--pal-avoid-slow=1.3", "script": "1.5", "variable": "2"}, (1.3, "--pal-avoid-slow")),
        ({"words": "--pal-avoid-slow", "script": "0"}, (SITE, "--pal-avoid-slow")),
        ({"script": ""}, (SITE, "#PAL avoid-slow")),
        ({"script": "1.5", "variable": "2"}, (1.5, "#PAL avoid-slow")),
        ({"variable": "2"}, (2.0, "$SLURM_PAL_AVOID_SLOW")),
        ({"variable": "1"}, (SITE, "$SLURM_PAL_AVOID_SLOW")),
        ({"variable": ""}, None),
        ({"variable": "0"}, None),
        ({"script": "0", "variable": "1"}, None),
    ],
)
def test_the_first_that_says_something_counts(said: dict[str, str], found: tuple[float, str] | None) -> None:
    assert wanted(**said) == found


@pytest.mark.parametrize("said", ["0.9", "11", "nan", "1.1x", "-1"])
def test_a_wrong_bound_is_ignored_with_a_warning(said: str) -> None:
    warnings: list[str] = []
    assert asked(choice(parse(["job.sh"])), {"SLURM_PAL_AVOID_SLOW": said}, (), SITE, warnings) is None
    assert warnings == [
        f"$SLURM_PAL_AVOID_SLOW = {said!r} is not a slowdown between 1.0 and 10, such as 1.10, and is ignored"
    ]


def test_where_the_choice_is_left_to_slurm_one_warning_says_why() -> None:
    warnings: list[str] = []
    found = asked(choice(parse(["--pal-avoid-slow", "job.sh"])), {}, (), SITE, warnings)
    assert found is not None
    assert found.shown(Decision("none", "left to Slurm: no snapshot"))["refused"] == "no snapshot"
    assert warnings == ["--pal-avoid-slow: submitted as written, since no snapshot"]
