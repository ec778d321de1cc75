# SPDX-License-Identifier: MIT
"""A short run of the fuzzer with a clock: it fails for what the filter does, not for how long it takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not shutil.which("lua5.1"), reason="no lua5.1 here: apt-get install lua5.1")
def test_hostile_submissions_stay_within_the_bounds() -> None:
    fuzzer = Path(__file__).with_name("filter_clock.py")
    argv = [sys.executable, str(fuzzer), "--seed", "1", "--alone", "--inputs", "40"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["fuzzer"], found["violations"], found["inputs"]) == ("filter_clock", 0, 120)
    assert found["most_instructions"] > 10_000 and found["most_bytes"] > 10_000
