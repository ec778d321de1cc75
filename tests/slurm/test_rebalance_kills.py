# SPDX-License-Identifier: MIT
"""pal-rebalance killed with SIGKILL while it moves jobs: the short form of tests/bench/rebalance_kills.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real_slurm, pytest.mark.long]

BENCH = Path(__file__).parent.parent / "bench" / "rebalance_kills.py"


def test_nothing_is_lost(lab_dir: str) -> None:
    """Without jobs that checkpoint by signal: their wrappers may wait a minute for a requeue."""
    words = [
        "--kills=8",
        "--nodes=4",
        "--numbers=15",
        "--kinds=movable,ours,plain",
        "--until-moved",
        f"--dir={lab_dir}",
    ]
    done = subprocess.run([sys.executable, "-P", BENCH, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] >= 8 and found["restarts"] > 0 and sum(found["moves"].values()) > 0, found
