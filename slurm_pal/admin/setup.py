# SPDX-License-Identifier: MIT
"""`pal setup` and `pal setup --undo`: everything that they would change, and carrying it out with a record."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Mapping
from importlib import resources
from typing import NamedTuple

from slurm_pal.admin import apply, changes, machine, record, services, setup_plan, shipped, units
from slurm_pal.admin.changes import ChangePlan, FileChange, SiteFiles
from slurm_pal.admin.machine import Account
from slurm_pal.admin.setup_plan import Present, SharedPaths
from slurm_pal.admin.site_files import read_text
from slurm_pal.base.config import KEYS, Config, site_file
from slurm_pal.base.errors import UsageError
from slurm_pal.base.file_system import OF_ONE_HOST, file_system

_RECONFIGURE = ["scontrol", "reconfigure"]
DEFAULT_STATE_DIR = str(KEYS["paths"]["state_dir"].default)


class Choices(NamedTuple):
    """What the admin wants, with nothing left open."""

    controller: bool
    prefix: str
    state_dir: str | None
    shared: str | None
    parts: tuple[str, ...]  # of Slurm: server, spank
    keeper: str  # systemd, cron, none


class Todo(NamedTuple):
    """All of it: files of ours, files of Slurm (shown to its parser first), folders of data, commands afterwards."""

    ours: ChangePlan
    slurm: ChangePlan = ChangePlan()
    data: frozenset[str] = frozenset()
    before: tuple[tuple[str, ...], ...] = ()
    after: tuple[tuple[str, ...], ...] = ()

    @property
    def changes(self) -> ChangePlan:
        """The steps in their order: nothing of Slurm names a file of ours that is not there."""
        return self.ours + self.slurm


def look(path: str) -> Present:
    """What is at a path. Raises UsageError for a file that cannot be read."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return Present()
    if stat.S_ISLNK(mode):
        # A link to a folder is a folder for those below it.
        return Present("folder" if os.path.isdir(path) else "link", os.readlink(path))
    if stat.S_ISDIR(mode):
        return Present("folder")
    return Present("file", read_text(path)) if stat.S_ISREG(mode) else Present("other")


def settings(config: Config, choices: Choices, known: Mapping[str, record.Entry]) -> tuple[ChangePlan, Config]:
    """The plan for pal.toml, and the settings that will then be in force.

    Raises UsageError where the options differ from a pal.toml that is the admin's own.
    """
    path = site_file(os.environ)
    now = SharedPaths(config.state_dir, *(config.text("paths", name) for name in ("spool", "snapshot", "gpus")))
    want = setup_plan.with_options(now, choices.state_dir, choices.shared)
    if not choices.controller and want == now:
        return ChangePlan(), config
    seen = look(path)
    text = setup_plan.settings_text(
        (resources.files("slurm_pal") / "etc" / "pal.toml").read_text("utf-8"), want, DEFAULT_STATE_DIR
    )
    plan = ChangePlan((FileChange("copy", path, "settings, all of them defaults but for the paths", text),))
    if seen.kind:
        ours = seen.kind == "file" and record.is_ours(known.get(path), seen.text)
        plan = ChangePlan()
        if want != now and not ours:
            differs = next(name for name in want._fields if getattr(want, name) != getattr(now, name))
            raise UsageError(
                f"{path} exists, and paths.{differs} is {getattr(now, differs) or 'the default'!r} there, not "
                f"{getattr(want, differs)!r}: change it there, or leave out --state-dir and --shared"
            )
        if want != now:
            plan = ChangePlan((FileChange("copy", path, "other paths", text, seen.text),))
        elif not ours:
            plan = ChangePlan(notes=(f"{path} is there already: kept as it is",))
    for name, value in want._asdict().items():
        if value:
            config.set("paths", name, value, path)
    return plan, config


