# SPDX-License-Identifier: MIT
"""The first use of a fresh installation: docs/admin.md's lines "by hand" on a lab that nobody prepared, and what a user
then sees.

`tests/bench/first_use.py` types them as they stand, in namespaces of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.lab.lab import Lab

from . import queue_of

pytestmark = pytest.mark.real_slurm
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TIMEOUT_S = 240.0
JOBS = (
    "--pal-class=A --gres=gpu:1", "--gres=gpu:2", "--pal-class=C --gpus=1", "--pal-class=B --gpus-per-node=4",
    "--pal-class=A --gres=gpu:1", "--gres=gpu:1", "--pal-class=A --gpus=2 -N1", "--pal-class=C --gres=gpu:1",
)  # fmt: skip


class Site:
    """A lab without a pal.toml, and a user's shell."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.lab, self.home = lab, home
        self.state = Path(lab.directory.path) / "pal"
        Path(lab.directory.pal_toml).unlink()
        own = {"HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"}
        self.env = {k: v for k, v in lab.environ().items() if k not in ("SLURM_PAL_CONFIG", "XDG_STATE_HOME")} | own

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line], env=self.env, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip

    def typed(self) -> list[str]:
        """The page's lines, with the paths and the account of this lab; the package is installed already."""
        text = (ROOT / "docs/admin.md").read_text().partition("\n## By hand")[2]
        block = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
        assert block
        first, *lines = block[1].splitlines()
        assert first.startswith("python3 -m venv /opt/slurm-pal && ")
        here = {
            "/opt/slurm-pal/bin": str(BIN), "sudo -u slurm ": "", "-o slurm ": "",
            "/var/lib/slurm-pal": str(self.state), "/etc/slurm": os.path.dirname(self.lab.directory.conf),
        }  # fmt: skip
        for there, place in here.items():
            lines = [line.replace(there, place) for line in lines]
        return lines


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    from .conftest import short_directory, skip_without_slurm

    skip_without_slurm()
    with short_directory() as path, Lab.up(path, nodes=4, gpus=4, seed=1) as running:
        yield Site(running, tmp_path_factory.mktemp("home"))


def test_installed_by_hand_palsub_places_jobs(site: Site) -> None:
    """Without a daemon, class features or a setting."""
    for line in site.typed():
        done = site.run(line)
        if "etc/pal.toml" in line:  # "set where the spool and the snapshot are"
            settings = Path(site.lab.directory.pal_toml)
            hook = site.home / "hook"
            hook.write_text(f"#!/bin/sh\ncat > {site.home}/$1.json\n")
            hook.chmod(0o755)
            text = settings.read_text().replace("[paths]\n", f'[paths]\nstate_dir = "{site.state}"\n')
            for name in ("on_sweep", "on_outlier"):
                text = text.replace(f'# {name} = "/usr/local/sbin/pal-mail"', f'{name} = "{hook}"')
            settings.write_text(text)
        expected = 1 if "pal doctor" in line else 0  # it says that no GPU was measured yet
        assert done.returncode == expected, (line, done.stdout, done.stderr)
    assert not list(site.state.glob("*.heartbeat"))
    swept = json.loads((site.home / "on_sweep.json").read_text())
    assert swept["hook"] == "on_sweep" and swept["counts"] == {"done": 4} and swept["published_gpus"] == 16
    slow = json.loads((site.home / "on_outlier.json").read_text())
    assert slow["outliers"] == swept["outliers"] != []
    (site.home / "on_outlier.json").unlink()
    assert site.run(f"{BIN}/pal-profile publish-scores").returncode == 0
    assert not (site.home / "on_outlier.json").exists()  # they are known by now
    healthy = site.run(f"{BIN}/pal doctor --json")
    assert healthy.returncode == 0, healthy.stdout
    found = {f["topic"]: f["text"] for f in json.loads(healthy.stdout)["findings"]}
    assert found["palsub"] == "sends jobs to chosen nodes; its own watcher takes its node lists back"
    placed = []
    for words in JOBS:
        done = site.run(f"palsub --parsable -o /dev/null -t 5 {words} --wrap 'sleep 2'")
        assert done.returncode == 0 and done.stderr == "", done.stderr
        (record,) = site.home.rglob(f"decisions/*/{done.stdout.strip()}.json")
        placed.append(json.loads(record.read_text())["action"])
    assert placed.count("nodelist") >= len(JOBS) // 2, placed
    body = json.loads(site.run(f"{BIN}/pal doctor --json").stdout)
    assert body["placing"] is True and body["placed"]["jobs"] == len(JOBS)
    assert body["placed"]["chosen"] == placed.count("nodelist"), placed
    monitored = site.run(f"{BIN}/pal doctor --nagios")
    assert monitored.returncode == 0 and f"jobs={len(JOBS)} chosen=" in monitored.stdout


