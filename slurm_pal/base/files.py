# SPDX-License-Identifier: MIT
"""Files as we write and trust them: replaced atomically, 0644 or 0600, owner checked."""

from __future__ import annotations

import os
import stat

from slurm_pal.base.errors import BusyError, DataError
from slurm_pal.base.light import Callable, suppress

LEFT_S = 86400.0
"""A temporary file of this age belongs to a writer that was killed."""
MOST_BYTES = 256 << 20
"""All files that we write are smaller: a snapshot has some 100 bytes for each GPU."""
SMALL_BYTES = 1 << 20
"""The same for settings and the records of one job."""
Reader = Callable[[str], bytes]
"""Reads a file by its path, as `read_trusted` does."""
_TEMPORARY = ".tmp"
_SALT_BYTES = 8


def write_atomic(
    path: str, data: bytes | str, mode: int = 0o644, prepare: Callable[[int], None] | None = None, durable: bool = True
) -> None:
    """Replace `path` by `data` so that a reader sees the old file or the new one.

    The data is on disk before the name changes, unless it need not be `durable`: a power failure may then leave an
    empty file, and no time is spent. `prepare` may change the new file, by its
    descriptor, before it takes the name. After any failure (disk full, no permission) the
    old file is untouched and no temporary file is left.

    Raises OSError as the system reports it.
    """
    raw = data.encode() if isinstance(data, str) else data
    temporary = temporary_name(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        try:
            view = memoryview(raw)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fchmod(descriptor, mode)
            if prepare is not None:
                prepare(descriptor)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def temporary_name(path: str) -> str:
    """A name beside `path` that nobody can take in advance, not even by accident: pids in containers repeat."""
    return f"{path}.{os.urandom(_SALT_BYTES).hex()}{_TEMPORARY}"


def is_temporary(name: str) -> bool:
    """Whether `temporary_name` makes such names, or made them in older releases (with a pid)."""
    salt = name.removesuffix(_TEMPORARY).rpartition(".")[2] if name.endswith(_TEMPORARY) else ""
    return salt.isascii() and (salt.isdigit() or (len(salt) == 2 * _SALT_BYTES and not salt.strip("0123456789abcdef")))


def remove_leftovers(folder: str, now_s: float, ours: Callable[[str], bool] = is_temporary) -> int:
    """Remove what killed writers left in `folder` more than a day ago; the number of files removed.

    Only regular files of this user, with a name that `ours` knows: other users' files are never touched.
    """
    gone = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                info = entry.stat(follow_symlinks=False) if ours(entry.name) else None
                if (
                    info is not None
                    and stat.S_ISREG(info.st_mode)
                    and info.st_uid == os.geteuid()
                    and now_s - info.st_mtime > LEFT_S
                ):
                    os.unlink(entry.path)
                    gone += 1
    return gone


def open_trusted(path: str, follow: bool = True) -> int:
    """Open `path` for reading and check that it can be trusted; return the descriptor.

    root and SlurmUser trust only files that one of the two owns; other users trust any
    file except one that everyone can write. With `follow` false a symbolic link is an
    OSError (ELOOP).

    Raises DataError if the file cannot be trusted, OSError if it cannot be opened.
    """
    descriptor = open_regular(path, 0 if follow else os.O_NOFOLLOW)
    try:
        _check_trust(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: str, flags: int = 0) -> int:
    """Open a regular file for reading, without waiting. Raises DataError for any other kind, or OSError."""
    # Without O_NONBLOCK, opening a FIFO would wait for a writer for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DataError(f"{path} is not a regular file")
    return descriptor


def _check_trust(path: str, info: os.stat_result) -> None:
    if info.st_mode & 0o002:
        raise DataError(f"{path} can be written by everyone: chmod o-w {path}")
    if info.st_uid in (0, os.geteuid()):
        return
    powers = {0, slurm_user_uid()}
    if os.geteuid() in powers and info.st_uid not in powers:
        rule = "root and SlurmUser read only files of their own"
        raise DataError(f"{path} belongs to uid {info.st_uid}, but {rule}: chown root {path}")


def slurm_conf() -> str:
    """The slurm.conf in force: $SLURM_CONF, else Slurm's default (slurm.conf(5))."""
    return os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf"


def slurm_user_uid() -> int:
    """The uid of SlurmUser by slurm.conf; root's if the file does not name one."""
    import pwd

    try:
        text = read_plain(slurm_conf(), MOST_BYTES).decode(errors="replace")
    except (OSError, DataError):
        return 0
    for key, _, value in (line.split("#")[0].partition("=") for line in text.split("\n")):
        if key.strip().lower() == "slurmuser":
            name = value.strip().partition("(")[0]
            try:
                return pwd.getpwnam(name).pw_uid
            except KeyError:
                return int(name) if name.isascii() and name.isdigit() and len(name) < 11 else 0
    return 0


def hand_to_slurm_user(descriptor: int) -> None:
    """Give a file that root writes for slurmctld to SlurmUser, whose own processes replace it. Raises OSError."""
    if os.geteuid() == 0 and (owner := slurm_user_uid()) != 0:
        os.fchown(descriptor, owner, -1)


def read_trusted(path: str, most: int = MOST_BYTES) -> bytes:
    """Read a file of at most this many bytes through `open_trusted`. Raises DataError or OSError."""
    return _read(path, open_trusted(path), most)


def read_plain(path: str, most: int = SMALL_BYTES) -> bytes:
    """Read a regular file of at most this many bytes, no matter who may write it. Raises DataError or OSError."""
    return _read(path, open_regular(path), most)


def _read(path: str, descriptor: int, most: int) -> bytes:
    with os.fdopen(descriptor, "rb") as stream:
        size = os.fstat(descriptor).st_size
        raw = stream.read(most + 1) if size <= most else b""
    if size > most or len(raw) > most:
        raise DataError(f"{path} has {max(size, len(raw))} bytes, more than {most} allowed: see who wrote it")
    return raw


def may_write(path: str) -> bool:
    """Whether this user may write a file, or make it and the folders that it lacks."""
    while not os.path.lexists(path) and path not in ("", "/"):
        path = os.path.dirname(path)
    return os.access(path or ".", os.W_OK, effective_ids=True)


def sweep_words(path: str) -> str:
    """What to do where a sweep's result at `path` is missing: only who may write there can run one."""
    return "run pal-profile run" if may_write(path) else "ask your site's admins for a sweep (pal-profile run)"


class locked:
    """Hold an exclusive lock on `path` (flock) while the block runs, or a shared one, which waits.

    `what` names the work in the error. The lock ends with its process, so a crash leaves
    nothing to clean up; the file itself stays, mode 0600: anyone who can open it, even only
    to read, can hold the lock and keep us out.

    Raises BusyError when somebody else holds it.
    """

    def __init__(self, path: str, what: str, shared: bool = False) -> None:
        self._path, self._what, self._shared = path, what, shared
        self._descriptor = -1

    def __enter__(self) -> None:
        import fcntl

        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with suppress(PermissionError):  # not ours, but writable: leave its mode
                os.fchmod(descriptor, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 80, 0).decode(errors="replace").strip()
                raise BusyError(
                    f"{self._what} is already at work ({holder or 'holder unknown'}): {self._path}"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
