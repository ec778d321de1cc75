# SPDX-License-Identifier: MIT
"""Words to the service manager, heard by real datagram sockets."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_pal.base.notify import ALIVE, READY, STOPPING, notify

ROOT = Path(__file__).parents[3]


def manager(name: str | bytes) -> socket.socket:
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.bind(name)
    heard.setblocking(False)
    return heard


def abstract() -> str:
    return f"@pal/{secrets.token_hex(8)}"


def test_a_path_and_an_abstract_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (str(tmp_path / "notify"), abstract()):
        with manager(address.replace("@", "\0", 1) if address[0] == "@" else address) as heard:
            monkeypatch.setenv("NOTIFY_SOCKET", address)
            notify(READY, "STATUS=two words")
            notify(ALIVE)
            notify(STOPPING)
            assert [heard.recv(100) for _ in range(3)] == [b"READY=1\nSTATUS=two words", b"WATCHDOG=1", b"STOPPING=1"]


def test_nobody_is_told_where_nobody_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with manager("here") as heard:
        for address in (None, "", "here", "./here", "vsock:2:1234"):
            monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
            if address is not None:
                monkeypatch.setenv("NOTIFY_SOCKET", address)
            notify(READY)
            with pytest.raises(BlockingIOError):
                heard.recv(100)


def test_it_never_raises_and_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (str(tmp_path / "none"), f"/{'x' * 200}", f"@{'x' * 200}", "@", "/", abstract()):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify(READY)
    with manager(str(tmp_path / "full")) as heard:
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "full"))
        for _ in range(2000):  # more than a manager that does not read may keep
            notify(ALIVE)
        assert heard.recv(100) == b"WATCHDOG=1"
        notify("STATUS=\udce4 is no UTF-8")


def test_no_file_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with manager(str(tmp_path / "notify")):
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        before = os.listdir("/proc/self/fd")
        notify(READY)
        assert os.listdir("/proc/self/fd") == before


def test_words_of_a_process_come_with_its_own_id() -> None:
    """Units have NotifyAccess=main: systemd believes the main process alone."""
    address = abstract()
    with manager(address.replace("@", "\0", 1)) as heard:
        heard.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        run = "from slurm_pal.base.notify import READY, notify; import os; notify(READY); print(os.getpid())"
        done = subprocess.run(
            [sys.executable, "-P", "-c", run],
            env={"NOTIFY_SOCKET": address},
            capture_output=True,
            text=True,
            check=True,
        )
        said, [(_, _, sender)], *_ = heard.recvmsg(100, socket.CMSG_SPACE(12))
        assert said == b"READY=1" and int.from_bytes(sender[:4], sys.byteorder) == int(done.stdout)


def test_each_service_that_stays_is_told_to_notify() -> None:
    for path in (ROOT / "etc" / "systemd").glob("*.service"):
        text = path.read_text()
        stays = bool(re.search(r"^ExecStart=.* --(?:daemon|every|guard)\b", text, re.MULTILINE))
        assert ("Type=notify\nNotifyAccess=main\n" in text) is stays, path
        assert bool(re.search(r"^WatchdogSec=\d+s$", text, re.MULTILINE)) is stays, path
