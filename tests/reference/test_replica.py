# SPDX-License-Identifier: MIT
"""Replica mode against what the artefact of PAL wrote, and against the studies made with it (pal.md 5 to 8).

The files are read from $PAL_REFERENCE_DATA, or from ../shared/data beside the checkout.
"""

from __future__ import annotations

import csv
import json
import math
import os
from functools import cache
from pathlib import Path

import pytest

from slurm_pal.research.replica.active import Gpus, RoundSettings, RoundState
from slurm_pal.research.replica.blox_pal import BloxFigures, BloxResult, run
from slurm_pal.research.replica.published_policies import POLICIES, build
from slurm_pal.simulate.inputs.pal_profile import CLASSES, Profile, ProfileRun, draw, joint, read_runs
from slurm_pal.simulate.inputs.pal_rows import PalRow, read_sia

DATA = Path(os.environ.get("PAL_REFERENCE_DATA") or Path(__file__).parents[3] / "shared" / "data") / "pal"
pytestmark = pytest.mark.skipif(
    not (DATA / "expected").is_dir(), reason=f"no reference data in {DATA}; set PAL_REFERENCE_DATA"
)
WORKLOADS = ("1", "2", "3", "4", "7")
FILES = {"A": "resnet", "B": "bert", "C": "bert", "D": "pagerank"}
# PAL with ties broken by node id (README of the data): the CSV's own rows depend on the machine.
PAL = {
    "1": BloxFigures(25320.99375, 120944, 4330, 226080, 628, 137, 0.859375),
    "2": BloxFigures(263712.1125, 569011, 76802, 678240, 1884, 68, 0.856746),
    "3": BloxFigures(106396.1625, 196662, 105814, 257760, 716, 82, 0.858611),
    "4": BloxFigures(17323.8125, 112887, 6489, 198720, 552, 96, 0.908996),
    "7": BloxFigures(96564.4, 188091, 120116, 241560, 671, 140, 0.838045),
}
LONG = pytest.mark.long
AVG_JCT, MAKESPAN = "avg_jct_s", "makespan_s"


@cache
def trace(workload: str) -> list[PalRow]:
    return read_sia(str(DATA / "traces" / f"workload-{workload}.csv"))


@cache
def runs(family: str) -> dict[str, list[ProfileRun]]:
    names = {"longhorn": "{}-longhorn-agg.csv", "frontera": "frontera-{}-agg.csv"}
    return {
        c: read_runs(str(DATA / "profiles" / names[family].format(FILES[c])), with_node=family == "frontera")
        for c in CLASSES
    }


@cache
def profile(kind: str = "raw", seed: int = 42) -> Profile:
    return joint(runs("frontera"), seed=seed) if kind == "joint" else draw(runs("longhorn"), kind=kind, seed=seed)


@cache
def simulated(workload: str, policy: str, kind: str = "raw", seed: int = 42, **settings: object) -> BloxResult:
    barred = {"A": settings.pop("barred_a")} if "barred_a" in settings else {}
    chosen = RoundSettings(barred=barred, **settings)  # type: ignore[arg-type]
    return run(trace(workload), policy, profile(kind, seed), chosen)


def ratio(figure: str, policy: str, kind: str = "raw", seed: int = 42, **settings: object) -> float:
    """Geometric mean over the five traces against Packed-S in the same scenario."""
    logs = [
        math.log(
            getattr(simulated(w, policy, kind, seed, **settings).figures, figure)
            / getattr(simulated(w, "packed-s", kind, seed, **settings).figures, figure)
        )
        for w in WORKLOADS
    ]
    return math.exp(sum(logs) / len(logs))


def published_ratio(figure: str, policy: str, **settings: object) -> float:
    """The same against Packed-S as shipped."""
    logs = [
        math.log(
            getattr(simulated(w, policy, **settings).figures, figure)
            / getattr(simulated(w, "packed-s").figures, figure)
        )
        for w in WORKLOADS
    ]
    return math.exp(sum(logs) / len(logs))


