# SPDX-License-Identifier: MIT
"""A job of the virtual Slurm: as slurmctld keeps it, and as it shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_pal.base.hostlist import fold
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.request import Request
from slurm_pal.slurm.parse import job_of
from slurm_pal.twin.room import Take

HELD_ADMIN, BEGIN = "JobHeldAdmin", "BeginTime"
UNLIMITED_S = 365 * 86400.0


class VirtualJob:
    """One job. Moments are Unix s. `changed` is called after each change of what Slurm shows of it."""

    __slots__ = (
        "account", "admin_comment", "base_priority", "begin_s", "billed_s", "comment", "edition", "eligible_s", "end_s",
        "exc_nodes", "features", "had_nodes", "held", "job_id", "limit_s", "marked", "nice", "noun", "options",
        "own_priority", "partitions", "preempted_s", "preempts_s", "prefer", "priority", "qos", "reason", "req_nodes",
        "request", "requeues", "restarts", "running_in", "shown", "site_factor", "start_s", "state", "submit_s",
        "takes", "user", "wanted",
    )  # fmt: skip

    def __init__(
        self, job_id: int, options: Mapping[str, str], request: Request, partitions: Sequence[str], user: str,
        account: str, submit_s: float, limit_s: float | None,
    ) -> None:  # fmt: skip
        self.job_id, self.options, self.request, self.user, self.account = job_id, options, request, user, account
        self.partitions: tuple[str, ...] = tuple(partitions)
        self.submit_s = self.eligible_s = submit_s
        self.limit_s = limit_s  # None: unlimited
        self.state, self.reason, self.running_in = "PENDING", "None", ""
        self.takes: tuple[Take, ...] = ()
        self.had_nodes = 0  # in its last run
        self.req_nodes: tuple[str, ...] = request.req_nodes
        self.exc_nodes: tuple[str, ...] = request.exc_nodes
        self.features, self.prefer = request.constraint, options.get("prefer", "")
        self.comment, self.admin_comment = options.get("comment", ""), ""
        self.qos = options.get("qos", "")
        self.nice, self.site_factor = int(options.get("nice") or 0), 0
        self.requeues = "no-requeue" not in options
        self.start_s = self.end_s = 0.0
        self.begin_s = 0.0  # it does not start earlier
        self.billed_s = 0.0  # until then its usage is known
        self.preempts_s = 0.0  # when it first had others stopped to start itself; 0: it has not
        self.preempted_s = 0.0  # when it was told to leave within its grace time; 0: it was not
        self.held, self.restarts, self.edition = False, 0, 0
        self.base_priority = self.priority = 0
        self.own_priority: int | None = None  # that an administrator has set
        self.wanted: dict[str, Any] = {}  # partition -> Asking, until its lists change
        self.noun: SlurmJob | None = None  # as it is shown, until it changes
        self.marked: bool | None = None  # whether words of ours are on it
        self.shown: SlurmJob | None = None  # what never changes of it

    def changed(self) -> None:
        """It shows anew what it is."""
        self.noun = self.marked = None

    def lists_changed(self) -> None:
        """Other nodes may take it now."""
        self.noun = None
        self.wanted.clear()

    @property
    def nodes(self) -> int:
        return len(self.takes)


def pairs_of(job: VirtualJob) -> dict[str, str]:
    """What `scontrol show job` prints of its request, as 22.05 does."""
    options, request = job.options, job.request
    low, high = request.nodes_min, request.nodes_max
    stated = "nodes" in options
    cpus = max(request.tasks * max(1, request.cpus_per_task), 1)
    pairs = {
        "JobId": str(job.job_id), "JobName": options.get("job-name", "job"), "UserId": f"{job.user}(1000)",
        "Requeue": str(int(job.requeues)), "BatchFlag": "1", "TimeLimit": _limit(job.limit_s),
        "NumNodes": f"{low}-{high or low}" if stated else str(low), "NumTasks": str(request.tasks),
        "NumCPUs": str(cpus), "CPUs/Task": str(request.cpus_per_task),
        "ReqTRES": f"cpu={cpus},node={low}", "OverSubscribe": "OK", "Account": job.account, "QOS": job.qos,
        "NtasksPerN:B:S:C": f"{request.tasks_per_node or 0}:0:*:*", "MinCPUsNode": str(request.min_cpus or 1),
    }  # fmt: skip
    if "exclusive" in options:
        pairs["OverSubscribe"] = "NO"
    per_node = options.get("gpus-per-node") or options.get("gres", "").removeprefix("gpu:")
    for key, text in (
        ("TresPerNode", per_node), ("TresPerJob", options.get("gpus", "")),
        ("TresPerTask", options.get("gpus-per-task", "")),
        ("CpusPerTres", options.get("cpus-per-gpu", "")), ("MemPerTres", options.get("mem-per-gpu", "")),
    ):  # fmt: skip
        if text:
            pairs[key] = f"gres:gpu:{text}"
    if request.mem_per_node_mib is not None:
        pairs["MinMemoryNode"] = f"{request.mem_per_node_mib}M"
    elif request.mem_per_cpu_mib:
        pairs["MinMemoryCPU"] = f"{request.mem_per_cpu_mib}M"
    for key, name in (("Features", "constraint"), ("Reservation", "reservation"), ("Dependency", "dependency")):
        if options.get(name):
            pairs[key] = options[name]
    return pairs


def _limit(limit_s: float | None) -> str:
    if limit_s is None:
        return "UNLIMITED"
    minutes, rest = divmod(int(limit_s), 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:{rest:02d}"


def noun_of(job: VirtualJob, names: Sequence[str]) -> SlurmJob:
    """The job as `SlurmClient` shows it."""
    if job.noun is not None:
        return job.noun
    if job.shown is None:
        job.shown = job_of(pairs_of(job), "")
    raw = job.shown.raw
    if job.takes:
        raw = raw | {"NumNodes": str(len(job.takes)), "ReqTRES": f"node={len(job.takes)}"}
    elif job.had_nodes:  # after a requeue Slurm shows the least number in the TRES, and the range no more
        raw = raw | {"NumNodes": str(job.had_nodes)}
    if job.prefer:
        raw = raw | {"Prefer": job.prefer}
    nodes = tuple(names[take.node] for take in job.takes)
    job.noun = job.shown._replace(
        state=job.state, reason=job.reason, partition=job.running_in or ",".join(job.partitions),
        gpus={names[take.node]: take.indexes for take in job.takes}, nodes=nodes, req_nodes=job.req_nodes,
        exc_nodes=job.exc_nodes, submit_s=job.submit_s, start_s=job.start_s, end_s=job.end_s,
        time_limit_s=None if job.limit_s is None else int(job.limit_s), restarts=job.restarts, comment=job.comment,
        admin_comment=job.admin_comment, priority=0 if job.held else job.priority, eligible_s=job.eligible_s,
        gpus_given=sum(take.gpus.bit_count() for take in job.takes), nice=job.nice, raw=raw,
    )  # fmt: skip
    return job.noun


def names_text(nodes: Sequence[str]) -> str:
    """A node list as Slurm prints it."""
    return fold(list(nodes))
