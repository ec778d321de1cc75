# SPDX-License-Identifier: MIT
"""A long sweep on a real Slurm: it makes room for users, outlives slurmctld, and is useful before its end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base.errors import DataError
from slurm_pal.lab import processes
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.programs import find_programs
from slurm_pal.store import snapshot

from .test_sweep import Control, control_of, wait_until

pytestmark = pytest.mark.real_slurm


@pytest.fixture
def control(lab: Lab) -> Iterator[Control]:
    with control_of(lab) as control:
        yield control


def user_job(control: Control, node: str) -> str:
    """A user's job for all of a node; its id."""
    argv = ("sbatch", "--parsable", "-w", node, "--exclusive", "--gres=gpu:4", "-o", "/dev/null", "--wrap", "sleep 600")
    return control.ask(*argv).strip()


def state_of(control: Control, job: str) -> str:
    return control.ask("squeue", "-h", "-j", job, "-o", "%T|%r").strip()


def test_it_pauses_while_a_user_waits_and_goes_on_afterwards(control: Control) -> None:
    last = control.json("plan")["nodes"][-1]["node"]
    sweep = control.start("run", "--max-parallel", "1", "--wall-scale", "0.05", "--json")
    wait_until(control.jobs)
    runs = user_job(control, last)
    wait_until(lambda: state_of(control, runs).startswith("RUNNING"))
    waits = user_job(control, last)
    wait_until(lambda: state_of(control, waits) == "PENDING|Resources")
    wait_until(lambda: control.json("status")["state"] == "paused")
    table = control.json("status")
    assert table["pause"]["why"].startswith(f"users wait: job {waits} (Resources)")
    wait_until(lambda: not control.jobs())  # the one that ran has ended, and none came after it
    table = control.json("status")
    assert table["state"] == "paused" and table["counts"]["todo"] >= 1 and sweep.poll() is None
    code, out, _ = control.run("status")
    assert code == 0 and "paused (users wait: job " in out
    control.ask("scancel", waits, runs)
    code, out, err = control.end(sweep)
    assert code == 0, err
    table = control.json("status")
    assert (table["state"], table["pause"], table["counts"]) == ("ended", None, {"done": 4})


def test_what_it_has_is_published_before_its_end(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PAL_PROFILE_PUBLISH_EVERY_S", "0.5")
    started_s = time.time()
    sweep = control.start("run", "--max-parallel", "1", "--wall-scale", "0.05")

    def measured() -> set[str]:
        with contextlib.suppress(DataError):
            published = snapshot.read(str(control.state / "snapshot"))
            scores = map(published.gpu, range(len(published)))
            return {score.node for score in scores if score.measured_s > started_s}
        return set()

    wait_until(measured)
    assert sweep.poll() is None and len(measured()) < 4  # while the rest is still to be measured
    code, _, err = control.end(sweep)
    assert code == 0 and "of them by this sweep" in err and len(measured()) == 4


def test_slurmctld_restarted_in_the_middle(lab_dir: str) -> None:
    with contextlib.ExitStack() as stack:
        lab = Lab.up(lab_dir, nodes=3, gpus=2, seed=3)
        stack.callback(lab.down)
        control = Control(lab)
        sweep = control.start("run", "--max-parallel", "1", "--wall-scale", "0.05", "--json")
        wait_until(lambda: [job for job in control.jobs() if job["state"] == "RUNNING"])
        (before,) = [process for process in processes.find_daemons(lab.directory) if process.name == "slurmctld"]
        os.kill(before.pid, signal.SIGTERM)
        wait_until(lambda: not processes.alive(before))
        time.sleep(8.0)  # long enough for the sweep to look, to submit, and to be refused
        assert sweep.poll() is None
        lab._crew.spawn("slurmctld", [find_programs()["slurmctld"], "-D", "-f", lab.directory.conf])
        code, out, err = control.end(sweep)
        assert code == 0 and '"done": 3' in out, err
        nodes = control.json("status")["nodes"]
        assert [node["attempts"] for node in nodes] == [1, 1, 1]  # nobody was measured twice
        spool = Path(lab.directory("pal")) / "spool" / "ingested"
        assert len(list(spool.iterdir())) == 3
