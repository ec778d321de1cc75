# SPDX-License-Identifier: MIT
"""From the replays of an experiment to the study that is reported, and the answer for other programs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from slurm_pal.report.simulation.study import ParameterSweep, Study, compare
from slurm_pal.report.simulation.tables import to_json
from slurm_pal.simulate.experiment import (
    LOADS,
    MOVE_COSTS_S,
    Experiment,
    ReplayTask,
    Results,
    Side,
    Sides,
    causes,
    worst_counts,
)
from slurm_pal.simulate.metrics import ReplayMetrics, measure_all
from slurm_pal.simulate.policies import STUDY, named
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.statistics import Ratio, WorstGpus, compared, paired, ratios
from slurm_pal.simulate.trace import TraceJob, together

SCHEMA = "pal.simulate/1"
JCT = "mean_jct_s"

Case = TypeVar("Case")


class AssembledStudy(NamedTuple):
    """A study, with the parts that have no place in it."""

    study: Study
    worst: tuple[WorstGpus, ...]  # one for each number of GPUs that was capped


def assemble(experiment: Experiment, results: Results, notes: Sequence[str] = (), command: str = "") -> AssembledStudy:
    """The study of the replays; of an unfinished experiment, of those that are done."""
    main = [replay for task, replay in results.items() if task == ReplayTask(task.policy, task.seed, trace=task.trace)]
    measured = {task: measure_all([replay])[0] for task, replay in results.items() if replay.outcomes}
    worst = tuple(
        WorstGpus(k, total, capped)
        for k in worst_counts(experiment)
        if (total := _ratio(experiment, measured)) and (capped := _ratio(experiment, measured, capped=k))
    )
    study = Study(
        runs=main,
        policy=experiment.policy,
        baseline=experiment.baseline,
        trace=together(experiment.traces),
        queue=experiment.queue,
        cluster=experiment.cluster.text(),
        charged=charged(experiment),
        caveats=tuple(notes),
        command=command,
        load=_load(experiment, measured) if "load" in experiment.sweeps else None,
        move_cost=_move_cost(experiment, measured) if "move-cost" in experiment.sweeps else None,
        worst=worst[0] if worst else None,
        causes=_causes(experiment, measured),
    )
    return AssembledStudy(study, worst)


def charged(experiment: Experiment) -> tuple[tuple[str, str], ...]:
    """What the replays charge and assume, as (name, value with its unit)."""
    e, s = experiment, experiment.settings
    rows = [
        ("locality penalty", f"x {s.locality_penalty:g} on more than one node"),
        ("move", f"{s.move_cost_s:g} s, if the gain is above {s.limits.margin:g} x that; planned every {s.tick_s:g} s"),
        ("warm-up", f"{s.warmup_s:g} s after each start"),
        ("slow GPUs", f"believed slower than {s.barred_slowdown:g}: sensitive jobs wait where that pays"),
        ("time limits", f"those of the trace, else {s.limit_factor:g} x the ideal run time across nodes"),
        ("backfill", f"EASY, every {s.backfill_interval_s:g} s" if s.backfill_depth else "none"),
        ("queue", e.queue),
        ("steering", "at the start" if s.steer == "start" else "only of jobs that can start when submitted"),
        ("GPUs of a node", "best for the class first" if s.best_first else "lowest index first"),
        ("profile", e.source.text() + (f"; {e.slow.text()}" if e.slow.share else "")),
        ("scores", e.scores.text()),
        ("submissions", f"moved by up to {e.jitter_s:g} s, by seed" if e.jitter_s else "as in the trace"),
    ]
    if e.background_per_h:
        rows.append(("background", f"{e.background_per_h:g} jobs per hour after the last submission, not reported"))
    if s.failures:
        rows.append(
            ("failures", f"each node every {s.failures.mtbf_s / 3600:g} h, back after {s.failures.repair_s / 3600:g} h")
        )
    if e.program is not None and named(e.policy).runs != STUDY:
        rows = list((dict(rows) | e.program.charged(e.policy, s)).items())
    return tuple(rows)


def _ratio(e: Experiment, measured: Mapping[ReplayTask, ReplayMetrics], **variant: float | None) -> Ratio | None:
    """The ratio of mean JCT, policy to baseline, in one variant of the experiment; None without a pair."""
    # The baseline never moves a job: the cost of a move does not matter to it.
    runs = [
        measured[task]
        for name in (e.policy, e.baseline)
        for k, seed in e.cases
        if (task := _task(name, seed, variant)._replace(trace=k)) in measured
    ]
    if {run.policy for run in runs} != {e.policy, e.baseline}:
        return None
    return paired(runs, e.policy, e.baseline, JCT)


def _task(name: str, seed: int, variant: Mapping[str, float | None]) -> ReplayTask:
    kept = {k: v for k, v in variant.items() if k != "move_cost_s" or named(name).moves != "none"}
    return ReplayTask(name, seed)._replace(**kept)  # type: ignore[arg-type]


def _causes(e: Experiment, measured: Mapping[ReplayTask, ReplayMetrics]) -> dict[str, Ratio]:
    def run_of(side: Side, case: tuple[int, int]) -> ReplayMetrics | None:
        name, scores, left_out = side
        return measured.get(ReplayTask(name, case[1], trace=case[0], scores=scores, without=left_out))

    return factors(causes(e), e.cases, run_of)


def factors(
    parted: Mapping[str, Sides], cases: Iterable[Case], run_of: Callable[[Side, Case], ReplayMetrics | None]
) -> dict[str, Ratio]:
    """What the ratio of a claim is made of, by pairs of runs; a cause without a complete run of each kind is left out.

    `parted`: as `experiment.split` says. `cases`: what makes pairs, a trace and a seed.
    """
    found = {}
    all_cases = tuple(cases)
    for cause, parts in parted.items():
        sides = [tuple([run_of(side, case) for side in part] for part in parts) for case in all_cases]
        whole = [
            ([run for run in above if run], [run for run in below if run])
            for above, below in sides
            if all(run is not None and run.complete for run in (*above, *below))
        ]
        ratio = compared(whole, JCT)
        if ratio is not None:
            found[cause] = ratio
    return found


def _sweep(e: Experiment, label: str, points: Sequence[tuple[float, Ratio | None]]) -> ParameterSweep:
    return ParameterSweep(label, {e.policy: [(x, ratio) for x, ratio in points if ratio]})


def _load(e: Experiment, measured: Mapping[ReplayTask, ReplayMetrics]) -> ParameterSweep:
    return _sweep(e, "load, relative to the trace", [(x, _ratio(e, measured, load=x)) for x in LOADS])


def _move_cost(e: Experiment, measured: Mapping[ReplayTask, ReplayMetrics]) -> ParameterSweep:
    return _sweep(e, "cost of a move, s", [(x, _ratio(e, measured, move_cost_s=x)) for x in MOVE_COSTS_S])


# -- for other programs -----------------------------------------------------------------


def answer(runs: Sequence[Replay], names: Mapping[str, str]) -> dict[str, Any]:
    """`policies` of schema pal.simulate/1: means over the complete runs of each policy.

    `names` maps the requested name to the policy that was run. Keys: `avg_jct_s,
    p99_jct_s, makespan_s, queue_s` (mean wait until the first start), `utilisation` (0..1),
    `moves`, `ratio_to_first` (mean over pairs of the ratio of avg_jct_s to the first
    policy's), `runs`. A policy without a complete run is left out.
    """
    measured = [run for run in measure_all(runs) if run.complete]
    present = {run.policy for run in measured}
    first = next(iter(names.values()))
    found = {}
    for asked, policy in names.items():
        if policy not in present:
            continue
        mine = [run.metrics for run in measured if run.policy == policy]
        pairs = ratios(measured, policy, first, JCT) if first in present else []
        found[asked] = {
            "avg_jct_s": fmean(m.mean_jct_s for m in mine),
            "p99_jct_s": fmean(m.p99_jct_s for m in mine),
            "makespan_s": fmean(m.makespan_s for m in mine),
            "utilisation": fmean(m.utilisation for m in mine),
            "queue_s": fmean(m.mean_wait_s for m in mine),
            "moves": fmean(m.moves for m in mine),
            "ratio_to_first": fmean(pairs) if pairs else None,
            "runs": len(mine),
        }
    return found


def body(found: AssembledStudy, names: Mapping[str, str], too_wide: Sequence[TraceJob] = ()) -> dict[str, Any]:
    """All that `--json` prints: the answer for other programs, then the report.

    In addition to what `answer` and `tables.to_json` describe: `trace.bad` holds every bad row,
    `trace.too_wide` the jobs that were left out, `worst_gpus_by_k` the share of the gain for
    each number of capped GPUs. Raises UsageError as `compare`.
    """
    report = to_json(compare(found.study))
    report["trace"]["bad"] = [row._asdict() for row in found.study.trace.bad]
    report["trace"]["too_wide"] = [{"job_id": job.job_id, "gpus": job.shape.total} for job in too_wide]
    by_k = [{"k": w.k, "total": w.total._asdict(), "capped": w.capped._asdict(), "share": w.share} for w in found.worst]
    return {**report, "schema": SCHEMA, "policies": answer(found.study.runs, names), "worst_gpus_by_k": by_k}


def job_table(replay: Replay) -> str:
    """CSV of one replay: job_id, submit_s, start_s, finish_s, gpus; jobs by submission."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("job_id", "submit_s", "start_s", "finish_s", "gpus"))
    for o in sorted(replay.outcomes, key=lambda o: o.submit_s):
        writer.writerow((o.job_id, *map(_seconds, (o.submit_s, o.start_s, o.finish_s)), o.gpus))
    return text.getvalue()


def job_tables(runs: Sequence[Replay], names: Mapping[str, str]) -> dict[str, str]:
    """File name -> job table: NAME.csv of the first seed, NAME.seedS.csv of the others.

    Where several traces are replayed with one seed, NAME.traceK.csv from the second trace on, K as they were given.
    """
    first = min((run.seed for run in runs), default=0)
    several = any(run.trace and run.seed == first for run in runs)

    def place(run: Replay) -> str:
        seed = f".seed{run.seed}" if run.seed != first else ""
        return (f".trace{run.trace + 1}" if several and run.trace else "") + seed

    return {
        f"{asked}{place(run)}.csv": job_table(run)
        for asked, policy in names.items()
        for run in runs
        if run.policy == policy and run.complete
    }


def _seconds(value: float) -> int | float:
    """Whole seconds as a whole number, as the artefact writes them."""
    return int(value) if value == math.floor(value) else round(value, 3)
