# SPDX-License-Identifier: MIT
"""The SPANK plug-in's own tests (make -C spank test), built out of tree; its exports; its installation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SPANK = Path(__file__).parents[3] / "spank"


def make(build: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    argv = ["make", "-C", str(SPANK), f"BUILD={build}", *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("make") or not shutil.which("gcc"):
        pytest.skip("make and gcc are needed to build the plug-in: apt-get install make gcc")
    probe = ["gcc", "-fsyntax-only", "-include", "slurm/spank.h", "-x", "c", "/dev/null"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("Slurm's headers are needed to build the plug-in: apt-get install libslurm-dev libc6-dev")
    directory = tmp_path_factory.mktemp("spank")
    done = make(directory, "CFLAGS=-O2 -Werror")
    assert done.returncode == 0, done.stderr
    return directory


def tree() -> set[str]:
    return {str(path) for path in SPANK.rglob("*")}


def test_its_own_tests_pass_and_leave_nothing_in_the_tree(build: Path) -> None:
    before = tree()
    done = make(build, "test", "INPUTS=20000")
    assert done.returncode == 0, done.stdout + done.stderr
    runs = re.findall(r"cases and (\d+) random inputs .*: 0 failures", done.stdout)
    assert runs[:1] == ["20000"]
    assert len(runs) == (2 if shutil.which("valgrind") else 1)
    assert tree() == before


def test_only_what_slurm_looks_for_is_exported(build: Path) -> None:
    text = subprocess.run(
        ["nm", "-D", "--defined-only", str(build / "pal_spank.so")], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1].partition("@")[0] for line in text.splitlines() if line.split()[-2] in "TDRB"}
    assert {"plugin_name", "plugin_type", "plugin_version", "slurm_spank_init", "slurm_spank_task_init"} <= names
    others = names - {"plugin_name", "plugin_type", "plugin_version", "spank_plugin_version"}
    assert all(name.startswith("slurm_spank_") for name in others)


def test_it_needs_only_libc(build: Path) -> None:
    text = subprocess.run(
        ["readelf", "-d", str(build / "pal_spank.so")], capture_output=True, text=True, check=True
    ).stdout
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", text) == ["libc.so.6"]
    assert "BIND_NOW" in text


def test_install_and_uninstall(build: Path, tmp_path: Path) -> None:
    done = make(build, "install", f"DESTDIR={tmp_path}", "LIBDIR=/opt/slurm/lib")
    assert done.returncode == 0, done.stderr
    installed = tmp_path / "opt/slurm/lib/pal_spank.so"
    assert installed.stat().st_mode & 0o777 == 0o644
    assert make(build, "uninstall", f"DESTDIR={tmp_path}", "LIBDIR=/opt/slurm/lib").returncode == 0
    assert not installed.exists()
