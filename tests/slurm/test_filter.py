# SPDX-License-Identifier: MIT
"""The submit filter inside a real slurmctld: every way of submitting, faults of the table, leases and their end."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_pal.base.config import Config, load
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.prices import GPU
from slurm_pal.decide import partition_mark
from slurm_pal.decide.steering import Market, PricedGpus
from slurm_pal.filter.source import text_of
from slurm_pal.lab import filter as lab_filter
from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab
from slurm_pal.partitions import published
from slurm_pal.publisher.publication import Publisher
from slurm_pal.sensitivity.history import Label, Seen
from slurm_pal.sensitivity.keys import name_key, script_digest, script_key
from slurm_pal.slurm.cli import CliClient, subprocess_runner
from slurm_pal.store import labels, user_files

from . import queue_of
from .conftest import short_directory, skip_without_slurm
from .scored import publish_slowdowns

pytestmark = pytest.mark.real_slurm
PATIENCE_S = 40.0
SLOWDOWNS = {"n0": 1.02, "n1": 0.97, "n2": 1.0, "n3": 1.4}
BATCH = ("sbatch", "--parsable", "-o", "/dev/null")
PALSUB = (sys.executable, "-P", "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())")
EXPLAIN = (sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()", "explain")


class Site:
    """A lab with the filter, its scores, and a publisher that does a round when told."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.env = lab, lab.environ()
        self.table = Path(lab.directory.table)
        self.config: Config = load(self.env)
        self.client = CliClient(subprocess_runner(30.0, self.env))
        publish_slowdowns(self.config, SLOWDOWNS)
        self.publisher = Publisher(self.config, self.client, stays=True)

    def round(self) -> list[str]:
        """One round of the publisher; the jobs whose leases it ended."""
        return [str(update.job_id) for update in self.publisher.publish(time.time()).ended]

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, env=self.env, cwd="/", capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )

    def submit(self, *words: str) -> SlurmJob:
        done = self.run(*BATCH, *words, "--wrap", "sleep 300")
        assert done.returncode == 0, done.stderr
        return self.job(int(done.stdout.split(";")[0]))

    def job(self, job_id: int) -> SlurmJob:
        found = self.client.job(job_id)
        assert found is not None
        return found

    def wait(self, job_id: int, done: Callable[[SlurmJob], bool]) -> SlurmJob:
        deadline_s = time.monotonic() + PATIENCE_S
        while not done(self.job(job_id)):
            assert time.monotonic() < deadline_s, self.job(job_id)
            time.sleep(queue_of.LOOK_S)
        return self.job(job_id)

    def slurmctld(self) -> int:
        """The pid of the one slurmctld of this lab."""
        return next(p.pid for p in self.lab._living() if p.name == "slurmctld")

    def clear(self) -> None:
        """End all jobs, forget what the filter gave away, and publish."""
        self.run("scancel", "-u", str(os.geteuid()))
        deadline_s = time.monotonic() + PATIENCE_S
        while self.run("squeue", "-h").stdout.strip():
            assert time.monotonic() < deadline_s
            time.sleep(queue_of.LOOK_S)
        time.sleep(1.1)  # the table knows of what was given away in earlier seconds only
        self.round()


def mark(job: SlurmJob) -> dict[str, str]:
    text = job.admin_comment
    return dict(pair.split("=", 1) for pair in text.removeprefix("pal:").split(";") if "=" in pair)


@pytest.fixture(scope="module")
def started() -> Iterator[Site]:
    skip_without_slurm()
    with short_directory() as path, Lab.up(path, nodes=4, gpus=4, submit_filter=True) as lab:
        yield Site(lab)


@pytest.fixture
def site(started: Site) -> Iterator[Site]:
    """The site, empty and with a fresh table; its slurmctld must survive each test."""
    before = started.slurmctld()
    started.clear()
    yield started
    assert started.slurmctld() == before


