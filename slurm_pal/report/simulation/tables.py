# SPDX-License-Identifier: MIT
"""The comparison for the terminal and for programs: a table, five lines, a JSON body."""

from __future__ import annotations

import math
from typing import Any

from slurm_pal.report.simulation.study import ParameterSweep, PolicyComparison, PolicyRow
from slurm_pal.report.simulation.words import (
    change,
    count,
    gpus_text,
    interval,
    judged,
    number,
    pairs_text,
    percent,
    pieces_text,
    ratio_text,
    unclear_because,
    unit_of,
    weight,
)
from slurm_pal.simulate.metrics import ReplayMetrics
from slurm_pal.simulate.statistics import Ratio, WorstGpus, WorstTenth, needed, verdict

SCHEMA = "pal.simulation/1"
BAD_ROWS = 100  # number listed; the count is of all
ENOUGH = 24  # independent pieces from which on intervals are not called rough
GOAL = 0.02  # the precision for which the number of pieces is stated
_MEANS = (
    "mean_jct_s", "median_jct_s", "p99_jct_s", "mean_wait_s", "makespan_s", "utilisation", "moves", "restarts",
    "gpu_hours", "move_gpu_hours", "timeouts", "bounded_slowdown", "slowdown.A", "slowdown.B", "slowdown.C",
    "spread_share",
)  # fmt: skip
CSV_COLUMNS = ("policy", "queue", "runs", "pairs", "verdict", "ratio", "ratio_low", "ratio_high",
               *(name.replace(".", "_") for name in _MEANS))  # fmt: skip
"""CSV columns: means over runs, and the ratio of mean JCT to the baseline with its 95 % interval."""


def table(comparison: PolicyComparison) -> tuple[list[str], list[list[str]]]:
    """Header and rows for `slurm_pal.report.table.columns`; one row per queue and policy."""
    jct = unit_of(row.mean[name] for row in comparison.rows for name in ("mean_jct_s", "p99_jct_s"))
    span = unit_of(row.mean["makespan_s"] for row in comparison.rows)
    several = len(comparison.queues) > 1
    header = ["POLICY", *(["QUEUE"] if several else []), "PAIRS", f"JCT({jct.name})", "RATIO", "95% INTERVAL"]
    header += [f"P99({jct.name})", f"MAKESPAN({span.name})", "UTIL", "MOVES", "SLOWDOWN A", "SPREAD"]
    lines: list[list[str]] = []
    for row in comparison.rows:
        ratio, mean = row.ratio.get("mean_jct_s"), row.mean
        base = row.policy == comparison.study.baseline
        line = [row.policy, *([row.queue] if several else []), "-" if base else str(row.pairs)]
        line += [jct.text(mean["mean_jct_s"]), "1" if base else number(ratio and ratio.mean)]
        line += ["baseline" if base else interval(ratio), jct.text(mean["p99_jct_s"])]
        line += [span.text(mean["makespan_s"]), percent(mean["utilisation"], 1), count(mean["moves"])]
        lines.append([*line, number(mean.get("slowdown.A"), 3), percent(mean["spread_share"])])
    return header, lines


def csv_rows(comparison: PolicyComparison) -> list[dict[str, Any]]:
    """One row per queue and policy under CSV_COLUMNS, unrounded."""
    found = []
    for row in comparison.rows:
        ratio = row.ratio.get("mean_jct_s")
        told = {"ratio": ratio.mean, "ratio_low": ratio.low, "ratio_high": ratio.high} if ratio else {}
        means = {name.replace(".", "_"): row.mean.get(name) for name in _MEANS}
        verdict_ = verdict(ratio) if row.ratio else None
        found.append({"policy": row.policy, "queue": row.queue, "runs": row.runs, "pairs": row.pairs,
                      "verdict": verdict_, **told, **means})  # fmt: skip
    return found


def what_you_gain(comparison: PolicyComparison) -> list[str]:
    """Five lines for `--site`: completion time, the times, the tail, the cost, who is worst off."""
    row, base = comparison.headline, comparison.base
    return [
        f"Completion time: {claim(comparison)}",
        _times(row, base),
        _tail(row),
        _cost(row, base),
        _worst_off(comparison, row),
    ]


def claim(comparison: PolicyComparison) -> str:
    """One sentence on the mean completion time that claims only what its interval supports."""
    study, ratio = comparison.study, comparison.headline.ratio.get("mean_jct_s")
    if ratio is None:
        return f"nothing to compare: {study.policy} and {study.baseline} have no finished pair of runs."
    found = f"{study.policy} takes {ratio.mean:.2f} of {study.baseline}'s mean job completion time"
    said = verdict(ratio)
    if said == "cannot tell":
        return f"cannot tell. {found} in {pairs_text(ratio.n)} ({unclear_because(ratio)})."
    if said == "unclear":
        return f"no clear gain. {found} ({unclear_because(ratio)}, {weight(ratio)})."
    words = {"gain": "", "loss": "a loss. "}[said]
    how_much = change(ratio, "shorter", "longer")
    return f"{words}{found}: {how_much} (95 % interval {interval(ratio)}, {weight(ratio)})."


