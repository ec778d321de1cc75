# SPDX-License-Identifier: MIT
"""The submit filter on nearly empty clusters: one made-up trace and one made-up cluster for each seed, in the twin.

    python tests/bench/filter_light_load.py [--load 0.1] [--jobs 150] [--first 1] [--seeds 100]

Mean completion time of `filter` over `slurm-twin` for each cluster, and by what the filter did with the jobs: whom it
gave a node, and whom it left to Slurm (`--gpus=N` on an open number of nodes), whose nodes depend on where others went.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict

from slurm_pal.base.config import Config
from slurm_pal.simulate.hardware import hardware
from slurm_pal.simulate.inputs.generate import TraceSpec, generate
from slurm_pal.simulate.profiles import profile_of, tables
from slurm_pal.simulate.replay import ReplayPlan
from slurm_pal.simulate.result import JobOutcome
from slurm_pal.simulate.virtual import parse_cluster
from slurm_pal.twin import run as twin
from slurm_pal.twin.virtual_job import VirtualJob
from slurm_pal.twin.work import Work

PINNED = {True: "given a node", False: "left to Slurm"}


class Noted(Work):
    """Also keeps which jobs began with a node list of the filter's."""

    pinned: dict[str, bool] = {}  # one run at a time

    def started(self, job: VirtualJob, now_s: float) -> tuple[float, str]:
        self.pinned.setdefault(self.jobs[job.job_id].trace.job_id, bool(job.req_nodes))
        return super().started(job, now_s)


def run(policy: str, jobs: int, load: float, seed: int) -> dict[str, JobOutcome]:
    """One replay."""
    cluster = parse_cluster("16x4")
    trace = generate(TraceSpec(jobs=jobs, load=load, seed=seed, cap_s=86400.0))
    machine = hardware(tables(profile_of("drawn").draw(cluster, seed), cluster), names=cluster.names)
    Noted.pinned.clear()
    done = twin.Twin(Config()).run(ReplayPlan(trace, machine, policy, seed=seed))
    return {outcome.job_id: outcome for outcome in done.outcomes}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=float, default=0.1)
    parser.add_argument("--jobs", type=int, default=150)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=100)
    asked = parser.parse_args()
    twin.Work = Noted  # type: ignore[misc]
    ratios, sums = [], defaultdict[tuple[bool, str], list[float]](lambda: [0.0, 0.0, 0.0])
    for seed in range(asked.first, asked.first + asked.seeds):
        plain = run("slurm-twin", asked.jobs, asked.load, seed)
        ours = run("filter", asked.jobs, asked.load, seed)
        ratios.append(sum(o.jct_s for o in ours.values()) / sum(o.jct_s for o in plain.values()))
        for job_id, outcome in ours.items():
            own = sums[Noted.pinned[job_id], outcome.sensitivity]
            for place, value in enumerate((outcome.jct_s, plain[job_id].jct_s, 1.0)):
                own[place] += value
    mean, half = statistics.fmean(ratios), 1.96 * statistics.stdev(ratios) / len(ratios) ** 0.5
    print(f"load {asked.load:g}, {len(ratios)} clusters: {mean:.4f} [{mean - half:.4f}, {mean + half:.4f}], "
          f"single ones {min(ratios):.3f} to {max(ratios):.3f}")  # fmt: skip
    for (pinned, sensitivity), (ours_s, plain_s, count) in sorted(sums.items()):
        print(f"  {PINNED[pinned]}, class {sensitivity}: {ours_s / plain_s:.4f} ({count:.0f} jobs)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
