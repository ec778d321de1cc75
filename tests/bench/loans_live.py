# SPDX-License-Identifier: MIT
"""Owners and guests on a real Slurm, arm by arm, with the twin's prediction beside it.

    python tests/bench/loans_live.py [--jobs 300] [--arms noloan,preempt,loan] [--seed 1] [--out DIR] [--twin-only]

A lab of 8 nodes x 4 GPUs. Half of the nodes are an owner's: many short jobs, in bursts, by the hour of the day. Guests
run longer (log-normal); 60 % of them write a checkpoint each half hour of work. A day of jobs lasts eight minutes.

    noloan    guests have the other half only
    preempt   guests may run everywhere; preempt/partition_prio requeues them for owners
    loan      the same site, and pal-rebalance --daemon --act lends nodes ([loan] in pal.toml)

An arm that is finished is in the folder `--out`, and is not run again. Times in the table are seconds of the trace;
lost is what guests held that were stopped, beyond what their work takes, restarts included.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.simulate.hardware import hardware
from slurm_pal.simulate.inputs.generate import LogNormal, TraceSpec, generate, side_by_side
from slurm_pal.simulate.replay import ReplayPlan
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.trace import Trace
from slurm_pal.simulate.virtual import parse_cluster
from slurm_pal.trial import owners
from slurm_pal.trial.arms import APART
from slurm_pal.trial.compression import LabJob, fitted, lab_jobs
from slurm_pal.trial.folder import TrialFolder
from slurm_pal.trial.live import ArmPlan, ArmResult, Progress, run_arm
from slurm_pal.trial.prediction import config_of, in_lab_time, in_trace_time, pairs_of
from slurm_pal.trial.scaling import pal_settings, scheduler
from slurm_pal.twin.run import START_S, Twin
from slurm_pal.twin.slurm_side import SlurmSide

NODES, OWNED, GPUS = 8, 4, 4
COMPRESS = 180.0
MOVE_COST_S, CHECKPOINT_S = 180.0, 1800.0  # of the trace
AGAIN_SHARE = 2 / 3  # of the cost of a move is the restart, as the twin has it
NAMES = tuple(f"n{k}" for k in range(NODES))
TABLE = [[1.0] * GPUS for _ in NAMES]
TRUE = {c: TABLE for c in "ABCD"}
SBATCH_S = (0.01, 0.02)  # that one takes on the lab's machine
GUESTS_SHARE = 0.4  # of the jobs


def trace_of(jobs: int, seed: int) -> Trace:
    """A day of both, fitted to the lab."""
    guests = round(GUESTS_SHARE * jobs)
    per_h = {"owner": (jobs - guests) / 24, "guest": guests / 24}
    owner = TraceSpec(
        jobs=jobs - guests, seed=2 * seed, cluster_gpus=OWNED * GPUS, rate_per_h=per_h["owner"], arrivals="diurnal",
        sizes={1: 0.6, 2: 0.2, 4: 0.2}, log_normal=LogNormal(900.0, 0.6), cap_s=3600.0, burst=3.0, movable=0.0,
        partition=owners.OWNER,
    )  # fmt: skip
    guest = TraceSpec(
        jobs=guests, seed=2 * seed + 1, cluster_gpus=NODES * GPUS, rate_per_h=per_h["guest"],
        sizes={1: 0.4, 2: 0.25, 4: 0.25, 8: 0.1}, log_normal=LogNormal(2700.0, 1.0), cap_s=4 * 3600.0, movable=0.6,
        partition=owners.GUEST,
    )  # fmt: skip
    whole = side_by_side([generate(owner), generate(guest)])
    small = fitted(whole, parse_cluster(f"{NODES}x{GPUS}"), COMPRESS, None, stated=True)
    rows = zip(small.jobs, whole.jobs, strict=True)
    return small._replace(jobs=tuple(job._replace(partition=own.partition) for job, own in rows))


def past(trace: Trace, seed: int) -> dict[int, float]:
    """What owners needed in the four weeks before, by the hour from the first submission: other days like this one."""
    found: dict[int, float] = {}
    for week in range(1, 5):
        day = trace_of(len(trace.jobs), seed + 100 * week)
        uses = [
            (job.submit_s, job.submit_s + job.ideal_s, job.shape.total)
            for job in day.jobs
            if job.partition == owners.OWNER
        ]
        for hour in range(25):
            moments = [hour * 3600.0, *(start for start, _, _ in uses if hour * 3600 <= start < (hour + 1) * 3600)]
            gpus = max(sum(n for start, end, n in uses if start <= at < end) for at in moments)
            found[hour - 168 * week] = min(float(OWNED), float(math.ceil(gpus / GPUS)))
    return found


def jobs_of(trace: Trace) -> tuple[LabJob, ...]:
    found = []
    for job, own in zip(lab_jobs(trace, COMPRESS, 1.0, MOVE_COST_S), trace.jobs, strict=True):
        found.append(
            job._replace(
                words=("-p", own.partition, *job.words),
                every_s=CHECKPOINT_S / COMPRESS if own.movable else 0.0,
                again_s=AGAIN_SHARE * MOVE_COST_S / COMPRESS,
                plain=own.partition == owners.OWNER,
            )
        )
    return tuple(found)


def settings_of(arm: str) -> Mapping[str, str]:
    """pal.toml in compressed time."""
    found = pal_settings(Config(), COMPRESS, MOVE_COST_S)
    if arm != owners.LOAN:
        return found
    loan = {
        "owners": owners.OWNER, "guest": owners.GUEST, "interval_s": "2", "grace_s": "2",
        "period_s": f"{604800 / COMPRESS:g}",
    }  # fmt: skip
    apart = {f"rebalance.{name}": "false" for name in APART if name != "order"}
    return {**found, **apart, **{f"loan.{key}": text for key, text in loan.items()}}


def edits_of(arm: str) -> tuple[tuple[str, str], ...]:
    return (*scheduler({}, COMPRESS).edits, owners.conf_edit(owners.partitions(arm, NAMES, OWNED)))


class Forecast(NamedTuple):
    """The twin's figures: the mean of its replays, and by how much these scatter (standard deviation)."""

    mean: owners.Shared
    scatter: owners.Shared
    seen: list[list[owners.Seen]]  # the jobs of each replay