CAUSES = {
    "scores": "the scores: true ones, to those of other GPUs",
    "gathering": "placing and moving jobs on fewer nodes, whatever the GPUs: where all are identical",
    "waiting": "jobs at the head that wait for better GPUs, while others start: what the queue does, not the GPUs",
    "order": "who backfills first: what the queue does, not the GPUs",
    "rest": "what shuffled scores do to placement and moves, and what the parts do to each other",
}
"""The factors of a ratio: what each compares."""


def causes(comparison: PolicyComparison) -> list[tuple[str, str, str]]:
    """(cause, its ratio, what that compares) for each cause of the headline's ratio; none where not asked for."""
    found = comparison.study.causes
    return [(name, judged(found[name]), text) for name, text in CAUSES.items() if name in found]


def not_the_scores(comparison: PolicyComparison) -> str:
    """A sentence where there is a gain that true scores have no clear share in, else ""."""
    found, total = comparison.study.causes, comparison.headline.ratio.get("mean_jct_s")
    if "scores" not in found or verdict(total) != "gain" or verdict(found["scores"]) == "gain":
        return ""
    return "That faster GPUs have a share in the gain is not shown: shuffled scores do about as well."


def _times(row: PolicyRow, base: PolicyRow) -> str:
    jct, wait = (row.mean["mean_jct_s"], base.mean["mean_jct_s"]), (row.mean["mean_wait_s"], base.mean["mean_wait_s"])
    unit, short = unit_of(jct), unit_of(wait)
    whole = f"{base.policy}: {unit.text(jct[1])} {unit.name}"
    waiting = f"{base.policy}: {short.text(wait[1])} {short.name}"
    return (
        f"Times: a job completes in {unit.text(jct[0])} {unit.name} on average ({whole}) "
        f"and waits {short.text(wait[0])} {short.name} ({waiting})."
    )


def _tail(row: PolicyRow) -> str:
    p99, makespan = row.ratio.get("p99_jct_s"), row.ratio.get("makespan_s")
    return f"Slowest jobs (p99): ratio {judged(p99)}. Whole trace (makespan): ratio {judged(makespan)}."


def _cost(row: PolicyRow, base: PolicyRow) -> str:
    used, moved = row.mean["gpu_hours"], row.mean["move_gpu_hours"]
    share = moved / used if used and moved is not None else None
    timeouts = "".join(
        f" {count(r.mean['timeouts'])} jobs a run hit their time limit with {r.policy}."
        for r in (row, base)
        if r.mean["timeouts"]
    )
    return (
        f"GPU-hours: ratio {judged(row.ratio.get('gpu_hours'))}; {count(row.mean['moves'])} moves a run took "
        f"{percent(share, 1)} of them.{timeouts}"
    )


def _worst_off(comparison: PolicyComparison, row: PolicyRow) -> str:
    names = [f"size_jct_s.{name}" for name in comparison.members("size_jct_s")]
    known = [(ratio.mean, name, ratio) for name in names if (ratio := row.ratio.get(name)) is not None]
    text = "Worst off: nothing to compare"
    if known:
        _, name, ratio = max(known)
        text = f"Worst off: jobs of {gpus_text(name.partition('.')[2])}, ratio {ratio_text(ratio)}"
    if row.worst_users:
        text += f"; the worst tenth of {row.worst_users.of} users {row.worst_users.ratio:.2f}"
    overall = row.ratio.get("mean_jct_s")
    enough = needed(overall, GOAL) if overall else None
    return (
        f"{text}. To know the ratio within {percent(GOAL)} takes about {enough} independent traces or weeks."
        if enough
        else f"{text}."
    )


def caveats(comparison: PolicyComparison) -> list[str]:
    """Sentences that follow from the runs themselves, then those of the study."""
    study, row, base = comparison.study, comparison.headline, comparison.base
    found: list[str] = []
    broken = sum(not run.complete for run in study.runs)
    if broken:
        found.append(f"{broken} of {len(study.runs)} runs were interrupted; no ratio or mean uses them.")
    ratio = row.ratio.get("mean_jct_s")
    if ratio is not None and ratio.pieces < ENOUGH:
        found.append(
            f"{pieces_text(ratio.pieces)} only: another seed is not another trace, and intervals over fewer than "
            f"{ENOUGH} are rough."
        )
    if row.mean["timeouts"] != base.mean["timeouts"]:
        found.append(
            f"Jobs killed at their time limit: {count(row.mean['timeouts'])} a run with {row.policy}, "
            f"{count(base.mean['timeouts'])} with {base.policy}. A killed job counts as ended: its time is too short."
        )
    lost = len(study.trace.bad) + sum(study.trace.skipped.values())
    if lost:
        found.append(f"{lost} rows of the trace were not replayed (see Trace).")
    return [*found, *study.caveats]