def folders(config: Config, user: Account) -> tuple[ChangePlan, frozenset[str]]:
    """The folders for measurements, and which of them setup makes."""
    paths = SharedPaths(config.state_dir, *(config.text("paths", name) for name in ("spool", "snapshot", "gpus")))
    plan = setup_plan.folders(map(os.path.abspath, paths.folders), user, look)
    notes: list[str] = []
    for path in map(os.path.abspath, paths.folders):
        owner = os.stat(path).st_uid if os.path.isdir(path) else user.uid
        if user.uid not in (0, owner):
            notes.append(
                f"{path} belongs to uid {owner}; for services and sweeps of {user.name}: chown {user.name} {path}"
            )
    kind = file_system(config.spool_dir)
    if kind in OF_ONE_HOST:
        notes.append(
            f"{config.spool_dir} is on a disk of this host ({kind}), and sweep jobs on other nodes drop results there: "
            "--shared DIR, a folder that all nodes see, unless this host exports it"
        )
    data = frozenset(step.path for step in plan.steps if step.owner is not None)
    return plan + ChangePlan(notes=tuple(notes)), data


def for_users(prefix: str, bin_folder: str, texts: Mapping[str, str], known: Mapping[str, record.Entry]) -> ChangePlan:
    """Links to the programs, completions and man pages below `prefix`. `texts`: path below it -> text."""
    if machine.by_package(bin_folder):
        return ChangePlan(notes=("users have the programs, completions and man pages from a package",))
    targets = {
        os.path.join(prefix, "bin", name): os.path.join(bin_folder, name)
        for name in machine.PROGRAMS
        if os.path.join(prefix, "bin") != bin_folder
    }
    wanted = {os.path.join(prefix, name): (text, _purpose(name)) for name, text in texts.items()}
    plan = setup_plan.links(targets, known, look, _same)
    plan += setup_plan.files(wanted, known, look)
    needed = dict.fromkeys(os.path.dirname(step.path) for step in plan.steps)
    return setup_plan.folders(needed, None, look) + plan


