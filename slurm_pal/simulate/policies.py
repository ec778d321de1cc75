# SPDX-License-Identifier: MIT
"""The policies that a replay can follow: adding one is one row (and one file, where it needs a new rule)."""

from __future__ import annotations

from typing import NamedTuple

from slurm_pal.placement.occupancy import PLAIN


class SimPolicy(NamedTuple):
    """How jobs are placed, who backfills first, and what moves."""

    placement: str  # a rule of placement.POLICIES, or "slurm" for what stock Slurm picks
    summary: str
    waits: bool = False  # a sensitive job at the head of the queue waits for better GPUs as long as that can pay
    moves: str = "none"  # "paying": moves that gain more than they cost; "always": everybody by the rule, every tick
    order: str = "queue"  # who backfills first: the queue's order, or "response"
    alone: bool = False  # not a policy but what placement alone could reach: every job runs as fast as it would alone


POLICIES = {
    "slurm": SimPolicy(PLAIN, "stock Slurm: select/cons_tres and EASY backfill"),
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
    "pal-fit": SimPolicy(
        "class-fit", "ours: class fit, waiting where it pays, moves that pay", waits=True, moves="paying"
    ),
    "pal-fit-order": SimPolicy(
        "class-fit", "ours, and backfill by response ratio", waits=True, moves="paying", order="response"
    ),
    "packed-order": SimPolicy("packed", "packed, and backfill by response ratio", order="response"),
    "packed-wait": SimPolicy("packed", "packed, and the same waiting: the effect of stepping aside alone", waits=True),
    "alone": SimPolicy("packed", "no policy: every job as fast as alone on the cluster", alone=True),
    "alone-order": SimPolicy("packed", "the same, with backfill by response ratio", order="response", alone=True),
}


WAITING, ORDER = "waiting", "order"
LEVERS = (WAITING, ORDER)
"""What a policy does to the queue: each can be left out, which shows what the rest is worth."""


def levers(policy: SimPolicy) -> frozenset[str]:
    """Which of them a policy has."""
    return frozenset(name for name, has in ((WAITING, policy.waits), (ORDER, policy.order != "queue")) if has)


def without(policy: SimPolicy, left_out: frozenset[str]) -> SimPolicy:
    """The policy without these levers."""
    return policy._replace(
        waits=policy.waits and WAITING not in left_out, order="queue" if ORDER in left_out else policy.order
    )
