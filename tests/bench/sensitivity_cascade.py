# SPDX-License-Identifier: MIT
"""How often each stage of the sensitivity cascade decides, how often it is right, and what it costs.

    python tests/bench/sensitivity_cascade.py [--applications 300] [--seed 1] [--data DIR] [--json]

Generated runs have a known truth: an application is the power that its kernels would draw without
a limit, as a share of that limit, with phases and noise; above the limit the clock gives way. Generated
scripts come from templates, some of which show nothing. Measured runs are the medians of public
runs on V100 (DIR, default $PAL_REFERENCE_DATA or ../shared/data), one window each and without
throttle reasons. Costs are CPU time of this process.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from slurm_pal.sensitivity import features
from slurm_pal.sensitivity.behaviour import (
    CENTROID,
    CLASSIFIERS,
    Centroid,
    Look,
    Traits,
    classify,
    judge_of,
    traits_of,
)
from slurm_pal.sensitivity.cascade import HISTORY, PROBE, SCRIPT, TELEMETRY, Evidence, Verdict, decide
from slurm_pal.sensitivity.history import Label, Seen, evidence, learnt

DEMAND = {"A": (1.05, 1.5), "B": (0.45, 0.95), "C": (0.15, 0.42)}
"""Power wanted, as a share of the limit; the gaps are where no truth could be named."""
KERNELS = {"A": 1.30, "B": 0.60, "C": 0.27}
SURE = {HISTORY: 0.8, SCRIPT: 0.8, TELEMETRY: 0.8}
SECONDS = 300
PROBE_S = 110
SUBMISSIONS = 6


class Application(NamedTuple):
    """One generated application."""

    truth: str
    demand: float
    other: float  # demand of its second phase: loading, writing, evaluating
    share: float  # of the time in that phase
    period_s: float
    script: str
    stated: bool  # its user says the class


TEMPLATES: dict[str, tuple[str, ...]] = {
    "A": ("srun ./xhpl", "torchrun train.py --arch resnet101", "srun python3 main.py --net resnet50",
          "./gpu_burn 3600", "srun ./a.out", "python3 train.py", "accelerate launch fit.py", "srun ./solver.x in.dat"),
    "B": ("torchrun run_glue.py --model bert-large", "deepspeed pretrain.py --config gpt2.json", "python3 train.py",
          "srun python3 dcgan.py", "srun ./a.out", "accelerate launch fit.py", "srun gmx mdrun -deffnm md",
          "srun ./solver.x in.dat"),
    "C": ("srun lmp -in in.lj", "srun ./xhpcg", "./babelstream", "python3 pagerank.py", "python3 train.py",
          "srun ./a.out", "torchrun train.py --model vgg16", "srun ./solver.x in.dat"),
}  # fmt: skip


def applications(number: int, seed: int) -> list[Application]:
    """So many applications, a third of each class."""
    draw = random.Random(seed)
    made = []
    for i in range(number):
        truth = "ABC"[i % 3]
        other = draw.uniform(*DEMAND[draw.choice("ABC")]) if draw.random() < 0.5 else 0.05
        script = f"#!/bin/bash\n#SBATCH --gres=gpu:1\nmodule load cuda\n{draw.choice(TEMPLATES[truth])}\n"
        share = draw.choice((0.0, draw.uniform(0.0, 0.3)))
        demand = draw.uniform(*DEMAND[truth])
        made.append(Application(truth, demand, other, share, draw.uniform(10, 120), script, draw.random() < 0.2))
    return made


def look(t_s: float, demand: float, draw: random.Random) -> Look:
    """What the sensors show of such a demand; below 0.1 of the limit no kernel runs."""
    wanted = demand * draw.gauss(1.0, 0.05)
    if demand < 0.1:
        return Look(t_s, False, draw.choice((0.2, 1.0)), 0.15, False)
    capped = wanted > 1.0
    clk = min(1.0, wanted ** (-1 / 2.5) + draw.gauss(0.0, 0.005)) if capped else 1.0
    return Look(t_s, True, clk, min(1.0, wanted) * draw.gauss(0.995, 0.005), capped)


def run(app: Application, draw: random.Random) -> list[Look]:
    """Five minutes of an application, one look a second; the first 10 to 60 s it reads its input."""
    start_s = draw.uniform(10, 60)
    seen = []
    for t_s in range(SECONDS):
        in_other = (t_s % app.period_s) < app.share * app.period_s
        seen.append(look(float(t_s), 0.05 if t_s < start_s else app.other if in_other else app.demand, draw))
    return seen


def own_kernels(draw: random.Random) -> dict[str, Centroid]:
    """Where the sweep's kernels lie on the same device."""
    found = {}
    for c, demand in KERNELS.items():
        traits = traits_of(look(float(t_s), demand, draw) for t_s in range(60))
        found[c] = Centroid(traits.duty or 0.0, traits.clk or 0.0, traits.pw or 0.0)
    return found


