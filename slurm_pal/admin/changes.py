# SPDX-License-Identifier: MIT
"""What to do to which file, decided from what a site has. Pure: the files were read by `site_files`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.admin import blocks, conf_text, lua_text
from slurm_pal.admin.shipped import FILTERS, FOLDER, SERVER, SPANK, SPANK_FILE, Filter
from slurm_pal.filter.source import LOGIC


class SiteFiles(NamedTuple):
    """The content of a slurm.conf and its surroundings. Texts are UTF-8 with surrogate escapes, to keep all bytes."""

    conf: str  # as given to Slurm: the Lua files are in its folder
    conf_target: str  # the file that is edited: `conf`, links followed
    texts: dict[str, str]  # slurm.conf (under `conf`) and what it includes
    plugstack: str
    plugstack_text: str | None  # None: there is no such file
    plugstack_more: dict[str, str]  # what it includes
    files: dict[str, str]  # path -> text of Lua files in either folder, tables left out
    table_links: dict[str, str | None]  # path of a pal_table.lua that exists -> target; None: a file
    shipped: dict[str, str]  # name -> text
    plugin: str  # path of pal_spank.so, "" when there is none
    tables: dict[str, str]  # part -> the table of its filter
    gpus: str
    python: str  # of the nodes, with slurm-pal

    @property
    def folder(self) -> str:
        return os.path.dirname(self.conf)


class FileChange(NamedTuple):
    """One change. `action`: mkdir, copy, edit, link, touch, remove or rmdir."""

    action: str
    path: str
    why: str
    new: str = ""  # the text afterwards; for a link, its target
    old: str | None = None  # the text before, None if there is none
    owner: tuple[int, int] | None = None  # uid and gid of a new folder; None: the caller's


class ChangePlan(NamedTuple):
    """Steps in a safe order; with `blockers` none of them may be taken."""

    steps: tuple[FileChange, ...] = ()
    blockers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: object) -> ChangePlan:
        assert isinstance(other, ChangePlan)
        return ChangePlan(self.steps + other.steps, self.blockers + other.blockers, self.notes + other.notes)


def installed_parts(site: SiteFiles) -> set[str]:
    """The parts that an earlier install put into the site's files."""
    lines = blocks.remove(site.texts[site.conf], blocks.CONF, site.conf_target).inside
    added = {statement.key for statement in conf_text.statements("".join(lines))}
    parts = {f.part for f in FILTERS if f.key.lower() in added or _chained(site, f)}
    if site.plugstack_text is not None and blocks.remove(site.plugstack_text, blocks.CONF, site.plugstack).inside:
        parts.add(SPANK)
    return parts


def install(site: SiteFiles, parts: Sequence[str]) -> ChangePlan:
    """The plan that puts `parts` (server, client, spank) in force; installed parts stay.

    Raises DataError if one of our own blocks is damaged.
    """
    wanted = set(parts) | installed_parts(site)
    filters = [f for f in FILTERS if f.part in wanted]
    plan = _folders(site, filters)
    for each in filters:
        plan += _bootstrap(site, each)
    if SPANK in wanted:
        plan += _plugstack(site)
    plan += _slurm_conf(site, filters)
    return plan._replace(blockers=plan.blockers + _unfit_paths(site, filters, SPANK in wanted))


def uninstall(site: SiteFiles) -> ChangePlan:
    """The plan that removes what install added. Raises DataError if one of our blocks is damaged."""
    base = _conf_without(site)
    plan = _edit(site.conf_target, site.texts[site.conf], base, "our lines removed, the site's restored")
    plan += _without_plugstack(site)
    for each in FILTERS:
        plan += _without_call(site, each)
        plan += _still_needed(site, each, base)
    steps = [FileChange("remove", path, "ours", old=site.files[path]) for path in _own_files(site)]
    steps += [FileChange("remove", path, "our link") for path, target in site.table_links.items() if target is not None]
    if any(os.path.dirname(step.path) == _own_folder(site) for step in steps):
        steps.append(FileChange("rmdir", _own_folder(site), "ours, if nothing else is in it"))
    return plan + ChangePlan(tuple(steps))


def _own_folder(site: SiteFiles) -> str:
    return os.path.join(site.folder, FOLDER)


def _foreign(site: SiteFiles, which: Filter) -> str | None:
    """The text of the site's own filter without our block; None if there is none."""
    path = os.path.join(site.folder, which.file)
    text = site.files.get(path)
    if text is None or lua_text.is_ours(text):
        return None
    return blocks.remove(text, blocks.LUA, path).text


def _chained(site: SiteFiles, which: Filter) -> bool:
    path = os.path.join(site.folder, which.file)
    text = site.files.get(path, "")
    return not lua_text.is_ours(text) and lua_text.calls(text, os.path.join(_own_folder(site), which.file)) is not None


