# SPDX-License-Identifier: MIT
"""What a site has: the files around its slurm.conf, read once, and whether they can be trusted."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import stat
import sys
from collections.abc import Iterator, Mapping

from slurm_pal.admin import conf_text
from slurm_pal.admin.changes import ChangePlan, SiteFiles, loaded_plugins
from slurm_pal.admin.shipped import CLIENT, FILTERS, FOLDER, PLUGSTACK, SERVER, SPANK_FILE, lua_files
from slurm_pal.base.config import Config
from slurm_pal.base.errors import UsageError
from slurm_pal.base.files import slurm_conf
from slurm_pal.filter.source import LOGIC

LARGEST_BYTES = 16 * 2**20
_PLUGIN_FOLDERS = ("/usr/lib*/slurm-pal", "/usr/lib/*/slurm-pal", "/usr/local/lib*/slurm-pal")


def find_conf(named: str | None) -> str:
    """The slurm.conf meant by `--conf DIR|FILE`, else the one in force. Raises UsageError if it does not exist."""
    path = os.path.abspath(named or slurm_conf())
    if os.path.isdir(path):
        path = os.path.join(path, "slurm.conf")
    if not os.path.isfile(path):
        raise UsageError(f"there is no {path}: run this where slurmctld runs, or give --conf DIR")
    return path


def conf_texts(conf: str) -> dict[str, str]:
    """The texts of slurm.conf and all that it includes, by path. Raises UsageError."""
    return conf_text.read_all(conf, read_text)


def read(conf: str, config: Config, plugin: str | None = None, plugin_dirs: str = "") -> SiteFiles:
    """Read all that a plan needs.

    `plugin` is the path of pal_spank.so; None: the one that plugstack.conf already loads,
    else the first in `plugin_dirs` (colon-separated, Slurm's PluginDir) and the usual folders.

    Raises UsageError for a file that cannot be read or is far too large.
    """
    texts = conf_texts(conf)
    folder = os.path.dirname(conf)
    plugstack = os.path.realpath(conf_text.value(conf, texts, "PlugStackConfig") or os.path.join(folder, PLUGSTACK))
    stack = read_text(plugstack) if os.path.exists(plugstack) else None
    dirs = conf_text.value(conf, texts, "PluginDir") or plugin_dirs
    return SiteFiles(
        conf=conf,
        conf_target=os.path.realpath(conf),
        texts=texts,
        plugstack=plugstack,
        plugstack_text=stack,
        plugstack_more=_stack_includes(plugstack, stack or ""),
        files={p: read_text(p) for p in _lua_places(folder) if os.path.isfile(p)},
        table_links=_table_links(folder),
        shipped=lua_files(),
        plugin=os.path.abspath(plugin) if plugin else next(iter(loaded_plugins(stack or "")), find_plugin(dirs)),
        tables={
            SERVER.part: os.path.abspath(config.table_path),
            CLIENT.part: os.path.abspath(config.public_table_path),
        },
        gpus=os.path.abspath(config.gpus_path),
        python=config.text("profile", "python") or sys.executable,
    )


def read_text(path: str) -> str:
    """A file as text that can be turned back into its bytes. Raises UsageError or FileNotFoundError."""
    try:
        with open(path, "rb") as stream:
            raw = stream.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > LARGEST_BYTES:
        raise UsageError(f"{path} is larger than {LARGEST_BYTES} bytes: not a file of Slurm's")
    return raw.decode("utf-8", "surrogateescape")


def find_plugin(plugin_dirs: str) -> str:
    """The path of pal_spank.so in Slurm's plug-in folders or ours, "" if it is in none."""
    folders = plugin_dirs.split(":") + [found for pattern in _PLUGIN_FOLDERS for found in sorted(glob.glob(pattern))]
    paths = (os.path.join(folder, SPANK_FILE) for folder in folders if folder.startswith("/"))
    return next((path for path in paths if os.path.isfile(path)), "")


def _lua_places(folder: str) -> list[str]:
    names = (LOGIC, *(each.file for each in FILTERS))
    return [os.path.join(place, name) for place in (folder, os.path.join(folder, FOLDER)) for name in names]


def _table_links(folder: str) -> dict[str, str | None]:
    folders = (folder, os.path.join(folder, FOLDER))
    places = [os.path.join(place, each.link) for place in folders for each in FILTERS]
    return {p: os.readlink(p) if os.path.islink(p) else None for p in places if os.path.lexists(p)}


def _stack_includes(plugstack: str, text: str) -> dict[str, str]:
    """The files that a plugstack.conf includes, one level deep."""
    found: dict[str, str] = {}
    for words in (line.partition("#")[0].split() for line in text.split("\n")):
        if len(words) == 2 and words[0].lower() == "include":
            for path in sorted(glob.glob(os.path.join(os.path.dirname(plugstack), words[1]))):
                with contextlib.suppress(OSError, UsageError):
                    found[path] = read_text(path)
    return found


def slurm_user(site: SiteFiles) -> int:
    """The uid of SlurmUser; root's if slurm.conf does not name one."""
    name = conf_text.value(site.conf, site.texts, "SlurmUser").partition("(")[0]
    if name.isdigit():
        return int(name)
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(name).pw_uid
    return 0


def distrust(site: SiteFiles, plan: ChangePlan) -> tuple[str, ...]:
    """Why the plan must not be carried out: somebody else could write what slurmctld or root will read."""
    powers = {0, slurm_user(site)}
    blockers: list[str] = []
    for path in dict.fromkeys(_touched(site, plan)):
        info = os.stat(path)
        if stat.S_IMODE(info.st_mode) & 0o002:
            blockers.append(f"{path} can be written by everyone: chmod o-w {path}")
        if info.st_uid not in powers:
            blockers.append(f"{path} belongs to uid {info.st_uid}, neither root nor SlurmUser: chown root {path}")
    return tuple(blockers)


def may_act(site: SiteFiles) -> bool:
    """Whether the caller is root or SlurmUser: anybody else's files would not be trusted."""
    return os.geteuid() in {0, slurm_user(site)}


def _touched(site: SiteFiles, plan: ChangePlan) -> Iterator[str]:
    """Existing files and folders whose owner could change what the plan makes."""
    yield from (site.folder, os.path.dirname(site.conf_target), site.conf_target)
    if any(step.path == site.plugstack for step in plan.steps):
        yield os.path.dirname(site.plugstack)
        yield from (site.plugin, os.path.dirname(site.plugin)) if site.plugin else ()
    for step in plan.steps:
        yield from (p for p in (step.path, os.path.dirname(step.path)) if os.path.exists(p))


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def plugin_dirs(site: SiteFiles, running: Mapping[str, str]) -> str:
    """Slurm's PluginDir, by slurm.conf or by slurmctld; "" if neither names it."""
    return conf_text.value(site.conf, site.texts, "PluginDir") or running.get("PluginDir", "")
