# SPDX-License-Identifier: MIT
"""Every source file says under which licence it stands, where tools look for that (SPDX)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SUFFIXES = (".py", ".lua", ".c", ".h", ".cu", ".sh", ".toml", ".css", ".j2", ".map")
NAMES = ("Makefile", ".ci/run", "bin/palsub")
HEADER = re.compile(r"(?:#|--|//|/\*|\{#) SPDX-License-Identifier: MIT(?: \*/| #\})?")
LATER = ("etc/job_submit.lua", "etc/cli_filter.lua", "slurm_pal/submit/wrapper.sh")
"""Whose first lines others look at: `pal admin` knows our files by them; a wrapper has directives of users there."""


def tracked() -> list[str]:
    """What git keeps of the tree, or would keep."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("this is no clone: git cannot say which files are sources")
    argv = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


def is_source(name: str) -> bool:
    return name.endswith(SUFFIXES) or name in NAMES or name.endswith("/Makefile")


def test_every_source_begins_with_its_licence() -> None:
    """In the first line, the second where that one says which program runs the file, or near the beginning."""
    lacking = []
    for name in filter(is_source, tracked()):
        lines = (ROOT / name).read_text().split("\n", 12)[:12]
        script = lines[0].startswith("#!")
        if not any(map(HEADER.fullmatch, lines if name in LATER else lines[script : script + 1])):
            lacking.append(name)
    assert lacking == []


def test_nothing_else_claims_another_licence() -> None:
    claim = "SPDX-License-Identifier" + ": "
    for name in tracked():
        try:
            text = (ROOT / name).read_text()
        except UnicodeDecodeError:
            continue
        assert all(part.startswith("MIT") for part in text.split(claim)[1:] if not part.startswith(("`", '"'))), name
