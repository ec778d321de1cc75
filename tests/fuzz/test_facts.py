# SPDX-License-Identifier: MIT
"""The fuzzer of facts for some rounds with a fixed seed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_pal.errors import MissingPackageError, UsageError
from slurm_pal.lab.programs import account_name, find_programs


@pytest.mark.real_slurm
def test_hostile_texts_change_nothing() -> None:
    try:
        find_programs()
        account_name()
    except (MissingPackageError, UsageError) as error:
        pytest.skip(str(error))
    if not shutil.which("cc") or not os.path.exists("/usr/include/slurm/slurm.h"):
        pytest.skip("a C compiler and Slurm's headers are needed: make tools")
    fuzzer = Path(__file__).with_name("facts.py")
    words = ["--seconds", "30", "--seed", "20261122", "--rounds", "17", "--jobs", "120"]
    done = subprocess.run([sys.executable, str(fuzzer), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["fuzzer"] == "facts" and told["violations"] == 0 and told["rounds"] == 17
    assert told["inputs"] > 17 * 120 * 3 and told["memory_mib"] <= 200
