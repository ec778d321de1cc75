# SPDX-License-Identifier: MIT
"""Models measured below the power cap are shown by pal gpus, report, doctor, each with one line on the cure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_pal.report.gpus.page import page
from slurm_pal.report.power_cap import power_findings
from slurm_pal.store import snapshot

from ...doubles.gpus_site import records, rows_of, site_of
from ...doubles.records_factory import sweep, truth
from .test_reading_side import NOW_S, findings, invoke, scores, site  # noqa: F401 - a fixture

TEXT = "emu: class A was measured below the power cap on 2 of 4 GPUs; GPUs differ only at the cap"
CURE = (
    "pal-profile run -w n1 --bench gemm_bf16,gemm_bf16_cublas,gemm_fp16,gemm_tf32,gemm_fp32: what meets it counts; "
    "or pal.toml: [profile] backend = 'torch'"
)


def publish(folder: Path, met_cap: dict[str, dict[str, float]]) -> None:
    gpus = [*scores(("n0", 0), ("n0", 1)), *scores(("n1", 0), ("n1", 1), flags=("not_capped",))]
    path = str(folder / "snapshot")
    snapshot.publish(path, gpus, cluster="fake", epoch=3, now_s=NOW_S, met_cap=met_cap)


def test_pal_gpus_shows_flag_and_cure(site: Path) -> None:  # noqa: F811
    publish(site, {"emu": {"A": 0.5, "B": 0.0}})
    said = invoke("gpus").stdout.splitlines()
    assert said[-1] == f"{TEXT}: {CURE}" and sum("not_capped" in line for line in said) == 2
    assert invoke("gpus", "-w", "n0").stdout.count("power cap") == 0
    assert "power cap" not in invoke("gpus", "-P").stdout + invoke("gpus", "--noheader").stdout
    body = json.loads(invoke("gpus", "--json").stdout)
    assert body["power_cap"] == [{"model": "emu", "text": TEXT, "cure": CURE}]
    assert [g["state"] for g in body["gpus"]] == ["ok"] * 4, "slow or below its cap is not broken"


def test_doctor_warns_and_says_where_two_classes_are_one(site: Path) -> None:  # noqa: F811
    publish(site, {"emu": {"A": 0.5, "B": 0.0}})
    assert [(f.level, f.text, f.mend) for f in findings(site, "warn") if f.topic == "power"] == [("warn", TEXT, CURE)]
    publish(site, {"emu": {"A": 0.2, "B": 0.0}})
    (note,) = (f for f in findings(site, "note") if f.topic == "power")
    assert (note.text, note.mend) == ("emu: A and B are one class here, neither kernel met the power cap", "")


def test_the_report_says_both(site: Path) -> None:  # noqa: F811
    publish(site, {"emu": {"A": 0.5, "B": 0.9}})
    said = " ".join(invoke("report").stdout.split())
    assert f"{TEXT}: {CURE}" in said
    assert "emu: A and B are one class here, both kernels met the power cap." in said
    assert "not_capped 2 class A was measured below the power cap, where GPUs hardly differ" in said
    assert [one["cure"] for one in json.loads(invoke("report", "--json").stdout)["power_cap"]] == [CURE, ""]


def test_the_page_says_it_and_the_map_marks_nobody(site: Path) -> None:  # noqa: F811
    publish(site, {"emu": {"A": 0.5, "B": 0.0}})
    assert "!" not in "".join(line for line in invoke("heatmap").stdout.splitlines() if line.startswith("n1 "))
    report = site_of(records(16))
    (found,) = power_findings([r._replace(flags=("not_capped",)) for r in report.rows], {})
    assert " on all 16 GPUs; " in found.text and " -w " not in found.cure
    assert found.line in page(report._replace(power=(found,))).replace("&#39;", "'")


def test_the_report_measures_the_spread_by_the_product_that_counts() -> None:
    below, at = {"duty": {"power_cap": 0.0}}, {"duty": {"power_cap": 1.0}}
    alike, slow = [1.0] * 16, truth(16, sd=0.05)["A"]
    made = sweep({"A": alike}, bench="gemm_fp16", telemetry=below) + sweep({"A": slow}, bench="gemm_fp32", telemetry=at)
    (group,) = site_of(made).measured.groups
    assert group.group.benchmark == "gemm_fp32"
    assert max(group.slowdown.values()) == pytest.approx(max(r.slowdown["A"] for r in rows_of(made)), abs=2e-3)
