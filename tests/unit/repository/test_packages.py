# SPDX-License-Identifier: MIT
"""Debian packages: what is in them, as far as that is seen without building them (make test-packages does)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SITE = Path(sysconfig.get_path("purelib"))

spec = spec_from_file_location("deb", ROOT / "packaging" / "deb.py")
assert spec and spec.loader
deb = module_from_spec(spec)
spec.loader.exec_module(deb)


@pytest.fixture(scope="module")
def names() -> list[str]:
    """The files of slurm-pal-submit that are not its own programs."""
    return deb.submit_files(SITE)


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
    assert {path.name for path in deb.imported(tmp_path, ["slurm_pal.one"])} == {"__init__.py", "one.py", "other.py"}
    (tmp_path / "slurm_pal" / "other.py").write_text(f"{text}\n")
    with pytest.raises(
        RuntimeError, match=r"palsub would need (numpy|pandas\.io), which is not in the standard library"
    ):
        deb.imported(tmp_path, ["slurm_pal.one"])


def test_all_programs_and_man_pages_are_packaged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    scripts = {Path(name).name for name in project["tool"]["setuptools"]["script-files"]}
    assert {*deb.PROGRAMS} == scripts | project["project"]["scripts"].keys()
    pages = re.findall(
        r'^    \("[^"]+", "([^"]+)", .*, (\d)\),$', (ROOT / "docs" / "conf.py").read_text(), re.MULTILINE
    )
    assert {f"{name}.{section}" for name, section in pages} == {page for some in deb.MAN.values() for page in some}


def test_the_fields_of_both() -> None:
    submit, whole = (deb.control(name, "0.3.0rc1", "all", "3.11", 17) for name in (deb.SUBMIT, deb.WHOLE))
    python = "python3 (>= 3.11~), python3 (<< 3.12~)"
    assert "\nVersion: 0.3.0~rc1\nArchitecture: all\n" in submit
    assert f"\nDepends: {python}\nRecommends: slurm-client\n" in submit
    assert f"\nDepends: slurm-pal-submit (= 0.3.0~rc1), {python}, " in whole
    for text in (submit, whole):
        assert all(re.fullmatch(r"[A-Z][A-Za-z-]+: \S.*| \S.*", line) for line in text.splitlines()), text
        assert text.endswith("\n")


@pytest.mark.skipif(not shutil.which("dpkg"), reason="no dpkg")
def test_versions_are_in_the_order_of_debian() -> None:
    made = [deb.debian_version(f"0.3.{text}") for text in ("0.dev1", "0a1", "0b2", "0rc1", "0", "1.dev3", "1")]
    for earlier, later in pairwise(made):
        subprocess.run(["dpkg", "--compare-versions", earlier, "lt", later], check=True)
