# SPDX-License-Identifier: MIT
"""Labs on a real Slurm: up, use, down, and down after everything that can happen to a lab."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_pal.base.errors import BusyError, SlurmError, UsageError
from slurm_pal.cli.lab import lab as lab_command
from slurm_pal.lab import daemons, ports, processes
from slurm_pal.lab.conf import LabSpec, config_files
from slurm_pal.lab.directory import LabDirectory
from slurm_pal.lab.lab import Lab

from . import queue_of
from .open_python import open_python

pytestmark = pytest.mark.real_slurm

PATIENCE_S = 60.0  # how long to wait for what must come; never what a test is about
USER = "daemon"  # an account without a home that every Debian has; from 26.05 on nobody may not own a Slurm
# -P: the job's directory must not be searched for modules.
PAL_LAB = [sys.executable, "-P", "-c", "from slurm_pal.cli.lab import lab; lab(prog_name='pal lab')"]


def wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "what the test waits for did not come"
        time.sleep(queue_of.LOOK_S)


def run(lab: Lab, *argv: str) -> str:
    done = subprocess.run(argv, env=lab.environ(), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def sbatch(lab: Lab, *options: str, wrap: str) -> str:
    return run(lab, "sbatch", "--parsable", "-o", lab.directory("pal", "job-%j.out"), *options, "--wrap", wrap).strip()


def job_output(lab: Lab, job: str) -> str:
    wait_until(lambda: "EndTime=Unknown" not in run(lab, "scontrol", "show", "job", "-o", job))
    wait_until(lambda: run(lab, "squeue", "-h", "-j", job).strip() == "")
    return Path(lab.directory("pal", f"job-{job}.out")).read_text()


def start_sleepers(lab: Lab, count: int = 2, stubborn: bool = False) -> list[processes.Process]:
    """Jobs that run for ever, `stubborn` ones against SIGTERM too; their slurmstepds and processes."""
    for _ in range(count):
        sbatch(lab, "--gres=gpu:1", wrap=("trap '' TERM; " if stubborn else "") + "sleep 100000 & wait; wait")
    directory = LabDirectory(lab.directory.path)
    wait_until(lambda: run(lab, "squeue", "-h", "-t", "R").count("\n") == count)
    # slurmstepd, the shell and its sleep, per job
    wait_until(lambda: len(processes.find_steps(directory)) >= 3 * count)
    return processes.find_steps(directory)


def kill(lab: Lab, kinds: Sequence[str]) -> None:
    group = [p for p in lab._living() if p.name.partition("-")[0] in kinds]
    assert group
    for process in group:
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not any(processes.alive(p) for p in group))


def processes_inside(path: str) -> list[str]:
    """Command lines of all processes that name a path below `path`, hold one open or have it in their environment."""
    inside = os.fsencode(path) + b"/"
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        if int(entry) == os.getpid() or processes.start_ticks(int(entry)) is None:
            continue
        texts = processes._read(int(entry), "cmdline") + processes._read(int(entry), "environ")
        with contextlib.suppress(OSError):  # gone, or another user's
            texts += [os.fsencode(os.readlink(f"/proc/{entry}/fd/{fd}")) for fd in os.listdir(f"/proc/{entry}/fd")]
        if any(inside in text for text in texts):
            found.append(repr(texts[0]))
    return found


def assert_nothing_left(path: str) -> None:
    assert processes_inside(path) == []
    assert not os.path.exists(path)


# -- the shared lab -----------------------------------------------------------------


def test_all_nodes_are_idle_with_their_gpus(lab: Lab) -> None:
    status = lab.status()
    assert status.state == "up"
    assert status.daemons == {"munged": 1, "slurmctld": 1, "slurmd": 4}
    lines = run(lab, "sinfo", "-h", "-N", "-o", "%N %G").split("\n")
    assert [line for line in lines if line] == [f"n{i} gpu:4" for i in range(4)]
    config = run(lab, "scontrol", "show", "config")
    assert "ignore_prefer_validation" in config
    assert "MinJobAge               = 300 sec" in config


def test_environ_leaves_the_base_alone(lab: Lab) -> None:
    base = {"PATH": "/bin", "SLURM_CLUSTERS": "elsewhere"}
    environment = lab.environ(base)
    assert base == {"PATH": "/bin", "SLURM_CLUSTERS": "elsewhere"}
    assert environment == {"PATH": "/bin", "SLURM_CONF": lab.directory.conf, "SLURM_PAL_CONFIG": lab.directory.pal_toml}
    assert os.environ.get("SLURM_CONF") != lab.directory.conf


def test_env_points_a_shell_at_the_lab(lab: Lab) -> None:
    exports = CliRunner().invoke(lab_command, ["env", "--dir", lab.directory.path]).output
    done = subprocess.run(["sh", "-c", exports + "sinfo -h -o %D"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "4"


def test_pal_toml_names_the_directories_of_the_lab(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from slurm_pal.base import config

    environment = lab.environ()
    monkeypatch.setenv("SLURM_CONF", environment["SLURM_CONF"])
    loaded = config.load(environment)
    assert loaded.state_dir == lab.directory("pal")
    assert loaded.spool_dir == lab.directory("pal", "spool")
    assert loaded.text("profile", "backend") == "emu"
    assert os.path.isdir(loaded.spool_dir)


@pytest.mark.parametrize(("options", "nodes"), [(["--gres=gpu:2"], 1), (["-N2", "--gres=gpu:3"], 2)])
def test_work_takes_what_the_given_gpus_say(lab: Lab, options: list[str], nodes: int) -> None:
    words = [*PAL_LAB, "work", "--class", "A", "--seconds", "0.2", "--locality-penalty", "2", "--json"]
    job = sbatch(lab, *options, wrap=shlex.join(words))
    record = json.loads(job_output(lab, job))
    assert record["schema"] == "pal.work/1"
    assert record["job_id"] == int(job)
    assert len(record["gpus"]) == nodes
    registry = lab.registry()
    slowest = max(registry.gpu(n, i).slowdown["A"] for n, held in record["gpus"].items() for i in held)
    assert record["slowdown"] == pytest.approx(slowest, abs=1e-6)
    assert record["locality"] == (2.0 if nodes > 1 else 1.0)
    assert record["seconds"] == pytest.approx(0.2 * slowest * record["locality"], abs=1e-6)
    assert record["ended_s"] - record["started_s"] >= record["seconds"] - 0.002  # stamps are rounded to 1 ms
    shown = run(lab, "scontrol", "show", "job", "-d", "-o", job)
    assert all(f"Nodes={node} " in shown or f"NodeList={node} " in shown or nodes > 1 for node in record["gpus"])


def test_work_knows_each_task_of_an_array(lab: Lab) -> None:
    words = shlex.join([*PAL_LAB, "work", "--class", "C", "--seconds", "0", "--json"])
    first = sbatch(lab, "-N2", "-a", "0-1", "--gres=gpu:1", wrap=words)
    wait_until(lambda: run(lab, "squeue", "-h", "-j", first).strip() == "")
    ids = [line.split()[0].partition("=")[2] for line in run(lab, "scontrol", "show", "job", "-o", first).splitlines()]
    records = [json.loads(Path(lab.directory("pal", f"job-{i}.out")).read_text()) for i in ids]
    assert sorted(record["job_id"] for record in records) == sorted(int(i) for i in ids)
    assert len({json.dumps(record["gpus"]) for record in records}) == 2  # both ran at once, on GPUs of their own


def test_work_in_a_step_counts_the_gpus_of_the_step(lab: Lab) -> None:
    words = shlex.join([*PAL_LAB, "work", "--class", "A", "--seconds", "0", "--json"])
    record = json.loads(job_output(lab, sbatch(lab, "--gres=gpu:3", wrap=f"srun --gres=gpu:1 {words}")))
    assert [len(held) for held in record["gpus"].values()] == [1]


def test_work_without_gpus_says_what_to_ask_for(lab: Lab) -> None:
    words = shlex.join([*PAL_LAB, "work", "--seconds", "0"])
    assert "holds no GPUs: ask for some, like --gres=gpu:1" in job_output(lab, sbatch(lab, wrap=words))


def test_a_terminated_work_ends_with_143(lab: Lab) -> None:
    words = shlex.join([*PAL_LAB, "work", "--class", "A", "--seconds", "100000"])
    marker = lab.directory("pal", "work-pid")
    job = sbatch(lab, "--gres=gpu:1", wrap=f"{words} & echo $! > {marker}; wait $!; echo rc=$?")
    wait_until(lambda: os.path.exists(marker) and Path(marker).read_text().strip())
    pid = int(Path(marker).read_text())
    # the handler is there when the kernel shows SIGTERM (bit 14) among the caught ones
    wait_until(lambda: int(Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0], 16) >> 14 & 1)
    os.kill(pid, signal.SIGTERM)
    assert "rc=143" in job_output(lab, job)


def test_a_directory_with_a_running_lab_is_refused(lab: Lab) -> None:
    with pytest.raises(BusyError, match="a lab runs in"):
        Lab.up(lab.directory.path)
    assert lab.status().state == "up"


def test_down_from_within_a_job_of_the_lab_is_refused(lab: Lab) -> None:
    words = shlex.join([*PAL_LAB, "down", "--dir", lab.directory.path])
    assert "would end itself" in job_output(lab, sbatch(lab, wrap=words + " 2>&1"))
    assert lab.status().state == "up"


# -- labs of a test's own -------------------------------------------------------------


def test_two_labs_side_by_side(lab: Lab, lab_dir: str) -> None:
    with Lab.up(lab_dir, nodes=2, gpus=1, seed=2) as other:
        assert run(other, "sinfo", "-h", "-o", "%D").strip() == "2"
        assert run(lab, "sinfo", "-h", "-o", "%D").strip() == "4"
        assert other.status().port != lab.status().port
        sbatch(other, "--gres=gpu:1", wrap="sleep 100000")
    assert_nothing_left(lab_dir)
    assert lab.status().state == "up"


def test_no_file_outside_the_directory(lab_dir: str) -> None:
    parent = os.path.dirname(lab_dir)
    with Lab.up(lab_dir, nodes=1, gpus=1) as small:
        sbatch(small, wrap="true")
        assert os.listdir(parent) == [os.path.basename(lab_dir)]
        key = os.stat(small.directory("etc", "munge.key"))
        assert stat.S_IMODE(key.st_mode) == 0o400
    assert os.listdir(parent) == []


def test_commands_from_up_to_down(lab_dir: str) -> None:
    runner = CliRunner()
    started = runner.invoke(lab_command, ["up", "--dir", lab_dir, "--nodes", "2", "--gpus", "2", "--seed", "7"])
    assert started.exit_code == 0, started.output
    assert "2 nodes x 2 GPUs idle after" in started.output
    assert f'eval "$(pal lab env --dir {lab_dir})"' in started.output
    status = runner.invoke(lab_command, ["status", "--dir", lab_dir, "--json"])
    assert (status.exit_code, json.loads(status.output)["state"]) == (0, "up")
    ended = runner.invoke(lab_command, ["down", "--dir", lab_dir])
    assert (ended.exit_code, ended.output) == (0, f"4 processes ended, 0 jobs cancelled: {lab_dir}\n")
    assert runner.invoke(lab_command, ["status", "--dir", lab_dir]).exit_code == 1
    again = runner.invoke(lab_command, ["down", "--dir", lab_dir])
    assert (again.exit_code, again.output) == (0, f"0 processes ended, 0 jobs cancelled: {lab_dir}\n")
    assert_nothing_left(lab_dir)


def test_down_cancels_jobs_and_keeps_what_is_not_the_labs(lab_dir: str) -> None:
    running = Lab.up(lab_dir, nodes=2, gpus=2)
    start_sleepers(running, stubborn=True)
    Path(lab_dir, "mine.txt").write_text("mine")
    ended = running.down()
    assert ended.jobs_cancelled == 2
    assert ended.leftovers == ("mine.txt",)
    assert not ended.removed
    assert os.listdir(lab_dir) == ["mine.txt"]
    assert processes_inside(lab_dir) == []
    with pytest.raises(UsageError, match=r"not empty and not a lab \(it holds 'mine.txt'\)"):
        Lab.up(lab_dir)


def test_keep_leaves_the_logs_and_up_says_how_to_go_on(lab_dir: str) -> None:
    running = Lab.up(lab_dir, nodes=1, gpus=1)
    assert not running.down(keep=True).removed
    assert "slurmctld version" in Path(running.directory.log("slurmctld")).read_text()
    with pytest.raises(UsageError, match="pal lab down --dir"):
        Lab.up(lab_dir)
    assert Lab(lab_dir).down().removed
    assert_nothing_left(lab_dir)


# -- crashes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "victims", [["slurmctld"], ["slurmd"], ["munged"], ["slurmd", "slurmctld"], ["slurmd", "slurmctld", "munged"]]
)
def test_down_after_daemons_were_killed(lab_dir: str, victims: list[str]) -> None:
    running = Lab.up(lab_dir, nodes=2, gpus=2)
    steps = start_sleepers(running, stubborn=True)
    kill(running, victims)
    assert running.status().state == ("down" if len(victims) == 3 else "degraded")
    assert Lab(lab_dir).down().removed
    assert not any(processes.alive(step) for step in steps)
    assert_nothing_left(lab_dir)


@pytest.mark.parametrize("content", [None, "", '{"schema": "pal.lab-pids/1", "boot_id": "', "[]"])
def test_down_without_a_readable_pid_file(lab_dir: str, content: str | None) -> None:
    running = Lab.up(lab_dir, nodes=2, gpus=2)
    start_sleepers(running)
    os.unlink(running.directory.pids)
    if content is not None:
        Path(running.directory.pids).write_text(content)
    Path(running.directory.marker).write_text("{")  # truncated as well
    assert running.status().daemons == {"munged": 1, "slurmctld": 1, "slurmd": 2}
    assert Lab(lab_dir).down().removed
    assert_nothing_left(lab_dir)


def test_down_ends_job_processes_that_lost_their_slurmstepd(lab_dir: str) -> None:
    running = Lab.up(lab_dir, nodes=1, gpus=2)
    steps = start_sleepers(running)
    kill(running, ["slurmd", "slurmctld"])
    stepds = [p for p in steps if processes._is_stepd_of(p.pid, running.directory)]
    assert stepds
    for process in stepds:
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not any(processes.alive(p) for p in stepds))
    assert any(processes.alive(p) for p in steps)
    Lab(lab_dir).down()
    assert not any(processes.alive(p) for p in steps)
    assert_nothing_left(lab_dir)


def test_down_after_the_directory_was_removed_by_hand(lab_dir: str) -> None:
    running = Lab.up(lab_dir, nodes=2, gpus=1)
    start_sleepers(running)
    subprocess.run(["rm", "-rf", lab_dir], check=True)
    assert Lab(lab_dir).down().processes_ended >= 4
    subprocess.run(["rm", "-rf", lab_dir], check=True)  # a dying slurmd may have written once more
    assert_nothing_left(lab_dir)


def test_down_spares_other_processes_of_the_user(lab_dir: str) -> None:
    running = Lab.up(lab_dir, nodes=1, gpus=1)
    # A shell that uses the lab, as after eval "$(pal lab env)", even inside salloc.
    environment = running.environ() | {"SLURM_JOB_ID": "1"}
    shell = subprocess.Popen(["sleep", "100000"], env=environment, cwd=lab_dir)
    try:
        running.down()
        assert shell.poll() is None
    finally:
        shell.kill()
        shell.wait()


def test_a_killed_up_is_cleared_away(lab_dir: str) -> None:
    argv = [*PAL_LAB, "up", "--dir", lab_dir, "--nodes", "8"]
    starting = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: any(p.name == "slurmd" for p in processes.find_daemons(LabDirectory(lab_dir))))
    starting.kill()
    starting.wait()
    wait_until(lambda: _down_unless_busy(lab_dir))
    assert_nothing_left(lab_dir)


def _down_unless_busy(lab_dir: str) -> bool:
    """A daemon that `up` had forked when it was killed holds its lock until it becomes slurmd."""
    try:
        Lab(lab_dir).down()
    except BusyError:
        return False
    return True


def test_an_interrupted_up_leaves_nothing(lab_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        assert any(p.name == "slurmd" for p in processes.find_daemons(LabDirectory(lab_dir)))
        raise KeyboardInterrupt

    monkeypatch.setattr(daemons, "_wait_for_idle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Lab.up(lab_dir, nodes=2)
    assert_nothing_left(lab_dir)


# -- failing to start -------------------------------------------------------------------


def test_taken_ports_lead_to_another_block(lab_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    free = ports.free_blocks
    with socket.socket() as holder:

        def blocks(size: int, key: str) -> list[int]:
            """As if somebody had taken a slurmd's port between the probe and the start."""
            first, second = (block for block, _ in zip(free(size, key), range(2), strict=False))
            holder.bind(("", first + 1))
            holder.listen()
            return [first, second]

        monkeypatch.setattr("slurm_pal.lab.lab.free_blocks", blocks)
        with Lab.up(lab_dir, nodes=2, gpus=1) as running:
            assert running.status().state == "up"
            assert running.status().port != holder.getsockname()[1] - 1
    assert_nothing_left(lab_dir)


