# SPDX-License-Identifier: MIT
"""Slurm's own opinion of files that are not yet in force.

`sbatch --version` with SLURM_CONF at a candidate asks no controller, but it parses
slurm.conf with its includes, loads the client filter with its Lua file and the
plug-in stack, and prints what is wrong (seen on 22.05.8, 24.11.5 and 26.05.5).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable

from slurm_pal.admin.changes import ChangePlan, FileChange, SiteFiles
from slurm_pal.admin.shipped import FILTERS, FOLDER
from slurm_pal.admin.site_files import as_bytes
from slurm_pal.base.errors import SlurmError
from slurm_pal.slurm.client import Runner

LUA_COMPILERS = ("luac5.1", "luac", "luac5.3", "luac5.4")
COMPILER_TIMEOUT_S = 10.0


def complaints(site: SiteFiles, plan: ChangePlan, run: Runner) -> tuple[str, ...]:
    """Slurm's complaints about the files after the plan, without those about the present files.

    Raises SlurmError if sbatch cannot be run.
    """
    with tempfile.TemporaryDirectory(prefix="pal-admin-") as folder:
        candidate = _lay_out(site, plan, folder)
        said = _words(candidate, run, {folder: site.folder})
        before = _words(site.conf, run, {})
        found = [line for line in said if line not in before]
        return (*found, *_lua_errors(plan.steps, folder))


def missing_plugins(parts: Iterable[str], plugin_dirs: str) -> tuple[str, ...]:
    """Slurm's own plug-ins that run our files but are not installed: slurmctld would not start."""
    dirs = [folder for folder in plugin_dirs.split(":") if os.path.isdir(folder)]
    absent = [
        each.plugin
        for each in FILTERS
        if each.part in parts and dirs and not any(os.path.isfile(os.path.join(d, each.plugin)) for d in dirs)
    ]
    return tuple(f"{name} is not in {plugin_dirs}: Slurm was built without Lua" for name in absent)


def _lay_out(site: SiteFiles, plan: ChangePlan, folder: str) -> str:
    """The folder of slurm.conf after the plan: changed files as files, the others as links."""
    _mirror(site.folder, folder, leave_out=FOLDER)
    own = os.path.join(folder, FOLDER)
    os.mkdir(own)
    _mirror(os.path.join(site.folder, FOLDER), own)
    places = {site.folder: folder, os.path.join(site.folder, FOLDER): own}
    elsewhere = os.path.dirname(site.plugstack)
    if elsewhere not in places:
        places[elsewhere] = os.path.join(folder, "candidate-of-plugstack")
        os.mkdir(places[elsewhere])
        _mirror(elsewhere, places[elsewhere])
    for step in plan.steps:
        base = site.conf if step.path == site.conf_target else step.path
        if os.path.dirname(base) in places:
            _put(step, os.path.join(places[os.path.dirname(base)], os.path.basename(base)))
    candidate = os.path.join(folder, os.path.basename(site.conf))
    stack_file = os.path.join(places[elsewhere], os.path.basename(site.plugstack))
    if any(step.path == site.plugstack for step in plan.steps) and os.path.exists(stack_file):
        _require(site.plugin, stack_file)
        with open(candidate, "rb") as stream:
            text = stream.read()
        _write(candidate, text + f"\nPlugStackConfig={stack_file}\n".encode())
    return candidate


def _mirror(real: str, copy: str, leave_out: str = "") -> None:
    for name in os.listdir(real) if os.path.isdir(real) else []:
        if name != leave_out:
            os.symlink(os.path.join(real, name), os.path.join(copy, name))


def _put(step: FileChange, place: str) -> None:
    if step.action in ("copy", "edit"):
        _write(place, as_bytes(step.new))
    elif step.action == "remove" and os.path.lexists(place):
        os.unlink(place)


def _require(plugin: str, stack_file: str) -> None:
    """26.05 does not report an optional plug-in that cannot be loaded, so the candidate requires ours."""
    with open(stack_file, "rb") as stream:
        text = stream.read()
    _write(stack_file, text.replace(f"optional {plugin} ".encode(), f"required {plugin} ".encode()))


def _write(path: str, data: bytes) -> None:
    if os.path.lexists(path):
        os.unlink(path)  # a link to the real file
    with open(path, "wb") as stream:
        stream.write(data)


def _words(conf: str, run: Runner, names: dict[str, str]) -> list[str]:
    """The errors of `sbatch --version` with this slurm.conf, with temporary names replaced."""
    done = run(["env", f"SLURM_CONF={conf}", "sbatch", "--version"], "")
    if done.returncode == 127:
        raise SlurmError("sbatch is not in PATH, so nothing can be checked: apt-get install slurm-client")
    text = done.stderr
    for temporary, real in names.items():
        text = text.replace(temporary, real)
    lines = [line for line in text.splitlines() if "error" in line or "fatal" in line]
    return lines or ([f"sbatch --version failed: {text.strip()}"] if done.returncode else [])


def _lua_errors(steps: Iterable[FileChange], folder: str) -> tuple[str, ...]:
    """What a Lua compiler, if there is one, reports about the Lua files that the plan changes."""
    compiler = next(filter(None, map(shutil.which, LUA_COMPILERS)), None)
    found = []
    for step in steps if compiler else ():
        if step.action == "edit" and step.path.endswith(".lua"):
            place = os.path.join(folder, "check.lua")
            _write(place, as_bytes(step.new))
            argv = [str(compiler), "-p", place]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=COMPILER_TIMEOUT_S, check=False)
            if done.returncode:
                found.append(done.stderr.strip().replace(place, step.path))
    return tuple(found)
