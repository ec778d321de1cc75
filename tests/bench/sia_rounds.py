# SPDX-License-Identifier: MIT
"""Sia and pal-sia on the Sia-Philly traces, 64 unequal GPUs with slowdowns; or the program's CPU time, with --speed.

Usage: sia_rounds.py [--data DIR] [--traces 1,2,3,4] [--seeds 1] [--jitter 0] [--move-cost 60] [--policies NAME,...]
[--scores true|shuffled|identical] [--speed]. NAME/RULE is a policy whose jobs get their GPUs inside a type by this
rule, the sensitive ones first. Each seed has its own GPUs; with shuffled scores policies take each GPU for another.
Jobs are rigid but for policies `+elastic`. Sia's own tables of speeds are not at hand: SPEEDS are relative ones of our
own, after Gavel's rows of the nearest application on k80, p100 and v100 (transformers gain most, small networks least).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from slurm_pal.allocation import columns
from slurm_pal.allocation.problem import Problem
from slurm_pal.allocation.sia import sia, standing
from slurm_pal.allocation.throughputs import Entry, ThroughputKey
from slurm_pal.base.jobs import GpuShape
from slurm_pal.placement.occupancy import placed_as
from slurm_pal.placement.view import Rule
from slurm_pal.research.replica.gavel_jobs import parse_types
from slurm_pal.research.sia_rounds import BARRED
from slurm_pal.research.unequal import Chosen, GangJob, Moment, Policy
from slurm_pal.research.unequal_comparison import UnequalComparison, UnequalTask
from slurm_pal.research.unequal_jobs import UnequalWorkload, of_trace
from slurm_pal.research.unequal_places import slots_of
from slurm_pal.research.unequal_policies import POLICIES as POLICIES_BY_NAME
from slurm_pal.simulate.experiment import IDENTICAL, SHUFFLED, TRUE, placebo
from slurm_pal.simulate.hardware import Hardware
from slurm_pal.simulate.inputs import AUTO, read
from slurm_pal.simulate.inputs.reader_options import ReaderOptions
from slurm_pal.simulate.profiles import profile_of

CLUSTER = "rtx:24/8,a100:16/8,t4:24/4"  # run times are taken as those on the first type
SPEEDS = {
    "bert": (2.2, 7.0, 1.0), "gpt2": (2.2, 7.0, 1.0), "vgg19": (2.0, 4.0, 1.0), "resnet50": (2.0, 4.5, 1.0),
    "dcgan": (1.6, 2.6, 1.0), "pointnet": (1.5, 2.2, 1.0),
}  # fmt: skip
"""Relative steps/s on rtx, a100 and t4."""
POLICIES = "gavel:max-sum,gavel:max-min,gavel:sjf,hadar,sia,pal-sia"
SIZES = {64: ((6, 4), (3, 8), (2, 8)), 2048: ((192, 4), (96, 8), (64, 8))}  # nodes and GPUs of each, by type


def workload(data: Path, number: str) -> UnequalWorkload:
    trace = read(str(data / "traces" / f"workload-{number}.csv"), AUTO, ReaderOptions())
    cluster = parse_types(CLUSTER)
    most = max(cluster.gpus)
    known = {
        ThroughputKey(job.app, job.shape.total, kind): Entry(speed, 0.1, relative=True)
        for job in trace.jobs
        for kind, speed in zip(cluster.types, SPEEDS[job.app.lower()], strict=True)
    }
    kept = tuple(job for job in trace.jobs if job.shape.total <= most)
    if len(kept) < len(trace.jobs):
        print(f"workload-{number}: {len(trace.jobs) - len(kept)} jobs are wider than every type and left out")
    return of_trace(trace._replace(jobs=kept), cluster, known, 1.5, 1.7)


class Scored(UnequalComparison):
    """The comparison, where policies are told other scores, or GPUs are all alike."""

    scores = TRUE

    def machine(self, seed: int) -> Hardware | None:
        made = super().machine(seed)
        return made and placebo(made, self.scores, seed)


class Inside:
    """A policy of columns; GPUs inside them by a rule of `placement`."""

    def __init__(self, policy: Policy, jobs: Sequence[GangJob], rule: str) -> None:
        self._policy, self._jobs, self._rule = policy, jobs, rule

    def __call__(self, moment: Moment) -> Chosen:
        answer = self._policy(moment)
        chosen = answer if isinstance(answer, Chosen) else Chosen(answer, moment.problem.scale)
        held, places = moment.problem.held, moment.places
        if places is None:
            return chosen
        jobs = [self._jobs[number] for number in moment.job.tolist()]
        changed = chosen.column != held
        free = places.without(moment.job[changed & (held >= 0)].tolist())
        slots = {}
        starts = np.flatnonzero(changed & (chosen.column >= 0)).tolist()
        for row in sorted(starts, key=lambda row: (placed_as(jobs[row].sensitivity), -chosen.gpus[row], row)):
            rule = Rule(placed_as(jobs[row].sensitivity), jobs[row].locality_penalty, BARRED)
            shape, name = GpuShape(int(chosen.gpus[row])), places.names[int(chosen.column[row])]
            placement = free.place(self._rule, shape, rule, name)
            if placement is not None:
                slots[row] = slots_of(placement)
                free.take(slots[row])
        return chosen._replace(slots=slots)


def with_rules(names: Iterable[str]) -> None:
    """Let policies of the form NAME/RULE be run."""
    for name in names:
        policy, _, rule = name.partition("/")
        if rule:
            row = POLICIES_BY_NAME[policy]
            made = lambda work, arrival_s, seed, row=row, rule=rule: Inside(  # noqa: E731
                row.make(work, arrival_s, seed), work.jobs, rule
            )
            POLICIES_BY_NAME[name] = row._replace(make=made)


def study(
    data: Path, traces: Iterable[str], seeds: int, jitter_s: float, move_cost_s: float, names: tuple[str, ...]
) -> None:
    with_rules(names)
    first = names[0]
    print(f"| trace | policy | mean, h | over {first} | p99, h | makespan, h | bound, h | worst finish-time ratio |"
          " restarts per job |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for number in traces:
        work = workload(data, number)
        compared = Scored(work, names, move_cost_s, tuple(range(1, seeds + 1)), jitter_s, source=profile_of("drawn"))
        means: dict[str, float] = {}
        bound_h = compared.bound_s(1) / 3600
        for name in names:
            found = [compared.run(UnequalTask(name, seed), lambda done, total: True).figures for seed in compared.seeds]
            mean = [statistics.fmean(values) for values in zip(*found, strict=True)]
            row = found[0]._make(mean)
            means[name] = row.avg_jct_s
            ratios[name].append(means[name] / means[first])
            hours = f"{row.p99_jct_s / 3600:.1f} | {row.makespan_s / 3600:.1f} | {bound_h:.1f}"
            rest = f"{hours} | {row.worst_finish_time_ratio:.1f} | {row.moves / len(work.jobs):.2f}"
            print(f"| {number} | {name} | {row.avg_jct_s / 3600:.3f} | {ratios[name][-1]:.3f} | {rest} |", flush=True)
    for name, values in ratios.items():
        print(f"| all | {name} | | {statistics.fmean(values):.3f} ({min(values):.3f} to {max(values):.3f}) | | | | | |")


def drawn(gpus: int, jobs: int) -> Problem:
    draws = np.random.default_rng(gpus)
    parts = []
    for number, (nodes, each) in enumerate(SIZES[gpus]):
        levels = [draws.choice(5, each, p=[0.2, 0.4, 0.25, 0.1, 0.05]) for _ in range(nodes)]
        counts = [np.bincount(some, minlength=5).tolist() for some in levels]
        slowdown = {"A": [0.94, 0.98, 1.02, 1.15, 1.4], "B": [0.97, 0.99, 1.01, 1.08, 1.2], "C": [1, 1, 1, 1.01, 1.02]}
        parts.append(columns.PartitionGpus(str(number), counts, slowdown))
    speed = np.exp(draws.normal(0, 0.3, (jobs, 3))) * np.array([1.0, 2.2, 5.0])
    scale = draws.choice([1.0, 2.0, 4.0, 8.0, 16.0], jobs, p=[0.6, 0.12, 0.12, 0.1, 0.06])
    asked = columns.PartitionJobs(speed, np.full(jobs, 0.7), draws.choice(list("ABC"), jobs).tolist(), scale)
    return columns.problem(columns.columns(parts), asked, age_s=draws.uniform(0, 36000, jobs))


def speed() -> None:
    print("| GPUs | jobs | nobody runs yet, ms | all run, ms |\n|---|---|---|---|")
    for gpus, jobs in ((64, 60), (64, 160), (2048, 1000), (2048, 1500), (2048, 4000)):
        problem, now = drawn(gpus, jobs), standing(jobs, 150.0)
        shares = sia(problem, now).shares
        later = problem._replace(held=np.where(shares.any(axis=1), shares.argmax(axis=1), -1))
        spent = []
        for one in (problem, later):
            each = []
            for _ in range(5):
                began = time.process_time()
                sia(one, now)
                each.append(1000 * (time.process_time() - began))
            spent.append(statistics.median(each))
        print(f"| {gpus} | {jobs} | {spent[0]:.0f} | {spent[1]:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared" / "data" / "pal")
    parser.add_argument("--traces", default="1,2,3,4")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jitter", type=float, default=0.0, help="submissions move by up to this, s, by seed")
    parser.add_argument("--move-cost", type=float, default=60.0)
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--scores", default=TRUE, choices=(TRUE, SHUFFLED, IDENTICAL))
    parser.add_argument("--speed", action="store_true")
    given = parser.parse_args()
    if given.speed:
        speed()
    else:
        Scored.scores = given.scores
        names = tuple(given.policies.split(","))
        study(given.data, given.traces.split(","), given.seeds, given.jitter, given.move_cost, names)


if __name__ == "__main__":
    main()
