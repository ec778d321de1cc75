# SPDX-License-Identifier: MIT
"""The job that measures one node, or the network between two: its sbatch argv and its script. Pure.

A pair of nodes stands where a node does, as their names with a comma between them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.node.between import PER_GPU

NAME_PREFIX = "pal-profile:"
COMMENT = "pal-profile"
WARNING_S = 60
"""How long before the time limit a job receives SIGTERM; Slurm may send it up to 60 s earlier still."""


class JobOptions(NamedTuple):
    """What is the same for all jobs of a sweep."""

    sweep_id: str
    cluster: str
    directory: str  # of the sweep, for the jobs' output
    spool: str
    python: str
    setting: Setting
    time_limit_s: int = 600
    nice: int = 10000
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    benchmarks: str = ""
    quick: bool = False
    gpu_timeout_s: float | None = None
    mode: str = ""  # "solo": one GPU after the other
    mig: bool = False
    srun: str = "srun"  # between nodes: where Slurm has it
    segments: bool = False  # each node of a pair may be on a block of its own


def job_name(sweep_id: str) -> str:
    """The name of all jobs of a sweep."""
    return NAME_PREFIX + sweep_id


def is_ours(job: SlurmJob, uid: int) -> bool:
    """Whether a job belongs to a sweep of this user: anybody may use such a name, so its owner counts too."""
    return job.name.startswith(NAME_PREFIX) and job.uid == uid


def members(node: str) -> tuple[str, ...]:
    """The nodes of a job: one, or the two of a pair."""
    return tuple(node.split(","))


def output_path(directory: str, node: str) -> str:
    """Where a node's job writes what it prints."""
    return f"{directory}/{node}.out"


def submit_argv(options: JobOptions, node: str, gpus: int, partitions: Sequence[str] = ()) -> list[str]:
    """sbatch's arguments for one node or pair, with so many GPUs in all; the script comes on stdin.

    One independent job per node: array tasks cannot name different nodes, and one job
    over many nodes is lost with the first bad one. `--export=ALL`: `SlurmClient.submit` lets
    little pass, and for all else the node would start a login shell, in 22.05 for NIL, too.
    `partitions` are those of the node, the first of which is used where the site has not chosen one for sweeps.
    Raises UsageError when a path cannot be given to sbatch.
    """
    nodes = len(members(node))
    argv = [
        f"-N{nodes}",
        "-w", node,
        "--exclusive",
        f"--gres=gpu:{gpus // nodes}",
        "--mem=0",
        "-t", _clock(options.time_limit_s),
        "-J", job_name(options.sweep_id),
        "--no-requeue",
        f"--nice={options.nice}",
        f"--comment={COMMENT}",
        "--export=ALL",
        "--chdir=/",
        "-o", _literal(output_path(options.directory, node)),
    ]  # fmt: skip
    if options.segments and nodes > 1:
        argv.append("--segment=1")
    if options.time_limit_s >= 3 * WARNING_S:  # a shorter job would be warned at its start
        argv.append(f"--signal=B:TERM@{WARNING_S}")
    for name in ("partition", "account", "qos", "reservation"):
        value = getattr(options, name) or (partitions[0] if name == "partition" and partitions else "")
        if value:
            argv.append(f"--{name}={value}")
    return argv


def _clock(seconds: int) -> str:
    minutes = max(1, -(-seconds // 60))  # Slurm counts whole minutes
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def _literal(path: str) -> str:
    """A path as sbatch's -o takes it literally: % begins a replacement there, a backslash turns all off."""
    if "\\" in path or "\n" in path:
        raise UsageError(f"state directory {path!r} holds a backslash or a line break, which sbatch -o cannot take")
    return path.replace("%", "%%")


def script(options: JobOptions, node: str, gpus: int) -> str:
    """The job's script: exec, so that Slurm's signal reaches the measuring process itself."""
    if len(members(node)) > 1:
        return _pair_script(options, node, gpus // 2)
    words = [
        options.python,
        "-P",  # do not import a json.py of the working directory
        "-m",
        "slurm_pal.profiling.node.bench",
        f"--sweep={options.sweep_id}",
        f"--cluster={options.cluster}",
        f"--spool={options.spool}",
        f"--expected={gpus}",
        f"--backend={options.setting.name}",
        f"--seed={options.setting.seed}",
    ]
    if options.setting.registry:
        words.append(f"--registry={options.setting.registry}")
    if options.setting.wall_scale is not None:
        words.append(f"--wall-scale={options.setting.wall_scale:g}")
    if options.benchmarks:
        words.append(f"--bench={options.benchmarks}")
    if options.quick:
        words.append("--quick")
    if options.mode:
        words.append(f"--mode={options.mode}")
    if options.mig:
        words.append("--mig")
    if options.gpu_timeout_s is not None:
        words.append(f"--gpu-timeout-s={options.gpu_timeout_s:g}")
    return "#!/bin/sh\nexec " + shlex.join(words) + "\n"


def _pair_script(options: JobOptions, node: str, gpus: int) -> str:
    """srun starts a process for each GPU, or one a node for emulated ones; `gpus` of each node.

    It says that they get the environment: $SLURM_EXPORT_ENV of whoever began the sweep may say otherwise.
    """
    words = [options.srun, "--export=ALL", "--mpi=none", "--kill-on-bad-exit=1", "-N2"]
    words.append(f"--ntasks-per-node={gpus if options.setting.name in PER_GPU else 1}")
    words += [options.python, "-P", "-m", "slurm_pal.profiling.node.between", f"--sweep={options.sweep_id}"]
    words += [f"--spool={options.spool}", f"--nodes={node}", f"--gpus={gpus}", f"--backend={options.setting.name}"]
    words.append(f"--seed={options.setting.seed}")
    if options.setting.registry:
        words.append(f"--registry={options.setting.registry}")
    if options.setting.wall_scale is not None:
        words.append(f"--wall-scale={options.setting.wall_scale:g}")
    return "#!/bin/sh\nexec " + shlex.join(words) + "\n"
