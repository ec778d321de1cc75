# SPDX-License-Identifier: MIT
"""The partitions of a lab from a TOML file, with the keys of slurm.conf that go with them.

    [slurm]                     # keys of slurm.conf; KEYS has those that are allowed
    PreemptType = "preempt/partition_prio"

    [partitions.owner]
    nodes = "n[4-7]"
    tier = 10                   # PriorityTier
    preempt = "off"             # PreemptMode: "off", "requeue" or "cancel"
    grace_s = 0                 # GraceTime

Everything is checked before a lab is started: a key that a release of Slurm does not know makes
each of its commands fail. Pure functions but for `read`. Sources: slurm.conf(5), preempt.html.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base import hostlist
from slurm_pal.base.errors import UsageError
from slurm_pal.slurm import releases
from slurm_pal.slurm.releases import Release

_WEIGHT = ("[0-9]{1,9}", "a whole number")
_DAYS = ("[0-9]{1,3}-[0-9]{1,2}", "days and hours, like 7-0")
KEYS: dict[str, tuple[str, str]] = {
    "AccountingStorageEnforce": ("({0})(,({0}))*".format("associations|limits|qos|safe"), "like qos,limits"),
    "JobRequeue": ("[01]", "0 or 1"),
    "KillWait": ("[0-9]{1,4}", "seconds"),
    "PreemptExemptTime": ("[0-9]{2}:[0-9]{2}:[0-9]{2}", "like 00:10:00"),
    "PreemptMode": ("OFF|CANCEL|REQUEUE", "OFF, CANCEL or REQUEUE"),
    "PreemptParameters": (
        "({0})(,({0}))*".format("send_user_signal|strict_order|youngest_first|reorder_count=[0-9]{1,3}"),
        "send_user_signal, strict_order, youngest_first, reorder_count=N, with commas between",
    ),
    "PreemptType": ("preempt/(none|partition_prio|qos)", "preempt/none, preempt/partition_prio or preempt/qos"),
    "PriorityCalcPeriod": ("[0-9]{1,4}", "minutes"),
    "PriorityDecayHalfLife": _DAYS,
    "PriorityMaxAge": _DAYS,
    "PriorityType": ("priority/(basic|multifactor)", "priority/basic or priority/multifactor"),
    "PriorityWeightAge": _WEIGHT,
    "PriorityWeightFairshare": _WEIGHT,
    "PriorityWeightJobSize": _WEIGHT,
    "PriorityWeightPartition": _WEIGHT,
    "PriorityWeightQOS": _WEIGHT,
}
"""Key of slurm.conf -> what its value must match, and the same in words. All releases know them;
what PreemptParameters says stands elsewhere in older ones."""

STATES = ("up", "down")
MODES = ("off", "requeue", "cancel")
"""PreemptMode of a partition. SUSPEND is left out: a suspended job keeps its GPUs."""

_OLDER_KEY = {
    "send_user_signal": "SlurmctldParameters",
    "strict_order": "SchedulerParameters",
    "youngest_first": "SchedulerParameters",
    "reorder_count": "SchedulerParameters",
}
"""Word of PreemptParameters -> the key that has it in older releases, with `preempt_` before it."""

_NUMBERS = {
    "tier": ("PriorityTier", 0, 65533),
    "job_factor": ("PriorityJobFactor", 0, 65533),
    "grace_s": ("GraceTime", 0, 86400),
    "max_time_min": ("MaxTime", 1, 525600),
    "default_time_min": ("DefaultTime", 1, 525600),
}
"""Key of a partition -> Slurm's, the least and the most."""

_QOS = "normal|guest|owner"  # those that a lab has (lab/accounting.py); with another slurmctld would not start
_BY_ACCOUNTING = {
    "qos": ("QOS", _QOS, "normal, guest or owner"),
    "allow_qos": ("AllowQos", f"({_QOS})(,({_QOS}))*", "some of normal,guest,owner"),
    "allow_accounts": (
        "AllowAccounts",
        "[A-Za-z0-9_-]+(,[A-Za-z0-9_-]+)*",
        'names with commas between, like "owner,root"',
    ),
}
"""Key of a partition that needs slurmdbd -> Slurm's, what its value must match, and the same in words."""
_PARTITION_KEYS = ("nodes", "default", "preempt", "state", *_NUMBERS, *_BY_ACCOUNTING)
_NAME = re.compile("[A-Za-z][A-Za-z0-9_-]{0,31}")


