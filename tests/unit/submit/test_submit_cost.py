# SPDX-License-Identifier: MIT
"""What palsub may cost, counted: the modules that a submission loads, and the processes that it starts."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import slurm_pal
from slurm_pal.slurm.fake import FakeNode, write_shims
from slurm_pal.store.snapshot import GpuScore, publish

HEAVY = {
    "ClusterShell", "argparse", "array", "click", "collections", "contextlib", "dataclasses", "enum", "functools",
    "importlib.util", "json", "logging", "numpy", "pandas", "pathlib", "pydantic", "re", "rich", "shutil", "site",
    "subprocess", "tempfile", "threading", "tomllib", "typing",
}  # fmt: skip
"""Each takes 0.3 to 200 ms."""
MOST_OF_OURS = 83
"""Modules; each takes a tenth of a millisecond, and on a network file system several questions to its server."""
SCRIPT = """#!/bin/bash
#SBATCH --job-name=train --gres=gpu:v100:2 --time=2:00:00 --nodes=1-1 --mem=16G
#SBATCH --output=out-%j.txt
srun python train.py --model resnet50
"""
MOST_BEFORE = 9
"""Modules of ours that are loaded before Slurm is asked."""
COUNTED = """
import posix, sys
sys.path += {path!r}
started, before = [], []
def counted(name):
    start = getattr(posix, name)
    def count(*words, **settings):
        started.append(str(words[0]).rpartition("/")[2] if words else name)
        before.append(sum(module.startswith("slurm_pal") for module in sys.modules))
        return start(*words, **settings)
    return count
for name in ("posix_spawn", "posix_spawnp", "fork"):  # os takes its functions from here
    setattr(posix, name, counted(name))
from slurm_pal.cli.palsub import main
code = main()
posix.write(2, repr((code, started, before, sorted(sys.modules))).encode())
"""


class Counts:
    """What one submission did."""

    def __init__(self, root: Path, *words: str) -> None:
        path = [os.path.dirname(os.path.dirname(slurm_pal.__file__))]
        env = {
            "PATH": f"{root}/bin:/usr/bin:/bin", "HOME": str(root), "XDG_STATE_HOME": str(root / "state"),
            "SLURM_CONF": str(root / "slurm.conf"), "SLURM_PAL_PATHS_SNAPSHOT": str(root / "snapshot"),
        }  # fmt: skip
        # As bin/palsub starts it: isolated, without site.
        argv = [sys.executable, "-I", "-S", "-X", "utf8", "-c", COUNTED.format(path=path), *words]
        done = subprocess.run(
            argv, env=env, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout.startswith(("Submitted batch job ", "sbatch ")), done.stderr
        code, self.started, self.before, self.modules = ast.literal_eval(done.stderr)
        assert code == 0

    @property
    def ours(self) -> list[str]:
        return [name for name in self.modules if name.startswith("slurm_pal")]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A Slurm of two nodes with typed GPUs, on which a job runs, and scores of them."""
    (tmp_path / "bin").mkdir()
    nodes = [FakeNode(f"n{i}", gpu_type="v100", features=f"pal_A_v{1 - i}") for i in range(2)]
    write_shims(str(tmp_path / "bin"), str(tmp_path / "fake.json"), nodes)
    (tmp_path / "slurm.conf").write_text("ClusterName=c\n")
    (tmp_path / "job.sh").write_text(SCRIPT)
    gpus = [
        GpuScore(name, k, f"{name}{k}", "m", {"A": a}, {"A": "v0"}, time.time(), 1.0, ())
        for name, a in (("n0", 1.1), ("n1", 0.9))
        for k in range(4)
    ]
    publish(str(tmp_path / "snapshot"), gpus, cluster="c", epoch=1, now_s=time.time())
    env = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sbatch", "--gres=gpu:v100:1", str(tmp_path / "job.sh")], env=env, capture_output=True, check=True
    )
    assert done.stdout.startswith(b"Submitted batch job 1")
    return tmp_path


@pytest.mark.parametrize("words", [["job.sh"], ["--gres=gpu:1", "--pal-class=A", "--wrap", "true"]])
def test_an_ordinary_submission_loads_few_modules_and_asks_once(words: list[str], site: Path) -> None:
    counts = Counts(site, *words)
    assert not HEAVY & {*counts.modules}
    assert len(counts.ours) <= MOST_OF_OURS, counts.ours
    assert "slurm_pal.decide.decide" in counts.ours  # it was no plain sbatch
    assert counts.started == ["scontrol", "squeue", "sbatch"]
    assert max(counts.before[:2]) <= MOST_BEFORE  # Slurm works while the rest is loaded


def test_a_submission_without_gpus_asks_nothing_and_loads_no_decision(site: Path) -> None:
    (site / "job.sh").write_text("#!/bin/sh\ntrue\n")
    counts = Counts(site, "job.sh")
    assert counts.started == ["sbatch"] and "slurm_pal.decide.decide" not in counts.ours
    assert not HEAVY & {*counts.modules}
