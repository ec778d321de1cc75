# SPDX-License-Identifier: MIT
"""Starting a lab's daemons, all slurmds at once, and waiting until every node is idle."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.files import write_atomic
from slurm_pal.base.numbers import digits
from slurm_pal.lab.conf import LabSpec, config_files, node_names
from slurm_pal.lab.directory import LabDirectory
from slurm_pal.lab.ports import is_listening
from slurm_pal.lab.processes import Process, identify, write_pids
from slurm_pal.lab.programs import bare_environment

_MUNGE_WAIT_S = 10.0
_POLL_S = 0.05
_COMPLAINT = re.compile("fatal|error|unable|cannot|failed", re.IGNORECASE)
NODE_STATES = ("-h", "-p", "gpu", "-o", "%D %T")
_PORT_TAKEN = "Address already in use"


class PortTaken(Exception):
    """A daemon found its port taken: try another block of ports."""


class _Detached(subprocess.Popen[bytes]):
    """A child that is to outlive us; Popen would warn about that."""

    def __del__(self) -> None:
        pass


class Crew:
    """The daemons started by this program, in order of their start."""

    def __init__(self, directory: LabDirectory) -> None:
        self._directory = directory
        self._children: dict[str, _Detached] = {}
        self._environment = bare_environment() | {"SLURM_CONF": directory.conf}

    def spawn(self, name: str, argv: Sequence[str]) -> None:
        """Start one daemon in its foreground form, in its own session, out of reach of our signals."""
        with open(self._directory("log", f"{name}.out"), "ab") as output:
            self._children[name] = _Detached(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._directory("log"),  # where a core file would go
                env=self._environment,
                start_new_session=True,
            )

    def processes(self) -> list[Process]:
        """The daemons that are alive."""
        found = (identify(name, child.pid) for name, child in self._children.items() if child.poll() is None)
        return [process for process in found if process is not None]

    def reap(self) -> None:
        for child in self._children.values():
            child.poll()

    def check(self) -> None:
        """Raises PortTaken or SlurmError if a daemon has ended."""
        for name, child in self._children.items():
            if child.poll() is not None:
                lines = self._log_lines(name)
                if any(_PORT_TAKEN in line for line in lines):
                    raise PortTaken(name)
                code = child.returncode
                raise SlurmError(f"{name} ended while starting (exit code {code}); its log: {complaints(lines)}")

    def log_end(self, name: str) -> str:
        return complaints(self._log_lines(name))

    def _log_lines(self, name: str) -> list[str]:
        lines: list[str] = []
        for path in (self._directory.log(name), self._directory("log", f"{name}.out")):
            with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
                lines += stream.read()[-20000:].splitlines()
        return [line.strip() for line in lines if line.strip()]


def complaints(lines: Sequence[str], count: int = 3) -> str:
    """The last few different complaints of a log, or its last lines if it has none, in one line."""
    # Slurm puts a time stamp before the lines of its log, and none on stderr.
    texts = list(dict.fromkeys(re.sub(r"^\[[^\]]*\]\s*", "", line) for line in lines))
    loud = [text for text in texts if _COMPLAINT.search(text)]
    return " | ".join((loud or texts)[-count:]) or "(empty)"


def start(spec: LabSpec, programs: dict[str, str], crew: Crew, deadline_s: float) -> None:
    """Write the configuration, start everything and wait until all nodes are idle.

    `deadline_s` is on time.monotonic's scale. Raises PortTaken, or SlurmError if a daemon
    ends or time runs out; in both cases what was started keeps running.
    """
    d = spec.directory
    for name, text in config_files(spec).items():
        write_atomic(d("etc", name), text)
    key = d("etc", "munge.key")
    write_atomic(key, os.urandom(128), 0o400)
    crew.spawn("munged", munged_argv(programs["munged"], d))
    _wait_for_munge(d, crew, min(deadline_s, time.monotonic() + _MUNGE_WAIT_S))
    crew.spawn("slurmctld", [programs["slurmctld"], "-D", "-f", d.conf])
    write_pids(d.pids, crew.processes())
    # slurmds and clients that find nobody listening try again only after a second: wait for the port.
    while not is_listening(spec.port) and time.monotonic() < deadline_s:
        crew.check()
        time.sleep(0.01)
    for node in node_names(spec.nodes):
        crew.spawn(f"slurmd-{node}", [programs["slurmd"], "-D", "-N", node, "-f", d.conf])
    write_pids(d.pids, crew.processes())
    _wait_for_idle(spec, programs, crew, deadline_s)


def munged_argv(munged: str, d: LabDirectory) -> list[str]:
    """munged(8) with all its files in the lab's directory."""
    # --force: the directory may be below one that a group can write; that is the user's choice.
    names = {
        "--key-file": d("etc", "munge.key"),
        "--socket": d.munge_socket,
        "--pid-file": d("run", "munged.pid"),
        "--seed-file": d("run", "munged.seed"),
        "--log-file": d.log("munged"),
    }
    return [munged, "--foreground", "--force", *(word for pair in names.items() for word in pair)]


def _wait_for_munge(d: LabDirectory, crew: Crew, deadline_s: float) -> None:
    while not os.path.exists(d.munge_socket):
        crew.check()
        if time.monotonic() > deadline_s:
            raise SlurmError(f"munged made no socket in {_MUNGE_WAIT_S:g} s; its log: {crew.log_end('munged')}")
        time.sleep(0.01)


def _wait_for_idle(spec: LabSpec, programs: dict[str, str], crew: Crew, deadline_s: float) -> None:
    while True:
        crew.check()
        late = time.monotonic() > deadline_s
        answer = ask(spec.directory, [programs["sinfo"], *NODE_STATES])
        states = node_states(answer.text)
        if states.get("idle") == spec.nodes:
            return
        if late:
            seen = ", ".join(f"{count} {state}" for state, count in states.items()) or answer.complaint
            raise SlurmError(
                f"not all {spec.nodes} nodes became idle in time ({seen}); "
                f"slurmctld's log: {crew.log_end('slurmctld')}; allow more with --wait-s, or use fewer --nodes"
            )
        time.sleep(_POLL_S)


def node_states(text: str) -> dict[str, int]:
    """State -> number of nodes, from what `sinfo NODE_STATES` prints."""
    counts: dict[str, int] = {}
    for line in text.splitlines():
        count, _, state = line.partition(" ")
        if (number := digits(count)) is not None:
            counts[state] = counts.get(state, 0) + number
    return counts


class CommandAnswer(NamedTuple):
    """What a Slurm command printed; `text` is empty if it failed, and `complaint` says why."""

    text: str
    complaint: str


def ask(directory: LabDirectory, argv: Sequence[str], timeout_s: float = 10.0) -> CommandAnswer:
    """Run a Slurm command in this lab; no answer is also a CommandAnswer."""
    environment = bare_environment() | {"SLURM_CONF": directory.conf, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            list(argv), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            env=environment, timeout=timeout_s, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return CommandAnswer("", str(error))
    complaint = done.stderr.strip().splitlines()[-1:] or [f"{argv[0]} printed nothing"]
    return CommandAnswer(done.stdout if done.returncode == 0 else "", complaint[0])
