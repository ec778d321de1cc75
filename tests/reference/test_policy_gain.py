# SPDX-License-Identifier: MIT
"""Our policy against backfilled packing on the published traces and profiles, with moves charged.

Ten pairs each, with seeds that the tables of docs/benchmarks.md do not single out: far from
the precision of those, and enough to see that a change of the policy has lost the gain.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest

from slurm_pal.research.replica import blox_pal, published_policies
from slurm_pal.research.replica.active import RoundSettings
from slurm_pal.simulate.experiment import Experiment, ReplayTask
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


@pytest.mark.parametrize(
    ("kind", "slow", "most"),
    [
        ("medians", "", 0.92), pytest.param("joint", "", 0.92, marks=pytest.mark.long),
        pytest.param("medians", "0.03:1.5", 0.75, marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_real_mode(kind: str, slow: str, most: float) -> None:
    ratios = []
    for number in TRACES:
        experiment = Experiment(
            traces=(read(str(DATA / "traces" / f"workload-{number}.csv")),), cluster=parse_cluster("16x4"),
            source=profile_of(f"{kind}:{DATA / 'profiles'}"), slow=parse_slow(slow) if slow else SlowShare(),
            background_per_h=2.0,
        )  # fmt: skip
        for seed in (101, 102):
            mine, packed = (
                measure(experiment.run(ReplayTask(name, seed))).mean_jct_s for name in ("pal-fit", "packed")
            )
            ratios.append(mine / packed)
    assert statistics.fmean(ratios) <= most


def test_published_setting_with_backfill() -> None:
    files = {"A": "resnet", "B": "bert", "C": "bert", "D": "pagerank"}
    runs = {c: read_runs(str(DATA / "profiles" / f"{files[c]}-longhorn-agg.csv")) for c in CLASSES}
    profile, ratios = draw(runs), []
    for number in TRACES:
        rows = read_sia(str(DATA / "traces" / f"workload-{number}.csv"))
        means = []
        for name, settings in (("pal-fit-order", RoundSettings(backfill=True)), ("packed-s", RoundSettings())):
            policy = published_policies.build(name, profile, settings)
            means.append(blox_pal.run(rows, policy, profile, settings).figures.avg_jct_s)
        ratios.append(means[0] / means[1])
    assert statistics.geometric_mean(ratios) <= 0.27
