# SPDX-License-Identifier: MIT
"""A lab with switches: jobs of several nodes stay on as few leaves as plain Slurm would take, on better GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_pal.base.errors import UsageError
from slurm_pal.lab import daemons
from slurm_pal.lab.conf import LabSpec, config_files
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.programs import find_programs, slurm_version
from slurm_pal.slurm import releases
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.topology import BLOCK, TREE
from slurm_pal.store.snapshot import GpuScore, publish

from . import queue_of
from .conftest import short_directory, skip_without_slurm

pytestmark = pytest.mark.real_slurm

PALSUB = [sys.executable, "-P", "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())"]
CONF = """SwitchName=leaf0 Nodes=n[0-2]
SwitchName=leaf1 Nodes=n[3-5]
SwitchName=core Switches=leaf[0-1]
"""
SLOW = ("n0", "n3")


class User:
    """Somebody with scores of their own making."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.home = home
        self.env = lab.environ() | {
            "XDG_STATE_HOME": str(home / "state"), "SLURM_PAL_PATHS_SNAPSHOT": str(home / "snapshot"),
        }  # fmt: skip
        now_s = time.time()
        rows = []
        for n in range(6):
            a = 1.3 if f"n{n}" in SLOW else 1.0
            classes = dict.fromkeys("ABC", "v1" if a > 1 else "v0")
            slow = {"A": a, "B": a, "C": 1.0}
            rows += [GpuScore(f"n{n}", k, f"n{n}-{k}", "m", slow, classes, now_s, 1.0, ()) for k in range(2)]
        publish(
            str(home / "snapshot"), rows, cluster="lab", epoch=1, now_s=now_s,
            centroids={"A": [1.0, 1.3], "B": [1.0, 1.3], "C": [1.0, 1.0]},
        )  # fmt: skip

    def run(self, *argv: str) -> str:
        done = subprocess.run(
            argv, env=self.env, cwd=self.home, capture_output=True, timeout=120, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def decided(self, *words: str) -> dict[str, object]:
        argv = [*PALSUB, "--pal-dry-run", "--pal-json", "--pal-watch", "--pal-class=A", *words, "--wrap", "true"]
        made: dict[str, object] = json.loads(self.run(*argv))
        return made


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    skip_without_slurm()
    file = tmp_path_factory.mktemp("network") / "topology.conf"
    file.write_text(CONF)
    with short_directory() as path, Lab.up(path, nodes=6, gpus=2, seed=1, topology=str(file)) as made:
        yield made


@pytest.fixture
def user(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    for name, value in lab.environ().items():
        monkeypatch.setenv(name, value)
    made = User(lab, tmp_path)
    yield made
    made.run("scancel", "--me")


def test_what_slurm_knows_of_its_network(user: User) -> None:
    network = CliClient().overview().network
    assert network.kind == TREE and [one.name for one in network.leaves] == ["leaf0", "leaf1"]


def test_fast_nodes_of_one_leaf(user: User) -> None:
    made = user.decided("-N2", "--gpus-per-node=2")
    assert "--nodelist=n1,n2" in made["added"]  # type: ignore[operator]
    words = ["--pal-watch", "--pal-class=A", "-N2", "--gpus-per-node=2", "-o", "/dev/null", "--wrap", "sleep 30"]
    done = user.run(*PALSUB, "--parsable", *words)
    deadline_s = time.monotonic() + 30
    while user.run("squeue", "-h", "-j", done.strip(), "-o", "%T") != "RUNNING\n":
        assert time.monotonic() < deadline_s
        time.sleep(queue_of.LOOK_S)
    assert user.run("squeue", "-h", "-j", done.strip(), "-o", "%N").strip() == "n[1-2]"
    again = user.decided("-N2", "--gpus-per-node=2")
    assert "--nodelist=n4,n5" in again["added"]  # type: ignore[operator]
    three = user.decided("-N3", "--gpus-per-node=2")  # fits on one leaf only with a slow node
    assert {gpu["node"] for gpu in three["chosen"]["gpus"]} == {"n3", "n4", "n5"}  # type: ignore[index]


def test_few_switches_are_honoured(user: User) -> None:
    assert user.decided("-N2", "--gpus-per-node=2", "--switches=1")["action"] == "nodelist"
    wide = user.decided("-N4", "--gpus-per-node=2", "--switches=1")
    assert wide["action"] == "none" and "2 switches" in str(wide["reason"])


def test_files_that_are_no_network(tmp_path: Path) -> None:
    skip_without_slurm()
    for text, said in (("SwitchName=a Nodes=n9\n", "no node of the lab"), ("x\n", "line 1")):
        (tmp_path / "topology.conf").write_text(text)
        with short_directory() as path, pytest.raises(UsageError, match=said):
            Lab.up(path, nodes=1, topology=str(tmp_path / "topology.conf"))


BLOCKS = "BlockName=b0 Nodes=n[0-2]\nBlockName=b1 Nodes=n[3-5]\nBlockSizes=3\n"
YAML = """- topology: all
  cluster_default: true
  block:
    block_sizes: [3]
    blocks:
      - {block: b0, nodes: "n[0-2]"}
      - {block: b1, nodes: "n[3-5]"}
"""


@pytest.fixture
def on_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    skip_without_slurm()
    if not releases.has(installed(), "topology of blocks"):
        pytest.skip("this release of Slurm has no topology of blocks")
    with blocks_of(tmp_path, monkeypatch) as user:
        yield user


@contextmanager
def blocks_of(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    """A user of a lab with these blocks."""
    (home / "topology.conf").write_text(BLOCKS)
    with short_directory() as path, Lab.up(path, nodes=6, gpus=2, seed=1, topology=str(home / "topology.conf")) as lab:
        for name, value in lab.environ().items():
            monkeypatch.setenv(name, value)
        yield User(lab, home)


def installed() -> tuple[int, int]:
    return slurm_version(find_programs(False)["slurmctld"])


def runs_on(user: User, job: str, nodes: str) -> None:
    deadline_s = time.monotonic() + 30
    while user.run("squeue", "-h", "-j", job, "-o", "%T %N").strip() != f"RUNNING {nodes}":
        assert time.monotonic() < deadline_s
        time.sleep(queue_of.LOOK_S)


def submitted(user: User, *words: str) -> str:
    ours = ["--pal-watch", "--pal-class=A", "-o", "/dev/null", "--parsable", "--wrap", "sleep 30"]
    return user.run(*PALSUB, *ours, *words).strip()


def test_blocks(on_blocks: User) -> None:
    network = CliClient().overview().network
    assert network.kind == BLOCK and network.sizes == (3,) and network.release == installed()
    assert "--nodelist=n1,n2" in on_blocks.decided("-N2", "--gpus-per-node=2")["added"]  # type: ignore[operator]
    runs_on(on_blocks, submitted(on_blocks, "-N2", "--gpus-per-node=2"), "n[1-2]")


def test_segments(on_blocks: User) -> None:
    two = on_blocks.decided("-N4", "--gpus-per-node=2", "--segment=2")
    if releases.has(installed(), "segments with node lists"):
        assert "--nodelist=n1,n2,n4,n5" in two["added"]  # type: ignore[operator]
        runs_on(on_blocks, submitted(on_blocks, "-N4", "--gpus-per-node=2", "--segment=2"), "n[1-2,4-5]")
    else:
        assert two["action"] == "none" and "--segment=2" in str(two["reason"])
        runs_on(on_blocks, submitted(on_blocks, "-N2", "--gpus-per-node=2", "--segment=2"), "n[1-2]")


def test_blocks_of_its_own(on_blocks: User) -> None:
    on_blocks.run("sbatch", "-w", "n0", "-o", "/dev/null", "--wrap", "sleep 30")
    deadline_s = time.monotonic() + 30
    while on_blocks.run("squeue", "-h", "-t", "R", "-o", "%N") != "n0\n":
        assert time.monotonic() < deadline_s
        time.sleep(queue_of.LOOK_S)
    runs_on(on_blocks, submitted(on_blocks, "-N2", "--gpus-per-node=2", "--exclusive=topo"), "n[4-5]")
    # The rest of the block is closed to others now, and its own node takes nobody else's job.
    assert on_blocks.decided("-N2", "--gpus-per-node=2")["chosen"]["gpus"][0]["node"] == "n1"  # type: ignore[index]


def test_a_topology_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_slurm()
    if installed() < (25, 5):
        pytest.skip("this release of Slurm reads no topology.yaml")

    def files(spec: LabSpec) -> dict[str, str]:
        made = config_files(spec)
        del made["topology.conf"]
        return made | {"topology.yaml": YAML}

    monkeypatch.setattr(daemons, "config_files", files)
    with blocks_of(tmp_path, monkeypatch) as user:
        network = CliClient().overview().network
        assert network.kind == BLOCK and [one.name for one in network.leaves] == ["b0", "b1"]
        runs_on(user, submitted(user, "-N2", "--gpus-per-node=2"), "n[1-2]")


REBALANCE = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import rebalance; rebalance()"]
TRUE = {1: 1.25, 2: 1.6}
RUNS = {"n1": 0, "n2": 0, "n1,n2": 1, "n4,n5": 1, "n1,n4": 2, "n2,n5": 2}


def test_steps_show_what_the_levels_cost_and_new_jobs_go_by_it(user: User, tmp_path: Path) -> None:
    """Jobs of one name on a node, on a leaf and on both; the words that `pal progress` would leave stand for time."""
    user.env |= {"SLURM_PAL_PATHS_STATE_DIR": str(tmp_path / "pal"), "SLURM_PAL_REBALANCE_RETARGET": "false"}
    wide = "--nodes=1-2", "--ntasks=2", "--gpus=2", "-J", "wide"
    before = user.decided(*wide)
    assert "locality" not in before or not before["locality"]
    jobs: dict[str, tuple[str, float]] = {}
    for nodes, level in RUNS.items():
        shape = ("-N2", "--gres=gpu:1") if level else ("--gres=gpu:2",)
        share = ("--exclude", "n0,n3") if level else ()
        words = ["--parsable", "-J", "wide", "-w", nodes, *shape, *share, "-o", "/dev/null", "--wrap", "sleep 60"]
        jobs[user.run("sbatch", "--comment=pal:job=A;from=word", *words).strip()] = nodes, TRUE.get(level, 1.0)
        if len(jobs) == 2:
            _steps(user, jobs)
            user.run("scancel", *jobs)
            _none_left(user)
            jobs.clear()
    made = user.decided(*wide)
    assert made["locality"]["penalties"] == pytest.approx([*TRUE.values()], rel=0.05)  # type: ignore[index]
    shown = user.run(*PALSUB, "--pal-dry-run", "--pal-explain", "--pal-watch", "--pal-class=A", *wide, "--wrap", "true")
    assert "locality penalty 1.25, 1.6 by level of the network" in shown


def _steps(user: User, jobs: dict[str, tuple[str, float]]) -> None:
    """Three looks of a tick, a minute apart by the jobs' words."""
    deadline_s = time.monotonic() + 30
    while len(user.run("squeue", "-h", "--me", "-t", "R").splitlines()) < len(jobs):
        assert time.monotonic() < deadline_s
        time.sleep(queue_of.LOOK_S)
    for look in range(3):
        for number, (_, factor) in jobs.items():
            said = f"pal:job=A;from=word pal:it={int(6000 * look / factor)};at={1000 + 60 * look};r=0"
            user.run("scontrol", "update", f"jobid={number}", f"comment={said}")
        user.run(*REBALANCE, "--once", "--act")


def _none_left(user: User) -> None:
    deadline_s = time.monotonic() + 30
    while user.run("squeue", "-h", "--me"):
        assert time.monotonic() < deadline_s
        time.sleep(queue_of.LOOK_S)
