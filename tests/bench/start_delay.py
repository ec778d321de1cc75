# SPDX-License-Identifier: MIT
"""How long a job waits for its start by sbatch, palsub and the submit filter, where Slurm counts in its own way.

    .venv/bin/python tests/bench/start_delay.py [--package DIR] [--runs N]

On a lab of four nodes with two threads a core, default memory and a limited partition the fastest node has
free GPUs and is full of what Slurm counts. `--package` is a folder with another version of slurm-pal (pip install
--target); palsub, publisher and filter are then its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from slurm_pal.base.config import load
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient, subprocess_runner
from slurm_pal.store.snapshot import GpuScore, publish

PYTHON = [sys.executable, "-P"]
PALSUB = [*PYTHON, "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())"]
PUBLISH = [*PYTHON, "-c", "from slurm_pal.cli.start import main; main()", "publish-table", "--every", "1"]
EDITS = (
    ("CoresPerSocket=16 ThreadsPerCore=1", "CoresPerSocket=8 ThreadsPerCore=2"),
    ("PartitionName=gpu", "PartitionName=capped Nodes=ALL MaxCPUsPerNode=6\nPartitionName=gpu"),
)
CASES = {  # what fills the fastest node, and the job
    "DefMemPerCPU, no --mem": (["--mem=63500"], []),
    "--hint=nomultithread": (["-c", "14"], ["-n", "2", "-N", "1", "--hint=nomultithread"]),
    "--ntasks-per-core=1": (["-c", "14"], ["-n", "2", "-N", "1", "--ntasks-per-core=1"]),
    "MaxCPUsPerNode": (["-p", "capped", "-c", "4"], ["-p", "capped", "-c", "4"]),
    "nothing is scarce": ([], []),
}
WAYS = ("plain", "palsub", "filter")
MOST_S = 45.0


class Bench:
    def __init__(self, lab: Lab, home: str, package: str) -> None:
        self.env = lab.environ() | {"XDG_STATE_HOME": home}
        if package:
            self.env["PYTHONPATH"] = package
            source = [*PYTHON, "-m", "slurm_pal.filter.source"]
            text = subprocess.run(source, env=self.env, capture_output=True, check=True).stdout
            Path(lab.directory("etc", "pal.lua")).write_bytes(text)
            os.utime(lab.directory("etc", "job_submit.lua"))
        self.client = CliClient(subprocess_runner(30.0, self.env))
        gpus = [
            GpuScore(node, k, f"{node}-{k}", "m", {"A": a, "B": a, "C": 1.0}, {"A": "v0"}, time.time(), 1.0, ())
            for node, a in {"n0": 1.04, "n1": 1.0, "n2": 0.8, "n3": 1.02}.items()
            for k in range(4)
        ]
        publish(load(self.env).snapshot_path, gpus, cluster="palab", epoch=1, now_s=time.time())

    def submit(self, argv: list[str], words: list[str], off: bool = False) -> int:
        argv = [*argv, "--parsable", "-o", "/dev/null", "-t", "60", "--gres=gpu:1", *words, "--wrap", "sleep 300"]
        env = self.env | ({"SLURM_PAL_OFF": "1"} if off else {})
        return int(subprocess.run(argv, env=env, capture_output=True, check=True, cwd="/").stdout)

    def state(self, number: int) -> str:
        argv = ["squeue", "-h", "-j", str(number), "-o", "%T"]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, check=False).stdout.strip()

    def delay_s(self, argv: list[str], words: list[str], off: bool) -> float:
        """From the command's start to the job's start."""
        begun_s = time.monotonic()
        number = self.submit(argv, words, off)
        while self.state(number) != "RUNNING" and time.monotonic() - begun_s < MOST_S:
            time.sleep(0.02)
        took_s = time.monotonic() - begun_s
        self.client.cancel([number])
        while self.state(number):
            time.sleep(0.05)
        return took_s

    def empty(self) -> None:
        self.client.cancel([n for n, (state, _) in self.client.job_states().items() if state in ("PENDING", "RUNNING")])
        while any(state in ("PENDING", "RUNNING", "COMPLETING") for state, _ in self.client.job_states().values()):
            time.sleep(0.1)

    def case(self, full: list[str], words: list[str], way: str, runs: int) -> list[float]:
        self.empty()
        filler = self.submit(["sbatch"], [*full, "-w", "n2"], off=True)
        while self.state(filler) != "RUNNING":
            time.sleep(0.05)
        publisher = subprocess.Popen(PUBLISH, env=self.env, stderr=subprocess.DEVNULL) if way == "filter" else None
        found: list[float] = []
        try:
            time.sleep(3.0 if publisher else 0.5)
            for _ in range(runs):
                argv = [*PALSUB, "--pal-watch", "--pal-class=A"] if way == "palsub" else ["sbatch"]
                found.append(self.delay_s(argv, words, off=way == "plain"))
                if found[-1] >= MOST_S:
                    break
                time.sleep(2.2 if publisher else 0.2)  # the table knows of what was given away in earlier seconds only
        finally:
            if publisher:
                publisher.terminate()
                publisher.wait()
        return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--package", default="")
    options.add_argument("--runs", type=int, default=5)
    wanted = options.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Lab.up(f"{folder}/lab", nodes=4, gpus=4, submit_filter=True, conf_edits=EDITS) as lab,
    ):
        bench = Bench(lab, folder, wanted.package)
        print(f"seconds to the start, median (longest) of {wanted.runs}")
        for name, (full, words) in CASES.items():
            cells = []
            for way in WAYS:
                found = bench.case(full, words, way, wanted.runs)
                more = "> " if max(found) >= MOST_S else ""
                cells.append(f"{more}{statistics.median(found):.2f} ({max(found):.2f})")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
        bench.empty()


if __name__ == "__main__":
    main()
