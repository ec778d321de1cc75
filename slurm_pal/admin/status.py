# SPDX-License-Identifier: MIT
"""Which parts of an installation are in force: one item for each condition."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.admin import changes, conf_text, gres, lua_text
from slurm_pal.admin.changes import SiteFiles
from slurm_pal.admin.shipped import CLIENT, FILTERS, FOLDER, SERVER, SPANK, Filter
from slurm_pal.admin.site_files import read_text
from slurm_pal.base.errors import DataError, Exit, UsageError, one_line
from slurm_pal.filter.source import LOGIC
from slurm_pal.report.table import age
from slurm_pal.store.lua_table import read_table

MEND_INSTALL = "pal admin install --act"


class Item(NamedTuple):
    """One check. `state`: ok, note, absent or wrong; `code`: the exit code that it requires."""

    part: str
    state: str
    text: str
    mend: str = ""
    code: Exit = Exit.OK


class TableFacts(NamedTuple):
    """The table of the filter, as far as it can be read."""

    path: str
    error: str = ""
    age_s: float | None = None
    max_age_s: float | None = None
    epoch: int | None = None
    clears: str = ""
    bytes: int | None = None
    owner: str = ""


def examine(site: SiteFiles, running: Mapping[str, str] | None, now_s: float) -> list[Item]:
    """All checks. `running`: slurmctld's own configuration, None if it does not answer."""
    parts = parts_present(site)
    items: list[Item] = []
    for each in FILTERS:
        items += _filter(site, each, running) if each.part in parts else [Item(each.part, "absent", "not installed")]
    if not parts & {each.part for each in FILTERS}:
        items.append(Item("filter", "wrong", "no filter is installed", MEND_INSTALL, Exit.FAILED))
    else:
        items += [_table(table_facts(table_of(site), now_s)), _preferences(site, running)]
    items += _spank(site) if SPANK in parts else [Item(SPANK, "absent", "not installed")]
    return items + _gres(site)


def exit_code(items: list[Item]) -> Exit:
    """The code of the first problem, in the order: Slurm does not answer, a part is not in force, data is unusable."""
    codes = {item.code for item in items}
    return next((code for code in (Exit.SLURM, Exit.FAILED, Exit.DATA) if code in codes), Exit.OK)


def parts_present(site: SiteFiles) -> set[str]:
    """Parts of which something exists, whether from install or by hand."""
    parts = changes.installed_parts(site)
    for each in FILTERS:
        if lua_text.is_ours(site.files.get(os.path.join(site.folder, each.file), "")):
            parts.add(each.part)
    return parts | ({SPANK} if changes.spank_places(site) else set())


def table_of(site: SiteFiles) -> str:
    """The table of slurmctld, or the clients' for users who may not read that one: both have the same age."""
    own = site.tables[SERVER.part]
    return own if os.access(own, os.R_OK) or not os.path.exists(own) else site.tables[CLIENT.part]


def table_facts(path: str, now_s: float) -> TableFacts:
    """Read the table as the filters do."""
    try:
        header = read_table(path).header
        info = os.stat(path)
    except (DataError, OSError) as error:
        return TableFacts(path, one_line(error))
    owner = str(info.st_uid)
    with contextlib.suppress(KeyError):
        owner = pwd.getpwuid(info.st_uid).pw_name
    age_s = now_s - header.written_s
    return TableFacts(path, "", age_s, header.max_age_s, header.epoch, header.clears, info.st_size, owner)


def _filter(site: SiteFiles, which: Filter, running: Mapping[str, str] | None) -> list[Item]:
    items = [_files(site, which)]
    name = f"{which.key} in {site.conf}"
    if not changes.runs_lua(conf_text.value(site.conf, site.texts, which.key)):
        items.append(Item(which.part, "wrong", f"{name} has no lua", MEND_INSTALL, Exit.FAILED))
    elif which is SERVER and running is None:
        items.append(Item(which.part, "wrong", "slurmctld does not answer", "scontrol ping", Exit.SLURM))
    elif which is SERVER and running is not None and not changes.runs_lua(running.get(which.key, "")):
        text = f"{name} has lua, but slurmctld does not run it yet"
        items.append(Item(which.part, "wrong", text, "scontrol reconfigure", Exit.FAILED))
    else:
        items.append(Item(which.part, "ok", f"{name} runs {which.file}"))
    return items