def _same(path: str, target: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(target)


def _purpose(name: str) -> str:
    return "man page" if name.startswith("share/man/") else "completion"


def service(
    config: Config, user: Account, keeper: str, known: Mapping[str, record.Entry]
) -> tuple[ChangePlan, list[list[str]]]:
    """The files of what keeps the services running, and the commands that start them. Raises UsageError."""
    if keeper == machine.NONE:
        return ChangePlan(), []
    where = units.place(config, user.uid)
    texts, needs = units.filled(where), services.wanted(config.text("rebalance", "mode"), where)
    if keeper == machine.CRON:
        path = os.path.join(machine.CRON_FOLDER, os.path.basename(units.PUBLISH_CRON))
        command = f"{where.pal} publish-table --every 5"
        text = texts[units.PUBLISH_CRON].replace(command, needs.by_hand)
        return setup_plan.files({path: (text, "cron keeps the services running")}, known, look), []
    found = services.install(where)
    wanted = {
        os.path.join(services.FOLDER, os.path.basename(name)): (text, "a unit; nothing is started by it")
        for name, text in texts.items()
        if name.startswith("systemd/")
    }
    plan = setup_plan.files(wanted, known, look)._replace(blockers=found.blockers)
    return plan, [[services.SYSTEMCTL, "daemon-reload"], *services.start(needs)] if plan.steps else services.start(
        needs
    )


def install(
    site: SiteFiles, config: Config, user: Account, choices: Choices, bin_folder: str, texts: Mapping[str, str],
    known: Mapping[str, record.Entry], settled: ChangePlan, running: Callable[[services.Wanted], bool],
    plugins: str | None,
) -> Todo:  # fmt: skip
    """Everything.

    `settled`: the plan of `settings`; `running`: whether systemd runs all that is needed already; `plugins`:
    JobSubmitPlugins of slurmctld itself, None if it does not answer.
    """
    users = for_users(choices.prefix, bin_folder, texts, known)
    if not choices.controller:
        return Todo(settled + users)
    made, data = folders(config, user)
    kept, commands = service(config, user, choices.keeper, known)
    parts = changes.installed_parts(site).union(choices.parts)
    slurm = changes.install(site, choices.parts) if parts else ChangePlan()
    needs = services.wanted(config.text("rebalance", "mode"), units.place(config, user.uid)) if commands else None
    if needs and not kept.steps and running(needs):
        commands = []
    idle = shipped.SERVER.part in parts and plugins is not None and not changes.runs_lua(plugins)
    if slurm.steps or idle:
        commands = [*commands, _RECONFIGURE]
    return Todo(made + settled + users + kept, slurm, data, after=tuple(map(tuple, commands)))


def undo(site: SiteFiles, known: Mapping[str, record.Entry], purge: bool) -> Todo:
    """Everything that the record knows."""
    unit_files = [path for path in known if os.path.dirname(path) == services.FOLDER]
    left = [path for path in unit_files if look(path).kind]
    before = [services.stop(left)] if left else []
    after = services.forget(unit_files) if unit_files else []  # also if an undo was killed before it came to that
    whole, slurm = ChangePlan(), ChangePlan()
    if any(one.kind == record.EDIT for one in known.values()):
        whole = changes.uninstall(site)
        slurm = setup_plan.of_slurm(whole, known, site.shipped)
        after += [_RECONFIGURE]  # also if an undo was killed before it came to that
    ours = setup_plan.undo(known, look, purge, frozenset(step.path for step in whole.steps))
    ours += services.stamps(unit_files)
    return Todo(ours, slurm, before=tuple(map(tuple, before)), after=tuple(map(tuple, after)))


def unwritable(plan: ChangePlan, path: str) -> tuple[str, ...]:
    """Folders in which the plan's files, or the record, cannot be put."""
    found: dict[str, None] = {}
    for place in (os.path.dirname(path), *(os.path.dirname(step.path) for step in plan.steps)):
        while not os.path.isdir(place):
            place = os.path.dirname(place)
        if not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
            read_only = os.statvfs(place).f_flag & os.ST_RDONLY
            why = "its file system is read-only" if read_only else "no permission"
            found[f"{place} cannot be written: {why}"] = None
    return tuple(found)


def carry_out(todo: Todo, path: str, known: Mapping[str, record.Entry], now_s: float) -> dict[str, record.Entry]:
    """Take all steps of an installation, the record first; its entries. Raises what `apply.carry_out` raises.

    Then nothing of it is there, and the record is as before.
    """
    record.clear_leftovers(path, known)
    steps = todo.changes.steps
    backups = {step.path: apply.backup_name(step.path, now_s) for step in steps if step.action == "edit"}
    entries = record.extended(known, steps, todo.data, backups)
    if entries != known:
        record.write(path, entries)
    try:
        apply.carry_out(todo.changes, now_s)
    except BaseException:
        # Steps that could not even be undone stay known.
        left = {name: one for name, one in entries.items() if one.kind != record.EDIT and os.path.lexists(name)}
        record.write(path, {**left, **known})
        raise
    return entries


def take_back(
    todo: Todo, path: str, known: Mapping[str, record.Entry], now_s: float, between: Callable[[], None]
) -> list[str]:
    """Take all steps of an undo; paths of folders that stay because something is in them.

    Files first, all or none of them; then `between`, folders, and measurements where the plan has them. The record is
    shortened last: an undo that was killed is finished by the next one.
    """
    record.clear_leftovers(path, known)
    is_last = ("rmdir", "purge")
    files = tuple(step for step in todo.changes.steps if step.action not in is_last or step in todo.slurm.steps)
    backups = {step.path: apply.backup_name(step.path, now_s) for step in files if step.action == "edit"}
    extended = record.extended(known, [step for step in files if step.action == "edit"], frozenset(), backups)
    if extended != known:
        record.write(path, extended)
    for backup in apply.carry_out(ChangePlan(_slurm_first(files, todo.slurm)), now_s):
        os.unlink(backup)
    between()
    for step in todo.ours.steps:
        if step.action == "purge":
            shutil.rmtree(step.path)
        elif step.action == "rmdir":
            apply.carry_out(ChangePlan((step,)), now_s)
    stay = [step.path for step in todo.ours.steps if step.action in is_last and os.path.lexists(step.path)]
    data = [one for one in known.values() if one.kind == record.DATA and one.path in stay]
    left = {
        one.path: one
        for one in known.values()
        if one in data or (one.kind == record.FOLDER and any(each.path.startswith(f"{one.path}/") for each in data))
    }
    record.write(path, left)
    return stay


def _slurm_first(steps: tuple[FileChange, ...], slurm: ChangePlan) -> tuple[FileChange, ...]:
    return tuple(sorted(steps, key=lambda step: step not in slurm.steps))
