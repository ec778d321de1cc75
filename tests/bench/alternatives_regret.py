# SPDX-License-Identifier: MIT
"""What a choice of places costs against an oracle: jobs with three alternatives among queues that others fill.

    python tests/bench/alternatives_regret.py --seeds 6

Three partitions of a virtual Slurm have queues of their own. Now and then a job comes that could run in each, for so
long as its user estimates, with an error. Its completion time is found out for each place by going on from that moment
three times; the oracle takes the least. Ours is the program's: decide/alternatives.py with waits by decide/waits.py,
corrected by earlier waits and run times (submit/place_history.py), and chosen again while the job waits
(pending/places.py). Each line: mean completion over that of the oracle, and over that of the first alternative; at the
end means over traces with 95 % intervals.
"""

from __future__ import annotations

import argparse
import copy
import random
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from slurm_pal.base import marks
from slurm_pal.base.cluster import Partition
from slurm_pal.base.prices import Prices
from slurm_pal.decide import place_mark
from slurm_pal.decide.alternatives import TIME, Alternative, Goal, best
from slurm_pal.decide.place_mark import MarkedPlace, PlaceMark
from slurm_pal.decide.waits import Expects, Holding, NodeRoom, Waiting, expected_wait_s, starts_now
from slurm_pal.pending.places import changes
from slurm_pal.simulate.statistics import mean_interval
from slurm_pal.submit import place_history
from slurm_pal.submit.place_history import Ran
from slurm_pal.twin.client import VirtualClient
from slurm_pal.twin.room import hardware
from slurm_pal.twin.slurm_settings import SlurmSettings
from slurm_pal.twin.virtual_slurm import VirtualSlurm

PLACES = {"a100": (4, 1.0), "v100": (6, 2.2), "slow": (12, 6.0)}
"""Partition -> nodes of 4 GPUs, run time over that in the first."""
LOADS = {"busy": (1.0, 0.9, 0.5), "calm": (0.8, 0.7, 0.3)}
GPUS, MEAN_S, START_S = (1, 1, 1, 2, 4), 5400.0, 1_700_000_000.0
DAYS, CHOICES, LAST_S, STEP_S = 6, 30, 6 * 86400.0, 300.0
EXPECTS = Expects(0.5, 3600.0)
APPS = {"fold": 1200.0, "train": 5400.0, "embed": 600.0, "render": 3000.0}


class Payload:
    """Jobs end after the time that their name says."""

    def started(self, job: Any, now_s: float) -> tuple[float, str]:  # noqa: ANN401
        kind, _, text = job.options["job-name"].partition("-")
        return now_s + float(text) * (PLACES[job.running_in][1] if kind == "choice" else 1.0), "COMPLETED"

    def stopped(self, job: Any, now_s: float, state: str) -> None:  # noqa: ANN401
        """Nothing."""

    def signalled(self, job: Any, name: str, now_s: float) -> None:  # noqa: ANN401
        """Nothing."""


def cluster() -> VirtualSlurm:
    names = [f"{kind}{k}" for kind, (nodes, _) in PLACES.items() for k in range(nodes)]
    parts = [
        Partition(kind, kind == "a100", True, tuple(f"{kind}{k}" for k in range(nodes)))
        for kind, (nodes, _) in PLACES.items()
    ]  # fmt: skip
    room = hardware(names, [("",) * 4] * len(names), [64] * len(names), [256_000] * len(names))
    return VirtualSlurm(room, parts, Payload(), SlurmSettings(), START_S)


def background(draw: random.Random, loads: Sequence[float]) -> list[tuple[float, list[str]]]:
    """Jobs of each partition as a Poisson process: (s, words of sbatch)."""
    found = []
    for (kind, (nodes, _)), load in zip(PLACES.items(), loads, strict=True):
        rate = load * nodes * 4 / (fmean(GPUS) * MEAN_S)
        at_s = draw.expovariate(rate)
        while at_s < DAYS * 86400:
            run_s = min(8 * MEAN_S, draw.expovariate(1 / MEAN_S) + 60)
            minutes = int(run_s * draw.uniform(1.1, 4.0) / 60) + 1
            gpus = draw.choice(GPUS)
            words = ["-p", kind, f"--gres=gpu:{gpus}", f"--time={minutes}", f"--job-name=bg-{run_s:.0f}"]
            found.append((at_s, words))
            at_s += draw.expovariate(rate)
    return sorted(found)


def planned_s(slurm: VirtualSlurm, kind: str, gpus: int) -> float:
    """As palsub plays the queue through, by what squeue and scontrol show."""
    rows = {slurm.position[name] for name in next(p.nodes for p in slurm.partitions if p.name == kind)}
    here = [job for job in slurm.active.values() if any(take.node in rows for take in job.takes)]
    running = [
        Holding(sum(len(take.indexes) for take in job.takes), slurm.now_s - job.start_s, job.limit_s or 0.0)
        for job in here
    ]
    waiting = sorted((job for job in slurm.pending.values() if kind in job.partitions), key=lambda job: job.job_id)
    ahead = [Waiting(job.request.shape.total if job.request.shape else 1, job.limit_s or 0.0) for job in waiting]
    held = {row: [(job.start_s + (job.limit_s or 0.0) - slurm.now_s, len(take.indexes))
                  for job in here for take in job.takes if take.node == row] for row in rows}  # fmt: skip
    rooms = {str(row): NodeRoom(4 - sum(count for _, count in jobs), jobs) for row, jobs in held.items()}
    if starts_now(gpus, 1, rooms, ahead):
        return 0.0
    free = 4 * len(rows) - sum(one.gpus for one in running)
    return expected_wait_s(gpus, free, running, ahead, EXPECTS)