def test_the_drawn_profile_is_the_artefacts() -> None:
    with open(DATA / "expected" / "gpu_df_64gpu_seed42.csv", newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    for c in CLASSES:
        expected = [float(row[f"PerfVar_class{c}"]) for row in rows]
        assert profile().slowdown[c] == pytest.approx(expected, rel=0, abs=1e-12)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_job_of_workload_7_finishes_when_it_did(policy: str) -> None:
    path = DATA / "expected" / f"w7_{POLICIES[policy].artefact}_job_stats.json"
    expected = json.loads(path.read_text(encoding="utf-8"))
    outcomes = simulated("7", policy).replay.outcomes
    assert {job.job_id: [job.submit_s, job.finish_s] for job in outcomes} == expected


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_averages(workload: str, policy: str) -> None:
    found = simulated(workload, policy).figures
    assert found._replace(utilisation=0) == expected_figures(workload, policy)._replace(utilisation=0)
    assert found.utilisation == pytest.approx(expected_figures(workload, policy).utilisation, rel=0, abs=5.1e-7)


def expected_figures(workload: str, policy: str) -> BloxFigures:
    if policy == "pal":
        return PAL[workload]
    with open(DATA / "expected" / "sia_fifo_lf1.7_expected.csv", newline="", encoding="utf-8") as stream:
        (row,) = (
            row
            for row in csv.DictReader(stream)
            if (row["workload"], row["policy"]) == (workload, POLICIES[policy].artefact)
        )
    return BloxFigures(**{name: float(row[name]) for name in BloxFigures._fields})  # type: ignore[arg-type]


def test_a_published_policy_given_as_a_callable_changes_nothing() -> None:
    inner = build("pal", profile(), RoundSettings())

    def custom(moment: RoundState) -> dict[int, Gpus]:
        return dict(reversed(inner(moment).items()))

    found = run(trace("7"), custom, profile(), name="own")
    assert found.figures == simulated("7", "pal").figures
    assert found.replay.policy == "own"


@pytest.mark.parametrize(
    ("policy", "kind", "figure", "expected"),
    [
        ("packed-ns", "raw", AVG_JCT, 0.958),
        ("pm-first", "raw", AVG_JCT, 0.729),
        ("pal", "raw", AVG_JCT, 0.691),
        ("pal", "raw", MAKESPAN, 0.528),
        ("packed-ns", "capped", AVG_JCT, 0.987),
        ("pm-first", "capped", AVG_JCT, 1.035),
        ("pal", "capped", AVG_JCT, 0.958),
        ("pal", "capped", MAKESPAN, 0.906),
        ("pm-first", "medians", AVG_JCT, 1.020),
        ("pal", "medians", AVG_JCT, 0.955),
        ("pal", "medians", MAKESPAN, 0.971),
    ],
)
def test_scenarios_of_where_the_gain_comes_from(policy: str, kind: str, figure: str, expected: float) -> None:
    assert ratio(figure, policy, kind) == pytest.approx(expected, rel=0, abs=6e-4)


@pytest.mark.parametrize(
    ("seed", "pm_first", "pal"),
    [
        (3, 0.936, 0.936), pytest.param(1, 1.069, 0.959, marks=LONG), pytest.param(2, 1.053, 0.942, marks=LONG),
    ],
)  # fmt: skip
def test_joint_medians_of_real_nodes(seed: int, pm_first: float, pal: float) -> None:
    assert ratio(AVG_JCT, "pm-first", "joint", seed) == pytest.approx(pm_first, rel=0, abs=6e-4)
    assert ratio(AVG_JCT, "pal", "joint", seed) == pytest.approx(pal, rel=0, abs=6e-4)


@pytest.mark.parametrize(
    ("seed", "slow", "expected"),
    [
        (3, 0, 0.926), pytest.param(1, 1, 0.697, marks=LONG), pytest.param(5, 2, 0.628, marks=LONG),
    ],
)  # fmt: skip
def test_other_profile_seeds(seed: int, slow: int, expected: float) -> None:
    assert sum(value > 1.5 for value in profile(seed=seed).slowdown["A"]) == slow
    assert ratio(AVG_JCT, "pal", seed=seed) == pytest.approx(expected, rel=0, abs=6e-4)


@pytest.mark.parametrize(("policy", "expected"), [("packed-ns", 0.406), ("pm-first", 0.343), ("pal", 0.326)])
def test_greedy_backfill(policy: str, expected: float) -> None:
    assert published_ratio(AVG_JCT, policy, backfill=True) == pytest.approx(expected, rel=0, abs=6e-4)


def test_backfill_fills_the_cluster() -> None:
    used = [simulated(w, "pal", backfill=True).figures.utilisation for w in WORKLOADS]
    assert sum(used) / len(used) == pytest.approx(0.958, rel=0, abs=6e-4)
    assert published_ratio(MAKESPAN, "pal", backfill=True) == pytest.approx(0.491, rel=0, abs=6e-4)


def test_quarantine() -> None:
    found = published_ratio(AVG_JCT, "pal", backfill=True, barred_a=1.5)
    assert found == pytest.approx(0.292, rel=0, abs=6e-4)
    assert published_ratio(AVG_JCT, "pal", barred_a=1.5) == pytest.approx(0.693, rel=0, abs=6e-4)


@pytest.mark.parametrize(
    ("cost_s", "kind", "expected"),
    [
        (60.0, "raw", 0.643), (300.0, "medians", 1.018), pytest.param(60.0, "medians", 0.966, marks=LONG),
        pytest.param(300.0, "raw", 0.733, marks=LONG),
    ],
)  # fmt: skip
def test_charged_starts_and_moves(cost_s: float, kind: str, expected: float) -> None:
    assert ratio(AVG_JCT, "pal", kind, start_cost_s=cost_s) == pytest.approx(expected, rel=0, abs=6e-4)


@pytest.mark.parametrize(
    ("queue", "kind", "pm_first", "pal"),
    [
        ("las", "raw", 0.794, 0.764),
        pytest.param("las", "medians", 1.054, 0.989, marks=LONG),
        pytest.param("srtf", "raw", 0.727, 0.723, marks=LONG),
        ("srtf", "medians", 0.998, 0.953),
    ],
)
def test_other_queues_without_replay(queue: str, kind: str, pm_first: float, pal: float) -> None:
    found = [ratio(AVG_JCT, policy, kind, queue=queue, replay=False) for policy in ("pm-first", "pal")]
    assert found == pytest.approx([pm_first, pal], rel=0, abs=6e-4)


@pytest.mark.parametrize(
    ("penalty", "pal", "pm_first"),
    [(1.0, 0.948, 0.948), (1.5, 0.957, 0.963), (2.0, 0.661, 0.667), (2.5, 0.666, 0.673), (3.0, 0.961, 0.974)],
)
def test_other_locality_penalties(penalty: float, pal: float, pm_first: float) -> None:
    found = {
        policy: simulated("7", policy, locality_penalty=penalty).figures.avg_jct_s
        for policy in ("packed-s", "pal", "pm-first")
    }
    assert found["pal"] / found["packed-s"] == pytest.approx(pal, rel=0, abs=6e-4)
    assert found["pm-first"] / found["packed-s"] == pytest.approx(pm_first, rel=0, abs=6e-4)
