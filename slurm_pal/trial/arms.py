# SPDX-License-Identifier: MIT
"""The arms of a trial: how the jobs are submitted, what runs beside them, what is believed of the GPUs."""

from __future__ import annotations

from typing import NamedTuple

from slurm_pal.base.config import Value
from slurm_pal.base.errors import UsageError
from slurm_pal.simulate import levers
from slurm_pal.simulate.levers import GATHER, ORDER, WAIT

BASELINE, PLACEBO, TICK = "sbatch", "placebo", levers.TICK
MOVES = f"{TICK}+{levers.MOVES}"
APART = (levers.MOVES, GATHER, WAIT, ORDER)
"""Levers that only the arms have that name them: each is to be seen apart. The others are as pal.toml says."""


class Arm(NamedTuple):
    """One row."""

    summary: str
    palsub: bool = False  # submits by palsub, else by sbatch
    filter: bool = False  # in a lab with the submit filter, and its publisher
    tick: bool = False  # beside pal-rebalance --daemon --act
    levers: str = ""  # the name that switches them, as simulate.levers has it
    shuffled: bool = False  # published scores are those of other GPUs
    policy: str = TICK  # of the twin


_ROWS = {
    levers.MOVES: (MOVES, "the same, and moves"),
    GATHER: (f"{MOVES}+{GATHER}", f"{MOVES}, and spread jobs are brought together"),
    WAIT: (f"{TICK}+{WAIT}", "tick, and jobs at the head wait for better GPUs"),
    ORDER: (f"{TICK}+{ORDER}", "tick, and the order of the queue"),
}
"""Lever that is seen apart -> which levers its arm has, and what it is."""
ARMS = {
    BASELINE: Arm("plain sbatch", policy="slurm-twin"),
    "palsub": Arm("every job by palsub", palsub=True, policy="palsub"),
    "filter": Arm("sbatch, with the submit filter", filter=True, policy="filter"),
    TICK: Arm("palsub, and ticks that set node lists of pending jobs; nothing moves", palsub=True, tick=True),
    **{f"{TICK}+{one}": Arm(what, palsub=True, tick=True, levers=name) for one, (name, what) in _ROWS.items()},
    PLACEBO: Arm("tick+moves with shuffled scores", palsub=True, tick=True, levers=MOVES, shuffled=True),
}
"""Name -> arm, in the order in which they are run."""


def arm_of(name: str) -> Arm:
    """A row, or the tick with other levers (tick+gather+wait). Raises UsageError."""
    found = ARMS.get(name)
    if found is None and not levers.has_levers(name):
        raise UsageError(f"arm {name!r} is not one of {', '.join(ARMS)}, tick+LEVER..., tick-LEVER...")
    try:
        levers.switched(name if found is None else found.levers)
    except UsageError as error:
        raise UsageError(f"arm {error}") from None
    return found or Arm(f"tick with {name[len(TICK) :]}", palsub=True, tick=True, levers=name)


def parse_arms(text: str) -> tuple[str, ...]:
    """Names joined by commas, in the order of the table, the others after them, with the baseline first.

    Raises UsageError for a name that is unknown or given twice.
    """
    names = [word.strip() for word in text.split(",") if word.strip()]
    for name in names:
        arm_of(name)
        if names.count(name) > 1:
            raise UsageError(f"arm {name!r} is given twice")
    if not names:
        raise UsageError(f"--arms is empty: give some of {', '.join(ARMS)}")
    table = [name for name in ARMS if name in names or name == BASELINE]
    return (*table, *(name for name in names if name not in ARMS))


def arm_settings(name: str) -> dict[str, str]:
    """What an arm sets in pal.toml, as SECTION.KEY: the levers that are seen apart, and those of its name."""
    arm = arm_of(name)
    if not arm.tick:
        return {}
    found: levers.Switched = {(levers.SECTION, one): levers.off(one) for one in APART}
    found |= levers.switched(arm.levers)
    return {f"{section}.{key}": _text(value) for (section, key), value in found.items()}


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
