# SPDX-License-Identifier: MIT
"""Synthetic replays for tests: seeded outcomes of known shape, without running a simulator."""

from __future__ import annotations

import random
from collections.abc import Sequence

from slurm_pal.base.jobs import GpuShape
from slurm_pal.simulate.result import JobOutcome, Replay, Timeline
from slurm_pal.simulate.trace import BadRow, Trace, TraceJob

N_GPUS = 64
SIZES = (1, 1, 1, 2, 4, 4, 8, 16)


def outcome(job_id: str = "1", **changes: object) -> JobOutcome:
    """One job on one median GPU that starts at once and takes 1000 s."""
    base = JobOutcome(job_id, 0.0, 0.0, 1000.0, 1, 1000.0, "A", 1.0, 1.0, 0, 0, ("n1",), user="ann", account="lab")
    return base._replace(**changes)  # type: ignore[arg-type]


def replay(outcomes: Sequence[JobOutcome], **changes: object) -> Replay:
    """A replay of these outcomes on four GPUs; the rest follows from them unless given."""
    ended = sorted(outcomes, key=lambda o: o.finish_s)
    made = Replay(
        policy="packed",
        queue="fifo",
        seed=1,
        n_gpus=4,
        outcomes=tuple(ended),
        timeline=timeline(ended),
        gpu_s=sum(o.gpus * (o.finish_s - o.start_s) for o in ended),
        moves=sum(o.moves for o in ended),
        move_gpu_s=0.0,
        end_s=ended[-1].finish_s if ended else 0.0,
    )
    return made._replace(**changes)  # type: ignore[arg-type]


def timeline(outcomes: Sequence[JobOutcome]) -> Timeline:
    """GPUs in use and jobs in the queue after each submission, start and end."""
    steps: dict[float, list[int]] = {}
    for o in outcomes:
        for at, busy, queued in ((o.submit_s, 0, 1), (o.start_s, o.gpus, -1), (o.finish_s, -o.gpus, 0)):
            step = steps.setdefault(at, [0, 0])
            step[0] += busy
            step[1] += queued
    busy = queued = 0
    rows: list[tuple[float, int, int]] = []
    for at in sorted(steps):
        busy, queued = busy + steps[at][0], queued + steps[at][1]
        rows.append((at, busy, queued))
    times, used, waiting = zip(*rows, strict=True) if rows else ((), (), ())
    return Timeline(times, used, waiting)


def drawn(
    policy: str,
    seed: int,
    jobs: int = 120,
    slowdown: float = 1.0,
    spread: float = 0.2,
    moves: int = 0,
    noise: float = 0.1,
) -> Replay:
    """A made-up run: the trace, one for each seed, and the chance hang on `seed`, the policy scales what it costs.

    Starts queue behind a single resource, so JCT grows with slowdown as in a busy cluster.
    """
    trace, luck = random.Random(f"trace {seed}"), random.Random(f"luck {policy} {seed}")
    factor = slowdown * luck.lognormvariate(0.0, noise)
    made: list[JobOutcome] = []
    submit_s = free_s = 0.0
    for number in range(jobs):
        submit_s += trace.expovariate(1 / 300)
        gpus = trace.choice(SIZES)
        ideal_s = trace.lognormvariate(8.0, 1.3)
        sensitivity = trace.choice("AABC")
        user = f"user{trace.randrange(25):02d}"
        loss = {"A": 1.0, "B": 0.4, "C": 0.05}[sensitivity] * 0.12 * luck.random() * factor
        locality = 1.7 if gpus > 4 or (gpus > 1 and luck.random() < spread) else 1.0
        run_s = ideal_s * (1 + loss) * locality
        start_s = max(submit_s, free_s)
        free_s = start_s + factor * gpus * run_s / N_GPUS
        nodes = tuple(f"n{i + 1}" for i in range(-(-gpus // 4)))
        job = JobOutcome(
            str(number), submit_s, start_s, start_s + run_s, gpus, ideal_s, sensitivity, 1 + loss, locality, 0, 0, nodes
        )
        made.append(job._replace(user=user, account=f"group{number % 3}"))
    used = sum(o.gpus * (o.finish_s - o.start_s) for o in made)
    return replay(
        made, policy=policy, seed=seed, trace=seed, n_gpus=N_GPUS, gpu_s=used, moves=moves, move_gpu_s=180.0 * 4 * moves
    )


def trace_of(run: Replay, name: str = "made-up.csv", bad: int = 0, skipped: dict[str, int] | None = None) -> Trace:
    """The trace that a made-up run belongs to."""
    jobs = tuple(TraceJob(o.job_id, o.submit_s, GpuShape(o.gpus), o.ideal_s, o.sensitivity) for o in run.outcomes)
    rows = tuple(BadRow(7 + 3 * i, f"gpus is '{-i}', allowed is 1 or more") for i in range(bad))
    return Trace(name, jobs, rows, skipped or {})
