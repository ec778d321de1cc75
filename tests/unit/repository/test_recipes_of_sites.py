# SPDX-License-Identifier: MIT
"""The recipes for Spack and EasyBuild say what pyproject.toml and etc/locked say."""

from __future__ import annotations

import hashlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from slurm_pal import __version__

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NEEDED = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
LOCKED = (ROOT / "etc" / "locked" / "run.txt").read_text()
BUNDLED = {
    "Python-bundle-PyPI": {"click", "jinja2", "rich"},
    "SciPy-bundle": {"numpy", "pandas", "scipy"},
    "matplotlib": {"matplotlib"},
    "HiGHS": {"highspy"},
}
"""Module of EasyBuild -> what we need and it contains."""


class Recorded:
    """A package class of Spack's, of which only what its recipe declares is kept."""

    prefix = "/prefix"


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What recipes call, as (function, first word, others)."""
    calls: list[tuple[str, str, dict[str, Any]]] = []

    def directive(name: str) -> object:
        return lambda *words, **others: calls.append((name, *words[:1], others))  # type: ignore[arg-type]

    package = ModuleType("spack.package")
    for name in ("depends_on", "license", "variant", "version"):
        setattr(package, name, directive(name))
    started: list[tuple[str, ...]] = []
    package.python = lambda *words: started.append(words)  # type: ignore[attr-defined]
    package.run_after = lambda phase: lambda function: function  # type: ignore[attr-defined]
    build_system = ModuleType("spack_repo.builtin.build_systems.python")
    build_system.PythonPackage = Recorded  # type: ignore[attr-defined]
    for part in ("spack", "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        monkeypatch.setitem(sys.modules, part, ModuleType(part))
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, build_system.__name__, build_system)
    return SimpleNamespace(calls=calls, started=started)


def spack(name: str) -> dict[str, Any]:
    """The names that a recipe of Spack defines."""
    names: dict[str, Any] = {"__name__": name}
    exec((ROOT / "packaging" / "spack" / "packages" / name / "package.py").read_text(), names)
    return names


def spec(requirement: Requirement) -> str:
    """A requirement in Spack's words."""
    least = [one.version for one in requirement.specifier if one.operator == ">="]
    assert len(least) == len(requirement.specifier), f"{requirement}: Spack's recipe knows only >="
    return f"py-{canonicalize_name(requirement.name)}" + (f"@{least[0]}:" if least else "")


def test_spack_has_our_dependencies_and_version(declared: SimpleNamespace) -> None:
    recipe = spack("slurm_pal")["SlurmPal"]
    said = {(word, others.get("when"), others["type"]) for name, word, others in declared.calls if name == "depends_on"}
    both = ("build", "run")
    extras = PROJECT["project"]["optional-dependencies"]
    expected = {(spec(one), None, both) for one in NEEDED}
    expected |= {(spec(Requirement(extras[name][0])), f"+{name}", both) for name in ("pyslurm", "research")}
    expected |= {(spec(Requirement(PROJECT["build-system"]["requires"][0])), None, "build")}
    expected |= {(f"python@{PROJECT['project']['requires-python'].removeprefix('>=')}:", None, both)}
    assert said == expected
    assert [word for name, word, _ in declared.calls if name == "version"] == [__version__]
    assert [word for name, word, _ in declared.calls if name == "variant"] == ["pyslurm", "research"]
    assert recipe.url.endswith(f"/slurm_pal-{__version__}.tar.gz")
    recipe().make_private_folder()
    assert declared.started == [("-m", "slurm_pal.admin.private_folder", "/prefix")]


def test_spack_gets_the_kmeans1d_that_is_locked(declared: SimpleNamespace) -> None:
    spack("py_kmeans1d")
    ((version, others),) = [(word, others) for name, word, others in declared.calls if name == "version"]
    assert f"\nkmeans1d=={version} " in LOCKED and others["sha256"] in LOCKED


def easybuild() -> Iterator[tuple[Path, dict[str, Any]]]:
    """EasyBuild's recipes: Python without imports."""
    for path in (ROOT / "packaging" / "easybuild").iterdir():
        names: dict[str, Any] = {}
        exec(path.read_text(), names)
        yield path, names


def test_easybuild_has_our_dependencies_in_the_locked_versions() -> None:
    ((path, recipe),) = easybuild()
    toolchain = recipe["toolchain"]
    assert path.name == f"slurm-pal-{__version__}-{toolchain['name']}-{toolchain['version']}.eb"
    assert recipe["version"] == __version__
    *others, ours = recipe["exts_list"]
    assert ours[:2] == ("slurm-pal", __version__) and "checksums" not in ours[2]
    for name, version, options in others:
        assert f"\n{canonicalize_name(name)}=={version} " in LOCKED
        assert all(len(one) == hashlib.sha256().digest_size * 2 and one in LOCKED for one in options["checksums"])
    bundled = set[str]().union(*(BUNDLED.get(name, set()) for name, _ in recipe["dependencies"]))
    assert bundled | {canonicalize_name(name) for name, *_ in others} == {canonicalize_name(n.name) for n in NEEDED}
    for name, *_ in others:
        assert canonicalize_name(name) not in bundled


def test_easybuild_has_every_program() -> None:
    ((_, recipe),) = easybuild()
    scripts = {Path(name).name for name in PROJECT["tool"]["setuptools"]["script-files"]}
    programs = scripts | PROJECT["project"]["scripts"].keys()
    assert {*recipe["sanity_check_paths"]["files"]} == {f"bin/{name}" for name in programs}
    assert {command.split()[0] for command in recipe["sanity_check_commands"]} == programs
    (command,) = recipe["exts_list"][-1][2]["postinstallcmds"]
    assert re.search(r" python -m slurm_pal\.admin\.private_folder %\(installdir\)s$", command)
