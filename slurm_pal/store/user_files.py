# SPDX-License-Identifier: MIT
"""What is kept of the jobs of one user, in files of JSON lines that only their writer and this user can read.

The tick or the publisher writes a site's folder beside the snapshot; a user's own folder is in their state folder.
palsub looks into a file of each at a submission, so no file is large. Keys are checksums of job names and scripts
(sensitivity/keys.py): anyone who can guess a name could try it, so a site's file has mode 0600 and an access control
list (acl(5)) with that one user. Where the file system has no such lists, palsub has only the user's own files.
"""

from __future__ import annotations

import os
import stat

from slurm_pal.base import state
from slurm_pal.base.errors import DataError
from slurm_pal.base.files import hand_to_slurm_user, read_trusted, write_atomic
from slurm_pal.base.light import Iterable, NamedTuple, Sequence, suppress

LARGEST = 1 << 20
FOLDER_MODE = 0o711
"""Mode of a site's folder: users open their own files by name, and cannot list the folder."""
ENDING = ".jsonl"
_NOBODY = 0xFFFFFFFF  # in place of an id: the owner, the group, the mask, all others


class Kind(NamedTuple):
    """One kind of file."""

    schema: str
    what: str  # of it are the lines, for people
    ending: str = ENDING
    again: str = ""  # how a new one comes about

    @property
    def header(self) -> bytes:
        return f'{{"schema": "{self.schema}"}}\n'.encode()

    def path_of(self, folder: str, uid: int) -> str:
        """The file of one user."""
        return os.path.join(folder, f"{uid}{self.ending}")

    def damaged(self, path: str, why: object) -> DataError:
        return DataError(f"{self.what} {path} cannot be read ({why}): rm it, and {self.again}")

    def lines(self, path: str) -> list[bytes]:
        """All lines but the header; none if there is no file. Raises DataError for a file that cannot be used."""
        return self._raw(path).split(b"\n")[1:-1]

    def found(self, path: str, keys: Iterable[str]) -> list[bytes]:
        """The lines of some keys: one or two for a submission. Raises DataError like `lines`."""
        raw = self._raw(path)
        heads = [f'\n{{"key": "{key}"'.encode() for key in keys]
        starts = [raw.find(head) + 1 for head in heads]
        return [raw[start : raw.index(b"\n", start)] for start in starts if start]

    def _raw(self, path: str) -> bytes:
        """A whole file, b"" if there is none."""
        try:
            raw = read_trusted(path, LARGEST)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        except OSError as error:
            raise self.damaged(path, error.strerror) from None
        if not raw.startswith(self.header) or not raw.endswith(b"\n"):
            raise self.damaged(path, f"not a file of {self.schema}")
        return raw

    def write(self, path: str, rows: Sequence[str], reader: int | None = None) -> None:
        """Replace a file by these lines, readable by its owner and the uid `reader`. Raises DataError."""
        text = self.header.decode() + "".join(f"{row}\n" for row in rows)
        try:
            os.makedirs(os.path.dirname(path), mode=0o700 if reader is None else FOLDER_MODE, exist_ok=True)
            write_atomic(path, text, 0o600, lambda descriptor: _let_read(descriptor, reader))
        except OSError as error:
            said = f"{self.what} {path} cannot be written ({error.strerror})"
            raise DataError(f"{said}: they need a folder that uid {os.geteuid()} can write, and room") from None


def site_folder(snapshot_path: str) -> str:
    """The folder of what the site publishes for single users."""
    return f"{snapshot_path}.labels"


def own_folder() -> str:
    """The folder of what this user keeps for themselves, of the cluster in force."""
    return os.path.join(state.home(), "labels", state.cluster_key())


def protect(folder: str) -> None:
    """Restrict the site's files to their users: earlier versions let everybody read them, and list the folder."""
    with suppress(OSError):
        os.chmod(folder, FOLDER_MODE)
        for name in os.listdir(folder):
            uid = name.partition(".")[0]
            if name.endswith(ENDING) and uid.isascii() and uid.isdigit() and len(uid) <= 10:
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