class PartitionFile(NamedTuple):
    """What a file says, as slurm.conf has it."""

    settings: Mapping[str, str]  # key -> value; one that starts with `,` is added to the lab's own
    partitions: Mapping[str, str]  # name -> the words after its name


def read(path: str, nodes: Sequence[str], version: Release, accounting: bool) -> PartitionFile:
    """The file for a lab of these nodes, this release of Slurm, with or without accounting.

    Raises UsageError, in one line, for whatever such a lab could not be started with.
    """
    try:
        with open(path, "rb") as stream:
            table = tomllib.load(stream)
        return parsed(table, nodes, version, accounting)
    except OSError as error:
        raise UsageError(f"--partitions {path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--partitions {path} is not TOML: {error}") from None
    except UsageError as error:
        raise UsageError(f"--partitions {path}: {error}") from None


def parsed(table: Mapping[str, object], nodes: Sequence[str], version: Release, accounting: bool) -> PartitionFile:
    """The same of what TOML made of a file."""
    for name in table:
        if name not in ("slurm", "partitions"):
            raise UsageError(f"{name} is not known: sections [slurm] and [partitions.NAME] are")
    sections = {
        name: _section(f"partitions.{name}", part)
        for name, part in _section("partitions", table.get("partitions", {})).items()
    }
    if not sections:
        raise UsageError('it has no partition: give one like [partitions.guest] with nodes = "ALL"')
    _check_names(list(sections))
    owned = {name: _nodes(f"[partitions.{name}]", part, nodes) for name, part in sections.items()}
    if left := sorted(set(nodes).difference(*owned.values()), key=nodes.index):
        raise UsageError(f"no partition has node {hostlist.fold(left)}: add it to one, or use fewer --nodes")
    lines = {
        name: f"Nodes={hostlist.fold(owned[name])} {_words(f'[partitions.{name}]', part, accounting)}"
        for name, part in sections.items()
    }
    lines[_default(sections)] += " Default=YES"
    asked = {key: _setting(key, value) for key, value in _section("slurm", table.get("slurm", {})).items()}
    settings = _preemption(asked, any(part.get("preempt", "off") != "off" for part in sections.values()))
    if not accounting and settings.get("PreemptType") == "preempt/qos":
        raise UsageError("[slurm] PreemptType preempt/qos needs slurmdbd, which has the QOS: add --accounting")
    if not accounting and "AccountingStorageEnforce" in settings:
        raise UsageError("[slurm] AccountingStorageEnforce needs slurmdbd: add --accounting")
    return PartitionFile(_of_release(settings, version), lines)


def _section(name: str, part: object) -> dict[str, object]:
    if not isinstance(part, dict):
        raise UsageError(f"{name} = {part!r} must be a section, [{name}]")
    return part


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name) or name.upper() == "DEFAULT":
            raise UsageError(
                f"partition {name!r}: a name has 1 to 32 letters, digits, _ and -, a letter first, and is not DEFAULT"
            )


def _nodes(here: str, part: Mapping[str, object], nodes: Sequence[str]) -> tuple[str, ...]:
    whole, text = hostlist.fold(list(nodes)), part.get("nodes", "")
    if text == "":
        raise UsageError(f'{here} has no nodes: give some like nodes = "{whole}", or "ALL"')
    if not isinstance(text, str):
        raise UsageError(f'{here} nodes = {text!r} must be a host list in quotes, like "{whole}", or "ALL"')
    if text.upper() == "ALL":
        return tuple(nodes)
    try:
        names = hostlist.expand(text)
    except UsageError as error:
        raise UsageError(f"{here} {error}") from None
    if others := sorted(set(names).difference(nodes), key=names.index):
        raise UsageError(f"{here} nodes = {text!r}: this lab has no node {hostlist.fold(others)}; it has {whole}")
    return names


