# SPDX-License-Identifier: MIT
"""Slurm's answers about jobs whose users wrote whatever they liked: scontrol's records and squeue's fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slurm_pal.slurm.client import Completed

RECORD = (
    "JobId={job_id} JobName={name} UserId={user}({uid}) GroupId=g(1) MCS_label=N/A Priority={priority} Nice=0 "
    "Account={account} QOS=(null) {wckey}JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts=0 "
    "BatchFlag=1 ExitCode=0:0 TimeLimit=UNLIMITED SubmitTime=2026-11-20T21:51:04 EligibleTime=2026-11-20T21:51:04 "
    "StartTime=Unknown EndTime=Unknown Partition=gpu AllocNode:Sid={host}:4711 ReqNodeList={req} ExcNodeList={exc} "
    "NodeList={nodes} NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 CoreSpec=* {layout}MinCPUsNode=1 MinMemoryCPU=500M "
    "MinTmpDiskNode=0 Features={features} DelayBoot=00:00:00 {wanted}OverSubscribe=OK Contiguous=0 Licenses=(null) "
    "Network=(null) Command={command} WorkDir=/ AdminComment={admin} Comment={comment} Power= "
    "TresPerNode=gres:gpu:{gpus} \n"
)


@dataclass
class Told:
    """One job; `layout` is what stands behind JOB_GRES, "" while it waits."""

    job_id: int
    name: str = "train"
    user: str = "u"
    uid: int = 1
    state: str = "RUNNING"
    reason: str = "None"
    priority: int = 1
    account: str = "(null)"
    wckey: str = ""
    host: str = "login"
    req: str = "(null)"
    exc: str = "(null)"
    nodes: str = "n0"
    indexes: str = "0"
    gpus: int = 1
    command: str = "x"
    admin: str = "(null)"
    comment: str = "(null)"
    features: str = "(null)"
    prefer: str = ""
    reservation: str = ""

    def record(self) -> str:
        """As `scontrol show job -d -o` prints it, line ends of the user's and all."""
        gres = f"gpu:{self.gpus}(IDX:{self.indexes})"
        layout = f"JOB_GRES=gpu:{self.gpus} Nodes={self.nodes} CPU_IDs=0 Mem=1 GRES={gres} " if self.nodes else ""
        wckey = f"WCKey={self.wckey} " if self.wckey else ""
        wanted = f"Prefer={self.prefer} " if self.prefer else ""
        wanted += f"Reservation={self.reservation} " if self.reservation else ""
        return RECORD.format(**vars(self) | {"layout": layout, "wckey": wckey, "wanted": wanted})

    def fields(self) -> dict[str, str]:
        """squeue's fields; any other is not set."""
        return {
            "jobid": str(self.job_id), "userid": str(self.uid), "state": self.state, "reason": self.reason,
            "nodelist": self.nodes, "name": self.name, "account": self.account, "wckey": self.wckey or "(null)",
            "allocnodes": self.host, "comment": self.comment, "admin_comment": self.admin,
            "tres-per-node": f"gres:gpu:{self.gpus}", "feature": self.features, "prefer": self.prefer or "(null)",
            "reservation": self.reservation or "(null)",
        }  # fmt: skip


@dataclass
class Answers:
    """A runner for `CliClient`: a Slurm with one node n0 and these jobs, which it shows and does not change."""

    jobs: Sequence[Told]
    gpus: int = 4
    used: int = 4
    asked: list[list[str]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], stdin: str) -> Completed:
        self.asked.append([*argv, *stdin.splitlines()])
        if argv[0] == "squeue":
            form = [one.split(":", 1) for one in argv[argv.index("-O") + 1].split(",")]
            rows = (job.fields() for job in self.jobs)
            return Completed(0, "".join("".join(r.get(f, "(null)") + s for f, s in form) + "\n" for r in rows), "")
        if "show" in argv:
            return Completed(0, self._show(list(argv[argv.index("show") + 1 :])), "")
        echoed = (f"scontrol: {line}\n{self._show(line.split()[1:])}" for line in stdin.splitlines())
        return Completed(0, "".join(echoed), "")

    def _show(self, words: list[str]) -> str:
        kind, *names = [word for word in words if word not in ("-d", "-o")] or [""]
        if kind == "hostnames":
            return f"{names[0]}\n"
        if kind == "node":
            return f"NodeName=n0 Gres=gpu:{self.gpus} GresUsed=gpu:{self.used} State=MIXED Partitions=gpu \n"
        if kind == "partition":
            return "PartitionName=gpu Default=YES Nodes=n0 State=UP\n"
        if kind == "reservation":
            return "No reservations in the system\n"
        return "".join(job.record() for job in self.jobs if kind == "job" and (not names or str(job.job_id) in names))
