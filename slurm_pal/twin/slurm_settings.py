# SPDX-License-Identifier: MIT
"""How the virtual slurmctld schedules: what `scontrol show config` says of it, and what slurm.conf(5) assumes else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.base.numbers import digits
from slurm_pal.decide.facts import REQUEUE_DELAY_S, requeue_delay_s
from slurm_pal.slurm.parse import seconds, whole

DAY_S = 86400.0
SLURMDBD = "accounting_storage/slurmdbd"


class PrioritySettings(NamedTuple):
    """priority/multifactor; with `multifactor` False priority/basic, where only Nice counts."""

    multifactor: bool = False
    age: int = 0  # PriorityWeightAge
    fair_share: int = 0
    size: int = 0
    partition: int = 0
    qos: int = 0
    favor_small: bool = False
    max_age_s: float = 7 * DAY_S
    half_life_s: float = 7 * DAY_S  # 0: usage is never forgotten
    calc_period_s: float = 300.0  # priorities are worked out anew so often
    fair_tree: bool = True  # PriorityFlags has no NO_FAIR_TREE
    dampening: int = 1  # FairShareDampeningFactor, of the classic formula
    size_by_time: bool = False  # PriorityFlags=SMALL_RELATIVE_TO_TIME
    from_submission: bool = False  # PriorityFlags=ACCRUE_ALWAYS


class PreemptSettings(NamedTuple):
    """preempt/partition_prio."""

    by_tier: bool = False  # PreemptType
    mode: str = "OFF"  # PreemptMode of partitions that have none of their own
    reorders: int = 1  # preempt_reorder_count
    again_s: float = 40.0  # KillWait and MessageTimeout: for so long a job that has preempted others preempts no more


class SlurmSettings(NamedTuple):
    """slurm.conf(5), SchedulerParameters and neighbours; times in s."""

    backfill: bool = True  # SchedulerType=sched/backfill
    bf_interval_s: float = 30.0
    bf_window_s: float = DAY_S
    bf_resolution_s: float = 60.0
    bf_max_job_test: int = 500
    submit_pass_s: float = 0.5  # slurmctld looks once a second whether jobs have come
    batch_sched_delay_s: float = 3.0  # and passes over the queue at most so often for them
    sched_interval_s: float = 60.0  # and so often whatever happens
    launch_s: float = 0.2  # from the start that Slurm shows to the job's first command
    complete_s: float = 0.3  # from the end of a job's script until its GPUs are free
    stop_s: float = 1.0  # the same where Slurm stops it
    leave_s: float = 0.06  # the same where it does so for another job, of one that ends at SIGTERM
    requeue_delay_s: float = REQUEUE_DELAY_S
    job_requeue: bool = True  # JobRequeue: jobs whose node fails start again
    min_job_age_s: float = 300.0  # so long slurmctld knows a job that has ended
    priority: PrioritySettings = PrioritySettings()
    preempt: PreemptSettings = PreemptSettings()


def slurm_settings(pairs: Mapping[str, str]) -> SlurmSettings:
    """By the pairs of `scontrol show config`; what is missing or unreadable is as slurm.conf(5) says."""
    words = dict(part.partition("=")[::2] for part in pairs.get("SchedulerParameters", "").split(","))
    usual = SlurmSettings()

    def number(name: str, default: float, unit_s: float = 1.0) -> float:
        value = digits(words.get(name, ""))
        return default if value is None else value * unit_s

    return usual._replace(
        backfill=pairs.get("SchedulerType", "sched/backfill") == "sched/backfill",
        bf_interval_s=max(1.0, number("bf_interval", usual.bf_interval_s)),
        bf_window_s=number("bf_window", usual.bf_window_s, 60.0),
        bf_resolution_s=max(1.0, number("bf_resolution", usual.bf_resolution_s)),
        bf_max_job_test=int(number("bf_max_job_test", usual.bf_max_job_test)),
        batch_sched_delay_s=number("batch_sched_delay", usual.batch_sched_delay_s),
        sched_interval_s=max(1.0, number("sched_interval", usual.sched_interval_s)),
        requeue_delay_s=requeue_delay_s(pairs),
        job_requeue=pairs.get("JobRequeue", "1") != "0",
        min_job_age_s=float(whole(pairs.get("MinJobAge", ""), int(usual.min_job_age_s))),
        priority=_priority(pairs),
        preempt=_preempt(pairs, words),
    )


def _preempt(pairs: Mapping[str, str], words: Mapping[str, str]) -> PreemptSettings:
    own = dict(part.partition("=")[::2] for part in pairs.get("PreemptParameters", "").split(","))
    count = digits(words.get("preempt_reorder_count", "") or own.get("reorder_count", ""))
    modes = pairs.get("PreemptMode", "").upper().split(",")
    return PreemptSettings(
        by_tier=pairs.get("PreemptType", "") == "preempt/partition_prio",
        mode=next((mode for mode in modes if mode != "GANG"), "") or "OFF",
        reorders=1 if count is None else count,
        again_s=float(whole(pairs.get("KillWait", ""), 30) + whole(pairs.get("MessageTimeout", ""), 10)),
    )


def _priority(pairs: Mapping[str, str]) -> PrioritySettings:
    usual = PrioritySettings()
    max_age, half_life, period = (
        seconds(pairs[key]) if key in pairs else None
        for key in ("PriorityMaxAge", "PriorityDecayHalfLife", "PriorityCalcPeriod")
    )
    # Without slurmdbd priorities stay what they were at the submission (tests/slurm/test_twin_priorities.py).
    accounted = pairs.get("AccountingStorageType", SLURMDBD) == SLURMDBD
    flags = {word.strip().upper() for word in pairs.get("PriorityFlags", "").split(",")}
    return PrioritySettings(
        multifactor=pairs.get("PriorityType", "") == "priority/multifactor",
        age=whole(pairs.get("PriorityWeightAge", "")) * accounted,
        fair_share=accounted
        * whole(pairs.get("PriorityWeightFairShare", "") or pairs.get("PriorityWeightFairshare", "")),
        size=whole(pairs.get("PriorityWeightJobSize", "")),
        partition=whole(pairs.get("PriorityWeightPartition", "")),
        qos=whole(pairs.get("PriorityWeightQOS", "")) * accounted,
        favor_small=pairs.get("PriorityFavorSmall", "").lower() in ("yes", "1", "true"),
        max_age_s=float(max_age or usual.max_age_s),
        half_life_s=usual.half_life_s if half_life is None else float(half_life),
        calc_period_s=float(period or usual.calc_period_s),
        fair_tree="NO_FAIR_TREE" not in flags,
        dampening=max(1, whole(pairs.get("FairShareDampeningFactor", ""), 1)),
        size_by_time="SMALL_RELATIVE_TO_TIME" in flags,
        from_submission="ACCRUE_ALWAYS" in flags,
    )
