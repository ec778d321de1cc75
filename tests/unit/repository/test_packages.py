# SPDX-License-Identifier: MIT
"""Debian and RPM packages: what is in them, as far as that is seen without building them (make test-packages does)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SITE = Path(sysconfig.get_path("purelib"))

sys.path.insert(0, str(ROOT / "packaging"))  # programs: not the library of that name

import content  # noqa: E402
import deb  # noqa: E402
import rpm  # noqa: E402

sys.path.pop(0)


@pytest.fixture(scope="module")
def names() -> list[str]:
    """The files of slurm-pal-submit that are not its own programs."""
    return content.submit_files(SITE)


def test_palsub_finds_all_that_it_imports_in_the_package_for_login_nodes(names: list[str], tmp_path: Path) -> None:
    site = tmp_path / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for name in names:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SITE / name, site / name)
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "bin" / "palsub", tmp_path / "bin")
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    modules = [name.removesuffix(".py").replace("/", ".") for name in names if re.fullmatch(r"slurm_pal/.*\.py", name)]
    code = f"import sys; sys.path.append({str(site)!r})\nfor name in sys.argv[1:]: __import__(name)"
    code += "\nfrom slurm_pal.base.hostlist import fold; print(fold(['n1', 'n2', 'n3']))"
    argv = [sys.executable, "-I", "-S", "-B", "-c", code, *modules]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "n[1-3]\n"
    (tmp_path / "sbatch").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "sbatch").chmod(0o755)
    done = subprocess.run(
        [tmp_path / "bin" / "palsub", "--pal-off", "job.sh"], env={"PATH": f"{tmp_path}:{os.defpath}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("job.sh\n", "")


def test_it_has_the_files_beside_the_modules_and_nothing_large(names: list[str]) -> None:
    shipped = {f"slurm_pal/submit/{path.name}" for path in (ROOT / "slurm_pal" / "submit").glob("*.sh")}
    shipped |= {f"slurm_pal/etc/recipes.d/{path.name}" for path in (ROOT / "etc" / "recipes.d").iterdir()}
    assert shipped <= {*names}
    assert {name.partition("/")[0].partition("-")[0].lower() for name in names} == {"slurm_pal", "clustershell"}
    assert sum((SITE / name).stat().st_size for name in names) < 10 << 20


@pytest.mark.parametrize(
    "text", ["import numpy", "def late():\n    from numpy import array", "from pandas.io import sql"]
)
def test_what_would_need_more_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "slurm_pal").mkdir()
    (tmp_path / "slurm_pal" / "__init__.py").touch()
    (tmp_path / "slurm_pal" / "one.py").write_text("import os\nfrom slurm_pal import other\n")
    (tmp_path / "slurm_pal" / "other.py").write_text("if TYPE_CHECKING:\n    import scipy\n")
    found = content.imported(tmp_path, ["slurm_pal.one"])
    assert {path.name for path in found} == {"__init__.py", "one.py", "other.py"}
    (tmp_path / "slurm_pal" / "other.py").write_text(f"{text}\n")
    with pytest.raises(
        RuntimeError, match=r"palsub would need (numpy|pandas\.io), which is not in the standard library"
    ):
        content.imported(tmp_path, ["slurm_pal.one"])


def test_all_programs_and_man_pages_are_packaged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    scripts = {Path(name).name for name in project["tool"]["setuptools"]["script-files"]}
    assert {*content.PROGRAMS} == scripts | project["project"]["scripts"].keys()
    pages = re.findall(
        r'^    \("[^"]+", "([^"]+)", .*, (\d)\),$', (ROOT / "docs" / "conf.py").read_text(), re.MULTILINE
    )
    assert {f"{name}.{section}" for name, section in pages} == {page for some in content.MAN.values() for page in some}


def test_the_fields_of_both() -> None:
    submit, whole = (deb.control(name, "0.3.0rc1", "all", 17) for name in (content.SUBMIT, content.WHOLE))
    major, minor = sys.version_info[:2]
    python = f"python3 (>= {major}.{minor}~), python3 (<< {major}.{minor + 1}~)"
    assert "\nVersion: 0.3.0~rc1\nArchitecture: all\n" in submit
    assert f"\nDepends: {python}\nRecommends: slurm-client\n" in submit
    assert f"\nDepends: slurm-pal-submit (= 0.3.0~rc1), {python}, " in whole
    for text in (submit, whole):
        assert all(re.fullmatch(r"[A-Z][A-Za-z-]+: \S.*| \S.*", line) for line in text.splitlines()), text
        assert text.endswith("\n")


VERSIONS = [content.package_version(f"0.3.{text}") for text in ("0.dev1", "0a1", "0b2", "0rc1", "0", "1.dev3", "1")]


@pytest.mark.skipif(not shutil.which("dpkg"), reason="no dpkg")
def test_versions_are_in_the_order_of_debian() -> None:
    for earlier, later in pairwise(VERSIONS):
        subprocess.run(["dpkg", "--compare-versions", earlier, "lt", later], check=True)


@pytest.mark.skipif(not shutil.which("rpm"), reason="no rpm")
def test_versions_are_in_the_order_of_rpm() -> None:
    compared = "".join(f"%{{lua: print(rpm.vercmp('{one}', '{other}'))}} " for one, other in pairwise(VERSIONS))
    argv = ["rpm", "--eval", compared]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["-1"] * (len(VERSIONS) - 1)


def test_rpm_removes_folders_of_ours_only_and_lets_palsub_be_touched(tmp_path: Path) -> None:
    for name in ("usr/lib/slurm-pal/bin/palsub", "usr/share/man/man1/palsub.1.gz", "usr/share/doc/slurm-pal/copyright"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "usr/lib/slurm-pal/bin/pal").symlink_to("palsub")
    assert rpm.listed(tmp_path) == [
        "%defattr(-,root,root,-)",
        '%dir "/usr/lib/slurm-pal"',
        '%dir "/usr/lib/slurm-pal/bin"',
        '"/usr/lib/slurm-pal/bin/pal"',
        '%verify(not mtime) "/usr/lib/slurm-pal/bin/palsub"',
        '%dir "/usr/share/doc/slurm-pal"',
        '%license "/usr/share/doc/slurm-pal/copyright"',
        '"/usr/share/man/man1/palsub.1.gz"',
    ]


@pytest.mark.parametrize("name", ["50%{nil}", "a*", 'a"b', "[a]"])
def test_a_name_that_rpm_would_read_otherwise_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(RuntimeError, match="rpm would not take the name"):
        rpm.listed(tmp_path)
