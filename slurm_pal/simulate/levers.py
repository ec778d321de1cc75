# SPDX-License-Identifier: MIT
"""The levers of the tick, each a setting of pal.toml, switched by name: tick+order, tick-moves, tick+order=fair.

The same words name policies of pal simulate and arms of pal trial.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping

from slurm_pal.base.config import KEYS, Config, Value
from slurm_pal.base.errors import UsageError

TICK, SECTION = "tick", "rebalance"
MOVES, GATHER, WAIT, ORDER = "moves", "gather", "wait", "order"

LEVERS: Mapping[str, str] = {
    "retarget": "node lists of pending jobs",
    "fit": "class fit at every start, also of jobs that queue",
    "avoid": "jobs are kept off slow GPUs",
    MOVES: "moves of running jobs",
    GATHER: "spread jobs are brought together",
    WAIT: "jobs at the head of the queue wait for better GPUs",
    ORDER: "who starts first: what the queue does, whatever the GPUs",
}
"""Name, which is that of the setting of rebalance.* -> what it does."""

_OFF, _ON = "none", "shortest"
"""Of the lever with several values: the one at which it does nothing, and the one meant where none is given."""
_PARTS = re.compile(rf"([+-])(?=(?:{'|'.join(LEVERS)})(?:[+=-]|$))")

Switched = dict[tuple[str, str], Value]
"""Setting -> value."""


def off(name: str) -> Value:
    """The value at which a lever does nothing."""
    return _OFF if KEYS[SECTION][name].choices else False


def on(name: str) -> Value:
    """The value that switches a lever on where none is given."""
    return _ON if KEYS[SECTION][name].choices else True


def is_on(config: Config, name: str) -> bool:
    """Whether the tick uses a lever by these settings."""
    return config[SECTION, name] != off(name)


def has_levers(name: str) -> bool:
    """Whether it is a name of the tick with levers, known or not."""
    return name.startswith((f"{TICK}+", f"{TICK}-"))


def switched(name: str) -> Switched:
    """The settings that a name such as tick+order-moves changes; {} for any other name.

    Raises UsageError for a lever that is unknown or given twice.
    """
    if not has_levers(name):
        return {}
    found: Switched = {}
    _, *parts = _PARTS.split(name)
    if not parts or not name.startswith(f"{TICK}{parts[0]}"):
        raise UsageError(f"{name!r}: after tick come levers: +NAME or -NAME of {', '.join(LEVERS)}")
    for sign, word in zip(parts[::2], parts[1::2], strict=True):
        lever, given, value = word.partition("=")
        if re.search("[+-]", lever):
            raise UsageError(f"{name!r}: {lever!r} is not one of {', '.join(LEVERS)}")
        if (SECTION, lever) in found:
            raise UsageError(f"{name!r}: {lever} is given twice")
        key = KEYS[SECTION][lever]
        if given and (sign == "-" or not key.choices or value not in key.choices):
            words = ", ".join(f"+{lever}={one}" for one in key.choices) or f"+{lever}"
            raise UsageError(f"{name!r}: {sign}{word} is not one of {words}, -{lever}")
        found[SECTION, lever] = off(lever) if sign == "-" else value if given else on(lever)
    return found


def names() -> dict[str, str]:
    """Each lever apart, and each of its values -> what it does: rows of --list."""
    found = {}
    for lever in LEVERS:
        key = KEYS[SECTION][lever]
        words = [word for word in key.choices if word not in (off(lever), on(lever))]
        found[f"{TICK}+{lever}"] = f"tick, {_said(lever, on(lever))}"
        found |= {f"{TICK}+{lever}={word}": f"tick, {_said(lever, word)}" for word in words}
        found[f"{TICK}-{lever}"] = f"tick, {_said(lever, off(lever))}"
    return found


def _said(lever: str, value: Value) -> str:
    return f"{SECTION}.{lever} = {str(value).lower()} ({LEVERS[lever]})"


def with_settings(config: Config, settings: Switched, origin: str) -> Config:
    """A copy with these settings."""
    made = copy.deepcopy(config)
    for (section, key), value in settings.items():
        made.set(section, key, value, origin)
    return made


def without(config: Config, levers: Iterable[str]) -> Config:
    """A copy with these levers switched off."""
    return with_settings(config, {(SECTION, name): off(name) for name in levers if is_on(config, name)}, "a placebo")
