# SPDX-License-Identifier: MIT
"""The first question of `pal doctor`: whether jobs are placed here, how many were, and what prevents it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide import lease_marks
from slurm_pal.filter.terms import ACTS
from slurm_pal.report import filter_mark
from slurm_pal.report.check_result import CheckResult
from slurm_pal.report.gpus.job_shapes import OURS


class Placed(NamedTuple):
    """Jobs with GPUs that Slurm still knows and shows to whoever asks, without those of sweeps."""

    jobs: int = 0
    chosen: int = 0  # nodes or features were chosen for them; the others were left to Slurm, or never seen
    since_s: float | None = None  # when the first of `chosen` was submitted, Unix seconds


def count(jobs: Iterable[SlurmJob]) -> Placed:
    """By the marks on the jobs themselves, which a user may also write by hand."""
    with_gpus = [job for job in jobs if (job.asks.gpus or job.gpus or job.gpus_given) and not job.name.startswith(OURS)]
    chosen = [job for job in with_gpus if _chosen(job)]
    return Placed(len(with_gpus), len(chosen), min((job.submit_s for job in chosen), default=None))


def _chosen(job: SlurmJob) -> bool:
    by_filter = filter_mark.decision(job)
    acts = {mark.action for mark in lease_marks.marks_of(job)} | {by_filter["act"] if by_filter else ""}
    return not acts.isdisjoint(ACTS)


def verdict(findings: Sequence[CheckResult], placed: Placed | None) -> CheckResult:
    """The answer, by all the checks: "ok", or "fail" with the reason and what mends it. `placed`: None, not known."""
    topics = {one.topic for one in findings if one.level == "ok"} - {
        one.topic for one in findings if one.level in ("warn", "fail")
    }
    by = [name for topic, name in (("palsub", "palsub"), ("filter", "the submit filter")) if topic in topics]
    if by:
        verb = "choose" if len(by) == 2 else "chooses"
        return CheckResult("ok", "placing", f"yes: {' and '.join(by)} {verb} nodes for jobs here{_counted(placed)}")
    failed = [one for one in findings if one.level == "fail"]
    first = next((one for one in failed if one.topic == "palsub"), failed[0] if failed else None)
    if first is None:
        return CheckResult("fail", "placing", "no: no check has shown that palsub can place jobs", "see below")
    return CheckResult("fail", "placing", f"no: {first.text}", first.mend)


def _counted(placed: Placed | None) -> str:
    if placed is None:
        return ""
    if not placed.jobs:
        return "; Slurm shows no job with GPUs"
    text = f"; so far for {placed.chosen} of the {placed.jobs} jobs with GPUs that Slurm shows"
    if placed.since_s is None:
        return text
    return f"{text}, the first of {time.strftime('%Y-%m-%d %H:%M', time.localtime(placed.since_s))}"


def nagios(findings: Sequence[CheckResult], placed: Placed | None) -> tuple[int, str]:
    """Exit code and line of a monitoring plug-in: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN where Slurm does not answer.

    Source: Monitoring Plugins Development Guidelines, "Plugin Output" and "Performance data".
    """
    levels = [one.level for one in findings]
    worst = next((one for level in ("fail", "warn") for one in findings if one.level == level), findings[0])
    lost = next((one for one in findings if one.level == "fail" and one.topic == "slurm"), None)
    code = 3 if lost else 2 if "fail" in levels else 1 if "warn" in levels else 0
    told = lost or worst
    text = f"{told.topic}: {told.text}" + (f" -> {told.mend}" if told.mend else "")
    found = {"failures": levels.count("fail"), "warnings": levels.count("warn")}
    if placed is not None:
        found |= {"jobs": placed.jobs, "chosen": placed.chosen}
    word = ("OK", "WARNING", "CRITICAL", "UNKNOWN")[code]
    return code, f"PAL {word}: {text.replace('|', '/')} | {' '.join(f'{name}={n}' for name, n in found.items())}"