def _files(site: SiteFiles, which: Filter) -> Item:
    """Whether our files, beside slurm.conf or called by the site's filter, are of this version."""
    first = os.path.join(site.folder, which.file)
    chained = not lua_text.is_ours(site.files.get(first, ""))
    folder = os.path.join(site.folder, FOLDER) if chained else site.folder
    ours = os.path.join(folder, which.file)
    if chained and lua_text.calls(site.files.get(first, ""), ours) is None:
        text = f"{first} does not call our filter" if first in site.files else f"{first} is missing"
        return Item(which.part, "wrong", text, MEND_INSTALL, Exit.FAILED)
    for name in (which.file, LOGIC):
        path = os.path.join(folder, name)
        if site.files.get(path) != site.shipped[name]:
            text = f"{path} {'is of another version' if path in site.files else 'is missing'}"
            return Item(which.part, "wrong", text, MEND_INSTALL, Exit.FAILED)
    link, table = os.path.join(folder, which.link), site.tables[which.part]
    if table != link and site.table_links.get(link) != table:
        return Item(which.part, "wrong", f"{link} is not a link to {table}", MEND_INSTALL, Exit.FAILED)
    return Item(which.part, "ok", f"{ours} of this version" + (f", called by {first}" if chained else ""))


def _table(facts: TableFacts) -> Item:
    mend = "systemctl enable --now pal-publish-table.service, or pal publish-table --every 5 as SlurmUser"
    if facts.age_s is None or facts.max_age_s is None:
        return Item("table", "wrong", facts.error, mend, Exit.DATA)
    clears = (
        "a daemon takes leases back" if facts.clears else "nobody takes leases back, so the filter sets no node lists"
    )
    text = f"{facts.path}: {age(facts.age_s)} old, epoch {facts.epoch}, {facts.bytes} bytes of {facts.owner}; {clears}"
    if facts.age_s > facts.max_age_s:
        return Item("table", "wrong", f"{text}; older than {facts.max_age_s:g} s: not used", mend, Exit.DATA)
    return Item("table", "ok", text)


def _preferences(site: SiteFiles, running: Mapping[str, str] | None) -> Item:
    said = (running or {}).get("SchedulerParameters") or conf_text.value(site.conf, site.texts, "SchedulerParameters")
    if "ignore_prefer_validation" in said.split(","):
        return Item("prefer", "ok", "SchedulerParameters has ignore_prefer_validation")
    text = "SchedulerParameters has no ignore_prefer_validation: the filter sets no soft preference"
    return Item("prefer", "note", text, "slurm.conf: SchedulerParameters=...,ignore_prefer_validation")


def _spank(site: SiteFiles) -> list[Item]:
    missing = [path for path in changes.spank_paths(site) if not os.path.isfile(path)]
    if missing:
        mend = "make -C spank && make -C spank install"
        item = Item(SPANK, "wrong", f"{missing[0]} is missing, though plugstack.conf loads it", mend, Exit.FAILED)
    else:
        item = Item(SPANK, "ok", f"{', '.join(changes.spank_paths(site))} by plugstack.conf")
    try:
        first = read_text(site.gpus).partition("\n")[0]
    except (OSError, UsageError) as error:
        why = error.strerror if isinstance(error, OSError) else one_line(error)
        lost = f"{site.gpus} cannot be read: {why}"
        return [item, Item("gpus.txt", "wrong", lost, "pal publish-table", Exit.DATA)]
    return [item, Item("gpus.txt", "ok", f"{site.gpus}: {first.lstrip('# ')}")]


def _gres(site: SiteFiles) -> list[Item]:
    try:
        text = read_text(os.path.join(site.folder, "gres.conf"))
    except (OSError, UsageError):
        return []
    mend = "gres.conf: the lines of each type together, devices rising"
    return [Item("gres.conf", "note", line, mend) for line in gres.mixed_types(text)]
