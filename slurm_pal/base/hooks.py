# SPDX-License-Identifier: MIT
"""Programs of the site that are told what has happened ([hooks] of pal.toml): for mail, chat, tickets.

A hook runs as the user of the program that calls it, with its name as the only argument and one JSON object on
standard input. It can change nothing of ours: nobody waits for it before the work goes on, it ends after a minute
at the latest, and what goes wrong is one line on stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping

from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, one_line
from slurm_pal.base.files import open_trusted

SCHEMA = "pal.hook/1"
ON_SWEEP, ON_OUTLIER, ON_MOVE = "on_sweep", "on_outlier", "on_move"
LIMIT_S = 60
MOST_AT_ONCE = 8
_PASSED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "SLURM_CONF", "TZ", "USER")
_running: list[tuple[str, subprocess.Popen[bytes]]] = []


def call(config: Config, name: str, details: Mapping[str, object], now_s: float) -> None:
    """Start the site's program for `name`, if there is one. Never raises, and does not wait."""
    path = config.text("hooks", name)
    if not path:
        return
    _reap(0.0)
    if len(_running) >= MOST_AT_ONCE:
        _say(f"hooks.{name} was not run: {MOST_AT_ONCE} hooks run already")
        return
    try:
        if config.origin("hooks", name).startswith("$"):
            raise DataError("hooks are believed from pal.toml only")
        _check(path)
        body = json.dumps({"schema": SCHEMA, "hook": name, "at_s": round(now_s, 3), **details}, default=str)
        environment = {key: os.environ[key] for key in _PASSED if key in os.environ} | {"PATH": "/usr/bin:/bin"}
        with os.fdopen(os.memfd_create("pal-hook"), "w+b") as text:  # a file, which nobody has to remove
            text.write(body.encode() + b"\n")
            text.seek(0)
            argv = ["/usr/bin/timeout", "-k", "5", str(LIMIT_S), path, name]
            child = subprocess.Popen(
                argv, stdin=text, stdout=subprocess.DEVNULL, env=environment, cwd="/", start_new_session=True
            )
    except (OSError, DataError) as error:
        _say(f"hooks.{name} was not run: {path}: {error.strerror if isinstance(error, OSError) else one_line(error)}")
        return
    _running.append((name, child))


def wait() -> None:
    """Until all hooks have ended, for programs that end themselves: a service manager would end their hooks, too."""
    _reap(LIMIT_S + 10.0)


def _check(path: str) -> None:
    """Raises DataError or OSError for what is no program, or whose text others can change."""
    if not os.path.isabs(path):
        raise DataError("a hook needs a whole path, from / on")
    os.close(open_trusted(path))
    if not os.access(path, os.X_OK):
        raise DataError(f"cannot be executed: chmod +x {path}")


def _reap(seconds: float) -> None:
    """Forget the hooks that have ended by then, with a line for each that has failed."""
    deadline_s = time.monotonic() + seconds
    for name, child in [*_running]:
        try:
            code = child.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            continue
        _running.remove((name, child))
        if code:
            what = f"was ended after {LIMIT_S} s" if code == 124 else f"ended with exit status {code}"
            _say(f"hooks.{name} {what}")


def _say(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr was closed: nobody reads it
        print(f"slurm-pal: {line}", file=sys.stderr, flush=True)
