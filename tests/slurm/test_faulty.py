# SPDX-License-Identifier: MIT
"""GPUs that fail in a sweep on a real Slurm: shown with a cure, avoided by palsub, filter and tick, then well again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base.cluster import Gpu
from slurm_pal.base.config import load
from slurm_pal.base.errors import Exit
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.lab.lab import Lab
from slurm_pal.publisher.publication import Publisher
from slurm_pal.slurm.cli import CliClient, subprocess_runner

from . import queue_of
from .conftest import short_directory, skip_without_slurm

pytestmark = pytest.mark.real_slurm
PAL = (sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()")
PAL_PROFILE = (sys.executable, "-P", "-c", "from slurm_pal.cli.start import profile; profile()")
REBALANCE = (sys.executable, "-P", "-c", "from slurm_pal.cli.start import rebalance; rebalance()")
PALSUB = (sys.executable, "-P", "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())")
FAULTS = {("n5", 2): ("hang", "no-answer"), ("n6", 3): ("missing", "missing"), ("n2", 1): ("ecc", "ecc")}
"""GPU -> fault of the lab, and the state that it leads to."""
SLEEP = ("--wrap", "sleep 120")
LEASE_S = "4"
CLASSES = ("C", "A", "?", "B", "C", "C")


class Site:
    """A lab of 8 nodes with 4 GPUs and the filter, and a user who submits from an empty directory."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.lab, self.home = lab, home
        self.env = lab.environ() | {"XDG_STATE_HOME": str(home / "xdg"), "SLURM_PAL_SUBMIT_LEASE_MAX_S": LEASE_S}
        self.env["SLURM_PAL_FILTER_MAX_AGE_S"] = "3600"  # no publisher stays here
        self.env["SLURM_PAL_PROFILE_SPARE_NODES"] = "0"  # no user waits while a sweep runs
        self.client = CliClient(subprocess_runner(30.0, lab.environ()))
        self.publisher = Publisher(load(self.env), self.client, stays=True)

    def run(self, *argv: str, code: int = 0) -> str:
        done = subprocess.run(
            argv, env=self.env, cwd=self.home, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def states(self) -> dict[Gpu, str]:
        """Every GPU that is not ok."""
        known = json.loads(self.run(*PAL, "gpus", "--json"))["gpus"]
        assert len(known) == 32
        return {(g["node"], g["index"]): g["state"] for g in known if g["state"] != "ok"}

    def palsub(self, sensitivity: str, gpus: int) -> int:
        words = [] if sensitivity == "?" else [f"--pal-class={sensitivity}"]
        words += ["--pal-watch", f"--gres=gpu:{gpus}", "-t", "60"]
        return int(self.run(*PALSUB, "-o", "/dev/null", "--parsable", *words, *SLEEP))

    def sbatch(self, sensitivity: str, gpus: int) -> int:
        """The same without palsub: the filter decides."""
        script = self.home / f"{sensitivity}.sh"
        line = "" if sensitivity == "?" else f"#PAL class={sensitivity}\n"
        script.write_text(f"#!/bin/sh\n{line}sleep 120\n")
        return int(self.run("sbatch", "-o", "/dev/null", "--parsable", f"--gres=gpu:{gpus}", "-t", "60", str(script)))

    def started(self, number: int) -> SlurmJob:
        return queue_of.until(self.client, number, lambda job: job.state not in ("PENDING", "CONFIGURING"))

    def clear(self) -> None:
        """End all jobs, and let the filter know."""
        queue_of.emptied(self.client)
        time.sleep(1.1)  # the table knows of what was given away in earlier seconds only
        self.publisher.publish(time.time())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """After a clean sweep, three faults and a second sweep."""
    skip_without_slurm()
    with short_directory() as path, Lab.up(path, nodes=8, gpus=4, submit_filter=True) as lab:
        made = Site(lab, tmp_path_factory.mktemp("home"))
        made.run(*PAL_PROFILE, "run", "--yes", "--max-parallel", "8")
        assert made.states() == {}
        for (node, index), (fault, _) in FAULTS.items():
            made.run(*PAL, "lab", "fault", node, str(index), fault)
        words = ("run", "--yes", "--max-parallel", "8", "--gpu-timeout-s", "5")
        said = made.run(*PAL_PROFILE, *words, code=Exit.FAILED)
        for (node, index), (_, state) in FAULTS.items():
            assert f"seen to fail, jobs are kept off it: {node}:{index} {state}: " in said
        yield made
        for entry in os.listdir("/proc"):  # watchers of this user's jobs
            try:
                words_of = Path("/proc", entry, "cmdline").read_bytes() if entry.isdigit() else b""
            except OSError:
                continue
            if b"slurm_pal.submit.watcher" in words_of and str(made.home).encode() in words_of:
                os.kill(int(entry), signal.SIGKILL)


def test_every_command_shows_them_with_what_to_do(site: Site) -> None:
    assert site.states() == {gpu: state for gpu, (_, state) in FAULTS.items()}
    site.publisher.publish(time.time())
    for words in (("gpus", "-f"), ("gpus",), ("report",), ("heatmap",), ("doctor",)):
        said = " ".join(site.run(*PAL, *words).split())
        for (node, index), (_, state) in FAULTS.items():
            assert f"{node}:{index} {state}" in said, words
            assert f"then pal-profile run -w {node}" in said, words
    by_gpu = {(g["node"], g["index"]): g for g in json.loads(site.run(*PAL, "gpus", "--json"))["gpus"]}
    for gpu in FAULTS:  # what is kept of a missing one has no UUID; the GPU itself has
        assert f"evidence-{by_gpu[gpu]['uuid']}" in site.run(*PAL, "evidence", f"{gpu[0]}:{gpu[1]}")
    assert all(by_gpu[gpu]["uuid"] and by_gpu[gpu]["slowdown"] for gpu in FAULTS), "what was measured before is kept"


@pytest.mark.parametrize("way", ["palsub", "sbatch"])
def test_no_job_of_any_class_gets_one_while_others_will_do(site: Site, way: str) -> None:
    """Five nodes are sound; on the others Slurm hands out one, two and three sound GPUs before the faulty one."""
    site.clear()
    submit = site.palsub if way == "palsub" else site.sbatch
    whole = [site.started(submit(c, 4)) for c in CLASSES[:5]]
    assert {job.nodes for job in whole} == {("n0",), ("n1",), ("n3",), ("n4",), ("n7",)}
    singles = [site.started(submit(c, 1)) for c in CLASSES]
    held = {(node, k) for job in singles for node, indexes in job.gpus.items() for k in indexes}
    assert held == {("n2", 0), ("n5", 0), ("n5", 1), ("n6", 0), ("n6", 1), ("n6", 2)}
    assert not held & set(FAULTS)
    if way == "palsub":
        told = (site.run(*PAL, "explain", str(job.job_id)) for job in reversed((*whole, *singles)))
        assert any("You were kept off GPUs that were seen to fail" in text for text in told)


def test_where_nothing_else_is_free_a_job_waits_its_lease_and_then_starts(site: Site) -> None:
    site.clear()
    for _ in range(5):
        site.started(site.palsub("A", 4))
    number = site.palsub("C", 4)
    job = site.client.job(number)
    told = site.run(*PAL, "explain", str(number))
    assert job is not None and job.state == "PENDING" and set(job.exc_nodes) == {"n2", "n5", "n6"}, told
    assert "could only get some that were seen to fail" in told and "n2:1 (ecc)" in told
    late = site.started(number)
    assert late.nodes[0] in ("n2", "n5", "n6") and late.exc_nodes == ()
    assert f"seen to fail: {late.nodes[0]}:" in site.run(*PAL, "explain", str(number))


def test_a_tick_keeps_waiting_jobs_off_them_in_advance(site: Site) -> None:
    """Every node is busy; those with a faulty GPU would be no good for four GPUs once they are free."""
    site.clear()
    for k in range(8):
        site.started(int(site.run("sbatch", "-o", "/dev/null", "--parsable", "-w", f"n{k}", "--gres=gpu:4", *SLEEP)))
    mark = "--comment=pal:job=C;from=x"
    words = ("sbatch", "-o", "/dev/null", "--parsable", mark, "-N1", "--gres=gpu:4", "-t", "60", *SLEEP)
    number = int(site.run(*words))
    queue_of.until(site.client, number, lambda job: job.reason in ("Resources", "Priority"))
    site.env["SLURM_PAL_SUBMIT_LEASE_MAX_S"] = "600"
    try:
        said = site.run(*REBALANCE, "--once", "--act")
        assert "kept off 3 nodes too slow or faulty for it, in advance" in said
        job = site.client.job(number)
        assert job is not None and set(job.exc_nodes) == {"n2", "n5", "n6"}
    finally:
        site.run(*REBALANCE, "--withdraw")
        site.env["SLURM_PAL_SUBMIT_LEASE_MAX_S"] = LEASE_S


def test_a_user_who_names_the_node_gets_it(site: Site) -> None:
    site.clear()
    done = site.run(*PALSUB, "-o", "/dev/null", "--parsable", "-w", "n5", "--gres=gpu:4", *SLEEP)
    assert site.started(int(done)).nodes == ("n5",)


def test_a_state_ends_with_a_clean_measurement_only(site: Site) -> None:
    site.clear()
    for node, index in FAULTS:
        site.run(*PAL, "lab", "fault", node, str(index), FAULTS[node, index][0], "off")
    site.run(*PAL_PROFILE, "run", "--yes", "-w", "n0")
    assert len(site.states()) == len(FAULTS), "another node was measured"
    site.run(*PAL_PROFILE, "run", "--yes", "-w", "n5")
    assert set(site.states()) == {("n6", 3), ("n2", 1)}
    site.run(*PAL_PROFILE, "run", "--yes", "-w", "n[2,6]", "--max-parallel", "2")
    assert site.states() == {}
    assert "no GPU was seen to fail" in site.run(*PAL, "doctor")
