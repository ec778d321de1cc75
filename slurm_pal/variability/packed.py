# SPDX-License-Identifier: MIT
"""Rows of one kind as columns: the results of thousands of GPUs in one sweep, in a few bytes each.

As tuples the observations of 40,000 GPUs and ten benchmarks take hundreds of megabytes, most of them
for equal texts. Here a number is eight bytes, and everything else four: its place in a table of the
distinct values, which all rows share. The bytes can be kept, and give the same rows again.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

Row = TypeVar("Row", bound=tuple[Any, ...])

LENGTH_BYTES = 8


class Layout(NamedTuple):
    """How rows of one kind are kept."""

    kind: Callable[[Iterable[Any]], Any]  # makes a row from the values of its fields: `_make`
    fields: tuple[str, ...]
    numbers: frozenset[str]  # fields that are floats
    optional: frozenset[str]  # ... of which these may be None
    load: Mapping[str, Callable[[Any], Any]]  # field -> how its value is made from JSON, where the two differ


class Packed(Generic[Row]):
    """Rows in the order in which they were appended. Equal values of all rows are one object."""

    def __init__(self, layout: Layout, rows: Iterable[Row] = ()) -> None:
        self._layout = layout
        self._columns: dict[str, array[Any]] = {
            name: array("d" if name in layout.numbers else "I") for name in layout.fields
        }
        self._places: dict[str, dict[Any, int]] = {n: {} for n in layout.fields if n not in layout.numbers}
        for row in rows:
            self.append(row)

    def append(self, row: Row) -> None:
        """Add a row at the end."""
        for (name, column), value in zip(self._columns.items(), row, strict=True):
            places = self._places.get(name)
            if places is not None:
                column.append(places.setdefault(value, len(places)))
            else:
                column.append(math.nan if value is None else value)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __iter__(self) -> Iterator[Row]:
        return map(self._layout.kind, zip(*map(self._values, self._layout.fields), strict=True))

    def __getitem__(self, position: int) -> Row:
        found: Row = self._layout.kind(self._value(name, column[position]) for name, column in self._columns.items())
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Packed) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it grows

    def _values(self, name: str) -> Iterable[Any]:
        column = self._columns[name]
        if name in self._places:
            return map(list(self._places[name]).__getitem__, column)
        return map(_told, column) if name in self._layout.optional else column

    def _value(self, name: str, held: Any) -> Any:  # noqa: ANN401 - any field of any kind
        if name in self._places:
            return list(self._places[name])[held]
        return _told(held) if name in self._layout.optional else held

    def to_bytes(self) -> bytes:
        """All rows, for `from_bytes` on a machine of the same byte order."""
        tables = {name: [_plain(value) for value in places] for name, places in self._places.items()}
        header = json.dumps([len(self), tables], separators=(",", ":")).encode()
        parts = [len(header).to_bytes(LENGTH_BYTES, sys.byteorder), header]
        return b"".join([*parts, *(column.tobytes() for column in self._columns.values())])

    @classmethod
    def from_bytes(cls, layout: Layout, data: memoryview) -> Packed[Row]:
        """The rows that `to_bytes` wrote. Raises ValueError or KeyError for other bytes."""
        start = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], sys.byteorder)
        count, tables = json.loads(bytes(data[LENGTH_BYTES:start]))
        found = cls(layout)
        for name, column in found._columns.items():
            size = count * column.itemsize
            column.frombytes(data[start : start + size])
            start += size
            if name in found._places:
                load = layout.load.get(name, _same)
                found._places[name] = {load(value): place for place, value in enumerate(tables[name])}
        if start != len(data):
            raise ValueError(f"{len(data)} bytes where {start} are needed")
        return found


def _told(value: float) -> float | None:
    return None if value != value else value


def _same(value: Any) -> Any:  # noqa: ANN401 - any field of any kind
    return value


def _plain(value: Any) -> Any:  # noqa: ANN401 - any field of any kind
    return sorted(value) if isinstance(value, frozenset) else value
