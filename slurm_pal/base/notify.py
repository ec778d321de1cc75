# SPDX-License-Identifier: MIT
"""Words to the service manager that started us (sd_notify(3)); without one they go nowhere."""

from __future__ import annotations

import os

READY, ALIVE, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"


def notify(*words: str) -> None:
    """Notify systemd, as `READY=1`, `WATCHDOG=1` or `STATUS=text`. Never raises, and never waits."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    import socket

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            name = "\0" + address[1:] if address[0] == "@" else address
            channel.sendto("\n".join(words).encode(errors="replace"), socket.MSG_DONTWAIT, name)
    except OSError:
        return