def test_a_failed_start_shows_the_log_and_leaves_nothing(lab_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(spec: LabSpec) -> dict[str, str]:
        texts = config_files(spec)
        return texts | {"slurm.conf": texts["slurm.conf"] + "NoSuchKey=1\n"}

    monkeypatch.setattr(daemons, "config_files", broken)
    with pytest.raises(SlurmError, match=r"ended while starting \(exit code 1\); its log: .*NoSuchKey"):
        Lab.up(lab_dir, nodes=1, gpus=1)
    assert_nothing_left(lab_dir)


def test_nodes_that_do_not_become_idle_in_time(lab_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons, "node_names", lambda nodes: ("n0",))  # n1 is never started
    with pytest.raises(SlurmError, match=r"not all 2 nodes became idle in time \(1 idle, 1 .*slurmctld's log: "):
        Lab.up(lab_dir, nodes=2, gpus=1, wait_s=3.0)
    assert_nothing_left(lab_dir)


# -- who runs it --------------------------------------------------------------------------


@pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root to become another user; all other tests then run unprivileged"
)
def test_an_ordinary_user_without_a_home(lab_dir: str) -> None:
    uid, gid = pwd.getpwnam(USER)[2:4]
    os.chown(os.path.dirname(lab_dir), uid, gid)
    with tempfile.TemporaryDirectory(prefix="palp") as folder:
        os.chmod(folder, 0o755)
        python = open_python(folder, uid, gid)
        pal_lab = shlex.join([python.program, *PAL_LAB[1:]])
        script = f"""
set -e
{pal_lab} up --dir {lab_dir} --nodes 2 >&2
eval "$({pal_lab} env --dir {lab_dir})"
srun -Q -N2 --gres=gpu:1 {pal_lab} work --class B --seconds 0 --json | head -n 1
id -un
{pal_lab} down --dir {lab_dir} >&2
"""
        done = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, check=False, user=uid, group=gid, extra_groups=[],
            env={"PATH": "/usr/bin:/bin"} | python.env, cwd="/",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record, name = done.stdout.splitlines()
    assert sorted(json.loads(record)["gpus"]) == ["n0", "n1"]
    assert name != "root"
    assert_nothing_left(lab_dir)
