# SPDX-License-Identifier: MIT
"""Programs below a prefix whose dependencies lie elsewhere, as Spack and EasyBuild have them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from slurm_pal import __version__
from slurm_pal.admin import private_folder

SITE = Path(sysconfig.get_path("purelib"))
BIN = Path(sys.executable).parent


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """What pip --prefix leaves, in a place whose name a shell would take apart; dependencies in another."""
    made = tmp_path / "a prefix"
    site = made / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    site.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    for path in SITE.iterdir():
        if path.name.startswith("slurm_pal"):
            shutil.copytree(path, site / path.name, symlinks=True)
        elif path.suffix != ".pth":
            (tmp_path / "elsewhere" / path.name).symlink_to(path)
    (made / "bin").mkdir()
    for program in (*private_folder.SCRIPTS, *private_folder.STARTED):
        shutil.copy(BIN / program, made / "bin" / program)
    return made


def made(prefix: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call the module as a recipe does."""
    site = next(prefix.glob("lib/python*/site-packages"))
    environ = {"PYTHONPATH": f"{site}:{prefix.parent / 'elsewhere'}", "PATH": os.defpath}
    python = getattr(sys, "_base_executable", sys.executable)
    argv = [python, "-S", "-m", "slurm_pal.admin.private_folder", *words]
    return subprocess.run(argv, env=environ, cwd="/", capture_output=True, text=True)


def test_programs_find_all_they_need_whatever_their_users_environment(prefix: Path) -> None:
    for _ in range(2):  # a second time changes nothing
        done = made(prefix, str(prefix))
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{prefix}/libexec/slurm-pal\n", "")
    environ = {"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere", "PATH": str(prefix / "bin")}
    for program in ("pal", "pal-profile", "pal-rebalance"):
        said = subprocess.run([prefix / "bin" / program, "--version"], env=environ, capture_output=True, text=True)
        assert (said.stdout, said.stderr) == (f"{program} (slurm-pal) {__version__}\n", "")
    said = subprocess.run([prefix / "bin" / "palsub", "--pal-help"], env=environ, capture_output=True, text=True)
    assert said.stdout.startswith("usage: palsub") and said.stderr == ""
    folded = "from slurm_pal.base.hostlist import fold; print(fold(['n1', 'n2', 'n3']))"
    (site,) = prefix.glob("libexec/slurm-pal/lib/python*/site-packages")
    code = f"import sys; sys.path.append({str(site)!r}); {folded}"
    argv = [prefix / "libexec/slurm-pal/bin/python3", "-I", "-S", "-c", code]
    assert subprocess.run(argv, capture_output=True, text=True).stdout == "n[1-3]\n"
    assert not (prefix / "bin" / "python3").exists()  # it would be the users' python3


def test_a_missing_dependency_is_named_and_nothing_is_changed(prefix: Path) -> None:
    for path in (prefix.parent / "elsewhere").glob("scipy*"):
        path.unlink()
    done = made(prefix, str(prefix))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "private_folder: No package metadata was found for scipy\n"
    assert not (prefix / "libexec").exists() and not (prefix / "bin" / "palsub").is_symlink()


@pytest.mark.parametrize("words", [(), ("--help",), ("one", "two")])
def test_other_words_get_the_usage(words: tuple[str, ...], prefix: Path) -> None:
    done = made(prefix, *words)
    assert done.returncode == 2 and done.stderr.startswith("usage: python -m slurm_pal.admin.private_folder PREFIX")