def _words(here: str, part: Mapping[str, object], accounting: bool) -> str:
    """The words of a partition's line in slurm.conf, after its name and its nodes."""
    words = [] if "max_time_min" in part else ["MaxTime=INFINITE"]
    for key, value in part.items():
        if key not in _PARTITION_KEYS:
            raise UsageError(f"{here} {key} is not known: {', '.join(_PARTITION_KEYS)} are")
        if key in _NUMBERS:
            theirs, least, most = _NUMBERS[key]
            if type(value) is not int or not least <= value <= most:
                raise UsageError(f"{here} {key} = {value!r} must be a whole number in {least}..{most}")
            words.append(f"{theirs}={value}")
        elif key in _BY_ACCOUNTING:
            theirs, wanted, allowed = _BY_ACCOUNTING[key]
            if not isinstance(value, str) or not re.fullmatch(wanted, value):
                raise UsageError(f"{here} {key} = {value!r} must be {allowed}")
            if not accounting:
                raise UsageError(f"{here} {key} needs slurmdbd: add --accounting")
            words.append(f"{theirs}={value}")
        elif key == "default" and type(value) is not bool:
            raise UsageError(f"{here} default = {value!r} must be true or false")
        elif key == "preempt":
            if value not in MODES:
                raise UsageError(f"{here} preempt = {value!r} must be {', '.join(MODES[:-1])} or {MODES[-1]}")
            words.append(f"PreemptMode={str(value).upper()}")
        elif key == "state" and value not in STATES:
            raise UsageError(f"{here} state = {value!r} must be {' or '.join(STATES)}")
    return " ".join([*words, f"State={str(part.get('state', 'up')).upper()}", "OverSubscribe=NO"])


def _default(sections: Mapping[str, Mapping[str, object]]) -> str:
    """The partition of jobs that name none: the first one where the file does not say."""
    defaults = [name for name, part in sections.items() if part.get("default")]
    if len(defaults) > 1:
        raise UsageError(f"partitions {' and '.join(defaults)} have default = true: only one can")
    return (defaults or list(sections))[0]


def _setting(key: str, value: object) -> str:
    if key not in KEYS:
        raise UsageError(f"[slurm] {key} cannot be set in a lab: {', '.join(KEYS)} can")
    wanted, words = KEYS[key]
    text = str(value)
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not re.fullmatch(wanted, text):
        raise UsageError(f"[slurm] {key} = {value!r} must be {words}")
    return text


def _preemption(settings: Mapping[str, str], wanted: bool) -> dict[str, str]:
    """The settings with what preemption needs: by tiers, and requeue, where a partition may be preempted."""
    kind = settings.get("PreemptType", "preempt/partition_prio" if wanted else "preempt/none")
    mode = settings.get("PreemptMode", "OFF" if kind == "preempt/none" else "REQUEUE")
    if kind == "preempt/none" and mode != "OFF":
        raise UsageError(f'[slurm] PreemptMode = {mode!r} needs a PreemptType, like "preempt/partition_prio"')
    if kind != "preempt/none" and mode == "OFF":
        raise UsageError(f"[slurm] PreemptMode = {mode!r}: {kind} needs CANCEL or REQUEUE")
    return dict(settings) if kind == "preempt/none" else {**settings, "PreemptType": kind, "PreemptMode": mode}


def _of_release(settings: Mapping[str, str], version: Release) -> dict[str, str]:
    """The settings as this release knows them."""
    if "PreemptParameters" not in settings or releases.has(version, "preempt parameters"):
        return dict(settings)
    made = {key: value for key, value in settings.items() if key != "PreemptParameters"}
    for word in settings["PreemptParameters"].split(","):
        key = _OLDER_KEY[word.partition("=")[0]]
        made[key] = f"{made.get(key, '')},preempt_{word}"
    return made
