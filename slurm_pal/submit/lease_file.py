# SPDX-License-Identifier: MIT
"""The user's lease files, which their watcher takes back: one JSON file for each job, in their state folder."""

from __future__ import annotations

import os

from slurm_pal.base import state
from slurm_pal.base.errors import DataError
from slurm_pal.base.files import read_plain, write_atomic
from slurm_pal.base.light import Any, NamedTuple, json, suppress
from slurm_pal.base.numbers import digits

SCHEMA = "pal.lease/1"


class Lease(NamedTuple):
    """One job whose node lists end at `until_s` (Unix seconds)."""

    job_id: int
    made_s: float
    until_s: float
    pass_s: float  # grace for a job that Slurm has not considered yet
    last_s: float  # after this it is taken back in any case
    pinned: str = ""  # our --nodelist, "" when we set none
    excluded: str = ""  # our --exclude, "" when we set none
    user_req: str = ""  # what the user asked for, put back
    user_exc: str = ""
    avoid_until_s: float = 0.0  # beside a node list: when the exclusion ends; 0.0: with it
    started: bool = False  # the job has run: a requeue would bring our lists back into force


def prepare(lease: Lease, cluster: str) -> str:
    """Write a lease before its job exists, so that a full disk is noticed now; return the file's path.

    Raises OSError if it cannot be written: then no node list may be used.
    """
    # The pid shows the watcher whether we are alive; in containers, or from other hosts, another palsub may have it.
    path = os.path.join(state.folder("leases", cluster), f"new-{os.getpid()}-{os.urandom(4).hex()}.json")
    write_atomic(path, _encode(lease), 0o600, durable=False)  # nobody reads it after a power failure
    return path


def confirm(prepared: str, lease: Lease) -> str:
    """The job exists: turn its prepared file into the lease. Raises OSError."""
    path = os.path.join(os.path.dirname(prepared), f"{lease.job_id}.json")
    write_atomic(path, _encode(lease), 0o600)
    drop(prepared)
    return path


def has_started(path: str, lease: Lease) -> None:
    """Keep the lease of a job that runs. Raises OSError."""
    write_atomic(path, _encode(lease._replace(started=True)), 0o600)


def without_pin(path: str, lease: Lease) -> None:
    """The node list has ended and the exclusion stays for its own time. Raises OSError."""
    write_atomic(path, _encode(lease._replace(pinned="", until_s=lease.avoid_until_s, avoid_until_s=0.0)), 0o600)


def drop(path: str) -> None:
    """Remove one of our files; it may already be gone."""
    with suppress(OSError):
        os.unlink(path)


def _encode(lease: Lease) -> str:
    return json.dumps({"schema": SCHEMA, **lease._asdict()}) + "\n"


def read_all(folder: str) -> dict[str, Lease]:
    """path -> lease, for all leases with a job; files that make no sense are removed.

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
    texts["started"] = table.get("started") is True  # type: ignore[assignment]  # files of older releases have none
    numbers["avoid_until_s"] = float(table.get("avoid_until_s", 0.0))
    return Lease(job_id=int(table["job_id"]), **numbers, **texts)  # type: ignore[arg-type]
