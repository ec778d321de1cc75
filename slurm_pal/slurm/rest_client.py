# SPDX-License-Identifier: MIT
"""The REST backend: what `pal` and `pal-profile` read, from slurmrestd, where Slurm's commands are not at hand.

It reads and changes nothing: slurmrestd of 22.05 can set neither a job's node list nor an admin comment. Users' texts
come as JSON strings, so none can pose as one of Slurm's facts.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from slurm_pal.base.cluster import Counting, Node, Partition
from slurm_pal.base.errors import NotByRestError, SlurmError
from slurm_pal.base.files import slurm_conf
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.terminal import visible
from slurm_pal.slurm import releases, rest_nouns
from slurm_pal.slurm.cli import fitting
from slurm_pal.slurm.client import Overview, in_overview
from slurm_pal.slurm.rest_nouns import Row, number, rows, text
from slurm_pal.slurm.rest_wire import Answer, Wire
from slurm_pal.slurm.site_conf import site_counting

OLDEST, NEWEST = 37, 45
"""The versions of the data that are known: v0.0.37 comes with Slurm 20.11 to 22.05, v0.0.45 with 26.05."""
_VERSION = re.compile(r"/slurm/v0\.0\.([0-9]{1,3})/nodes/?")
_NO_SUCH_JOB = 2017  # ESLURM_INVALID_JOB_ID of slurm_errno.h
_TABLES = ("nodes", "partitions", "reservations", "jobs")
_FEW = 4
"""Up to so many jobs are asked for one by one."""


class RestClient:
    """`SlurmClient` over slurmrestd: all that reads. Raises NotByRestError for the rest, SlurmError without an answer.

    `conf` is the slurm.conf whose defaults count, "": the one in force. Where this machine has none, what Slurm adds
    to requests is known only as far as partitions say it.
    """

    def __init__(self, wire: Wire, conf: str = "") -> None:
        self._wire = wire
        self._conf = conf or slurm_conf()
        self._base = ""

    # -- reading ----------------------------------------------------------------------

    def overview(
        self, reservations: bool = False, marked: bool = False, whole: frozenset[str] = frozenset()
    ) -> Overview:
        nodes, partitions = self.nodes(), self._partitions()
        if not nodes or not partitions:
            raise SlurmError("slurmrestd shows no nodes or no partitions: the cluster is empty, or hidden from you")
        reserved: dict[str, tuple[str, ...]] = {}
        if reservations:
            now_s = time.time()
            found = [rest_nouns.reservation(row, now_s) for row in rows(self._ask("reservations")["reservations"])]
            reserved.update(filter(None, found))
        jobs, queued = in_overview(self.jobs(), marked, whole)
        return Overview(nodes, fitting(jobs, nodes), partitions, reserved, queued)

    def nodes(self) -> tuple[Node, ...]:
        return tuple(rest_nouns.node(row) for row in rows(self._ask("nodes")["nodes"]))

    def _partitions(self) -> tuple[Partition, ...]:
        site: Counting = site_counting(self._conf)
        found = [rest_nouns.partition(row) for row in rows(self._ask("partitions")["partitions"])]
        return tuple(partition._replace(counting=partition.counting.over(site)) for partition in found)

    def jobs(self) -> tuple[SlurmJob, ...]:
        return tuple(sorted((rest_nouns.job(row) for row in self._jobs()), key=lambda job: job.job_id))

    def _jobs(self) -> list[Row]:
        return rows(self._ask("jobs")["jobs"])

    def job(self, job_id: int) -> SlurmJob | None:
        return self.jobs_of([job_id]).get(job_id)

    def jobs_of(self, job_ids: Sequence[int]) -> dict[int, SlurmJob]:
        wanted = {int(job_id) for job_id in job_ids}
        singly = (row for job_id in sorted(wanted) for row in self._one(job_id))  # of an array, its other tasks, too
        found = singly if len(wanted) <= _FEW else self._jobs()
        return {job.job_id: job for job in map(rest_nouns.job, found) if job.job_id in wanted}

    def _one(self, job_id: int) -> list[Row]:
        body = self._ask(f"job/{job_id}", missing=_NO_SUCH_JOB)
        return rows(body.get("jobs"))

    def tasks(self, array_id: int, indexes: Sequence[int]) -> dict[int, int]:
        """Of those of these tasks of an array that exist the job ids: their own, or the array's for one that waits."""
        rows_of = [row for row in self._one(array_id) if number(row.get("array_job_id")) == array_id]
        found = {n: array_id for n in indexes if any(rest_nouns.has_task(row, n) for row in rows_of)}
        own = {number(row.get("array_task_id")): number(row.get("job_id")) for row in rows_of}
        return found | {n: job_id for n in indexes if (job_id := own.get(n)) is not None}

    def job_states(self, name_prefix: str = "", user: str = "") -> dict[int, tuple[str, str]]:
        me = os.geteuid()
        return {
            job.job_id: (job.state, job.reason)
            for job in self.jobs()
            if job.name.startswith(name_prefix) and (not name_prefix or job.uid == me) and user in ("", job.user)
        }

    def node_reason(self, name: str) -> str:
        found = (text(row.get("reason")) for row in rows(self._ask("nodes")["nodes"]) if row.get("name") == name)
        return next(found, "")

    def statistics(self) -> dict[str, str]:
        shown = self._ask("diag").get("statistics")
        pairs = {key: number(value) for key, value in shown.items()} if isinstance(shown, dict) else {}
        return {key.replace("_", " ").capitalize(): str(value) for key, value in pairs.items() if value is not None}

    def version(self) -> tuple[int, int]:
        meta = self._ask("ping").get("meta")
        known = {key.lower(): value for key, value in meta.items()} if isinstance(meta, dict) else {}
        slurm = known.get("slurm")
        return releases.printed(text(slurm.get("release")) if isinstance(slurm, dict) else "", "slurmrestd")

    # -- what slurmrestd does not show -------------------------------------------------

    def config(self) -> dict[str, str]:
        _refuse("show slurm.conf")

    def site_factors(self) -> dict[int, int]:
        _refuse("show the SiteFactor of jobs")

    # -- changing ----------------------------------------------------------------------

    def submit(self, argv: Sequence[str], script: str) -> int:
        _refuse("submit jobs")

    def update_job(self, job_id: int, **fields: str) -> None:
        _refuse("change jobs")

    def update_jobs(self, job_ids: Sequence[int], **fields: str) -> None:
        _refuse("change jobs")

    def cancel(self, job_ids: Sequence[int], pending_only: bool = False) -> None:
        _refuse("cancel jobs")

    def signal_batch(self, job_id: int, name: str) -> None:
        _refuse("send signals to jobs")

    def requeue(self, job_id: int) -> None:
        _refuse("requeue jobs")

    def unhold(self, job_id: int) -> None:
        _refuse("release jobs")

    def update_nodes(self, names: Sequence[str], **fields: str) -> None:
        _refuse("change nodes")

    def update_partition(self, name: str, **fields: str) -> None:
        _refuse("change partitions")

    def reserve(self, name: str, node: str, minutes: int, user: str) -> None:
        _refuse("make reservations")

    def fence(self, name: str, nodes: Sequence[str], after_s: float, lasts_s: float, user: str) -> None:
        _refuse("make reservations")

    def release(self, name: str) -> None:
        _refuse("delete reservations")

    # -- asking ------------------------------------------------------------------------

    def _ask(self, what: str, missing: int = 0) -> dict[str, Any]:
        """The answer about `nodes`, `jobs` and so on. Raises SlurmError with slurmrestd's own words.

        An error numbered `missing` is no error: there is no such thing.
        """
        if not self._base:
            self._base = self._newest()
        answer = self._wire.get(f"{self._base}/{what}")
        errors = rows(answer.body.get("errors"))
        if missing and any(missing in (row.get("error_number"), row.get("error_code")) for row in errors):
            return {}
        if errors or answer.status != 200:
            hint = " (so it is also with a token that has expired: scontrol token)" if self._wire.has_token else ""
            raise SlurmError(f"slurmrestd: GET {what} failed: {_complaint(answer, errors)}{hint}")
        if what in _TABLES and what not in answer.body:
            raise SlurmError(f"slurmrestd: GET {what} shows no {what}: see its log")
        return answer.body

    def _newest(self) -> str:
        """Where the newest version of the data that is known here is, by slurmrestd's OpenAPI document."""
        answer = self._wire.get("/openapi/v3")
        paths = answer.body.get("paths")
        if answer.status != 200 or not isinstance(paths, dict):
            raise SlurmError(f"slurmrestd has no OpenAPI document (HTTP {answer.status}): correct slurm.rest")
        offered = sorted({int(match[1]) for path in paths if (match := _VERSION.fullmatch(path))})
        known = [version for version in offered if OLDEST <= version <= NEWEST]
        if not known:
            seen = ", ".join(f"v0.0.{version}" for version in offered) or "none"
            cure = "start slurmrestd with another -s or -d"
            raise SlurmError(f"slurmrestd offers {seen}, and v0.0.{OLDEST} to v0.0.{NEWEST} are known here: {cure}")
        return f"/slurm/v0.0.{known[-1]}"


def _complaint(answer: Answer, errors: list[Row]) -> str:
    said = [text(row.get("description")) or text(row.get("error")) for row in errors]
    return visible(next(filter(None, said), f"HTTP {answer.status}"))


def _refuse(what: str) -> NoReturn:
    raise NotByRestError(
        f'slurm.backend = "rest" cannot {what}, it only reads: use "cli" where Slurm\'s commands are '
        "(SLURM_PAL_SLURM_BACKEND=cli)"
    )
