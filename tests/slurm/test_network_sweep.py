# SPDX-License-Identifier: MIT
"""The all-reduce between nodes on a real Slurm with two leaves, against the network that the lab emulates."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.programs import find_programs, slurm_version
from slurm_pal.slurm import releases
from slurm_pal.store import snapshot

from .conftest import short_directory, skip_without_slurm
from .test_sweep import Control, control_of, job_processes, wait_until

pytestmark = pytest.mark.real_slurm

CONF = """SwitchName=leaf0 Nodes=n[0-2]
SwitchName=leaf1 Nodes=n[3-5]
SwitchName=core Switches=leaf[0-1]
"""
TRUTH = {1: 1.4, 2: 2.6}
PAIRS = ["network", "-y", "--pairs"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two leaves, with scores of their GPUs: without any nothing is published."""
    skip_without_slurm()
    file = tmp_path_factory.mktemp("network") / "topology.conf"
    file.write_text(CONF)
    with (
        short_directory() as path,
        Lab.up(path, nodes=6, gpus=2, topology=str(file), locality_penalties=list(TRUTH.values())) as lab,
    ):
        Control(lab).json("run", "--max-parallel", "6", "--quick")
        yield lab


@pytest.fixture
def control(tree: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    monkeypatch.setenv("SLURM_PAL_PROFILE_SPARE_NODES", "0")
    with control_of(tree) as control:
        yield control
        (control.state / "network.jsonl").unlink(missing_ok=True)


def published(control: Control) -> dict[int, float]:
    return snapshot.read(str(control.state / "snapshot")).network


def states(control: Control) -> dict[str, tuple[str, str]]:
    return {row["node"]: (row["state"], row["reason"]) for row in control.json("status")["nodes"]}


def test_the_ratios_are_those_of_the_network(control: Control) -> None:
    table = control.json(*PAIRS, "3")
    assert table["counts"] == {"done": 6} and table["complaints"] == []
    assert published(control) == pytest.approx(TRUTH, rel=0.05)
    assert {level: row["pairs"] for level, row in table["levels"].items()} == {"1": 3, "2": 3}
    jobs = control.ask("scontrol", "show", "job", "-o").splitlines()
    pairs = [line for line in jobs if "NumNodes=2" in line and table["sweep_id"] in line]
    assert len(pairs) == 6 and all("Nice=10000" in line and "Requeue=0" in line for line in pairs)
    _, out, _ = control.run("status")
    assert "network level 2: an all-reduce takes 2." in out and "(3 pairs of nodes" in out


def test_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_slurm()
    release = slurm_version(find_programs(False)["slurmctld"])
    if not releases.has(release, "topology of blocks"):
        pytest.skip("this release of Slurm has no topology of blocks")
    monkeypatch.setenv("SLURM_PAL_PROFILE_SPARE_NODES", "0")
    file = tmp_path / "topology.conf"
    file.write_text("BlockName=b0 Nodes=n[0-1]\nBlockName=b1 Nodes=n[2-3]\nBlockSizes=2,4\n")
    with (
        short_directory() as path,
        Lab.up(path, nodes=4, gpus=2, topology=str(file), locality_penalties=list(TRUTH.values())) as lab,
    ):
        control = Control(lab)
        control.json("run", "--max-parallel", "4", "--quick")
        control.json(*PAIRS, "2")
        levels = TRUTH if releases.has(release, "segments with node lists") else {1: TRUTH[1]}
        assert published(control) == pytest.approx(levels, rel=0.05)


def test_a_network_that_was_rebuilt(control: Control) -> None:
    assert control.json(*PAIRS, "3")["levels"]["1"]["pairs"] == 3  # n0,n1 n3,n4 n0,n2
    conf = Path(control.lab.directory("etc", "topology.conf"))
    try:
        conf.write_text(CONF.replace("n[0-2]", "n[0-1]").replace("n[3-5]", "n[2-5]"))
        control.ask("scontrol", "reconfigure")
        wait_until(lambda: "Nodes=n[2-5]" in control.ask("scontrol", "show", "topology"))
        levels = control.json("publish-scores")["levels"]
    finally:
        conf.write_text(CONF)
        control.ask("scontrol", "reconfigure")
    assert levels["1"]["pairs"] == 3 and levels["2"]["pairs"] == 3
    rows = [json.loads(line)["nodes"] for line in (control.state / "network.jsonl").read_text().splitlines()]
    assert ["n0", "n2"] in rows and ["n2", "n5"] in rows  # one has left level 1, one has come to it
    assert levels["1"]["ratio"] == pytest.approx(TRUTH[1], rel=0.05)


def test_a_sweep_takes_what_levels_lack(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PAL_PROFILE_NETWORK_PAIRS", "1")
    assert "then up to 1 pairs of nodes at each level" in control.run("plan")[1]
    control.json(*PAIRS, "1", "-w", "n[0-1]")
    code, _, err = control.run("run", "-y", "--max-nodes", "1", "--quick")
    assert code == 0 and "1 pair of nodes" in err and "level 2: n0,n3" in err and "level 1" not in err, err
    assert published(control) == pytest.approx(TRUTH, rel=0.05)
    code, _, err = control.run("run", "-y", "-w", "n[4-5]", "--quick", "--budget", "0.002")
    assert code == 0 and "nothing to measure between nodes now" in err, err
    monkeypatch.setenv("SLURM_PAL_PROFILE_BACKEND", "driver")
    code, _, err = control.run("network", "-y")
    assert code == Exit.USAGE and err.count("\n") == 1 and "backend driver has no all-reduce between nodes" in err


def test_a_node_that_dies_between(lab_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PAL_PROFILE_SPARE_NODES", "0")
    monkeypatch.setenv("SLURM_PAL_PROFILE_PENDING_MAX_S", "15")
    with Lab.up(lab_dir, nodes=3, gpus=2, seed=2) as lab:
        control = Control(lab)
        control.json("run", "--quick", "-w", "n0")
        sweep = control.start(*PAIRS, "2", "--wall-scale", "2", "--json")
        wait_until(lambda: [job for job in control.jobs() if job["state"] == "RUNNING"])
        (job,) = control.jobs()
        wait_until(lambda: len(job_processes(lab, job["id"])) >= 5)
        slurmd = int(Path(lab.directory("run", "slurmd-n1.pid")).read_text())
        for pid in (slurmd, *(pid for pid in job_processes(lab, job["id"]) if _of(pid, "n1"))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        code, out, err = control.end(sweep)
        found = states(control)
        assert code == Exit.FAILED and found["n0,n1"][0] == "failed" and f"job {job['id']}" in found["n0,n1"][1], err
        assert "no result of" in found["n0,n1"][1] and found["n0,n2"][0] == "done"
        assert json.loads(out)["levels"]["1"]["pairs"] == 1
        control.ask("scancel", "--me")


def _of(pid: int, node: str) -> bool:
    """Whether a process of a job is on this node of the lab."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return f"SLURMD_NODENAME={node}".encode() in words
    return False


def test_nonsense(control: Control, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    liar = tmp_path / "python"
    liar.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        import json, os, runpy, sys
        from slurm_pal.variability.pair_times import PairTimes
        known = PairTimes.to_json
        PairTimes.to_json = lambda self: known(self).replace(f'"gpus":{{self.gpus}}', '"gpus":1e999')
        sys.argv = sys.argv[sys.argv.index("-m") + 1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        """)
    )
    liar.chmod(0o755)
    monkeypatch.setenv("SLURM_PAL_PROFILE_PYTHON", str(liar))
    code, out, _ = control.run(*PAIRS, "1", "-w", "n[0-1]", "--json")
    table = json.loads(out)
    assert code == Exit.FAILED and table["counts"] == {"failed": 1} and table["levels"] == {}
    assert "gpus = 'inf' must be a whole number" in states(control)["n0,n1"][1] and table["complaints"]
    assert published(control) == {}


def test_users_come_first(control: Control) -> None:
    sweep = control.start(*PAIRS, "1", "-w", "n[0-1]", "--wall-scale", "2", "--json")
    wait_until(lambda: [job for job in control.jobs() if job["state"] == "RUNNING"])
    user = control.ask(
        "sbatch", "--parsable", "--gres=gpu:2", "-w", "n1", "-o", "/dev/null", "--wrap", "sleep 1"
    ).strip()
    began_s = time.monotonic()
    wait_until(lambda: not control.ask("squeue", "-h", "-j", user, "-t", "PD", "-o", "%A").strip())
    assert time.monotonic() - began_s < 30
    sweep.send_signal(signal.SIGINT)
    control.end(sweep)
    assert states(control)["n0,n1"][1].startswith(("left for job", "leaves for job"))
