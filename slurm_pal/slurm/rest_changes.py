# SPDX-License-Identifier: MIT
"""Changes of jobs and nodes, in scontrol's words, as slurmrestd takes them. Pure.

v0.0.38 has undocumented keys for a job's node lists (seen on 22.05.8); it has none for an admin comment, a SiteFactor
or a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slurm_pal.base.errors import NotByRestError, UsageError
from slurm_pal.slurm.parse import seconds

Body = dict[str, Any]


def number(value: int) -> Body:
    """A number as later versions write it."""
    return {"set": True, "infinite": False, "number": value}


def _text(key: str) -> Callable[[str], Body]:
    return lambda value: {key: value}


def _words(key: str) -> Callable[[str], Body]:
    return lambda value: {key: [value]}  # an empty list would change nothing


def _whole(key: str) -> Callable[[str], Body]:
    return lambda value: {key: int(value)}


def _number(key: str) -> Callable[[str], Body]:
    return lambda value: {key: number(int(value))}


def _minutes(value: str) -> int:
    limit_s = seconds(value)
    if limit_s is None:
        raise ValueError(value)
    return -(-limit_s // 60)


_BOTH: dict[str, Callable[[str], Body]] = {
    "Comment": _text("comment"), "Features": _text("constraints"), "Prefer": _text("prefer"),
    "Partition": _text("partition"), "QOS": _text("qos"), "StartTime": _text("begin_time"), "Nice": _whole("nice"),
}  # fmt: skip
_OLD = _BOTH | {
    "ReqNodeList": _text("nodelist"), "ExcNodeList": _text("exclude_nodes"),
    "TimeLimit": lambda value: {"time_limit": str(_minutes(value))},
}  # fmt: skip
_NEW = _BOTH | {
    "ReqNodeList": _words("required_nodes"), "ExcNodeList": _words("excluded_nodes"),
    "TimeLimit": lambda value: {"time_limit": number(_minutes(value))}, "AdminComment": _text("admin_comment"),
    "SiteFactor": _whole("site_factor"), "Priority": _number("priority"),
}  # fmt: skip
_NODE = {
    "AvailableFeatures": _words("features"), "ActiveFeatures": _words("features_act"), "Weight": _number("weight"),
    "State": _words("state"), "Reason": _text("reason"),
}  # fmt: skip


def of_job(fields: Mapping[str, str], version: int, new: bool) -> Body:
    """A job's changes. Raises NotByRestError for a field without a key, UsageError for one that holds no such value."""
    return _body(fields, _NEW if new else _OLD, f"jobs in v0.0.{version}")


def of_nodes(fields: Mapping[str, str], version: int, new: bool) -> Body:
    """The same for nodes, without their names."""
    return _body(fields, _NODE if new else {}, f"nodes in v0.0.{version}")


def _body(fields: Mapping[str, str], table: Mapping[str, Callable[[str], Body]], what: str) -> Body:
    body: Body = {}
    for key, value in fields.items():
        if key not in table:
            raise NotByRestError(f"slurmrestd has no key for {key} of {what}: use scontrol where Slurm's commands are")
        if not value.isprintable():
            raise UsageError(f"{key}={value!r} holds a control character")
        try:
            body |= table[key](value)
        except ValueError:
            raise UsageError(f"{key}={value} is not a value that scontrol takes") from None
    return body
