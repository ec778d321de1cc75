# SPDX-License-Identifier: MIT
"""What `pal lab up --filter` adds to a lab: the submit filter, and the SPANK plug-in if it can be built."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from importlib.resources import as_file, files

from slurm_pal.base import config as settings
from slurm_pal.base.errors import DataError
from slurm_pal.base.files import write_atomic
from slurm_pal.filter.source import text_of
from slurm_pal.lab.directory import LabDirectory
from slurm_pal.lab.programs import bare_environment
from slurm_pal.publisher.publication import write_table
from slurm_pal.slurm.cli import CliClient, subprocess_runner
from slurm_pal.store import snapshot

LUA_FILES = ("job_submit.lua", "pal.lua")
PLUGIN = "pal_spank.so"
BUILD_TIMEOUT_S = 120.0
ASK_TIMEOUT_S = 10.0


def install(directory: LabDirectory) -> str:
    """Copy the filter, build the plug-in and write plugstack.conf.

    Returns "" or, in a few words, why there is no plug-in. `up` starts anew if a port is
    taken, and then calls this again. Raises OSError.
    """
    for name in LUA_FILES:
        write_atomic(directory("etc", name), text_of(name))
    trouble = _build(directory)
    if not trouble:
        line = f"optional {directory('etc', PLUGIN)} gpus={directory.gpus} python={sys.executable}\n"
        write_atomic(directory("etc", "plugstack.conf"), line)
    return trouble


def _build(directory: LabDirectory) -> str:
    make, compiler = shutil.which("make"), shutil.which("cc")
    if make is None or compiler is None:
        return "no compiler: apt-get install gcc make"
    build = directory("pal", "spank")
    with as_file(files("slurm_pal") / "spank") as sources:
        argv = [make, "-s", "-C", str(sources), f"BUILD={build}"]
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, errors="replace", timeout=BUILD_TIMEOUT_S, check=False,
                stdin=subprocess.DEVNULL, env=bare_environment(),
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"it could not be built: {error}"
    if done.returncode != 0:
        if "slurm/spank.h" in done.stderr:
            return "no Slurm headers: apt-get install libslurm-dev"
        return f"it could not be built: {(done.stderr.strip().splitlines() or ['make failed'])[0]}"
    shutil.copyfile(f"{build}/{PLUGIN}", directory("etc", PLUGIN))
    return ""


def first_table(directory: LabDirectory) -> None:
    """Write the table before any measurement: every GPU counts as a median one, and no hard list is set.

    Raises SlurmError, or DataError if it cannot be written.
    """
    environment = bare_environment() | {"SLURM_CONF": directory.conf, "SLURM_PAL_CONFIG": directory.pal_toml}
    config = settings.load(environment)
    client = CliClient(subprocess_runner(ASK_TIMEOUT_S, environment), conf=directory.conf)
    try:
        scores = snapshot.read(config.snapshot_path)
    except DataError:
        scores = snapshot.empty()
    write_table(config, client.overview(), scores, time.time(), "", False)
