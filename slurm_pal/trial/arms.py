# SPDX-License-Identifier: MIT
"""The arms of a trial: how the jobs are submitted, what runs beside them, what is believed of the GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.config import KEYS
from slurm_pal.base.errors import UsageError

BASELINE = "sbatch"
MOVES, PLACEBO, ORDER, TICK, WAIT = "tick+moves", "placebo", "tick+order", "tick", "tick+wait"


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
    WAIT: Arm(
        "tick, and the first job of a queue waits behind a fence", palsub=True, tick=True,
        settings={**_STILL, "rebalance.wait": "true"},
    ),
    ORDER: Arm("tick, and the order of the queue", palsub=True, tick=True, settings=_STILL),
    PLACEBO: Arm(
        "tick+moves with shuffled scores", palsub=True, tick=True, settings=_MOVING, shuffled=True,
    ),
}  # fmt: skip
"""Name -> arm, in the order in which they are run."""

DEFAULT = (BASELINE, "palsub", "filter", TICK, MOVES, PLACEBO)
ORDER_KEY = ("rebalance", "order")
_ORDERS = ("response-ratio", "shortest")


def parse_arms(text: str, keys: Mapping[str, Mapping[str, object]] = KEYS) -> tuple[str, ...]:
    """Names joined by commas, in the order of the table, with the baseline first.

    `keys` are the settings that this program has. Raises UsageError for a name that is unknown or given twice, and
    for an arm whose lever this program does not have.
    """
    names = [word.strip() for word in text.split(",") if word.strip()]
    for name in names:
        if name not in ARMS:
            raise UsageError(f"arm {name!r} is not one of {', '.join(ARMS)}")
        if names.count(name) > 1:
            raise UsageError(f"arm {name!r} is given twice")
    if not names:
        raise UsageError(f"--arms is empty: give some of {', '.join(ARMS)}")
    if ORDER in names and not has_order(keys):
        raise UsageError(f"arm {ORDER!r} needs the setting {'.'.join(ORDER_KEY)}, which this release does not have")
    return tuple(name for name in ARMS if name in names or name == BASELINE)


def has_order(keys: Mapping[str, Mapping[str, object]] = KEYS) -> bool:
    """Whether this program can order the queue."""
    section, name = ORDER_KEY
    return name in keys.get(section, {})


def arm_settings(name: str, keys: Mapping[str, Mapping[str, object]] = KEYS) -> dict[str, str]:
    """What an arm sets in pal.toml, as SECTION.KEY."""
    found = dict(ARMS[name].settings)
    if has_order(keys):
        section, key = ORDER_KEY
        choices: Sequence[str] = getattr(keys[section][key], "choices", ()) or _ORDERS
        found[f"{section}.{key}"] = next(w for w in _ORDERS if w in choices) if name == ORDER else "none"
    return found
