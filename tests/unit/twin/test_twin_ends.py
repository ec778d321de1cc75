# SPDX-License-Identifier: MIT
"""A twin that is told to end leaves nothing: no folder in memory, no process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_pal.base.errors import Exit

PROGRAM = 'from slurm_pal.cli.pal import main\n\nif __name__ == "__main__":\n    main()\n'
LONG = ["simulate", "--generate", "jobs=4000,load=1.2", "--cluster", "16x4", "--policy", "tick", "--worst",
        "0", "--no-causes", "--seeds", "2"]  # fmt: skip
PATIENCE_S = 60.0


def family(pid: int) -> set[int]:
    """A process and all that it has started, as far as they live."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
    found, more = set[int](), {pid}
    while more:
        found |= more
        more = {child for child, parent in parents.items() if parent in found} - found
    return found & parents.keys()


def folders(pids: set[int]) -> set[str]:
    """The folders of twins in which these processes have files open."""
    found = set()
    for pid in pids:
        try:
            opened = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        found |= {match[0] for path in opened if (match := re.match(".*/pal-twin-[^/ ]+", path))}
    return found


@pytest.mark.parametrize(("jobs", "group"), [("1", False), ("2", False), ("2", True)])
def test_sigterm_leaves_no_folder_and_no_process(tmp_path: Path, jobs: str, group: bool) -> None:
    """To the program alone, and as `timeout` and systemd send it, to all of its processes."""
    (tmp_path / "pal.py").write_text(PROGRAM)
    (tmp_path / "pal.toml").write_text("")
    env = os.environ | {"SLURM_PAL_CONFIG": str(tmp_path / "pal.toml"), "XDG_CONFIG_HOME": str(tmp_path)}
    argv = [sys.executable, str(tmp_path / "pal.py"), *LONG, "--jobs", jobs]
    process = subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while len(kept := folders(family(process.pid))) < int(jobs):
            assert process.poll() is None and time.monotonic() < deadline_s
            time.sleep(0.2)
        mine = family(process.pid)
        (os.killpg if group else os.kill)(process.pid, signal.SIGTERM)
        _, complaints = process.communicate(timeout=PATIENCE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == Exit.INTERRUPTED, complaints
    assert "Traceback" not in complaints
    assert not [path for path in kept if os.path.exists(path)]
    while left := {pid for pid in mine if os.path.exists(f"/proc/{pid}")}:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.2)
