# SPDX-License-Identifier: MIT
"""GPUs that were seen to fail: every rule, for every class of jobs, takes them only when nothing else will do.

In a view such a GPU counts as `FAULTY`. A rule is first shown what Slurm hands out before the first such
GPU of each node, and only then everything.
"""

from __future__ import annotations

from slurm_pal.base.light import Iterable, Sequence
from slurm_pal.placement.candidates import Preference
from slurm_pal.placement.class_fit import INSENSITIVE
from slurm_pal.placement.view import View

FAULTY = 10.0
"""In place of the slowdown of a faulty GPU: worse than every other one, and than more nodes."""
_BELOW = 0.999 * FAULTY


def is_faulty(slowdown: float) -> bool:
    """Whether a value of a view stands for a faulty GPU, or for one as bad."""
    return slowdown > _BELOW


def any_faulty(rows: Iterable[Sequence[float]]) -> bool:
    """Whether there is a faulty GPU among these."""
    return any(row and max(row) > _BELOW for row in rows)


def worst_wanted(sensitivity: str, barred_slowdown: float) -> float:
    """The largest slowdown for which a job of this class need not wait."""
    return _BELOW if sensitivity in INSENSITIVE else barred_slowdown


def sound(row: Sequence[float]) -> int:
    """How many GPUs are handed out before the first faulty one."""
    return next((position for position, slowdown in enumerate(row) if slowdown > _BELOW), len(row))


def sound_part(view: View) -> View:
    """The view without what is handed out from the first faulty GPU of a node on; nodes keep their positions."""
    counts = [sound(row) for row in view.slowdown]

    def cut(table: Sequence[Sequence[float]]) -> list[Sequence[float]]:
        return [row[:count] for row, count in zip(table, counts, strict=True)]

    return view._replace(
        free=[row[:count] for row, count in zip(view.free, counts, strict=True)],
        slowdown=cut(view.slowdown),
        level=cut(view.level),
        slowdown_a=cut(view.slowdown_a),
    )


def first_sound(view: View, wanted: Sequence[Preference]) -> list[Preference]:
    """The same preferences, for sound GPUs only, and then as they are."""

    def only_sound(preference: Preference) -> Preference:
        return preference._replace(usable=lambda node: min(preference.usable(node), sound(view.slowdown[node])))

    return [*map(only_sound, wanted), *wanted]
