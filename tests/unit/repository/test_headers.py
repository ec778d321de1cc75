# SPDX-License-Identifier: MIT
"""Every source file says under which licence it stands, where tools look for that (SPDX)."""

from __future__ import annotations

import re
from pathlib import Path

from ...doubles.git_files import tracked

ROOT = Path(__file__).parents[3]
SUFFIXES = (".py", ".lua", ".c", ".h", ".cu", ".sh", ".toml", ".css", ".j2", ".map")
NAMES = ("Makefile", ".ci/run", "bin/palsub")
HEADER = re.compile(r"(?:#|--|//|/\*|\{#) SPDX-License-Identifier: MIT(?: \*/| #\})?")
LATER = ("etc/job_submit.lua", "etc/cli_filter.lua", "slurm_pal/submit/wrapper.sh")
"""Whose first lines others look at: `pal admin` knows our files by them; a wrapper has directives of users there."""


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
