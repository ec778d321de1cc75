# SPDX-License-Identifier: MIT
"""What observers said of their jobs, taken from the jobs' comments into the labels of their users.

The tick and the publisher have every running job's comment before them anyway. Whose job it is Slurm
says, not the word; and since a job's name may hold line ends and what looks like the record of another
user's job, Slurm is asked once more for the jobs that have something new to say.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.sensitivity import observed
from slurm_pal.sensitivity.history import Label, Seen, learnt
from slurm_pal.sensitivity.keys import name_key, script_key
from slurm_pal.sensitivity.observed import Observed
from slurm_pal.slurm.backend import connect
from slurm_pal.store import labels, user_files

MOST_AHEAD_S = 60.0
"""A node's clock may be so far ahead of ours."""


Ask = Callable[[Sequence[int]], Mapping[int, SlurmJob]]
"""Job ids -> the jobs, each by its own record (`SlurmClient.jobs_of`). Raises SlurmError."""


class Collector:
    """Takes in what is new since the last time, of all users or of one."""

    def __init__(self, folder: str, only_uid: int | None = None, ask: Ask | None = None) -> None:
        self._folder, self._only_uid, self._ask = folder, only_uid, ask
        self._known: dict[int, Observed] = {}  # job -> the word that was taken in

    def take(self, jobs: Iterable[SlurmJob], now_s: float) -> int:
        """Take in the words on these jobs; how many users' labels changed. Raises DataError at the end."""
        said = {job.job_id: (job, seen) for job in jobs if (seen := observed.read(job.comment)) is not None}
        new = {job_id: pair for job_id, pair in said.items() if self._wanted(*pair)}
        fresh: dict[int, list[tuple[SlurmJob, Observed]]] = defaultdict(list)
        for job, seen in self._confirmed(new):
            fresh[uid_of(job)].append((job, seen))
        changed, trouble = 0, None
        for uid, mine in sorted(fresh.items()):
            try:
                changed += _add(labels.path_of(self._folder, uid), mine, now_s, uid if self._only_uid is None else None)
                self._known |= {job.job_id: seen for job, seen in mine}
            except DataError as error:
                trouble = error
        self._known = {job_id: seen for job_id, seen in self._known.items() if job_id in said}
        if trouble is not None:
            raise trouble
        return changed

    def _wanted(self, job: SlurmJob, seen: Observed) -> bool:
        uid = uid_of(job)
        return uid >= 0 and self._only_uid in (None, uid) and self._known.get(job.job_id) != seen

    def _confirmed(self, new: Mapping[int, tuple[SlurmJob, Observed]]) -> list[tuple[SlurmJob, Observed]]:
        """Those of these jobs that say the same of themselves, as the same user's. Raises DataError."""
        if self._ask is None or not new:
            return list(new.values())
        try:
            own = self._ask(list(new))
        except SlurmError as error:
            raise DataError(f"what observers say of {len(new)} jobs is left for the next time: {error}") from None
        found = [(own[job_id], *pair) for job_id, pair in new.items() if job_id in own]
        true = {job.job_id for job, listed, seen in found
                if uid_of(job) == uid_of(listed) and observed.read(job.comment) == seen}  # fmt: skip
        self._known |= {job_id: seen for job_id, (_, seen) in new.items() if job_id not in true}
        return [(job, seen) for job, _, seen in found if job.job_id in true]


def collector(config: Config, site: bool) -> Collector:
    """The collector into the site's labels, or into this user's own; it asks Slurm for itself."""
    ask = connect(config).jobs_of
    if site:
        return Collector(user_files.site_folder(config.snapshot_path), ask=ask)
    return Collector(user_files.own_folder(), os.geteuid(), ask)


def uid_of(job: SlurmJob) -> int:
    """The number in `UserId=name(uid)`; -1 where it is not known."""
    return job.uid


def add(path: str, job: SlurmJob, seen: Observed, now_s: float) -> None:
    """Take one job into the user's own labels at `path`. Raises DataError."""
    _add(path, [(job, seen)], now_s, None)


def _add(path: str, mine: list[tuple[SlurmJob, Observed]], now_s: float, reader: int | None) -> bool:
    try:
        known = labels.read(path)
    except DataError:  # damaged: what is measured from now on is worth more than none
        known = {}
    before = dict(known)
    for job, seen in sorted(mine, key=lambda pair: (pair[1].at_s, pair[0].job_id)):
        at_s = min(seen.at_s, now_s + MOST_AHEAD_S)
        one = Seen(job.job_id, seen.sensitivity, seen.confidence, at_s)
        for key in filter(None, (name_key(job.name), script_key(seen.digest))):
            known[key] = learnt(known.get(key, Label()), one)
    if known == before:
        return False
    labels.write(path, known, reader)
    return True
