# SPDX-License-Identifier: MIT
"""Which nodes should be measured before their turn, and why. Pure.

A node that a sweep job left for a user's job comes first. A run that departs from a GPU's other
runs is not believed until a second one agrees, so its node comes next. Then come those whose GPUs
have changed, those that running jobs wait for, those with numbers from another environment, those
about which nothing is known any more, and those that failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from slurm_pal.base.faults import FAULTS
from slurm_pal.store.database import Condition
from slurm_pal.store.snapshot import GpuScore

LEFT, CONFIRM, CHANGED, LATE, ENVIRONMENT, UNKNOWN, FAULTY = range(7)

_FLAGS = {
    "unconfirmed": CONFIRM,  # one run says so
    "step": CHANGED,
    "drift": CHANGED,
    "late": LATE,  # jobs say so
    "unknown": UNKNOWN,
    **dict.fromkeys(FAULTS, FAULTY),  # it may be well again
}


class Urgency(NamedTuple):
    """Why a node is urgent; smaller ranks first."""

    rank: int
    why: str


def urgent(
    scores: Iterable[GpuScore],
    measured: Iterable[Condition],
    seen: Iterable[Condition],
    left: Mapping[str, str] | None = None,
) -> dict[str, Urgency]:
    """Node -> the most urgent cause.

    `scores`: as published; `measured`: each GPU's condition in its newest valid run;
    `seen`: in its newest run of any kind, which may show a new driver though nothing was measured;
    `left`: nodes that the last sweep left before they were measured to the end, and why.
    """
    found = {node: Urgency(LEFT, why) for node, why in (left or {}).items()}
    for score in scores:
        for flag in score.flags:
            if flag in _FLAGS:
                _keep(found, score.node, Urgency(_FLAGS[flag], f"GPU {score.index} {flag}"))
    for node, cause in _changed(measured, seen):
        _keep(found, node, cause)
    return found


def _keep(found: dict[str, Urgency], node: str, cause: Urgency) -> None:
    if node not in found or cause.rank < found[node].rank:
        found[node] = cause


def _changed(measured: Iterable[Condition], seen: Iterable[Condition]) -> Iterable[tuple[str, Urgency]]:
    """Nodes with a GPU whose numbers are from before a change of driver, VBIOS or power limit."""
    now: dict[str, Condition] = {}
    newest: dict[str, Condition] = {}  # a driver belongs to the node: the GPU measured last knows it
    for condition in seen:
        now[condition.uuid] = condition
        if condition.node not in newest or condition.ts > newest[condition.node].ts:
            newest[condition.node] = condition
    for old in measured:
        new = now.get(old.uuid, old)
        if new.node != old.node:
            continue
        driver = newest[old.node].driver if old.node in newest else new.driver
        pairs = (
            ("driver", _major(old.driver), _major(driver)),
            ("VBIOS", old.vbios, new.vbios),
            ("power limit", old.power_limit_w, new.power_limit_w),
        )
        for what, before, after in pairs:
            if before and after and before != after:
                yield old.node, Urgency(ENVIRONMENT, f"GPU {old.slot} {what} {before} is now {after}")
                break


def _major(driver: str) -> str:
    return driver.partition(".")[0]
