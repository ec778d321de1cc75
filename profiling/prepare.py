"""From settings and a request to a plan, and from a plan to the terms of a sweep."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.config import Config
from slurm_pal.profiling import plan as planning
from slurm_pal.profiling.backends import BACKENDS, Setting, resolve
from slurm_pal.profiling.benchmarks import select
from slurm_pal.profiling.plan import Plan, Request
from slurm_pal.profiling.sweep_job import JobOptions
from slurm_pal.profiling.sweep_state import Terms
from slurm_pal.slurm.client import SlurmClient


class Wish(NamedTuple):
    """How to measure, from the command line."""

    max_parallel: int | None = None
    benchmarks: str = ""
    quick: bool = False
    seed: int | None = None
    wall_scale: float | None = None
    gpu_timeout_s: float | None = None


class Survey(NamedTuple):
    """The cluster as a sweep sees it."""

    plan: Plan
    max_parallel: int
    setting: Setting


def survey(
    client: SlurmClient,
    config: Config,
    request: Request,
    wish: Wish,
    newest: Mapping[str, float],
    now_s: float,
    environ: Mapping[str, str],
) -> Survey:
    """Ask Slurm once and choose nodes. Raises SlurmError, UsageError, MissingPackageError."""
    setting = resolve(config.text("profile", "backend"), environ)._replace(wall_scale=wish.wall_scale)
    scale = BACKENDS[setting.name].wall_scale if wish.wall_scale is None else wish.wall_scale
    node_s = planning.node_seconds(select(wish.benchmarks), scale)
    request = request._replace(
        partition=config.text("profile", "partition"), reservation=config.text("profile", "reservation")
    )
    seen = client.overview(reservations=True)
    plan = planning.choose(seen.nodes, newest, seen.reservations, request, now_s, node_s)
    total = sum(1 for node in seen.nodes if node.n_gpus)
    parallel = wish.max_parallel or int(config.number("profile", "max_parallel")) or planning.default_parallel(total)
    return Survey(plan, parallel, setting)


def terms(client: SlurmClient, config: Config, found: Survey, wish: Wish, sweep_id: str, now_s: float) -> Terms:
    """What a sweep by this plan agrees on. Raises SlurmError."""
    seed = sweep_seed(sweep_id) if wish.seed is None else wish.seed
    job = JobOptions(
        sweep_id=sweep_id,
        cluster=client.config().get("ClusterName", ""),
        directory=os.path.abspath(os.path.join(config.state_dir, "sweeps", sweep_id)),
        spool=os.path.abspath(config.spool_dir),
        python=config.text("profile", "python") or sys.executable,
        setting=found.setting._replace(seed=seed),
        time_limit_s=int(config.number("profile", "time_limit_s")),
        nice=int(config.number("profile", "nice")),
        partition=config.text("profile", "partition"),
        account=config.text("profile", "account"),
        qos=config.text("profile", "qos"),
        reservation=config.text("profile", "reservation"),
        benchmarks=wish.benchmarks,
        quick=wish.quick,
        gpu_timeout_s=wish.gpu_timeout_s,
    )
    return Terms(
        job=job,
        created_s=now_s,
        max_parallel=found.max_parallel,
        pending_max_s=config.number("profile", "pending_max_s"),
        chosen=found.plan.chosen,
        skipped=found.plan.skipped,
        node_s=found.plan.node_s,
    )


def sweep_seed(sweep_id: str) -> int:
    """The seed that a sweep's emulated noise is drawn with."""
    return int.from_bytes(hashlib.blake2b(sweep_id.encode(), digest_size=4).digest(), "big")
