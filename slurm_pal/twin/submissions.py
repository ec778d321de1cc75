# SPDX-License-Identifier: MIT
"""How jobs of a trace come to the virtual Slurm: by plain sbatch, or by palsub, whose own code decides."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

from slurm_pal.base.config import Config
from slurm_pal.base.errors import PalError
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, UNKNOWN_CLASS
from slurm_pal.sensitivity.cascade import HISTORY, UNKNOWN, Verdict
from slurm_pal.simulate.job_room import wanted
from slurm_pal.simulate.jobs import ReplayJob
from slurm_pal.slurm.client import SlurmClient
from slurm_pal.submit import lease_file, planner
from slurm_pal.submit.argv import parse
from slurm_pal.submit.choice import Choice, Moving
from slurm_pal.submit.watcher import LOOK_S, RUNS_S, Watcher
from slurm_pal.twin.client import VirtualClient
from slurm_pal.twin.slurm_side import NOTHING_KNOWN, SlurmSide
from slurm_pal.twin.virtual_site import DEFAULT

CHECKPOINT = "USR1"


def words_of(job: ReplayJob, side: SlurmSide = NOTHING_KNOWN) -> list[str]:
    """The words of sbatch that ask for what the trace says; for CPUs and memory only where these may run out."""
    shape = job.trace.shape
    words = [f"--job-name={job.trace.app or 'job'}", f"--partition={job.trace.partition or DEFAULT}"]
    if math.isfinite(job.limit_s):
        seconds = max(1, math.ceil(job.limit_s))
        words.append(f"--time={seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}")
    kind = f"{shape.gpu_type}:" if shape.gpu_type else ""
    if shape.nodes is not None:
        words.append(f"--nodes={shape.nodes}")
    if shape.per_node is not None:
        words.append(f"--gpus-per-node={kind}{shape.per_node}")
    elif shape.total == 1:
        words.append(f"--gpus-per-node={kind}1")
    else:
        words.append(f"--gpus={kind}{shape.total}")
    if shape.whole_nodes:
        words.append("--exclusive")
    if job.trace.qos:
        words.append(f"--qos={job.trace.qos}")
    return words + _cpus_and_memory(job, side) if side.sizes else words


def _cpus_and_memory(job: ReplayJob, side: SlurmSide) -> list[str]:
    need = wanted(job.trace)
    if need.by_gpu:
        found = [f"--cpus-per-gpu={need.cpus}"] if need.cpus else []
        return found + ([f"--mem-per-gpu={need.memory_mib}M"] if need.memory_mib and side.counts_memory else [])
    found = ["--ntasks-per-node=1", f"--cpus-per-task={need.cpus}"] if need.cpus else []
    if side.counts_memory and need.memory_mib:
        found.append(f"--mem={need.memory_mib}M")
    return found


def known_class(sensitivity: str) -> Verdict:
    """What palsub knows of the class: that of earlier jobs of the name, as the simulator's other policies assume."""
    shown = "C" if sensitivity == "D" else sensitivity
    if shown == UNKNOWN_CLASS or shown not in SENSITIVITY_CLASSES:
        return UNKNOWN
    return Verdict(shown, HISTORY, 1.0, "the trace", is_measured=True)


class _Answered:
    """In place of `submit.asked.Asked`: the virtual Slurm answers at once."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client

    def begin(self, reservations: bool) -> None:
        """Nothing to wait for."""

    def client(self, timeout_s: float) -> SlurmClient:
        return self._client


class Plain:
    """sbatch as its users write it; with `scripts`, by the number of the next job, also their words for the filter."""

    def __init__(
        self, client: VirtualClient, scripts: dict[int, str] | None = None, side: SlurmSide = NOTHING_KNOWN
    ) -> None:
        self._client, self._scripts, self._side = client, scripts, side
        self._last = 0

    def submit(self, job: ReplayJob, now_s: float) -> int:
        """The number of the new job."""
        if self._scripts is not None:
            self._scripts.clear()
            self._scripts[self._last + 1] = script_of(job)
        self._last = self._client.sbatch(words_of(job, self._side), job.user or "user", job.account)
        return self._last


def script_of(job: ReplayJob) -> str:
    """What users write into their scripts for the filter: class, and whether the job may be moved."""
    known = known_class(job.trace.sensitivity).sensitivity
    lines = ["#!/bin/sh", *([f"#PAL class={known}"] if known != UNKNOWN_CLASS else [])]
    lines += ["#SBATCH --open-mode=append", "#PAL movable"] if job.trace.movable else []
    return "\n".join([*lines, "true", ""])


class Palsub:
    """palsub: plan, lease, sbatch; its watcher where no daemon takes leases back."""

    def __init__(
        self, config: Config, client: VirtualClient, clock: Callable[[], float], *, watched: bool,
        side: SlurmSide = NOTHING_KNOWN,
    ) -> None:  # fmt: skip
        self._config, self._client, self._clock, self._watched, self._side = config, client, clock, watched, side
        self._watcher: Watcher | None = None
        self._folder = ""  # of the leases
        self.troubles: list[str] = []

    def submit(self, job: ReplayJob, now_s: float) -> int:
        """The number of the new job. What fails on our side ends in plain sbatch, as in palsub."""
        words = words_of(job, self._side)
        who = job.user or "user", job.account
        if not self._config.flag("submit", "enabled"):
            return self._client.sbatch(words, *who)
        try:
            line = parse(words)
            moving = Moving(True, CHECKPOINT) if job.trace.movable else Moving()
            planned = planner.plan(
                line, Choice(watch=self._watched), None, self._config, known_class(job.trace.sensitivity),
                [], moving, line, _Answered(self._client), now_s,  # type: ignore[arg-type]
            )  # fmt: skip
            planner.prepare(planned)
        except (PalError, OSError) as error:
            self.troubles.append(str(error))
            return self._client.sbatch(words, *who)
        job_id = self._client.sbatch(planned.words[1:], *who)
        if planned.lease is not None and planned.prepared:
            path = lease_file.confirm(planned.prepared, planned.lease._replace(job_id=job_id))
            if self._watcher is None:
                self._watcher = Watcher(os.path.dirname(path), self._client, self._clock, lambda pause_s: None)
            self._folder = os.path.dirname(path)
        return job_id

    def watch_s(self, now_s: float) -> float:
        """One look of the watcher; seconds until the next, infinity where no lease is left."""
        if self._watcher is None or not self._watcher.step():
            return math.inf
        leases = lease_file.read_all(self._folder).values()
        return RUNS_S if all(lease.started for lease in leases) else LOOK_S
