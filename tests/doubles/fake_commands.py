# SPDX-License-Identifier: MIT
"""The commands of `slurm_pal.slurm.fake` without processes: each would be a Python of its own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence

import pytest

from slurm_pal.slurm import fake
from slurm_pal.slurm.cli import Processes
from slurm_pal.slurm.client import Completed

_SHIM = re.compile(r"shim\('([a-z]+)', '([^']+)'\)")


def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what `write_shims` put on PATH answer in this process; other commands are started as ever."""
    call, start = Processes.__call__, Processes.start

    def called(self: Processes, argv: Sequence[str], stdin: str) -> Completed:
        state = _state_of(argv[0])
        return fake.answer(state, argv, lambda: stdin) if state else call(self, argv, stdin)

    def started(self: Processes, argv: Sequence[str], stdin: str) -> Callable[[], Completed]:
        if not _state_of(argv[0]):
            return start(self, argv, stdin)
        done = called(self, argv, stdin)
        return lambda: done

    monkeypatch.setattr(Processes, "__call__", called)
    monkeypatch.setattr(Processes, "start", started)


def _state_of(command: str) -> str:
    """The state file that a command on PATH works on; "" for one that is no shim."""
    path = shutil.which(command)
    if path is None:
        return ""
    with open(path, "rb") as program:
        found = _SHIM.search(program.read(1000).decode(errors="replace"))
    return found[2] if found else ""
