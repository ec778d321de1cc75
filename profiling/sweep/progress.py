# SPDX-License-Identifier: MIT
"""How a running sweep is shown: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple

from slurm_pal.base.terminal import visible
from slurm_pal.profiling.sweep.sweep_state import DONE, OVER, SUBMITTED, NodeState, Pause, SweepDirectory

PACE_S = 4 * 3600.0
"""The time that is left is estimated from the nodes of this long; a node takes minutes."""


class Display(NamedTuple):
    """Where a sweep reports its course."""

    node: Callable[[str, NodeState], None]
    pause: Callable[[Pause | None], None]
    note: Callable[[str], None]


def describe(node: str, state: NodeState) -> str:
    """One line about one node."""
    job = f" (job {state.job_id})" if state.state == SUBMITTED else ""
    gpus = f", {state.gpus} GPUs" if state.gpus else ""
    why = f": {state.reason}" if state.reason else ""
    return f"{node} {state.state}{job}{gpus}{why}"


def describe_pause(pause: Pause | None) -> str:
    """One line about a pause, or about its end."""
    if pause is None:
        return "going on"
    until = f", until {time.strftime('%Y-%m-%d %H:%M', time.localtime(pause.until_s))}" if pause.until_s else ""
    return f"paused ({pause.why}{until})"


@contextlib.contextmanager
def shown(sweep: SweepDirectory, quiet: bool = False) -> Iterator[Display]:
    """Show a sweep for the length of the block, on stderr."""
    if quiet:
        yield Display(lambda node, state: None, lambda pause: None, lambda text: None)
    elif _on_terminal():
        with _bar(sweep) as display:
            yield display
    else:
        yield Display(
            lambda node, state: _line(describe(node, state)), lambda pause: _line(describe_pause(pause)), _line
        )


def _line(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal or the reader of the pipe may be gone; the sweep goes on
        print(visible(text), file=sys.stderr, flush=True)


def _on_terminal() -> bool:
    return sys.stderr.isatty()


@contextlib.contextmanager
def _bar(sweep: SweepDirectory) -> Iterator[Display]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("nodes, {task.fields[active]} active"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=False, speed_estimate_period=PACE_S) as progress:
        over = sum(1 for s in sweep.nodes.values() if s.state in OVER)
        task = progress.add_task("measuring", total=len(sweep.nodes), completed=over, active=0)

        def report(node: str, state: NodeState) -> None:
            counts = sweep.counts()
            progress.update(task, completed=sum(counts[s] for s in OVER), active=counts[SUBMITTED])
            if state.state in OVER and state.state != DONE:
                progress.console.print(escape(visible(describe(node, state))), highlight=False)

        def pause(pause: Pause | None) -> None:
            progress.update(task, description=escape(visible(describe_pause(pause))) if pause else "measuring")

        yield Display(report, pause, lambda text: progress.console.print(escape(visible(text)), highlight=False))


@contextlib.contextmanager
def stoppable(stop: threading.Event) -> Iterator[list[int]]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into `stop`; a second one interrupts at once.

    An ignored signal stays ignored, as nohup(1) requires. Yields the list of signals received.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt
        stop.set()
        _line("\nstopping: pending jobs are withdrawn, running ones go on")

    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    old = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
