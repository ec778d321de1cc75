# SPDX-License-Identifier: MIT
"""Carrying out a plan: backups, atomic replacement, and everything undone if a step fails."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable

from slurm_pal.admin.changes import ChangePlan, FileChange
from slurm_pal.admin.shipped import SERVER
from slurm_pal.admin.site_files import as_bytes, read_text
from slurm_pal.base.errors import PalError
from slurm_pal.base.files import write_atomic

BACKUP = ".pal-backup-"


def carry_out(plan: ChangePlan, now_s: float) -> list[str]:
    """Take all steps in order; return the paths of the backups. `now_s`: Unix seconds, for their names.

    Raises PalError if a file has changed since it was read, OSError as the system
    reports it; all earlier steps are undone.
    """
    undo: list[Callable[[], object]] = []
    backups: list[str] = []
    try:
        for step in plan.steps:
            if step.old is not None and step.action in ("edit", "copy", "remove"):
                _unchanged(step)
            if step.action == "edit" and step.old is not None:
                backups.append(_backup(step.path, now_s))
            undo.append(_ACTIONS[step.action](step, now_s))
    except BaseException:
        for back in reversed(undo):
            with contextlib.suppress(OSError):
                back()
        raise
    return backups


def _unchanged(step: FileChange) -> None:
    if read_text(step.path) != step.old:
        raise PalError(f"{step.path} has changed meanwhile: run the command again")


def backup_name(path: str, now_s: float) -> str:
    """The name that a backup made now gets; a second one in the same second has a number."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    name, count = f"{path}{BACKUP}{stamp}", 1
    while os.path.lexists(name):
        count += 1
        name = f"{path}{BACKUP}{stamp}-{count}"
    return name


def _backup(path: str, now_s: float) -> str:
    """A copy beside the file with its mode and owner."""
    name = backup_name(path, now_s)
    _like(path, name, as_bytes(read_text(path)))
    return name


def _like(model: str, path: str, data: bytes) -> None:
    """Write `path` atomically, with mode, owner and extended attributes of `model`."""
    temporary = f"{path}.pal-new"
    info = os.stat(model)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    try:
        write_atomic(temporary, data, 0o600)
        if (info.st_uid, info.st_gid) != (os.stat(temporary).st_uid, os.stat(temporary).st_gid):
            os.chown(temporary, info.st_uid, info.st_gid)
        shutil.copystat(model, temporary)
        os.utime(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _nothing() -> None:
    pass


def _mkdir(step: FileChange, now_s: float) -> Callable[[], object]:
    os.mkdir(step.path, 0o700)
    descriptor = -1
    try:
        # By its descriptor: somebody who owns the folder above could put a link there meanwhile.
        descriptor = os.open(step.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if step.owner is not None and step.owner != (os.geteuid(), os.getegid()):
            os.fchown(descriptor, *step.owner)
        os.fchmod(descriptor, 0o755)  # whatever the umask
    except BaseException:
        with contextlib.suppress(OSError):
            os.rmdir(step.path)
        raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return lambda: os.rmdir(step.path)


def _rmdir(step: FileChange, now_s: float) -> Callable[[], object]:
    with contextlib.suppress(OSError):  # it holds something else, or is a link
        os.rmdir(step.path)
        return lambda: os.mkdir(step.path, 0o755)
    return _nothing


def _write(step: FileChange, now_s: float) -> Callable[[], object]:
    """Copy or edit. Our own files get mode 0644; the site's files keep mode and owner."""
    if step.action == "edit" and step.old is not None:
        _like(step.path, step.path, as_bytes(step.new))
    else:
        write_atomic(step.path, as_bytes(step.new))
    if os.path.basename(step.path) == SERVER.file:
        _later(step.path, now_s)
    if step.old is None:
        return lambda: os.unlink(step.path)
    old = as_bytes(step.old)
    return lambda: _like(step.path, step.path, old)


def _link(step: FileChange, now_s: float) -> Callable[[], object]:
    before = os.readlink(step.path) if os.path.islink(step.path) else None
    temporary = f"{step.path}.pal-new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    os.symlink(step.new, temporary)
    os.replace(temporary, step.path)
    if before is None:
        return lambda: os.unlink(step.path)
    return lambda: _link(FileChange("link", step.path, "", before), now_s)


def _touch(step: FileChange, now_s: float) -> Callable[[], object]:
    _later(step.path, now_s)
    return _nothing


def _later(path: str, now_s: float) -> None:
    """Set a file's time to the next second.

    slurmctld reads job_submit.lua again if its time, in whole seconds, is after the second
    of the last reading: with the present second it might miss the change for ever.
    """
    later_s = max(now_s, os.stat(path).st_mtime) + 1
    os.utime(path, (later_s, later_s))


def _remove(step: FileChange, now_s: float) -> Callable[[], object]:
    if os.path.islink(step.path):
        target = os.readlink(step.path)
        os.unlink(step.path)
        return lambda: os.symlink(target, step.path)
    os.unlink(step.path)
    old = as_bytes(step.old or "")
    return lambda: write_atomic(step.path, old)


_ACTIONS: dict[str, Callable[[FileChange, float], Callable[[], object]]] = {
    "mkdir": _mkdir,
    "rmdir": _rmdir,
    "copy": _write,
    "edit": _write,
    "link": _link,
    "touch": _touch,
    "remove": _remove,
}
