# SPDX-License-Identifier: MIT
"""The self-test of a card inside a job of a real Slurm: it finds its node and its GPU by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.emulation.gpus import EmuGpu, set_fault
from slurm_pal.lab.lab import Lab

pytestmark = pytest.mark.real_slurm

PATIENCE_S = 120.0
PAL_PROFILE = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import profile; profile()"]


def srun(lab: Lab, words: list[str], *argv: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        ["srun", "--quiet", *words, *PAL_PROFILE, *argv, "--json"],
        env=lab.environ(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    table: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, table


def in_slot(lab: Lab, table: dict[str, Any], node: str) -> EmuGpu:
    return lab.registry().gpu(node, table["index"] if "index" in table else table["gpu"])


def test_a_job_tests_the_gpu_that_it_was_given(lab: Lab) -> None:
    code, table = srun(lab, ["-w", "n1", "--gres=gpu:1"], "selftest")
    assert (code, table["verdict"], table["node"]) == (Exit.OK, "ok", "n1")
    assert table["gpu"]["uuid"] == in_slot(lab, table["gpu"], "n1").uuid
    code, table = srun(lab, ["-w", "n1", "--gres=gpu:4", "--exclusive"], "selftest", "--gpu", "3")
    assert (code, table["gpu"]["index"]) == (Exit.OK, 3)


def test_a_fault_is_found_in_a_job(lab: Lab) -> None:
    path = lab.directory.registry
    set_fault(path, "n2", 0, "throttle", 1.3)
    try:
        code, table = srun(lab, ["-w", "n2", "--gres=gpu:4", "--exclusive"], "selftest", "--gpu", "0")
    finally:
        set_fault(path, "n2", 0, "throttle", None)
    assert (code, table["verdict"]) == (Exit.FAILED, "failed")
    found = {c["name"]: c["text"] for c in table["checks"] if c["verdict"] == "failed"}
    assert "the board held the clock back" in found["gemm_bf16"] and "gemm_bf16 level" in found


def test_repeats_in_a_step(lab: Lab) -> None:
    words = ["bench", "--repeat", "3", "--bench", "hbm_triad"]
    code, table = srun(lab, ["-w", "n3", "--gres=gpu:2"], *words)
    assert (code, table["node"], len(table["gpus"])) == (Exit.OK, "n3", 2) and table["job_id"] > 0
    for gpu in table["gpus"]:
        assert gpu["uuid"] == in_slot(lab, gpu, "n3").uuid
        assert len(gpu["benchmarks"][0]["values"]) == 3
