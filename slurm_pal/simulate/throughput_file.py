# SPDX-License-Identifier: MIT
"""Throughput tables as Gavel has them: steps per second of a model on a number of GPUs of a type.

Two forms: the JSON of its simulator, with pairs of jobs that share GPUs, and a flat CSV
`model,scale_factor,TYPE,...`. A type that ends in `_unconsolidated` is the same type
spread over servers; no simulation here knows servers, so it is not read.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slurm_pal.allocation.throughputs import MOST_RATE
from slurm_pal.base.errors import DataError

SPREAD = "_unconsolidated"
_KEY = re.compile(r"\('(?P<model>[^']+)', (?P<gpus>[1-9][0-9]{0,5})\)")
_COLUMNS = ("model", "scale_factor")

Key = tuple[str, int]
"""A model and its scale factor: the GPUs that a job of it holds at once."""
Rates = tuple[float, ...]
"""Steps/s of the whole job on each of `Throughputs.types`; 0: it cannot run there."""


class Throughputs(NamedTuple):
    """One table. Pairs hold the rate of the first beside the second."""

    types: tuple[str, ...]  # GPU types in the order of the file
    packed: Mapping[Key, Rates]  # of a job alone, on as few servers as possible
    pairs: Mapping[tuple[Key, Key], Rates] = {}  # (this, other) on the same GPUs, by type

    def rates(self, model: str, gpus: int, types: Sequence[str]) -> Rates:
        """Steps/s of a job on each of `types`. Raises DataError for a model, number or type not in it."""
        found = self.packed.get((model, gpus))
        if found is None:
            sizes = sorted(size for name, size in self.packed if name == model)
            known = f"it has that model on {', '.join(map(str, sizes))}" if sizes else "it does not have that model"
            raise DataError(f"the throughput table has no {model!r} on {gpus} GPUs: {known}; add the row")
        return tuple(found[place] for place in self.places(types))

    def places(self, types: Sequence[str]) -> list[int]:
        """The position of each of `types` in a row. Raises DataError for one that is not in the table."""
        for name in types:
            if name not in self.types:
                raise DataError(f"GPU type {name!r} is not in the throughput table, which has {', '.join(self.types)}")
        return [self.types.index(name) for name in types]


def read_throughputs(path: str) -> Throughputs:
    """Read a table: JSON where the name ends so, else CSV.

    Raises DataError: a file that cannot be read or has another form, a rate that is not allowed, a key that is
    not ('MODEL', GPUS), a model that comes twice in a CSV, or no GPU type or row at all.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            if path.endswith(".json"):
                return _from_json(path, json.load(stream))
            return _from_csv(path, list(csv.reader(stream, strict=True)))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except (csv.Error, ValueError, RecursionError) as error:  # JSON and UTF-8 errors are ValueErrors
        raise DataError(f"{path} cannot be read as a throughput table: {error}") from None


# -- JSON ---------------------------------------------------------------------------------


def _from_json(path: str, found: object) -> Throughputs:
    tables = _mapping(path, found, "GPU types")
    types = _types(path, tables)
    alone: dict[str, dict[Key, float]] = {}
    pairs: dict[tuple[Key, Key], dict[str, float]] = {}
    for name in types:
        alone[name] = {}
        for text, row in _mapping(f"{path}: {name}", tables[name], "('MODEL', GPUS) keys").items():
            where = f"{path}: {name}: {text}"
            key, rates = _key(where, text), _mapping(where, row, "rates")
            if "null" not in rates:
                raise DataError(f'{where}: no "null", the rate of the job alone')
            alone[name][key] = _rate(where, rates["null"])
            for other, both in rates.items():
                if other != "null":
                    pairs.setdefault((key, _key(where, other)), {})[name] = _first_rate(f"{where}: {other}", both)
    by_type = {both: tuple(rates.get(name, 0.0) for name in types) for both, rates in pairs.items()}
    return _table(path, types, alone, by_type)


def _mapping(where: str, found: object, what: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise DataError(f"{where}: {found!r:.60} must be an object with {what}")
    return found


def _key(where: str, text: str) -> Key:
    found = _KEY.fullmatch(text)
    if found is None:
        raise DataError(f"{where}: the key {text!r:.60} must be \"('MODEL', GPUS)\"")
    return found["model"], int(found["gpus"])


def _first_rate(where: str, both: object) -> float:
    """The rate of the first of two jobs; the other's is in the row of the other."""
    if not isinstance(both, list) or len(both) != 2:
        raise DataError(f"{where}: {both!r:.60} must be the rates of two jobs, [this, other]")
    first, second = (_rate(where, rate) for rate in both)
    return first if second > 0 else 0.0


def _rate(where: str, value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (value == 0 or 1 / MOST_RATE <= value <= MOST_RATE)
    ):
        raise DataError(
            f"{where}: rate {value!r:.60} must be steps/s: 0 (cannot run there), or {1 / MOST_RATE:g} to {MOST_RATE:g}"
        )
    return float(value)


# -- CSV ----------------------------------------------------------------------------------


def _from_csv(path: str, lines: Sequence[Sequence[str]]) -> Throughputs:
    header = [name.strip() for name in lines[0]] if lines else []
    if tuple(header[:2]) != _COLUMNS or len(set(header)) < len(header) or "" in header:
        raise DataError(f"{path} line 1: {','.join(header)!r:.80} must be model,scale_factor,TYPE,... with own names")
    names = header[2:]
    alone: dict[str, dict[Key, float]] = {name: {} for name in names}
    lines_of: dict[Key, int] = {}
    for line, cells in enumerate(lines[1:], start=2):
        if not any(cell.strip() for cell in cells):
            continue
        where = f"{path} line {line}"
        if len(cells) != len(header):
            raise DataError(f"{where}: {len(cells)} columns, but the header has {len(header)}")
        key = _csv_key(where, cells)
        if key in lines_of:
            raise DataError(f"{where}: {key[0]!r} on {key[1]} GPUs was given before, on line {lines_of[key]}")
        lines_of[key] = line
        for name, cell in zip(names, cells[2:], strict=True):
            alone[name][key] = _csv_rate(f"{where}: {name}", cell.strip())
    return _table(path, _types(path, alone), alone, {})


def _csv_key(where: str, cells: Sequence[str]) -> Key:
    model, gpus = cells[0].strip(), cells[1].strip()
    if not model or not gpus.isascii() or not gpus.isdigit() or not 0 < int(gpus) < 10**6:
        raise DataError(f"{where}: model {model!r:.60}, scale_factor {gpus!r:.20}: must be a name and a number of GPUs")
    return model, int(gpus)


def _csv_rate(where: str, cell: str) -> float:
    try:
        value: object = float(cell) if cell else 0.0  # empty: not available
    except ValueError:
        value = cell
    return _rate(where, value)


# -- both ---------------------------------------------------------------------------------


def _types(path: str, tables: Mapping[str, object]) -> tuple[str, ...]:
    types = tuple(name for name in tables if not name.endswith(SPREAD))
    if not types:
        raise DataError(f"{path}: no GPU type in it (names that end in {SPREAD} are the spread form of one)")
    return types


def _table(
    path: str,
    types: tuple[str, ...],
    alone: Mapping[str, Mapping[Key, float]],
    pairs: Mapping[tuple[Key, Key], Rates],
) -> Throughputs:
    keys = list(dict.fromkeys(key for name in types for key in alone[name]))
    if not keys:
        raise DataError(f"{path}: there is no row in it")
    return Throughputs(types, {key: tuple(alone[name].get(key, 0.0) for name in types) for key in keys}, pairs)