def test_sbatch_runs_where_the_filter_says_and_explain_tells_why(site: Site) -> None:
    job = site.submit("--gres=gpu:2")
    assert job.req_nodes == ("n1",)
    assert mark(job)["act"] == "nodelist"
    assert site.wait(job.job_id, lambda j: j.state == "RUNNING").nodes == ("n1",)
    told = site.run(*EXPLAIN, str(job.job_id))
    assert told.returncode == 0, told.stderr
    assert "What the submit filter decided (in slurmctld):" in told.stdout
    assert "sent to n1: the free GPUs that suit it best" in told.stdout


def test_the_class_of_a_job_is_what_earlier_ones_were_measured_to_be(site: Site, tmp_path: Path) -> None:
    """With plain sbatch and nothing said: by the job's name, then by its script under another name."""
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/bash\n#SBATCH --gres=gpu:1 -o /dev/null\n\n# twenty epochs\n  sleep 31\n")
    name = "na\u00efve \"train\" 'x'"
    known = {name_key(name): "C", script_key(script_digest(script.read_bytes())): "B"}
    folder = user_files.site_folder(site.config.snapshot_path)
    labels.write(
        labels.path_of(folder, os.geteuid()),
        {key: Label(c, 1, (Seen(1, c, 0.9, time.time()),)) for key, c in known.items()},
    )
    time.sleep(1.1)  # the filter looks for a new table once a second
    site.round()
    time.sleep(1.1)
    named = site.submit("--gres=gpu:2", f"--job-name={name}")
    assert (mark(named)["class"], mark(named)["from"]) == ("C", "history")
    done = site.run("sbatch", "--parsable", str(script))
    assert done.returncode == 0, done.stderr
    by_script = site.job(int(done.stdout))
    assert (mark(by_script)["class"], mark(by_script)["from"]) == ("B", "history")
    told = site.run(*EXPLAIN, str(by_script.job_id))
    assert "sensitivity class B (history)" in told.stdout
    assert mark(site.submit("--gres=gpu:2", "--job-name=other"))["from"] == "default"
    said = site.run(*BATCH, "--gres=gpu:2", f"--job-name={name}", "--export=ALL,SLURM_PAL_CLASS=A", "--wrap", "true")
    assert mark(site.job(int(said.stdout)))["class"] == "A"
    stated = "--export=ALL,SLURM_PAL_CLASS=C"  # slow GPUs are for a class C that was measured
    for words, slow, agreed in (((name, stated), True, "1"), (("other", stated), False, None), ((name,), True, None)):
        job = site.submit("--gres=gpu:1", f"--job-name={words[0]}", *words[1:])
        assert (mark(job)["class"], mark(job).get("mea")) == ("C", agreed)
        assert (mark(job).get("set") == "n3") is slow


