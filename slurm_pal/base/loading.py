# SPDX-License-Identifier: MIT
"""Load our modules from their compiled files as Python does, with half of its calls to the file system.

palsub loads some 80 modules, often from a network file system. Python looks at the folder, twice at the source and
four times at the compiled file before it believes that. Here the compiled file is read first, and believed as Python
does: if it states the time and the size of the source. All else is left to Python: a file that is missing, old or
checked in another way, and packages that are elsewhere.
"""

from __future__ import annotations

import posix
import sys
from marshal import loads

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

OURS = "slurm_pal."
_HEAD_BYTES = 16  # magic number, kind of check, time and size of the source (PEP 552)
_BY_TIME = bytes(4)


def install() -> None:
    """Serve the imports of our modules from here on, but where compiled files have other names or places."""
    try:
        from _frozen_importlib_external import MAGIC_NUMBER
    except ImportError:
        return
    tag = sys.implementation.cache_tag
    served = any(isinstance(one, Finder) for one in sys.meta_path)
    if tag and not (served or sys.flags.optimize or sys.pycache_prefix):
        sys.meta_path.insert(0, Finder(f"{tag}.pyc", MAGIC_NUMBER))


class Finder:
    """What Python asks where a module is."""

    def __init__(self, suffix: str, magic: bytes) -> None:
        self._suffix, self._head = suffix, magic + _BY_TIME

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where the module `name` of a package with this path is, with its code; None leaves that to Python."""
        if not name.startswith(OURS) or not path:
            return None
        folder, leaf = path[0], name.rpartition(".")[2]
        try:
            try:
                return self._spec(name, folder, leaf)
            except FileNotFoundError:
                return self._spec(name, f"{folder}/{leaf}", "__init__")
        except Exception:  # Python will say what is wrong
            return None

    def _spec(self, name: str, folder: str, leaf: str) -> ModuleSpec | None:
        source, compiled = f"{folder}/{leaf}.py", f"{folder}/__pycache__/{leaf}.{self._suffix}"
        raw = _read(compiled)
        seen = posix.stat(source)
        written = (int(seen.st_mtime), seen.st_size)
        if raw[:_HEAD_BYTES] != self._head + b"".join((n & 0xFFFFFFFF).to_bytes(4, "little") for n in written):
            return None
        code = _Loader(loads(memoryview(raw)[_HEAD_BYTES:]))
        spec: ModuleSpec = type(__spec__)(name, code, origin=source)  # type: ignore[arg-type]  # no subclass of Loader
        spec.has_location, spec.cached = True, compiled
        if leaf == "__init__":
            spec.submodule_search_locations = [folder]
        return spec


class _Loader:
    def __init__(self, code: CodeType) -> None:
        self._code = code

    def create_module(self, spec: ModuleSpec) -> None:
        """None: as Python makes modules."""

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def _read(path: str) -> bytes:
    descriptor = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return posix.read(descriptor, posix.fstat(descriptor).st_size)
    finally:
        posix.close(descriptor)
