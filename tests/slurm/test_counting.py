# SPDX-License-Identifier: MIT
"""Jobs on nodes that Slurm counts in its own way: two threads a core, default memory, limits of partitions.

Node n2 is the fastest, has free GPUs, and is full of what Slurm counts: a job that is pinned there waits.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base.config import Config, load
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.lab.lab import Lab
from slurm_pal.publisher.publication import Publisher
from slurm_pal.slurm.cli import CliClient, subprocess_runner

from ..doubles.processes import with_words
from . import queue_of
from .conftest import short_directory, skip_without_slurm
from .scored import publish_slowdowns

pytestmark = pytest.mark.real_slurm

PALSUB = (sys.executable, "-P", "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())")
BATCH = ("sbatch", "--parsable", "-o", "/dev/null")
EDITS = (
    ("CoresPerSocket=16 ThreadsPerCore=1", "CoresPerSocket=8 ThreadsPerCore=2"),
    ("Gres=gpu:4", "Gres=gpu:4,nvme:2"),
    ("GresTypes=gpu", "GresTypes=gpu,nvme"),
    (
        "PartitionName=gpu",
        "PartitionName=node Nodes=ALL DefMemPerNode=20000\n"
        "PartitionName=gpumem Nodes=ALL DefMemPerGPU=20000\n"
        "PartitionName=gpucpu Nodes=ALL DefCpuPerGPU=4\n"
        "PartitionName=capped Nodes=ALL MaxCPUsPerNode=6\n"
        "PartitionName=gpu",
    ),
)
SLOWDOWNS = {"n0": 1.04, "n1": 1.0, "n2": 0.8, "n3": 1.02}
NO_MEMORY = ("-p", "gpu", "--mem=63500")
CASES = {  # what fills n2, and the job
    "DefMemPerCPU": (NO_MEMORY, ("-p", "gpu")),
    "DefMemPerNode": (("-p", "gpu", "--mem=50000"), ("-p", "node")),
    "DefMemPerGPU": (("-p", "gpu", "--mem=50000"), ("-p", "gpumem")),
    "DefCpuPerGPU": (("-p", "gpu", "-c", "14"), ("-p", "gpucpu")),
    "MaxCPUsPerNode": (("-p", "capped", "-c", "4"), ("-p", "capped", "-c", "4")),
    "nomultithread": (("-p", "gpu", "-c", "14"), ("-p", "gpu", "-n", "2", "-N", "1", "--hint=nomultithread")),
    "ntasks-per-core": (("-p", "gpu", "-c", "14"), ("-p", "gpu", "-n", "2", "-N", "1", "--ntasks-per-core=1")),
    "nvme": (("-p", "gpu", "--gres=gpu:1,nvme:2"), ("-p", "gpu", "--gres=gpu:1,nvme:1")),
}


class Site:
    """A lab with the filter, a publisher that works when called, and a user with a state folder of their own."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.lab, self.home = lab, home
        self.env = lab.environ() | {"XDG_STATE_HOME": str(home), "SLURM_PAL_SUBMIT_LEASE_PASS_S": "1.0"}
        self.config: Config = load(self.env)
        self.client = CliClient(subprocess_runner(30.0, self.env), conf=lab.directory.conf)
        publish_slowdowns(self.config, SLOWDOWNS)
        self.publisher = Publisher(self.config, self.client, stays=True)

    def run(self, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, env=self.env | env, cwd="/", capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )

    def submit(self, *words: str, how: tuple[str, ...] = BATCH, **env: str) -> SlurmJob:
        done = self.run(*how, *words, "--wrap", "sleep 100", **env)
        assert done.returncode == 0, done.stderr
        found = self.client.job(int(done.stdout.split(";")[0]))
        assert found is not None
        return found

    def plainly(self, *words: str) -> SlurmJob:
        return self.submit(*words, SLURM_PAL_OFF="1")

    def palsub(self, *words: str, **env: str) -> SlurmJob:
        how = (*PALSUB, "--parsable", "--pal-watch", "--pal-class=A", "-o", "/dev/null", "-t", "60")
        return self.submit(*words, how=how, **env)

    def started(self, job: SlurmJob) -> SlurmJob:
        return queue_of.until(self.client, job.job_id, lambda one: one.state == "RUNNING")

    def publish(self) -> None:
        """A table of what is now free: it knows of what was given away in earlier seconds only."""
        time.sleep(1.1)
        assert not self.publisher.publish(time.time()).trouble

    def fill(self, words: tuple[str, ...]) -> None:
        gres = () if any(word.startswith("--gres") for word in words) else ("--gres=gpu:1",)
        self.started(self.plainly(*words, *gres, "-w", "n2"))

    def watchers(self) -> list[int]:
        return with_words(f"submit.watcher {self.home}")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    skip_without_slurm()
    home = tmp_path_factory.mktemp("state")
    with short_directory() as path, Lab.up(path, nodes=4, gpus=4, submit_filter=True, conf_edits=EDITS) as lab:
        yield Site(lab, home)


