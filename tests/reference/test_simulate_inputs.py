# SPDX-License-Identifier: MIT
"""The published traces as read by `pal simulate`: sizes and GPU-hours of the data's own description.

The files are read from $PAL_REFERENCE_DATA, or from ../shared/data beside the checkout.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from slurm_pal.simulate.inputs import ReaderOptions, describe, own, read
from slurm_pal.simulate.inputs.reader_options import App

DATA = Path(os.environ.get("PAL_REFERENCE_DATA") or Path(__file__).parents[3] / "shared" / "data") / "pal"
pytestmark = pytest.mark.skipif(
    not (DATA / "traces").is_dir(), reason=f"no reference data in {DATA}; set PAL_REFERENCE_DATA"
)
WORKLOADS = {1: (1462, 70), 2: (5584, 97), 3: (1862, 75), 4: (1421, 83), 7: (1776, 45)}
"""Workload -> GPU-hours, and per cent of them in resnet50 (README of the data)."""


def workload(number: int) -> str:
    return str(DATA / "traces" / f"workload-{number}.csv")


@pytest.mark.parametrize("number", WORKLOADS)
def test_gpu_hours(number: int) -> None:
    trace = read(workload(number))
    assert (len(trace.jobs), trace.bad, trace.skipped) == (160, (), {})
    gpu_hours, resnet_per_cent = WORKLOADS[number]
    assert round(describe(trace)["gpu_hours"]) == gpu_hours
    resnet = sum(job.shape.total * job.ideal_s / 3600 for job in trace.jobs if job.app == "resnet50")
    assert round(100 * resnet / gpu_hours) == resnet_per_cent
    assert {job.shape.total for job in trace.jobs} <= {1, 4, 6, 8, 12, 16, 24, 32, 48}


@pytest.mark.parametrize("number", WORKLOADS)
def test_rows_stay_in_order_and_times_as_they_are(number: int) -> None:
    with open(workload(number), newline="", encoding="utf-8") as stream:
        rows = [(row["job_id"], float(row["submit_time"])) for row in csv.DictReader(stream)]
    assert [(job.job_id, job.submit_s) for job in read(workload(number)).jobs] == rows


def test_our_own_csv_holds_a_published_trace(tmp_path: Path) -> None:
    trace = read(workload(7))
    (tmp_path / "trace.csv").write_text(own.as_text(trace), encoding="utf-8", newline="")
    assert read(str(tmp_path / "trace.csv")) == trace


def test_the_poisson_trace_has_no_iteration_times() -> None:
    path = str(DATA / "traces" / "poisson_trace_50_lam1.csv")
    assert [row.line for row in read(path).bad] == list(range(2, 52))
    trace = read(path, options=ReaderOptions(apps={"*": App(0.1)}))
    assert (len(trace.jobs), trace.bad) == (50, ())
    assert {job.app for job in trace.jobs} == {"res18", "res50", "alexnet", "shufflenet", "transformer"}
    assert {job.shape.total for job in trace.jobs} == {1, 2, 4, 8}