class Chooser:
    """One job with alternatives, and what became of it in each."""

    def __init__(self, draw: random.Random, at_s: float) -> None:
        self.app = draw.choice([*APPS])
        self.base_s = APPS[self.app] * draw.uniform(0.8, 1.25)
        error = draw.lognormvariate(0, 0.3)
        self.est_s = {kind: APPS[self.app] * factor * error * draw.lognormvariate(0, 0.15)
                      for kind, (_, factor) in PLACES.items()}  # fmt: skip
        self.at_s = START_S + at_s


def go_on(slurm: VirtualSlurm, jobs: list[tuple[float, list[str]]], one: Chooser, kind: str, mark: PlaceMark | None
          ) -> tuple[float, float, float, str]:  # fmt: skip
    """(completion, wait, run, where it ran), s, of the job there; with a mark it is chosen again."""
    client = VirtualClient(slurm)
    words = ["-p", kind, "--gres=gpu:1", "--time=3-00:00:00", f"--job-name=choice-{one.base_s:.0f}"]
    pairs = place_mark.pairs_of(mark) if mark else {}
    number = client.sbatch([*words, *([f"--comment={marks.word(pairs)}"] if pairs else [])])
    job = slurm.jobs[number]
    place = next((k for k, (at_s, _) in enumerate(jobs) if START_S + at_s > slurm.now_s), len(jobs))
    while job.state in ("PENDING", "RUNNING") and slurm.now_s < one.at_s + LAST_S:
        until_s = slurm.now_s + STEP_S
        while place < len(jobs) and START_S + jobs[place][0] <= until_s:
            slurm.advance(START_S + jobs[place][0])
            client.sbatch(jobs[place][1])
            place += 1
        slurm.advance(until_s)
        if mark and job.state == "PENDING":
            seen = client.overview(marked=True, whole=frozenset(PLACES))
            for change in changes(seen, frozenset(), Prices({}), EXPECTS, slurm.now_s):
                fields = {name: text for name, text in change.fields.items() if name != "Gres"}
                client.update_job(change.job_id, **fields)
    end_s = job.end_s if job.state not in ("PENDING", "RUNNING") else one.at_s + LAST_S
    return end_s - one.at_s, job.start_s - one.at_s, end_s - job.start_s, job.partitions[0]


def study(seed: int, loads: Sequence[float]) -> dict[str, list[float]]:
    """Completion times of all choosers, by policy."""
    draw = random.Random(seed)
    jobs = background(draw, loads)
    choosers = [Chooser(draw, (1 + (DAYS - 2) * k / CHOICES) * 86400 + draw.uniform(0, 3600)) for k in range(CHOICES)]
    slurm, place = cluster(), 0
    client = VirtualClient(slurm)
    known: list[Ran] = []
    found: dict[str, list[float]] = {name: [] for name in ("first", "once", "ours", "oracle")}
    for number, one in enumerate(choosers):
        while place < len(jobs) and START_S + jobs[place][0] <= one.at_s:
            slurm.advance(START_S + jobs[place][0])
            client.sbatch(jobs[place][1])
            place += 1
        slurm.advance(one.at_s)
        ends = {kind: go_on(copy.deepcopy(slurm), jobs, one, kind, None) for kind in PLACES}
        rows, plans = [], {}
        settled = [ran for ran in known if ran.submit_s + max(0.0, ran.wait_s) + ran.run_s <= one.at_s]
        for kind in PLACES:
            plans[kind] = planned_s(slurm, kind, 1)
            wait_s = place_history.corrected(settled, kind, plans[kind])[0] if plans[kind] else 0.0
            run_s = place_history.run_s(settled, one.app, kind) or one.est_s[kind]
            rows.append(Alternative(kind, kind, wait_s, run_s, None))
        chosen = rows[best(rows, Goal(TIME), one.at_s).at].name
        places = tuple(MarkedPlace(row.name, row.partition, "", 0, "", round(row.run_s)) for row in rows)
        mark = PlaceMark(chosen, Goal(TIME), one.at_s, 1, places)
        end_s, wait_s, run_s, where = go_on(copy.deepcopy(slurm), jobs, one, chosen, mark)
        known.append(Ran(number, place_history.key_of(one.app), where, where, plans[where], one.at_s, wait_s, run_s))
        found["first"].append(ends["a100"][0])
        found["once"].append(ends[chosen][0])
        found["ours"].append(end_s)
        found["oracle"].append(min(end[0] for end in ends.values()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--loads", default=",".join(LOADS))
    options = parser.parse_args()
    for name, loads in ((name, LOADS[name]) for name in options.loads.split(",")):
        sums = []
        for seed in range(1, options.seeds + 1):
            found = study(seed, loads)
            sums.append(found)
            first, once, ours, oracle = (fmean(found[key]) for key in ("first", "once", "ours", "oracle"))
            told = f"ours {ours / oracle:.3f} of the oracle, {ours / first:.3f} of the first"
            told += f"; chosen once {once / oracle:.3f}, {once / first:.3f}; first {first / oracle:.2f} of the oracle"
            print(f"{name} {seed}: {told}", flush=True)
        ratios = [fmean(found["ours"]) / fmean(found["oracle"]) for found in sums]
        of_first = [fmean(found["ours"]) / fmean(found["first"]) for found in sums]
        print(f"{name}: {_told(ratios)} of the oracle; {_told(of_first)} of the first")


def _told(values: Sequence[float]) -> str:
    mean, low, high = mean_interval(values)
    return f"mean {mean:.3f} ({low:.3f} to {high:.3f}), worst {max(values):.3f}"


if __name__ == "__main__":
    main()
