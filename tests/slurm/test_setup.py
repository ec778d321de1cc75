# SPDX-License-Identifier: MIT
"""pal setup on a real Slurm: from nothing to a placed job, and back to nothing."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.lab.lab import Lab

from .test_lab import wait_until

pytestmark = pytest.mark.real_slurm
BIN = Path(sys.executable).parent
TIMEOUT_S = 120.0


class Site:
    """A lab whose folder of configuration knows nothing of slurm-pal yet, and a home and a prefix for its admin."""

    def __init__(self, lab: Lab, root: Path) -> None:
        self.lab, self.etc = lab, Path(lab.directory.conf).parent
        self.state, self.prefix = root / "state", root / "local"
        Path(lab.directory.pal_toml).unlink()
        own = {"HOME": str(root), "PATH": f"{self.prefix}/bin:{os.environ['PATH']}"}
        self.env = {k: v for k, v in lab.environ().items() if k not in ("SLURM_PAL_CONFIG", "XDG_STATE_HOME")} | own

    def run(self, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=self.env | (env or {}), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip

    def setup(self, *words: str, env: dict[str, str] | None = None) -> dict[str, object]:
        done = self.run(f"{BIN}/pal", "setup", "--json", "--yes", *words, env=env)
        assert done.returncode == 0, (done.stdout, done.stderr)
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def install(self, *words: str, env: dict[str, str] | None = None) -> dict[str, object]:
        return self.setup("--prefix", str(self.prefix), "--state-dir", str(self.state), *words, env=env)

    def plugins(self) -> str:
        lines = self.run("scontrol", "show", "config").stdout.splitlines()
        return next(line.partition("=")[2].strip() for line in lines if line.startswith("JobSubmitPlugins"))

    def listing(self) -> dict[str, str]:
        """All that setup could write or leave; what a user's palsub keeps in their home is theirs."""
        found = {}
        for path in [*self.etc.rglob("*"), self.state, *self.state.rglob("*"), self.prefix, *self.prefix.rglob("*")]:
            if path.is_symlink() or path.exists():
                info = path.lstat()
                text = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
                found[str(path)] = f"{info.st_mode} {info.st_uid}:{info.st_gid} {text}"
        return found


@pytest.fixture
def site(lab_dir: str, tmp_path: Path) -> Iterator[Site]:
    with Lab.up(lab_dir, nodes=2, gpus=4, seed=1) as running:
        yield Site(running, tmp_path)


def test_from_nothing_to_a_placed_job_and_back(site: Site, tmp_path: Path) -> None:
    before, plugins = site.listing(), site.plugins()
    hostile = tmp_path / "hostile"
    hostile.mkdir(mode=0o755)
    for name in ("scontrol", "sbatch", "systemctl", "squeue"):
        (hostile / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
        (hostile / name).chmod(0o755)
    for name in ("click", "sitecustomize", "slurm_pal"):
        (hostile / f"{name}.py").write_text("raise SystemExit('hostile')\n")
    hostile.chmod(0o777)
    bad = {"PYTHONPATH": str(hostile), "PYTHONHOME": str(hostile)}
    if os.geteuid() == 0:
        bad["PATH"] = f"{hostile}:{site.env['PATH']}"
    done = site.install("--filter", env=bad)
    assert not (tmp_path / "started").exists()
    assert str(done["next"]).startswith("pal-profile run")
    wait_until(lambda: site.plugins() == "lua")
    again = site.install()
    assert again["changes"] == [] and again["commands"] == []

    swept = site.run("pal-profile", "run", "--yes")
    assert swept.returncode == 0, swept.stderr
    job = site.run("palsub", "--parsable", "-o", "/dev/null", "--pal-class=A", "--gres=gpu:1", "--wrap", "sleep 1")
    assert job.returncode == 0 and job.stderr == "", job.stderr
    told = json.loads(site.run("pal", "explain", job.stdout.strip(), "--json").stdout)
    assert told["decision"]["action"] == "nodelist"
    placed = site.install()
    assert placed["placing"] is True and str(placed["next"]).startswith("palsub job.sh")
    page = site.run("man", "-l", str(site.prefix / "share/man/man1/pal.1"))
    assert page.returncode == 127 or "pal setup" in page.stdout

    kept = site.setup("--undo")
    assert any(str(note).startswith(f"{site.state} holds measurements: kept") for note in kept["notes"])  # type: ignore[attr-defined]
    wait_until(lambda: site.plugins() == plugins)
    left = {path for path in site.listing() if path not in before and not path.startswith(str(site.state))}
    assert {Path(path).name.split(".")[0] for path in left} == {"pal-setup"}
    site.setup("--undo", "--purge")
    assert site.listing() == before
    assert site.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "true").returncode == 0
