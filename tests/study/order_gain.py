# SPDX-License-Identifier: MIT
"""What the order of the queue is worth: `rebalance.order` in the twin, of stock Slurm with priority/multifactor.

    python tests/study/order_gain.py [TRACE[@CLUSTER]...] [--orders shortest,...] [--bound 43200] [--seeds 1]
        [--interval 300] [--queue multifactor] [--jobs N] [--generated N] [--many 3] [--no-limits]

A row for each trace, seed and order: mean and P99 of the completion times and the mean of jobs of more than 16 GPUs,
each of stock Slurm's; the mean of that of the same tick without an order; how much later than there, and than with
stock Slurm, the latest job started, and the 99th percentile of that. `--generated N` adds made-up traces of N jobs
each; `--no-limits` gives every job the longest limit.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from statistics import fmean

from slurm_pal.base.config import Config
from slurm_pal.simulate.experiment import Experiment, ReplayTask
from slurm_pal.simulate.fitting import fit
from slurm_pal.simulate.inputs import ReaderOptions, read
from slurm_pal.simulate.inputs.generate import TraceSpec, generate
from slurm_pal.simulate.result import JobOutcome, Replay
from slurm_pal.simulate.trace import Trace
from slurm_pal.simulate.virtual import parse_cluster
from slurm_pal.twin.run import Twin

WIDE_GPUS = 16
SIZES = {1: 0.7, 2: 0.05, 4: 0.1, 8: 0.1, 16: 0.03, 32: 0.02}
"""Of made-up traces: as the generator's, with wide jobs."""
WEEK_S = 7 * 86400.0


def settings(asked: argparse.Namespace, order: str) -> Config:
    config = Config()
    config.set("rebalance", "interval_s", asked.interval, "--interval")
    config.set("rebalance", "moves", False, "here")
    config.set("rebalance", "order", order, "--orders")
    config.set("rebalance", "order_bound_s", asked.bound, "--bound")
    return config


def traces(asked: argparse.Namespace) -> Iterator[tuple[str, Trace, str]]:
    for text in asked.traces:
        path, _, cluster = text.partition("@")
        yield os.path.basename(path).removesuffix(".csv"), read(path, "auto", ReaderOptions()), cluster or "16x4"
    for number in range(asked.many if asked.generated else 0):
        made = TraceSpec(jobs=asked.generated, seed=100 + number, load=asked.load, sizes=SIZES)
        yield f"generated {number + 1}", generate(made), "16x4"


def cut(trace: Trace, asked: argparse.Namespace) -> Trace:
    jobs = trace.jobs[: asked.jobs or None]
    if asked.no_limits:
        jobs = tuple(job._replace(limit_s=WEEK_S) for job in jobs)
    return trace._replace(jobs=jobs)


def p99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[int(len(ordered) * 0.99)]


def numbers(found: Replay, stock: Replay, without: Replay) -> list[str]:
    def ratio(measure: object, other: Replay) -> float:
        return measure(found.outcomes) / measure(other.outcomes)  # type: ignore[operator]

    def mean(outcomes: Sequence[JobOutcome]) -> float:
        return fmean(o.jct_s for o in outcomes)

    def tail(outcomes: Sequence[JobOutcome]) -> float:
        return p99([o.jct_s for o in outcomes])

    def wide(outcomes: Sequence[JobOutcome]) -> float:
        return fmean([o.jct_s for o in outcomes if o.gpus > WIDE_GPUS] or [1.0])

    cells = [f"{ratio(measure, stock):.3f}" for measure in (mean, tail, wide)]
    cells += [f"{ratio(mean, without):.3f}"]
    for other in (without, stock):
        started = {o.job_id: o.start_s for o in other.outcomes}
        later = sorted(o.start_s - started[o.job_id] for o in found.outcomes)
        cells.append(f"{later[-1] / 3600:.1f} {later[int(len(later) * 0.99)] / 3600:.1f}")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", metavar="TRACE[@CLUSTER]")
    parser.add_argument("--orders", default="shortest,response-ratio,fair")
    parser.add_argument("--bound", type=float, default=43200.0, help="rebalance.order_bound_s")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--interval", type=float, default=300.0, help="s between two ticks")
    parser.add_argument("--queue", default="multifactor")
    parser.add_argument("--jobs", type=int, default=0, help="only the first ones of each trace")
    parser.add_argument("--generated", type=int, default=0, metavar="JOBS")
    parser.add_argument("--many", type=int, default=3, help="made-up traces")
    parser.add_argument("--load", type=float, default=0.95)
    parser.add_argument("--no-limits", action="store_true")
    asked = parser.parse_args()
    print("| trace | jobs (wide) | order | mean JCT | P99 | > 16 GPUs | of tick | latest, P99 h | of stock | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, trace, cluster in traces(asked):
        fitted = fit(cut(trace, asked), parse_cluster(cluster))
        count = len(fitted.trace.jobs), sum(job.shape.total > WIDE_GPUS for job in fitted.trace.jobs)
        for seed in range(1, asked.seeds + 1):
            runs: dict[str, Replay] = {}
            for order in ("stock", "none", *asked.orders.split(",")):
                began_s = time.process_time()
                twin = Twin(settings(asked, "none" if order == "stock" else order))
                made = Experiment((fitted.trace,), fitted.cluster, queue=asked.queue, program=twin)
                runs[order] = made.run(ReplayTask("slurm-twin" if order == "stock" else "tick", seed))
                if order != "stock":
                    cells = numbers(runs[order], runs["stock"], runs["none"])
                    row = name, f"{count[0]} ({count[1]})", order, *cells, f"{time.process_time() - began_s:.0f}"
                    print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
