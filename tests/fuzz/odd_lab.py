# SPDX-License-Identifier: MIT
"""A lab with nodes and partitions of all sorts. For fuzzers, which read verdicts, nothing starts; a live one runs jobs.

The filter leaves held jobs alone, so what keeps jobs from starting is a scheduler that does not run.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from slurm_pal.base.config import Config, load
from slurm_pal.filter.source import text_of
from slurm_pal.lab import conf
from slurm_pal.lab import filter as lab_filter
from slurm_pal.lab.conf import LabSpec
from slurm_pal.lab.lab import Lab
from slurm_pal.publisher.publication import site, write_table
from slurm_pal.slurm.cli import CliClient, subprocess_runner
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.parse import nobodys
from slurm_pal.store import snapshot
from slurm_pal.store.snapshot import GpuScore

NODES = (
    # name, CPUs as sockets x cores x threads, MiB, GPUs, their type, features, MiB of disk
    ("n[0-3]", "1:16:1", 64000, 4, "", "a,ib", 1000),
    ("n[4-5]", "1:8:1", 32000, 2, "", "a,small", 100),
    ("n6", "1:16:1", 128000, 4, "", "a,special,ib", 1000),
    ("n7", "1:16:1", 64000, 8, "", "b,ib", 0),
    ("n8", "2:8:2", 64000, 4, "", "b,smt", 1000),
    ("n[9-10]", "1:16:1", 64000, 4, "h100", "c", 1000),
    ("n11", "2:4:1", 16000, 2, "h100", "c,small", 1000),
)
WEIGHTS = {"n6": 1000, "n7": 10}  # of a live lab; the others have Slurm's own, 1
PARTITIONS = """\
PartitionName=gpu Nodes=ALL State=UP
PartitionName=main Nodes=n[0-8] Default=YES MaxTime=2-0 DefaultTime=60 State=UP
PartitionName=alike Nodes=n[0-3] State=UP
PartitionName=few Nodes=n[4-7] DefMemPerCPU=3000 State=UP
PartitionName=rates Nodes=n[3-8] State=UP DefCpuPerGPU=6 DefMemPerGPU=9000
PartitionName=limits Nodes=n[0-8] MaxNodes=1 MaxCPUsPerNode=10 MaxMemPerCPU=2000 MaxTime=30 State=UP
PartitionName=typed Nodes=n[9-11] State=UP
PartitionName=alone Nodes=n6,n7 OverSubscribe=EXCLUSIVE State=UP
PartitionName=closed Nodes=n[0-8] AllowGroups=nobody State=UP
PartitionName=off Nodes=n[0-8] State=INACTIVE
"""
SCHEDULER = "defer,sched_interval=100000000,sched_min_interval=2000000000,bf_interval=100000,ignore_prefer_validation"
N_NODES, MOST_GPUS = 12, 8
THREAD_CLOCK = Path(__file__).parents[1] / "lua" / "thread_clock.c"
AWAY_S = 3000
"""The table is written so far ahead that what was given away counts for one submission only (see job_submit)."""

JOB_SUBMIT = """\
-- The filter as a fuzzer drives it: each submission in a second of its own, and what it did in a line of a log.
local HERE = "%s/"
local pal = dofile(HERE .. "pal.lua")
local clock = assert(package.loadlib(HERE .. "thread_clock.so", "thread_ms"))
local calls = 0
pal.table_path = HERE .. "pal_table.lua"
function pal.now() return os.time() + calls end
local log = io.open("%s", "a")
local inner, copy_ms
-- The job as slurmctld hands it over, and how long it takes to copy a script for Lua, which is not the filter's doing.
local job = setmetatable({}, {
  __newindex = function(_, key, value) inner[key] = value end,
  __index = function(_, key)
    local began = clock()
    local value = inner[key]
    if key == "script" then copy_ms = copy_ms + clock() - began end
    return value
  end,
})
function slurm_job_submit(submitted, partitions)
  calls = calls + 1
  inner, copy_ms = submitted, 0
  local began = clock()
  local ok, trouble = pcall(pal.submit, job, partitions)
  local took_ms = clock() - began
  local act, why = (submitted.admin_comment or ""):sub(1, 20000):match("act=(%%w+).-why=([%%w-]+)")
  if not ok then act, why = "ERROR", trouble end
  log:write(("%%.3f %%.3f %%s %%s\\n"):format(took_ms, copy_ms, act or "untouched", tostring(why)))
  log:flush()
  return slurm.SUCCESS
end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""

