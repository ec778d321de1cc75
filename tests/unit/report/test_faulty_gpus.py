# SPDX-License-Identifier: MIT
"""GPUs that were seen to fail are shown by every command that shows GPUs, each with what to do about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base.faults import cure_of
from slurm_pal.report import actual, inventory
from slurm_pal.report.doctor import MOST_NAMED
from slurm_pal.report.gpus.gpu_report import gpu_report
from slurm_pal.report.gpus.page import page
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.fake import FakeNode, write_shims
from slurm_pal.store import snapshot
from slurm_pal.submit.decision import render
from slurm_pal.variability.params import Params

from ..decide.test_submit_decide import job
from .test_reading_side import NOW_S, findings, invoke, publish, scores, site  # noqa: F401 - a fixture

HANG = "n0:1 no-answer: reset the GPU or reboot n0; then pal-profile run -w n0"
LOST = "n1:0 missing: read dmesg on n1, reboot it, reseat or replace the GPU; then pal-profile run -w n1"


@pytest.fixture
def sick(site: Path) -> Path:  # noqa: F811
    """n0:1 does not answer, n1:0 is not listed, n1:1 is an outlier; n9:0, which Slurm does not know, has an Xid."""
    well = scores(("n0", 0))
    hangs, lost = scores(("n0", 1), flags=("outlier", "no_answer")), scores(("n1", 0), flags=("missing",))
    slow, gone = scores(("n1", 1), flags=("outlier",)), scores(("n9", 0), flags=("xid",))
    publish(site, [*well, *hangs, *lost, *slow, *gone])
    return site


def test_pal_gpus_shows_state_and_cure(sick: Path) -> None:
    known = json.loads(invoke("gpus", "--json").stdout)["gpus"]
    assert {(g["node"], g["index"]): (g["state"], g["flags"]) for g in known} == {
        ("n0", 0): ("ok", []),
        ("n0", 1): ("no-answer", ["outlier", "no_answer"]),
        ("n1", 0): ("missing", ["missing"]),
        ("n1", 1): ("ok", ["outlier"]),
        ("n9", 0): ("xid", ["xid", "not_in_slurm"]),
    }
    for words in ((), ("-f",), ("-w", "n[0-1]")):
        assert invoke("gpus", *words).stdout.splitlines()[-2:] == [HANG, LOST], "no line on what Slurm does not know"
    assert "then pal-profile" not in invoke("gpus", "-w", "n1", "-P").stdout + invoke("gpus", "--noheader").stdout
    assert invoke("gpus", "n0:0").stdout.count("\n") == 2


def test_doctor_warns_of_each(sick: Path) -> None:
    seen = [(f.text, f.mend) for f in findings(sick, "warn") if f.topic == "gpu"]
    assert [text for text, _ in seen] == [
        "n0:1 no-answer: it stopped answering while it was measured; jobs are kept off it",
        "n1:0 missing: the driver does not list it; jobs are kept off it",
    ]
    assert [mend for _, mend in seen] == [HANG.partition(": ")[2], LOST.partition(": ")[2]]
    assert HANG.partition(": ")[2] in invoke("doctor").stdout


def test_doctor_names_a_few_of_many(site: Path) -> None:  # noqa: F811
    write_shims(str(site / "bin"), str(site / "fake.json"), [FakeNode("n0", gpus=MOST_NAMED + 3)])
    publish(site, scores(*(("n0", k) for k in range(MOST_NAMED + 3)), flags=("ecc",)))
    found = [f.text for f in findings(site, "warn") if f.topic == "gpu"]
    assert len(found) == MOST_NAMED + 1 and found[-1].startswith("3 more GPUs were seen to fail")


def test_the_map_marks_them_and_says_what_to_do(sick: Path) -> None:
    lines = invoke("heatmap").stdout.splitlines()
    cells = [line.split() for line in lines if line.startswith("n0 ")]
    assert cells[0][:4] == ["n0", "4", "4x", "n1"] and "4x4!" in cells[0], lines
    said = " ".join(" ".join(lines).split())
    assert HANG in said and LOST in said and "n1:1" not in said


def test_the_report_names_state_and_cure(sick: Path) -> None:
    said = invoke("report").stdout
    assert "GPUS THAT WERE SEEN TO FAIL" in said and HANG.partition(": ")[2] in said and "missing" in said
    body = json.loads(invoke("report", "--json").stdout)
    assert [(g["node"], g["index"], g["state"], g["cure"]) for g in body["faulty"]] == [
        ("n0", 1, "no-answer", cure_of(("no_answer",), "n0", 1)),
        ("n1", 0, "missing", cure_of(("missing",), "n1", 0)),
    ]
    assert HANG.partition(": ")[2] in invoke("report", "--gpu", "n0:1").stdout
    rows = inventory.gpu_rows(snapshot.read(str(sick / "snapshot")), CliClient().overview(), NOW_S)
    html = page(gpu_report(rows, [], [], NOW_S, Params()))
    assert "GPUs that were seen to fail" in html and HANG.partition(": ")[2] in html


def offer(node: str, index: int, state: str) -> dict[str, Any]:
    gpu = {"node": node, "index": index, "slowdown": 1.0, "class": "v0", "age_s": 60, "flags": [], "state": state}
    return {"gpus": [gpu], "slowdown": 1.0, "locality": 1.0, "product": 1.0}


def test_explain_says_that_a_job_was_kept_off_one() -> None:
    chosen, plain = offer("n1", 0, "ok"), offer("n0", 1, "no-answer")
    said = actual.verdict(chosen, {"chosen": chosen, "plain_slurm": plain})
    assert said == "You were kept off GPUs that were seen to fail: plain Slurm would have picked n0:1 (no-answer)"
    made = {
        "job_id": 7, "reason": "r", "sensitivity": {"class": "A", "from": "x"}, "policy": "pal", "added": [],
        "lease": None, "chosen": chosen, "alternatives": [], "plain_slurm": plain, "unknown": [], "snapshot": None,
        "warnings": [],
    }  # fmt: skip
    assert "plain Slurm would have picked: n0:1 at 1.000, seen to fail: n0:1 (no-answer)" in render(made)


def test_explain_says_that_a_job_got_one(sick: Path) -> None:
    published = snapshot.read(str(sick / "snapshot"))
    got = job(7, {"n0": (0, 1)})
    found = actual.actual(got, published, NOW_S)
    assert found is not None
    lines = actual.lines("7", got, found)
    assert f"  seen to fail: {HANG}" in lines and sum("seen to fail" in line for line in lines) == 1