@pytest.mark.parametrize("outer", [("--pal-class=C",), ("--pal-off",), ("--export=ALL,SLURM_PAL_CLASS=C",), ("#PAL",)])
def test_the_class_of_a_driver_is_no_word_of_the_jobs_that_it_submits(
    site: Site, tmp_path: Path, outer: tuple[str, ...]
) -> None:
    """By plain sbatch and by palsub, in a job of class C that any GPU suits; the class of its children is their own."""
    if site.lab.without_plugin and outer[0].startswith("--pal"):
        pytest.skip(site.lab.without_plugin)
    child = tmp_path / "child.sh"
    child.write_text("#!/bin/sh\n#SBATCH --gres=gpu:2 -o /dev/null\n#PAL class=A\nsleep 30\n")
    bare = tmp_path / "bare.sh"
    bare.write_text("#!/bin/sh\n#SBATCH --gres=gpu:1 -o /dev/null\nsleep 32\n")
    palsub = shlex.join(PALSUB)
    submits = [f"sbatch --parsable {child}", f"sbatch --parsable {bare}", f"SLURM_PAL_CLASS=B sbatch --parsable {bare}",
               f"{palsub} --parsable {child}", f"{palsub} --parsable {bare}"]  # fmt: skip
    script = tmp_path / "driver.sh"
    head = "#PAL class=C\n" if outer[0] == "#PAL" else ""
    script.write_text(f"#!/bin/sh\n{head}" + "".join(f"{line}\n" for line in submits) + "sleep 30\n")
    words = [] if outer[0] == "#PAL" else outer
    done = site.run("sbatch", "--parsable", "--gres=gpu:1", "-o", str(tmp_path / "out"), *words, str(script))
    assert done.returncode == 0, done.stderr
    until(lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_text().count("\n") == len(submits))
    children = [site.job(int(line)) for line in (tmp_path / "out").read_text().splitlines()]
    theirs = "C" if "SLURM_PAL_CLASS" in outer[0] else "?"  # a variable of the user's own goes on
    assert [mark(job)["class"] for job in children] == ["A", theirs, "B", "A", theirs]
    assert not [mark(job) for job in children if mark(job).get("why") == "off"]
    assert children[0].req_nodes != ("n3",)


@pytest.fixture
def parted(site: Site) -> Iterator[Site]:
    """With partitions slow (n0) and fast (n1), and what a tick knows of them."""
    for name, node in (("slow", "n0"), ("fast", "n1")):
        done = site.run("scontrol", "create", f"PartitionName={name}", f"Nodes={node}", "State=UP")
        assert done.returncode == 0, done.stderr
    plain = PricedGpus({"A": 1.0, "B": 1.0, "C": 1.0}, 0.0, 0.0)
    speeds = {"app": {gpus: {"slow": (1.0, 0.05), "fast": (4.0, 0.05)} for gpus in (1, 4)}}
    market = Market(time.time(), 20.0, 0.5, {"slow": [plain], "fast": [plain]}, speeds)
    published.publish(site.config.snapshot_path, market)
    site.round()
    yield site
    published.publish(site.config.snapshot_path, None)
    site.clear()
    for name in ("slow", "fast"):
        site.run("scontrol", "delete", f"PartitionName={name}")


def test_a_job_of_several_partitions_is_kept_to_the_one_where_it_belongs(parted: Site) -> None:
    words = ("-J", "app", "-p", "slow,fast", "-t", "60", "-N1")
    job = parted.submit(*words, "--gres=gpu:4")
    assert "pal:part=" in job.admin_comment and partition_mark.noted_partitions(job) == ("slow", "fast")
    assert parted.wait(job.job_id, lambda j: j.state == "RUNNING").nodes == ("n1",)
    assert parted.submit(*words, "--gres=gpu:2").partition in ("slow", "slow,fast")  # not known for two GPUs
    time.sleep(1.1)
    parted.round()
    late = parted.submit(*words, "--gres=gpu:1")  # it waits where it belongs, though slow has room
    assert (late.partition, late.state, late.req_nodes) == ("fast", "PENDING", ())
    ended: list[int] = []
    while late.job_id not in ended:  # 24.11 may have the job in its hands
        ended += [one.job_id for one in parted.publisher.publish(late.submit_s + 3600.0).ended]  # it is over long since
        assert parted.job(late.job_id).state == "PENDING" or late.job_id in ended
    assert parted.wait(late.job_id, lambda j: j.state == "RUNNING").nodes == ("n0",)
    told = parted.run(*EXPLAIN, str(late.job_id))
    assert told.returncode == 0 and "Traceback" not in told.stderr