CLI_FILTER = """\
-- The client filter as a fuzzer drives it, and what it did in a line of a log.
local HERE = "%s/"
local pal = dofile(HERE .. "pal.lua")
pal.table_path = HERE .. "pal_table.lua"
function slurm_cli_pre_submit(options, offset)
  local began = os.clock()
  local ok, trouble = pcall(pal.client, options, offset)
  local took_ms = (os.clock() - began) * 1000
  local act, why = (options.comment or ""):sub(1, 20000):match("act=(%%w+).-why=([%%w-]+)")
  if not ok then act, why = "ERROR", trouble end
  local log = io.open("%s", "a")
  log:write(("%%.3f 0 %%s %%s\\n"):format(took_ms, act or "untouched", tostring(why)))
  log:close()
  return slurm.SUCCESS
end
function slurm_cli_setup_defaults() return slurm.SUCCESS end
function slurm_cli_post_submit() return slurm.SUCCESS end
return slurm.SUCCESS
"""


def slurm_conf_text(spec: LabSpec, live: bool = False) -> str:
    """The lab's slurm.conf with these nodes and partitions instead of its own; a live one has weights, too."""
    head = _plain_conf(spec).split("NodeName=")[0]
    if not live:
        head = "\n".join(line for line in head.splitlines() if not line.startswith("SchedulerParameters="))
        head += f"\nSchedulerParameters={SCHEDULER}"
    lines = [head, "Licenses=lic:3"]
    for names, cpus, memory_mib, gpus, kind, features, disk_mib in NODES:
        sockets, cores, threads = map(int, cpus.split(":"))
        first, last = _span(names)
        ports = f"[{spec.port + 1 + first}-{spec.port + 1 + last}]" if last > first else str(spec.port + 1 + first)
        lines.append(
            f"NodeName={names} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports} "
            f"CPUs={sockets * cores * threads} Sockets={sockets} CoresPerSocket={cores} ThreadsPerCore={threads} "
            f"RealMemory={memory_mib} TmpDisk={disk_mib} Gres=gpu:{kind + ':' if kind else ''}{gpus} "
            f"Feature={features} State=UNKNOWN{f' Weight={WEIGHTS[names]}' if live and names in WEIGHTS else ''}"
        )
    return "\n".join([*lines, PARTITIONS])


_plain_conf = conf.slurm_conf_text


def gres_conf_text(spec: LabSpec) -> str:
    """gres.conf with as many GPUs as each node has."""
    lines = []
    for names, _, _, gpus, kind, _, _ in NODES:
        typed = f"Type={kind} " if kind else ""
        lines.append(f"NodeName={names} Name=gpu {typed}File={spec.directory('dev')}/nvidia[0-{gpus - 1}]")
    return "\n".join([*lines, ""])


def _span(names: str) -> tuple[int, int]:
    first, _, last = names.strip("n[]").partition("-")
    return int(first), int(last or first)


class Act(NamedTuple):
    """What the filter did with one submission. Times are of the CPU, and of the thread that has the submission."""

    ms: float
    copy_ms: float  # of these, what slurmctld takes to hand a script to Lua
    act: str
    why: str


