# SPDX-License-Identifier: MIT
"""A model whose tensor cores stay below the power cap, on a real Slurm: flagged, cured by the line that says how."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_pal.lab.lab import Lab

pytestmark = pytest.mark.real_slurm
PAL = (sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()")
PAL_PROFILE = (sys.executable, "-P", "-c", "from slurm_pal.cli.start import profile; profile()")
MODEL = "PAL Emulated Half"


def run(env: Mapping[str, str], *argv: str, code: int | None = 0) -> str:
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done.stdout


def power(env: Mapping[str, str]) -> list[str]:
    """What doctor has to say, with what mends it."""
    found = json.loads(run(env, *PAL, "doctor", "--json", code=None))["findings"]
    return [f"{one['level']} {one['text']} -> {one['mend']}" for one in found if one["topic"] == "power"]


def test_flag_and_cure(lab_dir: str, tmp_path: Path) -> None:
    with Lab.up(lab_dir, nodes=2, gpus=4, model=MODEL) as lab:
        env = lab.environ() | {"XDG_STATE_HOME": str(tmp_path)}
        run(env, *PAL_PROFILE, "run", "--bench", "gemm_bf16,tblock,hbm_triad")
        known = json.loads(run(env, *PAL, "gpus", "--json"))
        truth = {g.uuid: g.slowdown["A"] for g in lab.registry().gpus}
        assert ["not_capped" in g["flags"] for g in known["gpus"]] == [True] * 8
        assert max(truth.values()) > 1.1 > 1.03 > max(g["slowdown"]["A"] for g in known["gpus"]), (
            "it looks like nothing"
        )
        (cure,) = (one["cure"] for one in known["power_cap"] if one["cure"])
        said = power(env)
        assert (
            said[0].startswith(f"warn {MODEL}: class A was measured below the power cap on all 8 GPUs")
            and cure in said[0]
        )
        assert said[1] == f"note {MODEL}: A and B are one class here, neither kernel met the power cap -> "
        assert run(env, *PAL, "gpus").splitlines()[-2].endswith(cure)

        command = re.match(r"pal-profile (run --bench \S+):", cure)
        assert command, cure
        run(env, *PAL_PROFILE, *command[1].split())
        known = json.loads(run(env, *PAL, "gpus", "--json"))
        assert [g["flags"] for g in known["gpus"] if "not_capped" in g["flags"]] == []
        assert known["power_cap"] == [] and power(env) == []
        usual = statistics.median(truth.values())
        for gpu in known["gpus"]:
            assert gpu["slowdown"]["A"] == pytest.approx(truth[gpu["uuid"]] / usual, rel=0.01)
