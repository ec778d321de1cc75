# SPDX-License-Identifier: MIT
"""Whose process is whose in jobs that Slurm keeps in control groups, by the names that it gives their folders."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slurm_pal.lab.conf import cgroup_conf_text
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.programs import find_programs, slurm_version

from .conftest import short_directory, skip_without_slurm

pytestmark = pytest.mark.real_slurm

MOUNT = "/sys/fs/cgroup"
NODES = ("n0", "n1")
LOOK = """
import json, os, subprocess, sys
from slurm_pal.base import survival
from slurm_pal.base.job_folder import job_of
from slurm_pal.profiling.node.process_owners import NodeProcesses
path, others = sys.argv[1], [int(word) for word in sys.argv[2:]]
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
who, text = NodeProcesses(), open("/proc/self/cgroup").read()
del os.environ["SLURM_JOB_ID"]
seen = {
    "pid": os.getpid(), "child": child.pid, "groups": text, "job": job_of(text), "ends_with": survival.ends_with(),
    "foreign": {pid: who.foreign(pid) for pid in (os.getpid(), child.pid, os.getppid(), *others)},
}
with open(path + ".new", "w") as stream:
    json.dump(seen, stream)
os.rename(path + ".new", path)
child.wait()
"""


class Groups(NamedTuple):
    """What this machine has."""

    conf: str  # cgroup.conf
    folder: str  # where slurmd makes its folders


def groups() -> Groups:
    """Skips where slurmd can use no control groups: they are root's, and Slurm's v2 wants no mixture of versions."""
    if os.geteuid():
        pytest.skip("control groups need root")
    if Path("/proc/self/cgroup").read_text().count("\n") == 1:
        found = Groups("CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n", f"{MOUNT}/system.slice")
        writable = os.access(MOUNT, os.W_OK)
        inside = Path(MOUNT, "cgroup.procs").read_text().split()
        if "0" in inside or (inside and Path(MOUNT, "cgroup.type").exists()):
            pytest.skip(f"{MOUNT} holds processes that slurmd cannot move: this is a container")
    else:
        found = Groups("CgroupPlugin=cgroup/v1\n", f"{MOUNT}/freezer")
        writable = os.access(found.folder, os.W_OK)
    if not writable:
        pytest.skip(f"no control group can be made below {MOUNT}")
    return found


def folders(below: str) -> set[str]:
    """What slurmd of this lab's nodes has made."""
    with contextlib.suppress(FileNotFoundError):
        return {f"{below}/{name}" for name in os.listdir(below) if "slurm" in name and any(n in name for n in NODES)}
    return set()


@pytest.fixture
def contained() -> Iterator[Lab]:
    """A lab whose jobs live in control groups; the folders go with it."""
    skip_without_slurm()
    kind = groups()
    before = folders(kind.folder)
    plain = cgroup_conf_text(slurm_version(find_programs()["slurmctld"]))
    edits = [("ProctrackType=proctrack/linuxproc", "ProctrackType=proctrack/cgroup"), (plain, kind.conf)]
    try:
        with short_directory() as path, Lab.up(path, nodes=len(NODES), gpus=2, conf_edits=edits) as lab:
            yield lab
    finally:
        for made in folders(kind.folder) - before:
            for place, _, _ in os.walk(made, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(place)


def submit(lab: Lab, path: Path, *others: int) -> dict[str, Any]:
    """What a job sees of itself and of these processes; it goes on running."""
    script = path.with_suffix(".sh")
    words = " ".join(map(str, others))
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -P {path.with_suffix('.py')} {path} {words}\n")
    path.with_suffix(".py").write_text(LOOK)
    argv = ["sbatch", "--parsable", "-w", "n0", f"--output={path}.log", str(script)]
    said = subprocess.run(argv, env=lab.environ(), capture_output=True, text=True, check=True).stdout
    end_s = time.monotonic() + 60.0
    while not path.exists():
        assert time.monotonic() < end_s, Path(f"{path}.log").read_text()
        time.sleep(0.05)
    return json.loads(path.read_text()) | {"number": said.strip()}


def test_processes_of_a_job_are_known_by_its_control_group(contained: Lab, tmp_path: Path) -> None:
    first = submit(contained, tmp_path / "first")
    second = submit(contained, tmp_path / "second", first["pid"], first["child"])
    assert first["job"] and second["job"] and first["job"] != second["job"]
    for seen in (first, second):
        assert seen["job"] == seen["number"] or seen["job"].startswith("s"), seen["groups"]
        assert not seen["foreign"][str(seen["pid"])] and not seen["foreign"][str(seen["child"])]
        assert seen["ends_with"] == "this job"
    assert second["foreign"][str(first["pid"])] and second["foreign"][str(first["child"])]
