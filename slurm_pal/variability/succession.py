# SPDX-License-Identifier: MIT
"""When the method of a benchmark changes: what stands in for the GPUs not yet measured again.

A new driver is a new method, and its numbers do not compare with the old ones. Until all GPUs are measured again,
perhaps for weeks, the new group would be the few that came first: too small for classes, and with a median
of its own. But slowdowns persist, so the GPUs measured by both methods show, by the median, what the new one
changed. The old numbers of the other GPUs are shifted by that and stand in the new group as its background.
No such number is a score: each GPU is scored by what was measured on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from slurm_pal.variability.runs import Group
from slurm_pal.variability.track import Track


def kin(group: Group) -> Group:
    """What all methods of one benchmark on the same GPUs have in common."""
    return group._replace(method_hash="")


def background(
    own: Mapping[str, Track], older: Iterable[tuple[Group, Mapping[str, Track]]]
) -> tuple[dict[str, Track], Group | None]:
    """`own` tracks and, shifted, those of GPUs that only `older` methods have measured; newest method first.

    Also the newest method that gave any, None for none.
    """
    found, heir_of = dict(own), None
    for group, tracks in older:
        shared = [u for u in own if u in tracks]
        missing = [u for u in tracks if u not in found]
        if not shared or not missing:
            continue
        shift = float(np.median([own[u].speed - tracks[u].speed for u in shared]))
        found.update((u, shifted(tracks[u], shift)) for u in missing)
        heir_of = heir_of or group
    return found, heir_of


def shifted(track: Track, shift: float) -> Track:
    """The track as if all its speeds had been larger by so much, on the log scale."""
    pending = track.pending and track.pending._replace(speed=track.pending.speed + shift)
    return track._replace(speed=track.speed + shift, recent=tuple(x + shift for x in track.recent), pending=pending)
