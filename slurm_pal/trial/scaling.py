# SPDX-License-Identifier: MIT
"""A site's scheduler and pal.toml in compressed time, and what of them could not be scaled. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.base.errors import UsageError
from slurm_pal.base.numbers import digits
from slurm_pal.lab.conf import SCHEDULER

_DEFAULTS = {"bf_interval": 30, "bf_resolution": 60, "bf_window": 1440, "sched_interval": 60, "batch_sched_delay": 3}
_LEAST = {
    "bf_interval": 1, "bf_resolution": 1, "bf_window": 1, "sched_interval": 1, "batch_sched_delay": 0,
    "bf_max_time": 1, "bf_min_age_reserve": 0,
}  # fmt: skip
"""Times of SchedulerParameters, and the least that Slurm takes. bf_window counts minutes, the others seconds."""
_AS_THEY_ARE = (
    "bf_continue", "bf_busy_nodes", "bf_ignore_newly_avail_nodes", "bf_job_part_count_reserve", "bf_licenses",
    "bf_max_job_array_resv", "bf_max_job_assoc", "bf_max_job_part", "bf_max_job_start", "bf_max_job_test",
    "bf_max_job_user", "bf_max_job_user_part", "bf_min_prio_reserve", "bf_node_space_size", "bf_one_resv_per_job",
    "bf_running_job_reserve", "bf_yield_interval", "bf_yield_sleep", "default_queue_depth", "defer",
    "ignore_prefer_validation", "partition_job_depth", "pack_serial_at_end", "spec_cores_first", "bf_topopt_enable",
)  # fmt: skip
_FIXED = {"sched_min_interval": "50000"}
"""Microseconds: a machine that acts as all nodes must not schedule at every event."""

_PRIORITY = (
    "PriorityWeightAge", "PriorityWeightJobSize", "PriorityWeightPartition", "PriorityFavorSmall", "PriorityFlags",
)  # fmt: skip
_PRIORITY_TIMES = ("PriorityMaxAge", "PriorityDecayHalfLife")
_ACCOUNTED = ("PriorityWeightFairshare", "PriorityWeightQOS", "PriorityWeightAssoc", "PriorityWeightTRES")
_NEED_AGE = {"PriorityMaxAge": 7 * 86400, "PriorityDecayHalfLife": 7 * 86400}

_TIMES = {
    "submit": {"lease_max_s": 1.0, "expected_run_s": 1.0},
    "rebalance": {
        "interval_s": 1.0, "partition_wait_s": 1.0, "minimum_s": 1.0, "end_guard_s": 0.0, "lost_work_s": 0.0,
        "move_cost_s": 0.0, "ack_limit_s": 5.0, "wait_max_s": 1.0, "order_bound_s": 1.0,
    },
}  # fmt: skip
"""Settings that are times of jobs, and the least that a lab needs: its own seconds are not compressed."""
_DECISIONS = ("placement", "submit", "rebalance", "sensitivity")
_PLACES = ("metrics", "log", "throughputs")
"""Settings of these sections that name files of the site."""


class Scheduler(NamedTuple):
    """What the labs' slurm.conf says instead."""

    edits: tuple[tuple[str, str], ...]  # as Lab.up takes them
    notes: tuple[str, ...]


def scheduler(conf: Mapping[str, str], compress: float) -> Scheduler:
    """The settings of slurm.conf (lower-case key -> value) for a lab; Slurm's defaults where it does not say.

    Raises UsageError for a value that Slurm would not take.
    """
    given = _words(conf.get("schedulerparameters", ""))
    lines: dict[str, str] = {}
    notes: list[str] = []
    for name, least in _LEAST.items():
        text = given.get(name, "")
        if not text and name not in _DEFAULTS:
            continue
        value = _DEFAULTS.get(name) if not text else digits(text)
        if value is None:
            raise UsageError(f"SchedulerParameters: {name}={text!r} must be a whole number")
        scaled = max(least, math.ceil(value / compress - 1e-9)) if least else round(value / compress)
        lines[name] = str(scaled)
        if scaled > 1.5 * value / compress and value:
            notes.append(f"{name} is {scaled} ({value} / {compress:g} is less than Slurm takes)")
    lines |= {name: given[name] for name in _AS_THEY_ARE if name in given}
    lines |= _FIXED | {"ignore_prefer_validation": ""}
    if left := sorted(given.keys() - lines.keys()):
        notes.append(f"not taken over: {', '.join(left)}")
    text = ",".join(f"{name}={value}" if value else name for name, value in lines.items())
    edits = [(f"SchedulerParameters={SCHEDULER}", f"SchedulerParameters={text}")]
    kind = conf.get("schedulertype", "sched/backfill")
    if kind not in ("sched/backfill", "sched/builtin"):
        raise UsageError(f"SchedulerType={kind}: a lab runs sched/backfill or sched/builtin")
    edits.append(("SchedulerType=sched/backfill", f"SchedulerType={kind}"))
    priority, more = _priority(conf, compress)
    edits.append(("PriorityType=priority/basic", priority))
    return Scheduler(tuple(edits), (*notes, *more))


