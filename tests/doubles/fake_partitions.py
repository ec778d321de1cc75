# SPDX-License-Identifier: MIT
"""The fake Slurm with several partitions: a job's list of them can be changed while it waits, and not while it runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from slurm_pal.base.hostlist import expand, fold
from slurm_pal.slurm.client import Completed
from slurm_pal.slurm.fake import FakeJob, FakeNode, FakeSlurm


class PartedSlurm(FakeSlurm):
    """Each job has a list of partitions, `--partition` at first, and runs in the first of them that has room."""

    def __init__(
        self, parts: Mapping[str, Sequence[str]], clock: Callable[[], float], gpus: int = 2, completing: int = 0
    ) -> None:
        names = sorted({name for nodes in parts.values() for name in nodes})
        super().__init__([FakeNode(name, gpus=gpus) for name in names], clock=clock, completing=completing)
        self.parts = parts
        self.down_parts: set[str] = set()
        self.lists: dict[int, str] = {}  # as last set while it waited
        self.ran: dict[int, str] = {}  # job -> the partition of its last start

    def list_of(self, job: FakeJob) -> str:
        return self.lists.get(job.job_id, job.options.get("partition", ",".join(self.parts)))

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

    def _show(self, words: list[str]) -> Completed:
        if words and words[0] in ("partition", "partitions"):
            rows = [
                f"PartitionName={name} Default=NO DefaultTime=NONE MaxTime=UNLIMITED Nodes={fold(list(nodes))} "
                f"State={'DOWN' if name in self.down_parts else 'UP'}\n"
                for name, nodes in self.parts.items()
            ]
            return Completed(0, "".join(rows), "")
        return super()._show(words)

    def _job_line(self, job: FakeJob) -> str:
        shown = self.ran[job.job_id] if job.state in ("RUNNING", "COMPLETING") else self.list_of(job)
        return re.sub(r" Partition=gpu ", f" Partition={shown} ", super()._job_line(job))
