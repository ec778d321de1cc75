# SPDX-License-Identifier: MIT
"""The locked versions: all that pyproject.toml asks for, each with the SHA-256 of its files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PIN = re.compile(
    r"(?P<name>[a-z0-9.-]+)==(?P<version>\S+)(?: ; [^\\]+?)?(?: \\\n    --hash=sha256:[0-9a-f]{64})+",
)
EXTRAS = {"build": ["build"], "run": ["run"], "test": ["test", "lint"], "docs": ["docs"]}


def locked(name: str) -> dict[str, list[re.Match[str]]]:
    """The versions of a file, by package: several, where they differ by Python. Every line belongs to one."""
    text = (ROOT / "etc" / "locked" / f"{name}.txt").read_text().partition("\n")[2]
    found: dict[str, list[re.Match[str]]] = {}
    position = 0
    while position < len(text):
        match = PIN.match(text, position)
        assert match, text[position : position + 200]
        found.setdefault(match["name"], []).append(match)
        position = match.end() + 1
    return found


@pytest.mark.parametrize("name", EXTRAS)
def test_whatever_is_asked_for_is_locked_in_a_version_that_is_allowed(name: str) -> None:
    argv = [sys.executable, "etc/requirements.py", *EXTRAS[name]]
    wanted = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    versions = locked(name)
    for requirement in map(Requirement, filter(None, wanted)):
        pins = versions.get(canonicalize_name(requirement.name), [])
        assert pins, f"{requirement.name} is not in etc/locked/{name}.txt: make lock"
        for pin in pins:
            assert requirement.specifier.contains(pin["version"]), f"{pin['name']} {pin['version']}: make lock"


def test_tests_pages_and_packages_agree() -> None:
    """make docs installs into the same environment, and what is packaged is what was tested."""
    test, docs, build, run = (
        {name: [pin["version"] for pin in pins] for name, pins in locked(lock).items()}
        for lock in ("test", "docs", "build", "run")
    )
    assert {name: docs[name] for name in docs.keys() & test.keys()} == {
        name: test[name] for name in docs.keys() & test.keys()
    }
    assert {name: test[name] for name in test.keys() & build.keys()} == {
        name: build[name] for name in test.keys() & build.keys()
    }
    assert run == {name: test.get(name) for name in run}
