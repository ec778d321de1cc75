# SPDX-License-Identifier: MIT
"""Nouns as JSON and back, exactly: named tuples by the names of their fields, numbers to the last bit, order kept.

What JSON has no form for is an object of one key: `t` a named tuple (its place in the table of kinds, then its
values), `m` a mapping (pairs), `d` a mapping of texts, `l` a list, `s` a set, `e` a member of an enumeration, `f` a
float that is no number. Nothing that a text names is run: it must be a named tuple or an enumeration of ours.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from slurm_pal.base.errors import DataError

PACKAGE = "slurm_pal."
ROOMS = frozenset({"base", "slurm", "decide", "store", "journal", "moves", "online", "pending", "partitions", "tick"})
"""Where the nouns of a decision are."""
_PLAIN = frozenset({type(None), bool, int, str})

Short = Callable[[object], object]
"""What stands for a value; the value itself where nothing shorter does."""


def coded(value: object, short: Short = lambda value: value) -> dict[str, Any]:
    """A value as JSON has it. Raises TypeError for a kind of value that has no form here."""
    kinds: dict[type, int] = {}
    body = _coded(value, kinds, short)
    return {"kinds": [[_name(kind), *getattr(kind, "_fields", ())] for kind in kinds], "value": body}


def encode(value: object, short: Short = lambda value: value) -> str:
    """The same as text."""
    return json.dumps(coded(value, short), separators=(",", ":"), allow_nan=False)


def decoded(found: dict[str, Any]) -> Any:  # noqa: ANN401  # whatever was coded
    """The value again. Raises DataError for what `coded` does not make, or a field that is not known here."""
    try:
        return _decoded(found["value"], [_kind(*row) for row in found["kinds"]])
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise DataError(f"not a value ({type(error).__name__}: {error})") from None


def _coded(value: object, kinds: dict[type, int], short: Short) -> Any:  # noqa: ANN401  # what json.dumps takes
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, float):  # numpy's, too
        return float(value) if math.isfinite(value) else {"f": repr(float(value))}
    shorter = short(value)
    if shorter is not value:
        return _coded(shorter, kinds, short)
    if isinstance(value, Enum):
        return {"e": [kinds.setdefault(kind, len(kinds)), value.value]}
    if isinstance(value, tuple):
        if kind is tuple:
            return [_coded(one, kinds, short) for one in value]
        if hasattr(kind, "_fields"):
            return {"t": [kinds.setdefault(kind, len(kinds)), *(_coded(one, kinds, short) for one in value)]}
    if isinstance(value, Mapping):
        if all(type(one) is str for pair in value.items() for one in pair):
            return {"d": dict(value)}
        return {"m": [[_coded(key, kinds, short), _coded(one, kinds, short)] for key, one in value.items()]}
    if isinstance(value, list):
        return {"l": [_coded(one, kinds, short) for one in value]}
    if isinstance(value, frozenset | set):  # equal sets have one text
        return {"s": sorted((_coded(one, kinds, short) for one in value), key=repr)}
    raise TypeError(f"a {kind.__module__}.{kind.__qualname__} has no form in JSON")


def _name(kind: type) -> str:
    return f"{kind.__module__.removeprefix(PACKAGE)}:{kind.__qualname__}"


def _kind(name: str, *fields: str) -> tuple[Any, tuple[int, ...]]:
    """A kind, and where each of its fields is in a row, -1 where the row has none."""
    module, _, word = name.partition(":")
    room = module.partition(".")[0]
    try:
        kind = getattr(importlib.import_module(PACKAGE + module), word) if room in ROOMS else None
    except (ImportError, AttributeError):
        kind = None
    known = getattr(kind, "_fields", None)
    if not isinstance(kind, type) or not (issubclass(kind, Enum) or (issubclass(kind, tuple) and known is not None)):
        raise DataError(f"{name!r:.80} is nothing that this release knows")
    if unknown := [field for field in fields if field not in (known or ())]:
        raise DataError(f"{name} has a field {unknown[0]!r:.40} that this release does not know")
    return kind, tuple(fields.index(field) if field in fields else -1 for field in known or ())


def _decoded(value: Any, kinds: list[tuple[Any, tuple[int, ...]]]) -> Any:  # noqa: ANN401  # as `decode`
    if isinstance(value, list):
        return tuple(_decoded(one, kinds) for one in value)
    if not isinstance(value, dict):
        return value
    ((form, body),) = value.items()
    if form == "t":
        kind, places = kinds[body[0]]
        values = [_decoded(one, kinds) for one in body[1:]]
        given = {field: values[k] for field, k in zip(kind._fields, places, strict=True) if k >= 0}
        return kind(**given)
    if form == "d":
        return body
    if form == "m":
        return {_decoded(key, kinds): _decoded(one, kinds) for key, one in body}
    if form == "l":
        return [_decoded(one, kinds) for one in body]
    if form == "s":
        return frozenset(_decoded(one, kinds) for one in body)
    if form == "e":
        return kinds[body[0]][0](body[1])
    if form == "f":
        return float(body)
    raise DataError(f"{form!r:.40} is no form of a value")
