# SPDX-License-Identifier: MIT
"""The tick's choice between the places of pending jobs: decided by `pending/places.py`, carried out by one update each.

Either place is one that the job's user named, so nothing is to be taken back when no tick comes any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_pal.base import prices
from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError
from slurm_pal.base.files import slurm_conf
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide import place_mark
from slurm_pal.decide.waits import Expects
from slurm_pal.journal.event_log import EventLog
from slurm_pal.pending.places import PlaceChange, changes
from slurm_pal.slurm import releases
from slurm_pal.slurm.client import Overview, SlurmClient
from slurm_pal.slurm.site_conf import boots_s
from slurm_pal.tick.role import COMMENT, Role

PRICES_S = 300.0
"""The live prices are read again after so long a time."""


class Choosing:
    """The jobs with several places, of one process."""

    def __init__(self, config: Config, client: SlurmClient, role: Role, log: EventLog) -> None:
        self._config, self._client, self._log = config, client, log
        self._notes = COMMENT in role.may  # what the filter wrote is in the admin comment
        self._only_user = role.user if role.name == "user" else ""
        self._expects = Expects(
            config.number("submit", "expected_run_share"), config.number("submit", "expected_run_s")
        )  # fmt: skip
        self.whole: frozenset[str] = frozenset()
        """Partitions where such jobs wait: there every pending job counts, since some come before them."""
        self._prices = prices.Prices({})
        self._read_s = -PRICES_S
        self._gpus_stay: bool | None = None

    def look(self, overview: Overview) -> bool:
        """Whether such jobs wait in partitions of which `whole` did not have the name yet."""
        waiting = [job for job in self._mine(overview) if job.state == "PENDING" and place_mark.bears(job)]
        known, self.whole = self.whole, frozenset(name for job in waiting for name in job.partition.split(","))
        return not self.whole <= known

    def _mine(self, overview: Overview) -> list[SlurmJob]:
        return [job for job in overview.jobs if not self._only_user or job.user == self._only_user]

    def decide(self, overview: Overview, barred: frozenset[int], now_s: float) -> list[PlaceChange]:
        """What to change; `barred` are jobs with leases or moves of ours.

        Raises SlurmError where Slurm does not report its release.
        """
        if not self.whole:
            return []
        mine = {job.job_id for job in self._mine(overview) if self._notes or not place_mark.by_filter(job)}
        others = frozenset(job.job_id for job in overview.jobs) - mine
        if self._gpus_stay is None:
            self._gpus_stay = releases.has(self._client.version(), "pending jobs keep their GPUs")
        if not 0 <= now_s - self._read_s < PRICES_S:
            self._prices, self._read_s = prices.current(self._config, overview.partitions, now_s), now_s
        boots = boots_s(slurm_conf(), overview.partitions, self._config.number("submit", "boot_s"))
        return changes(overview, barred | others, self._prices, self._expects, now_s, self._gpus_stay, boots)

    @property
    def complaints(self) -> list[str]:
        """About the prices, while jobs with several places wait; one line each."""
        return self._prices.complaints if self.whole else []

    def carry_out(self, found: Sequence[PlaceChange], now_s: float) -> tuple[list[PlaceChange], list[str]]:
        """What was done, and what went wrong, one line each."""
        done, trouble = [], []
        for change in found:
            try:
                self._client.update_job(change.job_id, **change.fields)
            except SlurmError as error:  # it may have started just now
                trouble.append(f"job {change.job_id} stays where it waits: {error}")
                continue
            done.append(change)
            fields = {name: value for name, value in change.fields.items() if not name.endswith("Comment")}
            self._log.write(now_s, "place", job_id=change.job_id, to=change.there, fields=fields, reason=change.why)
        return done, trouble
