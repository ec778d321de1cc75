# SPDX-License-Identifier: MIT
"""Each progress bar says how much time is left."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_pal.cli.simulate.run import bar
from slurm_pal.profiling.sweep import progress
from slurm_pal.profiling.sweep.sweep_state import DONE, SUBMITTED, NodeState, SweepDirectory

ROOT = Path(__file__).parents[3]


class Terminal(io.StringIO):
    """What a terminal was sent."""

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr  # type: ignore[return-value]


def test_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, clock = terminal(monkeypatch), [1000.0]
    monkeypatch.setattr("slurm_pal.cli.simulate.run.time.monotonic", lambda: clock[0])
    with bar(100) as watch:
        for done in (10, 20):
            clock[0] += 1.0
            watch(done)
    assert re.search(r"20/100 \d:\d\d:\d\d left (-:--:--|\d:\d\d:\d\d)", shown.text())


def test_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {f"n{k}": NodeState(SUBMITTED) for k in range(4)}

    def counts() -> dict[str, int]:
        states = [state.state for state in nodes.values()]
        return {name: states.count(name) for name in {*progress.OVER, SUBMITTED}}

    shown = terminal(monkeypatch)
    sweep: SweepDirectory = SimpleNamespace(nodes=nodes, counts=counts)  # type: ignore[assignment]
    with progress.shown(sweep) as display:
        for name in ("n0", "n1"):
            nodes[name] = NodeState(DONE)
            display.node(name, nodes[name])
    assert re.search(r"2/4 nodes, 2 active \d:\d\d:\d\d left (-:--:--|\d:\d\d:\d\d)", shown.text())


def test_no_bar_is_without_the_time_that_is_left() -> None:
    bars = [path for room in ("cli", "profiling", "slurm_pal") for path in (ROOT / room).rglob("*.py")
            if re.search(r"from rich\.progress import|progressbar\(", path.read_text())]  # fmt: skip
    assert len(bars) == 2
    assert all("TimeRemainingColumn()" in path.read_text() for path in bars)