@pytest.fixture
def site(started: Site) -> Iterator[Site]:
    yield started
    for pid in started.watchers():
        os.kill(pid, signal.SIGKILL)
    queue_of.emptied(started.client)


@pytest.mark.parametrize("case", CASES)
def test_no_job_is_pinned_where_slurm_would_make_it_wait(site: Site, case: str) -> None:
    full, words = CASES[case]
    site.fill(full)
    gres = () if any(word.startswith("--gres") for word in words) else ("--gres=gpu:1",)
    plain = site.plainly(*words, *gres, "-w", "n2")
    time.sleep(1.5)
    assert site.client.job(plain.job_id).state == "PENDING"  # type: ignore[union-attr]  # n2 cannot take it indeed
    site.client.cancel([plain.job_id])
    pinned = site.palsub(*words, *gres)
    assert "n2" not in pinned.req_nodes and site.started(pinned).nodes == ("n1",)
    site.client.cancel([pinned.job_id])
    queue_of.until(site.client, pinned.job_id, lambda job: job.state == "CANCELLED")
    site.publish()
    filtered = site.submit(*words, *gres)
    assert "n2" not in filtered.req_nodes and site.started(filtered).nodes != ("n2",)


def test_a_job_of_fewer_tasks_than_nodes_has_as_many_nodes_as_tasks(site: Site) -> None:
    """sbatch keeps the first names of a longer list: nobody would know the list as ours, and take it back."""
    for words, nodes in ((("-N2", "-n1"), ("n2",)), (("-N4", "-n2"), ("n1", "n2"))):
        pinned = site.palsub("--gres=gpu:4", *words)
        assert pinned.req_nodes == nodes and site.started(pinned).nodes == nodes
        site.client.cancel([pinned.job_id])
        queue_of.until(site.client, pinned.job_id, lambda job: job.state == "CANCELLED")
        site.publish()
        filtered = site.submit("--gres=gpu:4", *words)
        assert site.started(filtered).nodes == nodes
        site.client.cancel([filtered.job_id])
        queue_of.until(site.client, filtered.job_id, lambda job: job.state == "CANCELLED")


def test_the_room_that_is_there_is_used(site: Site) -> None:
    """The count is not so cautious that a job with room on the best node goes elsewhere."""
    site.fill(("-p", "gpu", "-c", "12", "--mem=62000"))
    for words in (("-n", "2", "-N", "1", "--hint=nomultithread"), ("-c", "4"), ("--gres=gpu:1,nvme:2", "-c", "2")):
        gres = () if any(word.startswith("--gres") for word in words) else ("--gres=gpu:1",)
        job = site.palsub("-p", "gpu", *words, *gres)
        assert site.started(job).nodes == ("n2",), words
        site.client.cancel([job.job_id])
        queue_of.until(site.client, job.job_id, lambda one: one.state == "CANCELLED")


def test_a_node_that_the_site_keeps_for_later_is_taken_last(site: Site) -> None:
    site.client.update_nodes(["n2"], Weight="1000")
    try:
        assert site.started(site.palsub("--gres=gpu:1")).nodes == ("n1",)
        site.publish()
        assert site.started(site.submit("--gres=gpu:1")).nodes == ("n1",)
    finally:
        site.client.update_nodes(["n2"], Weight="1")


