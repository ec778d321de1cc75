# SPDX-License-Identifier: MIT
"""How well steps, drifts and transients are distinguished: against known truth, and on public time series.

    python -P tests/bench/drift_detection.py [--gpus N] [--data FOLDER] [--json]

Generated histories have the noise of the specification: 0.12 % from run to run, a wandering of
0.33 % over 28 days, and now and then a slow single run. Precision counts findings, recall GPUs,
delay runs or days from the event to the finding. With `--data` the folder of public profiles is
read too: no event is known there, so every finding is listed as a possible false alarm.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurm_pal.variability import drift
from slurm_pal.variability.drift import findings
from slurm_pal.variability.finding import DRIFT, STEP, TRANSIENT, UNCONFIRMED, Finding
from slurm_pal.variability.params import DAY_S, Params
from slurm_pal.variability.runs import Environment, Group, SweepObservation

NOISE = 0.0012
WANDER_28D = math.sqrt(0.0033**2 - 0.0012**2)
START_S = 1_700_000_000.0
ENVIRONMENT = Environment("550", "1", "300", "enabled", "disabled")
GROUP = Group("A", "gemm_bf16", "emu", "m", 80, "default", "h", "TFLOP/s")

Truth = tuple[str, float]  # kind, relative size


def observation(uuid: str, day: float, slowdown: float) -> SweepObservation:
    """One run; `slowdown` relative to 1."""
    ts, speed = START_S + day * DAY_S, -math.log(slowdown)
    return SweepObservation(uuid, GROUP, ts, speed, 1.0, 0.0005, None, frozenset(), None, ENVIRONMENT)


def wandering(days: list[float], draw: random.Random, model: str) -> list[float]:
    """Relative wandering with WANDER_28D over 28 days: "walk" without bound, "level" about a level of its own."""
    if model == "walk":
        step = WANDER_28D / math.sqrt(28.0)
        path = [0.0]
        for a, b in itertools.pairwise(days):
            path.append(path[-1] + draw.gauss(0.0, step * math.sqrt(b - a)))
        return path
    sd = WANDER_28D / math.sqrt(2.0 * (1.0 - math.exp(-1.0)))
    path = [draw.gauss(0.0, sd)]
    for a, b in itertools.pairwise(days):
        keep = math.exp((a - b) / 28.0)
        path.append(keep * path[-1] + draw.gauss(0.0, sd * math.sqrt(1.0 - keep**2)))
    return path


def generated(truth: Truth, every_d: float, model: str, draw: random.Random, span_d: float = 168.0) -> tuple[
    list[SweepObservation], float]:  # fmt: skip
    """(history, day of the event). A step comes in the middle, a drift over the second half, a transient once."""
    days = [(i + draw.uniform(-0.1, 0.1)) * every_d for i in range(int(span_d / every_d) + 1)]
    base = wandering(days, draw, model)
    kind, size = truth
    at = len(days) // 2
    extra = {
        "step": lambda i: size if i >= at else 0.0,
        "drift": lambda i: size * (days[i] - days[0]) / (days[-1] - days[0]),
        "transient": lambda i: size if i == at else 0.0,
        "none": lambda i: 0.0,
    }[kind]
    values = [1.0 + b + extra(i) + draw.gauss(0.0, NOISE) for i, b in enumerate(base)]
    return [observation("g", d, v) for d, v in zip(days, values, strict=True)], days[at]


def scored(truth: Truth, every_d: float, model: str, gpus: int, seed: int = 1) -> dict[str, Any]:
    """Share of GPUs with each kind of finding, and how long the right one took."""
    draw = random.Random(f"{seed}{truth}{every_d}{model}")
    kinds = {kind: 0 for kind in (STEP, DRIFT, TRANSIENT)}
    by_kind = dict(kinds)
    delays: list[float] = []
    for _ in range(gpus):
        history, event_d = generated(truth, every_d, model, draw)
        found = [f for f in findings(history) if f.kind != UNCONFIRMED]
        for kind in kinds:
            mine = [f for f in found if f.kind == kind]
            kinds[kind] += bool(mine)
            by_kind[kind] += len(mine)
        right = [f for f in found if f.kind == truth[0]]
        if right:
            delays.append(delay_d(right[0], history, event_d))
    delay = round(statistics.median(delays), 1) if delays else None
    return {"truth": truth[0], "size_pct": 100 * truth[1], "every_d": every_d, "wander": model, "gpus": gpus,
            "with": {k: n / gpus for k, n in kinds.items()}, "findings": by_kind, "delay_d": delay}  # fmt: skip


def delay_d(finding: Finding, history: list[SweepObservation], event_d: float) -> float:
    """Days from the event to its finding; of a drift, from its beginning to the first run after which it was told."""
    if finding.kind != DRIFT:
        return (finding.seen_s - START_S) / DAY_S - event_d
    for n in range(drift.MIN_RUNS, len(history) + 1):
        if any(f.kind == DRIFT for f in findings(history[:n])):
            return (history[n - 1].ts - history[0].ts) / DAY_S
    return math.inf


def rates(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Precision over all findings of a kind, with as many GPUs of each row; recall over the GPUs that have it."""
    table: dict[str, dict[str, float]] = {}
    for kind in (STEP, DRIFT, TRANSIENT):
        right = sum(r["findings"][kind] for r in rows if r["truth"] == kind)
        every = sum(r["findings"][kind] for r in rows)
        mine = [r["with"][kind] for r in rows if r["truth"] == kind]
        table[kind] = {"precision": right / every if every else math.nan, "recall": statistics.fmean(mine)}
    return table