class OddLab:
    """One running lab, with the filter or without it."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.env, self.client_side = lab, lab.environ(), False
        for name in [name for name in self.env if name.startswith(("SBATCH_", "SLURM_PAL_OFF", "SRUN_", "SALLOC_"))]:
            del self.env[name]
        self.config: Config = load(self.env)
        self.client = CliClient(subprocess_runner(30.0, self.env))
        self.log = Path(lab.directory.log("filter_acts"))
        self.overview: Overview | None = None

    def run(self, *argv: str, timeout_s: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
        """One command in this lab, with no input. Raises subprocess.TimeoutExpired."""
        return subprocess.run(
            argv, env=self.env | env, cwd="/", capture_output=True, text=True, errors="replace", timeout=timeout_s,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip

    def filter_clients(self) -> None:
        """From now on every sbatch, srun and salloc has the client filter."""
        self.client_side = True
        etc = self.lab.directory("etc")
        Path(etc, "pal.lua").write_text(text_of("pal.lua"))
        Path(etc, "cli_filter.lua").write_text(CLI_FILTER % (etc, self.log))
        with open(self.lab.directory.conf, "a", encoding="utf-8") as stream:
            stream.write("CliFilterPlugins=lua\n")

    def set_up(self) -> None:
        """A node drained, two reservations: one now, one in an hour."""
        user = self.run("whoami").stdout.strip()
        for words in (
            ("update", "NodeName=n5", "State=DRAIN", "Reason=fuzz"),
            ("create", "reservation", "ReservationName=now", "StartTime=now", "Duration=1-0", "Nodes=n3",
             f"Users={user}", "Flags=maint,ignore_jobs"),
            ("create", "reservation", "ReservationName=later", "StartTime=now+60minutes", "Duration=60", "Nodes=n2",
             f"Users={user}"),
        ):  # fmt: skip
            done = self.run("scontrol", *words)
            if done.returncode:
                raise RuntimeError(f"scontrol {' '.join(words)}: {done.stderr}")

    def publish(self, rng: random.Random) -> None:
        """A table of this cluster with some nodes slow and others busy, at random."""
        if self.overview is None:
            self.overview = self.client.overview()
        nodes, gpus = [], []
        slow_share = rng.choice((0.1, 0.3, 0.6))
        busy_share = rng.choice((0.0, 0.5, 0.8))
        for node in self.overview.nodes:
            slow = rng.random() < slow_share
            used = node.n_gpus if not slow and rng.random() < busy_share else rng.choice((0, 0, 1))
            cpus_used = node.cpus if used == node.n_gpus else min(used, node.cpus)
            nodes.append(node._replace(gpus_used=used, cpus_used=cpus_used))
            factor = rng.uniform(1.1, 1.4) if slow else rng.uniform(0.9, 1.0)
            gpus += [
                GpuScore(node.name, k, f"{node.name}-{k}", "m", dict.fromkeys("ABC", factor), {}, 1.0, 1.0, ())
                for k in range(node.n_gpus)
            ]
        path = self.config.snapshot_path
        snapshot.publish(path, gpus, cluster="palab", epoch=1, now_s=time.time())
        self.config.set("filter", "max_age_s", 3600.0, "fuzz")
        # Jobs that end soon hold what is in use, else waiting for it would never pay.
        running = (
            nobodys(number, {"JobState": "RUNNING"})._replace(nodes=(node.name,), gpus_given=used, time_limit_s=60)
            for number, node in enumerate(nodes, 10**6)
            if (used := node.gpus_used)
        )
        overview = self.overview._replace(nodes=tuple(nodes), jobs=(*self.overview.jobs, *running))
        slurm = site(self.client).pairs
        # In slurmctld each submission so far was a second.
        ahead_s = time.time() + (0 if self.client_side else len(self.acts())) + AWAY_S
        write_table(self.config, overview, snapshot.read(path), ahead_s, "daemon", True, slurm=slurm)

    def cancel_all(self) -> None:
        """Cancel every job, and wait until none is left in the queue."""
        deadline_s = time.monotonic() + 120.0
        while self.run("squeue", "-h", "-o", "%A").stdout.strip():
            if time.monotonic() > deadline_s:
                raise RuntimeError("the queue does not become empty")
            self.run("scancel", "-Q", "-u", str(os.geteuid()))

    def acts(self) -> list[Act]:
        """What the filter has done so far."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        split = [line.split(" ", 3) for line in lines]
        return [Act(float(ms), float(copy_ms), act, why) for ms, copy_ms, act, why in split]


@contextlib.contextmanager
def odd_lab(filtered: bool, client: bool = False, live: bool = False) -> Iterator[OddLab]:
    """A running odd lab, its filter in slurmctld or in the clients; gone at the end whatever happens.

    In a live one jobs start, and the filter is the one that a site gets.
    """
    path = tempfile.mkdtemp(prefix="pal")
    install = lab_filter.install

    def wrapped(directory: lab_filter.LabDirectory) -> str:
        trouble = install(directory)
        text = JOB_SUBMIT % (directory("etc"), directory.log("filter_acts"))
        Path(directory("etc", "job_submit.lua")).write_text(text)
        target = directory("etc", "thread_clock.so")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", target, str(THREAD_CLOCK)], check=True)
        return trouble

    changed = {"slurm_conf_text": lambda spec: slurm_conf_text(spec, live), "gres_conf_text": gres_conf_text}
    kept = {name: getattr(conf, name) for name in changed}
    try:
        for name, made in changed.items():
            setattr(conf, name, made)
        lab_filter.install = install if live else wrapped
        try:
            lab = Lab.up(
                os.path.join(path, "lab"), nodes=N_NODES, gpus=MOST_GPUS, submit_filter=filtered and not client
            )
        finally:
            lab_filter.install = install
            for name, made in kept.items():
                setattr(conf, name, made)
        with lab:
            odd = OddLab(lab)
            odd.set_up()
            if filtered and client:
                odd.filter_clients()
            yield odd
    finally:
        shutil.rmtree(path, ignore_errors=True)
