# SPDX-License-Identifier: MIT
"""What a tick has learnt of locality penalties, for the jobs that palsub places: each user's own, for that user."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping

from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.moves.learning import work_of
from slurm_pal.placement.penalties import Penalties
from slurm_pal.store import localities, user_files
from slurm_pal.store.localities import LOCALITIES, Localities, Locality

NEWS = 0.01  # a change of a penalty that is worth a write
AGAIN_S = 86400.0  # what is still so is written again after this time


class LocalityBook:
    """Writes what is new since the last time, of all users or of one."""

    def __init__(self, folder: str, only_uid: int | None = None) -> None:
        self._folder, self._only_uid = folder, only_uid
        self._told: dict[int, Localities] = {}  # uid -> what its file holds

    def tell(self, jobs: Iterable[SlurmJob], learnt: Mapping[str, Penalties], now_s: float) -> int:
        """Write for the users of these jobs; how many files changed. Raises DataError at the end.

        Only for them is it known which uid a name is, and only their steps have shown something new.
        """
        by_user: dict[str, Localities] = defaultdict(dict)
        for key, penalties in learnt.items():
            user, name, gpus = work_of(key)
            if row := localities.key_of(name, gpus):
                by_user[user][row] = Locality(penalties, now_s)
        uids = {job.uid for job in jobs if job.user in by_user and job.uid >= 0 and self._only_uid in (None, job.uid)}
        names = {job.uid: job.user for job in jobs}
        changed, trouble = 0, None
        for uid in sorted(uids):
            try:
                changed += self._tell(uid, by_user[names[uid]])
            except DataError as error:
                trouble = error
        if trouble is not None:
            raise trouble
        return changed

    def _tell(self, uid: int, mine: Localities) -> bool:
        path = LOCALITIES.path_of(self._folder, uid)
        if uid not in self._told:
            try:
                self._told[uid] = localities.read(path)
            except DataError:  # damaged: what is learnt from now on is worth more than none
                self._told[uid] = {}
        told = self._told[uid]
        news = {key: found for key, found in mine.items() if _is_news(told.get(key), found)}
        if not news:
            return False
        localities.write(path, told | news, uid if self._only_uid is None else None)
        self._told[uid] = told | news
        return True


def _is_news(before: Locality | None, found: Locality) -> bool:
    if before is None or len(before.penalties) != len(found.penalties) or found.at_s - before.at_s > AGAIN_S:
        return True
    return any(abs(x / y - 1.0) > NEWS for x, y in zip(before.penalties, found.penalties, strict=True))


def locality_book(config: Config, site: bool) -> LocalityBook:
    """The one beside the site's snapshot, or this user's own."""
    if site:
        return LocalityBook(user_files.site_folder(config.snapshot_path))
    return LocalityBook(user_files.own_folder(), os.geteuid())
