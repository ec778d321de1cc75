# SPDX-License-Identifier: MIT
"""One arm on a lab of its own: submissions at their moments, what the arm runs beside them, the end of all jobs."""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

from slurm_pal.base import config as settings
from slurm_pal.base.errors import SlurmError
from slurm_pal.journal.journal import open_journal
from slurm_pal.journal.paths import journal_path
from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.processes import stop, with_variable
from slurm_pal.loans.terms import terms_of
from slurm_pal.placement.occupancy import Table
from slurm_pal.store import heartbeat, snapshot
from slurm_pal.store.snapshot import GpuScore
from slurm_pal.trial.arms import Arm, arm_of
from slurm_pal.trial.compression import COLUMNS, LabJob
from slurm_pal.trial.ran import RanJob, ran
from slurm_pal.trial.scaling import variables
from slurm_pal.trial.strain import Strain, StrainMeter

NAP_S = 0.1
LOOK_S = 1.0  # between two looks at the queue
COUNT_EVERY = 16  # submissions
READY_S = 20.0  # until a daemon takes leases back
TERM_S = 15.0  # pal-rebalance takes back what it set
PATIENCE = 3.0  # of the time that an arm is expected to take
PATIENCE_LEAST_S = 300.0
ARGV_S = 30.0  # a command of Slurm or ours


class Stopped(Exception):
    """The trial is to end."""


class ArmPlan(NamedTuple):
    """All that an arm needs."""

    name: str
    arm: Arm
    jobs: tuple[LabJob, ...]
    nodes: int
    gpus: int  # per node
    true: Mapping[str, Table]  # class -> [node][index]
    scores: Mapping[str, Table]  # as published
    levels: Mapping[str, Table]  # their variability classes, as numbers of the least slowdown
    seed: int
    edits: tuple[tuple[str, str], ...]  # of slurm.conf
    settings: Mapping[str, str]  # of pal.toml, as SECTION.KEY
    compress: float
    expected_s: float  # s of the lab
    ticks: str = ""  # folder in which its ticks are kept
    demand: Mapping[int, float] = {}  # hours from the first submission (below 0: before it) -> nodes that owners needed


class ArmResult(NamedTuple):
    """What came of it."""

    name: str
    jobs: tuple[RanJob, ...]
    strain: Strain
    lasted_s: float  # s of the lab, from the first submission to the last end


class Progress:
    """How far an arm is; written by its thread, read by another."""

    def __init__(self, jobs: int) -> None:
        self.jobs, self.submitted, self.ended = jobs, 0, 0


def check_programs(arms: Iterable[str]) -> None:
    """Raise PalError at once, not after hours, where a program that an arm starts is not installed."""
    for arm in arms:
        row = arm_of(arm)
        for name, wanted in (("palsub", row.palsub), ("pal-rebalance", row.tick), ("pal", row.filter)):
            if wanted:
                program(name)


def run_arm(plan: ArmPlan, progress: Progress, ending: threading.Event) -> ArmResult:
    """Run one arm. Whatever happens, its lab is gone afterwards, and every process that it started.

    Raises Stopped soon after `ending` is set, and PalError for what cannot be run.
    """
    root = tempfile.mkdtemp(prefix="pal")
    try:
        with _no_process_left(root), _lab(plan, root) as lab:
            return _Arm(plan, lab, root, progress, ending).run()
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def _no_process_left(root: str) -> Iterator[None]:
    """End whatever bears this arm's own variable: daemons, watchers, guards."""
    try:
        yield
    finally:
        for _ in range(3):  # an heir may start while its elder ends
            stop(with_variable("XDG_STATE_HOME", os.path.join(root, "state")), 2.0, lambda: None)