def test_a_goal_keeps_a_job_to_the_cheapest_partition_until_a_tick_finds_a_cheaper_one(
    parted: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parted.config, "prices", {"slow": {GPU: 4.0}, "fast": {GPU: 1.0}})
    parted.round()
    time.sleep(1.1)
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --gres=gpu:4 -N1 -p slow,fast -t 60\n#PAL goal=cost\nsleep 300\n")
    first = parted.job(int(parted.run(*BATCH, str(script)).stdout))
    assert parted.wait(first.job_id, lambda j: j.state == "RUNNING").nodes == ("n1",)
    parted.round()
    time.sleep(1.1)
    late = parted.job(int(parted.run(*BATCH, str(script)).stdout))
    assert (late.partition, late.state) == ("fast", "PENDING")  # though slow has room
    assert "goal cost: partition fast of slow,fast" in parted.run(*EXPLAIN, str(late.job_id)).stdout
    text = re.sub(r";at=\d+", f";at={time.time() - 400:.0f}", late.admin_comment)  # chosen long ago
    parted.client.update_job(late.job_id, AdminComment=text)
    prices = tmp_path / "pal.toml"
    prices.write_text("[prices]\nslow = 0.5\nfast = 1.0\n")
    tick = ("env", f"SLURM_PAL_CONFIG={prices}", program("pal-rebalance"), "--act", "--once")
    said = ""
    while "waits in its place slow now: it costs least there" not in said:  # 24.11 may have the job in its hands
        ticked = parted.run(*tick)
        said += ticked.stdout
        assert ticked.returncode == 0 and said.count("stays where it waits") < 20, said
    moved = parted.wait(late.job_id, lambda j: j.state == "RUNNING")
    assert moved.nodes == ("n0",) and "pal:alt=slow;goal=cost;" in moved.admin_comment
    assert "goal cost: partition slow of slow,fast" in parted.run(*EXPLAIN, str(late.job_id)).stdout


@pytest.mark.parametrize("words", [("srun", "-N1", "--gpus=2"), ("salloc", "--gres=gpu:2")])
def test_srun_and_salloc_are_placed_as_well(site: Site, words: tuple[str, ...]) -> None:
    done = site.run(*words, "sh", "-c", "echo at $SLURM_JOB_NODELIST")
    assert done.returncode == 0, done.stderr
    assert "at n1" in done.stdout


def test_the_mark_of_a_movable_job_says_whether_its_output_is_kept(site: Site, tmp_path: Path) -> None:
    """In slurmctld as far as script and environment show it; in the client append is asked for."""
    script = tmp_path / "job.sh"
    body = f"#!/bin/bash\n#SBATCH --gres=gpu:1 -o {tmp_path}/%j\n#PAL movable\necho run\nsleep 60\n"
    script.write_text(body)
    silent = site.job(int(site.run("sbatch", "--parsable", str(script)).stdout))
    assert "Not moved while it runs: a move would empty its output" in site.run(*EXPLAIN, str(silent.job_id)).stdout
    by_variable = site.run("env", "SBATCH_OPEN_MODE=append", "sbatch", "--parsable", str(script))
    script.write_text(body.replace("#PAL", "#SBATCH --open-mode append\n#PAL"))
    by_script = site.run("sbatch", "--parsable", str(script))
    marks = [mark(job) for job in (silent, site.job(int(by_variable.stdout)), site.job(int(by_script.stdout)))]
    assert [(said["mov"], said.get("app")) for said in marks] == [("1", None), ("1", "1"), ("1", "1")]
    assert "would empty" not in site.run(*EXPLAIN, by_script.stdout.strip()).stdout

    script.write_text(body)
    for name in ("cli_filter.lua", "pal.lua"):
        (tmp_path / name).write_text(text_of(name))
    conf = Path(site.env["SLURM_CONF"]).read_text()
    (tmp_path / "slurm.conf").write_text(f"{conf}\nCliFilterPlugins=lua\n")
    done = site.run("env", f"SLURM_CONF={tmp_path}/slurm.conf", "sbatch", "--parsable", str(script))
    assert done.returncode == 0, done.stderr
    number = int(done.stdout)
    assert ";mov=1;app=1;" in site.job(number).comment
    site.wait(number, lambda job: job.state == "RUNNING")
    until(lambda: (tmp_path / str(number)).exists() and "run" in (tmp_path / str(number)).read_text())
    site.run("scontrol", "requeue", str(number))
    site.wait(number, lambda job: job.state == "RUNNING" and job.restarts == 1)
    until(lambda: (tmp_path / str(number)).read_text().splitlines().count("run") == 2)


