# SPDX-License-Identifier: MIT
"""What `pal setup` writes, decided from what is there; the files of Slurm and systemd come from `changes`, `services`.

Pure: what is at a path is asked of `look`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from slurm_pal.admin import record
from slurm_pal.admin.changes import ChangePlan, FileChange
from slurm_pal.admin.machine import Account
from slurm_pal.base.errors import UsageError

SHELLS = {
    "bash": "share/bash-completion/completions/{}",
    "zsh": "share/zsh/site-functions/_{}",
    "fish": "share/fish/vendor_completions.d/{}.fish",
}
"""Where each shell looks for completions, below /usr/local or ~/.local."""
_PLAIN = re.compile(r"/[^\x00-\x1f\x7f\"\\]*")


class Present(NamedTuple):
    """What is at a path. `kind`: "" for nothing, folder, file, link or other; a link is not followed."""

    kind: str = ""
    text: str = ""  # of a file; the target of a link, also of one to a folder


Look = Callable[[str], Present]


class SharedPaths(NamedTuple):
    """Where measurements are, before and after setup; "" stands for the default below `state_dir`."""

    state_dir: str
    spool: str = ""
    snapshot: str = ""
    gpus: str = ""

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders that SlurmUser must be able to write."""
        files = (path for path in (self.snapshot, self.gpus) if path)
        return tuple(dict.fromkeys((self.state_dir, *map(os.path.dirname, files), *filter(None, [self.spool]))))


def with_options(now: SharedPaths, state_dir: str | None, shared: str | None) -> SharedPaths:
    """The paths of the settings in force, changed by the options. Raises UsageError for names that TOML cannot hold."""
    for option, path in (("--state-dir", state_dir), ("--shared", shared)):
        if path is not None and not _PLAIN.fullmatch(path):
            raise UsageError(f"{option} {path!r}: an absolute path without quotes, backslashes and control characters")
    found = now if state_dir is None else now._replace(state_dir=os.path.normpath(state_dir))
    if shared is None:
        return found
    folder = os.path.normpath(shared)
    spool, snapshot, gpus = (os.path.join(folder, name) for name in ("spool", "snapshot", "gpus.txt"))
    return found._replace(spool=spool, snapshot=snapshot, gpus=gpus)


def settings_text(shipped: str, paths: SharedPaths, default: str) -> str:
    """pal.toml: the shipped one, all of it comments, with the paths that are not the default."""
    values = paths._asdict() | {"state_dir": "" if paths.state_dir == default else paths.state_dir}
    for name, value in values.items():
        if value:
            head, sign, rest = shipped.partition(f"\n# {name} = ")
            tail = rest.partition("\n")[2]
            shipped = f'{head}\n{name} = "{value}"\n{tail}' if sign else shipped
    return shipped


def folders(paths: Iterable[str], owner: Account | None, look: Look) -> ChangePlan:
    """Make the folders that are missing, and those above them. Only the folders themselves get `owner`."""
    plan = ChangePlan()
    made: set[str] = set()
    for path in paths:
        missing: list[str] = []
        place = path
        while place not in made and place != "/" and not look(place).kind:
            missing.append(place)
            place = os.path.dirname(place)
        if place not in made and look(place).kind in ("file", "other"):
            plan += ChangePlan(blockers=(f"{place} is no folder: move it away",))
            continue
        for each in reversed(missing):
            own = (owner.uid, owner.gid) if owner is not None and each == path else None
            plan += ChangePlan(
                (
                    FileChange(
                        "mkdir", each, f"for {owner.name}'s data" if own and owner else "for the files below", owner=own
                    ),
                )
            )
            made.add(each)
    return plan


def files(texts: Mapping[str, tuple[str, str]], known: Mapping[str, record.Entry], look: Look) -> ChangePlan:
    """Write path -> (text, why). What the admin has made or changed stays and is named."""
    plan = ChangePlan()
    for path, (text, why) in texts.items():
        seen = look(path)
        if seen.kind == "file" and seen.text == text:
            continue
        if not seen.kind:
            plan += ChangePlan((FileChange("copy", path, why, text),))
        elif seen.kind == "file" and record.is_ours(known.get(path), seen.text):
            plan += ChangePlan((FileChange("copy", path, why, text, seen.text),))
        else:
            plan += ChangePlan(notes=(_kept(path, seen, known),))
    return plan


def links(
    targets: Mapping[str, str], known: Mapping[str, record.Entry], look: Look, same: Callable[[str, str], bool]
) -> ChangePlan:
    """Make path -> target. `same`: whether two paths are one file, as by a link that is there already."""
    plan = ChangePlan()
    for path, target in targets.items():
        seen = look(path)
        entry = known.get(path)
        if seen == Present("link", target) or (seen.kind and same(path, target)):
            continue
        if not seen.kind or (seen.kind == "link" and entry is not None and seen.text in entry.written):
            plan += ChangePlan((FileChange("link", path, "in everybody's PATH", target),))
        else:
            plan += ChangePlan(notes=(f"{_kept(path, seen, known)}; users get that one, not {target}",))
    return plan


def _kept(path: str, seen: Present, known: Mapping[str, record.Entry]) -> str:
    if seen.kind == "link":
        return f"{path} is a link to {seen.text}, not ours: kept"
    if seen.kind != "file":
        return f"{path} is no file: kept"
    return (
        f"{path} was changed since setup wrote it: kept" if path in known else f"{path} is there already: kept as it is"
    )


def undo(known: Mapping[str, record.Entry], look: Look, purge: bool, spare: frozenset[str]) -> ChangePlan:
    """Take back what the record knows, last things first. `spare`: paths that another plan removes.

    Notes name what stays: files that were changed since, and measurements unless `purge`.
    """
    plan = ChangePlan()
    for one in reversed([*known.values()]):
        seen = look(one.path)
        if not seen.kind or one.path in spare or one.kind == record.EDIT:
            continue
        if seen.kind == "folder" and seen.text:
            plan += ChangePlan(notes=(f"{one.path} is a link to {seen.text} now: kept",))
        elif one.kind == record.DATA and purge and seen.kind == "folder":
            plan += ChangePlan((FileChange("purge", one.path, "measurements, and all else in it"),))
        elif one.kind in (record.FOLDER, record.DATA):
            plan += ChangePlan((FileChange("rmdir", one.path, "ours, if nothing else is in it"),))
        elif one.kind == record.FILE and seen.kind == "file" and record.is_ours(one, seen.text):
            plan += ChangePlan((FileChange("remove", one.path, "ours", old=seen.text),))
        elif one.kind == record.LINK and seen.kind == "link" and seen.text in one.written:
            plan += ChangePlan((FileChange("remove", one.path, "our link"),))
        else:
            plan += ChangePlan(notes=(f"{one.path} was changed since setup wrote it: kept",))
    return plan


def of_slurm(plan: ChangePlan, known: Mapping[str, record.Entry], shipped: Mapping[str, str]) -> ChangePlan:
    """`changes.uninstall`, without files that the admin has changed since: they are named and stay."""
    steps: list[FileChange] = []
    notes: list[str] = []
    for step in plan.steps:
        ours = (
            step.action != "remove"
            or not step.old
            or step.path not in known
            or (
                record.is_ours(known[step.path], step.old)
                or step.old in shipped.values()
                or known[step.path].kind == record.EDIT
            )
        )
        if ours:
            steps.append(step)
        else:
            notes.append(f"{step.path} was changed since setup wrote it: kept")
    return ChangePlan(tuple(steps), plan.blockers, plan.notes + tuple(notes))
