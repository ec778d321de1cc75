# SPDX-License-Identifier: MIT
"""Whether GPUs were measured at their power cap: there they differ, below it all run at the same highest clock.

Class A stands for work that meets the cap, so a product that stays below it says little about how much such
work would differ. What was met is in the records already: throttle reasons, power, power cap.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from statistics import fmean
from typing import TypeVar

from slurm_pal.variability.params import Params

Key = TypeVar("Key", bound=Hashable)

NOT_CAPPED = "not_capped"
"""The flag of a GPU whose score of class A was measured below its power cap."""
HALF = 0.5
"""A model was measured at its cap if this share of its GPUs was."""
LEAVES, RETURNS = 0.4, 0.6
"""Below and above these shares a group is taken for measured below the cap, or no longer: it must not flap."""


def met_cap(
    power_cap: float | None, power_w: float | None, limit_w: float | None, held_back: bool, params: Params
) -> bool | None:
    """Whether a run met the power cap; None where the sensors do not show it.

    `power_cap` is the share of looks with that throttle reason, `power_w` the median. Where heat or the board
    held the GPU back (`held_back`), its power decided nothing, and other flags describe that.
    """
    share = power_w / limit_w if power_w and limit_w else None  # 0 W: not known (second die of a card)
    if (power_cap or 0.0) >= params.capped_duty or (share or 0.0) >= params.capped_power:
        return True
    return None if held_back or (power_cap is None and share is None) else False


def share(met: Iterable[float | None]) -> float | None:
    """The share of GPUs that met their cap, among those of which it is known; None where it is of none."""
    known = [value for value in met if value is not None]
    return fmean(known) if known else None


def step(below: frozenset[Key], key: Key, now: float | None) -> frozenset[Key]:
    """The groups measured below their cap, with what one of them shows now."""
    if now is not None and now < LEAVES:
        return below | {key}
    return below - {key} if now is not None and now > RETURNS else below


def one_class(shares: Mapping[str, float]) -> str:
    """Why classes A and B are one on a model, from the share of GPUs that met the cap in each; "" where they are not.

    Work is told apart by whether it meets the cap: kernels that both do, or both do not, feel a slow GPU alike.
    """
    if not {"A", "B"} <= shares.keys() or (shares["A"] < HALF) != (shares["B"] < HALF):
        return ""
    return "neither kernel met the power cap" if shares["A"] < HALF else "both kernels met the power cap"
