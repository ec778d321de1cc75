# SPDX-License-Identifier: MIT
"""A Python with slurm_pal that other accounts can run: this one where they can, else a copy of it.

A Python below a home of mode 0700, or a checkout that others cannot enter, is of no use to them. Then
the interpreter, its standard library and the few packages that ticks need are copied.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from typing import NamedTuple

USERS = "games", "news"  # every Debian has these accounts; neither needs a shell
PACKAGES = "slurm_pal", "click", "ClusterShell", "kmeans1d", "numpy", "numpy.libs"
UNUSED = shutil.ignore_patterns(
    "site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "tkinter", "turtledemo", "ensurepip",
    "config-*", "*.opt-*.pyc", "*.a",
)  # fmt: skip
"""Of a standard library; 40 MB are left."""


class OpenPython(NamedTuple):
    """How others run it."""

    program: str
    env: dict[str, str]


def open_python(folder: str, uid: int, gid: int) -> OpenPython:
    """A Python for this account, copied into a new folder below `folder` where that must be."""
    path = _path()
    own = OpenPython(sys.executable, {"PYTHONPATH": os.pathsep.join(path)})
    if not _trouble(own, uid, gid):
        return own
    copied = _copy(os.path.join(folder, "python"), path)
    trouble = _trouble(copied, uid, gid)
    assert not trouble, f"other users can run neither this Python nor a copy of it: {trouble}"
    return copied


def _path() -> list[str]:
    """Where this Python finds modules, the folder aside that pytest was started in."""
    argv = [sys.executable, "-P", "-c", "import sys; print(*sys.path, sep='\\n')"]
    return [line for line in subprocess.check_output(argv, text=True).splitlines() if line]


def _trouble(python: OpenPython, uid: int, gid: int) -> str:
    """What keeps this account from running it, "" where nothing does."""
    program = "import slurm_pal.cli.pal, slurm_pal.cli.pal_rebalance, slurm_pal.cli.palsub, ClusterShell, numpy"
    try:
        done = subprocess.run(
            [python.program, "-P", "-c", program], env={"PATH": os.defpath} | python.env, user=uid, group=gid,
            extra_groups=[], cwd="/", capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError as error:
        return str(error)
    return done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}" if done.returncode else ""


def _copy(place: str, path: Sequence[str]) -> OpenPython:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library, packages = os.path.join(place, "lib", version), os.path.join(place, "packages")
    program = os.path.join(place, "bin", version)
    os.makedirs(os.path.dirname(program))
    shutil.copy2(os.path.realpath(sys.executable), program)
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=UNUSED)
    shared = os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "")
    if os.path.isfile(shared) and ".so" in shared:
        shutil.copy2(shared, os.path.join(place, "lib"))
    os.mkdir(packages)
    for name in PACKAGES:
        source = next((own for folder in path if os.path.isdir(own := os.path.join(folder, name))), None)
        if source is not None:
            shutil.copytree(source, os.path.join(packages, name), ignore=UNUSED)
    for folder, _, files in os.walk(place):  # whatever the modes of the originals and our umask are
        os.chmod(folder, 0o755)
        for file in files:
            path = os.path.join(folder, file)
            os.chmod(path, 0o755 if os.access(path, os.X_OK) else 0o644)
    # A copied interpreter knows where it was built; the loader, where its shared library was.
    env = {"PYTHONHOME": place, "PYTHONPATH": packages, "LD_LIBRARY_PATH": os.path.join(place, "lib")}
    return OpenPython(program, env)
