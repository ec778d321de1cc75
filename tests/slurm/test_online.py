# SPDX-License-Identifier: MIT
"""A slow GPU found by a job that runs on it, on a real Slurm: pal why-slow, and each rung of the ladder up and down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base import marks
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient, subprocess_runner
from slurm_pal.store import late
from slurm_pal.store.late import Heard, LateGpu

from . import queue_of
from .conftest import short_directory, skip_without_slurm

pytestmark = pytest.mark.real_slurm
PAL = (sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()")
PAL_PROFILE = (sys.executable, "-P", "-c", "from slurm_pal.cli.start import profile; profile()")
REBALANCE = (sys.executable, "-P", "-c", "from slurm_pal.cli.start import rebalance; rebalance()")
SLOW = 1.2
PATIENCE_S = 60.0
TABLE = "node,index,A,B,C\n" + "".join(
    f"n{node},{gpu},{1.0 + 0.001 * gpu},1.0,1.0\n" for node in range(2) for gpu in range(4)
)


class Site:
    """A lab of two nodes with four equal GPUs, measured; then n1:2 becomes slow."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.lab, self.home = lab, home
        self.env = lab.environ() | {
            "SLURM_PAL_PROFILE_SPARE_NODES": "0",  # no user waits while a sweep runs
            "XDG_STATE_HOME": str(home / "xdg"), "SLURM_PAL_ONLINE_LADDER": "reserve", "SLURM_PAL_ONLINE_USERS": "1",
            "TMPDIR": str(home),  # of its jobs
            "SLURM_PAL_REBALANCE_RETARGET": "false", "SLURM_PAL_REBALANCE_MOVES": "false",
        }  # fmt: skip
        self.client = CliClient(subprocess_runner(30.0, lab.environ()))

    def run(self, *argv: str, **env: str) -> str:
        done = subprocess.run(
            argv, env=self.env | env, cwd=self.home, capture_output=True, text=True, timeout=120,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def path(self) -> str:
        return late.path_of(self.lab.directory("pal"))

    def tick(self, **env: str) -> str:
        return self.run(*REBALANCE, "--once", "--act", **env)

    def gpu(self) -> dict[str, Any]:
        known = json.loads(self.run(*PAL, "gpus", "n1:2", "--json"))["gpus"]
        return dict(known[0])

    def rung(self) -> str:
        held = {(one.node, one.index): one.rung for one in late.read(self.path)}
        assert set(held) <= {("n1", 2)}
        return held.get(("n1", 2), "")

    def job(self) -> int:
        """One that works on all eight GPUs, leaves records of its collectives and reports its progress once.

        On a busy machine it may take more than once: a report reads for a second at most.
        """
        pal = " ".join(map(_quoted, PAL))
        words = (
            f"{pal} lab work --seconds 0.1 --locality-penalty 1 --collectives; "
            'until squeue -h -j "$SLURM_JOB_ID" -o %k | grep -q pal:slow=; do '
            f"{pal} progress --every=10 10 100; sleep 10; done; sleep 300"
        )
        number = int(self.run("sbatch", "--parsable", "-o", "out-%j", "-N2", "--gres=gpu:4", "--wrap", words))
        queue_of.until(self.client, number, lambda job: "pal:slow=" in job.comment)
        return number

    def again(self, number: int) -> None:
        """The job's own words as they will be in ten seconds."""
        job = self.client.job(number)
        assert job is not None
        said = marks.read(job.comment, marks.SLOW)
        text = marks.put(job.comment, said | {"at": str(int(said["at"]) + 10)})
        assert text is not None
        queue_of.updated(self.client, number, Comment=text)

    def until(self, wanted: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not wanted():
            assert time.monotonic() < deadline_s
            time.sleep(0.2)

    def rewind(self, **seconds: float) -> None:
        """As if the GPU's times were longer ago."""
        (one,) = late.read(self.path)
        heard = tuple(said._replace(at_s=min(said.at_s, time.time())) for said in one.heard)  # `again` is ahead of time
        changed = {name: getattr(one, name) - past for name, past in seconds.items()}
        late.write(self.path, [one._replace(heard=heard, **changed)])

    def sweeps(self) -> int:
        return len(os.listdir(self.lab.directory("pal", "sweeps")))

    def swept(self) -> bool:
        """Whether no sweep is at work."""
        return bool(json.loads(self.run(*PAL_PROFILE, "status", "--json"))["state"] == "ended")

    def features(self) -> frozenset[str]:
        return next(node.features for node in self.client.nodes() if node.name == "n1")


def _quoted(word: str) -> str:
    return "'" + word + "'"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    skip_without_slurm()
    home = tmp_path_factory.mktemp("home")
    table = home / "gpus.csv"
    table.write_text(TABLE)
    with short_directory() as path, Lab.up(path, nodes=2, gpus=4, gpu_table=str(table)) as lab:
        made = Site(lab, home)
        made.run(*PAL_PROFILE, "run", "--yes", "--max-parallel", "2")
        made.run(*PAL, "lab", "fault", "n1:2", "drift", str(SLOW))
        yield made


@pytest.mark.long
def test_from_a_slow_gpu_to_its_measurement(site: Site) -> None:
    before = site.gpu()
    assert before["slowdown"]["A"] < 1.01 and not before["flags"]

    # The user of the job sees which GPU it is.
    number = site.job()
    told = site.run(*PAL, "why-slow", str(number))
    assert told.startswith(f"Job {number} is held up by GPU n1:2: its other ranks wait for that GPU, ")
    assert "its last measurement does not show that" in told
    found = json.loads(site.run(*PAL, "why-slow", str(number), "--json"))
    assert (found["schema"], found["verdict"]) == ("pal.why_slow/1", "gpu")
    assert (found["culprit"]["node"], found["culprit"]["indexes"]) == ("n1", [2])

    # A tick that only advises remembers it, and touches nothing.
    site.run(*REBALANCE, "--once", SLURM_PAL_REBALANCE_MODE="advise")
    assert site.rung() == "observe" and not site.features()
    site.again(number)
    site.tick()
    assert site.rung() == "observe" and not site.features()
    site.again(number)
    site.tick()
    assert site.rung() == "annotate" and site.features() == {"pal_late_2"}
    assert "late" in site.gpu()["flags"] and site.gpu()["slowdown"]["A"] < 1.01, "one job is no verdict"
    site.run("scancel", str(number))
    queue_of.emptied(site.client)
    told = site.run(*PAL, "why-slow", str(number))
    assert told.startswith(f"Job {number} was held up by GPU n1:2"), told
    assert "n1 (GPU 2 late)" in site.run(*PAL_PROFILE, "plan", "--since", "0s"), "its node comes first"

    # A second job agrees: it is avoided, by its score.
    number = site.job()
    site.tick()
    assert site.rung() == "avoid"
    site.tick()
    assert site.gpu()["slowdown"]["A"] > 1.05
    site.run("scancel", str(number))
    queue_of.emptied(site.client)

    # After a while its node is reserved and measured fully: a run that departs from the others needs a second one.
    site.rewind(since_s=3600.0)
    for _ in range(3):
        sweeps = site.sweeps()
        site.tick()
        assert site.rung() == "reserve"
        assert "ReservationName=pal_n1 " in site.run("scontrol", "show", "reservation", "-o")
        site.until(lambda sweeps=sweeps: site.sweeps() > sweeps and site.swept())  # type: ignore[misc]
        site.tick()
        assert "pal_n1" not in site.run("scontrol", "show", "reservation", "-o"), "it is given back at once"
        if site.rung() == "released":
            break
        assert "unconfirmed" in site.gpu()["flags"]
        site.rewind(reserved_s=13 * 3600.0)
    site.tick()
    assert site.gpu()["slowdown"]["A"] > 1.15 and "late" not in site.gpu()["flags"]
    assert site.rung() == "released" and not site.features()
    assert [row["rung"] for row in _steps(site)] == ["observe", "annotate", "avoid", "reserve", "released"]

    # Now it is known to be slow: the same job is no news.
    number = site.job()
    told = site.run(*PAL, "why-slow", str(number))
    assert "that agrees with its last measurement" in told
    site.tick()
    assert site.rung() == "released"
    site.run("scancel", str(number))
    queue_of.emptied(site.client)


def test_a_drain_is_the_sites_wish_and_is_taken_back(site: Site) -> None:
    now_s = time.time()
    heard = (Heard(1, "ada", 1.9, "A", now_s, 3), Heard(2, "bob", 1.9, "A", now_s, 3))
    one = LateGpu(
        "n1", 2, site.gpu()["uuid"], "reserve", now_s - 3600.0, heard, measured=2, reserved_s=now_s, reserved=False
    )
    late.write(site.path, [one])
    site.tick()
    assert site.rung() == "reserve" and not _drained(site), "unless the site says so, no node is drained"
    site.tick(SLURM_PAL_ONLINE_LADDER="drain")
    assert site.rung() == "drain" and _drained(site)
    assert site.client.node_reason("n1").startswith("pal: jobs wait for GPU 2")
    site.run(*REBALANCE, "--withdraw")
    assert site.rung() == "observe" and not _drained(site) and not site.features()
    assert "pal_n1" not in site.run("scontrol", "show", "reservation", "-o")


def _drained(site: Site) -> bool:
    return any("DRAIN" in node.states for node in site.client.nodes())


def _steps(site: Site) -> list[dict[str, Any]]:
    with open(os.path.join(os.path.dirname(site.path), "rebalance.log")) as log:
        return [row for row in map(json.loads, log) if row["what"] == "late-gpu" and "rung" in row]
