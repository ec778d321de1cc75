# SPDX-License-Identifier: MIT
"""From settings and a request to a plan, and from a plan to the terms of a sweep."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from slurm_pal.base.cluster import Node
from slurm_pal.base.config import Config
from slurm_pal.base.errors import ConfigError, UsageError, one_line
from slurm_pal.profiling.node.backends import BACKENDS, Setting, resolve
from slurm_pal.profiling.node.benchmarks import select
from slurm_pal.profiling.node.between import DEVICE_S, PER_GPU, cannot
from slurm_pal.profiling.sweep import window as windows
from slurm_pal.profiling.sweep.pair_plan import choose_pairs, crosses_blocks
from slurm_pal.profiling.sweep.plan import SweepPlan, SweepRequest, choose, default_parallel, node_seconds, within
from slurm_pal.profiling.sweep.sweep_job import JobOptions
from slurm_pal.profiling.sweep.sweep_state import SweepTerms
from slurm_pal.profiling.sweep.urgency import Urgency
from slurm_pal.slurm.client import Overview, SlurmClient
from slurm_pal.store.level_ratios import Level

CONNECT_S = 30.0
"""Expected time in which processes of two nodes load their library and find each other."""


class MeasureOptions(NamedTuple):
    """How to measure, from the command line."""

    max_parallel: int | None = None
    benchmarks: str = ""
    quick: bool = False
    seed: int | None = None
    wall_scale: float | None = None
    gpu_timeout_s: float | None = None
    mode: str = ""  # "solo": one GPU after the other
    mig: bool = False
    window: str | None = None  # hours of the day; None: profile.window
    budget_gpu_h_per_day: float | None = None  # None: profile.budget_gpu_h_per_day


class SweepSurvey(NamedTuple):
    """The cluster as a sweep sees it."""

    plan: SweepPlan
    max_parallel: int
    setting: Setting
    window: str  # "": all day
    budget_gpu_h_per_day: float  # 0: no limit
    segments: bool = False  # a pair may have nodes of two blocks, each a segment of its own


def survey(
    client: SlurmClient,
    config: Config,
    request: SweepRequest,
    wish: MeasureOptions,
    newest: Mapping[str, float],
    urgent: Mapping[str, Urgency],
    now_s: float,
    environ: Mapping[str, str],
) -> SweepSurvey:
    """Ask Slurm once and choose nodes. Raises SlurmError, UsageError, ConfigError, MissingPackageError."""
    window = _window(config, wish)
    budget_gpu_h = _budget_gpu_h(config, wish)
    setting = resolve(config.text("profile", "backend"), environ)._replace(wall_scale=wish.wall_scale)
    scale = BACKENDS[setting.name].wall_scale if wish.wall_scale is None else wish.wall_scale
    specs = select(benchmarks_of(config, wish), wish.quick)
    request = request._replace(
        partition=config.text("profile", "partition"),
        reservation=config.text("profile", "reservation"),
        budget_gpu_h_per_day=budget_gpu_h,
    )
    seen = client.overview(reservations=True)
    solo = wish.mode == "solo"
    plan = choose(
        _default_first(seen),
        newest,
        seen.reservations,
        request,
        now_s,
        lambda gpus: node_seconds(specs, scale, gpus, solo),
        urgent,
    )
    total = sum(1 for node in seen.nodes if node.n_gpus)
    parallel = wish.max_parallel or int(config.number("profile", "max_parallel")) or default_parallel(total)
    return SweepSurvey(plan, parallel, setting, window, budget_gpu_h)


def survey_pairs(
    client: SlurmClient,
    config: Config,
    request: SweepRequest,
    wish: MeasureOptions,
    pairs: int,
    have: Callable[[Level], Mapping[int, int]],
    environ: Mapping[str, str],
) -> SweepSurvey:
    """Ask Slurm once and choose pairs of nodes, so many of each level of its network less those that it has.

    Of the request, only nodes and budget count. One pair at a time: others would take from the network what is
    measured. Raises SlurmError, UsageError, ConfigError.
    """
    setting = resolve(config.text("profile", "backend"), environ)._replace(wall_scale=wish.wall_scale)
    if why := cannot(setting.name):
        raise UsageError(why)
    scale = BACKENDS[setting.name].wall_scale if wish.wall_scale is None else wish.wall_scale
    seconds = DEVICE_S * scale + (CONNECT_S if setting.name in PER_GPU else 1.0)
    asked = SweepRequest(
        request.nodes,
        partition=config.text("profile", "partition"),
        reservation=config.text("profile", "reservation"),
        budget_gpu_h_per_day=_budget_gpu_h(config, wish),
    )
    seen = client.overview(reservations=True)
    idle = choose(_default_first(seen), {}, seen.reservations, asked, 0.0, lambda gpus: seconds)
    plan = choose_pairs(idle.chosen, seen.network, pairs, have(seen.network.level), seconds)
    skipped = idle.skipped | plan.skipped
    chosen = within(plan.chosen, asked._replace(budget_gpu_h=request.budget_gpu_h), skipped)
    found = SweepPlan(tuple(chosen), skipped, seconds)
    crosses = crosses_blocks(seen.network)
    return SweepSurvey(found, 1, setting, _window(config, wish), asked.budget_gpu_h_per_day, crosses)


def _budget_gpu_h(config: Config, wish: MeasureOptions) -> float:
    given = wish.budget_gpu_h_per_day
    return config.number("profile", "budget_gpu_h_per_day") if given is None else given


def _default_first(seen: Overview) -> tuple[Node, ...]:
    """The nodes, each with its partitions in the order in which a sweep would use them: the cluster's default one, then
    those that take jobs now."""
    by_name = {partition.name: (not partition.default, not partition.up) for partition in seen.partitions}
    return tuple(
        node._replace(partitions=tuple(sorted(node.partitions, key=lambda name: by_name.get(name, (True, True)))))
        for node in seen.nodes
    )


def _window(config: Config, wish: MeasureOptions) -> str:
    """The window asked for, checked."""
    text = config.text("profile", "window") if wish.window is None else wish.window
    try:
        if text:
            windows.parse(text)
    except UsageError as error:
        if wish.window is not None:
            raise
        raise ConfigError(f"{config.origin('profile', 'window')}: profile.{one_line(error)}") from None
    return text


def benchmarks_of(config: Config, wish: MeasureOptions) -> str:
    """The benchmarks asked for: the option, with --quick the short set, else the setting."""
    return wish.benchmarks or ("" if wish.quick else config.text("profile", "benchmarks"))


def terms(
    client: SlurmClient, config: Config, found: SweepSurvey, wish: MeasureOptions, sweep_id: str, now_s: float
) -> SweepTerms:
    """The terms of a sweep by this plan. Raises SlurmError."""
    seed = sweep_seed(sweep_id) if wish.seed is None else wish.seed
    job = JobOptions(
        sweep_id=sweep_id,
        cluster=client.cluster(),
        directory=os.path.abspath(os.path.join(config.state_dir, "sweeps", sweep_id)),
        spool=os.path.abspath(config.spool_dir),
        python=config.text("profile", "python") or sys.executable,
        setting=found.setting._replace(seed=seed),
        time_limit_s=_time_limit_s(config, found),
        nice=int(config.number("profile", "nice")),
        partition=config.text("profile", "partition"),
        account=config.text("profile", "account"),
        qos=config.text("profile", "qos"),
        reservation=config.text("profile", "reservation"),
        benchmarks=benchmarks_of(config, wish),
        quick=wish.quick,
        gpu_timeout_s=wish.gpu_timeout_s,
        mode=wish.mode if wish.mode == "solo" else "",
        mig=wish.mig,
        srun=shutil.which("srun") or "srun",
        segments=found.segments,
    )
    return SweepTerms(
        job=job,
        created_s=now_s,
        max_parallel=found.max_parallel,
        pending_max_s=config.number("profile", "pending_max_s"),
        chosen=found.plan.chosen,
        skipped=found.plan.skipped,
        node_s=found.plan.node_s,
        window=found.window,
        budget_gpu_h_per_day=found.budget_gpu_h_per_day,
        yield_to_users=config.flag("profile", "yield_to_users") and not config.text("profile", "reservation"),
        max_leavings=int(config.number("profile", "max_leavings")),
        spare_nodes=int(config.number("profile", "spare_nodes")),
        publish_every_s=config.number("profile", "publish_every_s"),
        uid=os.geteuid(),
    )


def _time_limit_s(config: Config, found: SweepSurvey) -> int:
    """The setting; longer where the plan needs more, as `--mode solo` on nodes of many GPUs does."""
    return max(int(config.number("profile", "time_limit_s")), math.ceil(2.0 * found.plan.node_s))


def sweep_seed(sweep_id: str) -> int:
    """The seed of a sweep's emulated noise."""
    return int.from_bytes(hashlib.blake2b(sweep_id.encode(), digest_size=4).digest(), "big")