def test_options_of_a_plug_in_in_the_script_are_understood(site: Site, tmp_path: Path) -> None:
    if site.lab.without_plugin:
        pytest.skip(site.lab.without_plugin)
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --pal-class=B --tasks-per-node=1 -N1\n#SBATCH --gres=gpu:1,nvme:1\nsleep 1\n")
    done = site.run(*PALSUB, "--pal-watch", "--pal-dry-run", "--pal-json", str(script))
    made = json.loads(done.stdout)
    assert (made["action"], made["sensitivity"]["class"]) == ("nodelist", "B"), made["reason"]
    submitted = site.run(*PALSUB, "--parsable", "--pal-watch", "-o", "/dev/null", str(script))
    assert submitted.returncode == 0, submitted.stderr


@pytest.fixture
def blind(site: Site) -> str:
    """A PATH with a scontrol that hides how much memory of a node is in use: something that Slurm alone counts."""
    real = subprocess.run(["which", "scontrol"], capture_output=True, text=True, check=True).stdout.strip()
    folder = site.home / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "scontrol").write_text(f'#!/bin/sh\n{real} "$@" | sed "s/AllocMem=[0-9]*/AllocMem=0/"\n')
    (folder / "scontrol").chmod(stat.S_IRWXU)
    return f"{folder}:{os.environ['PATH']}"


def test_a_job_pinned_in_error_is_free_after_one_pass_by_the_watcher(site: Site, blind: str) -> None:
    site.fill(NO_MEMORY)
    begun_s = time.monotonic()
    job = site.palsub("-p", "gpu", "--gres=gpu:1", PATH=blind)
    assert job.req_nodes == ("n2",)
    assert site.started(job).nodes != ("n2",)
    assert time.monotonic() - begun_s < 30.0  # the lease is for 360 s


def test_so_it_is_behind_a_job_for_which_slurm_keeps_nodes(site: Site) -> None:
    """Then it shows Priority, not Resources, and a start that backfill has planned."""
    site.fill((*NO_MEMORY, "-t", "30"))
    site.plainly("-N", "4", "--gres=gpu:4", "-t", "30")
    job = site.plainly(
        "-p", "gpu", "--gres=gpu:1", "-t", "1", "-w", "n2", "--comment=pal:lease=533;req=;exc=;act=nodelist;set=n2"
    )
    queue_of.until(site.client, job.job_id, lambda one: one.reason == "Priority" and one.start_s > time.time())
    deadline_s = time.monotonic() + 30.0
    while not site.publisher.publish(time.time()).ended:
        assert time.monotonic() < deadline_s
        time.sleep(0.5)
    assert site.started(job).nodes != ("n2",)


@pytest.mark.parametrize("how", ["palsub", "filter"])
def test_a_job_pinned_in_error_is_free_after_one_pass_by_the_daemon(site: Site, how: str) -> None:
    site.fill(NO_MEMORY)
    mark = "pal:lease=533;req=;exc=;act=nodelist;set=n2"
    job = site.plainly("-p", "gpu", "--gres=gpu:1", "-w", "n2", *([f"--comment={mark}"] if how == "palsub" else []))
    if how == "filter":
        site.client.update_job(job.job_id, AdminComment=f"{mark};class=?;from=default")
    queue_of.until(site.client, job.job_id, lambda one: one.reason == "Resources")
    deadline_s = time.monotonic() + 30.0
    while not site.publisher.publish(time.time()).ended:
        assert time.monotonic() < deadline_s
        time.sleep(0.5)
    assert site.started(job).nodes != ("n2",)


