# SPDX-License-Identifier: MIT
"""What goes to PyPI: the sdist is the tree as git has it, the wheel built from it has what is installed, no more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from ...doubles.git_files import tracked

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


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the sdist."""
    return build("wheel", unpacked, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_what_is_installed_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    scripts = {name for name in names if ".data/scripts/" in name}
    assert {Path(name).name for name in scripts} == {"pal", "palsub"}
    expected = set()
    for name in tracked():
        top, _, rest = name.partition("/")
        place = (PLACES | SITE).get(top)
        if place and not name.startswith(OURS):
            expected.add(f"{place}/{rest}")
    assert names - scripts == expected
    assert wheel.stat().st_size < 4 << 20


def test_palsub_needs_no_other_package_than_the_wheel_and_clustershell(wheel: Path, tmp_path: Path) -> None:
    """As docs/admin.md has it for login nodes: pip install --no-deps."""
    argv = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile"]
    argv += ["--ignore-installed", "--prefix", str(tmp_path), str(wheel)]
    subprocess.run(argv, check=True, capture_output=True)
    (tmp_path / "bin" / "python3").symlink_to(getattr(sys, "_base_executable", sys.executable))
    (tmp_path / "sbatch").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "sbatch").chmod(0o755)
    palsub, environ = tmp_path / "bin" / "palsub", {"PATH": f"{tmp_path}:{os.defpath}", "PYTHONPATH": "/nowhere"}
    for words, begin in ((("--pal-off", "job.sh"), "job.sh\n"), (("--pal-help",), "usage: palsub ")):
        done = subprocess.run([palsub, *words], env=environ, capture_output=True, text=True)
        assert (done.returncode, done.stdout[: len(begin)], done.stderr) == (0, begin, "")
    (site,) = tmp_path.glob("lib/python*/site-packages")
    (site / "ClusterShell").symlink_to(Path(sysconfig.get_path("purelib"), "ClusterShell"))
    code = f"import sys; sys.path.append({str(site)!r}); from slurm_pal.base.hostlist import fold; "
    code += "print(fold(['n1', 'n2', 'n3']))"
    argv = [str(tmp_path / "bin" / "python3"), "-I", "-S", "-c", code]
    assert subprocess.run(argv, capture_output=True, text=True).stdout == "n[1-3]\n"
