# SPDX-License-Identifier: MIT
"""Each program loads what its command needs, and no more."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from slurm_pal.cli import start
from slurm_pal.cli.pal import pal

HEAVY = {"numpy", "scipy", "pandas", "matplotlib", "rich", "multiprocessing"}


def loaded(program: str, words: tuple[str, ...] = ("--help",)) -> tuple[str, set[str]]:
    """What a program of slurm_pal.cli.start prints, and the names of its modules."""
    look = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    run = f"from slurm_pal.cli.start import {program}; {program}()"
    done = subprocess.run([sys.executable, "-P", "-c", look + run, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, set(done.stderr.split())


def test_all_commands_can_be_loaded_alone() -> None:
    assert {word for word, command in pal.commands.items() if not command.hidden} == start.MODULES.keys()
    assert all(pal.commands[word].name == word for word in start.MODULES)


@pytest.mark.parametrize("word", ["fork", "gpus", "have", "simulate"])
def test_the_others_stay_away(word: str) -> None:
    shown, modules = loaded("main", words=(word, "--help"))
    assert shown.startswith(f"Usage: pal {word} ")
    assert f"slurm_pal.cli.{start.MODULES[word]}" in modules and "slurm_pal.cli.doctor" not in modules


@pytest.mark.parametrize("program", ["main", "profile", "rebalance"])
def test_nothing_is_loaded_for_numbers_before_there_are_any(program: str) -> None:
    assert not loaded(program)[1] & HEAVY


@pytest.mark.parametrize("program", ["main", "profile", "rebalance"])
def test_garbage_is_looked_for_once_a_command_runs_and_not_before(program: str) -> None:
    assert gc.isenabled()  # to import the module changes nothing
    look = (
        "import gc; from slurm_pal.cli import common; run = common.run; before = []\n"
        "common.run = lambda *given: before.append(gc.isenabled()) or run(*given)\n"
        "import atexit; atexit.register(lambda: print(before, gc.isenabled(), gc.get_freeze_count() > 10_000))\n"
    )
    code = f"{look}from slurm_pal.cli.start import {program}; {program}()"
    done = subprocess.run([sys.executable, "-P", "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[False] True True"


def test_a_command_that_there_is_not_is_named() -> None:
    run = "from slurm_pal.cli.start import main; main()"
    done = subprocess.run([sys.executable, "-P", "-c", run, "explian"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "explian" in done.stderr