def test_top_on_a_terminal(site: Site) -> None:
    """It is renewed until Ctrl-C, and then the terminal is as it was."""
    job = site.run("palsub --parsable -J seen -o /dev/null -t 5 --gres=gpu:1 --wrap 'sleep 60'").stdout.strip()
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    argv = [f"{BIN}/pal", "top", "--every", "5"]
    env = site.env | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    shown = subprocess.Popen(argv, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    text, deadline_s = b"", time.monotonic() + TIMEOUT_S
    try:
        while text.count(b"Ctrl-C ends") < 2 or b"seen" not in text.rpartition(b"JOBID")[2]:
            assert time.monotonic() < deadline_s, text.decode("utf-8", "replace")
            if select.select([master], [], [], 1.0)[0]:
                text += os.read(master, 65536)
        shown.send_signal(signal.SIGINT)
        while select.select([master], [], [], 5.0)[0]:
            try:
                text += os.read(master, 65536)
            except OSError:  # nobody has the other end any more
                break
        assert shown.wait(TIMEOUT_S) == 0
    finally:
        shown.kill()
        os.close(master)
        site.run(f"scancel {job}")
    assert text.startswith(b"\x1b[?1049h") and b"\x1b[?1049l" in text  # the other screen, and back
    assert b"GPUs in use" in text and b"Traceback" not in text


def test_doctor_says_when_palsub_can_do_nothing(site: Site) -> None:
    done = site.run(f"SLURM_PAL_SUBMIT_WATCH=never {BIN}/pal doctor")
    assert done.returncode == 1 and "every palsub is plain sbatch" in done.stdout.splitlines()[0], done.stdout


def test_a_task_of_an_array_is_explained(site: Site) -> None:
    array = site.run("palsub --parsable -o /dev/null -t 5 --gres=gpu:1 --array=1-9 --wrap 'sleep 30'").stdout.strip()
    alone = site.run("palsub --parsable -o /dev/null -t 5 --gres=gpu:1 --wrap 'sleep 1'").stdout.strip()
    deadline_s = time.monotonic() + 30
    while f"{array}_1 R" not in site.run("squeue -h -r -o '%i %t'").stdout:
        assert time.monotonic() < deadline_s
        time.sleep(queue_of.LOOK_S)
    for task in (1, 2, 9):
        body = json.loads(site.run(f"pal explain {array}_{task} --json").stdout)
        assert body["array"] == {"job_id": int(array), "task": task}
        assert body["decision"]["job_id"] == int(array) and body["actual"]["state"] in ("RUNNING", "PENDING")
        known = site.run(f"squeue -h -t all -j {array}_{task} -o %A").stdout.split()
        assert body["job_id"] == int(known[0])
    own = json.loads(site.run(f"pal explain {known[0]} --json").stdout)  # by the id that the task has itself
    assert own["decision"]["job_id"] == int(array)
    assert f"job {array}_99 is unknown" in site.run(f"pal explain {array}_99").stderr or (
        "has no such task" in site.run(f"pal explain {array}_99").stdout
    )
    assert f"job {alone} is no array" in site.run(f"pal explain {alone}_2").stderr
    site.run(f"scancel {array} {alone}")


def test_after_its_end_a_jobs_gpus_are_known(site: Site) -> None:
    """The watcher has noted them while the job ran."""
    deadline_s = time.monotonic() + 60
    while site.run("squeue -h").stdout.strip():
        assert time.monotonic() < deadline_s
        time.sleep(0.5)
    end = f"{site.home}/end"
    job = f"until [ -e {end} ]; do sleep 1; done"
    words = f"palsub --parsable -o /dev/null -t 5 --pal-class=A --gres=gpu:2 --wrap '{job}'"
    number = site.run(f"SLURM_PAL_SUBMIT_LEASE_PASS_S=1 {words}").stdout.strip()
    while not json.loads(site.run("pal explain --last --json").stdout)["decision"].get("started"):
        assert time.monotonic() < deadline_s
        time.sleep(0.5)
    site.run(f"touch {end}")
    while site.run(f"squeue -h -t all -j {number} -o %T").stdout.strip() not in ("COMPLETED", ""):
        assert time.monotonic() < deadline_s
        time.sleep(0.5)
    body = json.loads(site.run("pal explain --last --json").stdout)
    assert body["job_id"] == int(number) and body["actual"]["noted_s"]
    assert len(body["actual"]["gpus"]) == 2
    text = site.run("pal explain --last").stdout
    assert "You got " in text and "It started at " in text


def test_a_gpu_is_named_as_it_is_printed(site: Site) -> None:
    for command in ("pal-profile show n1:0", "pal report --gpu n1:0", f"pal evidence n1:0 -o {site.home}/e.tar.gz"):
        done = site.run(command)
        assert done.returncode == 0, (command, done.stderr)
