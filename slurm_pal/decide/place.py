# SPDX-License-Identifier: MIT
"""Places in the queue that the tick gave: the value of Nice or SiteFactor on a job, and the one that it had before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurm_pal.base.light import NamedTuple

NICE, SITE_FACTOR = "Nice", "SiteFactor"
"""What gives a place: under priority/basic, under priority/multifactor (scontrol(1), update job)."""
CHANGED = "somebody else has changed it: it is left alone"
"""Why a place is remembered that is not ours."""
TOGETHER = 200
"""Jobs in one update."""


class GivenPlace(NamedTuple):
    """One job. What is `own` was there before us: its user's, or the site's."""

    job_id: int
    lever: str  # NICE or SITE_FACTOR
    own: int
    ours: int
    before: int  # what the update replaced: a killed tick may have left this
    made_s: float
    why: str
    ended_s: float = 0.0  # when the job got its own value back; 0: it bears ours

    def bears(self, value: int) -> bool:
        """Whether a value on the job is ours: otherwise somebody has changed it, or it has its own back."""
        return value != self.own and value in (self.ours, self.before)


class ValueUpdate(NamedTuple):
    """Jobs that get the same value by one order."""

    job_ids: tuple[int, ...]
    lever: str
    value: int


def updates(wanted: Iterable[tuple[int, str, int]]) -> list[ValueUpdate]:
    """(job, lever, value) as few orders: those of a value that comes first go first."""
    together: dict[tuple[str, int], list[int]] = {}
    for job_id, lever, value in wanted:
        together.setdefault((lever, value), []).append(job_id)
    return [
        ValueUpdate(tuple(jobs[first : first + TOGETHER]), *key)
        for key, jobs in together.items()
        for first in range(0, len(jobs), TOGETHER)
    ]


def to_give_back(
    given: Iterable[GivenPlace], nice: Mapping[int, int], factors: Mapping[int, int]
) -> list[tuple[int, str, int]]:
    """(job, lever, own value) for each job that bears ours now."""
    found = []
    for place in given:
        present = (nice if place.lever == NICE else factors).get(place.job_id)
        if present is not None and place.bears(present):
            found.append((place.job_id, place.lever, place.own))
    return found
