# SPDX-License-Identifier: MIT
"""What admins should know about classes: that they are flat, shifted together, of two kinds of GPUs, or of few.

The classes that count are those of sensitivity class A: where they are flat, nothing is placed by them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from slurm_pal.variability.params import DAY_S, Params

if TYPE_CHECKING:  # readers of a snapshot need no numpy
    from slurm_pal.variability.classes import Held
    from slurm_pal.variability.runs import Group
    from slurm_pal.variability.shift import Shift
    from slurm_pal.variability.slowdown import GroupSlowdowns

FLAT, SHIFTED, KINDS, FEW = "flat", "shifted", "kinds", "few"
SHOWN_D = 30.0  # a shift is shown for so long
MOST = 0.5  # if a larger share of the GPUs was not measured since, it may be a matter of those that were


class Notice(NamedTuple):
    """One of them; what its figures are depends on its state."""

    state: str
    model: str
    benchmark: str
    gpus: int  # of the group; `shifted`: that showed it; `kinds`: of the slower kind
    size: float  # `flat`: SD of slowdowns; `shifted`: change of time; `kinds`: difference; `few`: SE of the median
    other: float  # `flat`: repeatability; `shifted`: nodes; `kinds`: GPUs of the group; `few`: classes
    since_s: float  # of a shift, Unix s; else 0.0
    unseen: int = 0  # of a shift: GPUs of the group not measured since, while they are most of it


def of_group(
    group: Group,
    now: GroupSlowdowns,
    held: Held | None,
    shift: Shift | None,
    measured_s: Iterable[float],
    now_s: float,
    params: Params,
) -> Iterator[Notice]:
    """The notices about one group, the gravest first; `measured_s`: when each of its GPUs was measured last."""

    def notice(state: str, gpus: int, size: float, other: float, since_s: float = 0.0, unseen: int = 0) -> Notice:
        figures = round(size, 5), round(other, 5), round(since_s)
        return Notice(state, group.model, group.benchmark, gpus, *figures, unseen)

    if held is None:
        return
    gpus = len(now.uuids)
    ordinary = now.slowdown[[u in held.members for u in now.uuids]]
    spread = float(ordinary.std()) if len(ordinary) else 0.0
    if held.flat:
        yield notice(FLAT, gpus, spread, now.repeatability)
    if shift is not None and math.floor(now_s / DAY_S) - math.floor(shift.seen_s / DAY_S) <= SHOWN_D:
        unseen = sum(at_s < shift.seen_s - DAY_S for at_s in measured_s)
        few = unseen > MOST * gpus
        yield notice(SHIFTED, shift.gpus, shift.change, shift.nodes, shift.seen_s, unseen if few else 0)
    if now.kinds is not None:
        low, high = now.kinds.centres
        yield notice(KINDS, int(now.slower_kind.sum()), high / low - 1.0, gpus)
    if gpus < params.few_peers:
        yield notice(FEW, gpus, 1.2533 * spread / math.sqrt(gpus), len(held.centroids))
