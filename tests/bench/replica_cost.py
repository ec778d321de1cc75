# SPDX-License-Identifier: MIT
"""CPU time of replica mode: a whole run of workload 7, and one placement round at 64 to 1,024 GPUs.

Usage: replica_cost.py [--data DIR] [--repeats N]. DIR holds traces/ and profiles/ of the artefact (default:
$PAL_REFERENCE_DATA/pal, or ../shared/data/pal beside the checkout). A round places a queue of 1.2 times
the cluster on an empty cluster. "tables" is what is made once per run, bins included; the first round then
looks up only these, and later rounds reuse what it learnt about kinds of nodes, never a placement.
The last columns compare with the artefact's own times, taken on another, busy machine.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_pal.research.replica.active import ActiveJob, RoundSettings, RoundState
from slurm_pal.research.replica.blox_pal import run
from slurm_pal.research.replica.published_policies import POLICIES, build
from slurm_pal.simulate.inputs.pal_profile import CLASSES, Profile, draw, read_runs
from slurm_pal.simulate.inputs.pal_rows import PalRow, read_sia

FILES = {"A": "resnet", "B": "bert", "C": "bert", "D": "pagerank"}
ARTEFACT_RUN_S = {"packed-s": 57, "packed-ns": 104, "random-s": 61, "random-ns": 107, "pm-first": 97, "pal": 82}
ARTEFACT_ROUND_S = {
    64: {"pal": 0.052, "pm-first": 0.036, "packed-ns": 0.015},
    128: {"pal": 0.106, "pm-first": 0.069, "packed-ns": 0.031},
    256: {"pal": 0.238, "pm-first": 0.153, "packed-ns": 0.075},
    512: {"pal": 0.469, "pm-first": 0.375, "packed-ns": 0.177},
    1024: {"pal": 1.279, "pm-first": 1.029, "packed-ns": 0.511},
}
PHILLY = random.Random(5).choices([1, 2, 4, 8], [77, 2, 9, 12], k=1000)  # shares of all jobs (pal.md 5.4)
LOAD = 1.2


def cpu_ms(work: Callable[[], object], repeats: int) -> list[float]:
    """CPU time of each call."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append((time.process_time() - start) * 1e3)
    return times


def queue(n_gpus: int, rows: Sequence[PalRow], generator: random.Random) -> list[ActiveJob]:
    """Jobs like `rows`, just over LOAD times the cluster."""
    jobs: list[ActiveJob] = []
    while sum(job.size for job in jobs) < LOAD * n_gpus:
        jobs.append(ActiveJob(len(jobs), generator.choice(rows), 0.0))
    return jobs


def rounds(title: str, rows: Sequence[PalRow], profiles: Sequence[Profile], repeats: int) -> None:
    print(f"\nOne round, queue of {LOAD} x the cluster, {title}: CPU ms")
    print(" GPUs policy      jobs   tables  first min  first median  later min  later median  artefact/first")
    for profile in profiles:
        jobs = queue(profile.n_gpus, rows, random.Random(1))
        moment = RoundState(0.0, jobs, profile, RoundSettings())
        for name, artefact_s in ARTEFACT_ROUND_S[profile.n_gpus].items():
            build_ms: list[float] = []
            first_ms: list[float] = []
            later_ms: list[float] = []
            for _ in range(repeats):
                start = time.process_time()
                policy = build(name, profile, RoundSettings())
                build_ms.append((time.process_time() - start) * 1e3)
                first_ms += cpu_ms(lambda policy=policy, moment=moment: policy(moment), 1)  # type: ignore[misc]
                later_ms += cpu_ms(lambda policy=policy, moment=moment: policy(moment), 1)  # type: ignore[misc]
            first, later = statistics.median(first_ms), statistics.median(later_ms)
            print(
                f"{profile.n_gpus:>5} {name:<10} {len(jobs):>5} {min(build_ms):>8.1f} {min(first_ms):>10.3f} "
                f"{first:>13.3f} {min(later_ms):>10.3f} {later:>13.3f} {artefact_s * 1e3 / first:>15.0f}"
            )


def whole_runs(rows: Sequence[PalRow], profile: Profile, repeats: int) -> None:
    print("Workload 7, whole run with binning, 64 GPUs: CPU ms")
    print("policy          min   median  artefact/median")
    for name in POLICIES:
        times = cpu_ms(lambda name=name: run(rows, name, profile), repeats)  # type: ignore[misc]
        middle = statistics.median(times)
        print(f"{name:<10} {min(times):>8.1f} {middle:>8.1f} {ARTEFACT_RUN_S[name] * 1e3 / middle:>16.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(os.environ.get("PAL_REFERENCE_DATA") or Path(__file__).parents[3] / "shared" / "data") / "pal"
    parser.add_argument("--data", type=Path, default=default)
    parser.add_argument("--repeats", type=int, default=15)
    asked = parser.parse_args()
    runs = {c: read_runs(str(asked.data / "profiles" / f"{FILES[c]}-longhorn-agg.csv")) for c in CLASSES}
    traces = {path.stem: read_sia(str(path)) for path in sorted((asked.data / "traces").glob("workload-*.csv"))}
    whole_runs(traces["workload-7"], draw(runs), asked.repeats)
    sia = [row for rows in traces.values() for row in rows]
    classes = random.Random(6)
    philly = [PalRow(str(i), n, 0.0, 1.0, 1.0, classes.choice(CLASSES)) for i, n in enumerate(PHILLY)]
    profiles = [draw(runs, nodes=n // 4) for n in ARTEFACT_ROUND_S]
    rounds("jobs drawn from all Sia-Philly traces", sia, profiles, asked.repeats)
    rounds("Philly sizes (77 % one GPU), four classes", philly, profiles, asked.repeats)


if __name__ == "__main__":
    main()
