# SPDX-License-Identifier: MIT
"""Each fuzzer for some seconds, with a fixed seed and number of inputs; and the program that runs them all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SEED = "20261122"


def fuzz(path: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """(exit code, summary, stderr) of a fuzzer."""
    done = subprocess.run([sys.executable, path, "--seed", SEED, *options], capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


def needs(*programs: str) -> None:
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed: make tools")


@pytest.mark.parametrize(("name", "inputs"), [("words", 800), ("tables", 400), ("plugin", 3000)])
def test_nothing_is_found(name: str, inputs: int) -> None:
    needs(*{"words": (), "tables": ("lua5.1",), "plugin": ("make", "gcc")}[name])
    if name == "plugin" and not os.path.exists("/usr/include/slurm/spank.h"):
        pytest.skip("Slurm's headers are needed to build the plug-in: make tools")
    code, summary, shown = fuzz(HERE / f"{name}.py", "--inputs", str(inputs))
    assert (code, summary["violations"]) == (0, 0), shown
    assert summary["fuzzer"] == name and summary["inputs"] >= inputs
    assert summary["memory_mib"] <= 200 or name == "plugin"  # the sanitizers' own memory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the runner, what fuzzers share, and one that finds something in every fifth input."""
    for name in ("run.py", "common.py"):
        shutil.copy(HERE / name, tmp_path / name)
    (tmp_path / "finding.py").write_text(
        "import sys\nfrom common import Part, run\n\n"
        "def check(made):\n    assert made < 0.8, made\n\n"
        "def main():\n    return run('finding', {'one': Part(lambda rng: rng.random(), check)})\n\n"
        "sys.exit(main())\n"
    )
    return tmp_path


def test_what_is_found_is_shown_and_can_be_run_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    code, summary, shown = fuzz(folder / "finding.py", "--inputs", "100")
    assert code == 1 and 5 <= summary["violations"] <= 50
    again = shown.split("(")[1].split(")")[0].split()
    kept = shown.split(" is in ")[1].split(": ")[0]
    assert "AssertionError" in Path(kept).read_text()
    code, once, shown_again = fuzz(folder / "finding.py", *again[2:])
    assert (code, once["inputs"], once["violations"]) == (1, 1, 1)
    assert shown_again.splitlines()[0] == shown.splitlines()[0]
    assert fuzz(folder / "finding.py", "--inputs", "100")[1]["violations"] == summary["violations"]


def test_the_runner_runs_all_and_fails_with_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    (folder / "quiet.py").write_text(
        (folder / "finding.py").read_text().replace("0.8", "2").replace("finding", "quiet")
    )
    (folder / "broken.py").write_text("def none(): ...\n\ndef main(): ...\n\nraise SystemExit(3)\n")
    (folder / "helper.py").write_text("raise SystemExit('this is no fuzzer')\n")

    def run(*words: str) -> tuple[int, list[str]]:
        argv = [sys.executable, folder / "run.py", "--seconds", "0.2", "--seed", SEED, *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines()

    code, lines = run("quiet")
    assert code == 0 and lines[-2].split()[0] == "quiet" and lines[-2].split()[3] == "0"
    code, lines = run()
    assert code == 1 and lines[0] == f"3 fuzzers, 0.0666667 s each, seed {SEED}"
    table = {line.split()[0]: line for line in lines[lines.index("") + 2 : -1]}
    assert table.keys() == {"broken", "finding", "quiet"}
    assert "ended with 3" in table["broken"] and int(table["finding"].split()[3]) > 0
    assert run("broken")[0] == 1 and run("finding")[0] == 1 and run("nobody")[0] == 1
