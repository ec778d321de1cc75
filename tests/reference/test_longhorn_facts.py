# SPDX-License-Identifier: MIT
"""The figures of docs/measuring.md from the public measurements they were computed from.

The files are read from $PAL_REFERENCE_DATA, or from ../shared/data beside the checkout.
"""

from __future__ import annotations

import csv
import functools
import os
from pathlib import Path

import numpy as np
import pytest

from slurm_pal.variability.classify import Classification
from slurm_pal.variability.params import DAY_S, Params
from slurm_pal.variability.records import Record
from slurm_pal.variability.spread import Spread, measure

from ..doubles.records_factory import classify, record

DATA = Path(os.environ.get("PAL_REFERENCE_DATA") or Path(__file__).parents[3] / "shared" / "data") / "pal"
pytestmark = pytest.mark.skipif(
    not (DATA / "profiles").is_dir(), reason=f"no reference data in {DATA}; set PAL_REFERENCE_DATA"
)

# whisker %, p1, p99, slowest, within-GPU CV %, between-GPU SD %, ICC(1)
FACTS = {
    "sgemm-longhorn": (392, 22, 8.9, 0.964, 1.050, 1.203, 0.124, 1.99, 0.970),
    "resnet-longhorn": (336, 4, 11.4, 0.963, 1.110, 1.120, 3.64, 2.82, -0.13),
    "bert-longhorn": (136, 6, 2.6, 0.986, 1.036, 1.039, 1.37, 0.79, 0.10),
    "pagerank-longhorn": (172, 5, 0.4, 0.971, 1.003, 1.004, 0.08, 1.06, 0.99),
    "frontera-resnet": (296, 5, 2.9, 0.986, 1.129, 1.145, 0.88, 2.73, 0.84),
    "frontera-bert": (276, 6, 1.6, 0.992, 1.058, 1.060, 0.18, 1.03, 0.97),
    "frontera-pagerank": (248, 5, 0.2, 0.999, 1.001, 1.001, 0.03, 0.04, 0.34),
}
DIGITS = (0, 0, 1, 3, 3, 3, None, 2, 2)


@functools.cache
def rows(name: str) -> tuple[dict[str, str], ...]:
    with open(DATA / "profiles" / f"{name}-agg.csv", newline="", encoding="utf-8") as stream:
        return tuple(row for row in csv.DictReader(stream) if row.get("ts") != "-1")


def spread_of(name: str) -> Spread:
    runs: dict[str, list[float]] = {}
    for row in rows(name):
        runs.setdefault(row["uuid"], []).append(float(row["perf"]))
    return measure(runs, is_time=True)


@pytest.mark.parametrize("name", FACTS)
def test_figures(name: str) -> None:
    found = spread_of(name)
    seen = (
        found.gpus, found.runs_per_gpu, 100 * found.whisker, found.p1, found.p99, found.slowest, found.within_cv_pct,
        found.between_sd_pct, found.icc,
    )  # fmt: skip
    for value, expected, digits in zip(seen, FACTS[name], DIGITS, strict=True):
        places = digits if digits is not None else len(str(expected).partition(".")[2])
        assert round(value, places) == pytest.approx(expected, abs=1e-9), (name, seen)


def replay(sweep_of: str = "one") -> list[Record]:
    """The SGEMM runs as records: all in one sweep, or one sweep per day."""
    made = []
    for i, row in enumerate(rows("sgemm-longhorn")):
        ts = float(row["ts"])
        place = {"node": f"{row['cabinet']}-{row['node']}-{row['uuid'][-4:]}", "index": int(row["dev_id"])}
        day = f"day{int(ts // DAY_S)}" if sweep_of == "day" else "one"
        made.append(
            record(
                row["uuid"],
                **place,  # type: ignore[arg-type]
                slowdown=float(row["perf"]) / 250.0,
                unit="ms",
                ts=ts,
                sweep=day,
                run_id=f"r{i:05d}",
                ci95_pct=0.0,
                model="V100",
                telemetry={"power_w": {"p50": float(row["pwr"])}, "temp_c": {"p50": float(row["temp"])}},
            )
        )
    return made


@functools.cache
def classified(sweep_of: str) -> Classification:
    made = replay(sweep_of)
    newest = max(r.ts_end for r in made)
    return classify(made, newest + 60.0, Params(retention_d=1e5, stale_after_d=1e5, unknown_after_d=1e5))


def test_replayed_in_one_sweep_the_slowdowns_are_those_of_the_table() -> None:
    slow = np.array([gpu.slowdown["A"] for gpu in classified("one").gpus])
    expected = spread_of("sgemm-longhorn")
    assert len(slow) == 392
    assert float(np.median(slow)) == pytest.approx(1.0)
    assert float(slow.max()) == pytest.approx(expected.slowest, abs=1e-9) and round(float(slow.max()), 3) == 1.203
    # The share of the spread that is noise of single runs (1 - ICC, .4 %) is taken out of the scores.
    assert 100 * float(slow.std()) == pytest.approx(expected.between_sd_pct, rel=0.005)
    assert float(np.quantile(slow, 0.99)) == pytest.approx(expected.p99, abs=3e-4)


def test_repeatability_is_measured_from_the_repeats() -> None:
    (group,) = classified("one").groups
    assert round(100 * group.repeatability, 3) == 0.124


def test_classes_of_longhorn() -> None:
    found = classified("one")
    (group,) = found.groups
    assert 2 <= group.classes <= 8
    assert min(np.diff(found.centroids["A"][: group.classes])) >= 0.003
    worst = max(found.gpus, key=lambda gpu: gpu.slowdown["A"])
    assert {"outlier", "suspect_hw"} <= worst.flags  # 250 W where its peers draw 297 W
    assert found.centroids["A"][worst.variability_class["A"]] == pytest.approx(worst.slowdown["A"])
    assert 1 <= group.lone <= 12


def test_day_by_day_the_history_ends_near_the_median_of_all_runs() -> None:
    """EWMA and jump rule against the plain median over all runs of 41 days."""
    daily = {gpu.uuid: gpu.slowdown["A"] for gpu in classified("day").gpus}
    whole = {gpu.uuid: gpu.slowdown["A"] for gpu in classified("one").gpus}
    common = sorted(set(daily) & set(whole))
    x, y = (np.array([table[u] for u in common]) for table in (daily, whole))
    ranks = [np.argsort(np.argsort(v)) for v in (x, y)]
    assert len(common) == 392
    assert float(np.corrcoef(*ranks)[0, 1]) > 0.98
    assert float(np.median(np.abs(x - y))) < 0.002


def test_quarantined_gpus_are_slow_in_most_of_their_runs() -> None:
    runs: dict[str, list[float]] = {}
    for row in rows("sgemm-longhorn"):
        runs.setdefault(row["uuid"], []).append(float(row["perf"]))
    medians = {uuid: float(np.median(values)) for uuid, values in runs.items()}
    middle = float(np.median(list(medians.values())))
    flagged = [gpu.uuid for gpu in classified("day").gpus if "quarantined" in gpu.flags]
    assert flagged
    assert all(medians[uuid] / middle > 1.04 for uuid in flagged)
