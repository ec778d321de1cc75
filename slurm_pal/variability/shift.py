# SPDX-License-Identifier: MIT
"""What all GPUs of a group share: the room, a minor driver, firmware. It says nothing about any single GPU.

A sweep's numbers are compared with what is held of the same GPUs. What most of them changed by is the sweep's
common shift; it is taken out before any run is judged, or all GPUs would jump and their repeats would look like
noise. A shift of a few nodes belongs to the nodes: it is common only if it is seen on several, or on most of the group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from slurm_pal.variability.params import Params
from slurm_pal.variability.runs import Group

ENOUGH_NODES = 3
ENOUGH_GPUS = 8
MOST = 0.5
"""So large a share of a group shows what is common, however few nodes it has: slowdowns are relative to the group."""
SURE = 2.0
"""What is within so many standard errors is left in; a little beyond it, a part of it."""

Apart = Mapping[str, Mapping[str, float]]
"""Node -> UUID -> difference of log speed, now to what is held, of each GPU measured again."""


class Shift(NamedTuple):
    """All GPUs of a group became slower or faster together."""

    group: Group
    seen_s: float  # Unix s of the sweep that showed it first
    change: float  # relative change in time: .015 is 1.5 % slower
    gpus: int  # that were measured before and in this sweep
    nodes: int


class Taken(NamedTuple):
    """What a sweep has in common."""

    shift: float  # of log speed, to be taken out of its runs
    given_back: float = 0.0  # what was taken out of earlier runs ...
    uuids: frozenset[str] = frozenset()  # ... of these GPUs, but was theirs


@dataclass(slots=True)
class CommonLevel:
    """Of one group what its newest speeds have in common against what was held before."""

    value: float = 0.0  # the last shift that was shown, of log speed
    shown: Shift | None = None
    moved: set[str] = field(default_factory=set)  # UUIDs from whose newest run it was taken out

    def take(self, apart: Apart, held: int, group: Group, at_s: float, params: Params) -> Taken:
        """What to take out of a sweep, and what to give back.

        A shift that part of a group showed was theirs alone if other GPUs, measured later, do not show it.
        `held`: GPUs of the group of which anything is held.
        """
        found = common(apart, held, self.value, params)
        here = {uuid for differences in apart.values() for uuid in differences}
        others = len(here - self.moved) > len(here) / 2.0 and _enough(apart, len(here), held, params)
        if others and abs(found) < abs(self.value) / 2.0 and len(self.moved) < MOST * held:
            taken = Taken(found, self.value, frozenset(self.moved))
            self.value, self.shown, self.moved = 0.0, None, set()
            return taken
        if abs(found - self.value) >= params.jump:
            self.shown = Shift(group, at_s, math.expm1(self.value - found), len(here), len(apart))
            self.value = found
        if self.value and abs(found) > abs(self.value) / 2.0:
            self.moved |= here
        else:
            self.moved -= here
        return Taken(found)


def common(apart: Apart, held: int, level: float, params: Params) -> float:
    """By how much of log speed a sweep is shifted against what is held of its GPUs.

    `held`: GPUs of the group of which anything is held. `level`: the last shift that was shown. A sweep too
    small to show a shift has that one, or none, whichever is nearer.
    """
    every = [x for differences in apart.values() for x in differences.values()]
    if not every:
        return level
    if not _enough(apart, len(every), held, params):
        middle = median(every)
        return level if abs(middle - level) < abs(middle) else 0.0
    many = len(apart) >= ENOUGH_NODES
    units = [median(differences.values()) for differences in apart.values()] if many else every
    middle = median(units)
    scatter = 1.4826 * median(abs(x - middle) for x in units)
    error = max(1.2533 * scatter / math.sqrt(len(units)), params.repeatability / math.sqrt(len(every)))
    sure = SURE * error
    if abs(middle) <= sure or _two_ways(every, middle):
        return 0.0
    return middle * (1.0 - (sure / middle) ** 2)


def _two_ways(every: list[float], middle: float) -> bool:
    """Whether most GPUs changed by far less or far more than the median: some changed, as those of one board maker,
    the others did not, and nobody by what lies between."""
    width = abs(middle) / 2.0
    near = sum(abs(x - middle) <= width for x in every)
    far = sum(width < abs(x - middle) <= 2.0 * width for x in every)
    return 2 * far >= len(every) and 2 * near < far


def _enough(apart: Apart, gpus: int, held: int, params: Params) -> bool:
    if gpus < params.small_group:
        return False
    return gpus >= MOST * held or (len(apart) >= ENOUGH_NODES and gpus >= ENOUGH_GPUS)
