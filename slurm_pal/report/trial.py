# SPDX-License-Identifier: MIT
"""A trial as a table, as JSON, and as rows of jobs: live against simulated."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from slurm_pal.report import table
from slurm_pal.report.simulation.words import NOTHING, interval, number, unit_of
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.statistics import LEAST_PIECES
from slurm_pal.simulate.trace import Trace
from slurm_pal.trial.arms import BASELINE, arm_of
from slurm_pal.trial.judgement import (
    ArmFigures,
    Judged,
    causes,
    figures,
    over_baseline,
)
from slurm_pal.trial.ran import RanJob
from slurm_pal.trial.trial import Trial

JOB_COLUMNS = (
    "trace", "arm", "job_id", "submit_s", "start_s", "end_s", "jct_s", "node", "factor", "moves", "end",
    "simulated_start_s", "simulated_end_s",
)  # fmt: skip
FAR = 0.05
"""Live and simulated are said to agree up to this share."""


class ArmRow(NamedTuple):
    """One arm: live, simulated, and both against plain sbatch."""

    arm: str
    live: ArmFigures
    simulated: ArmFigures | None
    policy: str
    over: Judged | None
    simulated_over: Judged | None

    @property
    def differs(self) -> float | None:
        """Live mean JCT over the simulator's, less 1."""
        return None if self.simulated is None else self.live.mean_jct_s / self.simulated.mean_jct_s - 1.0


def simulated_jobs(replay: Replay, trace: Trace) -> tuple[RanJob, ...]:
    """What the simulator says, job by job in the trace's order."""
    begun_s = trace.jobs[0].submit_s
    outcomes = {outcome.job_id: outcome for outcome in replay.outcomes}
    found = []
    for place, job in enumerate(trace.jobs):
        o = outcomes[job.job_id]
        found.append(
            RanJob(
                place, round(o.submit_s - begun_s, 1), round(o.start_s - begun_s, 1), round(o.finish_s - begun_s, 1),
                "+".join(o.nodes), round(o.slowdown * o.locality, 6), o.moves, o.end,
            )
        )  # fmt: skip
    return tuple(found)


def rows(trial: Trial) -> list[ArmRow]:
    """The finished arms."""
    live = {arm: [result.jobs for result in results] for arm, results in trial.complete().items()}
    simulated = {
        arm: [simulated_jobs(trial.simulated[k, arm], trace) for k, trace in enumerate(trial.traces)]
        for arm in live
        if (0, arm) in trial.simulated
    }
    over, simulated_over = over_baseline(live), over_baseline(simulated)
    return [
        ArmRow(
            arm, figures(jobs), figures(simulated[arm]) if arm in simulated else None, arm_of(arm).policy,
            over.get(arm), simulated_over.get(arm),
        )
        for arm, jobs in live.items()
    ]  # fmt: skip


def lines(trial: Trial, noheader: bool = False, parsable: bool = False, width: int = sys.maxsize) -> list[str]:
    """The table, and below it what to think of it."""
    found = rows(trial)
    if not found:
        return ["No arm is finished."]
    unit = unit_of([row.live.p99_jct_s for row in found])
    header = [
        "ARM", f"JCT({unit.name})", "OF_SBATCH", "INTERVAL", "P99", "MAKESPAN", "MOVES", "SIM_POLICY", "SIM_JCT",
        "SIM_OF_SBATCH", "LIVE/SIM",
    ]  # fmt: skip
    cells = [
        [
            row.arm, unit.text(row.live.mean_jct_s), _ratio(row.over), _interval(row.over),
            unit.text(row.live.p99_jct_s), unit.text(row.live.makespan_s), str(row.live.moves), row.policy,
            unit.text(row.simulated.mean_jct_s if row.simulated else None), _ratio(row.simulated_over),
            NOTHING if row.differs is None else f"{100 * row.differs:+.1f} %",
        ]
        for row in found
    ]  # fmt: skip
    if parsable:
        return table.parsable(header, cells, noheader)
    return [*table.columns(header, cells, noheader, width), "", *words(trial, found)]


def _ratio(judged: Judged | None) -> str:
    return NOTHING if judged is None else number(judged.ratio, 3)


def _interval(judged: Judged | None) -> str:
    if judged is None:
        return NOTHING
    return "cannot tell" if judged.interval is None else f"{interval(judged.interval)} {judged.verdict}"


def words(trial: Trial, found: list[ArmRow]) -> list[str]:
    """Sentences: what may be concluded, what disturbed it."""
    said = []
    judged = [row.over for row in found if row.over is not None]
    if judged and judged[0].pieces < LEAST_PIECES:
        said.append(
            f"Cannot tell a gain or a loss: {table.counted(judged[0].pieces, 'independent piece')} (weeks of traces), "
            f"{LEAST_PIECES} are needed; give longer or more traces."
        )
    far = [row for row in found if row.differs is not None and abs(row.differs) > FAR]
    if far:
        said.append(f"Live differs from simulated by more than {100 * FAR:.0f} %: {', '.join(row.arm for row in far)}.")
    for name, cause in causes(_live(trial)).items():
        if cause is not None:
            said.append(f"Due to {name}: {cause.ratio:.3f} ({_interval(cause)}).")
    for arm, results in trial.complete().items():
        worst = max((result.strain for result in results), key=lambda strain: strain.loop_late_p95_s)
        if any(result.strain.distorts for result in results):
            said.append(
                f"{arm}: this machine distorts ({worst.text()}): jobs take longer than by Slurm alone; "
                "fewer --beside or a smaller --compress."
            )
        lost = sum(job.end == "LOST" for result in results for job in result.jobs)
        if lost:
            said.append(f"{arm}: {lost} jobs did not end by themselves; they count as they ended.")
    return [*said, *_ticks_again(trial), *trial.plan.notes]


