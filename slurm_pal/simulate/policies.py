# SPDX-License-Identifier: MIT
"""The policies that a replay can follow: adding one is one row (and one file, where it needs a new rule).

Those of the program are run by the room `twin`, over a virtual Slurm; the others are studies, which only the simulator
can follow.
"""

from __future__ import annotations

from typing import NamedTuple

from slurm_pal.base.config import Value
from slurm_pal.base.errors import UsageError
from slurm_pal.placement.occupancy import PLAIN
from slurm_pal.simulate import levers as tick_levers

TICK, PALSUB, SLURM, STUDY = "tick", "palsub", "slurm", "study"
"""What runs a policy: pal-rebalance and palsub; palsub or the submit filter alone; stock Slurm alone, in the twin;
only the simulator."""


class SimPolicy(NamedTuple):
    """How jobs are placed, who backfills first, and what moves."""

    placement: str  # a rule of placement.POLICIES, or "slurm" for what stock Slurm picks; "": the program's own
    summary: str
    waits: bool = False  # a sensitive job at the head of the queue waits for better GPUs as long as that can pay
    moves: str = "none"  # "paying": moves that gain more than they cost; "always": everybody by the rule, every tick
    order: str = "queue"  # who backfills first: the queue's order, or "response"
    alone: bool = False  # not a policy but what placement alone could reach: every job runs as fast as it would alone
    runs: str = STUDY  # TICK, PALSUB, SLURM or STUDY
    settings: dict[tuple[str, str], Value] = {}  # of pal.toml, beside the site's: levers of the tick

    @property
    def shown(self) -> str:
        """What it is, in a list."""
        return f"study: {self.summary}" if self.runs == STUDY else self.summary


POLICIES = {
    "slurm": SimPolicy(PLAIN, "select/cons_tres and EASY backfill, no passes and no latencies"),
    "packed": SimPolicy("packed", "the node with fewest GPUs left over; scores ignored"),
    "packed-ns": SimPolicy("packed", "packed, and every job packed again at every tick", moves="always"),
    "random": SimPolicy("random", "any GPUs"),
    "random-ns": SimPolicy("random", "any GPUs, drawn again at every tick", moves="always"),
    "pm-first": SimPolicy("pm-first", "best GPUs first, wherever they are (PAL, SC'24), at the start"),
    "pm-first-ns": SimPolicy("pm-first", "PM-First as published: every job placed again at every tick", moves="always"),
    "pal": SimPolicy("pal", "the published L x V walk, at the start (PAL, SC'24)"),
    "pal-ns": SimPolicy("pal", "PAL as published: every job placed again at every tick", moves="always"),
    "threshold": SimPolicy("threshold", "nearly the best attainable slowdown, then the fewest nodes"),
    "class-fit": SimPolicy("class-fit", "pack first, then class fit; outliers only when nothing else is free"),
    "class-fit-move": SimPolicy("class-fit", "class fit, and moves that pay", moves="paying"),
    "class-fit-wait": SimPolicy("class-fit", "class fit, and waiting where it pays", waits=True),
    "pal-fit": SimPolicy("class-fit", "class fit, waiting where it pays, moves that pay", waits=True, moves="paying"),
    "pal-fit-order": SimPolicy(
        "class-fit", "pal-fit, and backfill by response ratio", waits=True, moves="paying", order="response"
    ),
    "packed-order": SimPolicy("packed", "packed, and backfill by response ratio", order="response"),
    "packed-wait": SimPolicy("packed", "packed, and the same waiting: the effect of stepping aside alone", waits=True),
    "alone": SimPolicy("packed", "no policy: every job as fast as alone on the cluster", alone=True),
    "alone-order": SimPolicy("packed", "the same, with backfill by response ratio", order="response", alone=True),
    "slurm-twin": SimPolicy("", "stock Slurm, the twin's: backfill plans every job on named nodes", runs=SLURM),
    "palsub": SimPolicy("", "palsub at every submission, with its watcher; nothing moves", runs=PALSUB),
    "filter": SimPolicy("", "the submit filter at every submission, with its publisher; nothing moves", runs=PALSUB),
    "tick": SimPolicy("", "palsub, and pal-rebalance as pal.toml says", moves="paying", runs=TICK),
}


def named(name: str) -> SimPolicy:
    """The policy of a name: a row, or the tick with levers (tick+order). Raises UsageError."""
    if name in POLICIES:
        return POLICIES[name]
    if not tick_levers.has_levers(name):
        raise UsageError(f"policy {name!r} is not one of {', '.join(POLICIES)}")
    settings = tick_levers.switched(name)
    still = settings.get((tick_levers.SECTION, tick_levers.MOVES)) is False
    row = POLICIES[TICK]
    return row._replace(settings=settings, moves="none" if still else row.moves)


STUDIES = tuple(name for name, row in POLICIES.items() if row.runs == STUDY)
"""Those that only the simulator can follow."""

WAITING, ORDER = "waiting", "order"
LEVERS = {WAITING: tick_levers.WAIT, ORDER: tick_levers.ORDER}
"""What a policy does to the queue -> the setting of the tick. Each can be left out, which shows what the rest is
worth."""


def levers(policy: SimPolicy) -> frozenset[str]:
    """Which of them a study has."""
    return frozenset(name for name, has in ((WAITING, policy.waits), (ORDER, policy.order != "queue")) if has)


def without(policy: SimPolicy, left_out: frozenset[str]) -> SimPolicy:
    """The study without these levers."""
    return policy._replace(
        waits=policy.waits and WAITING not in left_out, order="queue" if ORDER in left_out else policy.order
    )