def until(wanted: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not wanted():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_arrays_and_hetjobs_are_taken_as_they_are(site: Site) -> None:
    array = site.submit("--gres=gpu:1", "--array=1-3")
    assert (array.req_nodes, mark(array)["why"]) == ((), "array")
    done = site.run(*BATCH, "--gres=gpu:1", ":", "--gres=gpu:1", "--wrap", "true")
    assert done.returncode == 0, done.stderr
    assert mark(site.job(int(done.stdout.split(";")[0])))["why"] == "het"


def test_a_burst_of_clients_shares_the_free_gpus_out(site: Site) -> None:
    """Sixteen jobs in the same instant: no two are sent to the same GPU, and all start."""
    ids: list[int] = []

    def client() -> None:
        ids.extend(site.submit("--gres=gpu:1", "--time=10").job_id for _ in range(3))

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 12
    jobs = [site.wait(job_id, lambda j: j.state == "RUNNING") for job_id in ids]
    sent = [job for job in jobs if mark(job)["act"] == "nodelist"]
    assert len(sent) >= 8
    assert all(job.nodes == job.req_nodes for job in sent)
    assert {node for job in jobs for node in job.nodes} == {"n0", "n1", "n2"}  # kept off the slow node


def test_a_lease_ends_and_the_job_starts_elsewhere(site: Site) -> None:
    """The GPUs that a job was sent to are taken by another before it starts: the publisher sets it free."""
    taken = site.run(*BATCH, "-w", "n1", "--exclusive", "--wrap", "sleep 60")
    assert taken.returncode == 0
    site.wait(int(taken.stdout), lambda j: j.state == "RUNNING")
    job = site.submit("--gres=gpu:2", "--time=1")  # the table is older than the job on n1
    assert job.req_nodes == ("n1",)
    deadline_s = time.monotonic() + PATIENCE_S
    while str(job.job_id) not in site.round():
        assert time.monotonic() < deadline_s
        time.sleep(0.5)
    ran = site.wait(job.job_id, lambda j: j.state == "RUNNING")
    assert ran.req_nodes == ()
    assert ran.nodes != ("n1",)


def test_outliers_are_excluded_and_the_exclusion_ends(site: Site) -> None:
    for node in ("n0", "n1", "n2"):
        other = site.run(*BATCH, "-w", node, "--exclusive", "--gres=gpu:1", "-t", "1", "--wrap", "sleep 60")
        site.wait(int(other.stdout), lambda j: j.state == "RUNNING")
    time.sleep(1.1)
    site.round()
    job = site.submit("--gres=gpu:1", "--time=4")
    assert job.exc_nodes == ("n3",)
    assert mark(job)["why"] == "slow"
    deadline_s = time.monotonic() + PATIENCE_S
    while str(job.job_id) not in site.round():
        assert time.monotonic() < deadline_s
        time.sleep(0.5)
    assert site.wait(job.job_id, lambda j: j.state == "RUNNING").nodes == ("n3",)


ONLY_SLOW = ("--gres=gpu:1", "--exclude=n[0-2]", "--time=60")
"""What no node but n3 may take, where all GPUs are slow."""


def test_a_job_that_only_slow_nodes_could_take_is_taken(site: Site) -> None:
    """Kept off them it would be refused: Requested node configuration is not available."""
    job = site.submit(*ONLY_SLOW)
    assert job.exc_nodes == ("n0", "n1", "n2") and mark(job)["why"] == "slow-all"
    assert site.wait(job.job_id, lambda j: j.state == "RUNNING").nodes == ("n3",)
    for command in ("srun", "salloc"):
        done = site.run(command, *ONLY_SLOW, "sh", "-c", "echo at $SLURM_JOB_NODELIST")
        assert done.returncode == 0 and "at n3" in done.stdout, done.stderr


def test_what_palsub_has_decided_stands(site: Site) -> None:
    """Also where it decided to do nothing, and knows nothing of the job's class."""
    done = site.run(*PALSUB, "--parsable", "-o", "/dev/null", *ONLY_SLOW, "--wrap", "sleep 30")
    assert done.returncode == 0, done.stderr
    job = site.job(int(done.stdout.split(";")[0]))
    assert mark(job)["why"] == "palsub" and job.comment == "pal:job=?;from=default"
    assert job.exc_nodes == ("n0", "n1", "n2") and not job.req_nodes


REFUSED = [
    ("-C", "nothing_has_this"), ("-p", "nowhere"), ("-N", "999"), ("--dependency=bad:1",), ("--qos=none", "-A", "x"),
]  # fmt: skip


def test_jobs_that_slurm_refuses_after_the_filter_do_no_harm(site: Site) -> None:
    """A filter that rewrote refused jobs was seen to crash slurmctld 22.05 (fixture: its pid must stay)."""
    for _ in range(5):
        for words in REFUSED:
            site.run(*BATCH, "--gres=gpu:2", *words, "--wrap", "true")
            site.run(*BATCH, "--gres=gpu:2", ":", "--gres=gpu:1", *words, "--wrap", "true")
    assert site.submit("--gres=gpu:1").state in ("PENDING", "RUNNING")


FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda text: b"",
    "truncated": lambda text: text[: len(text) // 2],
    "garbage": lambda text: os.urandom(10000),
    "code": lambda text: b"while true do end\n",
    "another schema": lambda text: text.replace(b"pal.table/1", b"pal.table/9"),
    "unknown nodes": lambda text: re.sub(rb'"n(\d) cpus', rb'"gone\1 cpus', text),
    "a hundred megabytes": lambda text: text + bytes(100 << 20),
}


@pytest.mark.parametrize("fault", [*FAULTS, "missing", "a folder", "a FIFO", "unreadable"])
def test_no_fault_of_the_table_reaches_a_job(site: Site, fault: str) -> None:
    text = site.table.read_bytes()
    site.table.unlink()
    if fault == "a folder":
        site.table.mkdir()
    elif fault == "a FIFO":
        os.mkfifo(site.table)
    elif fault in FAULTS:
        site.table.write_bytes(FAULTS[fault](text))
    elif fault == "unreadable":
        site.table.symlink_to("/proc/self/mem")
    time.sleep(1.1)  # the filter looks at most once a second
    try:
        job = site.submit("--gres=gpu:2")
        assert (job.req_nodes, job.exc_nodes) == ((), ())
        assert site.wait(job.job_id, lambda j: j.state == "RUNNING").nodes
        assert site.run("srun", "--gpus=1", "true").returncode == 0
    finally:
        if fault == "a folder":
            site.table.rmdir()
        else:
            site.table.unlink(missing_ok=True)


@pytest.mark.parametrize("text", ["syntax error (", "while true do end", "error({})", "return {submit = error}"])
def test_slurmctld_starts_and_serves_with_a_broken_pal_lua(
    lab_dir: str, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    install = lab_filter.install

    def break_it(directory: lab_filter.LabDirectory) -> str:
        trouble = install(directory)
        Path(directory("etc", "pal.lua")).write_text(text)
        return trouble

    monkeypatch.setattr(lab_filter, "install", break_it)
    with Lab.up(lab_dir, nodes=1, gpus=1, submit_filter=True) as lab:
        done = subprocess.run(
            [*BATCH, "--gres=gpu:1", "--wrap", "true"],
            env=lab.environ(), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