def predicted(arm: str, trace: Trace, seed: int, replays: int) -> Forecast:
    """By the twin, in the lab's time. Each replay moves all submissions by up to a second of the lab: where slurmctld's
    seconds begin nobody knows beforehand. A burst takes its time, since one sbatch follows the other."""
    seen, figures, known = [], [], past(trace, seed)
    for number in range(replays):
        rng = random.Random(f"{seed} {number}")
        off_s, free_s, moved = rng.uniform(0.0, COMPRESS), 0.0, []
        for job in trace.jobs:
            at_s = max(job.submit_s + off_s, free_s)
            free_s = at_s + rng.uniform(*SBATCH_S) * COMPRESS
            moved.append(job._replace(submit_s=at_s))
        found = replayed(arm, trace._replace(jobs=tuple(moved)), seed, known)
        seen.append(owners.predicted(trace, found))
        figures.append(owners.shared(seen[-1], NODES * GPUS, found.lost_gpu_s))
    columns = [*zip(*figures, strict=True)]
    mean = owners.Shared(*(statistics.fmean(column) for column in columns))  # type: ignore[arg-type]
    return Forecast(mean, owners.Shared(*(statistics.pstdev(column) for column in columns)), seen)


def replayed(arm: str, trace: Trace, seed: int, known: Mapping[int, float]) -> Replay:
    """`known`: what owners needed before, by the hour."""
    made = owners.partitions(arm, NAMES, OWNED)
    rows = {name: k for k, name in enumerate(NAMES)}
    machine = hardware(TRUE, None, NAMES, {one.name: [rows[name] for name in one.nodes] for one in made})
    settings = ReplaySettings(
        locality_penalty=1.0, move_cost_s=MOVE_COST_S / COMPRESS, checkpoint_s=CHECKPOINT_S / COMPRESS
    )
    twin = Twin(
        config_of(settings_of(arm)), pairs_of(edits_of(arm)), side=SlurmSide(rules={one.name: one for one in made}),
        history=lambda owned, since_s, hour_s: {int(START_S // hour_s) + k: n for k, n in known.items()},
    )  # fmt: skip
    policy = owners.ARMS[arm].policy
    plan = ReplayPlan(in_lab_time(trace, COMPRESS), machine, policy, seed=seed, settings=settings)
    return in_trace_time(twin.run(plan), COMPRESS)


def run(arm: str, trace: Trace, seed: int) -> ArmResult:
    """On a lab of its own."""
    levels = {c: [[0.0] * GPUS for _ in NAMES] for c in "ABC"}
    plan = ArmPlan(
        arm, owners.ARMS[arm], jobs_of(trace), NODES, GPUS, TRUE, TRUE, levels, seed, edits_of(arm), settings_of(arm),
        COMPRESS, 86400.0 / COMPRESS, demand=past(trace, seed) if arm == owners.LOAN else {},
    )  # fmt: skip
    return run_arm(plan, Progress(len(plan.jobs)), threading.Event())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--arms", default=",".join(owners.ARMS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out")
    parser.add_argument("--replays", type=int, default=12, help="of the twin, whose mean is the prediction")
    parser.add_argument("--twin-only", action="store_true")
    options = parser.parse_args()
    out = options.out or ("" if options.twin_only else tempfile.mkdtemp(prefix="loans-"))
    if out:
        os.makedirs(out, exist_ok=True)
    trace, folder, rows = trace_of(options.jobs, options.seed), TrialFolder(out), dict[str, dict[str, object]]()
    alone, live_alone = list[list[owners.Seen]](), list[owners.Seen]()  # jobs of noloan
    for arm in options.arms.split(","):
        if arm not in owners.ARMS:
            parser.error(f"arm {arm!r} is not one of {', '.join(owners.ARMS)}")
        twin = predicted(arm, trace, options.seed, options.replays)
        rows[arm] = {"twin": twin.mean._asdict(), "twin_scatter": twin.scatter._asdict()}
        alone = twin.seen if arm == owners.NO_LOAN else alone
        later = [owners.beyond(*pair) for pair in zip(twin.seen, alone, strict=False)]
        if arm != owners.NO_LOAN and later:
            rows[arm]["twin_beyond_s"] = [statistics.fmean(column) for column in zip(*later, strict=True)]
        print(f"{arm:8} twin  {line(twin.mean)}{more(rows[arm], 'twin')}", flush=True)
        print(f"{'':8}   +-  {line(twin.scatter)}", flush=True)
        if options.twin_only:
            continue
        result = folder.kept(0, arm, len(trace.jobs))
        if result is None:
            result = run(arm, trace, options.seed)
            folder.keep(0, result)
        seen = owners.live(trace, result.jobs)
        lost = owners.lost_gpu_s(job for job in seen if job.partition == owners.GUEST)
        real = owners.shared(seen, NODES * GPUS, lost)
        ratios = dict(owners.ratios(real, twin.mean))
        rows[arm] |= {"live": real._asdict(), "strain": result.strain._asdict(), "ratio": ratios}
        live_alone = seen if arm == owners.NO_LOAN else live_alone
        if arm != owners.NO_LOAN and live_alone:
            rows[arm]["live_beyond_s"] = [*owners.beyond(seen, live_alone)]
        print(f"{arm:8} live  {line(real)}{more(rows[arm], 'live')}\n{'':14} {result.strain.text()}", flush=True)
        print(f"{'':8} ratio " + ", ".join(f"{name} {value:.3f}" for name, value in ratios.items()), flush=True)
    json.dump({"seed": options.seed, "jobs": options.jobs, "compress": COMPRESS, "out": out, "arms": rows}, sys.stdout)
    print()


def more(row: Mapping[str, object], kind: str) -> str:
    later = row.get(f"{kind}_beyond_s")
    if not isinstance(later, list):
        return ""
    return "; beyond noloan p50/p99/max " + "/".join(f"{value / COMPRESS:.2f}" for value in later) + " s of the lab"


def line(found: owners.Shared) -> str:
    delays = "/".join(f"{value:.0f}" for value in found[:3])
    lab = "/".join(f"{value / COMPRESS:.2f}" for value in found[:3])
    return (
        f"owner delay p50/p99/max {delays} s (lab {lab} s), lost {found.lost_gpu_s:.0f} GPU-s,"
        f" {found.restarts:.0f} restarts, usage {100 * found.usage:.1f} %,"
        f" guests' JCT {found.guest_jct_s:.0f} s, span {found.span_s:.0f} s,"
        f" unfinished {found.unfinished:.0f}"
    )


if __name__ == "__main__":
    main()
