# SPDX-License-Identifier: MIT
"""The processes that `up` starts, what their logs say, and commands of Slurm asked in a lab."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.errors import SlurmError
from slurm_pal.lab.directory import LabDirectory
from slurm_pal.lab.processes import Process, identify
from slurm_pal.lab.programs import bare_environment

_COMPLAINT = re.compile("fatal|error|unable|cannot|failed", re.IGNORECASE)
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

    def spawn(self, name: str, argv: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """Start one daemon in its foreground form, in its own session, out of reach of our signals."""
        with open(self._directory("log", f"{name}.out"), "ab") as output:
            self._children[name] = _Detached(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._directory("log"),  # where a core file would go
                env=self._environment | dict(variables or {}),
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