def to_json(comparison: PolicyComparison) -> dict[str, Any]:
    """The body of schema pal.simulation/1. A missing number is null, never NaN.

    Keys: `policy`, `baseline`, `queue` (of the headline); `trace` {name, jobs, bad_rows, bad
    [{line, reason}] (the first BAD_ROWS), skipped {reason: rows}}; `cluster`, `charged`
    {name: value}, `caveats`, `command`; `claim` {text, verdict: gain, loss, unclear, or cannot tell where there
    are too few independent pieces}; `causes` {scores, gathering, waiting, order, rest: ratio}, whose product is the
    claim's ratio, up to means of products; a policy without that lever has no `waiting` or `order`;
    `comparisons`, per queue and policy {policy, queue, runs, pairs, verdict, mean {metric:
    value}, ratio {metric: ratio}, worst_users, worst_accounts {ratio, members, of}};
    `worst_gpus` {k, total, capped, share}; `load`, `move_cost` {label, lines {policy: [{x,
    ratio}]}}; `runs`, per run {policy, queue, seed, complete, metrics}. Metrics and their
    units: `slurm_pal.simulate.metrics.Metrics`. A ratio: {mean, low, high, geomean, geo_low,
    geo_high, log_sd, pairs, pieces}.
    """
    study, trace = comparison.study, comparison.study.trace
    body = {
        "schema": SCHEMA,
        "policy": study.policy,
        "baseline": study.baseline,
        "queue": comparison.queue,
        "cluster": study.cluster,
        "trace": {
            "name": trace.name,
            "jobs": len(trace.jobs),
            "bad_rows": len(trace.bad),
            "bad": [{"line": row.line, "reason": row.reason} for row in trace.bad[:BAD_ROWS]],
            "skipped": dict(trace.skipped),
        },
        "charged": dict(study.charged),
        "caveats": caveats(comparison),
        "command": study.command,
        "claim": {"text": claim(comparison), "verdict": verdict(comparison.headline.ratio.get("mean_jct_s"))},
        "causes": {name: _ratio_json(ratio) for name, ratio in study.causes.items()},
        "comparisons": [_row_json(row) for row in comparison.rows],
        "worst_gpus": _worst_gpus_json(study.worst),
        "load": _sweep_json(study.load),
        "move_cost": _sweep_json(study.move_cost),
        "runs": [_run_json(run) for run in comparison.runs],
    }
    clean: dict[str, Any] = _finite(body)
    return clean


def _row_json(row: PolicyRow) -> dict[str, Any]:
    return {
        "policy": row.policy,
        "queue": row.queue,
        "runs": row.runs,
        "pairs": row.pairs,
        "verdict": verdict(row.ratio.get("mean_jct_s")) if row.ratio else None,
        "mean": row.mean,
        "ratio": {name: _ratio_json(ratio) for name, ratio in row.ratio.items()},
        "worst_users": _tenth_json(row.worst_users),
        "worst_accounts": _tenth_json(row.worst_accounts),
    }


def _ratio_json(ratio: Ratio | None) -> dict[str, Any] | None:
    if ratio is None:
        return None
    body = ratio._asdict()
    body["pairs"] = body.pop("n")
    return body


def _tenth_json(tenth: WorstTenth | None) -> dict[str, Any] | None:
    return None if tenth is None else tenth._asdict()


def _worst_gpus_json(worst: WorstGpus | None) -> dict[str, Any] | None:
    if worst is None:
        return None
    total, capped = _ratio_json(worst.total), _ratio_json(worst.capped)
    return {"k": worst.k, "total": total, "capped": capped, "share": worst.share}


def _sweep_json(sweep: ParameterSweep | None) -> dict[str, Any] | None:
    if sweep is None:
        return None
    lines = {p: [{"x": x, "ratio": _ratio_json(ratio)} for x, ratio in line] for p, line in sweep.lines.items()}
    return {"label": sweep.label, "lines": lines}


def _run_json(run: ReplayMetrics) -> dict[str, Any]:
    return {**run._asdict(), "metrics": run.metrics._asdict()}


def _finite(value: Any) -> Any:  # noqa: ANN401
    """The same without NaN and infinity, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
