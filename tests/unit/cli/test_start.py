# SPDX-License-Identifier: MIT
"""Commands of pal that are loaded alone are the same ones, and load less."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slurm_pal.cli import start
from slurm_pal.cli.pal import pal


@pytest.mark.parametrize("word", start.ALONE)
def test_it_is_the_same_command(word: str) -> None:
    assert start.alone(word) is pal.commands[word]


@pytest.mark.parametrize("word", ["fork", "have", "simulate"])
def test_the_others_stay_away(word: str) -> None:
    look = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    run = "from slurm_pal.cli.start import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", look + run, word, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.startswith(f"Usage: pal {word} ")
    loaded = done.stderr.split()
    assert f"slurm_pal.cli.{start.ALONE[word]}" in loaded and "slurm_pal.cli.doctor" not in loaded


def test_a_command_that_there_is_not_is_named() -> None:
    run = "from slurm_pal.cli.start import main; main()"
    done = subprocess.run([sys.executable, "-P", "-c", run, "explian"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "explian" in done.stderr
