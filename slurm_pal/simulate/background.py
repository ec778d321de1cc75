# SPDX-License-Identifier: MIT
"""Load that goes on after the last job of a trace, so that its end is not an empty cluster."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from slurm_pal.simulate.trace import Trace, TraceJob


def again_and_again(trace: Trace, jobs_per_h: float, seed: int) -> Callable[[], Iterator[TraceJob]]:
    """The jobs of a trace over and over, Poisson arrivals after its last submission (whole seconds, pal.md 1.4)."""

    def jobs() -> Iterator[TraceJob]:
        draw = random.Random(seed)
        now_s, number = max((job.submit_s for job in trace.jobs), default=0.0), len(trace.jobs)
        while trace.jobs:
            now_s += math.ceil(-math.log(1.0 - draw.random()) / jobs_per_h * 3600.0)
            job = trace.jobs[number % len(trace.jobs)]
            yield job._replace(job_id=f"{job.job_id}+{number // len(trace.jobs)}", submit_s=now_s)
            number += 1

    return jobs
