# SPDX-License-Identifier: MIT
"""The fake Slurm with several partitions: a job's list of them can be changed while it waits, and not while it runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from slurm_pal.base.hostlist import expand, fold
from slurm_pal.slurm.client import Completed
from slurm_pal.slurm.fake import FakeJob, FakeNode, FakeSlurm, _gpu_request
from slurm_pal.slurm.states import HELD_BACK


class PartedSlurm(FakeSlurm):
    """Each job has a list of partitions, `--partition` at first, and runs in the first of them that has room."""

    def __init__(
        self, parts: Mapping[str, Sequence[str]], clock: Callable[[], float], gpus: int = 2, completing: int = 0
    ) -> None:
        names = sorted({name for nodes in parts.values() for name in nodes})
        super().__init__([FakeNode(name, gpus=gpus) for name in names], clock=clock, completing=completing)
        self.parts = parts
        self.down_parts: set[str] = set()
        self.words: dict[str, str] = {}  # more of what Slurm shows of a partition: "PriorityTier=10 PreemptMode=OFF"
        self.lists: dict[int, str] = {}  # as last set while it waited
        self.ran: dict[int, str] = {}  # job -> the partition of its last start

    def list_of(self, job: FakeJob) -> str:
        return self.lists.get(job.job_id, job.options.get("partition", ",".join(self.parts)))

    def _unfit(self, job: FakeJob) -> bool:
        """Whether no partition has the nodes that it names or needs, though it is large enough: Slurm holds such a job
        (BadConstraints) and refuses a new one (seen on 22.05)."""
        return all(self._lacks(job, self.parts[name]) for name in self.list_of(job).split(",") if name in self.parts)

    def _lacks(self, job: FakeJob, names: Sequence[str]) -> bool:
        per_node, total, n_nodes = _gpu_request(job.options)
        count = n_nodes if "nodes" in job.options else 1
        if len(names) < count or not names:
            return False
        gpus = [self.nodes[name].gpus for name in names if name not in expand(job.exc)]
        few = sum(number >= (per_node or 0) for number in gpus) < count or (not per_node and sum(gpus) < total)
        return few or not {*expand(job.req)} <= {*names}

    def schedule(self) -> None:
        for job in self.jobs.values():
            if job.state == "PENDING" and job.reason in ("None", "Resources") and self._unfit(job):
                job.reason = HELD_BACK
        super().schedule()

    def _eligible(self, job: FakeJob) -> bool:
        return job.reason != HELD_BACK and super()._eligible(job)

    def _sbatch(self, argv: list[str], stdin: str) -> Completed:
        done = super()._sbatch(argv, stdin)
        last = max(self.jobs, default=0)
        if not done.returncode and self._unfit(self.jobs[last]):
            del self.jobs[last]
            text = "sbatch: error: Batch job submission failed: Requested node configuration is not available\n"
            return Completed(1, "", text)
        return done

    def _fit(self, job: FakeJob) -> dict[str, list[int]] | None:
        for name in self.list_of(job).split(","):
            outside = set(self.nodes) - set(self.parts[name])
            placed = super()._fit(replace(job, exc=fold(sorted({*expand(job.exc), *outside}))))
            if placed is not None and name not in self.down_parts:
                self.ran[job.job_id] = name
                return placed
        return None

    def _update(self, pairs: dict[str, str]) -> Completed:
        wanted = pairs.get("Partition")
        job = self.jobs.get(int(pairs.get("JobId", "0")))
        if wanted is not None and (job is None or job.state != "PENDING" or not {*wanted.split(",")} <= {*self.parts}):
            return Completed(1, "", "slurm_update error: Requested operation not allowed\n")
        done = super()._update({key: text for key, text in pairs.items() if key != "Partition"})
        if wanted is not None and job is not None and not done.returncode:
            self.lists[job.job_id] = wanted
        return done

    def _scontrol(self, argv: list[str], stdin: str) -> Completed:
        pairs = dict(word.split("=", 1) for word in argv[1:] if "=" in word) if argv[:1] == ["update"] else {}
        if "PartitionName" not in pairs:
            return super()._scontrol(argv, stdin)
        names = expand(pairs["Nodes"])
        if pairs["PartitionName"] not in self.parts or not {*names} <= {*self.nodes}:
            return Completed(1, "", "slurm_update error: Invalid node name specified\n")
        self.parts = {**self.parts, pairs["PartitionName"]: names}
        return Completed(0, "", "")

    def _show(self, words: list[str]) -> Completed:
        if words and words[0] in ("partition", "partitions"):
            rows = [
                f"PartitionName={name} Default=NO DefaultTime=NONE MaxTime=UNLIMITED "
                f"Nodes={fold(list(nodes)) or '(null)'} {self.words.get(name, '')} "
                f"State={'DOWN' if name in self.down_parts else 'UP'}\n"
                for name, nodes in self.parts.items()
            ]
            return Completed(0, "".join(rows), "")
        return super()._show(words)

    def _job_line(self, job: FakeJob) -> str:
        shown = self.ran[job.job_id] if job.state in ("RUNNING", "COMPLETING") else self.list_of(job)
        line = re.sub(r" Partition=gpu ", f" Partition={shown} ", super()._job_line(job))
        return line.replace("Priority=1000 ", "Priority=0 ") if job.reason == HELD_BACK else line
