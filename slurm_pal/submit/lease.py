# SPDX-License-Identifier: MIT
"""Leases: hard words on a pending job that somebody must take back.

Two clearers. The **watcher** of the user reads lease files in his state folder. A
**daemon** that says in its heartbeat that it clears leases finds them on the jobs
themselves: palsub then adds a comment, `pal:lease=<seconds>;req=...;exc=...;act=...;set=...`,
where `req` and `exc` are the lists the user asked for, to be put back, and `set` is ours.
"""

from __future__ import annotations

import contextlib
import json
import os

from slurm_pal.errors import DataError
from slurm_pal.files import SMALL_BYTES, read_plain, read_trusted, write_atomic
from slurm_pal.light import Any, NamedTuple
from slurm_pal.numbers import digits
from slurm_pal.slurm.parse import LEASE_MARK
from slurm_pal.submit import state

SCHEMA = "pal.lease/1"
HEARTBEAT_SCHEMA = "pal.heartbeat/1"
BEATS = 3.0
"""A heartbeat is believed for so many of its own intervals."""
CLOCK_SKEW_S = 5.0
"""A heartbeat may be this far in the future: login nodes and controller have clocks of their own."""

_NOT_OURS = ("JobHeld", "job requeued in held", "launch failed requeued held", "Dependency", "BeginTime")
_NEVER = ("ReqNodeNotAvail", "BadConstraints", "PartitionNodeLimit")


class Lease(NamedTuple):
    """One job whose node lists end at `until_s` (Unix seconds)."""

    job_id: int
    made_s: float
    until_s: float
    pass_s: float  # grace for a job that Slurm has not looked at yet
    last_s: float  # after this it is taken back whatever the reason
    pinned: str = ""  # our --nodelist, "" when we set none
    excluded: str = ""  # our --exclude, "" when we set none
    user_req: str = ""  # what the user asked for, put back
    user_exc: str = ""


def verdict(reason: str, made_s: float, until_s: float, pass_s: float, now_s: float) -> str:
    """Whether a pending job's lease is over: "wait" or "clear". Pure.

    `reason` is squeue's or scontrol's word for why the job waits. A held job, or one that
    waits for another job or for a time, is left alone; one that its lists may keep from
    starting for ever gets one scheduling pass of `pass_s`, and so does a job that Slurm has
    not looked at yet.
    """
    reason = reason.lstrip("(").replace("_", " ")
    if reason.startswith(_NOT_OURS):
        return "wait"
    if reason.startswith(_NEVER):
        return "clear" if now_s >= made_s + pass_s else "wait"
    grace_s = pass_s if reason in ("", "None") else 0.0
    return "clear" if now_s >= until_s + grace_s else "wait"


def beat(snapshot_path: str, at_s: float, every_s: float) -> None:
    """Say that a daemon lives that clears leases, and says so every `every_s`. Raises OSError when that fails."""
    text = json.dumps({"schema": HEARTBEAT_SCHEMA, "at_s": at_s, "every_s": every_s, "clears_leases": True})
    write_atomic(snapshot_path + ".heartbeat", text + "\n", 0o644)


def end_heartbeat(snapshot_path: str) -> None:
    """The daemon goes: from now on nobody clears leases."""
    drop(snapshot_path + ".heartbeat")


def heartbeat_fresh(snapshot_path: str, now_s: float, max_age_s: float) -> bool:
    """Whether a daemon lives that clears leases; a beat from the future (clock set back) does not count.

    It may miss two of its beats, and is believed for `max_age_s` at most.
    """
    try:
        beat = json.loads(read_trusted(snapshot_path + ".heartbeat", SMALL_BYTES))
        if beat.get("schema") != HEARTBEAT_SCHEMA or beat.get("clears_leases") is not True:
            return False
        age_s = min(max_age_s, BEATS * float(beat.get("every_s", max_age_s)))
        return -CLOCK_SKEW_S <= now_s - float(beat["at_s"]) <= age_s
    except (OSError, DataError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


def comment(lease_s: float, user_req: str, user_exc: str, action: str, ours: str) -> str:
    """The mark by which a daemon knows a lease on a job: the user's lists, what was done, and the list we set."""
    return f"{LEASE_MARK}{lease_s:.0f};req={user_req};exc={user_exc};act={action};set={ours}"


def prepare(lease: Lease, cluster: str) -> str:
    """Write a lease before its job exists, so that a full disk shows now; return the file's path.

    Raises OSError when it cannot be written: then no node list may be used.
    """
    # The pid tells the watcher whether we live; in containers, and on other hosts, it may be another palsub's too.
    path = os.path.join(state.folder("leases", cluster), f"new-{os.getpid()}-{os.urandom(4).hex()}.json")
    write_atomic(path, _encode(lease), 0o600)
    return path


def confirm(prepared: str, lease: Lease) -> str:
    """The job exists: turn its prepared file into the lease. Raises OSError."""
    path = os.path.join(os.path.dirname(prepared), f"{lease.job_id}.json")
    write_atomic(path, _encode(lease), 0o600)
    drop(prepared)
    return path


def drop(path: str) -> None:
    """Remove a file of ours; that it is not there is well."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _encode(lease: Lease) -> str:
    return json.dumps({"schema": SCHEMA, **lease._asdict()}) + "\n"


def read_all(folder: str) -> dict[str, Lease]:
    """path -> lease of all leases with a job; files that make no sense are removed.

    Raises OSError when the folder cannot be listed.
    """
    found: dict[str, Lease] = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.endswith(".json") or digits(name[:-5]) is None:
            continue
        try:
            found[path] = _decode(json.loads(read_plain(path)))
        except FileNotFoundError:
            continue
        except (OSError, DataError, ValueError, TypeError, KeyError, RecursionError):
            drop(path)
    return found


def _decode(table: dict[str, Any]) -> Lease:
    if table.pop("schema") != SCHEMA:
        raise ValueError("another schema")
    numbers = {key: float(table[key]) for key in ("made_s", "until_s", "pass_s", "last_s")}
    texts = {key: str(table[key]) for key in ("pinned", "excluded", "user_req", "user_exc")}
    if not all(text.isprintable() and " " not in text for text in texts.values()):
        raise ValueError("a node list holds a blank")
    return Lease(job_id=int(table["job_id"]), **numbers, **texts)  # type: ignore[arg-type]
