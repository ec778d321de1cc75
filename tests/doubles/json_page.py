# SPDX-License-Identifier: MIT
"""docs/json.md, read as it is written, and what an output has that the page has not, or the other way round."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
_HEAD = re.compile(r"(pal\.[a-z_-]+/\d+): (.+)")
_FIELD = re.compile(r"(\()?([a-z_0-9]+)((?:\{\}|\[\])*)([#?.]?)\)?")


class Field(NamedTuple):
    """One key: how it is written, and whether it is always there."""

    holders: str  # any of [] and {}, from the outside in
    scalar: str  # "" text, # number, ? true or false, . an object
    always: bool


class Schema(NamedTuple):
    """Who prints it, and its keys: path of the object ("" the whole one) -> key -> field."""

    commands: tuple[str, ...]
    objects: Mapping[str, Mapping[str, Field]]


def read(text: str | None = None) -> dict[str, Schema]:
    """The schemas of the page by name. Raises ValueError for a line that cannot be read."""
    found: dict[str, Schema] = {}
    text = PAGE.read_text() if text is None else text
    objects: dict[str, dict[str, Field]] = {}
    for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL):
        for line in re.sub(r"\n {6,}", " ", block).splitlines():
            if not line:
                continue
            if head := _HEAD.fullmatch(line):
                if head[1] in found:
                    raise ValueError(f"{head[1]} is there twice")
                objects = {}
                found[head[1]] = Schema(tuple(head[2].split(", ")), objects)
                continue
            path, colon, words = line.strip().rpartition(": ")
            fields: dict[str, Field] = {}
            for word in words.split():
                read_ = _FIELD.fullmatch(word)
                if read_ is None or read_[2] in fields:
                    raise ValueError(f"{word!r} in {line!r}")
                fields[read_[2]] = Field(read_[3], read_[4], not read_[1])
            if path in objects or bool(colon) != bool(objects):
                raise ValueError(line)
            objects[path] = fields
    for name, schema in found.items():
        if loose := _loose(schema.objects):
            raise ValueError(f"{name}: {loose}")
    return found


def _loose(objects: Mapping[str, Mapping[str, Field]]) -> set[str]:
    """Objects that no key leads to, and keys `name.` whose object has no line."""
    keys = {
        (f"{path}." if path else "") + key + field.holders: field
        for path, fields in objects.items()
        for key, field in fields.items()
    }
    return {path for path in objects if path and path not in keys} | {
        path for path, field in keys.items() if field.scalar == "." and path not in objects
    }


def differences(body: Mapping[str, Any], schemas: Mapping[str, Schema]) -> list[str]:
    """Where an output is not as the page says; [] where it is."""
    name = str(body.get("schema"))
    if name not in schemas:
        return [f"{name} is not on the page"]
    rest = {key: value for key, value in body.items() if key != "schema"}
    return [f"{name} {text}" for text in _of(rest, "", schemas[name].objects)]


def _of(body: Mapping[str, Any], path: str, objects: Mapping[str, Mapping[str, Field]]) -> Iterator[str]:
    fields = objects[path]
    for key in body.keys() - fields.keys():
        yield f"{path or 'itself'} has {key}, which the page has not"
    for key in fields.keys() - body.keys():
        if fields[key].always:
            yield f"{path or 'itself'} lacks {key}"
    for key, field in fields.items():
        if key in body:
            below = f"{path}.{key}" if path else key
            yield from _value(body[key], below, field, field.holders, objects)


def _value(
    value: object, path: str, field: Field, holders: str, objects: Mapping[str, Mapping[str, Field]]
) -> Iterator[str]:
    if value is None:
        return
    if holders:
        wanted: type = list if holders.startswith("[]") else dict
        if not isinstance(value, wanted):
            yield f"{path} is not a {wanted.__name__}"
            return
        path = f"{path}{holders[:2]}"
        if path not in objects and not field.scalar and len(holders) == 2 and wanted is dict:
            return  # open: what it holds is up to its page
        for one in value if isinstance(value, list) else value.values():
            yield from _value(one, path, field, holders[2:], objects)
    elif path in objects:
        if isinstance(value, dict):
            yield from _of(value, path, objects)
        else:
            yield f"{path} is not an object"
    else:
        kind = {"": str, "#": (int, float), "?": bool}[field.scalar]
        if not isinstance(value, kind) or (field.scalar == "#" and isinstance(value, bool)):
            yield f"{path} is {value!r:.60}, not {field.scalar or 'text'}"
