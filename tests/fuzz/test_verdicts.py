# SPDX-License-Identifier: MIT
"""A short run of the fuzzer that compares the verdicts of two slurmctlds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_slurm


def test_a_slurmctld_with_the_filter_answers_as_one_without() -> None:
    if not (shutil.which("slurmctld") and shutil.which("munged")):
        pytest.skip("no Slurm here: make slurm")
    fuzzer = Path(__file__).with_name("verdicts.py")
    argv = [sys.executable, str(fuzzer), "--seed", "1", "--inputs", "120"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["fuzzer"], found["violations"], found["inputs"]) == ("verdicts", 0, 120)
    assert found["acts"].get("nodelist best", 0) >= 5 and found["acts"].get("exclude slow", 0) >= 1
    assert found["accepted"] >= 30