def _words(text: str) -> dict[str, str]:
    pairs = (word.strip().partition("=") for word in text.split(",") if word.strip())
    return {name: value for name, _, value in pairs}


def _priority(conf: Mapping[str, str], compress: float) -> tuple[str, list[str]]:
    kind = conf.get("prioritytype", "priority/basic")
    if kind == "priority/basic":
        return "PriorityType=priority/basic", []
    if kind != "priority/multifactor":
        raise UsageError(f"PriorityType={kind}: a lab runs priority/basic or priority/multifactor")
    lines = ["PriorityType=priority/multifactor", "PriorityCalcPeriod=1"]
    lines += [f"{key}={conf[key.lower()]}" for key in _PRIORITY if key.lower() in conf]
    for key in _PRIORITY_TIMES:
        whole_s = _NEED_AGE[key] if key.lower() not in conf else _seconds(key, conf[key.lower()])
        lines.append(f"{key}={_clock(max(60, round(whole_s / compress)))}")
    unknown = [key for key in _ACCOUNTED if conf.get(key.lower(), "0") not in ("0", "")]
    return "\n".join(lines), [f"{', '.join(unknown)}: need accounting, which a lab lacks"] if unknown else []


def _seconds(key: str, text: str) -> int:
    """DAYS-HH:MM:SS, HH:MM:SS, DAYS-HH, minutes, and so on (slurm.conf(5))."""
    days, dash, clock = text.rpartition("-")
    parts = [digits(part) for part in clock.split(":")]
    numbers = [part for part in (digits(days or "0"), *parts) if part is not None]
    if len(numbers) != len(parts) + 1 or len(parts) > 3:
        raise UsageError(f"{key}={text!r} must be a time, like 7-0")
    if dash or len(parts) == 3:
        whole = [*numbers[1:], 0, 0][:3]
        return 86400 * numbers[0] + 3600 * whole[0] + 60 * whole[1] + whole[2]
    return 60 * numbers[1] + (numbers[2] if len(parts) == 2 else 0)


def _clock(seconds: int) -> str:
    return f"{seconds // 86400}-{seconds % 86400 // 3600:02}:{seconds % 3600 // 60:02}:{seconds % 60:02}"


def pal_settings(config: Config, compress: float, move_cost_s: float) -> dict[str, str]:
    """The site's decisions in compressed time, as SECTION.KEY -> value.

    A move costs what the jobs of the trial take for one, `move_cost_s` of the trace.
    """
    from slurm_pal.base.config import KEYS

    found: dict[str, str] = {}
    for section in _DECISIONS:
        for name in KEYS[section]:
            if section == "rebalance" and name in (*_PLACES, "mode", "moves"):
                continue
            least = _TIMES.get(section, {}).get(name)
            if least is not None:
                value = move_cost_s if name == "move_cost_s" else config.number(section, name)
                found[f"{section}.{name}"] = f"{max(least, KEYS[section][name].minimum or 0.0, value / compress):g}"
            elif config.origin(section, name) != "default":
                found[f"{section}.{name}"] = _text(config[section, name])
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def variables(pairs: Mapping[str, str]) -> dict[str, str]:
    """Settings as the variables that override pal.toml."""
    return {f"SLURM_PAL_{name.replace('.', '_')}".upper(): value for name, value in pairs.items()}
