# SPDX-License-Identifier: MIT
"""The files of the tree, as git knows them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tracked() -> list[str]:
    """What git keeps of the tree, or would keep. Skips the test where there is no clone, as in an unpacked sdist."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("this is no clone: git cannot say which files belong to the tree")
    argv = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]