class Score:
    """A confusion table of what a stage was sure of, and what it left open."""

    def __init__(self) -> None:
        self.table: Counter[tuple[str, str]] = Counter()
        self.open: Counter[str] = Counter()
        self.cost_s = 0.0

    def add(self, truth: str, found: str, sure: bool) -> None:
        if sure and found != "?":
            self.table[truth, found] += 1
        else:
            self.open[truth] += 1

    def row(self) -> dict[str, Any]:
        decided = sum(self.table.values())
        right = sum(n for (truth, found), n in self.table.items() if truth == found)
        asked = decided + sum(self.open.values())
        confusion = {f"{t}->{f}": n for (t, f), n in sorted(self.table.items())}
        return {
            "asked": asked, "decided": round(decided / asked, 3) if asked else None,
            "right": round(right / decided, 3) if decided else None, "confusion": confusion,
            "open": dict(sorted(self.open.items())), "cpu_us": round(1e6 * self.cost_s / asked, 1) if asked else None,
        }  # fmt: skip


def timed(score: Score, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the work gives
    began_s = time.thread_time()
    found = work()
    score.cost_s += time.thread_time() - began_s
    return found


def telemetry(apps: Sequence[Application], seed: int) -> dict[str, Score]:
    """Each classifier on the same runs, and what a probe would have seen of them."""
    draw = random.Random(seed)
    kernels = own_kernels(draw)
    scores = {name: Score() for name in (*CLASSIFIERS, PROBE)}
    for app in apps:
        seen = run(app, draw)
        probe = timed(scores[PROBE], partial(classify, [seen[:PROBE_S]], judge_of(CENTROID, kernels)))
        scores[PROBE].add(app.truth, probe.sensitivity, probe.confidence >= SURE[TELEMETRY])
        for name in CLASSIFIERS:
            score = scores[name]
            found = timed(score, partial(classify, [seen], judge_of(name, kernels)))
            score.add(app.truth, found.sensitivity, found.confidence >= SURE[TELEMETRY])
    return scores


def scripts(apps: Sequence[Application]) -> Score:
    """What the scripts alone show."""
    score = Score()
    for app in apps:
        found = timed(score, partial(features.evidence, app.script))
        score.add(app.truth, found.sensitivity if found else "?", bool(found and found.confidence >= SURE[SCRIPT]))
    return score


def cascade(apps: Sequence[Application], seed: int, classifier: str) -> list[dict[str, Any]]:
    """Each application submitted several times, every job observed: which stage decides, and how well."""
    draw = random.Random(seed)
    judge = judge_of(classifier, own_kernels(draw))
    labels: dict[int, Label] = defaultdict(Label)
    rows = []
    for number in range(SUBMISSIONS):
        stages: Counter[str] = Counter()
        right: Counter[str] = Counter()
        for key, app in enumerate(apps):
            found = submitted(app, labels[key])
            stages[found.stage or "default"] += 1
            right[found.stage or "default"] += found.sensitivity == app.truth
            seen = classify([run(app, draw)], judge)
            if seen.sensitivity != "?":
                labels[key] = learnt(labels[key], Seen(number, seen.sensitivity, seen.confidence, float(number)))
        decided = {stage: round(n / len(apps), 3) for stage, n in stages.items()}
        hits = {stage: round(right[stage] / n, 3) for stage, n in stages.items() if stage != "default"}
        rows.append({"submission": number + 1, "decided": decided, "right": hits})
    return rows


def submitted(app: Application, label: Label) -> Verdict:
    """What palsub would take for the class of this application now."""
    word = Evidence("word", app.truth, 1.0, "--pal-class") if app.stated else None
    past = evidence(label, "jobs", label.seen[-1].at_s) if label.seen else None
    return decide(word, lambda: past, [lambda: features.evidence(app.script)], SURE)


# -- measured runs ---------------------------------------------------------------------------

MEASURED = {"sgemm": "A", "resnet": "resnet", "bert": "B", "pagerank": "C"}
"""Of ResNet the truth is open: A by PAL's counters, between the power limit and none of it by these runs."""
LIMIT_W, MAX_MHZ = 300.0, 1530.0


def measured(folder: str) -> dict[str, list[tuple[str, Traits]]]:
    """Application -> (GPU, traits of a run)."""
    found: dict[str, list[tuple[str, Traits]]] = {}
    for name in MEASURED:
        with open(os.path.join(folder, f"{name}-longhorn-agg.csv"), newline="", encoding="utf-8") as stream:
            rows = [row for row in csv.DictReader(stream) if row["freq"] and row["pwr"]]
        found[name] = [
            (row["uuid"], Traits(None, float(row["freq"]) / MAX_MHZ, float(row["pwr"]) / LIMIT_W)) for row in rows
        ]
    return found


def middle(runs: Iterable[tuple[str, Traits]]) -> Centroid:
    told = sorted((t.clk or 0.0, t.pw or 0.0) for _, t in runs)
    clk, pw = told[len(told) // 2][0], sorted(p for _, p in told)[len(told) // 2]
    return Centroid(0.0, clk, pw)


def on_measured(runs: Mapping[str, Sequence[tuple[str, Traits]]], mixed: str) -> dict[str, dict[str, Any]]:
    """Kernels from one half of the GPUs (SGEMM, `mixed`, PageRank as A, B, C), judged on the other half."""

    def half(name: str, which: int) -> list[tuple[str, Traits]]:
        return [one for one in runs[name] if sum(one[0].encode()) % 2 == which]

    centroids = {c: middle(half(name, 0)) for c, name in (("A", "sgemm"), ("B", mixed), ("C", "pagerank"))}
    centroids["A"] = centroids["A"]._replace(duty=1.0)
    rows: dict[str, dict[str, Any]] = {}
    for classifier in CLASSIFIERS:
        judge = judge_of(classifier, centroids)
        table = {name: Counter(judge(traits) for _, traits in half(name, 1)) for name in MEASURED}
        told = [(c, table[name]) for name, c in MEASURED.items() if c in "ABC"]
        right = sum(seen[c] / sum(seen.values()) for c, seen in told) / len(told)
        rows[classifier] = {"right": round(right, 4), "runs": {name: dict(seen) for name, seen in table.items()}}
    return rows


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--applications", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default=os.environ.get("PAL_REFERENCE_DATA", "../shared/data"))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    apps = applications(asked.applications, asked.seed)
    report: dict[str, Any] = {
        "scripts": scripts(apps).row(),
        "telemetry": {name: score.row() for name, score in telemetry(apps, asked.seed).items()},
        "cascade": cascade(apps, asked.seed, CENTROID),
    }
    folder = os.path.join(asked.data, "pal", "profiles")
    if os.path.isdir(folder):
        runs = measured(folder)
        report["measured"] = {f"B from {mixed}": on_measured(runs, mixed) for mixed in ("bert", "resnet")}
    else:
        print(f"no measured runs: {folder} is not there (--data)", file=sys.stderr)
    if asked.json:
        print(json.dumps({"schema": "pal.bench.sensitivity/1", **report}))
        return 0
    show(report)
    return 0


def show(report: Mapping[str, Any]) -> None:
    """The report for people."""
    for name, row in {"script": report["scripts"], **report["telemetry"]}.items():
        table = " ".join(f"{pair}:{n}" for pair, n in row["confusion"].items())
        print(
            f"{name:<11} decided {row['decided']:.3f}  right {row['right']:.3f}  CPU {row['cpu_us']:>7.1f} us", end="  "
        )
        print(table, " open", row["open"])
    for row in report["cascade"]:
        print(f"submission {row['submission']}: decided by {row['decided']}, right {row['right']}")
    for kernels, table in report.get("measured", {}).items():
        for name, row in table.items():
            print(f"measured, {kernels}, {name:<11} right (mean over classes) {row['right']:.4f}: {row['runs']}")


if __name__ == "__main__":
    sys.exit(main())