def public(path: Path) -> Iterator[list[SweepObservation]]:
    """Histories by GPU and day: the median of each day, as a sweep takes it, from the time of one benchmark."""
    by_gpu: dict[str, dict[int, list[float]]] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            ts = float(row["ts"])
            if ts > 0:
                by_gpu.setdefault(row["uuid"], {}).setdefault(int(ts // DAY_S), []).append(float(row["perf"]))
    for uuid, days in by_gpu.items():
        middle = statistics.median(v for values in days.values() for v in values)
        yield [observation(uuid, d, statistics.median(v) / middle) for d, v in sorted(days.items())]


def on_public(path: Path) -> dict[str, Any]:
    """How many GPUs have findings where nothing is known to have happened."""
    histories = list(public(path))
    found = [f for history in histories for f in findings(history)]
    kinds = {k: len({f.uuid for f in found if f.kind == k}) for k in (STEP, DRIFT, TRANSIENT)}
    sizes = {k: sorted((round(100 * f.change, 2) for f in found if f.kind == k), key=abs) for k in kinds}
    return {"file": path.name, "gpus": len(histories), "gpu_days": sum(map(len, histories)), "gpus_with": kinds,
            "sizes_pct": sizes}  # fmt: skip


TRUTHS: tuple[Truth, ...] = (
    ("none", 0.0), ("step", 0.01), ("step", 0.015), ("step", 0.02), ("step", 0.05), ("step", 0.2),
    ("drift", 0.01), ("drift", 0.02), ("drift", 0.03), ("drift", 0.05), ("transient", 0.05), ("transient", 1.8),
)  # fmt: skip


def main() -> None:
    """Print the tables."""
    options = argparse.ArgumentParser(description="Scores of drift detection against known truth.")
    options.add_argument("--gpus", type=int, default=300)
    options.add_argument("--data", type=Path, help="folder with the public profiles")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    rows = [
        scored(t, every, model, chosen.gpus) for model in ("level", "walk") for every in (7.0, 14.0) for t in TRUTHS
    ]
    report: dict[str, Any] = {"params": Params()._asdict(), "rows": rows, "rates": {}}
    for model in ("level", "walk"):
        report["rates"][model] = rates([r for r in rows if r["wander"] == model])
    if chosen.data:
        report["public"] = [on_public(p) for p in sorted(chosen.data.glob("sgemm-longhorn*.csv"))]
    if chosen.json:
        print(json.dumps(report, indent=1))
        return
    print("wander every/d truth      size   step   drift  transient  delay/d")
    for r in rows:
        w = r["with"]
        shares = f"{w['step']:6.1%} {w['drift']:6.1%} {w['transient']:6.1%}"
        print(f"{r['wander']:6} {r['every_d']:7g} {r['truth']:10}{r['size_pct']:5.1f} % {shares}     {r['delay_d']}")
    print(json.dumps(report["rates"], indent=1))
    for table in report.get("public", ()):
        print(json.dumps(table))


if __name__ == "__main__":
    main()
