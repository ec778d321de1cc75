# SPDX-License-Identifier: MIT
"""What a move by a transparent checkpoint costs: a Python process with so much memory, on a real Slurm, in s.

    python tests/bench/transparent_live.py --mib 1024 --moves 3 [--folder /scratch]

Needs CRIU (docs/transparent.md). The process writes the time into a file, every few ms. The gap in its times is
compared with that of a process without memory that is moved in the same steps by a command that does nothing: Slurm's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

from slurm_pal.lab.lab import Lab

PROGRAM = """
import os, sys, time
block = os.urandom(1 << 20)
held = [bytearray(block) for _ in range(int(sys.argv[1]))]
with open(sys.argv[2], "a", buffering=1) as times:
    while not os.path.exists("stop"):
        times.write(f"{time.time()}\\n")
        time.sleep(0.005)
"""
PALSUB = [sys.executable, "-P", "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())"]
STEP_S = 0.5
"""A gap is longer than this."""


class Mover:
    def __init__(self, lab: Lab, home: Path) -> None:
        self.home = home
        self.env = lab.environ() | {
            "SLURM_PAL_SUBMIT_CHECKPOINT_IMAGES": str(home), "XDG_STATE_HOME": str(home / "state"),
            "SLURM_PAL_SUBMIT_CRIU": shutil.which("criu") or "/usr/sbin/criu",
        }  # fmt: skip
        (home / "program.py").write_text(PROGRAM)

    def run(self, *argv: str) -> str:
        done = subprocess.run(argv, env=self.env, cwd=self.home, capture_output=True, text=True, check=True)
        return str(done.stdout)

    def until(self, done: Callable[[], bool]) -> None:
        while not done():
            time.sleep(0.02)

    def size(self, name: str) -> int:
        path = self.home / name
        return path.stat().st_size if path.exists() else 0

    def asked(self, job: str, field: str) -> str:
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-o", field).strip()

    def move(self, job: str, name: str) -> float:
        """One move; how long its checkpoint took."""
        before, begun_s = self.asked(job, "%k"), time.time()
        self.run("scancel", "-b", "-s", "USR1", job)
        self.until(lambda: self.asked(job, "%k") != before)
        took_s = time.time() - begun_s
        assert "failed" not in self.asked(job, "%k"), (self.home / "out").read_text()
        self.run("scontrol", "requeuehold", job)
        self.until(lambda: self.asked(job, "%T") == "PENDING")
        time.sleep(1.1)  # slurmd refuses a credential of the second in which the job was killed
        size = self.size(name)
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        self.run("scontrol", "release", job)
        self.until(lambda: self.size(name) > size)
        time.sleep(1)
        return took_s

    def gaps(self, name: str, mib: int, moves: int, how: str) -> tuple[list[float], list[float]]:
        """How long the process stood still at each move, and how long the checkpoints took."""
        wrapped = f"exec {sys.executable} -P program.py {mib} {name}"
        words = [*PALSUB, "--parsable", "-o", "out", "--mem=0", "--pal-checkpoint", how, "--wrap", wrapped]
        job = self.run(*words).strip()
        self.until(lambda: self.size(name) > 100)
        took_s = [self.move(job, name) for _ in range(moves)]
        (self.home / "stop").touch()
        self.until(lambda: self.asked(job, "%T") in ("COMPLETED", "FAILED"))
        (self.home / "stop").unlink()
        times = [float(line) for line in (self.home / name).read_text().split()]
        found = [b - a for a, b in pairwise(times) if b - a > STEP_S]
        assert len(found) == moves, (found, (self.home / "out").read_text())
        return found, took_s


def disk_mib_per_s(folder: Path, mib: int) -> float:
    """How fast this disk takes data, until they are on it."""
    block, begun_s = os.urandom(1 << 20), time.perf_counter()
    with open(folder / "disk", "wb") as stream:
        for _ in range(mib):
            stream.write(block)
        stream.flush()
        os.fsync(stream.fileno())
    (folder / "disk").unlink()
    return mib / (time.perf_counter() - begun_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--moves", type=int, default=3)
    parser.add_argument("--folder", default="/var/tmp", help="where the images lie")
    asked = parser.parse_args()
    lab_folder, home = tempfile.mkdtemp(prefix="pal"), Path(tempfile.mkdtemp(prefix="palb", dir=asked.folder))
    try:
        with Lab.up(os.path.join(lab_folder, "lab"), nodes=2, gpus=1, seed=1) as lab:
            mover = Mover(lab, home)
            disk = disk_mib_per_s(home, asked.mib)
            slurm, _ = mover.gaps("plain", 1, asked.moves, "true")
            ours, dumps = mover.gaps("transparent", asked.mib, asked.moves, "transparent")
    finally:
        shutil.rmtree(lab_folder)
        shutil.rmtree(home)
    print(f"{asked.folder}: {disk:.0f} MiB/s to disk")
    print(f"Slurm's own gap: {median(slurm):.2f} s {sorted(round(gap, 2) for gap in slurm)}")
    print(f"{asked.mib} MiB: gap {median(ours):.2f} s {sorted(round(gap, 2) for gap in ours)}")
    print(f"  of it until the checkpoint is acknowledged: {median(dumps):.2f} s")
    print(f"beyond Slurm's: {median(ours) - median(slurm):.2f} s")


if __name__ == "__main__":
    main()
