# SPDX-License-Identifier: MIT
"""The REST backend: slurmrestd in the place of Slurm's commands, where these are not at hand.

Users' texts come as JSON strings, so none can pose as one of Slurm's facts. What a version of the data cannot express
is refused before anything is sent (`rest_changes`).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from typing import Any, NoReturn
from urllib.parse import urlencode

from slurm_pal.base.cluster import Counting, Node, Partition
from slurm_pal.base.errors import AnswerLostError, NotByRestError, NotNowError, RefusedError, SlurmError
from slurm_pal.base.files import slurm_conf
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.numbers import digits
from slurm_pal.base.terminal import visible
from slurm_pal.slurm import releases, rest_changes, rest_nouns
from slurm_pal.slurm.cli import NOT_NOW, fitting
from slurm_pal.slurm.client import Overview, in_overview
from slurm_pal.slurm.rest_door import ENDED, NO_SUCH_JOB, OTHER_STATE, Door
from slurm_pal.slurm.rest_nouns import Row, number, rows, text
from slurm_pal.slurm.rest_program import MAY_EXIST, NOT_BY_REST, stand_in
from slurm_pal.slurm.rest_wire import Wire
from slurm_pal.slurm.site_conf import site_counting
from slurm_pal.slurm.told import job_environment

REQUEUES = 45
"""From v0.0.45 on jobs can be requeued. No version between v0.0.42 and that was run."""
_FEW = 4
"""Up to so many jobs are asked for one by one."""


class RestClient:
    """`SlurmClient` over slurmrestd. Raises NotByRestError for what it cannot do or show, SlurmError without an answer,
    AnswerLostError where a change may have been made.

    `conf` is the slurm.conf whose defaults count, "": the one in force. Where this machine has none, what Slurm adds
    to requests is known only as far as partitions say it.
    """

    def __init__(self, wire: Wire, conf: str = "") -> None:
        self._door, self._where = Door(wire), wire.where.text
        self._conf = conf or slurm_conf()

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
            found = [rest_nouns.reservation(row, now_s) for row in rows(self._door.ask("reservations")["reservations"])]
            reserved.update(filter(None, found))
        jobs, queued = in_overview(self.jobs(), marked, whole)
        return Overview(nodes, fitting(jobs, nodes), partitions, reserved, queued)

    def nodes(self) -> tuple[Node, ...]:
        return tuple(rest_nouns.node(row) for row in rows(self._door.ask("nodes")["nodes"]))

    def _partitions(self) -> tuple[Partition, ...]:
        site: Counting = site_counting(self._conf)
        found = [rest_nouns.partition(row) for row in rows(self._door.ask("partitions")["partitions"])]
        if len(found) == 1:  # v0.0.42 does not say which one is the default; without one Slurm refuses the job
            found = [found[0]._replace(default=True)]
        return tuple(partition._replace(counting=partition.counting.over(site)) for partition in found)

    def jobs(self) -> tuple[SlurmJob, ...]:
        return tuple(sorted((rest_nouns.job(row) for row in self._jobs()), key=lambda job: job.job_id))

    def _jobs(self) -> list[Row]:
        return rows(self._door.ask("jobs")["jobs"])

    def job(self, job_id: int) -> SlurmJob | None:
        return self.jobs_of([job_id]).get(job_id)

    def jobs_of(self, job_ids: Sequence[int]) -> dict[int, SlurmJob]:
        wanted = {int(job_id) for job_id in job_ids}
        singly = (row for job_id in sorted(wanted) for row in self._one(job_id))  # of an array, its other tasks, too
        found = singly if len(wanted) <= _FEW else self._jobs()
        return {job.job_id: job for job in map(rest_nouns.job, found) if job.job_id in wanted}

    def _one(self, job_id: int) -> list[Row]:
        body = self._door.ask(f"job/{job_id}", missing=NO_SUCH_JOB)
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
        found = (text(row.get("reason")) for row in rows(self._door.ask("nodes")["nodes"]) if row.get("name") == name)
        return next(found, "")

    def statistics(self) -> dict[str, str]:
        shown = self._door.ask("diag").get("statistics")
        pairs = {key: number(value) for key, value in shown.items()} if isinstance(shown, dict) else {}
        return {key.replace("_", " ").capitalize(): str(value) for key, value in pairs.items() if value is not None}

    def version(self) -> tuple[int, int]:
        return releases.printed(self._about("release"), "slurmrestd")

    def cluster(self) -> str:
        return self._about("cluster")

    def _about(self, what: str) -> str:
        """What slurmrestd says of its Slurm."""
        meta = self._door.ask("ping").get("meta")
        known = {key.lower(): value for key, value in meta.items()} if isinstance(meta, dict) else {}
        slurm = known.get("slurm")
        return text(slurm.get(what)) if isinstance(slurm, dict) else ""

    # -- what slurmrestd does not show -------------------------------------------------

    def config(self) -> dict[str, str]:
        _refuse("show slurm.conf")

    def site_factors(self) -> dict[int, int]:
        _refuse("show the SiteFactor of jobs")

    # -- changing ----------------------------------------------------------------------

    def check_sweeps(self) -> None:
        """Raise NotByRestError where jobs that measure nodes cannot be described."""
        if not self._door.writes_new_form:
            _refuse("submit jobs with --signal=B:TERM in v0.0.38, as sweeps do")

    def submit(self, argv: Sequence[str], script: str) -> int:
        program = stand_in()
        env = job_environment() | {"SLURM_PAL_SLURM_BACKEND": "rest", "SLURM_PAL_SLURM_REST": self._where}
        words = program.argv(["sbatch", "--parsable", *argv])
        try:
            done = subprocess.run(words, input=script, env=env, capture_output=True, text=True, check=False)
        except OSError as error:
            raise SlurmError(f"{program.path} cannot be started: {error.strerror}") from None
        said = done.stderr.strip().splitlines()
        number = digits(done.stdout.strip().partition(";")[0])
        if done.returncode == 0 and number is not None:
            return number
        text = said[-1].removeprefix("palsub: ") if said else f"no job id, exit code {done.returncode}"
        if MAY_EXIST in text:
            raise AnswerLostError(text)
        raise NotByRestError(text) if NOT_BY_REST in text else SlurmError(text)

    def update_job(self, job_id: int, **fields: str) -> None:
        new = self._door.writes_new_form
        body = rest_changes.of_job(fields, self._door.version, new)
        if new and (missing := body.keys() - self._door.job_keys()):
            _refuse(f"change {', '.join(sorted(missing))} of jobs in v0.0.{self._door.version}")
        self._order("POST", f"job/{int(job_id)}", body)

    def update_jobs(self, job_ids: Sequence[int], **fields: str) -> None:
        refused: list[SlurmError] = []
        for job_id in job_ids:
            try:
                self.update_job(job_id, **fields)
            except RefusedError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    def cancel(self, job_ids: Sequence[int], pending_only: bool = False) -> None:
        wanted = [int(job_id) for job_id in job_ids]
        if not wanted:
            return
        if self._door.writes_new_form:
            body: dict[str, Any] = {"jobs": [str(job_id) for job_id in wanted]}
            if pending_only:
                body["job_state"] = ["PENDING"]
            self._signalled(self._order("DELETE", "jobs/", body), (*ENDED, OTHER_STATE) if pending_only else ENDED)
            return
        if pending_only:
            known = self.jobs_of(wanted)
            wanted = [job_id for job_id in wanted if job_id in known and known[job_id].state == "PENDING"]
        for job_id in wanted:
            self._order("DELETE", f"job/{job_id}", fine=ENDED)

    def signal_batch(self, job_id: int, name: str) -> None:
        if not self._door.writes_new_form:  # v0.0.38 would send it to all steps
            _refuse("send signals to batch shells in v0.0.38")
        query = urlencode({"signal": name, "flags": "BATCH_JOB"})
        self._signalled(self._order("DELETE", f"job/{int(job_id)}?{query}"), ())

    def requeue(self, job_id: int) -> None:
        if self._door.version < REQUEUES:
            _refuse(f"requeue jobs in v0.0.{self._door.version}")
        self._order("POST", "jobs/requeue", {"jobs": [str(int(job_id))], "flags": ["Incomplete"]})

    def unhold(self, job_id: int) -> None:
        self._door.writes_new_form  # noqa: B018 - raises where nothing can be changed
        self._order("POST", f"job/{int(job_id)}", {"hold": False})

    def update_nodes(self, names: Sequence[str], **fields: str) -> None:
        if names:
            body = rest_changes.of_nodes(fields, self._door.version, self._door.writes_new_form)
            self._order("POST", "nodes/", {"name": list(names)} | body)

    def update_partition(self, name: str, **fields: str) -> None:
        _refuse("change partitions")

    def reserve(self, name: str, node: str, minutes: int, user: str) -> None:
        _refuse("make reservations")

    def fence(self, name: str, nodes: Sequence[str], after_s: float, lasts_s: float, user: str) -> None:
        _refuse("make reservations")

    def release(self, name: str) -> None:
        _refuse("delete reservations")

    def _order(self, method: str, what: str, body: object = None, fine: tuple[int, ...] = ()) -> Row:
        try:
            return self._door.order(method, what, body, fine)
        except RefusedError as error:
            text = f"slurmrestd: {method} {what.partition('?')[0]} refused: {error}"
            raise (NotNowError if NOT_NOW in text else RefusedError)(text) from None

    def _signalled(self, answer: Row, fine: tuple[int, ...]) -> None:
        """Look at what became of each job. Raises RefusedError."""
        for row in rows(answer.get("status")):
            error = row.get("error")
            if isinstance(error, dict) and error.get("code") and error.get("code") not in fine:
                raise RefusedError(f"slurmrestd: job {text(row.get('step_id'))}: {visible(text(error.get('string')))}")


def _refuse(what: str) -> NoReturn:
    raise NotByRestError(
        f'slurm.backend = "rest" cannot {what}: use "cli" where Slurm\'s commands are (SLURM_PAL_SLURM_BACKEND=cli)'
    )
