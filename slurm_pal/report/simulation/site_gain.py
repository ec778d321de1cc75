# SPDX-License-Identifier: MIT
"""What a site would gain, in five lines for its administrator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.cluster import Gpu
from slurm_pal.base.jobs import UNKNOWN_CLASS
from slurm_pal.report.simulation.assemble import factors
from slurm_pal.report.simulation.study import PolicyComparison, Study
from slurm_pal.report.simulation.words import percent, ratio_text, unit_of
from slurm_pal.simulate.experiment import Side
from slurm_pal.simulate.metrics import SIZE_GROUPS, ReplayMetrics, measure_all
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.site_history import Tally
from slurm_pal.simulate.site_runs import BASELINE, TICK, SiteRuns, SiteTask, causes
from slurm_pal.simulate.statistics import Ratio, WorstGpus, paired, verdict

JCT = "mean_jct_s"
GPUS_SHOWN = 6
VERDICTS = {"gain": "", "loss": ", a loss", "unclear": ", no clear gain", "cannot tell": ", cannot tell"}


class Findings(NamedTuple):
    """What the five lines are made of."""

    comparison: PolicyComparison  # of the three ways; the headline is the fullest one
    total: Tally  # the history
    left_out: Tally
    unknown: int  # replayed jobs of unknown class that counted as A
    as_c: Mapping[str, Ratio | None]  # way -> ratio of mean completion time with those jobs as C; empty: not asked
    slow: Sequence[tuple[Gpu, float]]  # GPUs slower than the bar, slowest first, with their slowdown in class A
    named: bool  # False: their slowdowns are assumed, so their names mean nothing
    bar: float
    assumed: Sequence[str]


def five_lines(found: Findings) -> list[str]:
    """What was replayed, the result, who gains, the share of the slow GPUs, what was assumed."""
    return [_replayed(found), _ratios(found), _who(found), _slow(found), _assumed(found)]


def gpu_hours_text(gpu_h: float) -> str:
    """With the digits that matter."""
    return f"{gpu_h:.0f} GPU-h" if gpu_h >= 100 else f"{gpu_h:.3g} GPU-h"


def said(ratio: Ratio | None) -> str:
    """A ratio with its interval, and words if it is not a gain."""
    return ratio_text(ratio) + ("" if ratio is None else VERDICTS[verdict(ratio)])


def _replayed(found: Findings) -> str:
    study = found.comparison.study
    jobs = study.trace.jobs
    span_s = jobs[-1].submit_s - jobs[0].submit_s if jobs else 0.0
    unit = unit_of([span_s])
    gpu_h = gpu_hours_text(found.total.gpu_h - found.left_out.gpu_h)
    text = f"Replayed: {len(jobs)} jobs, {gpu_h}, submitted in {unit.text(span_s)} {unit.name}, on {study.cluster}."
    if found.left_out.jobs:
        share = found.left_out.gpu_h / found.total.gpu_h
        text += f" Left out: {found.left_out.jobs} jobs, {percent(share, 1)} of the history's GPU-h."
    return text


def _ratios(found: Findings) -> str:
    """Completion times and GPU-hours of all ways."""
    comparison = found.comparison
    base = comparison.base
    rows = [row for row in comparison.rows if row.policy != base.policy]
    jct_s = [row.mean[JCT] for row in (base, *rows)]
    unit = unit_of(jct_s)
    times = "; ".join(
        f"{row.policy} {unit.text(row.mean[JCT])} {unit.name}, ratio {said(row.ratio.get(JCT))}" for row in rows
    )
    hours = "; ".join(f"{row.policy} ratio {said(row.ratio.get('gpu_hours'))}" for row in rows)
    return (
        f"Mean completion time: {base.policy} {unit.text(base.mean[JCT])} {unit.name}; {times}. "
        f"GPU time: {base.policy} {gpu_hours_text(base.mean['gpu_hours'] or 0.0)}; {hours}."
    )


def _who(found: Findings) -> str:
    """Ratios per class and for the widest jobs, and the ratios if unknown jobs are insensitive."""
    comparison, row = found.comparison, found.comparison.headline
    parts = [
        f"{'unknown (as A)' if name == UNKNOWN_CLASS else name} {said(row.ratio.get(f'class_jct_s.{name}'))}"
        for name in comparison.members("class_jct_s")
    ]
    sizes = comparison.members("size_jct_s")
    if len(sizes) > 1:
        widest = max(sizes, key=[name for name, _ in SIZE_GROUPS].index)
        parts.append(f"jobs of {widest} GPUs {said(row.ratio.get(f'size_jct_s.{widest}'))}")
    text = f"Who gains ({row.policy}, completion time by class): {'; '.join(parts)}."
    if found.as_c:
        others = "; ".join(f"{way} {said(ratio)}" for way, ratio in found.as_c.items())
        text += (
            f" {found.unknown} of {len(comparison.study.trace.jobs)} jobs are of unknown class and counted as A: "
            f"an upper bound. All of them as C: {others}."
        )
    return text


def _slow(found: Findings) -> str:
    worst = found.comparison.study.worst
    if not found.slow:
        return f"Slow GPUs: none is slower than {found.bar:g} in class A."
    text = f"Slow GPUs: {len(found.slow)} slower than {found.bar:g} in class A ({_names(found)})."
    if worst is None or worst.share is None:
        return f"{text} There is no clear gain to attribute to them."
    return (
        f"{text} With median GPUs in their place the ratio would be {said(worst.capped)}: "
        f"{percent(worst.share)} of the gain is due to them."
    )


def _names(found: Findings) -> str:
    if not found.named:
        return "assumed"
    names = ", ".join(f"{node}:{index} {slowdown:.2f}" for (node, index), slowdown in found.slow[:GPUS_SHOWN])
    return f"{names} and {len(found.slow) - GPUS_SHOWN} more" if len(found.slow) > GPUS_SHOWN else names


def _assumed(found: Findings) -> str:
    charged = "; ".join(f"{name} {value}" for name, value in found.comparison.study.charged)
    return f"Charged: {charged}. Assumed: {'; '.join(found.assumed)}."


# -- from replays to findings -------------------------------------------------------------


def studied(runs: SiteRuns, results: Mapping[SiteTask, Replay], base: Study) -> Study:
    """The study of the three ways, from `base`, which has everything but the replays."""
    main = [results[task] for task in sorted(results) if task == SiteTask(task.way, task.seed)]
    return base._replace(
        runs=main, policy=TICK, baseline=BASELINE, queue=runs.queue, trace=runs.trace, causes=_causes(runs, results)
    )


def _causes(runs: SiteRuns, results: Mapping[SiteTask, Replay]) -> dict[str, Ratio]:
    """What the ratio of the fullest way is made of."""
    measured = {task: measure_all([replay])[0] for task, replay in results.items() if replay.outcomes}

    def run_of(side: Side, seed: int) -> ReplayMetrics | None:
        way, scores, left_out = side
        return measured.get(SiteTask(way, seed, scores=scores, without=left_out))

    return factors(causes(runs), sorted({task.seed for task in results}), run_of)


def as_insensitive(results: Mapping[SiteTask, Replay]) -> dict[str, Ratio | None]:
    """Way -> ratio of mean completion time if jobs of unknown class are C."""
    measured = measure_all(results[task] for task in sorted(results) if task.unknown == "C")
    ways = dict.fromkeys(run.policy for run in measured)
    if BASELINE not in ways:
        return {}
    return {way: paired(measured, way, BASELINE, JCT) for way in ways if way != BASELINE}


def due_to_slow(k: int, total: Ratio, results: Mapping[SiteTask, Replay]) -> WorstGpus | None:
    """What remains of a gain without the k slow GPUs; None without a pair of runs."""
    measured = measure_all(results[task] for task in sorted(results) if task.capped)
    if {run.policy for run in measured} < {BASELINE, TICK}:
        return None
    capped = paired(measured, TICK, BASELINE, JCT)
    return None if capped is None else WorstGpus(k, total, capped)
