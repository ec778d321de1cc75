# SPDX-License-Identifier: MIT
"""New measurements: from the spool into the database, and published."""

from __future__ import annotations

import os

from slurm_pal.base.config import Config
from slurm_pal.base.errors import BusyError, DataError
from slurm_pal.store.database import database_path, interrupted, open_database
from slurm_pal.store.ingest import SUFFIX, ingest, spool_directories
from slurm_pal.store.publish import publish

AGAIN_S = 60.0
"""Between two publications because of late GPUs: on a large cluster each takes seconds."""
REPUBLISH_S = 86400.0
"""Scores age though nothing is measured: they are classified anew once a day."""


class Intake:
    """Looks at the spool cheaply, and opens the database only where there is something to do."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._published_s: float | None = None
        self._again = False

    def again(self) -> None:
        """Publish anew, though nothing was measured: other GPUs are late."""
        self._again = True

    def take(self, now_s: float) -> int:
        """Take in what sweep jobs dropped and publish it; the number of new records.

        Raises DataError when one of the files cannot be used.
        """
        dropped = self._dropped()
        if self._again and (self._published_s is None or now_s - self._published_s >= AGAIN_S):
            self._again, self._published_s = False, None
        aged = self._published_s is None or not 0 <= now_s - self._published_s < REPUBLISH_S
        killed = interrupted(self._config.state_dir)  # a writer, perhaps: whoever may not write could not read
        if not (dropped or killed) and not (aged and os.path.exists(database_path(self._config.state_dir))):
            return 0
        try:
            with open_database(self._config.state_dir, write=True) as database:
                taken = ingest(self._config.spool_dir, database, now_s) if dropped else None
                if len(database):
                    publish(self._config, now_s, database)
        except BusyError:  # a sweep is at work, and takes its results in itself
            return 0
        self._published_s = now_s
        if taken is not None and taken.bad:
            raise DataError(f"{taken.bad} results were refused, {taken.new} taken: {taken.complaints[0]}")
        return taken.new if taken is not None else 0

    def _dropped(self) -> bool:
        incoming = spool_directories(self._config.spool_dir)[0]
        try:
            return any(name.endswith(SUFFIX) for name in os.listdir(incoming))
        except OSError:
            return False