def _home(site: SiteFiles, which: Filter) -> str:
    """The folder of our file for this filter."""
    return site.folder if _foreign(site, which) is None else _own_folder(site)


def _folders(site: SiteFiles, filters: Sequence[Filter]) -> ChangePlan:
    """pal.lua and the links to the tables, in each folder that one of our filters runs in."""
    plan = ChangePlan()
    for folder in sorted({_home(site, each) for each in filters}):
        if folder == _own_folder(site) and not any(p.startswith(folder + os.sep) for p in _present(site)):
            plan += ChangePlan((FileChange("mkdir", folder, "our files; the site's own filter stays where it is"),))
        plan += _copy(site, folder, LOGIC, "the logic of the filters")
        for each in filters:
            if _home(site, each) == folder:
                plan += _link(site, os.path.join(folder, each.link), site.tables[each.part])
    return plan


def _present(site: SiteFiles) -> set[str]:
    return set(site.files) | set(site.table_links)


def _copy(site: SiteFiles, folder: str, name: str, why: str) -> ChangePlan:
    path, new = os.path.join(folder, name), site.shipped[name]
    old = site.files.get(path)
    if old == new:
        return ChangePlan()
    if old is not None and not lua_text.is_ours(old):
        return ChangePlan(blockers=(f"{path} is not ours: move it away",))
    return ChangePlan((FileChange("copy", path, why, new, old),))


def _link(site: SiteFiles, path: str, table: str) -> ChangePlan:
    if table == path or site.table_links.get(path) == table:
        return ChangePlan()
    if path in site.table_links and site.table_links[path] is None:
        return ChangePlan(blockers=(f"{path} is a file where a link to {table} must be: move it away",))
    return ChangePlan((FileChange("link", path, "the table that `pal publish-table` and the daemon write", table),))


def _bootstrap(site: SiteFiles, which: Filter) -> ChangePlan:
    """The file that Slurm runs, or the call from the site's own file."""
    home = _home(site, which)
    plan = _copy(site, home, which.file, which.why)
    if home != site.folder:
        plan += _call(site, which, os.path.join(home, which.file))
    path = os.path.join(site.folder, which.file)
    if which is SERVER and _stale(site, home, which) and all(step.path != path for step in plan.steps):
        plan += ChangePlan((FileChange("touch", path, "slurmctld checks only the time of this file"),))
    return plan


def _stale(site: SiteFiles, home: str, which: Filter) -> bool:
    """Whether one of our files that this filter runs exists and differs from what we ship."""
    present = ((site.files.get(os.path.join(home, name)), site.shipped[name]) for name in (LOGIC, which.file))
    return any(text is not None and text != new for text, new in present)


def _call(site: SiteFiles, which: Filter, ours: str) -> ChangePlan:
    """Our call in the site's own filter, before its last line."""
    path = os.path.join(site.folder, which.file)
    base = _foreign(site, which) or ""
    if not runs_lua(_conf_value(site, which)):
        dormant = f"{path} is the site's, but {which.key} has no lua, so it is not in force"
        return ChangePlan(blockers=(f"{dormant}: add lua to {which.key} or move the file away",))
    if lua_text.calls(base, ours) is not None:
        return ChangePlan(notes=(f"{path} already calls our filter by a line of its own: not changed",))
    new = lua_text.with_call(base, ours)
    if new is None:
        where = f"{path} does not end in `return slurm.SUCCESS`"
        return ChangePlan(blockers=(f"{where}: add this line where it returns: {lua_text.call(ours)}",))
    return _edit(path, site.files[path], new, f"{which.why}, after the site's own filter")


def runs_lua(value: str) -> bool:
    """Whether the list of a filter key names Slurm's Lua plug-in."""
    return "lua" in _plugins(value)


def _plugins(value: str) -> list[str]:
    """`job_submit/lua, throttle` -> lua, throttle."""
    return [word.strip().rpartition("/")[2].lower() for word in value.split(",") if word.strip()]


def _conf_without(site: SiteFiles) -> str:
    return blocks.remove(site.texts[site.conf], blocks.CONF, site.conf_target).text or ""


def _conf_value(site: SiteFiles, which: Filter) -> str:
    return conf_text.value(site.conf, site.texts | {site.conf: _conf_without(site)}, which.key)


def _slurm_conf(site: SiteFiles, filters: Sequence[Filter]) -> ChangePlan:
    """Our lines: in place of the site's, if it has one, else at the end."""
    text = _conf_without(site)
    missing: list[str] = []
    blockers: list[str] = []
    for each in filters:
        place = conf_text.in_force(site.conf, site.texts | {site.conf: text}, each.key)
        if place is None:
            missing.append(f"{each.key}=lua")
        elif not runs_lua(place.statement.value):
            line = f"{each.key}={place.statement.value},lua"
            if place.path == site.conf:
                text = blocks.insert(text, blocks.CONF, place.statement.first, place.statement.lines, [line])
            else:
                where = f"{place.path} line {place.statement.first + 1}"
                blockers.append(
                    f"{where} sets {each.key}, and included files are not edited: write {line} there, run this again, "
                    "and only then scontrol reconfigure"
                )
    if missing:
        text = blocks.append(text, blocks.CONF, missing)
    why = ", ".join(f"{each.key} runs {each.file}" for each in filters)
    return _edit(site.conf_target, site.texts[site.conf], text, why) + ChangePlan(blockers=tuple(blockers))