def test_nodes_that_the_tick_names_in_vain_are_taken_back_before_the_next_tick(site: Site, blind: str) -> None:
    for name in ("n0", "n3"):
        site.started(site.plainly("--exclusive", "--gres=gpu:4", "-w", name))
    for name in ("n1", "n2"):
        site.started(site.plainly(*NO_MEMORY, "--gres=gpu:1", "-w", name))
    job = site.submit("--gres=gpu:1", "--comment=pal:job=A;from=x")
    argv = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import rebalance; rebalance()"]
    told = (site.home / "daemon.log").read_text
    with open(site.home / "daemon.log", "w") as log:
        daemon = subprocess.Popen(
            [*argv, "--daemon", "--act", "--every", "25"], env=site.env | {"PATH": blind}, stdout=log, stderr=log
        )
        try:
            queue_of.until(site.client, job.job_id, lambda one: one.req_nodes == ("n2",), told)
            queue_of.until(site.client, job.job_id, lambda one: not one.req_nodes, told)
            assert daemon.poll() is None
        finally:
            daemon.terminate()
            daemon.wait()
    log = Path(site.config.state_dir, "rebalance.log").read_text()
    assert "Slurm did not start it there" in log and "until the next tick" not in log


SHOWN = "NumNodes:9,NumCPUs:9,NumTasks:9,MinCpus:9,MinMemory:9,TimeLimit:20,tres-per-node:20,tres-per-job:20,Feature:9"


@pytest.fixture
def thief(site: Site) -> str:
    """A PATH with an sbatch that lets others take nodes n1 and n2 just before ours is submitted."""
    real = subprocess.run(["which", "sbatch"], capture_output=True, text=True, check=True).stdout.strip()
    folder = site.home / "thief"
    folder.mkdir(exist_ok=True)
    (folder / "sbatch").write_text(
        "#!/bin/sh\nfor n in n1 n2; do\n"
        f"j=$(SLURM_PAL_OFF=1 {real} --parsable -o /dev/null -w $n --exclusive --gres=gpu:4 --wrap 'sleep 100')\n"
        'while [ "$(squeue -h -j $j -o %t)" = PD ]; do sleep 0.1; done\ndone\n'
        f'exec {real} "$@"\n'
    )
    (folder / "sbatch").chmod(stat.S_IRWXU)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize("words", [("--gpus=4", "-n", "8"), ("--gres=gpu:2", "-n", "8"), ("--gpus=1",)])
def test_what_the_user_did_not_ask_for_squeue_does_not_show(site: Site, thief: str, words: tuple[str, ...]) -> None:
    """A number of nodes could not be taken back with the list."""
    for name in ("n0", "n3"):
        site.started(site.plainly("--exclusive", "--gres=gpu:4", "-w", name))
    job = site.palsub(*words, PATH=thief)
    assert "n2" in job.req_nodes and job.state == "PENDING"
    plain = site.plainly(*words, "-t", "60")

    def shown(one: SlurmJob) -> str:
        return site.run("squeue", "-h", "-j", str(one.job_id), "-O", SHOWN).stdout

    assert shown(job) == shown(plain)
    queue_of.updated(site.client, job.job_id, ReqNodeList="")
    assert shown(job) == shown(plain)


@pytest.mark.parametrize("words", [("--gpus-per-task=1",), ("--gpus-per-task=1", "--exclusive"), ("--gpus=20",)])
def test_what_sbatch_refuses_palsub_refuses(site: Site, words: tuple[str, ...]) -> None:
    alone = site.run(*BATCH, *words, "--wrap", "true", SLURM_PAL_OFF="1")
    ours = site.run(*PALSUB, "--parsable", "--pal-watch", "-o", "/dev/null", *words, "--wrap", "true")
    assert alone.returncode != 0 and (ours.returncode, ours.stdout, ours.stderr) == (
        alone.returncode, alone.stdout, alone.stderr,
    )  # fmt: skip


def test_a_job_gets_as_much_as_plain_slurm_gives_it(site: Site) -> None:
    for words in (("--gpus=8",), ("--gpus=4", "-n", "8"), ("-n", "8", "--ntasks-per-node=4", "--gres=gpu:1")):
        seen = []
        for submit in (site.palsub, site.plainly):
            job = site.started(submit(*words))
            seen.append(
                site.run("squeue", "-h", "-j", str(job.job_id), "-O", SHOWN.replace("TimeLimit:20,", "")).stdout
            )
            site.client.cancel([job.job_id])
            queue_of.until(site.client, job.job_id, lambda one: one.state == "CANCELLED")
        assert seen[0] == seen[1], words
