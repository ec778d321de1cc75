# SPDX-License-Identifier: MIT
"""Labels of measured jobs, one small file for each user: FOLDER/<uid>.jsonl, one key a line.

The tick or the publisher writes a site's folder beside the snapshot; a user's own one is in their
state folder (`pal probe`, `pal-rebalance --mine`). palsub reads one file of each at every submission,
so a file never holds more than `MOST_KEYS` keys. Keys are checksums of job names and scripts. Anyone
who can guess a name can try it, so only its writer and its user can read a file: the site's has mode
0600 and an access control list (acl(5)) with that one user. Where the file system has no such lists,
palsub has no site labels; the submit filter still has them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from slurm_pal.base.errors import DataError
from slurm_pal.base.files import hand_to_slurm_user, read_trusted, write_atomic
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, UNKNOWN_CLASS
from slurm_pal.base.light import json, suppress

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.sensitivity.history import Label, Seen

SCHEMA = "pal.labels/1"
MOST_KEYS = 500
"""The most keys of each user; those whose newest job is oldest are forgotten."""
LARGEST = 1 << 20
LATEST_S = 2.0**40
FOLDER_MODE = 0o711
"""Mode of a site's folder: users open their own files by name, and cannot list the folder."""
_NOBODY = 0xFFFFFFFF  # in place of an id: the owner, the group, the mask, all others

_HEADER = f'{{"schema": "{SCHEMA}"}}\n'.encode()

Labels = dict[str, "Label"]
"""Key of a job name or of a script (sensitivity.history) -> label."""


def site_folder(snapshot_path: str) -> str:
    """The folder of the labels that the site publishes."""
    return f"{snapshot_path}.labels"


def path_of(folder: str, uid: int) -> str:
    """The file of one user."""
    return os.path.join(folder, f"{uid}.jsonl")


def read(path: str) -> Labels:
    """The labels in a file; {} if there is none. Raises DataError for a file that cannot be used."""
    return {key: label for key, label in (_label(path, line) for line in _lines(path))}


def lookup(path: str, keys: Iterable[str]) -> Labels:
    """The labels of some keys, the only ones decoded: one or two for a submission. Raises DataError like `read`."""
    raw = _raw(path)
    heads = [f'\n{{"key": "{key}"'.encode() for key in keys]
    starts = [raw.find(head) + 1 for head in heads]
    return dict(_label(path, raw[start : raw.index(b"\n", start)]) for start in starts if start)


def protect(folder: str) -> None:
    """Restrict the site's files to their users: earlier versions let everybody read them, and list the folder."""
    with suppress(OSError):
        os.chmod(folder, FOLDER_MODE)
        for name in os.listdir(folder):
            uid = name.removesuffix(".jsonl")
            if name != uid and uid.isascii() and uid.isdigit() and len(uid) <= 10:
                _protect(os.path.join(folder, name), int(uid))


def _protect(path: str, uid: int) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            info = os.fstat(descriptor)
            if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and info.st_mode & 0o007:
                os.fchmod(descriptor, 0o600)
                _let_read(descriptor, uid)
        finally:
            os.close(descriptor)


def _let_read(descriptor: int, uid: int | None) -> None:
    """Give a file of mode 0600 to SlurmUser, and let one more user read it if the file system can."""
    if uid is None:
        return
    hand_to_slurm_user(descriptor)
    if uid == os.fstat(descriptor).st_uid:
        return
    import struct

    entries = ((1, 6, _NOBODY), (2, 4, uid), (4, 0, _NOBODY), (16, 4, _NOBODY), (32, 0, _NOBODY))
    with suppress(OSError):
        access = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
        os.setxattr(descriptor, "system.posix_acl_access", access)


def _lines(path: str) -> list[bytes]:
    return _raw(path).split(b"\n")[1:-1]


def _raw(path: str) -> bytes:
    """A whole file, b"" if there is none."""
    try:
        raw = read_trusted(path, LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise _damaged(path, error.strerror) from None
    if not raw.startswith(_HEADER) or not raw.endswith(b"\n"):
        raise _damaged(path, f"not a file of {SCHEMA}")
    return raw


def _damaged(path: str, why: object) -> DataError:
    return DataError(f"labels {path} cannot be read ({why}): rm it, and measured jobs write a new one")


def _label(path: str, line: bytes) -> tuple[str, Label]:
    from slurm_pal.sensitivity.history import KEPT, Label, Seen  # most submissions find no label

    try:
        row = json.loads(line)
        key, known = str(row["key"]), (*SENSITIVITY_CLASSES, UNKNOWN_CLASS)
        seen = tuple(Seen(int(j), str(c), float(conf), float(at_s)) for j, c, conf, at_s in row["seen"][-KEPT:])
        if row["class"] not in known or not seen or not all(map(_makes_sense, seen)):
            raise ValueError("not a class or not a number")
        return key, Label(str(row["class"]), int(row["jobs"]), seen)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(path, error) from None


def _makes_sense(seen: Seen) -> bool:
    """Whether a job can have been measured like this; Python's JSON also reads NaN and Infinity."""
    return seen.sensitivity in SENSITIVITY_CLASSES and 0 <= seen.confidence <= 1 and 0 <= seen.at_s < LATEST_S


def _row(key: str, label: Label) -> str:
    return json.dumps({"key": key, "class": label.sensitivity, "jobs": label.jobs, "seen": label.seen})


def write(path: str, labels: Labels, reader: int | None = None) -> None:
    """Replace a user's file by the newest `MOST_KEYS` of these labels, readable by its owner and the uid `reader`.

    Raises DataError if it cannot be written.
    """
    newest = sorted(labels, key=lambda key: labels[key].seen[-1].at_s)[-MOST_KEYS:]
    rows = [json.dumps({"schema": SCHEMA}), *(_row(key, labels[key]) for key in newest)]
    try:
        os.makedirs(os.path.dirname(path), mode=0o700 if reader is None else FOLDER_MODE, exist_ok=True)
        write_atomic(path, "\n".join(rows) + "\n", 0o600, lambda descriptor: _let_read(descriptor, reader))
    except OSError as error:
        what = f"labels {path} cannot be written ({error.strerror})"
        raise DataError(f"{what}: they need a folder that uid {os.geteuid()} can write, and room") from None
