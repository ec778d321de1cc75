# SPDX-License-Identifier: MIT
"""The arms of a trial: how the jobs are submitted, what runs beside them, what is believed of the GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.base.errors import UsageError

BASELINE = "sbatch"
MOVES, PLACEBO, ORDER, TICK = "tick+moves", "placebo", "tick+order", "tick"


class Arm(NamedTuple):
    """One row."""

    summary: str
    palsub: bool = False  # submits by palsub, else by sbatch
    filter: bool = False  # in a lab with the submit filter, and its publisher
    tick: bool = False  # beside pal-rebalance --daemon --act
    settings: Mapping[str, str] = {}  # of pal.toml, as SECTION.KEY
    shuffled: bool = False  # published scores are those of other GPUs
    policy: str = "tick"  # of the twin


_STILL = {"rebalance.moves": "false"}
_MOVING = {"rebalance.moves": "true"}

ARMS = {
    BASELINE: Arm("plain sbatch", policy="slurm-twin"),
    "palsub": Arm("every job by palsub", palsub=True, policy="palsub"),
    "filter": Arm("sbatch, with the submit filter", filter=True, policy="filter"),
    TICK: Arm(
        "palsub, and ticks that set node lists of pending jobs; nothing moves", palsub=True, tick=True,
        settings=_STILL,
    ),
    MOVES: Arm("the same, and moves", palsub=True, tick=True, settings=_MOVING),
    "fit": Arm(
        "tick without rebalance.avoid", palsub=True, tick=True, settings=_STILL | {"rebalance.avoid": "false"},
    ),
    "avoid": Arm(
        "tick+moves without rebalance.fit", palsub=True, tick=True, settings=_MOVING | {"rebalance.fit": "false"},
    ),
    ORDER: Arm(
        "tick, and the order of the queue: the shortest jobs first", palsub=True, tick=True,
        settings={**_STILL, "rebalance.order": "shortest"},
    ),
    PLACEBO: Arm(
        "tick+moves with shuffled scores", palsub=True, tick=True, settings=_MOVING, shuffled=True,
    ),
}  # fmt: skip
"""Name -> arm, in the order in which they are run."""

_SLURMS_OWN = {"rebalance.order": "none"}
"""In all other arms the queue has Slurm's order, whatever the site's pal.toml says."""


def parse_arms(text: str) -> tuple[str, ...]:
    """Names joined by commas, in the order of the table, with the baseline first.

    Raises UsageError for a name that is unknown or given twice.
    """
    names = [word.strip() for word in text.split(",") if word.strip()]
    for name in names:
        if name not in ARMS:
            raise UsageError(f"arm {name!r} is not one of {', '.join(ARMS)}")
        if names.count(name) > 1:
            raise UsageError(f"arm {name!r} is given twice")
    if not names:
        raise UsageError(f"--arms is empty: give some of {', '.join(ARMS)}")
    return tuple(name for name in ARMS if name in names or name == BASELINE)


def arm_settings(name: str) -> dict[str, str]:
    """What an arm sets in pal.toml, as SECTION.KEY."""
    return {**_SLURMS_OWN, **ARMS[name].settings}
