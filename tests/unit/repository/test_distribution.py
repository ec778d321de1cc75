# SPDX-License-Identifier: MIT
"""What goes to PyPI: the sdist is the tree as git has it, the wheel built from it has what is installed, no more."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ADDED = {"PKG-INFO", "setup.cfg", *(f"slurm_pal.egg-info/{name}" for name in (
    "PKG-INFO", "SOURCES.txt", "dependency_links.txt", "entry_points.txt", "requires.txt", "top_level.txt",
))}  # fmt: skip
"""What setuptools writes into each sdist. Nothing of git's is left out."""
PLACES = {"slurm_pal": "slurm_pal", "cli": "slurm_pal/cli", "profiling": "slurm_pal/profiling"}
SITE = {"etc": "slurm_pal/etc", "spank": "slurm_pal/spank"}
OURS = ("etc/locked/", "etc/install-", "spank/tests/", "spank/README.md")
"""Below folders whose files are installed, what only builds and tests. setuptools takes every *.py along."""
BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, f"build_{sys.argv[1]}")(sys.argv[2])
"""


def tracked() -> list[str]:
    """What git keeps of the tree, or would keep."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("this is no clone: git cannot say what belongs to it")
    argv = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


def build(what: str, tree: Path, into: Path) -> Path:
    """An sdist or a wheel of a tree, by the backend that pyproject.toml names."""
    argv = [sys.executable, "-c", BUILD, what, str(into)]
    done = subprocess.run(argv, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = into.iterdir()
    return made


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of a clean copy of the tree, unpacked."""
    folder = tmp_path_factory.mktemp("distribution")
    for name in tracked():
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / "tree" / name, follow_symlinks=False)
    for beside in ("docs/_build/html/index.html", "cli/__pycache__/start.cpython-311.pyc", "spank/build/pal_spank.so"):
        (folder / "tree" / beside).parent.mkdir(parents=True)
        (folder / "tree" / beside).touch()
    (folder / "sdist").mkdir()
    with tarfile.open(build("sdist", folder / "tree", folder / "sdist")) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.glob("slurm_pal-*")
    return tree


def test_the_sdist_is_the_tree(unpacked: Path) -> None:
    found = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert found == {*tracked()} | ADDED
    for name in ("bin/pal", "bin/palsub", ".ci/run", "packaging/test.sh"):
        assert (unpacked / name).stat().st_mode & 0o111, name


def test_the_wheel_has_what_is_installed_and_no_more(unpacked: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(build("wheel", unpacked, tmp_path)) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    scripts = {name for name in names if ".data/scripts/" in name}
    assert {Path(name).name for name in scripts} == {"pal", "palsub"}
    expected = set()
    for name in tracked():
        top, _, rest = name.partition("/")
        place = (PLACES | SITE).get(top)
        if place and not name.startswith(OURS):
            expected.add(f"{place}/{rest}")
    assert names - scripts == expected
