# SPDX-License-Identifier: MIT
"""Programs of several kinds that are asked to move on a real Slurm: the short form of tests/bench/movable_set.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import skip_without_slurm

pytestmark = [pytest.mark.real_slurm, pytest.mark.long]

BENCH = Path(__file__).parent.parent / "bench" / "movable_set.py"
TELLING = {
    "python: three forks, pipes between them": "moved",
    "C: four threads, SIGUSR1": "moved",
    "auto: pipe into a loop of the shell": "moved",
    "auto: into a loop of the script's own shell": "moved",
    "recipe named, its program dies of the request": "moved",
    "its own trap for SIGURG": "refused",
}


def test_each_is_moved_correctly_or_stays_with_a_reason() -> None:
    skip_without_slurm()
    argv = [sys.executable, "-P", BENCH, "--json", "--at-once=6", *(f"--only={name}" for name in TELLING)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {one["name"]: one["verdict"] for one in json.loads(done.stdout)["programs"]}
    assert found == TELLING