def _ticks_again(trial: Trial) -> list[str]:
    """Whether the ticks of the arms are decided again as they were."""
    said = []
    for (k, arm), found in trial.ticks.items():
        whose = arm if len(trial.traces) == 1 else f"{arm} of {trial.traces[k].name}"
        if found.trouble:
            said.append(f"{whose}: its ticks cannot be decided again: {found.trouble}.")
            continue
        same = found.identical == found.ticks
        more = "" if same else f"; pal ticks {trial.folder.ticks(k, arm)} shows the others"
        verdict = "identical, " if same else ""
        said.append(f"{whose}: its ticks decided again: {verdict}{found.identical} of {found.ticks}{more}.")
    return said


def _live(trial: Trial) -> Mapping[str, list[tuple[RanJob, ...]]]:
    return {arm: [result.jobs for result in results] for arm, results in trial.complete().items()}


def as_json(trial: Trial) -> dict[str, Any]:
    """The body of pal.trial/1."""
    plan, done = trial.plan, trial.complete()
    return {
        "compress": plan.compress,
        "cluster": f"{plan.nodes}x{plan.gpus}",
        "gpus": plan.profile,
        "traces": [{"name": trace.name, "jobs": len(trace.jobs)} for trace in trial.traces],
        "folder": trial.folder.path,
        "unfinished": [arm for arm in plan.arms if arm not in done],
        "arms": [
            {
                "arm": row.arm,
                "summary": arm_of(row.arm).summary,
                "live": row.live._asdict(),
                "simulated": None if row.simulated is None else row.simulated._asdict(),
                "policy": row.policy,
                "of_sbatch": None if row.over is None else _judged(row.over),
                "simulated_of_sbatch": None if row.simulated_over is None else row.simulated_over.ratio,
                "live_over_simulated": None if row.differs is None else 1.0 + row.differs,
                "strain": [result.strain._asdict() | {"distorts": result.strain.distorts} for result in done[row.arm]],
                "lasted_s": [result.lasted_s for result in done[row.arm]],
                "ticks_again": [found._asdict() for (_, arm), found in sorted(trial.ticks.items()) if arm == row.arm],
            }
            for row in rows(trial)
        ],
        "causes": {name: cause and _judged(cause) for name, cause in causes(_live(trial)).items()},
        "slurm_conf": [now for _, now in plan.edits],
        "settings": dict(plan.settings),
        "notes": list(plan.notes),
        "jobs": job_rows(trial),
    }


def _judged(judged: Judged) -> dict[str, Any]:
    found = judged.interval
    return {
        "ratio": judged.ratio, "pieces": judged.pieces, "verdict": judged.verdict,
        "low": found and found.low, "high": found and found.high,
    }  # fmt: skip


def job_rows(trial: Trial) -> list[dict[str, Any]]:
    """One row for each job of each finished arm."""
    found = []
    for (k, arm), result in sorted(
        trial.results.items(), key=lambda one: (one[0][0], trial.plan.arms.index(one[0][1]))
    ):
        trace, replay = trial.traces[k], trial.simulated.get((k, arm))
        beside = simulated_jobs(replay, trace) if replay else [None] * len(trace.jobs)
        for job, other, same in zip(result.jobs, beside, trace.jobs, strict=True):
            found.append(
                {
                    "trace": trace.name, "arm": arm, "job_id": same.job_id, "submit_s": job.submit_s,
                    "start_s": job.start_s, "end_s": job.end_s, "jct_s": round(job.jct_s, 1), "node": job.node,
                    "factor": job.factor, "moves": job.moves, "end": job.end,
                    "simulated_start_s": other and other.start_s, "simulated_end_s": other and other.end_s,
                }
            )  # fmt: skip
    return found


def announced(trial: Trial, beside: int, now_text: str) -> str:
    """What is about to be run, before it is."""
    expected = trial.expected(beside)
    jobs = sum(len(trial.traces[k].jobs) for k, _ in trial.left())
    at_once = f", {beside} at a time" if beside > 1 else ""
    kept = f"{len(trial.results)} arms are finished; " if trial.results else ""
    return (
        f"{kept}{expected.arms} arms ({BASELINE} takes {expected.longest_s / 60:.1f} min at most){at_once}, "
        f"{jobs} jobs: {duration(expected.seconds)} by the simulator, until about {now_text}"
    )


def duration(seconds: float) -> str:
    """`4 min`, `2.5 h`."""
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{max(1, round(seconds / 60))} min"
