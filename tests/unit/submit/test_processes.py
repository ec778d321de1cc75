# SPDX-License-Identifier: MIT
"""How long palsub waits for Slurm's commands: not at all where nobody listens, and as set where somebody does."""

from __future__ import annotations

import fcntl
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from slurm_pal.base.errors import SlurmError
from slurm_pal.submit.processes import REACH_S, runner

LONG_S = 60.0
"""No test waits so long unless what it tests is broken."""
TALK = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as channel:
    print(channel.recv(100).decode())
"""


def test_a_command_that_waits_to_try_again_is_not_waited_for() -> None:
    """As Slurm's do for nine seconds when slurmctld's port is closed."""
    with pytest.raises(SlurmError, match="sleep cannot reach it"):
        runner(LONG_S)(["sleep", "1000"], "")
    with pytest.raises(SlurmError, match="sh cannot reach it"):  # scontrol prints its prompt first
        runner(LONG_S)(["sh", "-c", "printf 'scontrol: '; exec sleep 1000"], "")


def test_a_host_that_drops_what_is_sent_is_not_waited_for() -> None:
    """A connection that stays half open: the listener's queue is full."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for other in (first, second):
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        script = (
            "import select, socket, sys; s = socket.socket(); s.setblocking(False); "
            "s.connect_ex(('127.0.0.1', int(sys.argv[1]))); p = select.poll(); p.register(s, select.POLLOUT); p.poll()"
        )
        with pytest.raises(SlurmError, match="cannot reach it"):
            runner(LONG_S)([sys.executable, "-IS", "-c", script, str(listener.getsockname()[1])], "")


def test_a_slow_answer_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            channel, _ = server.accept()
            with channel:
                time.sleep(5 * REACH_S)
                channel.sendall(b"late")

        slow = threading.Thread(target=answer)
        slow.start()
        done = runner(LONG_S)([sys.executable, "-IS", "-c", TALK, str(server.getsockname()[1])], "")
        slow.join()
    assert done.stdout == "late\n"


def test_a_time_out_ends_what_is_connected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(SlurmError, match="took too long"):
        runner(4 * REACH_S)([sys.executable, "-IS", "-c", TALK, str(server.getsockname()[1])], "")


def test_a_command_that_works_or_waits_for_a_lock_is_waited_for(tmp_path: Path) -> None:
    count = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done; echo done"
    assert runner(LONG_S)(["sh", "-c", count], "").stdout == "done\n"
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        release = threading.Timer(5 * REACH_S, fcntl.flock, (lock, fcntl.LOCK_UN))
        release.start()
        assert runner(LONG_S)(["flock", str(tmp_path / "lock"), "echo", "mine"], "").stdout == "mine\n"
        release.join()
