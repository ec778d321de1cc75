# SPDX-License-Identifier: MIT
"""Our own way to load modules finds what Python's finds, and leaves to Python whatever is not as usual."""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_pal.base import loading

SHOWN = """
import sys
sys.path.insert(0, sys.argv[1])
import slurm_pal
from slurm_pal.base import loading
if sys.argv[2] == "ours":
    loading.install()
    loading.install()
import slurm_pal.submit, slurm_pal.submit.argv as module
from slurm_pal.placement import POLICIES
import slurm_pal.placement as package
for one in (module, package, slurm_pal.submit):
    spec = one.__spec__
    print(one.__name__, one.__file__, one.__cached__, one.__package__, getattr(one, "__path__", None))
    print(spec.name, spec.origin, spec.cached, spec.parent, spec.submodule_search_locations, spec.has_location)
print(module.parse.__code__.co_filename, module.__doc__, package.Policy.__module__)
print(sum(isinstance(one, loading.Finder) for one in sys.meta_path), type(module.__loader__).__name__, file=sys.stderr)
"""


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", "-S", "-c", code, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)


def test_a_module_is_the_same_as_by_python() -> None:
    where = str(Path(loading.__file__).parents[2])
    theirs, ours = run(SHOWN, where, "theirs"), run(SHOWN, where, "ours")  # the first one may compile them
    assert ours.stdout == theirs.stdout and "slurm_pal.submit.argv" in ours.stdout
    assert ours.stderr == "1 _Loader\n" and theirs.stderr == "0 SourceFileLoader\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package `slurm_pal.x` with a module, compiled."""
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "one.py").write_text("value = 1\n")
    assert compileall.compile_dir(folder, quiet=1)
    return folder


def finder() -> loading.Finder:
    from _frozen_importlib_external import MAGIC_NUMBER

    return loading.Finder(f"{sys.implementation.cache_tag}.pyc", MAGIC_NUMBER)


def test_only_a_compiled_file_of_this_very_source_is_believed(package: Path) -> None:
    def found(name: str = "slurm_pal.x.one") -> bool:
        return finder().find_spec(name, [str(package)]) is not None

    source = package / "one.py"
    (compiled,) = (package / "__pycache__").glob("one.*")
    seen = source.stat()
    assert found() and finder().find_spec("slurm_pal.x", [str(package.parent)]) is not None
    assert not found("other.x.one") and not found("slurm_pal.x.two")
    source.write_text("value = 12\n")
    os.utime(source, (seen.st_atime, seen.st_mtime))
    assert not found()  # another size
    source.write_text("value = 2\n")
    os.utime(source, (seen.st_atime, seen.st_mtime - 7))
    assert not found()  # another time
    os.utime(source, (seen.st_atime, seen.st_mtime))
    assert found()
    whole = compiled.read_bytes()
    for damaged in (b"", whole[:10], whole[:30], b"\0" * len(whole), b"abcd" + whole[4:]):
        compiled.write_bytes(damaged)
        assert not found()
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    assert not found()
    compiled.unlink()
    assert not found()


def test_palsub_works_without_compiled_files_and_with_a_changed_module(tmp_path: Path) -> None:
    """Python compiles what it needs, and never runs a module that is no longer there."""
    copied = tmp_path / "slurm_pal"
    shutil.copytree(Path(loading.__file__).parents[1], copied, ignore=shutil.ignore_patterns("__pycache__", "report"))
    words, main = ["--pal-help"], "from slurm_pal.cli.palsub import program; sys.exit(program())"
    start = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {main}"
    first, second = run(start, *words).stdout, run(start, *words).stdout
    assert first == second and "--pal-class" in first
    choice = copied / "submit" / "choice.py"
    choice.write_text(choice.read_text() + '\nHELP = "changed\\n"\n')
    assert run(start, *words).stdout == "changed\n"
