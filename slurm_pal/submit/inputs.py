# SPDX-License-Identifier: MIT
"""Which nodes have a new job's input: what its user states, a few words of its script, the site's table, own copies.

Everything is looked at with the user's own rights: sizes only, no content. The script is neither run nor expanded.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence

from slurm_pal.base.data_places import USUAL_GIB_PER_S, DataPlace
from slurm_pal.base.hostlist import expand
from slurm_pal.base.light import suppress
from slurm_pal.base.terminal import visible
from slurm_pal.decide.near import Input, Near, near
from slurm_pal.submit import copies
from slurm_pal.submit.choice import Choice, variable
from slurm_pal.submit.script import Script

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.base.cluster import Node
    from slurm_pal.base.config import Config

LOOK_S, MOST_FILES = 0.2, 20_000
"""A directory is looked through for so long; the size of a larger one is not known."""
MOST = 16
_OPTION = re.compile(r"--data(?:-dir|_dir)?[= ](/[A-Za-z0-9_./+-]+)")
_COMMANDS = ("tar", "cp", "rsync")
_PATH = re.compile(r"/[A-Za-z0-9_./+-]+")
_SCRIPT_BYTES = 1 << 16


def paths(
    chosen: Choice, environment: Mapping[str, str], script: Script | None, config: Config
) -> tuple[list[str], bool]:
    """The inputs, and whether the user stated them. Guesses are made only where something is known of data."""
    directives = dict(script.pal) if script else {}
    said = (chosen.input, directives.get("input"), variable(environment, "INPUT"))
    text = next((one for one in said if one is not None), None)
    if text is not None:
        return [os.path.abspath(path) for path in text.split(",") if path][:MOST], True
    if script is None or not config.data:
        return [], False
    return guessed(script.body[:_SCRIPT_BYTES].decode("utf-8", "replace"))[:MOST], False


def guessed(text: str) -> list[str]:
    """Absolute paths after --data= and --data-dir=, and those that tar, cp and rsync are given, as they stand."""
    found: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        found += _OPTION.findall(line)
        if words[0] in _COMMANDS:
            found += [word for word in words[1:] if _PATH.fullmatch(word)]
    return list(dict.fromkeys(os.path.normpath(path) for path in found))


def size_of(path: str) -> int:
    """Bytes of a file or of all files below a directory, 0 where that is not known in time. Raises OSError."""
    info = os.stat(path)
    if not os.path.isdir(path):
        return info.st_size
    until_s, total, count = time.monotonic() + LOOK_S, 0, 0
    for folder, _, names in os.walk(path):
        for name in names:
            count += 1
            if count > MOST_FILES or time.monotonic() > until_s:
                return 0
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def nearness(
    wanted: Sequence[str], stated: bool, config: Config, nodes: Iterable[Node], now_s: float, warnings: list[str]
) -> Near | None:
    """Which nodes have these inputs. A stated path that is not there is reported."""
    known = list(nodes)
    own = copies.read(now_s)
    found: list[Input] = []
    for path in wanted:
        place = place_of(path, config.data)
        local = _nodes(place, known) if place else frozenset()
        local |= {node for node, held in own.items() if copies.covers(held, path)}
        try:
            size = size_of(path)
        except OSError as error:
            size = max((copies.covers(held, path) for held in own.values()), default=0)
            if stated and not size:
                warnings.append(f"input {visible(path)} cannot be looked at: {error.strerror}")
        found.append(Input(path, size, local, place.gib_per_s if place else USUAL_GIB_PER_S))
    return near(found)


def place_of(path: str, table: Mapping[str, DataPlace]) -> DataPlace | None:
    """The row of the longest prefix, by whole parts of the path."""
    inside = [prefix for prefix in table if path == prefix or path.startswith(prefix.rstrip("/") + "/")]
    return table[max(inside, key=len)] if inside else None


def _nodes(place: DataPlace, nodes: Sequence[Node]) -> frozenset[str]:
    if place.feature:
        return frozenset(node.name for node in nodes if place.feature in node.features)
    return frozenset(expand(place.nodes))
