# SPDX-License-Identifier: MIT
"""The site's own table of throughputs: CSV, or JSON where the name ends in .json.

    application,gpus,type,steps_per_s,relative_error,count,measured
    resnet50,1,a100,7.8,0.05,12,2026-11-01

    {"schema": "pal.throughput-table/1", "throughputs": [{"application": "resnet50", "gpus": 1, ...}]}

`relative_speed` in place of `steps_per_s` gives speeds of types without a unit; a table may have
both columns, and each row one of the two. The last three columns may be missing or empty. 0, in either
column, says that the application cannot run there. The application `*` gives the speeds of the types for
unknown applications.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from slurm_pal.allocation.throughputs import MOST_RATE, TABLE, Entry, ThroughputKey
from slurm_pal.base.errors import DataError
from slurm_pal.base.files import Reader, read_trusted, write_atomic

SCHEMA = "pal.throughput-table/1"
RATE, SPEED = "steps_per_s", "relative_speed"
NEEDED = ("application", "gpus", "type")
OPTIONAL = ("relative_error", "count", "measured")
COLUMNS = (*NEEDED, RATE, *OPTIONAL)
STATED_ERROR = 0.1  # of a row that states none
MOST_NAME, MOST_GPUS, MOST_COUNT, MOST_ERROR = 200, 100_000, 10**9, 10.0

Row = Mapping[str, Any]


class _BadRowError(ValueError):
    """Says what is wrong with one row."""


def read(path: str, now_s: float, reader: Reader = read_trusted) -> dict[ThroughputKey, Entry]:
    """The table at `path`; ages count from `now_s` (Unix s), and `reader` reads files.

    Raises DataError for a file that cannot be read or trusted, and for the first row that is wrong.
    """
    try:
        text = reader(path).decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start + 1} is not UTF-8") from None
    rows = _of_json(path, text) if path.endswith(".json") else _of_csv(path, text)
    found: dict[ThroughputKey, Entry] = {}
    places: dict[ThroughputKey, str] = {}
    for place, row in rows:
        try:
            key, entry = _entry(row, now_s)
        except _BadRowError as error:
            raise DataError(f"{path}: {place}: {error}") from None
        if key in found:
            raise DataError(f"{path}: {place}: {_said(key)} was given before, in {places[key]}; give it once")
        found[key], places[key] = entry, place
    _check_units(path, found)
    return found


def _said(key: ThroughputKey) -> str:
    return f"application {key.application!r} on {key.gpus} GPUs of type {key.type!r}"


def _check_units(path: str, found: Mapping[ThroughputKey, Entry]) -> None:
    """A row of the completed table has one unit; 0 has none."""
    units: dict[tuple[str, int], bool] = {}
    for key, entry in found.items():
        if entry.steps_per_s > 0 and units.setdefault(key[:2], entry.relative) != entry.relative:
            raise DataError(f"{path}: {_said(key)} and its other types differ: give all in {RATE} or all in {SPEED}")


def _of_csv(path: str, text: str) -> Iterator[tuple[str, Row]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_names(f"{path}: the header", header)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            place = f"line {reader.line_num}"
            if len(cells) != len(header):
                raise DataError(f"{path}: {place}: {len(cells)} columns, but the header has {len(header)}")
            yield place, {name: cell.strip() for name, cell in zip(header, cells, strict=True) if cell.strip()}
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num}: cannot be read as CSV: {error}") from None


def _of_json(path: str, text: str) -> Iterator[tuple[str, Row]]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}") from None
    schema = body.get("schema") if isinstance(body, dict) else None
    if schema != SCHEMA or not isinstance(body.get("throughputs"), list):
        raise DataError(f'{path}: a table of throughputs is {{"schema": "{SCHEMA}", "throughputs": [...]}}, not this')
    for number, row in enumerate(body["throughputs"], start=1):
        if not isinstance(row, dict):
            raise DataError(f"{path}: row {number}: {row!r:.60} is not an object")
        _check_names(f"{path}: row {number}", list(row))
        yield f"row {number}", {name: value for name, value in row.items() if value not in (None, "")}


def _check_names(where: str, names: list[str]) -> None:
    allowed = f"{','.join(COLUMNS)} ({SPEED} may stand for {RATE} or beside it)"
    missing = [name for name in NEEDED if name not in names]
    unknown = [name for name in names if name not in (*COLUMNS, SPEED)]
    if unknown:
        raise DataError(f"{where} has {unknown[0]!r:.60}, which is not a column; allowed are {allowed}")
    if len(set(names)) < len(names):
        raise DataError(f"{where} has {max(names, key=names.count)} twice; give it once")
    if missing or not {RATE, SPEED} & set(names):
        raise DataError(
            f"{where} has no {(*missing, RATE)[0]}; needed are {','.join((*NEEDED, RATE))}, allowed {allowed}"
        )


def _entry(row: Row, now_s: float) -> tuple[ThroughputKey, Entry]:
    key = ThroughputKey(
        _name(row, "application"), int(_number(row, "gpus", 1, MOST_GPUS, whole=True)), _name(row, "type")
    )
    if (RATE in row) == (SPEED in row):
        raise _BadRowError(f"a row must have one of {RATE} and {SPEED}, not {'both' if RATE in row else 'none'}")
    unit = RATE if RATE in row else SPEED
    rate = _number(row, unit, 0, MOST_RATE)
    if 0 < rate < 1 / MOST_RATE:
        raise _BadRowError(f"{unit} = {rate:g} must be 0 (cannot run there) or at least {1 / MOST_RATE:g}")
    error = _number(row, "relative_error", 0, MOST_ERROR, STATED_ERROR)
    if error == 0:
        raise _BadRowError("relative_error = 0 must be above 0, like 0.05 for 5 %")
    count = int(_number(row, "count", 0, MOST_COUNT, 0, whole=True))
    age_s = max(0.0, now_s - _when_s(row["measured"])) if "measured" in row else 0.0
    return key, Entry(rate, error, count, age_s, TABLE, rate > 0 and unit == SPEED)


def _name(row: Row, column: str) -> str:
    text = row.get(column, "")
    if not _is_name(text):
        raise _BadRowError(f"{column} = {text!r:.60} must be a name of 1 to {MOST_NAME} printable characters")
    return str(text)


def _is_name(text: object) -> bool:
    """Whether this may name an application or a type; blanks at its ends would not survive a CSV file."""
    return isinstance(text, str) and 0 < len(text) <= MOST_NAME and text.isprintable() and text == text.strip()


def _number(
    row: Row, column: str, least: float, most: float, default: float | None = None, whole: bool = False
) -> float:
    """A number of a row; without a default it must be there."""
    value = row.get(column, default)
    try:
        number = float("nan") if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not (isfinite(number) and least <= number <= most) or (whole and number != int(number)):
        kind = "whole number" if whole else "number"
        shown = "nothing" if value is None else f"{value!r:.60}"
        raise _BadRowError(f"{column} = {shown} must be a {kind} from {least:g} to {most:g}")
    return number


def _when_s(text: object) -> float:
    """Unix seconds of a date or time in ISO 8601, local where it names no zone."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise _BadRowError(f"measured = {text!r:.60} must be a date like 2026-11-01 or 2026-11-01T07:30:00") from None


