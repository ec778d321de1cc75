# SPDX-License-Identifier: MIT
"""What each lever is worth: the program over the twin, workload by workload, lever by lever, against stock Slurm.

    python tests/study/lever_table.py DATA --out CSV [--workloads sia,philly,generated] [--rows tick,tick-moves]
        [--jobs 120] [--seeds 1] [--first 1] [--interval 60] [--slow 0.03:1.5] [--minutes 30] [--print] [--traces]

DATA has `pal/traces` (Sia-Philly), `pal/profiles` and `philly` (two clusters of Philly, with open and with stated
shapes); `generated` is for judging. Each replay is a row of the CSV, written when it ends: a run that is cut short, or
ends after --minutes, goes on where it was, and `--print` shows what there is. A row of the table is a lever, an arm of
the program, or a bound:

    slurm-twin    stock Slurm, what all others are divided by
    alone         no policy: in stock Slurm's queue (`slurm-twin`) every job is as fast as alone on its best GPUs
    NAME!         NAME with shuffled scores

The ratio of a trace is that of the means over seeds: seeds move the submissions by minutes, and where the queue is
overloaded that alone changes the mean completion time by a third. Means over traces, with 95 % intervals by trace where
there are six or more. `--traces` shows each trace, with the standard error over seeds.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.simulate import levers
from slurm_pal.simulate.alone import Alone
from slurm_pal.simulate.experiment import SHUFFLED, TRUE, Experiment, ReplayTask
from slurm_pal.simulate.fitting import fit
from slurm_pal.simulate.hardware import identical
from slurm_pal.simulate.inputs import ReaderOptions, read
from slurm_pal.simulate.inputs.generate import TraceSpec, generate
from slurm_pal.simulate.jobs import ReplayJob
from slurm_pal.simulate.metrics import measure
from slurm_pal.simulate.profiles import SlowShare, parse_slow, profile_of
from slurm_pal.simulate.replay import ReplayPlan
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.statistics import Ratio, summary
from slurm_pal.simulate.trace import Trace
from slurm_pal.simulate.virtual import parse_cluster
from slurm_pal.twin.run import Twin

BASELINE, BOUND = "slurm-twin", "alone"
FIGURES = ("mean_jct_s", "p99_jct_s", "mean_wait_s", "makespan_s", "moves", "wide_jct_s", "slowdown_a", "spread")
COLUMNS = ("workload", "trace", "slow", "jobs", "interval", "seed", "policy", "scores", *FIGURES, "cpu_s")
Pairs = dict[str, tuple[list[float], list[float]]]
WIDE = 16  # GPUs
LOADS = (0.7, 0.8, 0.9, 0.95, 1.0, 1.1)
SIA = (1, 2, 3, 4, 7)
PHILLY = {"6c71a0": "9x8", "b436b2": "8x8"}


class Workload(NamedTuple):
    """Traces that are pieces of one kind, on one cluster."""

    name: str
    cluster: str
    traces: tuple[Trace, ...]


def workloads(data: str, wanted: Sequence[str], jobs: int) -> Iterator[Workload]:
    """The traces, each cut to its first `jobs` jobs."""
    reading = ReaderOptions()
    if "sia" in wanted:
        paths = [os.path.join(data, "pal", "traces", f"workload-{number}.csv") for number in SIA]
        yield Workload("Sia-Philly", "16x4", tuple(cut(read(path, "auto", reading), jobs) for path in paths))
    if "philly" in wanted:
        for shapes in ("open", "stated"):
            for name, cluster in PHILLY.items():
                trace = read(os.path.join(data, "philly", f"{name}-{shapes}.csv"), "auto", reading)
                yield Workload(f"Philly {name}, {shapes}", cluster, (cut(trace, jobs),))
    if "generated" in wanted:
        made = [
            generate(TraceSpec(jobs=jobs, cluster_gpus=64, load=load, seed=1000 + number))._replace(
                name=f"load {load:g}"
            )
            for number, load in enumerate(LOADS)
        ]
        yield Workload("generated", "16x4", tuple(made))


def cut(trace: Trace, jobs: int) -> Trace:
    return trace._replace(jobs=trace.jobs[:jobs])


def arms(rows: Sequence[str]) -> list[tuple[str, str]]:
    """(policy, scores) of all replays of a pair."""
    found = [(BASELINE, TRUE), (BOUND, TRUE)]
    found += [(name.removesuffix("!"), SHUFFLED if name.endswith("!") else TRUE) for name in rows]
    return list(dict.fromkeys(found))


def as_alone(plan: ReplayPlan) -> ReplayPlan:
    """The same queue, in which each job takes the time that it would take alone, wherever it runs."""
    best, jobs = Alone(plan.hardware), []
    for number, trace in enumerate(plan.trace.jobs):
        job = ReplayJob(trace, number, plan.settings, True)
        slowdown, locality = best.factors(job, "A" if trace.sensitivity == "?" else trace.sensitivity)
        ideal_s = trace.ideal_s * slowdown * locality
        jobs.append(trace._replace(ideal_s=ideal_s, limit_s=job.limit_s, locality_penalty=1.0))
    return plan._replace(
        trace=plan.trace._replace(jobs=tuple(jobs)), hardware=identical(plan.hardware), policy=BASELINE
    )


def default_rows() -> list[str]:
    """Every lever of this release, one way or the other from what is the default, and placebos of the fullest rows."""
    config = Config()
    apart = [f"tick{'-' if levers.is_on(config, name) else '+'}{name}" for name in levers.LEVERS]
    return ["palsub", "filter", "tick", *apart, "tick!"]


def row_of(key: Sequence[object], replay: Replay, cpu_s: float) -> dict[str, object]:
    found = measure(replay)
    wide = [outcome.jct_s for outcome in replay.outcomes if outcome.gpus > WIDE] or [math.nan]
    figures = (
        found.mean_jct_s, found.p99_jct_s, found.mean_wait_s, found.makespan_s, found.moves, fmean(wide),
        found.slowdown.get("A", math.nan), found.spread_share or 0.0,
    )  # fmt: skip
    return dict(zip(COLUMNS, (*key, *(f"{value:.6g}" for value in figures), f"{cpu_s:.1f}"), strict=True))


def fill(asked: argparse.Namespace, ends_s: float) -> bool:
    """Run what is missing, trace by trace; whether all is there."""
    done = {tuple(row[name] for name in COLUMNS[:8]) for row in kept(asked.out)}
    fresh = not os.path.exists(asked.out)
    config = Config()
    config.set("rebalance", "interval_s", asked.interval, "--interval")
    twin = Twin(config)
    profiles = os.path.join(asked.data, "pal", "profiles")
    source = profile_of(f"medians:{profiles}") if asked.profile == "longhorn" else profile_of(asked.profile)
    with open(asked.out, "a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        if fresh:
            writer.writeheader()
        for work in workloads(asked.data, asked.workloads.split(","), asked.jobs):
            for trace in work.traces:
                fitted = fit(trace, parse_cluster(work.cluster))
                for slow in asked.slow.split(","):
                    made = Experiment(
                        (fitted.trace,), fitted.cluster, source, parse_slow(slow) if slow != "0" else SlowShare(),
                        program=twin,
                    )  # fmt: skip
                    for seed in range(asked.first, asked.first + asked.seeds):
                        for policy, scores in arms(asked.rows.split(",") if asked.rows else default_rows()):
                            key = (work.name, trace.name, slow, asked.jobs, asked.interval, seed, policy, scores)
                            if tuple(map(str, key)) in done:
                                continue
                            if time.monotonic() > ends_s:
                                return False
                            began_s = time.process_time()
                            if policy == BOUND:
                                found = twin.run(as_alone(made.plan(ReplayTask(BASELINE, seed))))
                            else:
                                found = made.run(ReplayTask(policy, seed, scores=scores))
                            writer.writerow(row_of(key, found, time.process_time() - began_s))
                            stream.flush()
    return True


def kept(path: str) -> list[dict[str, str]]:
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def ratio(pairs: Pairs) -> Ratio:
    """Over traces; each is the ratio of its means over seeds."""
    return summary([fmean(ours) / fmean(theirs) for ours, theirs in pairs.values()])


def error(pairs: tuple[list[float], list[float]]) -> float:
    """Standard error of the ratio of two means, as if the seeds of both were drawn independently."""
    ours, theirs = pairs
    if len(ours) < 2:
        return math.nan
    parts = sum((stdev(values) / fmean(values)) ** 2 for values in pairs) / len(ours)
    return fmean(ours) / fmean(theirs) * math.sqrt(parts)


def text(found: Ratio) -> str:
    if found.low is None:
        return f"{found.mean:.3f} ({found.pieces})"
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def table(rows: list[dict[str, str]]) -> Iterator[str]:
    """Markdown: for each workload and share of slow GPUs a row for each policy."""
    cells: dict[tuple[str, str], dict[tuple[str, str], dict[tuple[str, str], dict[str, str]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for row in rows:
        name = f"{row['workload']}, {row['jobs']} jobs, ticks {float(row['interval']):g} s"
        kind, arm = (name, row["slow"]), (row["policy"], row["scores"])
        cells[kind][arm][row["trace"], row["seed"]] = row
    heads = (
        "workload",
        "slow GPUs",
        "row",
        "mean JCT",
        "P99",
        f"jobs > {WIDE} GPUs",
        "true / shuffled",
        "of the reachable",
    )
    yield f"| {' | '.join((*heads, 'moves'))} |"
    yield "|---" * (len(heads) + 1) + "|"
    for (workload, slow), by_arm in cells.items():
        reach = over(by_arm, (BOUND, TRUE), (BASELINE, TRUE))
        for (policy, scores), mine in by_arm.items():
            base = (BASELINE, TRUE)
            if (policy, scores) == base:
                continue
            jct = over(by_arm, (policy, scores), base)
            if not jct:
                continue
            best = 1.0 - ratio(reach).mean if reach else 0.0
            share = "-" if best < 0.005 or policy == BOUND else f"{(1.0 - ratio(jct).mean) / best:.2f}"
            true = over(by_arm, (policy, TRUE), (policy, SHUFFLED)) if scores == TRUE else {}
            others = [over(by_arm, (policy, scores), base, name) for name in ("p99_jct_s", "wide_jct_s")]
            yield " | ".join((
                f"| {workload}", "none" if slow == "0" else slow, policy + "!" * (scores == SHUFFLED), text(ratio(jct)),
                *(text(ratio(one)) if one else "-" for one in others), text(ratio(true)) if true else "-", share,
                f"{fmean(float(row['moves']) for row in mine.values()):.0f} |",
            ))  # fmt: skip


def over(
    by_arm: dict[tuple[str, str], dict[tuple[str, str], dict[str, str]]], ours: tuple[str, str],
    theirs: tuple[str, str], name: str = "mean_jct_s",
) -> Pairs:  # fmt: skip
    """Trace -> (ours, theirs) by seed, where both were run and have the figure."""
    found: Pairs = defaultdict(lambda: ([], []))
    both = by_arm[ours].keys() & by_arm[theirs].keys() if ours in by_arm and theirs in by_arm else ()
    for key in sorted(both):
        above, below = float(by_arm[ours][key][name]), float(by_arm[theirs][key][name])
        if above > 0 and below > 0:
            found[key[0]][0].append(above)
            found[key[0]][1].append(below)
    return dict(found)


def by_trace(rows: list[dict[str, str]]) -> Iterator[str]:
    """Markdown: for each trace and share of slow GPUs the mean JCT of each row, relative to stock Slurm."""
    yield "| trace | slow GPUs | row | seeds | mean JCT / stock |"
    yield "|---" * 5 + "|"
    kinds = dict.fromkeys((row["workload"], row["slow"]) for row in rows)
    for workload, slow in kinds:
        by_arm: dict[tuple[str, str], dict[tuple[str, str], dict[str, str]]] = defaultdict(dict)
        for row in rows:
            if (row["workload"], row["slow"]) == (workload, slow):
                by_arm[row["policy"], row["scores"]][row["trace"], row["seed"]] = row
        for policy, scores in by_arm:
            for trace, pairs in over(by_arm, (policy, scores), (BASELINE, TRUE)).items():
                if (policy, scores) != (BASELINE, TRUE):
                    name = policy + "!" * (scores == SHUFFLED)
                    found = fmean(pairs[0]) / fmean(pairs[1])
                    cells = f"{workload}: {trace}", slow, name, str(len(pairs[0])), f"{found:.3f} +- {error(pairs):.3f}"
                    yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("--out", required=True, metavar="CSV")
    parser.add_argument("--workloads", default="sia,philly,generated")
    parser.add_argument("--rows", default="", help="default: every lever of this release, apart")
    parser.add_argument("--jobs", type=int, default=120, help="of each trace")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--interval", type=float, default=60.0, help="s between two ticks")
    parser.add_argument("--slow", default="0,0.03:1.5", help="shares of slow GPUs, joined by commas; 0: none")
    parser.add_argument("--profile", default="longhorn", help="longhorn: the medians of DATA; or as pal simulate")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--print", action="store_true", dest="print_", help="only show what there is")
    parser.add_argument("--traces", action="store_true", help="a row for each trace")
    asked = parser.parse_args()
    whole = asked.print_ or fill(asked, time.monotonic() + 60 * asked.minutes)
    for line in (by_trace if asked.traces else table)(kept(asked.out)):
        print(line)
    if not whole:
        print("not all was run: the same command goes on", file=sys.stderr)


if __name__ == "__main__":
    main()