def spank_line(site: SiteFiles) -> str:
    return f"optional {site.plugin} gpus={site.gpus} python={site.python}"


def spank_places(site: SiteFiles) -> list[str]:
    """Files of the plug-in stack with the site's own line that loads our plug-in."""
    base = "" if site.plugstack_text is None else site.plugstack_text
    texts = {site.plugstack: blocks.remove(base, blocks.CONF, site.plugstack).text or ""} | site.plugstack_more
    return [path for path, text in texts.items() if loaded_plugins(text)]


def spank_paths(site: SiteFiles) -> list[str]:
    """The pal_spank.so that the plug-in stack loads, by our line or the site's."""
    return [
        path for text in (site.plugstack_text or "", *site.plugstack_more.values()) for path in loaded_plugins(text)
    ]


def loaded_plugins(text: str) -> list[str]:
    """The paths of pal_spank.so that a plugstack.conf names."""
    lines = (line.partition("#")[0].split() for line in text.split("\n"))
    return [words[1] for words in lines if len(words) > 1 and os.path.basename(words[1]) == SPANK_FILE]


def _plugstack(site: SiteFiles) -> ChangePlan:
    if by_site := spank_places(site):
        return ChangePlan(notes=(f"{by_site[0]} already loads {SPANK_FILE} by a line of its own: not changed",))
    if not site.plugin:
        build = "make -C spank && make -C spank install, or --plugin PATH"
        return ChangePlan(blockers=(f"{SPANK_FILE} was not found: {build}",))
    now = site.plugstack_text
    base = None if now is None else blocks.remove(now, blocks.CONF, site.plugstack).text
    new = blocks.append(base, blocks.CONF, [spank_line(site)])
    why = "the options --pal-class, --pal-app, --pal-avoid-slow, --pal-note, --pal-off, --pal-explain"
    return _edit(site.plugstack, now, new, why)


def _edit(path: str, old: str | None, new: str, why: str) -> ChangePlan:
    return ChangePlan() if old == new else ChangePlan((FileChange("edit", path, why, new, old),))


def _without_plugstack(site: SiteFiles) -> ChangePlan:
    if site.plugstack_text is None:
        return ChangePlan()
    base = blocks.remove(site.plugstack_text, blocks.CONF, site.plugstack).text
    if base is None:
        return ChangePlan((FileChange("remove", site.plugstack, "was made for our line", old=site.plugstack_text),))
    return _edit(site.plugstack, site.plugstack_text, base, "our line removed")


def _own_files(site: SiteFiles) -> list[str]:
    """Our files in either folder: a name that we ship, and our first line."""
    return [p for p, text in site.files.items() if os.path.basename(p) in site.shipped and lua_text.is_ours(text)]


def _without_call(site: SiteFiles, which: Filter) -> ChangePlan:
    path = os.path.join(site.folder, which.file)
    base = _foreign(site, which)
    if base is None:
        return ChangePlan()
    plan = _edit(path, site.files[path], base, "our call removed")
    line = lua_text.calls(base, os.path.join(_own_folder(site), which.file))
    if line is not None:
        plan += ChangePlan(notes=(f"{path} line {line} calls our filter by the site's own line: remove it",))
    return plan


def _still_needed(site: SiteFiles, which: Filter, base: str) -> ChangePlan:
    """Slurm does not start if its configuration names lua and the Lua file is gone."""
    path = os.path.join(site.folder, which.file)
    place = conf_text.in_force(site.conf, site.texts | {site.conf: base}, which.key)
    if place is None or not runs_lua(place.statement.value) or path not in _own_files(site):
        return ChangePlan()
    where = f"{place.path} line {place.statement.first + 1}"
    return ChangePlan(blockers=(f"{where} still sets {which.key}={place.statement.value}: remove lua there first",))


def _unfit_paths(site: SiteFiles, filters: Sequence[Filter], spank: bool) -> tuple[str, ...]:
    """Names that cannot be in a line of Slurm's files or of Lua."""
    chained = any(_home(site, each) != site.folder for each in filters)
    paths = ([site.plugin, site.gpus, site.python] if spank else []) + ([site.folder] if chained else [])
    return tuple(f"the name {path!r} cannot be in a file of Slurm" for path in paths if re.search(r'[\s#"\\]', path))