# -- writing ------------------------------------------------------------------------------


def write(path: str, entries: Mapping[ThroughputKey, Entry], now_s: float) -> int:
    """Write entries as a table that `read` takes, mode 0644; those with a name that it would refuse are left out.

    Returns how many those are. Raises DataError when the file cannot be written.
    """
    form: Callable[[Iterable[dict[str, Any]]], str] = _as_json if path.endswith(".json") else _as_csv
    named = sorted((key, entry) for key, entry in entries.items() if _is_name(key.application) and _is_name(key.type))
    rows = [_row(key, entry, now_s) for key, entry in named]
    try:
        write_atomic(path, form(rows))
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None
    return len(entries) - len(named)


def _row(key: ThroughputKey, entry: Entry, now_s: float) -> dict[str, Any]:
    unit = SPEED if entry.relative else RATE
    measured = datetime.fromtimestamp(now_s - entry.age_s, UTC).isoformat(timespec="seconds")
    return {
        **key._asdict(), unit: float(f"{entry.steps_per_s:.6g}"),
        "relative_error": float(f"{entry.relative_error:.4g}"), "count": entry.runs, "measured": measured,
    }  # fmt: skip


def _as_json(rows: Iterable[dict[str, Any]]) -> str:
    return json.dumps({"schema": SCHEMA, "throughputs": list(rows)}, indent=1, allow_nan=False) + "\n"


def _as_csv(rows: Iterable[dict[str, Any]]) -> str:
    listed = list(rows)
    names = [name for name in (*NEEDED, RATE, SPEED, *OPTIONAL) if name != SPEED or any(SPEED in row for row in listed)]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(listed)
    return text.getvalue()