@contextlib.contextmanager
def _lab(plan: ArmPlan, root: str) -> Iterator[Lab]:
    """A lab with the true slowdowns, and with the scores published."""
    table = os.path.join(root, "gpus.csv")
    with open(table, "w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream, lineterminator="\n")
        rows.writerow(("node", "index", "A", "B", "C"))
        rows.writerows((f"n{n}", k, *(_at(plan.true, c, n, k) for c in "ABC")) for n, k in _places(plan))
    with open(os.path.join(root, "table"), "w", encoding="ascii") as stream:
        for n, k in _places(plan):
            stream.write(f"n{n} {k} {' '.join(f'{_at(plan.true, c, n, k):.6f}' for c in COLUMNS[2:])}\n")
    for folder in ("jobs", "saved", "state", "config", "tmp"):
        os.mkdir(os.path.join(root, folder))
    shutil.copyfile(str(files("slurm_pal.trial") / "job.sh"), os.path.join(root, "job.sh"))
    with Lab.up(
        os.path.join(root, "lab"), nodes=plan.nodes, gpus=plan.gpus, seed=plan.seed, gpu_table=table,
        cpus=max(16, 2 * plan.gpus), memory_mib=max(16, 2 * plan.gpus) * 4000,
        submit_filter=plan.arm.filter, conf_edits=plan.edits,
    ) as lab:  # fmt: skip
        yield lab


def _places(plan: ArmPlan) -> Iterator[tuple[int, int]]:
    return ((node, index) for node in range(plan.nodes) for index in range(plan.gpus))


def _at(tables: Mapping[str, Table], sensitivity: str, node: int, index: int) -> float:
    return float(tables[sensitivity if sensitivity in tables else "C"][node][index])


class _Arm:
    """The state of one arm while its lab is up."""

    def __init__(self, plan: ArmPlan, lab: Lab, root: str, progress: Progress, ending: threading.Event) -> None:
        self._plan, self._lab, self._root = plan, lab, root
        self._arm = plan.arm
        self._progress, self._ending = progress, ending
        self._meter = StrainMeter()
        foreign = ("SLURM", "SBATCH_", "SQUEUE_")  # no setting of whoever runs the trial
        clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        places = {"XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "config", "TMPDIR": "tmp"}
        own = {name: os.path.join(root, folder) for name, folder in places.items()}
        self._env = lab.environ(clean) | own | variables(plan.settings)

    def run(self) -> ArmResult:
        config = settings.load(self._env)
        self._publish(config.snapshot_path)
        self._teach(config)
        with self._beside(config):
            began = time.monotonic()
            boot_s = _uptime_s()
            submitted_s = self._submit(began)
            self._wait(began)
            lasted_s = time.monotonic() - began
        jobs = tuple(
            ran(job.number, self._lines(job.number), at_s, boot_s, self._plan.compress)
            for job, at_s in zip(self._plan.jobs, submitted_s, strict=True)
        )
        return ArmResult(self._plan.name, jobs, self._meter.strain(), round(lasted_s, 1))

    def _publish(self, path: str) -> None:
        """The scores that everybody but the jobs goes by."""
        plan, now_s = self._plan, time.time()
        ranks = {c: {x: k for k, x in enumerate(sorted({x for row in t for x in row}))} for c, t in plan.levels.items()}
        gpus = self._lab.registry()
        rows = [
            GpuScore(
                f"n{n}", k, gpus.gpu(f"n{n}", k).uuid, gpus.gpu(f"n{n}", k).model,
                {c: _at(plan.scores, c, n, k) for c in "ABC"},
                {c: f"v{ranks[c][plan.levels[c][n][k]]}" for c in "ABC"}, now_s, 1.0, (),
            )
            for n, k in _places(plan)
        ]  # fmt: skip
        snapshot.publish(path, rows, cluster="palab", epoch=1, now_s=now_s)

    def _teach(self, config: settings.Config) -> None:
        """What owners needed before: on a site the journal has it from sacct."""
        terms = terms_of(config)
        if terms is not None and self._plan.demand:
            first = int(time.time() // terms.hour_s)
            past = {first + hour: nodes for hour, nodes in self._plan.demand.items()}
            with open_journal(journal_path(config, False)) as journal:
                journal.add_demand(terms.key, past, min(past))

    @contextlib.contextmanager
    def _beside(self, config: settings.Config) -> Iterator[None]:
        """What this arm runs beside the jobs, once it is at work."""
        if self._arm.tick:
            every = f"--every={config.number('rebalance', 'interval_s'):g}"
            argv = [program("pal-rebalance"), "--daemon", "--act", every]
            if self._plan.ticks:
                shutil.rmtree(self._plan.ticks, ignore_errors=True)  # of a run that was cut short
                argv += ["--keep-ticks", self._plan.ticks]
        elif self._arm.filter:
            argv = [program("pal"), "publish-table", "--every", "1"]
        else:
            yield
            return
        log = os.path.join(self._root, "beside.log")
        with open(log, "w", encoding="utf-8") as stream:
            daemon = subprocess.Popen(
                argv, env=self._env, cwd=self._root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stream,
                start_new_session=True,
            )  # fmt: skip
        try:
            deadline_s = time.monotonic() + READY_S
            while not heartbeat.fresh(config.snapshot_path, time.time(), 60.0):
                self._check(daemon, log)
                if time.monotonic() > deadline_s:
                    raise SlurmError(
                        f"{self._plan.name}: {_last_line(log) or argv[0]} was not at work in {READY_S:g} s"
                    )
                self._nap(NAP_S)
            yield
            self._check(daemon, log)
        finally:
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(TERM_S)
            daemon.kill()
            daemon.wait()

    def _check(self, daemon: subprocess.Popen[bytes], log: str) -> None:
        """Raise SlurmError if it has ended: it may lack the rights that the arm needs."""
        if daemon.poll() is not None:
            said = _last_line(log) or "without a word"
            raise SlurmError(f"arm {self._plan.name}: its daemon ended (exit code {daemon.returncode}): {said}")

    def _nap(self, seconds: float) -> None:
        """Sleep; raise Stopped if the trial is to end."""
        if self._ending.is_set():
            raise Stopped
        self._meter.nap(seconds)

    def _submit(self, began: float) -> list[float]:
        """Submit all jobs at their moments; when the command of each began, s since the first."""
        found = []
        for job in self._plan.jobs:
            while (left_s := began + job.at_s - time.monotonic()) > 0:
                self._nap(min(left_s, NAP_S))
            found.append(time.monotonic() - began)
            self._meter.submitted(found[-1] - job.at_s)
            self._run(*self._argv(job), words=self._script(job), env=self._stated(job))
            self._progress.submitted += 1
            if self._progress.submitted % COUNT_EVERY == 0:
                self._left()
            if self._ending.is_set():
                raise Stopped
        return found

    def _argv(self, job: LabJob) -> list[str]:
        words = ["--parsable", "-o", "/dev/null", "-J", f"t{job.number}", f"--time={job.limit_min}", *job.words]
        if not self._arm.palsub or job.plain:
            return ["sbatch", *words]
        ours = [f"--pal-class={job.sensitivity}"] if job.sensitivity else []
        ours += ["--pal-checkpoint=USR1"] if self._arm.tick and job.movable else []
        return [program("palsub"), *ours, *words]

    def _stated(self, job: LabJob) -> dict[str, str]:
        """The filter takes the class from the environment, with the plug-in and without it."""
        stated = {"SLURM_PAL_CLASS": job.sensitivity} if self._arm.filter and job.sensitivity else {}
        return self._env | stated

    def _script(self, job: LabJob) -> str:
        values = {
            "number": job.number, "work": round(100 * job.work_s), "limit": 6000 * job.limit_min,
            "penalty": f"{job.penalty:g}", "column": job.column, "cost": round(100 * job.cost_s), "folder": self._root,
            "every": round(100 * job.every_s), "again": round(100 * job.again_s),
        }  # fmt: skip
        lines = [f"{name}='{value}'" for name, value in values.items()]  # numbers, and a path that LabDirectory checked
        return "\n".join(["#!/bin/sh", *lines, '. "$folder/job.sh"', ""])

    def _run(self, *argv: str, words: str = "", env: Mapping[str, str] | None = None) -> str:
        """Raises SlurmError when the command fails."""
        try:
            done = subprocess.run(
                argv, input=words, env=env or self._env, cwd=self._root, capture_output=True, text=True,
                timeout=ARGV_S, check=False, start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SlurmError(
                f"arm {self._plan.name}: {os.path.basename(argv[0])} took more than {ARGV_S:g} s"
            ) from None
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise SlurmError(f"arm {self._plan.name}: {os.path.basename(argv[0])} failed: {said}")
        return done.stdout

    def _wait(self, began: float) -> None:
        """Until no job is left. Raises SlurmError when that takes much longer than expected."""
        most_s = max(PATIENCE_LEAST_S, PATIENCE * self._plan.expected_s)
        while left := self._left():
            if time.monotonic() - began > most_s:
                raise SlurmError(f"arm {self._plan.name}: {left} jobs have not ended after {most_s:.0f} s of the lab")
            for _ in range(round(LOOK_S / NAP_S)):
                self._nap(NAP_S)

    def _left(self) -> int:
        """How many jobs are in the queue."""
        left = len(self._run("squeue", "-h", "-o", "%A").split())
        self._progress.ended = self._progress.submitted - left
        return left

    def _lines(self, number: int) -> Sequence[str]:
        try:
            with open(os.path.join(self._root, "jobs", str(number)), encoding="ascii", errors="replace") as stream:
                return stream.read().splitlines()
        except FileNotFoundError:
            return ()


def _uptime_s() -> float:
    """Seconds since the boot, as the jobs read them."""
    with open("/proc/uptime", encoding="ascii") as stream:
        return float(stream.read().split()[0])


def _last_line(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
        return next(iter(stream.read().strip().splitlines()[::-1]), "")
    return ""
