# SPDX-License-Identifier: MIT
"""What `pal setup` has written on this host, so that `pal setup --undo` can take it back.

One JSON file beside slurm.conf, where only root and SlurmUser may write; its name has the host's, since that folder
may be shared. An entry is written before its step is taken: whatever kills us, the record knows all that may be there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from slurm_pal.admin.changes import FileChange
from slurm_pal.admin.site_files import as_bytes
from slurm_pal.base.errors import BusyError, DataError
from slurm_pal.base.files import SMALL_BYTES, is_temporary, locked, read_trusted, write_atomic

SCHEMA = "pal.setup-record/1"
FOLDER, DATA, FILE, LINK, EDIT = "folder", "data", "file", "link", "edit"
"""Kinds of entries: a folder, one that measurements come into, a file or link of ours, a file of the site."""
KINDS = (FOLDER, DATA, FILE, LINK, EDIT)
_KIND_OF = {"mkdir": FOLDER, "copy": FILE, "link": LINK, "edit": EDIT}
_NEW, _LOCK = ".pal-new", ".lock"


class Entry(NamedTuple):
    """One thing that setup wrote, or was about to write."""

    kind: str
    path: str
    written: tuple[str, ...] = ()  # checksums of the contents that are ours; the targets of a link


def path_for(conf: str) -> str:
    """The record of this host for the cluster of this slurm.conf."""
    host = "".join(c for c in socket.gethostname().partition(".")[0] if c.isalnum() or c in "-_")
    return os.path.join(os.path.dirname(conf), f"pal-setup.{host or 'host'}.json")


def digest(text: str) -> str:
    """Checksum of a file's text, as `site_files.read_text` has it."""
    return hashlib.sha256(as_bytes(text)).hexdigest()


def read(path: str) -> dict[str, Entry]:
    """Path -> entry, in the order of writing; empty where nothing was set up.

    Raises DataError for a record that somebody else could have written, or that is damaged.
    """
    try:
        body = json.loads(read_trusted(path, SMALL_BYTES))
        if body["schema"] != SCHEMA:
            raise DataError(f"{path} has schema {body['schema']!r}, not {SCHEMA}: use the slurm-pal that wrote it")
        found = [Entry(one["kind"], one["path"], tuple(one["written"])) for one in body["entries"]]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path} is no record of pal setup: move it away, and remove by hand what is ours") from None
    for one in found:
        sound = isinstance(one.path, str) and os.path.isabs(one.path) and one.kind in KINDS
        if not sound or not all(isinstance(text, str) for text in one.written):
            raise DataError(f"{path} has an entry of another form: {one.path!r}; move the record away")
    return {one.path: one for one in found}


def write(path: str, entries: Mapping[str, Entry]) -> None:
    """Replace the record; without entries it goes. Raises OSError."""
    if not entries:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    body = {"schema": SCHEMA, "entries": [one._asdict() for one in entries.values()]}
    write_atomic(path, json.dumps(body, indent=1) + "\n", 0o644)


@contextlib.contextmanager
def alone(path: str, known: Mapping[str, Entry]) -> Iterator[None]:
    """One setup at a time, from a record that is still as it was read; leaves no lock behind.

    Raises BusyError where another one is at work, or has been meanwhile, DataError, OSError.
    """
    with locked(path + _LOCK, "pal setup"):
        try:
            if read(path) != known:
                raise BusyError(f"another pal setup has changed {path} meanwhile: run the command again")
            yield
        finally:
            os.unlink(path + _LOCK)


def extended(
    entries: Mapping[str, Entry], steps: Iterable[FileChange], data: frozenset[str], backups: Mapping[str, str]
) -> dict[str, Entry]:
    """The entries, and those of the steps. `data`: folders for measurements; `backups`: edited file -> its backup."""
    found = dict(entries)
    for step in steps:
        if step.action not in _KIND_OF:
            continue
        before = found.get(step.path, Entry(_KIND_OF[step.action], step.path))
        mark = step.new if step.action == "link" else digest(step.new)
        kind = DATA if step.path in data else before.kind
        marks = () if step.action == "mkdir" else tuple(dict.fromkeys((*before.written, mark)))
        if step.action == "edit" and step.old is not None:
            backup = backups[step.path]
            found[backup] = Entry(FILE, backup, (digest(step.old),))
        found[step.path] = Entry(kind, step.path, marks)
    return found


def is_ours(entry: Entry | None, text: str) -> bool:
    """Whether a file with this text is as we wrote it."""
    return entry is not None and entry.kind == FILE and digest(text) in entry.written


def clear_leftovers(path: str, entries: Mapping[str, Entry]) -> None:
    """Remove the temporary files of a setup that was killed, beside its files and the record."""
    places = {path, *(one.path for one in entries.values() if one.kind in (FILE, LINK, EDIT))}
    for folder in {os.path.dirname(place) for place in places}:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                whole = os.path.join(folder, name)
                stem = name.removesuffix(_NEW) if name.endswith(_NEW) else name.rpartition(".")[0].rpartition(".")[0]
                if (name.endswith(_NEW) or is_temporary(name)) and os.path.join(folder, stem) in places:
                    os.unlink(whole)
