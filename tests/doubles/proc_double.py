# SPDX-License-Identifier: MIT
"""A small /proc of a test's making."""

from __future__ import annotations

from pathlib import Path


def proc(root: Path, pid: int | str = "self", job: str = "", comm: str = "pal", session: int = 500) -> str:
    """Add one process; where this /proc stands."""
    home = root / str(pid)
    home.mkdir(parents=True, exist_ok=True)
    folder = f"job_{job}" if job.isdigit() else job  # else a SLUID
    path = f"/system.slice/slurmstepd.scope/{folder}/step_0/user/task_0" if job else "/user.slice"
    (home / "cgroup").write_text(f"0::{path}\n")
    (home / "comm").write_text(comm + "\n")
    (home / "stat").write_text(f"1 (a) b) S 1 400 {session} 0 -1 4194304 0\n")
    return str(root)
