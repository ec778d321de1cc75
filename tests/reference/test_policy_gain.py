# SPDX-License-Identifier: MIT
"""What true scores are worth on the published traces and profiles, trace by trace: the same policy with shuffled scores
is the other side, so whatever it does to the queue, or gains by packing, counts for nothing here.

There are five traces, which cannot tell anything of completion times ([.871, 1.029] with 3 % of slow GPUs): what scores
change directly, the time factor of the work done and the GPU-hours that it took, is below 1 in every trace.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import numpy as np
import pytest

from slurm_pal.research.replica import blox_pal, published_policies
from slurm_pal.research.replica.active import RoundSettings
from slurm_pal.simulate.experiment import SHUFFLED, TRUE, Experiment, ReplayTask
from slurm_pal.simulate.inputs import read
from slurm_pal.simulate.inputs.pal_profile import CLASSES, draw, read_runs
from slurm_pal.simulate.inputs.pal_rows import read_sia
from slurm_pal.simulate.metrics import measure
from slurm_pal.simulate.profiles import SlowShare, parse_slow, profile_of
from slurm_pal.simulate.virtual import parse_cluster

DATA = Path(os.environ.get("PAL_REFERENCE_DATA") or Path(__file__).parents[3] / "shared" / "data") / "pal"
pytestmark = pytest.mark.skipif(
    not (DATA / "traces").is_dir(), reason=f"no reference data in {DATA}; set PAL_REFERENCE_DATA"
)
TRACES = (1, 2, 3, 4, 7)


SEEDS = (101, 102)
POLICY = "class-fit-move"  # neither waits nor orders


def true_over_shuffled(number: int, slow: str, scores: str = TRUE) -> tuple[float, float]:
    """Time factor of class A's work, and GPU-hours: of one trace, the mean of its seeds."""
    experiment = Experiment(
        traces=(read(str(DATA / "traces" / f"workload-{number}.csv")),), cluster=parse_cluster("16x4"),
        source=profile_of(f"medians:{DATA / 'profiles'}"), slow=parse_slow(slow) if slow else SlowShare(),
    )  # fmt: skip
    runs = [
        [measure(experiment.run(ReplayTask(POLICY, seed, scores=which))) for which in (scores, SHUFFLED)]
        for seed in SEEDS
    ]
    factor = statistics.fmean(ours.slowdown["A"] / mixed.slowdown["A"] for ours, mixed in runs)
    return factor, statistics.fmean(ours.gpu_hours / mixed.gpu_hours for ours, mixed in runs)


@pytest.mark.parametrize(
    ("slow", "most_factor", "most_hours"),
    [("0.03:1.5", 0.9, 0.93), pytest.param("", 0.99, 0.995, marks=pytest.mark.long)],
)
def test_true_scores_are_worth_something_in_every_trace(slow: str, most_factor: float, most_hours: float) -> None:
    found = {number: true_over_shuffled(number, slow) for number in TRACES}
    assert all(factor <= most_factor and hours <= most_hours for factor, hours in found.values()), found


def test_shuffled_scores_would_fail_that() -> None:
    assert true_over_shuffled(1, "0.03:1.5", SHUFFLED) == (1.0, 1.0)


def test_true_scores_shorten_jobs_in_the_published_setting() -> None:
    """Rounds, free moves, backfill by response ratio. With shuffled scores the queue is the same."""
    files = {"A": "resnet", "B": "bert", "C": "bert", "D": "pagerank"}
    profile = draw({c: read_runs(str(DATA / "profiles" / f"{files[c]}-longhorn-agg.csv")) for c in CLASSES})
    order = np.random.default_rng(5).permutation(len(profile.slowdown["A"]))
    mixed = profile._replace(
        slowdown={c: tuple(np.asarray(row)[order].tolist()) for c, row in profile.slowdown.items()}
    )
    found, of_packed = {}, []
    for number in TRACES:
        rows = read_sia(str(DATA / "traces" / f"workload-{number}.csv"))
        mean_s = []
        for name, seen, settings in (
            ("packed-s", profile, RoundSettings()), ("pal-fit-order", profile, RoundSettings(backfill=True)),
            ("pal-fit-order", mixed, RoundSettings(backfill=True)),
        ):  # fmt: skip
            policy = published_policies.build(name, seen, settings)
            mean_s.append(blox_pal.run(rows, policy, profile, settings).figures.avg_jct_s)
        found[number] = mean_s[1] / mean_s[2]
        of_packed.append(mean_s[1] / mean_s[0])
    assert max(found.values()) < 1 and statistics.geometric_mean(found.values()) <= 0.9, found
    assert statistics.geometric_mean(of_packed) <= 0.27  # most of it is the order of the queue
