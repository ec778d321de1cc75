# SPDX-License-Identifier: MIT
"""`SlurmClient` over the virtual Slurm: nouns instead of texts, and failures on request."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence

from slurm_pal.base.cluster import Node
from slurm_pal.base.errors import SlurmError, UsageError
from slurm_pal.base.hostlist import expand, fold
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.request import Conflict, read
from slurm_pal.slurm.client import Overview
from slurm_pal.submit.argv import parse
from slurm_pal.submit.options import merge
from slurm_pal.twin.virtual_job import VirtualJob
from slurm_pal.twin.virtual_slurm import Submission, VirtualSlurm

_PLACES = frozenset({"nodelist", "prefer", "hold", "dependency"})
_MARKED = re.compile(r"(?:^|\s)pal:")
Failing = Callable[[str, int], SlurmError | None]
"""Called before each order with its kind ("update", "requeue", "signal", "fence", "partition") and the job: an error
that Slurm gives instead of carrying it out, or None. The kind "overview" (job 0): slurmctld does not answer."""


def never(kind: str, job_id: int) -> SlurmError | None:
    """Everything works."""
    return None


class VirtualClient:
    """One user's connection; with `user` and `account` as those that submit. Counts as `slurm.counted` does."""

    def __init__(self, slurm: VirtualSlurm, pairs: Mapping[str, str] = {}, failing: Failing = never) -> None:
        self._slurm, self._failing = slurm, failing
        self._pairs = {"ClusterName": "twin", **pairs, "SlurmUser": f"slurm({os.geteuid()})"}
        self.queries = self.orders = self.refused = 0

    def _may_fail(self, kind: str, job_id: int = 0) -> None:
        error = self._failing(kind, job_id)
        if error is not None:
            self.refused += 1
            raise error

    # -- queries ---------------------------------------------------------------------------------

    def overview(
        self, reservations: bool = False, marked: bool = False, whole: frozenset[str] = frozenset()
    ) -> Overview:
        self.queries += 1
        self._may_fail("overview")
        slurm = self._slurm
        jobs, queued = [slurm.show(job) for job in slurm.active.values()], set[tuple[str, str]]()
        for job in slurm.pending.values():
            if job.req_nodes or (marked and (job.exc_nodes or _has_mark(job) or whole.intersection(job.partitions))):
                jobs.append(slurm.show(job))
            elif marked and not job.held:
                queued.add((",".join(job.partitions), job.reason))
        jobs.sort(key=lambda job: job.job_id)
        return Overview(self._nodes(), tuple(jobs), slurm.partitions, {}, frozenset(queued))

    def _nodes(self) -> tuple[Node, ...]:
        return tuple(self._slurm.node(row) for row in range(len(self._slurm.virtual_nodes)))

    def nodes(self) -> tuple[Node, ...]:
        self.queries += 1
        return self._nodes()

    def jobs(self) -> tuple[SlurmJob, ...]:
        self.queries += 1
        return tuple(self._slurm.show(job) for _, job in sorted(self._slurm.jobs.items()))

    def job(self, job_id: int) -> SlurmJob | None:
        return self.jobs_of([job_id]).get(job_id)

    def jobs_of(self, job_ids: Sequence[int]) -> dict[int, SlurmJob]:
        self.queries += 1
        known = self._slurm.jobs
        return {job_id: self._slurm.show(known[job_id]) for job_id in job_ids if job_id in known}

    def tasks(self, array_id: int, indexes: Sequence[int]) -> dict[int, int]:
        return {}  # there are no arrays

    def job_states(self, name_prefix: str = "", user: str = "") -> dict[int, tuple[str, str]]:
        self.queries += 1
        shown = {**self._slurm.pending, **self._slurm.active}
        return {
            number: (job.state, job.reason)
            for number, job in shown.items()
            if job.options.get("job-name", "job").startswith(name_prefix)
        }

    def node_reason(self, name: str) -> str:
        return self._slurm.virtual_nodes[self._slurm.position[name]].reason

    def site_factors(self) -> dict[int, int]:
        self.queries += 1
        if not self._slurm.settings.priority.multifactor:
            raise SlurmError("sprio failed: You are not running a supported priority plugin")
        return {job_id: job.site_factor for job_id, job in self._slurm.pending.items()}

    def statistics(self) -> dict[str, str]:
        self.queries += 1
        return {"Server thread count": "1", "Agent queue size": "0"}

    def version(self) -> tuple[int, int]:
        return 22, 5

    def cluster(self) -> str:
        return self.config().get("ClusterName", "")

    def config(self) -> dict[str, str]:
        self.queries += 1
        return dict(self._pairs)

    # -- orders ----------------------------------------------------------------------------------

    def _known(self, job_id: int) -> VirtualJob:
        job = self._slurm.jobs.get(job_id)
        if job is None:
            raise SlurmError("scontrol failed: slurm_update error: Invalid job id specified")
        return job

    def submit(self, argv: Sequence[str], script: str) -> int:
        return self.sbatch(argv)

    def sbatch(self, argv: Sequence[str], user: str = "user", account: str = "") -> int:
        """sbatch `argv`, the program's name left out; the job id. Raises SlurmError."""
        self.orders += 1
        try:
            options = merge(parse(argv), {}, None)
            nodes = expand(options.get("nodelist", ""))
        except (Conflict, UsageError) as why:
            raise SlurmError(f"sbatch: error: {why}") from None
        # What palsub leaves to Slurm is no reason for sbatch to refuse.
        asked = {name: text for name, text in options.items() if name not in _PLACES}
        request = read(asked, submitted=True)._replace(req_nodes=nodes)
        if request.shape is None or request.leave:
            raise SlurmError(f"sbatch: error: the virtual Slurm does not take such a job: {request.leave or 'no GPU'}")
        return self._slurm.submit(Submission(options, request, user, account))

    def update_job(self, job_id: int, **fields: str) -> None:
        self.orders += 1
        self._may_fail("update", job_id)
        self._slurm.update(self._known(job_id), fields)

    def update_jobs(self, job_ids: Sequence[int], **fields: str) -> None:
        self.orders += 1
        refused: SlurmError | None = None
        for job_id in job_ids:
            try:
                self._may_fail("update", job_id)
                self._slurm.update(self._known(job_id), fields)
            except SlurmError as error:
                refused = error
        if refused is not None:
            raise refused

    def cancel(self, job_ids: Sequence[int], pending_only: bool = False) -> None:
        self.orders += 1
        for job_id in job_ids:
            job = self._slurm.jobs.get(job_id)
            if job is not None and not (pending_only and job.state != "PENDING"):
                self._slurm.cancel(job)

    def signal_batch(self, job_id: int, name: str) -> None:
        self.orders += 1
        self._may_fail("signal", job_id)
        self._slurm.signal(self._known(job_id), name)

    def requeue(self, job_id: int) -> None:
        self.orders += 1
        self._may_fail("requeue", job_id)
        self._slurm.requeue(self._known(job_id))

    def unhold(self, job_id: int) -> None:
        self.orders += 1
        self._slurm.hold(self._known(job_id), False)

    def update_nodes(self, names: Sequence[str], **fields: str) -> None:
        self.orders += 1
        for name in names:
            node = self._slurm.virtual_nodes[self._slurm.position[name]]
            if "AvailableFeatures" in fields or "ActiveFeatures" in fields:
                text = fields.get("ActiveFeatures", fields.get("AvailableFeatures", ""))
                node.available = tuple(filter(None, fields.get("AvailableFeatures", text).split(",")))
                node.features = frozenset(filter(None, text.split(",")))
            node.weight = int(fields.get("Weight", node.weight))
            if "State" in fields:
                node.states = frozenset() if fields["State"] in ("RESUME", "IDLE") else frozenset({fields["State"]})
            node.reason = fields.get("Reason", node.reason)
            node.noun = None
        self._slurm.weights_changed()
        self._slurm.features_changed()

    def update_partition(self, name: str, **fields: str) -> None:
        self.orders += 1
        self._may_fail("partition")
        self._slurm.update_partition(name, fields)

    def reserve(self, name: str, node: str, minutes: int, user: str) -> None:
        raise SlurmError(f"scontrol failed: the virtual Slurm has no reservations ({name} on {fold([node])})")

    def fence(self, name: str, nodes: Sequence[str], after_s: float, lasts_s: float, user: str) -> None:
        self.orders += 1
        self._may_fail("fence", 0)
        self._slurm.reserve(name, nodes, after_s, lasts_s)

    def release(self, name: str) -> None:
        self.orders += 1
        self._slurm.release(name)


def _has_mark(job: VirtualJob) -> bool:
    """Whether words of ours are on a job: only then a tick looks at it."""
    if job.marked is None:
        job.marked = any("pal:" in text and _MARKED.search(text) for text in (job.comment, job.admin_comment))
    return job.marked
