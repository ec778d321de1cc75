# SPDX-License-Identifier: MIT
"""The labs of facts.py: one after the other, since a slurmctld may die of what is written into its jobs.

Nothing here waits without end: a call to a slurmctld that is gone raises `Died` within seconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_pal.lab import conf, processes
from slurm_pal.lab.conf import LabSpec
from slurm_pal.lab.directory import LabDirectory
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.told import clean_environment

NODES, GPUS = 8, 4
FEATURES = ("fast", "ib", "a.b", "x=y", "c:d", "pal_a", "JobState=RUNNING", "fast-2")
"""Of every node. These are an administrator's words, but Slurm takes all of them."""
LICENSES = {"lic": 1000, "mat-lab": 500, "a.b": 300}
RESERVATIONS = {
    "r1": "n6", "odd name": "n6", "ü": "n7", "a=b": "n7", "x;y": "n7", "it's": "n7", '"q"': "n6", "%s": "n7",
    "[0-3]": "n7", "1r": "n6",
}  # fmt: skip
"""Name -> node. slurmctld takes any name; one with a comma cannot be asked for."""
ANSWER_S = 10.0
"""A command that takes longer has no answer."""
BATCH_S = 20.0
"""As long for all requests that the writer is given at once: each of them has a time-out in Slurm's library, too."""
_PING_S = 4.0
_PID_S = 0.2
_plain_conf = conf.slurm_conf_text


class Died(Exception):
    """slurmctld is gone, or answers no more."""


def slurm_conf_text(spec: LabSpec) -> str:
    """The lab's slurm.conf with features and licences."""
    features, licences = ",".join(FEATURES), ",".join(f"{name}:{count}" for name, count in LICENSES.items())
    gres = f" Gres=gpu:{spec.gpus} "
    return _plain_conf(spec).replace(gres, f"{gres}Feature={features} ") + f"Licenses={licences}\n"


class FactsLab:
    """One running lab with its writer. `end` leaves no process and no file of it."""

    def __init__(self, folder: str, writer: str, wait_s: float) -> None:
        """`folder` is made; `writer` is the program of facts_writer.c. Raises PalError where no lab can be started."""
        self.folder = folder
        os.mkdir(folder)
        conf.slurm_conf_text = slurm_conf_text
        try:
            self.lab = Lab.up(lab_path(folder), nodes=NODES, gpus=GPUS, seed=1, wait_s=wait_s)
        finally:
            conf.slurm_conf_text = _plain_conf
        self._daemon = next(p for p in processes.read_pids(self.lab.directory.pids) if p.name == "slurmctld")
        os.environ.update(self.lab.variables())
        self._writer = subprocess.Popen(
            [writer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=clean_environment()
        )

    def reserve(self) -> None:
        """Make the reservations."""
        for name, node in RESERVATIONS.items():
            words = [f"ReservationName={name}", "StartTime=now", "Duration=UNLIMITED", f"Nodes={node}", "Users=root"]
            done = self.run(["scontrol", "create", "reservation", *words, "Flags=overlap,ignore_jobs"])
            if done.returncode:
                self.check()
                raise RuntimeError(f"reservation {name}: {done.stderr}")

    def run(self, argv: Sequence[str], timeout_s: float = ANSWER_S) -> subprocess.CompletedProcess[str]:
        """One command; 124 and a complaint where it takes too long, and then none of its children goes on."""
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", env=clean_environment(), start_new_session=True,
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(argv, 124, "", f"{argv[0]} took too long")
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def lives(self) -> bool:
        return processes.alive(self._daemon)

    def check(self) -> None:
        """Raises Died where slurmctld is gone, or answers no ping for some seconds."""
        until_s = time.monotonic() + _PING_S
        while True:
            if not self.lives():
                raise Died("slurmctld has ended")
            if self.run(["scontrol", "ping"], _PING_S).returncode == 0:
                return
            if time.monotonic() > until_s:
                raise Died("slurmctld answers no ping")
            time.sleep(_PID_S)

    def write(self, lines: Sequence[str]) -> list[int]:
        """Send requests; the job ids of those that were taken, 0 for the others. Raises Died."""
        stdin, stdout = self._writer.stdin, self._writer.stdout
        assert stdin and stdout
        until_s, answers = time.monotonic() + BATCH_S, b""
        heard_s = time.monotonic()
        for number, line in enumerate(lines):
            # One at a time: with more than a pipe holds on the way both sides would wait for each other.
            stdin.write(f"{line}\n".encode())
            stdin.flush()
            while answers.count(b"\n") <= number:
                if select.select([stdout], [], [], _PID_S)[0]:
                    block = os.read(stdout.fileno(), 1 << 16)
                    if not block:
                        raise RuntimeError(f"the writer ended at {line[:200]}")
                    answers, heard_s = answers + block, time.monotonic()
                elif not self.lives():
                    raise Died("slurmctld has ended")
                elif time.monotonic() > until_s:
                    raise Died("slurmctld takes too long for a request")
                elif time.monotonic() > heard_s + _PING_S:
                    self.check()
        return [int(answer) for answer in answers.split()]


def lab_path(folder: str) -> str:
    return os.path.join(folder, "lab")


def compiled(folder: str) -> str:
    """The path of the writer."""
    path = os.path.join(folder, "writer")
    source = str(Path(__file__).with_name("facts_writer.c"))
    subprocess.run(["cc", "-O1", "-o", path, source, "-lslurm"], check=True, timeout=60)
    return path


def clear(folder: str) -> None:
    """End every process of the lab in this folder, whatever state it is in, and remove the folder."""
    directory = LabDirectory(lab_path(folder))
    for _ in range(5):  # one that was being started is found the next time
        # Daemons first: nothing new is started then. With none of them alive Lab.down would wait for each in turn.
        group = [*processes.find_daemons(directory), *processes.find_steps(directory), *_askers(directory)]
        if not group:
            break
        processes.stop(group, 0.0, lambda: None)
        for process in group:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
    shutil.rmtree(folder, ignore_errors=True)


def _askers(directory: LabDirectory) -> list[processes.Process]:
    """All whose environment names this lab: commands that still wait for an answer, the writer."""
    conf_word = b"SLURM_CONF=" + os.fsencode(directory.conf)
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if conf_word in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    found.append(processes.identify("command", int(name)))
    return [process for process in found if process is not None]
