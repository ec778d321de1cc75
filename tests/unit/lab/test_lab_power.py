# SPDX-License-Identifier: MIT
"""Cloud nodes of a lab: what slurm.conf says of them, and what wakes them and powers them down."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_pal.base.errors import BusyError, SlurmError, UsageError
from slurm_pal.lab import conf, power, processes
from slurm_pal.lab.directory import LabDirectory
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.partition_file import PartitionFile


def lines(nodes: int, cloud: int, settings: dict[str, str] | None = None) -> list[str]:
    chosen = PartitionFile(settings or {}, conf.ONE_PARTITION.partitions)
    spec = conf.LabSpec(
        LabDirectory("/l"), nodes, 4, 16, 64000, "me", 17000, (22, 5), partitions=chosen, cloud=cloud
    )  # fmt: skip
    return conf.slurm_conf_text(spec).splitlines()


def test_the_last_nodes_are_in_the_cloud_and_only_they_are_powered_down() -> None:
    found = lines(4, 2)
    nodes = [line.split() for line in found if line.startswith("NodeName=")]
    assert [(words[0], words[3], words[-1]) for words in nodes] == [
        ("NodeName=n[0-1]", "Port=[17001-17002]", "State=UNKNOWN"),
        ("NodeName=n[2-3]", "Port=[17003-17004]", "State=CLOUD"),
    ]
    assert "SuspendExcNodes=n[0-1]" in found and "ResumeProgram=/l/etc/resume" in found
    assert not any(line.startswith("Suspend") for line in lines(4, 0))
    alone = [line for line in lines(1, 1) if "NodeName=" in line or "ExcNodes" in line]
    assert len(alone) == 1 and "NodeName=n0 " in alone[0] and " Port=17001 " in alone[0] and "State=CLOUD" in alone[0]


def test_no_key_is_written_twice_beside_preemption() -> None:
    found = lines(4, 1, {"SlurmctldParameters": ",preempt_send_user_signal"})
    assert "SlurmctldParameters=preempt_send_user_signal,power_save_interval=1,power_save_min_interval=0" in found
    keys = [line.partition("=")[0] for line in found if not line.startswith(("#", "NodeName", "PartitionName"))]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("cloud", [-1, 3])
def test_no_more_nodes_than_there_are(tmp_path: Path, cloud: int) -> None:
    with pytest.raises(UsageError, match=r"^--cloud -?[0-9] must be in 0\.\.2"):
        Lab.up(str(tmp_path / "lab"), nodes=2, cloud=cloud)
    assert not (tmp_path / "lab").exists()


@pytest.fixture
def made(tmp_path: Path) -> LabDirectory:
    found = LabDirectory(str(tmp_path))
    found.make_rooms(1)
    return found


def test_no_node_boots_where_a_lab_ends_or_has_ended(made: LabDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "find_programs", lambda: {"slurmd": "/bin/false"})
    with pytest.raises(SlurmError, match="no lab"):
        power.resume(made, ["n0"])
    made.write_facts({})
    with made.claimed(), pytest.raises(BusyError):
        power.resume(made, ["n0"])
    assert os.listdir(made("log")) == []


def test_a_node_boots_in_the_second_after_its_order(made: LabDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "time", lambda: 1000.25)
    monkeypatch.setattr(time, "sleep", slept.append)
    with pytest.raises(SlurmError, match="no lab"):
        power.resume(made, ["n0"])
    assert slept == [0.75]


def test_only_a_slurmd_of_the_lab_is_ended(made: LabDirectory) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        Path(made("run", "slurmd-n0.pid")).write_text(f"{other.pid}\n")
        power.suspend(made, ["n0", "n1"])
        assert other.poll() is None
        other.kill()


@pytest.mark.parametrize(("sooner", "ended"), [(1, False), (0, False), (-1, True)])
def test_a_slurmd_that_was_woken_after_the_order_is_left_alone(made: LabDirectory, sooner: int, ended: bool) -> None:
    """The program of a busy machine comes late: Slurm has long had the node woken again."""
    argv = ["slurmd", "-c", "import time; time.sleep(60)", made.conf]
    with subprocess.Popen(argv, executable=sys.executable) as slurmd:
        while not processes.find_daemons(made):
            time.sleep(0.01)
        Path(made("run", "slurmd-n0.pid")).write_text(f"{slurmd.pid}\n")
        started = processes.start_ticks(slurmd.pid)
        assert started is not None
        power.suspend(made, ["n0"], started - sooner)
        assert (processes.start_ticks(slurmd.pid) is None) is ended
        slurmd.kill()


def test_what_slurmctld_runs_says_in_one_line_what_is_wrong(made: LabDirectory) -> None:
    script = made("etc", "resume")
    Path(script).write_text(power.program_text(made, power.RESUME))
    done = subprocess.run(["/bin/sh", script, "n[0-"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and sys.executable in Path(script).read_text()
